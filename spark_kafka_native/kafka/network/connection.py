"""`Connection`: one broker at the other end of one socket; pipelined requests, responses in the same order.

There is no reader thread: whoever waits for a response takes its turn at reading and completes the requests
of others on the way, so a single-threaded caller pays for no thread switch. A connection dies once, and
everybody who waits on it gets the reason.

An interrupt (Ctrl-C) may end any call of the main thread between any two steps. Whoever reads or writes has a
token of its own in `_reader` or `_writer`, so that it can tell at its end whether it was its turn, and clears
it by assignment: CPython raises interrupts where something is called, never between plain assignments. One
that comes while it reads or writes is the connection's death: nobody knows where in a frame the stream is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from ..config import ClientConfig, split_address
from ..errors import KafkaError, NetworkError, RequestTimedOutError
from ..metrics import catalogue as metric
from ..metrics.error_tag import error_tag
from ..metrics.registry import MetricsRegistry
from ..protocol.frame import PREFIX_BYTES
from ..protocol.message import Request, Response
from ..protocol.session import Session
from ..protocol.versions import negotiate
from .connection_errors import error_for, explained_hang_up, log_end, own_copy
from .deadline import Deadline
from .frames import FrameBuffers, FrameReader
from .handshake import Negotiated, shake_hands
from .naps import Naps
from .pending import Pending
from .quota import Quota
from .session_lifetime import SessionLifetime
from .transport import READ, WRITE, Transport
from .write_queue import WriteQueue

R = TypeVar("R", bound=Response)
_LOG = logging.getLogger("spark_kafka_native.network")

HANDSHAKE_FRAME_BYTES = 64 * 1024
"""No handshake response is longer, whatever a stranger claims before it has proved to be the broker."""


class Connection:
    """A connection to one broker. Any thread may submit and wait."""

    def __init__(self, transport: Transport, config: ClientConfig) -> None:
        self._transport = transport
        self._config = config
        self._session = Session(
            config.client_id, max_frame_length=min(HANDSHAKE_FRAME_BYTES, config.max_response_bytes)
        )
        self.buffers = FrameBuffers()
        self._frames = FrameReader(transport, self._session.frame_length, self.buffers)
        self._in_flight: deque[Pending[Any]] = deque()
        self._unwritten = WriteQueue(transport)
        self._lock = threading.Lock()  # guards the four below, and what is in flight and unwritten
        self._reader: object | None = None
        self._writer: object | None = None
        self._retired = False
        self._death: KafkaError | None = None
        self._naps = Naps()
        self._quota = Quota(transport.address)
        self._used_at = time.monotonic()
        self.request_timeout_ms = config.request_timeout_ms
        self.negotiated = Negotiated(api_versions={})
        """What the handshake agreed on."""
        self._lifetime = SessionLifetime()
        self._served = False
        """Whether any request after the handshake was answered."""
        self.metrics: MetricsRegistry | None = None
        """Where to count; `Brokers` says so once the handshake is done."""

    @classmethod
    def open(
        cls,
        host: str,
        port: int | None = None,
        config: ClientConfig | None = None,
        deadline: Deadline | None = None,
    ) -> Connection:
        """Connect, encrypt and perform the handshake. Without ``port``, ``host`` is an address as
        ``host:port``; without ``config``, all settings are the defaults.

        Raises `NetworkError` (each address with its cause), `SecurityError`, `ProtocolError` (something that
        is no Kafka).
        """
        if port is None:
            host, port = split_address(host)
        config = config or ClientConfig(bootstrap_servers=(f"[{host}]:{port}",))
        limit = deadline or Deadline.after_ms(config.default_api_timeout_ms)
        connection = cls(Transport.connect(host, port, config, limit), config)
        try:
            connection._shake_hands(limit.within_ms(config.connection_setup_timeout_ms))
        except BaseException:
            connection.close()
            raise
        _LOG.debug("connected to %s", connection.address)
        return connection

    def __repr__(self) -> str:
        state = f"{self.in_flight} in flight" if self._death is None else f"closed ({self._death})"
        return f"<Connection to {self.address}: {state}>"

    def _shake_hands(self, deadline: Deadline) -> None:
        began = time.monotonic()
        self.negotiated = shake_hands(self, self._config, deadline)
        self._session.max_frame_length = self._config.max_response_bytes
        self._served = False
        self._lifetime = SessionLifetime.starting(began, self.negotiated.session_lifetime_ms)

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
        """Milliseconds for which the broker asked us to send nothing (KIP-219)."""
        return self._quota.muted_ms

    @property
    def waits_for(self) -> int:
        """What `poll` waits for: READ, and WRITE while something is to be written (TLS may swap them)."""
        writing = self._transport.write_waits_for if self._unwritten else 0
        return self._transport.read_waits_for | writing

    @property
    def has_unwritten(self) -> bool:
        """Whether bytes of a posted request wait for room in the socket: post nothing more meanwhile."""
        return bool(self._unwritten)

    @property
    def renewal_due(self) -> bool:
        """Whether the SASL session ends soon: `retire` this connection and open another (KIP-368)."""
        return self._lifetime.renewal_due

    def fileno(self) -> int:
        """The socket's file descriptor, for a caller that waits on several."""
        return self._transport.fileno()

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """By API key, the lowest and the highest version that this broker speaks."""
        return dict(self.negotiated.api_versions)

    def choose_api_version(
        self, api: type[Request[Any]] | int, min_version: int | None = None, max_version: int | None = None
    ) -> int:
        """The highest version of an API, a request class or an API key, within the bounds that this broker
        speaks. None stands for what this client knows. Raises `UnsupportedVersionError`.
        """
        return self.negotiated.choose(api, min_version, max_version)

    def version_of(self, request: type[Request[Any]], at_most: int | None = None) -> int:
        """The version that ``request`` is spoken in here. Raises `UnsupportedVersionError` with
        both ranges.
        """
        return negotiate(request, self.negotiated.api_versions, at_most=at_most)

    def send(
        self,
        request: Request[R],
        timeout_ms: float | None = None,
        deadline: Deadline | None = None,
        at_most: int | None = None,
    ) -> R:
        """Submit and wait for the response, which has ``timeout_ms`` (None: the request timeout) once the
        broker lets us ask; all of it ends by ``deadline``. ``at_most`` caps the version.
        """
        version = None if at_most is None else self.version_of(type(request), at_most)
        pending = self.submit(request, version, deadline)
        if deadline is None:
            return pending.result(timeout_ms)
        limit_ms = self.request_timeout_ms if timeout_ms is None else timeout_ms
        return pending.result(min(limit_ms, deadline.remaining_ms))

    def ask(self, request: Request[R], version: int, deadline: Deadline) -> R:
        """Submit in exactly that version and wait for the response: for a handshake, which knows no other
        versions yet.
        """
        return self.submit(request, version, deadline).result(deadline.remaining_ms)

    def submit(
        self, request: Request[R], version: int | None = None, deadline: Deadline | None = None
    ) -> Pending[R]:
        """Write ``request`` now and return without waiting for its response; waits only while the broker
        mutes us, and not at all if that goes on past ``deadline``.

        Raises what the connection died of, or `NetworkError` (muted for too long), when nothing was written;
        once a byte may be out, the failure is in the `Pending`: only there the broker may have applied the
        request.
        """
        self._quota.wait(deadline)
        pending = self._enqueue(request, version)
        self._write_all()
        return pending

    def post(self, request: Request[R], version: int | None = None) -> Pending[R]:
        """As `submit`, but never waits: what the system does not take now is written by later `poll`s.

        For one thread that serves several connections: it waits for their `waits_for`, and posts nothing more
        while one `has_unwritten` bytes (that bounds them) or its broker mutes us.
        """
        pending = self._enqueue(request, version)
        self._push()
        return pending

    def wait_for(self, pending: Pending[Any], deadline: Deadline) -> bool:
        """Read until ``pending`` is done; False when ``deadline`` came first."""
        me = object()
        try:
            # A dead connection's requests are done, or are about to be.
            if self._naps.wait(lambda: pending.done or self._may_read(me), deadline):
                self._read_until(pending, deadline)
        except BaseException as error:
            if self._reader is me:
                self._die_of_interrupt(error)
            raise
        finally:
            if self._reader is me:
                self._reader = None
                self._turn_passed()
        return pending.done

    def give_up(self, pending: Pending[Any], waited_ms: float) -> None:
        """Close the connection, as ``pending`` is overdue: its late answer must match nothing."""
        message = f"{pending.what}: no answer in {waited_ms:.0f} ms; the connection was closed"
        if self.metrics is not None:
            self.metrics.count(metric.TIMEOUTS, 1, pending.api)
        self._die(RequestTimedOutError(message))
        if not pending.done:  # whoever closed it was interrupted before it could say so
            pending.fail(RequestTimedOutError(message))

    def poll(self) -> None:
        """Write what there is room for and read what has arrived, without waiting; completes the `Pending`s
        that it answers.
        """
        self._push()
        me = object()
        try:
            if self._may_read(me):
                while self._read_frame():
                    pass
        except BaseException as error:
            if self._reader is me:
                self._die_of_interrupt(error)
            raise
        finally:
            if self._reader is me:
                self._reader = None
                self._turn_passed()

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

    def retire(self, deadline: Deadline) -> None:
        """Take no more requests, wait for the answers to those in flight, and close: nothing is lost or
        reordered.

        Raises `NetworkError` when answers are still due at ``deadline``; whoever waits for them goes on
        waiting.
        """
        with self._lock:
            self._retired = True
        self._write_all()
        while (last := self._last_in_flight()) is not None:
            if not self.wait_for(last, deadline):
                raise NetworkError(
                    f"{self.address}: the SASL session ends, but {last.what} is not answered yet"
                )
        self.close()

    def _last_in_flight(self) -> Pending[Any] | None:
        with self._lock:
            return self._in_flight[-1] if self._in_flight else None

    def close(self) -> None:
        """Close the socket; whoever waits gets a `NetworkError`."""
        self._die(NetworkError(f"{self.address}: the connection was closed by this client"), expected=True)

    def forget(self) -> None:
        """Drop a connection inherited over a fork without a word on the wire: the parent still uses it.

        Takes no lock: a thread of the parent may have held it at the moment of the fork.
        """
        self._death = NetworkError(f"{self.address}: the connection belongs to the parent process")
        self._transport.forget()

    def _enqueue(self, request: Request[R], version: int | None) -> Pending[R]:
        version = self.version_of(type(request)) if version is None else version
        try:
            with self._lock:
                self._raise_if_dead()
                correlation_id, buffers = self._session.send(request, version)
                api = request.api_name()
                what = f"{api} v{version} to {self.address}"
                pending: Pending[R] = Pending(self, correlation_id, what, version, api)
                if request.answered:
                    self._in_flight.append(pending)
                self._unwritten.add(buffers, pending, request.answered)
            if self.metrics is not None:
                self.metrics.count(metric.REQUESTS, 1, api)
                self.metrics.count(metric.BYTES_SENT, sum(map(len, buffers)), api)
        except Exception:
            raise
        except BaseException as error:  # an answer would be waited for that nobody was asked for
            self._die_of_interrupt(error)
            raise
        self._used_at = pending.sent_at
        return pending

    def _push(self) -> None:
        """Write what there is room for; nothing where another thread is writing."""
        if self._unwritten:
            self._write(self._may_write, self._unwritten.push)

    def _write_all(self) -> None:
        """Write everything, in this thread's turn; the connection dies of it where that can't be done."""
        deadline = Deadline.after_ms(self.request_timeout_ms)

        def write() -> None:
            while not self._unwritten.push():
                self._wait_to_write(deadline)

        # Whoever writes has a deadline of its own, and goes before this one does.
        self._write(lambda me: self._naps.wait(lambda: self._may_write(me), None), write)

    def _write(self, take_turn: Callable[[object], bool], write: Callable[[], object]) -> None:
        me = object()
        try:
            if take_turn(me):
                write()
        except KafkaError as error:
            self._die(error)
        except BaseException as error:
            if self._writer is me:
                self._die_of_interrupt(error)
            raise
        finally:
            if self._writer is me:
                self._writer = None
                self._turn_passed()

    def _wait_to_write(self, deadline: Deadline) -> None:
        # A broker that can't get rid of its responses reads no requests: read while waiting to write.
        also = 0 if self._reader is not None else READ
        waits_for = self._transport.write_waits_for | also
        ready = 0 if deadline.expired else self._transport.wait(waits_for, deadline)
        if not ready:
            raise RequestTimedOutError(
                f"{self.address}: nothing could be written for {self.request_timeout_ms} ms"
            )
        if ready & READ and not ready & WRITE:
            self.poll()

    def _die_of_interrupt(self, error: BaseException) -> None:
        """Nobody knows how much of a request was written: another must not follow it."""
        self._die(
            NetworkError(f"{self.address}: the connection was closed, as writing to it ended in {error!r}")
        )

    def _turn_passed(self) -> None:
        self._naps.wake()
        if self._death is not None:
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        """Nobody may wait for a descriptor that is closed already: its number may be another connection's by
        then."""
        with self._lock:
            unused = self._reader is None and self._writer is None
        if unused:
            self._transport.close()

    def _may_read(self, me: object) -> bool:
        """Become the one who reads, if nobody does."""
        with self._lock:
            if self._reader is None and self._death is None:
                self._reader = me
            return self._reader is me

    def _may_write(self, me: object) -> bool:
        """Become the one who writes, if nobody does."""
        with self._lock:
            if self._writer is None:
                self._writer = me
            return self._writer is me

    def _read_until(self, pending: Pending[Any], deadline: Deadline) -> None:
        """Read until ``pending`` is done or time is up (in all: a byte now and then buys none)."""
        while not pending.done:
            if self._read_frame() or self.closed:
                continue
            self._push()
            if deadline.expired or not self._transport.wait(self.waits_for, deadline):
                return

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
            self._die(self._explained(error))
            return False
        with self._lock:
            if not self._in_flight:  # died meanwhile
                return False
            pending = self._in_flight.popleft()
        if pending.correlation_id != correlation_id:
            raise AssertionError("the session and the connection disagree on what is in flight")
        throttle_time_ms = getattr(response, "throttle_time_ms", 0)
        self._quota.learn(throttle_time_ms)
        self._served = True
        size = len(frame) + PREFIX_BYTES
        pending.complete(response, frame)
        self._naps.wake()
        self._note_answer(pending, size, throttle_time_ms)
        return True

    def _note_answer(self, pending: Pending[Any], size: int, throttle_time_ms: int) -> None:
        if (metrics := self.metrics) is None:
            return
        metrics.count(metric.BYTES_RECEIVED, size, pending.api)
        metrics.measure(metric.REQUEST_DURATION, time.monotonic() - pending.sent_at, pending.api)
        if throttle_time_ms > 0:
            metrics.measure(metric.THROTTLE_DURATION, throttle_time_ms / 1000)

    def _raise_if_dead(self) -> None:
        if self._death is not None:
            raise own_copy(self._death)
        if self._retired or self._lifetime.expired:
            raise NetworkError(
                f"{self.address}: the SASL session of this connection ends; another one takes over"
            )

    def _explained(self, error: KafkaError) -> KafkaError:
        served = self._served or not self._in_flight or not self.negotiated.api_versions
        return error if served else explained_hang_up(error, self._config.security)

    def _die(self, error: KafkaError, *, expected: bool = False) -> None:
        with self._lock:
            if self._death is not None:
                return
            self._death = error
            left = [*self._in_flight, *self._unwritten.take_unanswered()]
            self._in_flight.clear()
        self._transport.shut()
        self._close_if_unused()
        for waiter, pending in enumerate(left):
            pending.fail(error_for(waiter, error, self.address))
        self._naps.wake()
        if not expected and self.metrics is not None:
            self.metrics.count(metric.DISCONNECTS, 1, error_tag(error))
        log_end(self.address, len(left), error, expected=expected)
