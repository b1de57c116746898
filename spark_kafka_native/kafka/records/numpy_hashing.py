"""The NumPy twins of the compiled loops over keys: the same bits, no compiler."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_MATRIX_BYTES = 16 << 20
"""Keys of one length are gathered into a matrix; this caps it (a column of long keys is taken in slices)."""

Hashes = npt.NDArray[np.uint32]


def hash_keys(
    kind: int, offsets: pa.Buffer, wide: bool, first: int, length: int, content: pa.Buffer | bytes
) -> Hashes:
    """Hash ``length`` (> 0) keys from the ``first`` on: key i is bytes [offsets[i], offsets[i + 1]) of
    ``content``.

    ``kind`` is a `hashing.Hash`, ``offsets`` are int64 where ``wide``, else int32. Rows of one length at a
    time, so that each step is one operation on a whole matrix column. ValueError where offsets leave the
    data.
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


def group_rows(
    partition: npt.NDArray[np.int32], count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """As `hashing.group_rows`."""
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
