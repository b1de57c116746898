"""The chain of records without a compiler: each record says where the next one begins.

That cannot be done column-wise, but records of one size often stand in a row. Such a run is guessed and
proved as a whole (every record of it says the size that was guessed); only between runs a Python loop steps
through the records.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .scanned import DENSE, BadRecord
from .varint import read_varint

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Source = bytes | bytearray | memoryview

_SHORTEST_RUN = 32
"""A run shorter than this costs more to prove than to step through."""
_SMALL_BATCH = 400
"""Smaller batches are stepped through only."""
_FIRST_STEPS = 64
_MAX_STEPS = 4096
"""How many records to step through before trying for a run again: doubled each time there is none."""
_OUTSIDE = 1 << 40
"""A step that leads out of any buffer: what a negative length is taken for."""


class Walk(NamedTuple):
    """Where the records lie of the batches that are not `DENSE`."""

    batches: I64
    """Which batches were walked."""
    counts: I64
    """How many good records each has."""
    starts: I64
    """Where each good record begins, in order."""
    ends: I64
    """Where it ends."""
    broken: BadRecord | None
    """The first record whose length leads out of its batch; the walk ends there."""


class _Data:
    """The source in the forms that are quickest for one purpose each."""

    def __init__(self, source: Source) -> None:
        self.view = memoryview(source)
        self.array = np.frombuffer(source, np.uint8)

    @cached_property
    def quick(self) -> bytes:
        """Indexing bytes is twice as fast as indexing a memoryview, and worth the copy if done a lot."""
        return bytes(self.view)


def walk_records(source: Source, batches: npt.NDArray[np.void]) -> Walk:
    """Follow the records of each of ``batches`` (dtype `BATCH`, all in one source), up to the first that
    leads out."""
    data = _Data(source)
    walked = ((batches["flags"] & DENSE) == 0).nonzero()[0]
    counts = batches["count"][walked]
    columns = (batches[name][walked].tolist() for name in ("start", "end", "count"))
    chunks: list[I64] = []
    # Where records begin and end, stepped through but not yet an array: arrays of few numbers are dear.
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


def _cut(walked: I64, counts: I64, edges: I64, broken: BadRecord | None) -> Walk:
    """Take apart the edges of all batches: count + 1 of each."""
    if len(counts) == 1:
        return Walk(walked, counts, edges[:-1], edges[1:], broken)
    last = (counts + 1).cumsum() - 1
    return Walk(walked, counts, np.delete(edges, last), np.delete(edges, last - counts), broken)


def _walk_batch(data: _Data, position: int, end: int, count: int) -> I64:
    """Return where each record of a batch begins and, last, where the last one ends that ends within the
    batch."""
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
    """Return the edges of the records from ``position`` on that have one size, None where they are few."""
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
    """Step through up to ``count`` records: their edges, as far as they lie before ``end``."""
    sizes = _sizes()
    edges = [position]
    append = edges.append
    try:
        # A loop over records, 0.1 us each: see the module.
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
    """Return the size of a record by the first two bytes of its length, 0 where these are not the whole
    length."""
    tables = []
    for first in range(256):
        if first < 0x80:
            tables.append([_OUTSIDE if first & 1 else 1 + (first >> 1)] * 256)
            continue
        two = [_OUTSIDE if first & 1 else 2 + ((first & 0x7F | second << 7) >> 1) for second in range(128)]
        tables.append(two + [0] * 128)
    return tables
