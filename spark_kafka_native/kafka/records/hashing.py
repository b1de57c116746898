"""Hashes of whole key columns, and the grouping of rows by partition. This module knows no topics."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .kernel import chosen as kernel

Hashes = npt.NDArray[np.uint32]


class Hash(enum.IntEnum):
    """The hashes by which Kafka clients assign keys to partitions. `_kernel_hash.h` uses the same numbers."""

    MURMUR2 = 0
    """The Java client's, with its fixed seed (`org.apache.kafka.common.utils.Utils.murmur2`)."""
    CRC32 = 1
    """zlib's CRC-32: librdkafka's ``consistent`` and ``consistent_random``, ruby-kafka."""
    FNV1A = 2
    """FNV-1a, 32 bits: kafka-go's ``Hash``, Sarama's, librdkafka's ``fnv1a``."""


def hash_keys(keys: pa.Array, kind: Hash) -> Hashes:
    """Hash every key.

    ``keys``: n values, binary or string or their large_ kinds, slices included. Returns uint32[n]; the hash
    of a null key is unspecified (the caller decides where a record without a key goes). Raises TypeError for
    other types.
    """
    wide = pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type)
    if not (wide or pa.types.is_binary(keys.type) or pa.types.is_string(keys.type)):
        raise TypeError(f"keys must be binary or string, not {keys.type}")
    if len(keys) == 0:
        return np.zeros(0, np.uint32)
    _, offsets, data = keys.buffers()
    # There is no data buffer if all keys are empty.
    return kernel.hash_keys(int(kind), offsets, wide, keys.offset, len(keys), data or b"")


def group_rows(
    partition: npt.NDArray[np.int32], count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sort row numbers by partition, keeping their order within each.

    ``partition``: int32[n], every value in [0, count). Returns ``order`` int64[n] and ``bounds``
    int64[count + 1]: ``order[bounds[p]:bounds[p + 1]]`` are the rows of partition p, ascending. Raises
    ValueError that names the first row with a partition out of range.
    """
    return kernel.group_rows(np.ascontiguousarray(partition, np.int32), count)
