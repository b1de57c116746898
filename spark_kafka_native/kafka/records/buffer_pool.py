"""`BufferPool`: large buffers that are reused once nothing refers to them any more.

Fresh memory from the system costs a page fault for every 4 KiB on first touch, and allocators return freed
memory of this size to the system within milliseconds. For records of 1 KiB that was 1 us each on a small
virtual machine, more than decompressing them.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

U8 = npt.NDArray[np.uint8]

SMALLEST = 64 * 1024
"""The C library caches smaller buffers well enough; Arrow's allocator does not (0.1 ms each)."""
LARGEST = 32 * 1024 * 1024
"""Larger buffers are rare, and not worth keeping."""
ROUNDING = 256 * 1024
"""Sizes are multiples of this, so that buffers of nearly equal size can replace each other."""
MAX_BUFFERS = 32
MAX_BYTES = 64 * 1024 * 1024
"""The maximum that is kept; a worker that reads 4 MiB at a time needs less than half of it."""


class BufferPool:
    """Lends memory; CPython's reference count shows when it is free again.

    Any thread may call: popping from a list and appending to it are atomic, and only the thread that popped a
    buffer holds it.
    """

    def __init__(self, max_buffers: int = MAX_BUFFERS, max_bytes: int = MAX_BYTES) -> None:
        self._kept: list[U8] = []
        self._max_buffers = max_buffers
        self._max_bytes = max_bytes

    def take(self, size: int) -> U8:
        """Return ``size`` bytes with undefined contents. They belong to the caller while anything refers to
        them: the array, a view of it, an Arrow buffer over it.
        """
        if not SMALLEST <= size <= LARGEST:
            return np.empty(size, np.uint8)
        found, passed = None, []
        # The last used buffer is tried first: it is most likely in the processor's cache.
        while self._kept:
            try:
                array = self._kept.pop()
            except IndexError:  # another thread was faster
                break
            if size <= len(array) <= 4 * size + ROUNDING and _count(array) == _ALONE:
                found = array
                break
            passed.append(array)
        self._kept.extend(reversed(passed))
        if found is None:
            found = _allocate(-(-size // ROUNDING) * ROUNDING)
            self._make_room(len(found))
        self._kept.append(found)
        return found[:size]

    @property
    def kept_bytes(self) -> int:
        """The size of the kept memory, in use or not."""
        return sum(map(len, self._kept))

    def _make_room(self, size: int) -> None:
        """Drop the least recently used buffers; a buffer in use stays alive."""
        kept = self._kept
        while kept and (len(kept) >= self._max_buffers or self.kept_bytes + size > self._max_bytes):
            with contextlib.suppress(IndexError):  # another thread looks at all of them
                del kept[0]


def _allocate(size: int) -> U8:
    # Arrow's allocator aligns to 64 bytes, as Arrow recommends.
    return np.frombuffer(pa.allocate_buffer(size), np.uint8)


def _count(array: Any) -> int:
    return sys.getrefcount(array)


def _count_alone() -> int:
    array = np.empty(1, np.uint8)
    return _count(array)


_ALONE = min(_count_alone(), 3)
"""The count of an array that one local variable refers to; it differs between versions of Python.

A profiler or debugger that reads the locals at that moment would raise it, and with a value that is too high
a buffer in use would count as free; hence the limit. A value that is too low is harmless: buffers seem to be
in use, and new ones are allocated.
"""

BUFFERS = BufferPool()
"""The pool of this process."""
