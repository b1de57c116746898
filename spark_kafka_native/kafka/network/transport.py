"""`Transport`: a connected byte stream, plain or TLS; `Dialing`: TCP connections to the addresses of one
broker, in parallel (RFC 8305) or one after the other. The only place that catches `OSError` and
`ssl.SSLError`.

Sockets never block; all waiting happens in `poll`, with a deadline. An address that does not answer must not
use up the time of the others: after a short delay the next one is tried in parallel, and the first that
connects is used. This module knows neither frames nor messages.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from ..config.client_config import ClientConfig
from ..config.security_config import SecurityConfig
from ..errors import (
    AuthenticationError,
    ConfigError,
    HandshakeClosedError,
    KafkaError,
    NetworkError,
    SecurityError,
    UnreachableError,
)
from ..runtime.deadline import Deadline
from ..runtime.fork import no_fork
from ..runtime.name_lookup import AddressInfo, failed_addresses, look_up

Buffer = bytes | bytearray | memoryview

READ = select.POLLIN
WRITE = select.POLLOUT
_GONE = select.POLLERR | select.POLLHUP | select.POLLNVAL

MAX_BUFFERS = 512
"""Buffers per sendmsg; the system's own limit (IOV_MAX) is 1024."""
TLS_CHUNK = 256 * 1024
"""Small buffers are joined up to this size before TLS encrypts them: a TLS record for each 4-byte length
would be wasteful."""


def wait_for_streams(streams: Sequence[tuple[int, int]], deadline: Deadline) -> bool:
    """Wait until any (file descriptor, READ | WRITE) is ready or gone; False if the deadline passed first."""
    poller = select.poll()
    for descriptor, events in streams:
        if descriptor < 0:
            return True
        poller.register(descriptor, events)
    return bool(deadline.poll(poller))


