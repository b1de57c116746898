"""`BufferPool`: large buffers that are reused once nothing refers to them any more.

Memory that is fresh from the system costs a page fault for every 4 KiB on first touch, and allocators give
freed memory of this size back within milliseconds. For 1 KiB records that was 1 us each on a small virtual
machine, more than decompressing them.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

U8 = npt.NDArray[np.uint8]

SMALLEST = 64 * 1024
"""Smaller buffers are cached well enough by the C library; Arrow's allocator does not cache them (0.1 ms
each)."""
LARGEST = 32 * 1024 * 1024
"""Larger buffers are rare, and not worth keeping."""
ROUNDING = 256 * 1024
"""Sizes are multiples of this, so that buffers of nearly equal size can stand in for each other."""
MAX_BUFFERS = 32
MAX_BYTES = 64 * 1024 * 1024
"""Kept in all; a worker that reads 4 MiB at a time needs less than half of it."""


class BufferPool:
    """Hands out memory; whether it is free again is told by CPython's reference count of it.

    Any thread may call: popping from a list and appending to it are atomic, and whoever popped a buffer is
    alone with it.
    """

    def __init__(self, max_buffers: int = MAX_BUFFERS, max_bytes: int = MAX_BYTES) -> None:
        self._kept: list[U8] = []
        self._max_buffers = max_buffers
        self._max_bytes = max_bytes

    def take(self, size: int) -> U8:
        """Return ``size`` bytes, contents undefined. They are the caller's while anything refers to them: the
        array, a view, an Arrow buffer made of it.
        """
        if not SMALLEST <= size <= LARGEST:
            return np.empty(size, np.uint8)
        found, passed = None, []
        # The one that was used last is tried first: it is most likely in the processor's cache.
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
        """How much memory is kept, in use or not."""
        return sum(map(len, self._kept))

    def _make_room(self, size: int) -> None:
        """Drop the least recently used ones; a buffer in use stays alive."""
        kept = self._kept
        while kept and (len(kept) >= self._max_buffers or self.kept_bytes + size > self._max_bytes):
            del kept[0]


def _allocate(size: int) -> U8:
    # Arrow's allocator: aligned to 64 bytes as Arrow likes it.
    return np.frombuffer(pa.allocate_buffer(size), np.uint8)


def _count(array: Any) -> int:
    return sys.getrefcount(array)


def _count_alone() -> int:
    array = np.empty(1, np.uint8)
    return _count(array)


_ALONE = min(_count_alone(), 3)
"""The count of an array that one local variable refers to; it differs between versions of Python.

A profiler or debugger that looks at the locals just then adds to it, and a count that is too high takes a
buffer in use for a free one. Too low is harmless: buffers look as if in use then, and fresh ones are made.
"""

BUFFERS = BufferPool()
"""The process's own pool."""
