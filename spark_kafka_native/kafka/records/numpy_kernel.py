"""The NumPy twin of the compiled kernel: same functions, same results, same refusals, no compiler.

One Python loop is left, over the records of a batch, because each record says where the next begins (0.1 us
per record); everything else is whole columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .crc32c import crc32c
from .header_lists import HeaderLists
from .scanned import DENSE, SAME_TIMESTAMP, BadRecord, ScannedRecords
from .varint import (
    VARINT_BYTES,
    VARLONG_BYTES,
    Varints,
    read_varint,
    read_varints,
    varint_sizes,
    write_varints,
)
from .walk import Walk, walk_records

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Batches = npt.NDArray[np.void]
Source = bytes | bytearray | memoryview

MAX_ENCODED_BYTES = 2**31 - 1
"""``batch_length`` is an int32."""

_FEW_ROWS = 16
"""Below this many rows a column-wise pass over headers costs more than a plain loop."""


def join_sources(sources: Sequence[Source], batches: Batches) -> tuple[Sequence[Source], Batches]:
    """Return the sources in the form that this kernel's other functions take, and the batches that fit them.

    Here: one source. A column-wise pass costs the same for one record as for thousands, so there is one pass.
    """
    if len(sources) == 1:
        return sources, batches
    shifts = np.cumsum([0, *(len(source) for source in sources)])
    joined = batches.copy()
    joined["start"] += shifts[batches["source"]]
    joined["end"] += shifts[batches["source"]]
    joined["source"] = 0
    return [b"".join(sources)], joined


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

    Rows up to ``ends[i]`` (exclusive, increasing) lie in ``sources[owners[i]]``. The bytes of all rows
    together must fit int32 offsets; the caller sees to it.
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
    picked = slots.take(_indexes(np.arange(0, 2 * n, 2), nulls))
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
    bad = np.zeros(len(starts), np.bool_)
    cursor = starts.copy()
    active = np.flatnonzero(counts > 0)
    taken = 0
    # One pass per header index, as long as that beats one step per header.
    while active.size >= _FEW_ROWS:
        at, limit = place[active] + taken, limits[active]
        keys = read_varints(data, cursor[active], max_bytes=VARINT_BYTES)
        values = read_varints(data, keys.end + np.maximum(keys.value, 0), max_bytes=VARINT_BYTES)
        wrong = (keys.value < 0) | (values.value < -1) | (values.end + np.maximum(values.value, 0) > limit)
        wrong[keys.too_long] = wrong[values.too_long] = True
        bad[active[wrong]] = True
        key_start[at], key_length[at] = keys.end, np.where(wrong, 0, keys.value)
        value_start[at], value_length[at] = values.end, np.where(wrong, 0, values.value)
        cursor[active] = values.end + np.maximum(value_length[at], 0)
        taken += 1
        active = active[~wrong & (counts[active] > taken)]
    found = key_start, key_length, value_start, value_length
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


def encode_records(
    rows: I64 | None,
    count: int,
    timestamps: I64 | None,
    key: pa.Array | None,
    value: pa.Array | None,
    headers: HeaderLists | None,
    reserve: int,
    at_most: int | None = None,  # noqa: ARG001 - it measures by the way
) -> U8:
    """Encode ``count`` records one after the other and return them behind ``reserve`` bytes left free.

    ``rows`` says which rows of the columns, in which order (int64, within bounds; None: all). ``key`` and
    ``value`` are of a binary kind; None is all null, and without timestamps every delta is 0. ``at_most``,
    if somebody knows a bound of the records' size, saves measuring them. Raises
    OverflowError where a timestamp delta leaves 64 bits or the records do not fit a batch.
    """
    keys, values = _pick(key, rows), _pick(value, rows)
    blobs = None if headers is None else _pick(_header_blobs(headers), rows)
    key_lengths, value_lengths = _lengths(keys, count), _lengths(values, count)
    inner = [_timestamp_deltas(timestamps, rows, count), np.arange(count), key_lengths]
    record_bytes = 1 + sum(
        (varint_sizes(numbers) for numbers in (*inner, value_lengths)), _lengths(blobs, count, 1)
    )
    record_bytes += np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0)
    if int((record_bytes + varint_sizes(record_bytes)).sum()) >= MAX_ENCODED_BYTES - reserve:
        raise OverflowError("the records do not fit one batch")
    parts = [_join_varints(record_bytes, None, *inner), keys, _join_varints(value_lengths), values]
    parts.append(_scalar(b"\0") if blobs is None else blobs)
    return _behind(reserve, _join(part for part in parts if part is not None))


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
    least, most = int(np.min(base)) + int(deltas.min()), int(np.max(base)) + int(deltas.max())
    return least < -(2**63) or most >= 2**63


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


def _pick(column: pa.Array | None, rows: I64 | None) -> pa.Array | None:
    if column is None:
        return None
    column = column.cast(pa.large_binary())
    return column if rows is None else column.take(_indexes(rows))


def _indexes(rows: I64, nulls: Flags | None = None) -> pa.Array:
    """Return ``rows`` as an Arrow array. (`pa.array` would look whether this is a pandas object, and import
    pandas.)"""
    validity = None
    if nulls is not None and nulls.any():
        validity = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), len(rows), [validity, pa.py_buffer(rows)])


def _lengths(column: pa.Array | None, count: int, without: int = -1) -> I64:
    """Return the lengths of a binary column, -1 for null; ``without`` for all where there is no column."""
    if column is None:
        return np.full(count, without, np.int64)
    return np.asarray(pc.fill_null(pc.binary_length(column), -1), np.int64)


def _timestamp_deltas(timestamps: I64 | None, rows: I64 | None, count: int) -> I64:
    if timestamps is None:
        return np.zeros(count, np.int64)
    picked = timestamps if rows is None else timestamps[rows]
    base = int(picked[0])
    if int(picked.max()) - base >= 2**63 or int(picked.min()) - base < -(2**63):
        raise OverflowError("two timestamps of one batch are more than 64 bits apart")
    deltas: I64 = picked - base
    return deltas


def _header_blobs(headers: HeaderLists) -> pa.Array:
    """Encode each record's headers: their count, then key and value of each with their lengths."""
    key, value = _pick(headers.key, None), _pick(headers.value, None)
    total = int(headers.offsets[-1])
    joined = _join(
        [_join_varints(_lengths(key, total)), key, _join_varints(_lengths(value, total)), value],
    )
    edges = np.frombuffer(joined.buffers()[1], np.int64, len(joined) + 1)[headers.offsets]
    blobs = pa.Array.from_buffers(
        pa.large_binary(),
        len(edges) - 1,
        [None, pa.py_buffer(edges), joined.buffers()[2] or pa.py_buffer(b"")],
    )
    return _join([_join_varints(np.diff(headers.offsets)), blobs])


