"""`Connection`: one broker at the other end of one socket; requests are pipelined, responses come in their
order.

There is no reader thread: whoever waits for a response takes the turn to read and completes the others' on
the way, so a single-threaded caller pays no thread switch. A connection dies once, and tells everybody who
waits why.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, TypeVar

from ...version import __version__
from ..config import ClientConfig
from ..error_code import ErrorCode
from ..errors import BrokerError, HandshakeClosedError, KafkaError, NetworkError, RequestTimedOutError
from ..protocol.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ..protocol.message import Request, Response
from ..protocol.session import Session
from ..protocol.versions import VersionRanges, lower_api_versions, negotiate, read_version_ranges
from .deadline import Deadline
from .frames import FrameBuffers, FrameReader
from .pending import Pending
from .transport import READ, WRITE, Transport

R = TypeVar("R", bound=Response)

MOST_MUTED_MS = 60_000
"""A broker's throttle time is obeyed up to this: a corrupt or hostile one must not mute us for days."""


class Connection:
    """A connection to one broker. Any thread may submit and wait."""

    def __init__(self, transport: Transport, config: ClientConfig) -> None:
        self._transport = transport
        self._config = config
        self._session = Session(config.client_id, max_frame_length=config.max_response_bytes)
        self.buffers = FrameBuffers()
        self._frames = FrameReader(transport, self._session.frame_length, self.buffers)
        self._in_flight: deque[Pending[Any]] = deque()
        self._write_lock = threading.Lock()
        self._turn = threading.Condition(threading.Lock())  # guards the four below
        self._reading = False
        self._death: KafkaError | None = None
        self._waiters = 0
        self._muted_until = 0.0
        self._used_at = time.monotonic()
        self.request_timeout_ms = config.request_timeout_ms
        self.api_versions: VersionRanges = {}
        """API key -> (lowest, highest version) that this broker speaks: brokers differ during an upgrade."""

    @classmethod
    def open(cls, host: str, port: int, config: ClientConfig, deadline: Deadline | None = None) -> Connection:
        """Connect, encrypt, and learn the broker's versions.

        Raises `NetworkError` (each address with its cause), `SecurityError`, `ProtocolError` (something that
        is no Kafka).
        """
        limit = deadline or Deadline.after_ms(config.default_api_timeout_ms)
        connection = cls(Transport.connect(host, port, config, limit), config)
        try:
            connection._learn_versions(limit.within_ms(config.connection_setup_timeout_ms))
            # SASL goes here: after ApiVersions (KIP-152), before any other request.
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def address(self) -> str:
        """``host:port`` as it was connected to."""
        return self._transport.address

    @property
    def closed(self) -> bool:
        """Whether the connection is dead; it never comes back."""
        return self._death is not None

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered."""
        return len(self._in_flight)

    @property
    def muted_ms(self) -> float:
        """Milliseconds for which the broker asked not to be sent anything (KIP-219)."""
        return max(0.0, (self._muted_until - time.monotonic()) * 1000)

    @property
    def waits_for(self) -> int:
        """What a read waits for: READ, or WRITE in the middle of a TLS renegotiation."""
        return self._transport.read_waits_for

    def fileno(self) -> int:
        """The socket's file descriptor, for a caller that waits on several."""
        return self._transport.fileno()

    def version_of(self, request: type[Request[Any]], at_most: int | None = None) -> int:
        """The version that ``request`` is spoken in here. Raises `UnsupportedVersionError` with
        both ranges.
        """
        return negotiate(request, self.api_versions, at_most=at_most)

    def send(self, request: Request[R], timeout_ms: float | None = None) -> R:
        """Submit and wait for the response."""
        return self.submit(request).result(timeout_ms)

    def submit(self, request: Request[R], version: int | None = None) -> Pending[R]:
        """Write ``request`` now and return without waiting for its response; waits only while the broker
        mutes us.

        Raises what the connection died of when nothing was written; once a byte may be out, the failure is in
        the `Pending`: only there the broker may have applied the request.
        """
        if self._muted_until:
            self._wait_until_unmuted()
        version = self.version_of(type(request)) if version is None else version
        with self._write_lock:
            with self._turn:
                self._raise_if_dead()
                correlation_id, buffers = self._session.send(request, version)
                what = f"{request.api_name()} v{version} to {self.address}"
                pending: Pending[R] = Pending(self, correlation_id, what, version)
                if request.answered:
                    self._in_flight.append(pending)
            try:
                self._write([memoryview(buffer) for buffer in buffers])
            except KafkaError as error:
                self._die(error)
                if not request.answered:
                    pending.fail(_fresh(error))
            else:
                if not request.answered:
                    pending.complete(None, None)
        self._used_at = time.monotonic()
        return pending

    def wait_for(self, pending: Pending[Any], deadline: Deadline) -> bool:
        """Read until ``pending`` is done; False when ``deadline`` came first."""
        while not pending.done and self._take_turn(pending, deadline):
            try:
                if not pending.done and not self._read_until(pending, deadline):
                    break
            finally:
                self._pass_turn()
        return pending.done

    def give_up(self, pending: Pending[Any], waited_ms: float) -> None:
        """Close the connection as ``pending`` is too late: its late answer must match nothing."""
        message = f"{pending.what}: no answer in {waited_ms:.0f} ms; the connection was closed"
        self._die(RequestTimedOutError(message))

    def poll(self) -> None:
        """Read what has arrived, without waiting; completes the `Pending`s that it answers."""
        with self._turn:
            if self._reading or self._death is not None:
                return
            self._reading = True
        try:
            while self._read_frame():
                pass
        finally:
            self._pass_turn()

    def alive(self) -> bool:
        """Whether a request may be sent here: not dead, not hung up by an idle-closing broker, not idle for
        too long.
        """
        if not self._in_flight and not self.closed:
            if (time.monotonic() - self._used_at) * 1000 > self._config.connections_max_idle_ms:
                self.close()
            else:
                self.poll()
        return not self.closed

    def close(self) -> None:
        """Close the socket; whoever waits gets a `NetworkError`."""
        self._die(NetworkError(f"{self.address}: the connection was closed by this client"))

    def forget(self) -> None:
        """Drop a connection inherited over a fork without a word on the wire: the parent still uses it.

        Takes no lock: a thread of the parent may have held it at the moment of the fork.
        """
        self._death = NetworkError(f"{self.address}: the connection belongs to the parent process")
        self._transport.forget()

    def _learn_versions(self, deadline: Deadline) -> None:
        try:
            version = ApiVersionsRequest.versions[1]
            response = self._ask_versions(version, deadline)
            while (lower := lower_api_versions(response, version)) is not None:
                version = lower
                response = self._ask_versions(version, deadline)
        except RequestTimedOutError:
            raise
        except NetworkError as error:
            other = "PLAINTEXT" if self._config.security.encrypted else "SSL"
            raise HandshakeClosedError(
                f"{error} during the first exchange; does that port speak Kafka with "
                f"security.protocol={self._config.security.protocol.name}, or rather {other}?"
            ) from error
        if response.error_code != ErrorCode.NONE:
            raise BrokerError(response.error_code, f"ApiVersions to {self.address}")
        self.api_versions = read_version_ranges(response)

    def _ask_versions(self, version: int, deadline: Deadline) -> ApiVersionsResponse:
        request = ApiVersionsRequest(
            client_software_name="spark-kafka-native", client_software_version=__version__
        )
        return self.submit(request, version).result(deadline.remaining_ms)

    def _wait_until_unmuted(self) -> None:
        time.sleep(self.muted_ms / 1000)
        self._muted_until = 0.0

    def _write(self, buffers: list[memoryview]) -> None:
        deadline = Deadline.after_ms(self.request_timeout_ms)
        while not self._transport.write(buffers):
            # A broker that can't get rid of its responses stops reading requests: take in while waiting to
            # put out.
            also = 0 if self._reading else READ
            ready = (
                0
                if deadline.expired
                else self._transport.wait(self._transport.write_waits_for | also, deadline)
            )
            if not ready:
                raise RequestTimedOutError(
                    f"{self.address}: nothing could be written for {self.request_timeout_ms} ms"
                )
            if ready & READ and not ready & WRITE:
                self.poll()

    def _take_turn(self, pending: Pending[Any], deadline: Deadline) -> bool:
        """Become the one who reads; False when ``pending`` was completed by another or time is up."""
        with self._turn:
            self._waiters += 1
            try:
                while self._reading and not pending.done:
                    if not self._turn.wait(deadline.remaining_ms / 1000):
                        return False
            finally:
                self._waiters -= 1
            if pending.done:
                return False
            self._reading = True
            return True

    def _pass_turn(self) -> None:
        with self._turn:
            self._reading = False
            if self._waiters:
                self._turn.notify_all()

    def _read_until(self, pending: Pending[Any], deadline: Deadline) -> bool:
        """Read until ``pending`` is done; False when time is up (in all: a byte now and then buys none)."""
        while not pending.done:
            if self._read_frame() or self.closed:
                continue
            if deadline.expired or not self._transport.wait(self._transport.read_waits_for, deadline):
                return False
        return True

    def _read_frame(self) -> bool:
        """Complete the next `Pending` if its whole frame is there; False if not, or if the connection died of
        it.
        """
        try:
            frame = self._frames.read()
            if frame is None:
                return False
            correlation_id, response = self._session.receive(frame)
        except KafkaError as error:
            self._die(error)
            return False
        with self._turn:
            if not self._in_flight:  # died meanwhile
                return False
            pending = self._in_flight.popleft()
        if pending.correlation_id != correlation_id:
            raise AssertionError("the session and the connection disagree on what is in flight")
        throttle_ms = min(getattr(response, "throttle_time_ms", 0), MOST_MUTED_MS)
        if throttle_ms > 0:
            self._muted_until = time.monotonic() + throttle_ms / 1000
        pending.complete(response, frame)
        if self._waiters:
            with self._turn:
                self._turn.notify_all()
        return True

    def _raise_if_dead(self) -> None:
        if self._death is not None:
            raise _fresh(self._death)

    def _die(self, error: KafkaError) -> None:
        with self._turn:
            if self._death is not None:
                return
            self._death = error
            left = list(self._in_flight)
            self._in_flight.clear()
        self._transport.close()
        for waiter, pending in enumerate(left):
            pending.fail(_told_to(waiter, error, self.address))
        with self._turn:
            self._turn.notify_all()


def _fresh(error: KafkaError) -> KafkaError:
    """The same exception as an object of its own: a traceback is nobody else's."""
    fresh = type(error)(*error.args)
    fresh.__cause__ = error.__cause__
    return fresh


def _told_to(waiter: int, error: KafkaError, address: str) -> KafkaError:
    """What the ``waiter``-th in line is told: the first one's answer broke the stream, the others lost a
    connection.
    """
    if waiter == 0 or isinstance(error, NetworkError):
        return _fresh(error)
    return NetworkError(
        f"{address}: the connection was closed, as an earlier response on it was bad: {error}"
    )
