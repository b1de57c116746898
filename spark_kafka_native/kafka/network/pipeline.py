"""`RequestPipeline`: pipelined requests over one transport, answered in order, for any number of threads.

There is no reader thread. A thread that waits for a response takes the role of the reader, and completes the
requests of other threads on the way; a single-threaded caller pays for no thread switch. A pipeline dies
once, and every thread that waits on it gets the reason. The agreed API versions and the authentication belong
to `Connection`.

An interrupt (Ctrl-C, or an exception of a signal handler) may end any call in the main thread. Each call that
reads or writes therefore puts an object of its own into `_reader` or `_writer`: at its end it can tell
whether it had the role, and gives it up by assignment. CPython raises interrupts at calls, never between
plain assignments. An interrupt during reading or writing closes the connection: the position within a frame
is then unknown.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

from ..errors import KafkaError, NetworkError, ProtocolError, RequestTimedOutError, own_copy, to_keep
from ..observe import catalogue as metric
from ..observe.metrics import MetricsRegistry, error_tag
from ..protocol.framing import PREFIX_BYTES, Framing
from ..protocol.message import Request, Response
from ..runtime.deadline import Deadline
from ..runtime.log_throttle import LogThrottle
from ..runtime.waiting import LocklessCondition, is_held
from .frames import FrameBuffers, FrameReader
from .pending_response import PendingResponse
from .transport import READ, WRITE, Buffer, Transport

R = TypeVar("R", bound=Response)
_LOG = logging.getLogger("spark_kafka_native.network")
_THROTTLED_LOG = LogThrottle(_LOG)

READER_LOOK_MS = 50
"""How soon a writer that waits while another thread reads finds that it does so no more."""
UNUSED_MS = 1_000
"""A new connection is not idle before, even with a lower ``connections.max.idle.ms``: it would be closed
before its first request."""
MAX_MUTED_MS = 60_000
"""The maximum throttle time that is respected: a corrupt or hostile broker must not mute this client for
days."""


class _Role:
    """A call that reads or writes, or waits to."""

    __slots__ = ("thread_id",)

    def __init__(self) -> None:
        self.thread_id = threading.get_ident()


class RequestPipeline:
    """Pipelined requests over one transport. Any thread may write requests and wait for responses."""

    def __init__(self, transport: Transport, framing: Framing, request_timeout_ms: int) -> None:
        self._transport = transport
        self._framing = framing
        self._frames = FrameReader(transport, framing.frame_length)
        self._in_flight: deque[PendingResponse[Any]] = deque()
        self._unwritten = WriteQueue(transport)
        # Guards the three attributes below, `_in_flight` and `_unwritten`. Re-entrant: a signal handler may
        # close the client.
        self.lock = threading.RLock()
        self._reader: _Role | None = None
        self._writer: _Role | None = None
        self._death: KafkaError | None = None
        self._left: list[PendingResponse[Any]] = []
        """The requests without a response when the connection died."""
        self._waiting_to_read = LocklessCondition()
        """The threads that wait for a response, which another one may read."""
        self._waiting_to_write = LocklessCondition()
        self._throttle = Throttle(transport.address)
        self.opened_at = self._used_at = self.answered_at = time.monotonic()
        """When it was made, when a request was sent last, and when a response came last."""
        self.request_timeout_ms = request_timeout_ms
        self._served = False
        """True if any request after the handshake was answered."""
        self.metrics: MetricsRegistry | None = None
        """Where to count; set by `Brokers` after the handshake."""

    def __repr__(self) -> str:
        state = f"{self.in_flight} in flight" if self._death is None else f"closed ({self._death})"
        return f"<{type(self).__name__} to {self.address}: {state}>"

    @property
    def address(self) -> str:
        """``host:port`` as given to `Transport.connect`."""
        return self._transport.address

    @property
    def buffers(self) -> FrameBuffers:
        """The memory of large responses."""
        return self._frames.buffers

    @property
    def closed(self) -> bool:
        """True if the connection is dead; it never recovers."""
        return self._death is not None

    @property
    def in_flight(self) -> int:
        """The number of requests sent and not answered."""
        return len(self._in_flight)

    @property
    def muted_ms(self) -> float:
        """Milliseconds for which the broker asked this client to send nothing (KIP-219)."""
        return self._throttle.muted_ms

    @property
    def waits_for(self) -> int:
        """The events that `poll` needs: READ, and WRITE while bytes are unwritten (TLS may swap them)."""
        writing = self._transport.write_waits_for if self._unwritten else 0
        return self._transport.read_waits_for | writing

    @property
    def has_unwritten(self) -> bool:
        """True if bytes of a posted request wait for room in the socket: post nothing more meanwhile."""
        return bool(self._unwritten)

    def fileno(self) -> int:
        """The socket's file descriptor, for a caller that waits on several."""
        return self._transport.fileno()

    def begin_service(self, max_frame_length: int) -> None:
        """Called once the handshake is done: responses may now have ``max_frame_length``."""
        self._framing.max_frame_length = max_frame_length
        self._served = False

    def submit(
        self, request: Request[R], version: int, deadline: Deadline | None = None
    ) -> PendingResponse[R]:
        """Write ``request`` now and return without waiting for its response. Waits only while the broker
        mutes this client, and not at all if that would last beyond ``deadline``, and for room in the socket;
        bytes without room until ``deadline`` are written later, as after `post`.

        Raises the error that ended the connection, or `NetworkError` (muted for too long), if nothing was
        written. Once a byte may have been sent, the error is in the `PendingResponse` instead: only then may
        the broker have applied the request.
        """
        self._wait_until_welcome(deadline)
        pending = self._enqueue(request, version)
        self._write_all(deadline)
        return pending

    def post(self, request: Request[R], version: int) -> PendingResponse[R]:
        """As `submit`, but never waits: later calls of `poll` write what the system does not take now.

        For one thread that serves several connections: it waits for their `waits_for`, and posts nothing more
        while a connection `has_unwritten` bytes (that limits them) or its broker mutes this client.
        """
        pending = self._enqueue(request, version)
        self._push()
        return pending

    def wait_for(self, pending: PendingResponse[Any], deadline: Deadline) -> bool:
        """Read until ``pending`` is done; False if ``deadline`` passed first."""
        # The requests of a dead connection are done, or are about to be.
        self._read(
            lambda me: self._waiting_to_read.wait_for(
                lambda: pending.done or self._become_reader(me), deadline, awaited=pending
            ),
            lambda: self._read_until(pending, deadline),
        )
        return pending.done

    def give_up(
        self, pending: PendingResponse[Any], waited_ms: float, *, is_overdue: bool | None = None
    ) -> None:
        """Close the connection because ``pending`` has no response: a late one must match nothing. Unless
        another thread has just read it.

        If it is not overdue (None: by the time since it was sent, and since the last answer, behind which it
        waited), and other requests are waited for, the connection stays: they would be cut and sent again,
        and without idempotence written twice. ``pending`` is abandoned then; raises `RequestTimedOutError`.
        """
        message = f"{pending.what}: no answer in {waited_ms:.0f} ms"
        closed, is_first = RequestTimedOutError(f"{message}; the connection was closed"), None
        with self.lock:  # else a request that another thread submits meanwhile is cut
            if pending.done:
                return
            if is_overdue is None:
                is_overdue = self._overdue_in_s([pending]) <= 0
            others = (*self._in_flight, *self._unwritten.unanswered())
            if is_overdue or all(one is pending or one.abandoned for one in others):
                is_first = self._mark_dead(closed)
            else:
                pending.abandon()
        if is_first is not None:  # at once, as others wait; without the lock, as a log handler may use this
            self._bury(closed, is_first=is_first)
        if self.metrics is not None:
            self.metrics.count(metric.TIMEOUTS, 1, pending.api)
        if is_first is None:
            raise RequestTimedOutError(message)
        if not pending.done:  # a request of the parent, in a process that was forked from it
            pending.fail(own_copy(closed))

    def poll(self) -> None:
        """Write and read without waiting; complete each `PendingResponse` for which a response has
        arrived."""
        self._push()
        self._read(self._become_reader, self._read_arrived)

    def poll_idle(self, max_idle_ms: float) -> None:
        """Unless requests are in flight, find out if the broker has closed the connection, and close it if it
        was idle for longer than ``max_idle_ms`` (-1: for any time).
        """
        if self._in_flight or self.closed:
            return
        if max_idle_ms >= 0 and not self._served:
            max_idle_ms = max(max_idle_ms, UNUSED_MS)
        if 0 <= max_idle_ms < (time.monotonic() - self._used_at) * 1000:
            self.close()
        else:
            self.poll()

    @property
    def is_silent(self) -> bool:
        """True if the first request in flight is abandoned and overdue: no thread waits for it, and would
        find that the broker is silent, but all others wait behind it.
        """
        if not self._first_is_overdue():
            return False
        # Not before: what threads wait for, they read by themselves.
        self.read_arrived()
        return self._first_is_overdue()

    @property
    def has_stale(self) -> bool:
        """True if an abandoned request is overdue and not written yet: it may have been done on another
        connection since."""
        with self.lock:
            waiting = self._unwritten.waiting()
        return any(one.abandoned and one.overdue_at <= time.monotonic() for one in waiting)

    def read_arrived(self) -> None:
        """As `poll`, but write nothing."""
        self._read(self._become_reader, self._read_arrived)

    def _first_is_overdue(self) -> bool:
        with self.lock:
            first = self._in_flight[0] if self._in_flight else None
        return first is not None and first.abandoned and self._overdue_in_s([first]) <= 0

    def _overdue_in_s(self, pendings: Collection[PendingResponse[Any]]) -> float:
        """The seconds after which all ``pendings`` are overdue. Each may have waited behind the one that was
        answered last.
        """
        overdue_at = max((pending.overdue_at for pending in pendings), default=math.inf)
        overdue_at = max(overdue_at, self.answered_at + self.request_timeout_ms / 1000)
        return overdue_at - time.monotonic()

    def drain(self, deadline: Deadline) -> PendingResponse[Any] | None:
        """Write everything and wait for the responses in flight. Returns a missing one at ``deadline``."""
        self._write_all(deadline)
        while (last := self._last_unfinished()) is not None:
            if not self.wait_for(last, deadline):
                return last
        return None

    def close(self) -> None:
        """Close the socket; waiting threads get a `NetworkError`."""
        self._die(NetworkError(f"{self.address}: the connection was closed by this client"), expected=True)

    @property
    def in_use_here(self) -> bool:
        """True if this thread is in the middle of using the connection. Only a signal handler can see that,
        and no other thread can read or write until the handler returns.
        """
        uses, here = (self._reader, self._writer), threading.get_ident()
        return is_held(self.lock) or any(use is not None and use.thread_id == here for use in uses)

    def forget(self) -> None:
        """Drop a connection inherited over a fork without sending anything: the parent still uses it.

        Takes no lock: a thread of the parent may have held it at the moment of the fork.
        """
        self._death = NetworkError(f"{self.address}: the connection belongs to the parent process")
        self._transport.forget()

    def _last_unfinished(self) -> PendingResponse[Any] | None:
        with self.lock:
            left = [*self._in_flight, *self._unwritten.unanswered()]
            return left[-1] if left else None

    def _wait_until_welcome(self, deadline: Deadline | None) -> None:
        """Wait while the broker mutes this client, or until the connection is closed."""
        while not self.closed and (muted_ms := self._throttle.muted_within(deadline)) > 0:
            until = Deadline.after_ms(muted_ms) if deadline is None else deadline.within_ms(muted_ms)
            self._waiting_to_write.wait_for(lambda: self.closed, until)

    def _enqueue(self, request: Request[R], version: int) -> PendingResponse[R]:
        try:
            with self.lock:
                self._raise_if_unusable()
                correlation_id, buffers = self._framing.send(request, version)
                api = request.api_name()
                what = f"{api} v{version} to {self.address}"
                pending: PendingResponse[R] = PendingResponse(self, correlation_id, what, version, api)
                if request.answered:
                    self._in_flight.append(pending)
                self._unwritten.add(buffers, pending, request.answered)
                if self._death is not None:  # a signal handler has closed it meanwhile
                    raise own_copy(self._death)
            if self.metrics is not None:
                self.metrics.count(metric.REQUESTS, 1, api)
                self.metrics.count(metric.BYTES_SENT, sum(map(len, buffers)), api)
        except Exception:
            raise
        except BaseException as error:
            # Else a thread could wait for the response to a request that was never sent.
            self._die_of_interrupt(error)
            raise
        self._used_at = pending.sent_at
        return pending

    def _push(self) -> None:
        """Write what the socket takes; nothing if another thread is writing."""
        if self._unwritten:
            self._write(self._become_writer, self._unwritten.push)

    def _write_all(self, deadline: Deadline | None) -> None:
        """Write everything, as the only writer; if that is not possible in the request timeout, the
        connection dies. At ``deadline`` the rest stays where it is.
        """
        dead = Deadline.after_ms(self.request_timeout_ms)
        limit = dead if deadline is None else deadline.within_ms(self.request_timeout_ms)

        def write() -> None:
            while not self._unwritten.push():
                if limit.expired and not dead.expired:
                    return
                self._wait_to_write(limit, dead)

        # The current writer may have an earlier deadline, and leave the rest. Or a signal handler interrupted
        # it that closed the connection and may itself be waiting for this thread.
        def take_role(me: _Role) -> bool:
            self._waiting_to_write.wait_for(
                lambda: self._become_writer(me) or self._death is not None, deadline
            )
            return self._writer is me

        self._write(take_role, write)

    def _write(self, take_role: Callable[[_Role], bool], write: Callable[[], object]) -> None:
        me = _Role()
        try:
            if take_role(me):
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
                self._waiting_to_write.notify_all()
                self._close_if_dead_and_unused()
                self._say_throttle()

    def _read(self, take_role: Callable[[_Role], bool], read: Callable[[], object]) -> None:
        me = _Role()
        try:
            if take_role(me):
                read()
        except BaseException as error:
            if self._reader is me:
                self._die_of_interrupt(error)
            raise
        finally:
            mine = self._reader is me
            if mine:
                self._reader = None
            # Also without the role: this thread may have been notified to take it, and found its response
            # complete. The last one that waits reads for all that wait longer, until the role changes again.
            if self._reader is None:
                self._waiting_to_read.notify_last()
            if mine:
                self._close_if_dead_and_unused()
                self._say_throttle()

    def _say_throttle(self) -> None:
        """Not where this thread still reads or writes: a log handler may use this client."""
        if not self.in_use_here:
            self._throttle.say()

    def _read_arrived(self) -> None:
        while self._read_frame():
            pass

    def _wait_to_write(self, limit: Deadline, dead: Deadline) -> None:
        # A broker that cannot send its responses reads no requests: read while waiting to write, from the
        # moment on at which no other thread does.
        reads = self._reader is None
        waits_for = self._transport.write_waits_for | (READ if reads else 0)
        until = limit if reads else limit.within_ms(READER_LOOK_MS)
        ready = 0 if dead.expired else self._transport.wait(waits_for, until)
        if not ready and dead.expired:
            raise RequestTimedOutError(
                f"{self.address}: nothing could be written for {self.request_timeout_ms} ms"
            )
        if ready & READ and not ready & WRITE:
            self.poll()

    def _die_of_interrupt(self, error: BaseException) -> None:
        """Close the connection: an unknown part of a request was written, so no other request may
        follow it.
        """
        self._die(
            NetworkError(f"{self.address}: the connection was closed, as writing to it ended in {error!r}")
        )

    def _close_if_dead_and_unused(self) -> None:
        """Close the socket of a dead connection unless a thread uses it: no thread may poll a closed
        descriptor, because another connection may get its number.
        """
        if self._death is None:
            return
        with self.lock:
            unused = self._reader is None and self._writer is None
        if unused:
            self._transport.close()

    def _become_reader(self, me: _Role) -> bool:
        """Become the reader if there is none."""
        with self.lock:
            if self._reader is None and self._death is None:
                self._reader = me
            return self._reader is me

    def _become_writer(self, me: _Role) -> bool:
        """Become the writer if there is none."""
        with self.lock:
            if self._writer is None:
                self._writer = me
            return self._writer is me

    def _read_until(self, pending: PendingResponse[Any], deadline: Deadline) -> None:
        """Read until ``pending`` is done or the deadline passes (a total: single bytes that arrive do not
        extend it).
        """
        while not pending.done:
            if self._read_frame() or self.closed:
                continue
            self._push()
            if deadline.expired or not self._transport.wait(self.waits_for, deadline):
                return

    def _read_frame(self) -> bool:
        """Complete the next `PendingResponse` if its whole frame has arrived; False if not, or if the
        connection died of it.
        """
        try:
            frame = self._frames.read()
            if frame is None:
                return False
            correlation_id, response = self._framing.receive(frame)
        except KafkaError as error:
            self._die(self._explained(error))
            return False
        throttle_time_ms = getattr(response, "throttle_time_ms", 0)
        self._throttle.learn(throttle_time_ms)
        self._served = True
        self.answered_at = time.monotonic()
        size = len(frame) + PREFIX_BYTES
        with self.lock:
            if not self._in_flight:  # the connection died meanwhile
                return False
            pending = self._in_flight[0]
            if pending.correlation_id != correlation_id:
                raise AssertionError("framing and connection disagree on what is in flight")
            # In flight until it is complete: a signal handler or an interrupt may close the connection in
            # between, and has to find it.
            pending.complete(response, frame)
            if self._in_flight and self._in_flight[0] is pending:
                self._in_flight.popleft()
        self._waiting_to_read.notify(pending)
        self._note_response(pending, size, throttle_time_ms)
        return True

    def _note_response(self, pending: PendingResponse[Any], size: int, throttle_time_ms: int) -> None:
        if (metrics := self.metrics) is None:
            return
        metrics.count(metric.BYTES_RECEIVED, size, pending.api)
        metrics.measure(metric.REQUEST_DURATION, time.monotonic() - pending.sent_at, pending.api)
        if throttle_time_ms > 0:
            metrics.measure(metric.THROTTLE_DURATION, throttle_time_ms / 1000)

    def _notify_all(self) -> None:
        self._waiting_to_read.notify_all()
        self._waiting_to_write.notify_all()

    def _raise_if_unusable(self) -> None:
        """Called with the lock held."""
        if self._death is not None:
            # A bad response was that of another request; a refused login concerns this one as well.
            waiter = 1 if isinstance(self._death, ProtocolError) else 0
            raise error_for(waiter, self._death, self.address)

    def _explained(self, error: KafkaError) -> KafkaError:
        return error if self._served or not self._in_flight else self._explain_hang_up(error)

    def _explain_hang_up(self, error: KafkaError) -> KafkaError:
        """``error`` of the first request after the handshake; `Connection` adds its likely cause."""
        return error

    def _die(self, error: KafkaError, *, expected: bool = False) -> None:
        with self.lock:
            is_first = self._mark_dead(error)
        self._bury(error, is_first=is_first, expected=expected)

    def _mark_dead(self, error: KafkaError) -> bool:
        """Called with the lock held; `_bury` follows. True for the first error."""
        death = to_keep(error)
        # No call between the look at `_death` and the assignments: a signal handler, which may close the
        # connection, runs within calls.
        left = [pending for pending in (*self._in_flight, *self._unwritten.unanswered()) if not pending.done]
        is_first = self._death is None
        if is_first:
            self._death = death
            self._left = left
        self._in_flight.clear()
        self._unwritten.clear()
        return is_first

    def _bury(self, error: KafkaError, *, is_first: bool, expected: bool = False) -> None:
        reason, left = error if is_first else self._death or error, self._left
        # All of this once more at a later call: the first one may have been interrupted anywhere.
        self._transport.shut()
        self._close_if_dead_and_unused()
        self._notify_all()
        for waiter, pending in enumerate(left):
            if not pending.done:
                pending.fail(error_for(waiter, reason, self.address))
        # They refer to the connection: with its buffers it would stay until a garbage collection.
        self._left = []
        self._notify_all()
        if not is_first:
            return
        if not expected and self.metrics is not None:
            self.metrics.count(metric.DISCONNECTS, 1, error_tag(error))
        log_end(self.address, len(left), error, expected=expected)