def _join_varints(*columns: I64 | None) -> pa.Array:
    """Return a large_binary column of each row's numbers as varints, one after the other; None is a zero
    byte."""
    one = next(column for column in columns if column is not None)
    sizes = sum(
        (varint_sizes(column) for column in columns if column is not None), np.zeros(len(one), np.int64)
    )
    offsets = np.zeros(len(one) + 1, np.int64)
    np.cumsum(sizes + sum(column is None for column in columns), out=offsets[1:])
    out = np.zeros(int(offsets[-1]), np.uint8)
    cursor: I64 = offsets[:-1]
    for column in columns:
        cursor = cursor + 1 if column is None else write_varints(out, cursor, column)
    return pa.Array.from_buffers(
        pa.large_binary(), len(one), [None, pa.py_buffer(offsets), pa.py_buffer(out)]
    )


def _join(parts: Iterable[pa.Array | pa.Scalar]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _scalar(b""), null_handling="replace", null_replacement=b"")


@cache
def _scalar(data: bytes) -> pa.Scalar:
    # As in `_indexes`: `pa.scalar` imports pandas.
    buffers = [None, pa.py_buffer(np.array([0, len(data)])), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), 1, buffers)[0]


def _behind(reserve: int, joined: pa.Array) -> U8:
    edges = np.frombuffer(joined.buffers()[1], np.int64, len(joined) + 1)
    first, last = int(edges[0]), int(edges[-1])
    out = np.empty(reserve + last - first, np.uint8)
    out[reserve:] = np.frombuffer(joined.buffers()[2], np.uint8)[first:last]
    return out
