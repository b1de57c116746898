"""The compiled kernel, in the shape of its NumPy twin. Importing it fails where it was not built.

`numpy_kernel` documents the functions; here is only what C does not: allocating, and telling Arrow's layouts
apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from . import _kernel
from .buffer_pool import BUFFERS
from .crc32c import crc32c
from .header_lists import HeaderLists
from .scanned import BadRecord, ScannedRecords

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
Batches = npt.NDArray[np.void]
Source = bytes | bytearray | memoryview

_NOTHING = b""
# An AttributeError at the import, rather than at the first key, tells a build of older sources.
_hash_keys, _group_rows = _kernel.hash_keys, _kernel.group_rows


def join_sources(sources: Sequence[Source], batches: Batches) -> tuple[Sequence[Source], Batches]:
    """Return both as they are: the compiled loops take many sources."""
    return sources, batches


def scan_records(sources: Sequence[Source], batches: Batches, out: ScannedRecords) -> BadRecord | None:
    """As `numpy_kernel.scan_records`."""
    bad = _kernel.scan_records(
        sources,
        batches,
        out.offset,
        out.timestamp_ms,
        out.key_start,
        out.key_length,
        out.value_start,
        out.value_length,
        out.headers_start,
        out.headers_end,
        out.headers_count,
    )
    return None if bad is None else BadRecord(*bad)


def gather_binary(sources: Sequence[Source], ends: I64, owners: I64, starts: I64, lengths: I32) -> pa.Array:
    """As `numpy_kernel.gather_binary`: each byte is copied once, to where it stays."""
    n = len(starts)
    nulls = int(np.count_nonzero(lengths < 0))
    # A null's length is -1.
    data = BUFFERS.take(int(lengths.sum(dtype=np.int64)) + nulls)
    offsets = BUFFERS.take(4 * (n + 1))
    validity = np.full((n + 7) // 8, 0xFF, np.uint8) if nulls else None
    _kernel.gather(sources, ends, owners, starts, lengths, offsets, validity, data)
    buffers = [
        None if validity is None else pa.py_buffer(validity),
        pa.py_buffer(offsets),
        pa.py_buffer(data),
    ]
    return pa.Array.from_buffers(pa.binary(), n, buffers, nulls)


def scan_headers(
    sources: Sequence[Source], ends: I64, owners: I64, starts: I64, limits: I64, counts: I32
) -> tuple[I64, I32, I64, I32] | int:
    """As `numpy_kernel.scan_headers`."""
    total = int(counts.sum(dtype=np.int64))
    key_start, value_start = np.empty(total, np.int64), np.empty(total, np.int64)
    key_length, value_length = np.empty(total, np.int32), np.empty(total, np.int32)
    found = key_start, key_length, value_start, value_length
    bad = _kernel.scan_headers(sources, ends, owners, starts, limits, counts, *found)
    return found if bad < 0 else bad


def encode_records(  # noqa: PLR0913 - the twin's signature
    rows: I64 | None,
    count: int,
    timestamps: I64 | None,
    key: pa.Array | None,
    value: pa.Array | None,
    headers: HeaderLists | None,
    reserve: int,
    at_most: int | None = None,
) -> U8:
    """As `numpy_kernel.encode_records`. Without ``at_most`` measured first, then written."""
    n = _table_length(timestamps, key, value, headers)
    if n is None:
        # No column at all: every row is the same, whichever is meant.
        n, rows = count, None
    lists = (None, None) if headers is None else (_layout(headers.key), _layout(headers.value))
    offsets = None if headers is None else headers.offsets
    arguments = (n, rows, timestamps, _layout(key), _layout(value), offsets, *lists)
    if at_most is not None:
        out = np.empty(reserve + at_most, np.uint8)
        size = _kernel.encode(*arguments, out, reserve)
        if size is not None:
            return out[: reserve + size]
    measured = _kernel.encode(*arguments, None, reserve)
    assert measured is not None
    out = np.empty(reserve + measured, np.uint8)
    if _kernel.encode(*arguments, out, reserve) != measured:
        # Arrow's buffers are only as constant as whoever owns the memory leaves them.
        raise ValueError("the columns were changed while they were encoded")
    return out


def renew_crc32c(checked: memoryview, crc: int, old: bytes, at: int) -> int:
    """As `numpy_kernel.renew_crc32c`, without reading more than what has changed.

    A CRC is linear: what a change does to it is the change's own checksum, moved on by the bytes behind it.
    """
    end = at + len(old)
    return crc ^ _kernel.shift_crc32c(crc32c(old) ^ crc32c(checked[at:end]), len(checked) - end)


def hash_keys(
    kind: int, offsets: pa.Buffer, wide: bool, first: int, length: int, content: pa.Buffer | bytes
) -> npt.NDArray[np.uint32]:
    """As `numpy_hashing.hash_keys`."""
    out = np.empty(length, np.uint32)
    _hash_keys(kind, offsets, wide, first, length, content, out)
    return out


def group_rows(partition: npt.NDArray[np.int32], count: int) -> tuple[I64, I64]:
    """As `numpy_hashing.group_rows`."""
    order, bounds = np.empty(len(partition), np.int64), np.empty(count + 1, np.int64)
    _group_rows(partition, count, order, bounds)
    return order, bounds


class _Layout(NamedTuple):
    """A column of a binary kind as C wants it; ``offsets`` has one more entry than there are rows."""

    offsets: I32 | I64
    wide: bool
    data: pa.Buffer
    validity: pa.Buffer | None
    bit_offset: int


def _layout(column: pa.Array | None) -> _Layout | None:
    if column is None:
        return None
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    kind = np.dtype(np.int64 if wide else np.int32)
    validity, offsets, data = column.buffers()
    if not len(column) or offsets is None:
        return _Layout(np.zeros(len(column) + 1, kind), wide, _NOTHING, None, 0)
    edges = np.frombuffer(offsets, kind, len(column) + 1, column.offset * kind.itemsize)
    return _Layout(edges, wide, data or _NOTHING, validity if column.null_count else None, column.offset)


def _table_length(
    timestamps: I64 | None, key: pa.Array | None, value: pa.Array | None, headers: HeaderLists | None
) -> int | None:
    """Return how many rows the columns have, None where there is no column."""
    for column in (timestamps, key, value):
        if column is not None:
            return len(column)
    return None if headers is None else len(headers.offsets) - 1
