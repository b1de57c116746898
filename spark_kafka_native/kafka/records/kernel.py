"""The kernel: the loops over records and keys, compiled where the build had a C compiler, else in NumPy.

`Kernel` is the interface. `CompiledKernel` adds to the C extension what C does not do: it allocates, and
reads Arrow's layouts. `numpy_kernel` is its twin: it gives the same results and refuses the same input, and
is always available. `wants_compiled` may choose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...kernel_choice import wants_compiled
from . import numpy_kernel
from .buffer_pool import BUFFERS
from .columns import HeaderLists
from .crc32c import crc32c
from .scan import BadRecord, ScannedRecords

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
Batches = npt.NDArray[np.void]
Source = bytes | bytearray | memoryview

_NOTHING = b""
_LARGEST_LEARNED_BLOCK = 32 * 1024 * 1024 - 64 * 1024
"""Just below the largest block that glibc's allocator learns from."""


class Kernel(Protocol):
    """What the decoder, the encoder and the hashes of keys need of a kernel."""

    def join_sources(self, sources: Sequence[Source], batches: Batches) -> tuple[Sequence[Source], Batches]:
        """Return the sources in the form that the kernel's other functions take, and the batches that fit
        them.
        """

    def scan_records(
        self, sources: Sequence[Source], batches: Batches, out: ScannedRecords
    ) -> BadRecord | None:
        """Find the parts of every record of ``batches`` (dtype `BATCH`), check every bound and fill ``out``,
        in order.

        Returns the first record that breaks the format (then ``out`` is right up to it), or None. A record
        must lie within its batch and its parts within the record; offsets increase and do not exceed the
        batch's last offset; no bytes are left over. Headers are counted, not read.
        """

    def gather_binary(
        self, sources: Sequence[Source], ends: I64, owners: I64, starts: I64, lengths: I32
    ) -> pa.Array:
        """Copy slices of the sources into a binary array; length -1 is null.

        Rows up to ``ends[i]`` (exclusive, increasing) lie in ``sources[owners[i]]``, in their order. The
        caller ensures that the bytes of all rows together fit int32 offsets.
        """

    def scan_headers(
        self, sources: Sequence[Source], ends: I64, owners: I64, starts: I64, limits: I64, counts: I32
    ) -> tuple[I64, I32, I64, I32] | int:
        """Find every header of every row: ``counts[i]`` of them in bytes [starts[i], limits[i]) of the row's
        source.

        Returns (key_start, key_length, value_start, value_length) of all headers, in order; value length -1
        is null. Or the first row with headers that break the format: a null key, a length past the end, bytes
        left over.
        """

    def encode_records(  # noqa: PLR0913 - the columns, and a caller's buffer
        self,
        rows: I64 | None,
        count: int,
        timestamps: I64 | None,
        key: pa.Array | None,
        value: pa.Array | None,
        headers: HeaderLists | None,
        reserve: int,
        at_most: int | None = None,
    ) -> U8:
        """Encode ``count`` records one after the other and return them behind ``reserve`` bytes left free.

        ``rows`` names the rows of the columns, in the order to encode them (int64, within bounds; None: all).
        ``key`` and ``value`` are of a binary kind; None is all null, and without timestamps every delta is 0.
        ``at_most`` is an upper bound of the records' size, if one is known; it saves measuring them. Raises
        OverflowError where a timestamp delta leaves 64 bits or the records do not fit a batch.
        """

    def renew_crc32c(self, checked: memoryview, crc: int, old: bytes, at: int) -> int:
        """Return the CRC-32C of ``checked``, which was ``crc`` when ``old`` stood at ``at``."""

    def hash_keys(
        self, kind: int, offsets: pa.Buffer, wide: bool, first: int, length: int, content: pa.Buffer | bytes
    ) -> npt.NDArray[np.uint32]:
        """Hash ``length`` (> 0) keys from the ``first`` on: key i is bytes [offsets[i], offsets[i + 1]) of
        ``content``.

        ``kind`` is a `hashing.Hash`, ``offsets`` are int64 where ``wide``, else int32. ValueError where
        offsets leave the data.
        """

    def group_rows(self, partition: I32, count: int) -> tuple[I64, I64]:
        """Sort row numbers by partition; see `hashing.group_rows`."""


