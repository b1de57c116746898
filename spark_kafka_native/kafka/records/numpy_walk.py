"""The chain of records in NumPy: each record says where the next one begins.

A chain cannot be followed column-wise, but neighbouring records often have the same size. Such a run is
guessed and verified as a whole (every record in it must state the guessed size); only between runs does a
Python loop step through the records.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .scan import DENSE, BadRecord
from .varint import read_varint

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Source = bytes | bytearray | memoryview

_SHORTEST_RUN = 32
"""A run shorter than this costs more to verify than to step through."""
_SMALL_BATCH = 400
"""Smaller batches are stepped through only."""
_FIRST_STEPS = 64
_MAX_STEPS = 4096
"""The number of records to step through before looking for a run again; doubled each time none is found."""
_OUTSIDE = 1 << 40
"""A step beyond the end of any buffer; stands for a negative length."""


class RecordWalk(NamedTuple):
    """The positions of the records of the batches that are not `DENSE`."""

    batches: I64
    """The indexes of the walked batches."""
    counts: I64
    """The number of good records of each."""
    starts: I64
    """The start of each good record, in order."""
    ends: I64
    """The end of each good record."""
    broken: BadRecord | None
    """The first record that exceeds its batch; the walk ends there."""


class _Data:
    """The source in several forms, each the fastest for one purpose."""

    def __init__(self, source: Source) -> None:
        self.view = memoryview(source)
        self.array = np.frombuffer(source, np.uint8)

    @cached_property
    def quick(self) -> bytes:
        """Indexing bytes is twice as fast as indexing a memoryview, and worth the copy if done often."""
        return bytes(self.view)


def walk_records(source: Source, batches: npt.NDArray[np.void]) -> RecordWalk:
    """Follow the records of each of ``batches`` (dtype `BATCH`, all in one source), up to the first record
    that exceeds its batch.
    """
    data = _Data(source)
    walked = ((batches["flags"] & DENSE) == 0).nonzero()[0]
    counts = batches["count"][walked]
    columns = (batches[name][walked].tolist() for name in ("start", "end", "count"))
    chunks: list[I64] = []
    # The edges of records that were stepped through, not yet an array: small arrays are expensive.
    pending: list[int] = []
    broken = None
    for place, (position, end, count) in enumerate(zip(*columns, strict=True)):
        if count < _SMALL_BATCH:
            found: list[int] | I64 = _step(data.quick, position, end, count)
            pending += found
        else:
            found = _walk_batch(data, position, end, count)
            chunks += [np.array(pending, np.int64), found]
            pending = []
        good, last = len(found) - 1, int(found[-1])
        if last != end or good != count:
            broken = BadRecord(int(walked[place]), good, last)
            walked, counts = walked[: place + 1], counts[: place + 1]
            counts[place] = good
            break
    return _cut(walked, counts, np.concatenate([*chunks, np.array(pending, np.int64)]), broken)


def _cut(walked: I64, counts: I64, edges: I64, broken: BadRecord | None) -> RecordWalk:
    """Separate the edges of all batches, count + 1 of each, into starts and ends."""
    if len(counts) == 1:
        return RecordWalk(walked, counts, edges[:-1], edges[1:], broken)
    last = (counts + 1).cumsum() - 1
    return RecordWalk(walked, counts, np.delete(edges, last), np.delete(edges, last - counts), broken)


def _walk_batch(data: _Data, position: int, end: int, count: int) -> I64:
    """Return the start of each record of a batch, then the end of the last one that lies within the batch."""
    parts: list[I64] = []
    steps = _FIRST_STEPS
    while count:
        run = _find_run(data, position, end, count) if count >= _SHORTEST_RUN else None
        if run is not None:
            parts.append(run[:-1])
            position, count, steps = int(run[-1]), count - len(run) + 1, _FIRST_STEPS
            continue
        stepped = _step(data.quick, position, end, min(count, steps))
        parts.append(np.array(stepped[:-1], np.int64))
        position = stepped[-1]
        if len(stepped) <= min(count, steps):
            break
        count -= len(stepped) - 1
        steps = min(2 * steps, _MAX_STEPS)
    parts.append(np.array([position], np.int64))
    return np.concatenate(parts)


def _find_run(data: _Data, position: int, end: int, count: int) -> I64 | None:
    """Return the edges of the records from ``position`` on that have one size, None if they are too few."""
    try:
        length, body = read_varint(data.view[:end], position)
    except ValueError:
        return None
    size = body - position + length
    if length < 0 or body - position > 2:
        return None
    edges = np.arange(position, min(end, position + size * count) + 1, size)
    same = data.array.take(edges[:-1]) == data.view[position]
    if body - position == 2:
        same &= data.array.take(edges[:-1] + 1) == data.view[position + 1]
    run = len(same) if same.all() else int(np.argmin(same))
    return edges[: run + 1] if run >= _SHORTEST_RUN else None


def _step(data: bytes, position: int, end: int, count: int) -> list[int]:
    """Step through up to ``count`` records; return their edges, up to ``end``."""
    sizes = _sizes()
    edges = [position]
    append = edges.append
    try:
        # A loop over records, 0.1 us each: see the module's docstring.
        for _ in range(count):
            size = sizes[data[position]][data[position + 1]]
            if not size:
                length, body = read_varint(memoryview(data)[:end], position)
                size = body - position + (length if length >= 0 else _OUTSIDE)
            position += size
            append(position)
    except (IndexError, ValueError):
        append(_OUTSIDE)
    while edges[-1] > end:
        edges.pop()
    return edges


@lru_cache(maxsize=1)
def _sizes() -> list[list[int]]:
    """Return the size of a record by the first two bytes of its length, 0 where the length is longer."""
    tables = []
    for first in range(256):
        if first < 0x80:
            tables.append([_OUTSIDE if first & 1 else 1 + (first >> 1)] * 256)
            continue
        two = [_OUTSIDE if first & 1 else 2 + ((first & 0x7F | second << 7) >> 1) for second in range(128)]
        tables.append(two + [0] * 128)
    return tables
