"""`WriteQueue`: requests whose bytes have not all been written to the socket, in their order.

One thread at a time pushes (it holds the connection's write lock); adding and taking is done under its
other lock. Each request is offered to TLS by itself: a retried TLS write must offer the same bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from .pending import Pending
from .transport import Buffer, Transport


class WriteQueue:
    """What is still to be written. Whoever adds bounds it: nothing is posted to a socket that is full."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._left: deque[tuple[list[memoryview], Pending[Any], bool]] = deque()

    def __bool__(self) -> bool:
        """Whether anything is left to be written."""
        return bool(self._left)

    def add(self, buffers: Sequence[Buffer], pending: Pending[Any], answered: bool) -> None:
        """Append a request; one that is not ``answered`` is complete once it is written."""
        self._left.append(([memoryview(buffer) for buffer in buffers], pending, answered))

    def push(self) -> bool:
        """Write what the system takes now; True when nothing is left. Raises what the stream died of."""
        left = self._left
        while left:
            buffers, pending, answered = left[0]
            if not self._transport.write(buffers):
                return False
            left.popleft()
            if not answered:
                pending.complete(None, None)
        return True

    def take_unanswered(self) -> list[Pending[Any]]:
        """Drop everything, as the stream is dead; returns the requests that nobody else knows of."""
        left, self._left = self._left, deque()
        return [pending for _, pending, answered in list(left) if not answered]