class Transport:
    """One connected socket. One thread may read while another writes."""

    def __init__(self, sock: socket.socket, address: str, target: tuple[Any, ...] = ()) -> None:
        self._socket = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        # Two threads must not use an OpenSSL connection object at once; with a plain socket they may.
        self._tls_lock = threading.Lock() if self._tls else contextlib.nullcontext()
        self.address = address
        self._target = target
        """The address of the name that was dialled, as the resolver returned it."""
        self.read_waits_for = READ
        self.write_waits_for = WRITE
        self._established = False
        """True once the broker has sent anything: it has then accepted the TLS handshake."""

    @classmethod
    def connect(cls, host: str, port: int, config: ClientConfig, deadline: Deadline) -> Transport:
        """Resolve ``host``, connect to one of its addresses (see `Dialing`), and perform the TLS handshake if
        ``config`` requires TLS, all by ``deadline``.

        Raises `NetworkError` that lists each address with its cause (`UnreachableError` if all of them
        refused at once), and `SecurityError` if TLS fails.
        """
        context = _tls_context(config.security) if config.security.encrypted else None
        where = f"{host}:{port}"
        addresses = failed_addresses.last(look_up(host, port, config, deadline))
        with Dialing(addresses, config, deadline) as dialing:
            while (found := dialing.next()) is not None:
                sock, address = found
                if context is None:
                    return cls(sock, where, dialing.target)
                try:
                    limit = deadline.within_ms(config.connection_setup_timeout_ms)
                    return cls(_encrypt(sock, host, where, context, limit), where, dialing.target)
                except NetworkError as error:
                    failed_addresses.add(dialing.target)
                    if dialing.exhausted:
                        raise
                    dialing.failed(address, str(error))
            raise dialing.error(where)

    def note_handshake(self, *, succeeded: bool) -> None:
        """Note how the handshake after the connection ended: where it failed, a name's other addresses are
        tried first."""
        if succeeded:
            failed_addresses.discard(self._target)
        else:
            failed_addresses.add(self._target)

    def fileno(self) -> int:
        """The socket's file descriptor; -1 once closed."""
        return self._socket.fileno()

    def read_into(self, view: memoryview) -> int:
        """Read the available bytes, at most ``len(view)``; 0 if there are none now (then wait for
        `read_waits_for`).

        Raises `NetworkError` at the end of the stream.
        """
        try:
            with self._tls_lock:
                received = self._socket.recv_into(view)
        except (BlockingIOError, ssl.SSLWantReadError):
            self.read_waits_for = READ
            return 0
        except ssl.SSLWantWriteError:
            self.read_waits_for = WRITE
            return 0
        except OSError as error:
            raise self._failure(error, "reading") from error
        if received == 0:
            raise NetworkError(f"{self.address}: the broker closed the connection")
        self._established = True
        return received

    def write(self, buffers: list[memoryview]) -> bool:
        """Write what the system takes now and remove it from ``buffers``; True once nothing is left.

        After False wait for `write_waits_for` and call again.
        """
        while buffers:
            try:
                with self._tls_lock:
                    sent = (
                        self._send_tls(buffers) if self._tls else self._socket.sendmsg(buffers[:MAX_BUFFERS])
                    )
            except (BlockingIOError, ssl.SSLWantWriteError):
                self.write_waits_for = WRITE
                return False
            except ssl.SSLWantReadError:
                self.write_waits_for = READ
                return False
            except OSError as error:
                raise self._failure(error, "writing") from error
            _drop(buffers, sent)
        return True

    def _failure(self, error: OSError, doing: str) -> KafkaError:
        if not isinstance(error, ssl.SSLError) or isinstance(error, _CLOSED):
            return NetworkError(f"{self.address}: connection lost while {doing}: {_cause(error)}")
        # TLS 1.3 reports a missing or refused client certificate only here, after the handshake.
        if (refused := _refused_certificate(error, self.address)) is not None:
            return refused
        # Later than that it is a damaged record: another connection helps.
        kind = NetworkError if self._established else SecurityError
        return kind(f"{self.address}: TLS failed while {doing}: {_tls_reason(error)}")

    def _send_tls(self, buffers: list[memoryview]) -> int:
        """One TLS write. Small adjacent buffers are joined first, and stay joined: a retry must offer the
        same bytes.
        """
        total, count = 0, 0
        while count < len(buffers) and total + len(buffers[count]) <= TLS_CHUNK:
            total += len(buffers[count])
            count += 1
        if count > 1:
            buffers[:count] = [memoryview(b"".join(buffers[:count]))]
        return self._socket.send(buffers[0])

    def wait(self, events: int, deadline: Deadline) -> int:
        """Wait for READ, WRITE or both. Returns the ready ones (both for a dead stream), or 0 if the deadline
        passed first.
        """
        if self._tls and events & READ and self._has_decrypted():
            return READ
        poller = select.poll()
        poller.register(self._socket.fileno(), events)
        ready = deadline.poll(poller)
        if not ready:
            return 0
        found = ready[0][1]
        return events if found & _GONE else found & events

    def _has_decrypted(self) -> bool:
        with self._tls_lock:
            return bool(self._socket.pending())  # type: ignore[attr-defined]

    def shut(self) -> None:
        """End the stream in both directions, which wakes waiting threads. The descriptor stays open."""
        with contextlib.suppress(OSError):
            # Not SSLSocket.shutdown, which first drops its TLS state: another thread may be writing.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, which no thread may be waiting for. Harmless if it is closed."""
        self.shut()
        self._socket.close()

    def forget(self) -> None:
        """Close only this process's copy of the socket: after a fork the parent goes on using its own."""
        self._socket.close()


def _encrypt(
    sock: socket.socket, host: str, address: str, context: ssl.SSLContext, deadline: Deadline
) -> ssl.SSLSocket:
    try:
        # Some resolvers take a name with a trailing dot; certificates never carry one.
        name = host.rstrip(".")
        encrypted = context.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
        sock = encrypted
        _shake_hands(encrypted, address, deadline)
    except KafkaError:
        sock.close()
        raise
    except (OSError, ValueError) as error:
        sock.close()
        raise _handshake_failure(error, address) from error
    return encrypted


def _shake_hands(sock: ssl.SSLSocket, address: str, deadline: Deadline) -> None:
    """The TLS handshake under one deadline (a socket's own timeout would restart with every byte)."""
    while True:
        try:
            with no_fork():  # OpenSSL has locks of its own
                sock.do_handshake()
            return
        except ssl.SSLWantReadError:
            waits_for = READ
        except ssl.SSLWantWriteError:
            waits_for = WRITE
        if deadline.expired or not wait_for_streams([(sock.fileno(), waits_for)], deadline):
            raise NetworkError(
                f"{address}: no TLS handshake in time; is it a TLS listener (security.protocol=SSL)?"
            )


