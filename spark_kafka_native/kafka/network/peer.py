"""`Peer`: a connected broker as the handshake sees it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from ..protocol.message import Request, Response
from ..runtime.deadline import Deadline

R = TypeVar("R", bound=Response)


class Peer(Protocol):
    """A connected broker that is asked one thing at a time."""

    @property
    def address(self) -> str:
        """``host:port``, for errors."""

    def ask(self, request: Request[R], version: int, deadline: Deadline) -> R:
        """Send ``request`` in exactly that version and wait for its response. Raises `NetworkError`,
        `ProtocolError`.
        """
