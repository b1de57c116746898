"""The NumPy twin of the compiled kernel: same functions, same results, same refusals, no compiler.

One Python loop is left, over the records of a batch, because each record says where the next begins (0.1 us
per record); everything else is whole columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .header_lists import HeaderLists
from .scanned import DENSE, SAME_TIMESTAMP, BadRecord, ScannedRecords
from .varint import VARINT_BYTES, VARLONG_BYTES, Varints, read_varints, varint_sizes, write_varints

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Batches = npt.NDArray[np.void]
Source = bytes | bytearray | memoryview

MAX_ENCODED_BYTES = 2**31 - 1
"""``batch_length`` is an int32."""


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
    walk = _walk_records(sources[0], batches)
    counts = walk.counts
    of_batch = np.repeat(np.arange(len(counts)), counts)
    # Every batch contributes count + 1 positions: those of its records and where its last record ends.
    places = np.arange(len(of_batch)) + of_batch
    rows = _rows_of(batches, walk)
    _fill_dense(batches, out)
    bad = _read_fields(
        np.frombuffer(sources[0], np.uint8),
        batches[walk.batches][of_batch] if len(counts) > 1 else batches[walk.batches],
        walk.starts[places],
        walk.starts[places + 1],
        np.concatenate(([0], np.cumsum(counts)[:-1])) if len(counts) else np.empty(0, np.int64),
        rows,
        out,
    )
    if bad is None:
        return walk.broken
    batch = int(of_batch[bad])
    record = bad - int(np.searchsorted(of_batch, batch))
    return BadRecord(int(walk.batches[batch]), record, int(walk.starts[places[bad]]))


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
        return pa.array([], pa.binary())
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
    picked = slots.take(pa.array(np.arange(0, 2 * n, 2), mask=nulls if nulls.any() else None))
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
    # One pass per header index: as many as the record with the most headers has.
    while active.size:
        at, limit = place[active] + taken, limits[active]
        keys = read_varints(data, cursor[active], limit, max_bytes=VARINT_BYTES)
        wrong = ~keys.valid | (keys.value < 0) | (keys.value > limit - keys.end)
        values = read_varints(data, keys.end + np.where(wrong, 0, keys.value), limit, max_bytes=VARINT_BYTES)
        wrong |= ~values.valid | (values.value < -1) | (values.value > limit - values.end)
        bad[active[wrong]] = True
        key_start[at], key_length[at] = keys.end, np.where(wrong, 0, keys.value)
        value_start[at], value_length[at] = values.end, np.where(wrong, 0, values.value)
        cursor[active] = values.end + np.maximum(value_length[at], 0)
        taken += 1
        active = active[~wrong & (counts[active] > taken)]
    bad |= cursor != limits
    if bad.any():
        return int(np.argmax(bad))
    return key_start, key_length, value_start, value_length


def encode_records(
    rows: I64 | None,
    count: int,
    timestamps: I64 | None,
    key: pa.Array | None,
    value: pa.Array | None,
    headers: HeaderLists | None,
    reserve: int,
) -> U8:
    """Encode ``count`` records one after the other and return them behind ``reserve`` bytes left free.

    ``rows`` says which rows of the columns, in which order (int64, within bounds; None: all). ``key`` and
    ``value`` are of a binary kind; None is all null, and without timestamps every delta is 0. Raises
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
    parts.append(pa.scalar(b"\0", pa.large_binary()) if blobs is None else blobs)
    return _behind(reserve, _join(part for part in parts if part is not None))


class _Walk(NamedTuple):
    """Where the records of the batches that are not `DENSE` lie."""

    batches: I64
    """Which batches were walked."""
    counts: I64
    """How many good records each has."""
    starts: I64
    """For each walked batch its records' positions and then where the last of them ends."""
    broken: BadRecord | None


def _walk_records(source: Source, batches: Batches) -> _Walk:
    # Indexing bytes is twice as fast as indexing a memoryview, and worth the copy.
    data = source if isinstance(source, bytes) else bytes(source)
    starts: list[int] = []
    append = starts.append
    walked = np.flatnonzero((batches["flags"] & DENSE) == 0)
    counts = batches["count"][walked]
    for place, index in enumerate(walked.tolist()):
        position, end, count = (int(batches[name][index]) for name in ("start", "end", "count"))
        first = len(starts)
        try:
            for _ in range(count):
                append(position)
                raw = data[position]
                if raw >= 0x80:
                    byte = data[position + 1]
                    if byte >= 0x80:
                        raw, position = _read_long_length(data, position)
                    else:
                        raw, position = raw & 0x7F | byte << 7, position + 2
                else:
                    position += 1
                # An odd number is a negative length: a step behind the end, which is found out below.
                position += raw >> 1 if not raw & 1 else len(data) + 1
        except IndexError:
            position = len(data) + 1
        append(position)
        if position != end:
            good = _count_good(starts, first, end)
            broken = BadRecord(index, good, starts[first + good])
            counts[place] = good
            return _Walk(walked[: place + 1], counts[: place + 1], np.array(starts, np.int64), broken)
    return _Walk(walked, counts, np.array(starts, np.int64), None)


