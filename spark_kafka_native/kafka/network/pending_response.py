"""`PendingResponse`: a request in flight. `wait_for_any` waits for any of several, without a thread
for each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from ..errors import KafkaError, NetworkError
from ..protocol.message import Response
from ..runtime.deadline import Deadline, Wakeup
from .frames import FrameBuffers
from .transport import READ, wait_for_streams

R = TypeVar("R", bound=Response)


class Carrier(Protocol):
    """The part of a connection that a `PendingResponse` needs."""

    request_timeout_ms: int

    @property
    def buffers(self) -> FrameBuffers:
        """The memory of large responses."""

    @property
    def closed(self) -> bool:
        """True if the connection is dead."""

    @property
    def waits_for(self) -> int:
        """The events that `poll` needs: READ, WRITE or both."""

    def fileno(self) -> int:
        """The socket's file descriptor."""

    def poll(self) -> None:
        """Write and read without waiting."""

    def wait_for(self, pending: PendingResponse[Any], deadline: Deadline) -> bool:
        """Read until ``pending`` is done; False if ``deadline`` passed first."""

    def give_up(
        self, pending: PendingResponse[Any], waited_ms: float, *, is_overdue: bool | None = None
    ) -> None:
        """Close the connection because ``pending`` has no response, or abandon it."""


class PendingResponse(Generic[R]):
    """A request in flight on ``connection``. A thread that waits for it also reads the responses of other
    threads.
    """

    __slots__ = (
        "_error",
        "_frame",
        "_response",
        "abandoned",
        "api",
        "api_version",
        "connection",
        "correlation_id",
        "done",
        "overdue_at",
        "sent_at",
        "what",
    )

    def __init__(
        self, connection: Carrier, correlation_id: int, what: str, api_version: int, api: str = ""
    ) -> None:
        self.connection = connection
        self.correlation_id = correlation_id
        self.what = what
        self.api_version = api_version
        """The version of the request and of its response."""
        self.api = api
        """The request's name."""
        self.sent_at = time.monotonic()
        self.overdue_at = self.sent_at + connection.request_timeout_ms / 1000
        """When nothing waits for the response any more: later for a `result` with another time limit."""
        self.done = False
        self.abandoned = False
        self._response: R | None = None
        self._error: KafkaError | None = None
        self._frame: memoryview | None = None

    def result(self, timeout_ms: float | None = None, deadline: Deadline | None = None) -> R:
        """Wait for the response, at most until ``deadline``.

        ``timeout_ms`` (None: the connection's request timeout) starts at this call: the broker is not blamed
        for the time that the caller was busy elsewhere. Raises `RequestTimedOutError` after closing the
        connection (with less time than the request timeout only if no other request is waited for on it), or
        the error that ended the connection. Returns None for a request without a response (produce with
        acks=0).
        """
        if not self.done:
            limit_ms = self.connection.request_timeout_ms if timeout_ms is None else timeout_ms
            if deadline is not None:
                limit_ms = min(limit_ms, deadline.remaining_ms)
            self.overdue_at = max(self.overdue_at, time.monotonic() + limit_ms / 1000)
            limit = Deadline.after_ms(limit_ms) if deadline is None else deadline.within_ms(limit_ms)
            if not self.connection.wait_for(self, limit):
                self._give_up(limit, limit_ms)
        if self._error is not None:
            raise self._error
        return cast("R", self._response)

    def _give_up(self, limit: Deadline, limit_ms: float) -> None:
        if limit.cancelled:  # the broker is not to blame, and other threads may use the connection
            self.abandon()
            raise NetworkError(f"{self.what}: nobody waits for the answer any more")
        has_had_less = limit_ms < self.connection.request_timeout_ms
        self.connection.give_up(self, limit_ms, is_overdue=False if has_had_less else None)

    def release(self) -> None:
        """Let the connection overwrite the response's memory; its record sets must not be read afterwards."""
        frame, self._frame = self._frame, None
        self._response = None
        if frame is not None:
            self.connection.buffers.give_back(frame)

    def abandon(self) -> None:
        """Drop the response; its memory is reused as soon as it arrives."""
        self.abandoned = True
        if self.done:
            self.release()

    def complete(self, response: Any, frame: memoryview | None) -> None:
        """Called by the connection with the response."""
        self._response = response
        self._frame = frame
        self.done = True
        if self.abandoned:
            self.release()

    def fail(self, error: KafkaError) -> None:
        """Called by the connection if there will be no response; ``error`` is an object of this request's
        own.
        """
        self._error = error
        self.done = True


def wait_for_any(
    pendings: Sequence[PendingResponse[Any]], deadline: Deadline, wakeup: Wakeup | None = None
) -> list[PendingResponse[Any]]:
    """The ``pendings`` that are done (answered or failed): at least one, unless ``deadline`` passes first or
    ``wakeup`` is set.

    Without ``pendings`` it waits for ``deadline``. It closes nothing at the deadline: the caller knows how
    long it has waited for which request. With a ``wakeup`` no other thread may use the connections: a
    response that another thread reads does not end this wait.
    """
    if len(pendings) == 1 and wakeup is None:
        return [pendings[0]] if pendings[0].connection.wait_for(pendings[0], deadline) else []
    connections = {id(pending.connection): pending.connection for pending in pendings}
    while True:
        for connection in connections.values():
            connection.poll()
        done = [pending for pending in pendings if pending.done]
        if done or deadline.expired or (wakeup is not None and wakeup.is_set):
            return done
        streams = [(c.fileno(), c.waits_for) for c in connections.values() if not c.closed]
        if streams or not pendings:
            also = [] if wakeup is None else [(wakeup.fileno(), READ)]
            wait_for_streams([*streams, *also], deadline)
