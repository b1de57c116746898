"""`RowDigest`: how many rows a task has written, and a hash of them, to recognise a replay with other rows.

The order of rows does not count, nor how Spark cuts them into Arrow batches: a shuffle may bring the same
rows in another order.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....kafka.records.hashing import Hash, hash_keys

U64 = npt.NDArray[np.uint64]

_NULL = np.uint64(0x6E756C6C)

_STEP = np.uint64(0x9E3779B97F4A7C15)


class RowDigest:
    """Takes Arrow batches in; equal sets of rows have equal ``rows`` and ``hash``."""

    def __init__(self) -> None:
        self.rows = 0
        self.hash = 0
        """The sum of a hash of each row, modulo 2**64."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of columns as `RowColumns.select` picks them."""
        hashes = np.zeros(batch.num_rows, np.uint64)
        for name in sorted(batch.schema.names):
            salt = np.uint64(zlib.crc32(name.encode()))
            hashes = _mix(hashes * _STEP + _hash(batch.column(name)) + salt)
        self.rows += batch.num_rows
        self.hash = (self.hash + int(hashes.sum(dtype=np.uint64))) % 2**64


def _hash(column: pa.Array) -> U64:
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        hashes = _hash_headers(column)
    elif pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        numbers = column.cast(pa.int64())
        start = numbers.offset * 8
        hashes = np.frombuffer(numbers.buffers()[1] or b"", np.uint64, len(numbers), start).copy()
    else:
        lengths = np.diff(_offsets(column)).astype(np.uint64)
        hashes = hash_keys(column, Hash.MURMUR2).astype(np.uint64) | lengths << np.uint64(32)
    if column.null_count:
        hashes[_nulls(column)] = _NULL
    return hashes


def _hash_headers(column: pa.Array) -> U64:
    """The order of a record's headers counts."""
    edges = _offsets(column).astype(np.int64)
    first, last = int(edges[0]), int(edges[-1])
    edges -= first
    elements = column.values.slice(first, last - first)
    lengths = np.diff(edges)
    place = np.arange(last - first, dtype=np.int64) - np.repeat(edges[:-1], lengths)
    each = _mix(_hash(elements.field(0)) * _STEP + _hash(elements.field(1)))
    each = _mix(each + place.astype(np.uint64) * _STEP)
    sums = np.zeros(len(each) + 1, np.uint64)
    np.cumsum(each, out=sums[1:])
    return _mix(sums[edges[1:]] - sums[edges[:-1]] + lengths.astype(np.uint64))


def _offsets(column: pa.Array) -> npt.NDArray[Any]:
    wide = (
        pa.types.is_large_list(column.type)
        or pa.types.is_large_binary(column.type)
        or pa.types.is_large_string(column.type)
    )
    kind = np.dtype(np.int64 if wide else np.int32)
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column) + 1, kind)
    return np.frombuffer(buffer, kind, len(column) + 1, column.offset * kind.itemsize)


def _nulls(column: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(column.is_null())


def _mix(values: U64) -> U64:
    """The finalizer of splitmix64: each bit of a value reaches all of the result."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
