"""The NumPy twin of the compiled kernel: same functions, same results, same refusals, no compiler.

One Python loop is left, over the records of a batch, because each record says where the next begins (0.1 us
per record); everything else is whole columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .crc32c import crc32c
from .numpy_encoding import encode_records, indexes
from .numpy_hashing import group_rows, hash_keys
from .scanned import DENSE, SAME_TIMESTAMP, BadRecord, ScannedRecords
from .varint import (
    VARINT_BYTES,
    VARLONG_BYTES,
    Varints,
    read_varint,
    read_varints,
)
from .walk import Walk, walk_records

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Batches = npt.NDArray[np.void]
Source = bytes | bytearray | memoryview

__all__ = [
    "encode_records",
    "gather_binary",
    "group_rows",
    "hash_keys",
    "join_sources",
    "renew_crc32c",
    "scan_headers",
    "scan_records",
]

_FEW_ROWS = 16
"""Below this many rows a column-wise pass over headers costs more than a plain loop."""


def join_sources(sources: Sequence[Source], batches: Batches) -> tuple[Sequence[Source], Batches]:
    """Return the sources in the form that this kernel's other functions take, and the batches that fit them.

    Here: one source, with the batches in their order, as `gather_binary` needs the rows in theirs. A
    column-wise pass costs the same for one record as for thousands, so there is one pass.
    """
    if len(sources) == 1:
        return sources, batches
    views = [memoryview(source) for source in sources]
    spans = (batches[name].tolist() for name in ("source", "start", "end"))
    # A loop over batches, some of which were decompressed for far more.
    parts = [views[source][start:end] for source, start, end in zip(*spans, strict=True)]
    joined = batches.copy()
    joined["end"] = np.cumsum([len(part) for part in parts])
    joined["start"] = joined["end"] - (batches["end"] - batches["start"])
    joined["source"] = 0
    return [b"".join(parts)], joined


def scan_records(sources: Sequence[Source], batches: Batches, out: ScannedRecords) -> BadRecord | None:
    """Find the parts of every record of ``batches`` (dtype `BATCH`), checking every bound; fill ``out``, in
    order.

    Returns the first record that breaks the format (then ``out`` is right up to it), or None. A record must
    lie within its batch, its parts within it; offsets increase and stay within the batch's last; nothing is
    left over. Headers are counted, not read.
    """
    walk = walk_records(sources[0], batches)
    _fill_dense(batches, out)
    bad = _read_fields(
        np.frombuffer(sources[0], np.uint8), batches[walk.batches], walk, _rows_of(batches, walk), out
    )
    if bad is None:
        return walk.broken
    ends = np.cumsum(walk.counts)
    batch = int(np.searchsorted(ends, bad, side="right"))
    return BadRecord(
        int(walk.batches[batch]), bad - int(ends[batch] - walk.counts[batch]), int(walk.starts[bad])
    )


def gather_binary(
    sources: Sequence[Source],
    ends: I64,  # noqa: ARG001 - here there is one source
    owners: I64,  # noqa: ARG001
    starts: I64,
    lengths: I32,
) -> pa.Array:
    """Copy slices of the sources into a binary array; length -1 is null.

    Rows up to ``ends[i]`` (exclusive, increasing) lie in ``sources[owners[i]]``, in their order. The bytes of
    all rows together must fit int32 offsets; the caller sees to it.
    """
    n = len(starts)
    if not n:
        return pa.nulls(0, pa.binary())
    nulls = lengths < 0
    # Slots 2i of this array are the rows, the odd ones are what lies between them; take copies the even ones.
    base = int(starts.min())
    edges = np.empty(2 * n, np.int64)
    edges[0::2] = starts - base
    edges[1::2] = edges[0::2] + np.maximum(lengths, 0)
    whole = memoryview(sources[0])[base : base + int(edges.max())]
    offset_type, kind = (np.int32, pa.binary()) if len(whole) < 2**31 else (np.int64, pa.large_binary())
    buffers = [None, pa.py_buffer(edges.astype(offset_type)), pa.py_buffer(whole)]
    slots = pa.Array.from_buffers(kind, 2 * n - 1, buffers)
    picked = slots.take(indexes(np.arange(0, 2 * n, 2), nulls))
    return picked.cast(pa.binary())


def scan_headers(
    sources: Sequence[Source],
    ends: I64,  # noqa: ARG001 - here there is one source
    owners: I64,  # noqa: ARG001
    starts: I64,
    limits: I64,
    counts: I32,
) -> tuple[I64, I32, I64, I32] | int:
    """Find every header of every row: ``counts[i]`` of them in bytes [starts[i], limits[i]) of the row's
    source.

    Returns (key_start, key_length, value_start, value_length) of all headers, in order; value length -1 is
    null. Or the first row whose headers break the format: a null key, a length past the end, bytes left over.
    """
    data = np.frombuffer(sources[0], np.uint8)
    total = int(counts.sum(dtype=np.int64))
    key_start, value_start = np.empty(total, np.int64), np.empty(total, np.int64)
    key_length, value_length = np.empty(total, np.int32), np.empty(total, np.int32)
    place = np.cumsum(counts, dtype=np.int64) - counts
    found = key_start, key_length, value_start, value_length
    bad = np.zeros(len(starts), np.bool_)
    cursor = starts.copy()
    active = np.flatnonzero(counts > 0)
    taken = 0
    # One pass per header index, as long as that beats one step per header.
    while active.size >= _FEW_ROWS:
        cursor[active], wrong = _scan_next(data, cursor[active], limits[active], place[active] + taken, found)
        bad[active[wrong]] = True
        taken += 1
        active = active[~wrong & (counts[active] > taken)]
    for row in active.tolist():
        first = int(place[row])
        cursor[row] = _scan_row(
            sources[0],
            int(cursor[row]),
            int(limits[row]),
            range(first + taken, first + int(counts[row])),
            found,
        )
    bad |= cursor != limits
    if bad.any():
        return int(np.argmax(bad))
    return found


def renew_crc32c(checked: memoryview, crc: int, old: bytes, at: int) -> int:  # noqa: ARG001 - it looks at all of it again
    """Return the CRC-32C of ``checked``, which was ``crc`` when ``old`` stood at ``at``."""
    return crc32c(checked)


def _rows_of(batches: Batches, walk: Walk) -> I64 | slice:
    """Return the rows of the output that the walked records fill."""
    total = int(walk.counts.sum())
    first_rows = (np.cumsum(batches["count"]) - batches["count"])[walk.batches]
    shifts = first_rows - (np.cumsum(walk.counts) - walk.counts)
    if not shifts.any():
        return slice(0, total)
    rows: I64 = np.arange(total) + np.repeat(shifts, walk.counts)
    return rows


def _fill_dense(batches: Batches, out: ScannedRecords) -> None:
    rows_end = np.cumsum(batches["count"]).tolist()
    for index in np.flatnonzero(batches["flags"] & DENSE).tolist():
        batch, end = batches[index], rows_end[index]
        start = end - int(batch["count"])
        out.offset[start:end] = np.arange(batch["base_offset"], batch["base_offset"] + batch["count"])
        if out.timestamp_ms is not None:
            out.timestamp_ms[start:end] = batch["timestamp"]


def _read_fields(
    data: U8, batches: Batches, walk: Walk, rows: I64 | slice, out: ScannedRecords
) -> int | None:
    """Read what each walked record holds; return the first that breaks the format."""
    starts, ends = walk.starts, walk.ends

    def of_batch(field: str) -> Any:
        """The field of each record's batch: a column, or one number where there is one batch."""
        return batches[field][0] if len(batches) == 1 else np.repeat(batches[field], walk.counts)

    timestamps = read_varints(data, _skip_lengths(data, starts) + 1, max_bytes=VARLONG_BYTES)
    deltas = read_varints(data, timestamps.end, max_bytes=VARINT_BYTES)
    good = _increase(deltas.value, walk.counts)
    good &= deltas.value <= of_batch("last_offset_delta")
    good[timestamps.too_long] = good[deltas.too_long] = False
    base = of_batch("timestamp")
    timestamp = base + timestamps.value
    same = (of_batch("flags") & SAME_TIMESTAMP) != 0
    if _may_overflow(base, timestamps.value):
        good &= same | (((base ^ timestamp) & (timestamps.value ^ timestamp)) >= 0)
    out.offset[rows] = of_batch("base_offset") + deltas.value
    key, value, counts = _read_lengths(data, deltas.end, ends, good)
    if not good.all():
        return int(np.argmin(good))
    if out.timestamp_ms is not None:
        out.timestamp_ms[rows] = np.where(same, base, timestamp) if np.any(same) else timestamp
    if out.key_start is not None and out.key_length is not None:
        out.key_start[rows], out.key_length[rows] = key.end, key.value
    if out.value_start is not None and out.value_length is not None:
        out.value_start[rows], out.value_length[rows] = value.end, value.value
    if out.headers_start is not None and out.headers_end is not None and out.headers_count is not None:
        out.headers_start[rows], out.headers_end[rows], out.headers_count[rows] = (
            counts.end,
            ends,
            counts.value,
        )
    return None