class CompiledKernel:
    """The C extension as a `Kernel`. ``loops`` is the extension module; AttributeError if it lacks a loop."""

    def __init__(self, loops: Any) -> None:
        self._loops = loops
        # Read here, so that an extension built from older sources fails now rather than at the first key.
        self._hash_keys, self._group_rows = loops.hash_keys, loops.group_rows

    def join_sources(self, sources: Sequence[Source], batches: Batches) -> tuple[Sequence[Source], Batches]:
        """Return both unchanged: the compiled loops take many sources."""
        return sources, batches

    def scan_records(
        self, sources: Sequence[Source], batches: Batches, out: ScannedRecords
    ) -> BadRecord | None:
        """As `Kernel.scan_records`."""
        bad = self._loops.scan_records(
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

    def gather_binary(
        self, sources: Sequence[Source], ends: I64, owners: I64, starts: I64, lengths: I32
    ) -> pa.Array:
        """As `Kernel.gather_binary`; each byte is copied once, to its final place."""
        n = len(starts)
        nulls = int(np.count_nonzero(lengths < 0))
        # A null's length is -1.
        data = BUFFERS.take(int(lengths.sum(dtype=np.int64)) + nulls)
        offsets = BUFFERS.take(4 * (n + 1))
        validity = np.full((n + 7) // 8, 0xFF, np.uint8) if nulls else None
        self._loops.gather(sources, ends, owners, starts, lengths, offsets, validity, data)
        buffers = [
            None if validity is None else pa.py_buffer(validity),
            pa.py_buffer(offsets),
            pa.py_buffer(data),
        ]
        return pa.Array.from_buffers(pa.binary(), n, buffers, nulls)

    def scan_headers(
        self, sources: Sequence[Source], ends: I64, owners: I64, starts: I64, limits: I64, counts: I32
    ) -> tuple[I64, I32, I64, I32] | int:
        """As `Kernel.scan_headers`."""
        total = int(counts.sum(dtype=np.int64))
        key_start, value_start = np.empty(total, np.int64), np.empty(total, np.int64)
        key_length, value_length = np.empty(total, np.int32), np.empty(total, np.int32)
        found = key_start, key_length, value_start, value_length
        bad = self._loops.scan_headers(sources, ends, owners, starts, limits, counts, *found)
        return found if bad < 0 else bad

    def encode_records(  # noqa: PLR0913 - the twin's signature
        self,
        rows: I64 | None,
        count: int,
        timestamps: I64 | None,
        key: pa.Array | None,
        value: pa.Array | None,
        headers: HeaderLists | None,
        reserve: int,
        at_most: int | None = None,
    ) -> U8:
        """As `Kernel.encode_records`; without ``at_most`` the records are measured first, then written."""
        n = _table_length(timestamps, key, value, headers)
        if n is None:
            # No column at all: all rows are the same.
            n, rows = count, None
        lists = (None, None) if headers is None else (_layout(headers.key), _layout(headers.value))
        offsets = None if headers is None else headers.offsets
        arguments = (n, rows, timestamps, _layout(key), _layout(value), offsets, *lists)
        if at_most is not None:
            out = np.empty(reserve + at_most, np.uint8)
            size = self._loops.encode(*arguments, out, reserve)
            if size is not None:
                return out[: reserve + size]
        measured = self._loops.encode(*arguments, None, reserve)
        assert measured is not None
        out = np.empty(reserve + measured, np.uint8)
        if self._loops.encode(*arguments, out, reserve) != measured:
            # The owner of the memory under Arrow's buffers can change it at any time.
            raise ValueError("the columns were changed while they were encoded")
        return out

    def renew_crc32c(self, checked: memoryview, crc: int, old: bytes, at: int) -> int:
        """As `Kernel.renew_crc32c`, but reads only the bytes that have changed.

        A CRC is linear: a change alters it by the change's own checksum, shifted by the bytes behind it.
        """
        end = at + len(old)
        change: int = self._loops.shift_crc32c(crc32c(old) ^ crc32c(checked[at:end]), len(checked) - end)
        return crc ^ change

    def hash_keys(
        self, kind: int, offsets: pa.Buffer, wide: bool, first: int, length: int, content: pa.Buffer | bytes
    ) -> npt.NDArray[np.uint32]:
        """As `Kernel.hash_keys`."""
        out = np.empty(length, np.uint32)
        self._hash_keys(kind, offsets, wide, first, length, content, out)
        return out

    def group_rows(self, partition: npt.NDArray[np.int32], count: int) -> tuple[I64, I64]:
        """As `Kernel.group_rows`."""
        order, bounds = np.empty(len(partition), np.int64), np.empty(count + 1, np.int64)
        self._group_rows(partition, count, order, bounds)
        return order, bounds


class _Layout(NamedTuple):
    """A binary column in the form that C reads; ``offsets`` has one more entry than the column has rows."""

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
    """Return the number of rows of the columns, None where there is no column."""
    for column in (timestamps, key, value):
        if column is not None:
            return len(column)
    return None if headers is None else len(headers.offsets) - 1


def load_compiled() -> CompiledKernel | None:
    """Return the compiled kernel, or None where it was not built."""
    try:
        from . import _kernel

        return CompiledKernel(_kernel)
    except (ImportError, AttributeError):  # not built, or built from older sources
        return None


def _choose() -> Kernel:
    return (load_compiled() if wants_compiled() else None) or numpy_kernel


def _keep_freed_memory() -> None:
    """Make glibc's allocator keep the memory that NumPy frees, so that its pages are not faulted in again.

    The allocator returns freed memory to the system above a threshold that it raises to the largest block it
    has seen being freed, up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD). This block is
    never touched, so it costs nothing; large record sets decode up to four times as fast. Other allocators
    ignore it.
    """
    np.empty(_LARGEST_LEARNED_BLOCK, np.uint8)


_keep_freed_memory()
chosen: Kernel = _choose()
"""The kernel in use."""

COMPILED: bool = isinstance(chosen, CompiledKernel)
"""True if the compiled kernel is in use."""
