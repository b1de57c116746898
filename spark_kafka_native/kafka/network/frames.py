"""Length-prefixed frames from a transport, and the memory that they are read into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..runtime.fork import no_fork

POOLED_FROM = 64 * 1024
"""Smaller frames are not pooled: they are cheap, and values decoded from them may keep their memory alive."""
POOLED_FRAMES = 3
"""One is decoded, one arrives, one is spare."""
KEPT_BYTES = 16 * 1024 * 1024
"""`FrameBuffers.trim` keeps one buffer of at most this size."""
ROUNDING = 256 * 1024
"""Pooled sizes are multiples of this, so that fetches of nearly equal size share a buffer."""


class Stream(Protocol):
    """The part of a transport that frames need."""

    def read_into(self, view: memoryview) -> int:
        """Read the available bytes; 0 if there are none now."""


class FrameBuffers:
    """A pool of memory for large frames; `give_back` returns a frame's memory to it.

    A fresh 8 MiB costs more (page faults, cold cache) than copying 8 MiB from the socket into warm memory.
    Any thread may call; a list's append and pop are atomic.
    """

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    @property
    def pooled_sizes(self) -> list[int]:
        """The sizes of the buffers that are free."""
        return [len(free) for free in self._free]

    def take(self, length: int) -> memoryview:
        """Memory of exactly ``length`` bytes; its contents are undefined."""
        if length < POOLED_FROM:
            return memoryview(bytearray(length))
        try:
            whole = self._free.pop()
        except IndexError:
            whole = memoryview(b"")
        if len(whole) < length:  # a smaller one is dropped: fetches of one partition have about one size
            whole = _unwritten(-(-length // ROUNDING) * ROUNDING)
        return whole[:length]

    def give_back(self, frame: memoryview) -> None:
        """Allow a later frame to overwrite ``frame``. Nothing that points into it may be read afterwards."""
        if len(frame) >= POOLED_FROM and len(self._free) < POOLED_FRAMES:
            self._free.append(memoryview(frame.obj).cast("B"))

    def trim(self) -> None:
        """Free all but one small buffer: a process may have many idle connections."""
        free, kept = self._free, None
        # One by one: memory that was only looked at could be taken by another thread meanwhile.
        while free:
            try:
                whole = free.pop()
            except IndexError:  # another thread was faster
                break
            if len(whole) <= KEPT_BYTES:
                kept = whole
        if kept is not None:
            free.append(kept)


def _unwritten(length: int) -> memoryview:
    """Uninitialized memory: a bytearray would be filled with zeros first."""
    with no_fork():
        import numpy as np  # late: metadata requests never need numpy

    return memoryview(np.empty(length, np.uint8).data).cast("B")


class FrameReader:
    """Assembles frames, and resumes where the stream had no more bytes. Owned by the thread that is the
    reader.
    """

    def __init__(self, stream: Stream, frame_length: Callable[[bytes], int]) -> None:
        self._stream = stream
        self._frame_length = frame_length
        self.buffers = FrameBuffers()
        """The memory that large frames are read into."""
        self._prefix = bytearray(4)
        self._target = memoryview(self._prefix)
        self._filled = 0
        self._in_frame = False

    def read(self) -> memoryview | None:
        """The next whole frame without its length prefix, or None if the stream has no more bytes for now.

        ``frame_length`` validates the prefix (`ProtocolError`) before any memory is allocated.
        """
        while True:
            while self._filled < len(self._target):
                received = self._stream.read_into(self._target[self._filled :])
                if received == 0:
                    return None
                self._filled += received
            self._filled = 0
            if self._in_frame:
                frame, self._target = self._target, memoryview(self._prefix)
                self._in_frame = False
                return frame
            self._target = self.buffers.take(self._frame_length(bytes(self._prefix)))
            self._in_frame = True
