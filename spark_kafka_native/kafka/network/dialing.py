"""`Dialing`: TCP connections to the addresses of one broker, in parallel (RFC 8305) or one after the other.

An address that does not answer must not use up the time of the others: after a short delay the next one is
tried in parallel, and the first that connects is used. Sockets never block; one `poll` waits for all of them.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import deque
from types import TracebackType
from typing import Final, Self

from ..config.client_config import ClientConfig
from ..errors import ConfigError, NetworkError, UnreachableError
from ..runtime.deadline import Deadline
from ..runtime.name_lookup import AddressInfo

_UNDER_WAY: Final = (0, errno.EINPROGRESS, errno.EINTR, errno.EWOULDBLOCK)
_KEEP_IDLE: Final = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
"""The option's name on Linux, and on macOS."""


class _Attempt:
    """A connection attempt to one address."""

    def __init__(self, sock: socket.socket, address: str, deadline: Deadline) -> None:
        self.socket = sock
        self.address = address
        self.limit_ms = deadline.remaining_ms
        self.deadline = deadline


class Dialing:
    """Connects to any of ``addresses``. One thread owns it; leaving the ``with`` block closes the sockets
    that are not used.
    """

    def __init__(self, addresses: list[AddressInfo], config: ClientConfig, deadline: Deadline) -> None:
        self._left = deque(addresses)
        self._config = config
        self._deadline = deadline
        self._trying: dict[int, _Attempt] = {}
        self._next_at = deadline.within_ms(0)
        self._causes: list[tuple[str, str]] = []
        self._failure: type[NetworkError] = UnreachableError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        while self._trying:
            self._trying.popitem()[1].socket.close()

    @property
    def exhausted(self) -> bool:
        """True if no address is left."""
        return not self._left and not self._trying

    def next(self) -> tuple[socket.socket, str] | None:
        """The next connected socket and its address; None once every address has failed."""
        while not self.exhausted:
            if self._left and (not self._trying or self._may_race()):
                connected = self._start(self._left.popleft())
            else:
                connected = self._wait()
            if connected is not None:
                return connected.socket, connected.address
        return None

    def failed(self, address: str, cause: str, *, refused: bool = False) -> None:
        """Record that ``address`` failed. ``refused``: the peer rejected the connection, rather than not
        answering.
        """
        self._causes.append((address, cause))
        if not refused:
            self._failure = NetworkError

    def error(self, where: str) -> NetworkError:
        """The error to raise once every address has failed, with the cause of each; `UnreachableError` if all
        of them refused.
        """
        host = where.rpartition(":")[0].strip("[]")
        causes = [cause if address == host else f"{address}: {cause}" for address, cause in self._causes]
        return self._failure(f"cannot connect to {where} ({'; '.join(causes)})")

    def _may_race(self) -> bool:
        return self._config.connection_attempt_delay_ms >= 0 and self._next_at.expired

    def _start(self, info: AddressInfo) -> _Attempt | None:
        """Start connecting to an address. Returns the attempt if it is connected at once."""
        address = str(info[4][0])
        attempt = None
        try:
            sock = self._socket(info)
            attempt = _Attempt(sock, address, self._share())
            self._trying[sock.fileno()] = attempt
            if self._config.socket_factory is not None and _is_connected(sock):
                return self._trying.pop(sock.fileno())
            code = sock.connect_ex(info[4])
        except OSError as error:
            code = error.errno or errno.EINVAL
        self._next_at = self._deadline.within_ms(max(0, self._config.connection_attempt_delay_ms))
        if code not in _UNDER_WAY:
            self._refused(address, attempt, code)
        return None

    def _socket(self, info: AddressInfo) -> socket.socket:
        factory = self._config.socket_factory
        sock = socket.socket(*info[:3]) if factory is None else factory(info)
        if not isinstance(sock, socket.socket):
            raise ConfigError(f"socket_factory must return a socket, not of the type {type(sock).__name__}")
        try:
            self._configure(sock, info)
        except BaseException:
            sock.close()
            raise
        return sock

    def _configure(self, sock: socket.socket, info: AddressInfo) -> None:
        config = self._config
        sock.setblocking(False)
        # Sizes are set before connecting: the handshake negotiates the window scale.
        if config.receive_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
        if config.send_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)
        if info[0] in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if config.keepalive and config.keepalive_idle_ms >= 0 and _KEEP_IDLE is not None:
                idle_s = max(1, config.keepalive_idle_ms // 1000)
                sock.setsockopt(socket.IPPROTO_TCP, _KEEP_IDLE, idle_s)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(config.keepalive))
        if config.source_address is not None and not _is_connected(sock):
            sock.bind((config.source_address, 0))

    def _share(self) -> Deadline:
        """The deadline of one address: attempts one after the other share the remaining time."""
        in_turn = self._config.connection_attempt_delay_ms < 0
        share_ms = self._deadline.remaining_ms / (len(self._left) + 1 if in_turn else 1)
        # An attempt without any time would say nothing about the address.
        return self._deadline.from_now_ms(max(1, min(self._config.connection_setup_timeout_ms, share_ms)))

    def _wait(self) -> _Attempt | None:
        """The next attempt that is connected; None if an attempt has failed, or if it is time to start the
        next one.
        """
        waits_ms = min(attempt.deadline.remaining_ms for attempt in self._trying.values())
        if self._left and self._config.connection_attempt_delay_ms >= 0:
            waits_ms = min(waits_ms, self._next_at.remaining_ms)
        poller = select.poll()
        for descriptor in self._trying:
            poller.register(descriptor, select.POLLOUT)
        for descriptor, _ in self._deadline.from_now_ms(waits_ms).poll(poller):
            attempt = self._trying.pop(descriptor)
            code = attempt.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not code:
                return attempt
            self._refused(attempt.address, attempt, code)
        for descriptor, attempt in list(self._trying.items()):
            if attempt.deadline.expired:
                del self._trying[descriptor]
                attempt.socket.close()
                self.failed(attempt.address, f"no answer in {attempt.limit_ms:.0f} ms")
        return None

    def _refused(self, address: str, attempt: _Attempt | None, code: int) -> None:
        if attempt is not None:
            self._trying.pop(attempt.socket.fileno(), None)
            attempt.socket.close()
        self._next_at = self._deadline.within_ms(0)  # the next attempt may start at once
        self.failed(address, os.strerror(code).lower(), refused=code != errno.ETIMEDOUT)


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True
