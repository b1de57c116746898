"""Length-prefixed frames out of a transport, and the memory that they are read into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

POOLED_FROM = 64 * 1024
"""Smaller frames get memory of their own: they are cheap, and what is decoded from them may live on."""
POOLED_FRAMES = 3
"""One is decoded, one arrives, one is spare."""
KEPT_BYTES = 16 * 1024 * 1024
"""Of a connection that nobody fetches on, one buffer of at most this size is kept."""
ROUNDING = 256 * 1024
"""Pooled sizes are multiples of this, so that fetches of nearly equal size share a buffer."""


class Stream(Protocol):
    """The part of a transport that frames need."""

    def read_into(self, view: memoryview) -> int:
        """Read what is there; 0 when nothing is there now."""


class FrameBuffers:
    """Memory for large frames, used again once `give_back` says so.

    A fresh 8 MiB costs more (page faults, cold cache) than copying 8 MiB out of the socket into warm memory.
    Any thread may call; a list's append and pop are atomic.
    """

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    def take(self, length: int) -> memoryview:
        """Memory of exactly ``length`` bytes, its contents undefined."""
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
        """Let ``frame`` be overwritten by a later one. Nothing that points into it may be read any more."""
        if len(frame) >= POOLED_FROM and len(self._free) < POOLED_FRAMES:
            self._free.append(memoryview(frame.obj).cast("B"))

    def trim(self) -> None:
        """Keep what a small fetch needs: a process may have many connections that do nothing."""
        kept = [free for free in self._free if len(free) <= KEPT_BYTES][:1]
        self._free = kept


def _unwritten(length: int) -> memoryview:
    """Memory that nobody has written to yet: a bytearray would be filled with zeros first."""
    import numpy as np  # here: who only asks a broker about its topics never needs it

    return memoryview(np.empty(length, np.uint8).data).cast("B")


class FrameReader:
    """Assembles one frame after another, and goes on where the stream ran dry. Owned by whoever has the turn
    to read.
    """

    def __init__(self, stream: Stream, frame_length: Callable[[bytes], int], buffers: FrameBuffers) -> None:
        self._stream = stream
        self._frame_length = frame_length
        self._buffers = buffers
        self._prefix = bytearray(4)
        self._target = memoryview(self._prefix)
        self._filled = 0
        self._in_frame = False

    def read(self) -> memoryview | None:
        """The next whole frame without its length prefix, or None when the stream has no more for now.

        ``frame_length`` judges the prefix (`ProtocolError`) before anything is allocated.
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
            self._target = self._buffers.take(self._frame_length(bytes(self._prefix)))
            self._in_frame = True