_CLOSED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""What Python raises at the end of a stream: 3.11.2 raises the second one even without a close_notify alert.
"""
_CLOSED_BEFORE = "Closed before TLS handshake"
"""The reason's beginning for a stream that had something in it, and had ended, before the handshake began:
Python gives it, not OpenSSL.
"""


def _handshake_failure(error: Exception, address: str) -> KafkaError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return SecurityError(f"{address}: the broker's certificate is not trusted: {error.verify_message}")
    if isinstance(error, ValueError):
        return ConfigError(f"{address}: TLS can't ask for a host of this name ({error})")
    if (
        isinstance(error, _CLOSED)
        or not isinstance(error, ssl.SSLError)
        or (error.reason or "").startswith(_CLOSED_BEFORE)
    ):
        return HandshakeClosedError(
            f"{address}: the connection was closed during the TLS handshake; "
            "the port probably speaks no TLS (then set security.protocol=PLAINTEXT or SASL_PLAINTEXT)"
        )
    if error.reason in ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return SecurityError(
            f"{address} does not speak TLS; set security.protocol=PLAINTEXT (with SASL: SASL_PLAINTEXT), "
            "or use its TLS port"
        )
    return _refused_certificate(error, address) or SecurityError(
        f"{address}: TLS handshake failed: {_tls_reason(error)}"
    )


_CERTIFICATE_ALERTS = (
    "BAD_CERTIFICATE",
    "CERTIFICATE_REQUIRED",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
    "CERTIFICATE_UNKNOWN",
    "UNSUPPORTED_CERTIFICATE",
    "UNKNOWN_CA",
    "ACCESS_DENIED",
)


def _refused_certificate(error: ssl.SSLError, address: str) -> AuthenticationError | None:
    """The error for an alert of the broker about the client's certificate."""
    alert = (error.reason or "").partition("ALERT_")[2]
    if alert not in _CERTIFICATE_ALERTS:
        return None
    return AuthenticationError(
        f"{address}: the broker refused the client's certificate ({alert.replace('_', ' ').lower()}); "
        "it wants one that an authority it trusts has issued: ssl.keystore.location, or "
        "ssl.keystore.certificate.chain and ssl.keystore.key"
    )


def _drop(buffers: list[memoryview], sent: int) -> None:
    whole = 0
    while whole < len(buffers) and sent >= len(buffers[whole]):
        sent -= len(buffers[whole])
        whole += 1
    del buffers[:whole]
    if sent:
        buffers[0] = buffers[0][sent:]


def _tls_context(security: SecurityConfig) -> ssl.SSLContext:
    with no_fork():
        from ..security.tls import tls_context  # late: a plaintext connection does not need it

    return tls_context(security)


def _tls_reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _cause(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()


_UNDER_WAY: Final = (0, errno.EINPROGRESS, errno.EINTR, errno.EWOULDBLOCK)
_INTERNET: Final = (socket.AF_INET, socket.AF_INET6)
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_KEEP_IDLE: Final = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
"""The option's name on Linux, and on macOS."""
_MAX_KEEP_IDLE_S: Final = 32_767
"""Linux takes no more (tcp(7))."""


class _Attempt:
    """A connection attempt to one address."""

    def __init__(self, sock: socket.socket, target: tuple[Any, ...], deadline: Deadline) -> None:
        self.socket = sock
        self.target = target
        self.address = str(target[0])
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
        self.target: tuple[Any, ...] = ()
        """The address of the last socket from `next`, as the resolver returned it."""

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
                self.target = connected.target
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
            attempt = _Attempt(sock, info[4], self._share())
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
        if info[0] in _INTERNET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if config.keepalive and config.keepalive_idle_ms >= 0 and _KEEP_IDLE is not None:
                idle_s = min(max(1, config.keepalive_idle_ms // 1000), _MAX_KEEP_IDLE_S)
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
            if not code and _is_its_own_peer(attempt.socket):
                # Without a reset the port would be kept for a minute after the close, and from its broker.
                attempt.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                code = errno.ECONNREFUSED
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


def _is_its_own_peer(sock: socket.socket) -> bool:
    """Where no broker listens, TCP connects a socket of this host to itself if the system has given it just
    the port that it connects to.
    """
    try:
        return sock.family in _INTERNET and sock.getsockname() == sock.getpeername()
    except OSError:  # it has been reset meanwhile
        return False
