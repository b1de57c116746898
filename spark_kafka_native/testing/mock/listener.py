"""`Listener`: the sockets of one mock broker. A connection's requests get their responses in turn."""

from __future__ import annotations

import contextlib
import enum
import logging
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from .mock_cluster import MockCluster

_LOG = logging.getLogger("spark_kafka_native.testing.mock")
_MAX_FRAME_BYTES: Final = 100 << 20
"""``socket.request.max.bytes`` of a broker."""


class Then(enum.Enum):
    """What becomes of a connection after a response."""

    NEXT = enum.auto()
    """The next request is answered."""
    CLOSE = enum.auto()
    SILENCE = enum.auto()
    """It stays open, and nothing more is answered."""


class Outgoing(NamedTuple):
    """Bytes to send, and what becomes of their connection."""

    data: bytes
    then: Then = Then.NEXT
    pieces: tuple[int, Callable[[], object]] | None = None
    """Send this number of bytes at a time, and call this after each: it waits."""


Serve = Callable[[bytes, int, int], Outgoing]
"""Gets a request's frame, the broker's node id and the connection's number."""


class Listener:
    """Accepts connections on one port of 127.0.0.1, again after `stop` on the same one."""

    def __init__(
        self,
        node_id: int,
        cluster: MockCluster,
        serve: Serve,
        tls: ssl.SSLContext | None,
        buffer_bytes: int | None = None,
    ) -> None:
        self.node_id = node_id
        self._cluster, self._serve, self._tls = cluster, serve, tls
        self._buffer_bytes = buffer_bytes
        self._lock = threading.Lock()
        self._open: dict[int, socket.socket] = {}
        self._listening: socket.socket | None = None
        self._reserved: socket.socket | None = None
        """Bound to our port, too: no other process gets it between `refuse` and `start`."""
        self._threads: list[threading.Thread] = []
        self.port = 0

    def start(self, number: Callable[[], int]) -> None:
        """Listen. ``number`` numbers connections."""
        listening, self._reserved = self._reserved or _bind(self.port), None
        self.port = listening.getsockname()[1]
        # Before one of them listens: afterwards the port takes no second socket. Only Linux takes it at all.
        with contextlib.suppress(OSError):
            self._reserved = _bind(self.port)
        if self._buffer_bytes is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer_bytes)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._buffer_bytes)
        listening.listen()
        self._listening = listening
        self._spawn(self._accept, listening, number)

    @property
    def is_listening(self) -> bool:
        """True if it accepts connections."""
        return self._listening is not None

    def stop(self, *, for_good: bool = False) -> None:
        """Refuse new connections, and close the others; keep the port, unless ``for_good``."""
        self.refuse()
        if for_good and self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        self.hang_up()

    def refuse(self) -> None:
        """Refuse new connections; keep the port and the connections that are open."""
        listening, self._listening = self._listening, None
        if listening is not None:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()
            self._reserved = self._reserved or _bind(self.port)

    def hang_up(self) -> None:
        """Close all connections."""
        with self._lock:
            for sock in self._open.values():
                with contextlib.suppress(OSError):
                    # Not that of an SSLSocket, which pulls its session away from a thread that reads.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait for the threads to end, after `stop`."""
        for thread in self._threads:
            thread.join()

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(
            target=target, args=arguments, name=f"mock-broker-{self.node_id}", daemon=True
        )
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        thread.start()

    def _accept(self, listening: socket.socket, number: Callable[[], int]) -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            self._spawn(self._talk, sock, number())

    def _talk(self, sock: socket.socket, connection: int) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._keep(sock, connection)
            if self._tls is not None:
                secured = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                sock = secured
                self._keep(sock, connection)
                secured.do_handshake()
            self._respond_in_turn(sock, connection)
        except (OSError, EOFError):
            pass  # the client is gone, or we hung up
        finally:
            with self._lock:
                self._open.pop(connection, None)
            sock.close()

    def _keep(self, sock: socket.socket, connection: int) -> None:
        """For `hang_up` to find, before anything waits for its client."""
        with self._lock:
            self._open[connection] = sock
            if self._listening is None:
                raise EOFError  # stopped while this one came in

    def _respond_in_turn(self, sock: socket.socket, connection: int) -> None:
        then = Then.NEXT
        while then is not Then.CLOSE:
            prefix = _receive(sock, 4)
            (length,) = struct.unpack(">i", prefix)
            if not 0 <= length <= _MAX_FRAME_BYTES:
                _LOG.warning("broker %d: %r is no length of a request", self.node_id, prefix)
                return
            frame = _receive(sock, length)
            if then is Then.NEXT:
                outgoing = self._serve(frame, self.node_id, connection)
                then = outgoing.then
                _send(sock, outgoing)


def _send(sock: socket.socket, outgoing: Outgoing) -> None:
    if outgoing.pieces is None:
        sock.sendall(outgoing.data)
        return
    piece, pause = outgoing.pieces
    for at in range(0, len(outgoing.data), piece):
        sock.sendall(outgoing.data[at : at + piece])
        pause()


def _bind(port: int) -> socket.socket:
    """A socket that does not listen yet."""
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    return sock


def _receive(sock: socket.socket, length: int) -> bytes:
    parts = []
    while length:
        part = sock.recv(min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
