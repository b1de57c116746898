"""The kernel in NumPy: a twin of the compiled one that needs no compiler.

`kernel.Kernel` documents the functions; both kernels give the same results and refuse the same input. One
Python loop remains (`numpy_walk`), over the records of a batch, because each record says where the next
begins; everything else works on whole columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .columns import HeaderLists, build_index
from .crc32c import crc32c
from .numpy_walk import RecordWalk, walk_records
from .scan import DENSE, SAME_TIMESTAMP, BadRecord, ScannedRecords
from .varint import (
    VARINT_BYTES,
    VARLONG_BYTES,
    Varints,
    read_varint,
    read_varints,
    varint_sizes,
    write_varints,
)

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Batches = npt.NDArray[np.void]
Hashes = npt.NDArray[np.uint32]
Source = bytes | bytearray | memoryview

MAX_ENCODED_BYTES = 2**31 - 1
"""``batch_length`` is an int32."""

_MATRIX_BYTES = 16 << 20
"""Keys of one length are gathered into a matrix; this caps it (a column of long keys is taken in slices)."""
_FEW_ROWS = 16
"""Below this many rows a column-wise pass over headers costs more than a plain loop."""


def join_sources(sources: Sequence[Source], batches: Batches) -> tuple[Sequence[Source], Batches]:
    """As `Kernel.join_sources`: one source that holds the batches in their order.

    A column-wise pass costs the same for one record as for thousands, so all sources are read in one pass.
    """
    if len(sources) == 1:
        return sources, batches
    views = [memoryview(source) for source in sources]
    spans = (batches[name].tolist() for name in ("source", "start", "end"))
    # A loop over batches; decompressing one of them costs far more than its step.
    parts = [views[source][start:end] for source, start, end in zip(*spans, strict=True)]
    joined = batches.copy()
    joined["end"] = np.cumsum([len(part) for part in parts])
    joined["start"] = joined["end"] - (batches["end"] - batches["start"])
    joined["source"] = 0
    return [b"".join(parts)], joined


def scan_records(sources: Sequence[Source], batches: Batches, out: ScannedRecords) -> BadRecord | None:
    """As `Kernel.scan_records`."""
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
    """As `Kernel.gather_binary`."""
    n = len(starts)
    if not n:
        return pa.nulls(0, pa.binary())
    nulls = lengths < 0
    # The even slots of this array are the rows, the odd slots the bytes between them; take copies the even.
    base = int(starts.min())
    edges = np.empty(2 * n, np.int64)
    edges[0::2] = starts - base
    edges[1::2] = edges[0::2] + np.maximum(lengths, 0)
    whole = memoryview(sources[0])[base : base + int(edges.max())]
    offset_type, kind = (np.int32, pa.binary()) if len(whole) < 2**31 else (np.int64, pa.large_binary())
    buffers = [None, pa.py_buffer(edges.astype(offset_type)), pa.py_buffer(whole)]
    slots = pa.Array.from_buffers(kind, 2 * n - 1, buffers)
    picked = slots.take(build_index(np.arange(0, 2 * n, 2), nulls))
    return picked.cast(pa.binary())


def scan_headers(
    sources: Sequence[Source],
    ends: I64,  # noqa: ARG001 - here there is one source
    owners: I64,  # noqa: ARG001
    starts: I64,
    limits: I64,
    counts: I32,
) -> tuple[I64, I32, I64, I32] | int:
    """As `Kernel.scan_headers`."""
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
    # One pass per header index, while that is faster than one step per header.
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


def _rows_of(batches: Batches, walk: RecordWalk) -> I64 | slice:
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
    data: U8, batches: Batches, walk: RecordWalk, rows: I64 | slice, out: ScannedRecords
) -> int | None:
    """Read the fields of each walked record; return the first record that breaks the format."""
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
    """Return for each record True if its offset delta exceeds the previous one of its batch, or -1."""
    increase = deltas >= 0
    increase[1:] &= deltas[1:] > deltas[:-1]
    if len(counts) > 1:
        firsts = (np.cumsum(counts) - counts)[counts > 0]
        increase[firsts] = deltas[firsts] >= 0
    return increase


def _may_overflow(base: Any, deltas: I64) -> bool:
    """Return True if the sum of a base timestamp and a delta may leave 64 bits."""
    if not len(deltas):
        return False
    lowest, highest = int(np.min(base)) + int(deltas.min()), int(np.max(base)) + int(deltas.max())
    return lowest < -(2**63) or highest >= 2**63


def _skip_lengths(data: U8, starts: I64) -> I64:
    """Return the positions behind the record lengths, which the walk has already checked."""
    position: I64 = starts + 1
    more = np.flatnonzero(data.take(starts, mode="clip") >= 0x80)
    while more.size:
        at = position[more]
        position[more] += 1
        more = more[data[at] >= 0x80]
    return position


def _read_lengths(data: U8, positions: I64, ends: I64, good: Flags) -> tuple[Varints, Varints, Varints]:
    """Read key length, value length and headers count of every record; clear ``good`` where one is bad.

    Positions only grow (a negative length counts as 0), so if the last part ends within the record, all
    parts lie within it.
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
    """Find one header of each row; return the end of each, and which of them break the format."""
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
    """Find the remaining headers of one record; return where they end, -1 if they break the format."""
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


# --- encoding: records as columns of parts, joined row by row -----------------------------------------------


