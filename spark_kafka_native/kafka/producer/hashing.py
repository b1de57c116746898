"""Hashes of whole key columns, and the grouping of rows by partition.

Two implementations of each: C where `_hashing.c` was built, NumPy everywhere. Both give the same bits; the
environment variable ``SPARK_KAFKA_NATIVE_KERNEL=numpy`` turns the compiled one off. Nothing here knows a
topic.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

try:
    from . import _hashing
except ImportError:  # no compiler at build time, or the package runs from a zip
    _compiled = None
else:
    _compiled = None if os.environ.get("SPARK_KAFKA_NATIVE_KERNEL") == "numpy" else _hashing

COMPILED = _compiled is not None
"""Whether the compiled functions are in use."""

_MATRIX_BYTES = 16 << 20
"""The twin gathers keys of one length into a matrix; this caps it (a column of long keys is taken in
slices)."""

Hashes = npt.NDArray[np.uint32]


class Hash(enum.IntEnum):
    """The hashes Kafka clients place keys by. The numbers are those of `_hashing.c`."""

    MURMUR2 = 0
    """The Java client's, with its fixed seed (`org.apache.kafka.common.utils.Utils.murmur2`)."""
    CRC32 = 1
    """zlib's CRC-32: librdkafka's ``consistent`` and ``consistent_random``, ruby-kafka."""
    FNV1A = 2
    """FNV-1a, 32 bits: kafka-go's ``Hash``, Sarama's, librdkafka's ``fnv1a``."""


def hash_keys(keys: pa.Array, kind: Hash) -> Hashes:
    """Hash every key.

    ``keys``: n values, binary or string or their large_ kinds, slices included. Returns uint32[n]; what
    stands at a null key is unspecified (the caller decides where a record without key goes). Raises
    TypeError for other types.
    """
    wide, data = _layout(keys)
    if len(keys) == 0:
        return np.zeros(0, np.uint32)
    offsets, content = keys.buffers()[1], data if data is not None else b""
    if _compiled is not None:
        out = np.empty(len(keys), np.uint32)
        _compiled.hash_keys(int(kind), offsets, wide, keys.offset, len(keys), content, out)
        return out
    return _hash_keys_numpy(offsets, wide, keys.offset, len(keys), content, kind)


def group_rows(
    partition: npt.NDArray[np.int32], count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sort row numbers by partition, keeping their order within each.

    ``partition``: int32[n], every value in [0, count). Returns ``order`` int64[n] and ``bounds``
    int64[count + 1]: ``order[bounds[p]:bounds[p + 1]]`` are the rows of partition p, ascending. Raises
    ValueError that names the first row whose partition is out of range.
    """
    partition = np.ascontiguousarray(partition, np.int32)
    if _compiled is not None:
        order, bounds = np.empty(len(partition), np.int64), np.empty(count + 1, np.int64)
        _compiled.group_rows(partition, count, order, bounds)
        return order, bounds
    return _group_rows_numpy(partition, count)


def _layout(keys: pa.Array) -> tuple[bool, pa.Buffer | None]:
    """Whether the offsets are 64 bits wide, and the data buffer (None when no key has a byte)."""
    kind = keys.type
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        if not (pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)):
            raise TypeError(f"keys must be binary or string, not {kind}")
        return True, keys.buffers()[2]
    return False, keys.buffers()[2]


def _group_rows_numpy(
    partition: npt.NDArray[np.int32], count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    outside = np.flatnonzero((partition < 0) | (partition >= count))
    if len(outside):
        row = int(outside[0])
        raise ValueError(f"row {row}: partition {partition[row]} is not in [0, {count})")
    # NumPy's stable sort of 8- and 16-bit integers is a radix sort, several times faster than that of 32
    # bits.
    small = partition.astype(np.uint8 if count <= 256 else np.uint16 if count <= 65536 else np.int32)
    order = np.argsort(small, kind="stable").astype(np.int64, copy=False)
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(partition, minlength=count), out=bounds[1:])
    return order, bounds


def _hash_keys_numpy(
    offsets: pa.Buffer, wide: bool, first: int, length: int, content: pa.Buffer | bytes, kind: Hash
) -> Hashes:
    """The twin: rows of one length at a time, so that each step is one operation on a whole matrix column."""
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


_HASHES: dict[Hash, Callable[[npt.NDArray[np.uint8]], Hashes]] = {
    Hash.MURMUR2: _murmur2,
    Hash.CRC32: _crc32,
    Hash.FNV1A: _fnv1a,
}