def _read_long_length(data: bytes, position: int) -> tuple[int, int]:
    """Return a length of three to five bytes, zigzag as it is (1 where it is not one), and the position
    behind it."""
    raw = 0
    for index in range(VARINT_BYTES):
        byte = data[position + index]
        raw |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (raw if raw < 2**32 else 1), position + index + 1
    return 1, position


def _count_good(starts: list[int], first: int, end: int) -> int:
    """Count the records of the batch that begins at starts[first] which end within it, and forget the
    others."""
    for place in range(first + 1, len(starts)):
        if starts[place] > end:
            del starts[place:]
            break
    return len(starts) - first - 1


def _rows_of(batches: Batches, walk: _Walk) -> I64 | slice:
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
    data: U8,
    batch: Batches,
    starts: I64,
    ends: I64,
    firsts: I64,
    rows: I64 | slice,
    out: ScannedRecords,
) -> int | None:
    """Read what each record at ``starts`` holds; return the first that breaks the format.

    ``batch`` has one row per record, or one for all; ``firsts`` are the records that are the first of their
    batch.
    """
    timestamps = read_varints(data, _skip_lengths(data, starts) + 1, ends, max_bytes=VARLONG_BYTES)
    deltas = read_varints(data, timestamps.end, ends, max_bytes=VARINT_BYTES)
    previous = np.roll(deltas.value, 1)
    previous[firsts[firsts < len(previous)]] = -1
    good = timestamps.valid & deltas.valid & (deltas.value > previous)
    good &= deltas.value <= batch["last_offset_delta"]
    base = batch["timestamp"]
    timestamp = base + timestamps.value
    same = (batch["flags"] & SAME_TIMESTAMP) != 0
    good &= same | (((base ^ timestamp) & (timestamps.value ^ timestamp)) >= 0)
    key, value, counts, good = _read_lengths(data, deltas.end, ends, good)
    out.offset[rows] = batch["base_offset"] + deltas.value
    if not good.all():
        return int(np.argmin(good))
    if out.timestamp_ms is not None:
        out.timestamp_ms[rows] = np.where(same, base, timestamp) if same.any() else timestamp
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


def _skip_lengths(data: U8, starts: I64) -> I64:
    """Return the positions behind the record lengths, which the walk has found to be good."""
    position: I64 = starts + 1
    more = np.flatnonzero(data[starts] >= 0x80)
    while more.size:
        at = position[more]
        position[more] += 1
        more = more[data[at] >= 0x80]
    return position


def _read_lengths(
    data: U8, positions: I64, ends: I64, good: Flags
) -> tuple[Varints, Varints, Varints, Flags]:
    """Read key length, value length and headers count of every record; say which records are (still) good."""
    key = read_varints(data, positions, ends, max_bytes=VARINT_BYTES)
    good = good & key.valid & (key.value >= -1) & (key.value <= ends - key.end)
    value = read_varints(data, key.end + np.maximum(key.value, 0), ends, max_bytes=VARINT_BYTES)
    good &= value.valid & (value.value >= -1) & (value.value <= ends - value.end)
    counts = read_varints(data, value.end + np.maximum(value.value, 0), ends, max_bytes=VARINT_BYTES)
    left = ends - counts.end
    good &= (
        counts.valid & (counts.value >= 0) & (counts.value <= left // 2) & ((counts.value > 0) | (left == 0))
    )
    return key, value, counts, good


def _pick(column: pa.Array | None, rows: I64 | None) -> pa.Array | None:
    if column is None:
        return None
    column = column.cast(pa.large_binary())
    return column if rows is None else column.take(pa.array(rows))


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
    separator = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(*parts, separator, null_handling="replace", null_replacement=b"")


def _behind(reserve: int, joined: pa.Array) -> U8:
    edges = np.frombuffer(joined.buffers()[1], np.int64, len(joined) + 1)
    first, last = int(edges[0]), int(edges[-1])
    out = np.empty(reserve + last - first, np.uint8)
    out[reserve:] = np.frombuffer(joined.buffers()[2], np.uint8)[first:last]
    return out