def encode_records(  # noqa: PLR0913 - the columns, and a caller's buffer
    rows: I64 | None,
    count: int,
    timestamps: I64 | None,
    key: pa.Array | None,
    value: pa.Array | None,
    headers: HeaderLists | None,
    reserve: int,
    at_most: int | None = None,  # noqa: ARG001 - the sizes are computed anyway
) -> U8:
    """As `Kernel.encode_records`."""
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


def _pick(column: pa.Array | None, rows: I64 | None) -> pa.Array | None:
    if column is None:
        return None
    column = column.cast(pa.large_binary())
    return column if rows is None else column.take(build_index(rows))


def _lengths(column: pa.Array | None, count: int, without: int = -1) -> I64:
    """Return the lengths of a binary column, -1 for null; ``without`` for all where there is no column."""
    if column is None:
        return np.full(count, without, np.int64)
    import pyarrow.compute as pc  # late, here and below: a process that only reads does not need it

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
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*parts, _scalar(b""), null_handling="replace", null_replacement=b"")


@cache
def _scalar(data: bytes) -> pa.Scalar:
    # `pa.scalar` would import pandas.
    buffers = [None, pa.py_buffer(np.array([0, len(data)])), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), 1, buffers)[0]


def _behind(reserve: int, joined: pa.Array) -> U8:
    edges = np.frombuffer(joined.buffers()[1], np.int64, len(joined) + 1)
    first, last = int(edges[0]), int(edges[-1])
    out = np.empty(reserve + last - first, np.uint8)
    out[reserve:] = np.frombuffer(joined.buffers()[2], np.uint8)[first:last]
    return out


def renew_crc32c(checked: memoryview, crc: int, old: bytes, at: int) -> int:  # noqa: ARG001 - all is read again
    """As `Kernel.renew_crc32c`."""
    return crc32c(checked)


# --- keys: hashes and grouping ------------------------------------------------------------------------------


def hash_keys(
    kind: int, offsets: pa.Buffer, wide: bool, first: int, length: int, content: pa.Buffer | bytes
) -> Hashes:
    """As `Kernel.hash_keys`: the keys of one length at a time, so that each step is one operation on a whole
    column of a matrix.
    """
    position = np.frombuffer(offsets, np.int64 if wide else np.int32)[first : first + length + 1].astype(
        np.int64
    )
    data = np.frombuffer(content, np.uint8)
    lengths = np.diff(position)
    if position[0] < 0 or position[-1] > len(data) or (lengths < 0).any():
        raise ValueError("the key column's offsets leave its data")
    out = np.empty(length, np.uint32)
    hash_matrix = _HASHES[kind]
    by_length = np.argsort(lengths, kind="stable")
    edges = np.flatnonzero(np.diff(lengths[by_length], prepend=-1))
    for rows in np.split(by_length, edges[1:]):
        size = int(lengths[rows[0]])
        step = max(1, _MATRIX_BYTES // max(size, 1))
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            out[some] = hash_matrix(data[position[some][:, None] + np.arange(size)])
    return out


def group_rows(partition: I32, count: int) -> tuple[I64, I64]:
    """As `Kernel.group_rows`."""
    outside = np.flatnonzero((partition < 0) | (partition >= count))
    if len(outside):
        row = int(outside[0])
        raise ValueError(f"row {row}: partition {partition[row]} is not in [0, {count})")
    # NumPy sorts 8- and 16-bit integers with a radix sort, several times faster than those of 32 bits.
    small = partition.astype(np.uint8 if count <= 256 else np.uint16 if count <= 65536 else np.int32)
    order = np.argsort(small, kind="stable").astype(np.int64, copy=False)
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(partition, minlength=count), out=bounds[1:])
    return order, bounds


def _murmur2(keys: npt.NDArray[np.uint8]) -> Hashes:
    """``keys``: uint8[m, size]. Unsigned arithmetic wraps, as Java's int does."""
    count, size = keys.shape
    m = np.uint32(0x5BD1E995)
    h = np.full(count, 0x9747B28C ^ size, np.uint32)
    whole = size & ~3
    words = np.ascontiguousarray(keys[:, :whole]).view("<u4").astype(np.uint32, copy=False)
    for i in range(whole // 4):
        k = words[:, i] * m
        k = (k ^ (k >> np.uint32(24))) * m
        h = (h * m) ^ k
    for i in range(size - 1, whole - 1, -1):
        h ^= keys[:, i].astype(np.uint32) << np.uint32(8 * (i - whole))
    if size > whole:
        h *= m
    h = (h ^ (h >> np.uint32(13))) * m
    return h ^ (h >> np.uint32(15))


def _build_crc_table() -> Hashes:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> np.uint32(1)) ^ np.uint32(0xEDB88320), crc >> np.uint32(1))
    return crc


_CRC_TABLE = _build_crc_table()


def _crc32(keys: npt.NDArray[np.uint8]) -> Hashes:
    crc = np.full(len(keys), 0xFFFFFFFF, np.uint32)
    for i in range(keys.shape[1]):
        crc = _CRC_TABLE[(crc ^ keys[:, i]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return ~crc


def _fnv1a(keys: npt.NDArray[np.uint8]) -> Hashes:
    h = np.full(len(keys), 0x811C9DC5, np.uint32)
    for i in range(keys.shape[1]):
        h = (h ^ keys[:, i]) * np.uint32(0x01000193)
    return h


_HASHES: tuple[Callable[[npt.NDArray[np.uint8]], Hashes], ...] = (_murmur2, _crc32, _fnv1a)
"""In the order of `hashing.Hash`."""