class WriteQueue:
    """Requests that are not completely written yet, in order. The caller limits them: nothing is posted to a
    full socket.

    Only the writer calls `push`; the others need the connection's lock. Each request is
    passed to TLS on its own: a retried TLS write must offer the same bytes.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._left: deque[tuple[list[memoryview], PendingResponse[Any], bool]] = deque()

    def __bool__(self) -> bool:
        """True if bytes are unwritten."""
        return bool(self._left)

    def add(self, buffers: Sequence[Buffer], pending: PendingResponse[Any], answered: bool) -> None:
        """Append a request; one that is not ``answered`` is complete once it is written."""
        self._left.append(([memoryview(buffer) for buffer in buffers], pending, answered))

    def push(self) -> bool:
        """Write what the socket takes; True if nothing is left. Raises the error that ended the stream."""
        left = self._left
        while left:
            buffers, pending, answered = left[0]
            if not self._transport.write(buffers):
                return False
            # Here until it is complete, as a response is in flight: a handler that closes has to find it.
            if not answered:
                pending.complete(None, None)
            left.popleft()
        return True

    def waiting(self) -> list[PendingResponse[Any]]:
        """The requests."""
        return [pending for _, pending, _ in list(self._left)]

    def unanswered(self) -> list[PendingResponse[Any]]:
        """The requests that are not in flight, as they get no response."""
        return [pending for _, pending, answered in list(self._left) if not answered]

    def clear(self) -> None:
        """Drop everything, because the stream is dead."""
        self._left = deque()


class Throttle:
    """The throttle time of one connection (KIP-219). Any thread may use it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._muted_until = 0.0
        self._unsaid_ms = 0

    @property
    def muted_ms(self) -> float:
        """Milliseconds for which the broker asked this client to send nothing."""
        return max(0.0, (self._muted_until - time.monotonic()) * 1000)

    def learn(self, throttle_time_ms: int) -> None:
        """Take the throttle time of a response; a shorter one, or 0, does not cancel an earlier one."""
        if throttle_time_ms > 0:
            muted_until = time.monotonic() + min(throttle_time_ms, MAX_MUTED_MS) / 1000
            self._muted_until = max(self._muted_until, muted_until)
            self._unsaid_ms = throttle_time_ms

    def say(self) -> None:
        """Log the throttle time that was learned last, if that was not done before."""
        throttle_time_ms, self._unsaid_ms = self._unsaid_ms, 0
        if throttle_time_ms:
            _THROTTLED_LOG.info(
                ("throttled", self._address),  # apart from the end of the same connection
                "%s: throttled for %d ms, as a quota is exceeded",
                self._address,
                throttle_time_ms,
            )

    def muted_within(self, deadline: Deadline | None) -> float:
        """`muted_ms`. Raises `NetworkError` if it lasts beyond ``deadline``: no use to wait for it."""
        muted_ms = self.muted_ms if self._muted_until else 0.0
        if muted_ms > 0 and deadline is not None and muted_ms >= deadline.remaining_ms:
            raise NetworkError(
                f"{self._address}: the broker enforces a quota and wants no request for "
                f"{muted_ms:.0f} ms, which is longer than this one may wait"
            )
        return muted_ms


def error_for(waiter: int, error: KafkaError, address: str) -> KafkaError:
    """The error of the ``waiter``-th request in flight when the connection died of ``error``: the first one's
    response broke the stream, the others lost their connection.
    """
    if waiter == 0 or isinstance(error, NetworkError):
        return own_copy(error)
    return NetworkError(
        f"{address}: the connection was closed, as an earlier response on it was bad: {error}"
    )


def log_end(address: str, in_flight: int, error: KafkaError, *, expected: bool) -> None:
    """Log the end of a connection: at DEBUG if this client closed it, else throttled at INFO."""
    say = _LOG.debug if expected else partial(_THROTTLED_LOG.info, address)
    say("%s: disconnected, %d requests in flight: %s", address, in_flight, error)