def _increase(deltas: I64, counts: I64) -> Flags:
    """Say for each record whether its offset delta is above the one before it in its batch, or above -1."""
    increase = deltas >= 0
    increase[1:] &= deltas[1:] > deltas[:-1]
    if len(counts) > 1:
        firsts = (np.cumsum(counts) - counts)[counts > 0]
        increase[firsts] = deltas[firsts] >= 0
    return increase


def _may_overflow(base: Any, deltas: I64) -> bool:
    """Whether the sum of a base timestamp and a delta may leave 64 bits."""
    if not len(deltas):
        return False
    lowest, highest = int(np.min(base)) + int(deltas.min()), int(np.max(base)) + int(deltas.max())
    return lowest < -(2**63) or highest >= 2**63


def _skip_lengths(data: U8, starts: I64) -> I64:
    """Return the positions behind the record lengths, which the walk has found to be good."""
    position: I64 = starts + 1
    more = np.flatnonzero(data.take(starts, mode="clip") >= 0x80)
    while more.size:
        at = position[more]
        position[more] += 1
        more = more[data[at] >= 0x80]
    return position


def _read_lengths(data: U8, positions: I64, ends: I64, good: Flags) -> tuple[Varints, Varints, Varints]:
    """Read key length, value length and headers count of every record; clear ``good`` where one is bad.

    Positions only grow (no length counts below 0), so what ends within the record at last never left it.
    """
    key = read_varints(data, positions, max_bytes=VARINT_BYTES)
    value = read_varints(data, key.end + np.maximum(key.value, 0), max_bytes=VARINT_BYTES)
    counts = read_varints(data, value.end + np.maximum(value.value, 0), max_bytes=VARINT_BYTES)
    good &= (key.value >= -1) & (value.value >= -1)
    for numbers in (key, value, counts):
        good[numbers.too_long] = False
    left = ends - counts.end
    headers = counts.value != 0
    if headers.any():
        good &= (counts.value >= 0) & (counts.value <= left // 2) & (headers | (left == 0))
    else:
        good &= left == 0
    return key, value, counts


def _scan_next(
    data: U8, positions: I64, limits: I64, places: I64, found: tuple[I64, I32, I64, I32]
) -> tuple[I64, Flags]:
    """Find one header of each row; return where these end, and which of them break the format."""
    key_start, key_length, value_start, value_length = found
    keys = read_varints(data, positions, max_bytes=VARINT_BYTES)
    values = read_varints(data, keys.end + np.maximum(keys.value, 0), max_bytes=VARINT_BYTES)
    wrong = (keys.value < 0) | (values.value < -1) | (values.end + np.maximum(values.value, 0) > limits)
    wrong[keys.too_long] = wrong[values.too_long] = True
    key_start[places], key_length[places] = keys.end, np.where(wrong, 0, keys.value)
    value_start[places], value_length[places] = values.end, np.where(wrong, 0, values.value)
    return values.end + np.maximum(value_length[places], 0), wrong


def _scan_row(
    source: Source, position: int, limit: int, places: range, found: tuple[I64, I32, I64, I32]
) -> int:
    """Find the rest of one record's headers; return where they end, -1 where they break the format."""
    key_start, key_length, value_start, value_length = found
    view = memoryview(source)[:limit]
    try:
        # A loop over headers, 2 us each: few records have more headers than their neighbours.
        for place in places:
            length, position = read_varint(view, position)
            if not 0 <= length <= limit - position:
                return -1
            key_start[place], key_length[place] = position, length
            length, position = read_varint(view, position + length)
            if not -1 <= length <= limit - position:
                return -1
            value_start[place], value_length[place] = position, length
            position += max(length, 0)
    except ValueError:
        return -1
    return position
