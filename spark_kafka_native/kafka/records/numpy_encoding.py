"""The encoder of the NumPy kernel: records as columns of parts, joined row by row."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .header_lists import HeaderLists
from .varint import varint_sizes, write_varints

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

MAX_ENCODED_BYTES = 2**31 - 1
"""``batch_length`` is an int32."""


def encode_records(  # noqa: PLR0913 - the columns, and a caller's buffer
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


def _pick(column: pa.Array | None, rows: I64 | None) -> pa.Array | None:
    if column is None:
        return None
    column = column.cast(pa.large_binary())
    return column if rows is None else column.take(indexes(rows))


def indexes(rows: I64, nulls: Flags | None = None) -> pa.Array:
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
    import pyarrow.compute as pc  # here and below: who only reads does not wait for its import

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
    # As in `indexes`: `pa.scalar` imports pandas.
    buffers = [None, pa.py_buffer(np.array([0, len(data)])), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), 1, buffers)[0]


def _behind(reserve: int, joined: pa.Array) -> U8:
    edges = np.frombuffer(joined.buffers()[1], np.int64, len(joined) + 1)
    first, last = int(edges[0]), int(edges[-1])
    out = np.empty(reserve + last - first, np.uint8)
    out[reserve:] = np.frombuffer(joined.buffers()[2], np.uint8)[first:last]
    return out
