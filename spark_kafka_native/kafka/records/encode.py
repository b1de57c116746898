"""Columns become a record batch (format v2): rows are gathered, encoded, compressed and checksummed.

This module does no I/O and reads no clock. A batch that was sent is never encoded again: a retry sends the
same bytes.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model import NO_TIMESTAMP_MS
from .batch import (
    CHECKED_FROM,
    CRC_AT,
    HEADER_BYTES,
    LENGTH_COUNTS_FROM,
    MAGIC,
    TRANSACTIONAL,
    place_of,
)
from .columns import HeaderLists, RecordColumns, is_binary
from .compression import Codec, compress
from .crc32c import crc32c
from .kernel import chosen as kernel
from .varint import varint_size, varint_sizes

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

BATCH_OVERHEAD_BYTES = HEADER_BYTES
"""The size of a record batch besides its records."""

_NO_PRODUCER = -1
# `batch.HEADER` field by field: struct fills one header in a tenth of the time that NumPy takes.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = place_of("producer_id")
_CRC = struct.Struct(">I")


def encode_record_batch(  # noqa: PLR0913 - the fields of a batch header
    columns: RecordColumns,
    *,
    rows: I64 | slice | None = None,
    at_most: int | None = None,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    now_ms: int | None = None,
    producer_id: int = _NO_PRODUCER,
    producer_epoch: int = _NO_PRODUCER,
    base_sequence: int = _NO_PRODUCER,
    transactional: bool = False,
) -> memoryview:
    """Encode one complete record batch, checksum included; returns a writable memoryview of its bytes.

    ``rows`` picks rows of ``columns``, in that order (int64 indexes, or a slice with step 1; None: all).
    ``at_most`` is an upper bound of the records' size (see `record_sizes`); it saves measuring them.
    ``now_ms`` is the timestamp of all records if ``columns`` has no timestamps. Key and value may be binary,
    string or large_*, headers as in `HEADERS_TYPE` (large_ kinds too); slices are accepted.

    ValueError for no rows, an index out of bounds, columns of another type or length, a header key that is
    null or not UTF-8, more than 2 GiB, timestamps more than 64 bits apart.
    """
    columns, rows, count = _checked(columns, rows)
    base_timestamp, max_timestamp = _timestamp_bounds(columns.timestamp_ms, rows, now_ms)
    data: memoryview = _compress_body(_encode_records(columns, rows, count, at_most), codec, level).data
    _HEADER.pack_into(
        data, 0,
        0,  # base offset: the broker assigns it
        len(data) - LENGTH_COUNTS_FROM,
        -1,  # leader epoch
        MAGIC,
        0,  # checksum
        codec | (TRANSACTIONAL if transactional else 0),
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )  # fmt: skip
    _CRC.pack_into(data, CRC_AT, crc32c(data[CHECKED_FROM:]))
    return data


def record_sizes(columns: RecordColumns) -> I64:
    """Return an upper bound on the bytes of each record in any uncompressed batch of distinct rows of
    ``columns``.

    A batch of them has at most `BATCH_OVERHEAD_BYTES` plus their sum; the bound is too high by a few bytes.
    """
    n = columns.length
    sizes = np.full(n, 1 + varint_size(n), np.int64)
    if n and columns.timestamp_ms is not None:
        sizes += varint_size(int(columns.timestamp_ms.max()) - int(columns.timestamp_ms.min()))
    else:
        sizes += 1
    for column in (columns.key, columns.value):
        sizes += 1 if column is None else _sized(column)
    if columns.headers is None:
        sizes += 1
    else:
        headers = HeaderLists.from_arrow(columns.headers)
        edges = np.zeros(len(headers.key) + 1, np.int64)
        np.cumsum(_sized(headers.key) + _sized(headers.value), out=edges[1:])
        sizes += varint_sizes(np.diff(headers.offsets)) + np.diff(edges[headers.offsets])
    return sizes + varint_sizes(sizes)


def set_producer(
    batch: bytearray | memoryview, producer_id: int, producer_epoch: int, base_sequence: int
) -> bytearray | memoryview:
    """Write the producer's identity into the header of an encoded ``batch`` and renew the checksum, in place;
    return the batch.
    """
    checked = memoryview(batch)[CHECKED_FROM:]
    at = _PRODUCER_AT - CHECKED_FROM
    old = bytes(checked[at : at + _PRODUCER.size])
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    (crc,) = _CRC.unpack_from(batch, CRC_AT)
    _CRC.pack_into(batch, CRC_AT, kernel.renew_crc32c(checked, crc, old, at))
    return batch


def _checked(columns: RecordColumns, rows: I64 | slice | None) -> tuple[RecordColumns, I64 | None, int]:
    """Return the columns, the indexes of their rows (None: all) and the number of records."""
    if isinstance(rows, slice):
        columns, rows = _slice(columns, rows), None
    count = columns.length if rows is None else len(rows)
    _check(columns, rows, count)
    return columns, None if rows is None else np.ascontiguousarray(rows, np.int64), count


def _slice(columns: RecordColumns, rows: slice) -> RecordColumns:
    start, stop, step = rows.indices(columns.length)
    if step != 1:
        raise ValueError(f"rows must be a slice with step 1, not {rows}")
    return columns.slice(start, max(start, stop))


def _check(columns: RecordColumns, rows: I64 | None, count: int) -> None:
    if not count:
        raise ValueError("a record batch has at least one record")
    if rows is not None and (int(rows.min()) < 0 or int(rows.max()) >= columns.length):
        raise ValueError(f"rows from {int(rows.min())} to {int(rows.max())} of {columns.length} records")
    for name in ("timestamp_ms", "key", "value", "headers"):
        column = getattr(columns, name)
        if column is not None and len(column) != columns.length:
            raise ValueError(f"column {name} has {len(column)} rows, the others {columns.length}")
        if column is not None and name in ("key", "value") and not is_binary(column.type):
            raise ValueError(f"column {name} is {column.type}; cast it to binary or string")


def _encode_records(columns: RecordColumns, rows: I64 | None, count: int, at_most: int | None) -> U8:
    """Return the encoded records behind free space for the header."""
    headers = None if columns.headers is None else HeaderLists.from_arrow(columns.headers)
    timestamps = columns.timestamp_ms
    if timestamps is not None:
        timestamps = np.ascontiguousarray(timestamps, np.int64)
    try:
        records: U8 = kernel.encode_records(
            rows, count, timestamps, columns.key, columns.value, headers, HEADER_BYTES, at_most
        )
    except OverflowError as error:
        raise ValueError(f"cannot encode {count} records as one batch: {error}") from error
    return records


def _timestamp_bounds(timestamps: I64 | None, rows: I64 | None, now_ms: int | None) -> tuple[int, int]:
    """Return the first timestamp and the maximum."""
    if timestamps is None:
        if now_ms is None:
            raise ValueError("records without a timestamp column need now_ms")
        return now_ms, now_ms
    picked = timestamps if rows is None else timestamps[rows]
    return int(picked[0]), max(int(picked.max()), NO_TIMESTAMP_MS)


def _compress_body(batch: U8, codec: Codec, level: int | None) -> U8:
    if codec is Codec.NONE:
        return batch
    packed = compress(codec, batch.data[HEADER_BYTES:], level)
    out = np.empty(HEADER_BYTES + len(packed), np.uint8)
    out[HEADER_BYTES:] = np.frombuffer(packed, np.uint8)
    return out


def _sized(column: pa.Array) -> I64:
    """Return the size of each cell including its length prefix."""
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    kind = np.int64 if wide else np.int32
    _, offsets, _ = column.buffers()
    if not len(column) or offsets is None:
        return np.zeros(len(column), np.int64)
    edges = np.frombuffer(offsets, kind, len(column) + 1, column.offset * np.dtype(kind).itemsize)
    lengths = np.diff(edges).astype(np.int64)
    if column.null_count:
        lengths[np.asarray(column.is_null())] = 0
    return lengths + varint_sizes(lengths)
