"""Events: a client emits them to an `EventSource`, and each subscriber reads them from an `EventStream`.

A stream holds a bounded window of events, so that a slow subscriber loses events and never delays the client.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any, Generic, Protocol, Self, TypeVar

from ..runtime.deadline import Deadline
from ..runtime.fork import in_forked_child
from ..runtime.waiting import LocklessCondition


class ClientEvent(Protocol):
    """The interface of an event."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        ...


E = TypeVar("E", bound=ClientEvent)


class EventStream(Generic[E]):
    """A sliding window of at most ``capacity`` events: each further event removes the oldest one.

    Any thread may use it. A slow reader loses events (``dropped`` counts them) and delays no other thread.
    The stream ends with the client or with `close`; a process forked from this one gets no events.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.capacity = capacity
        self.seen = 0
        """Events since the subscription, including dropped ones."""
        self.dropped = 0
        """Events that were removed before they were read."""
        self._closed = False
        self._start_empty()
        in_forked_child(self._disown)

    def _start_empty(self) -> None:
        self.lock = threading.RLock()  # re-entrant: a signal handler may close the client
        self._events: deque[E] = deque()
        self._condition = LocklessCondition()

    def _disown(self) -> None:
        self._start_empty()
        self._closed = True

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<EventStream: {self.seen} seen, {len(self)} waiting, {self.dropped} dropped{state}>"

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Self:
        """The events as they arrive, until the stream is closed and empty."""
        return self

    def __next__(self) -> E:
        if (event := self.take()) is None:
            raise StopIteration
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """True if no more events will arrive. Events in the window can still be taken."""
        return self._closed

    def take(self, timeout: float | None = None) -> E | None:
        """The oldest event. Waits for one for ``timeout`` seconds (None: until the stream is closed); None if
        there was none.
        """
        deadline = None if timeout is None else Deadline.after_ms(timeout * 1000)
        while True:
            closed = self.closed  # read first: the last event may arrive just before the end
            with self.lock:
                if self._events:
                    return self._events.popleft()
            if closed or not self._condition.wait_for(lambda: bool(self._events) or self.closed, deadline):
                return None

    def drain(self) -> list[E]:
        """Take all events in the window, without waiting."""
        with self.lock:
            found = list(self._events)
            self._events.clear()
        return found

    def close(self) -> None:
        """Accept no more events. Harmless if repeated."""
        self._closed = True
        self._condition.notify_all()

    def offer(self, event: E) -> None:
        """Called by the client with a new event. It never waits for the reader."""
        if self.closed:
            return
        with self.lock:
            self.seen += 1
            if len(self._events) >= self.capacity:
                self._events.popleft()
                self.dropped += 1
            self._events.append(event)
        self._condition.notify_all()


class EventSource(Generic[E]):
    """The subscribers of one kind of event. Any thread may use it. It does not keep streams alive."""

    def __init__(self) -> None:
        self._closed = False
        self._start_empty()
        in_forked_child(self._start_empty)

    def _start_empty(self) -> None:
        self._streams: tuple[weakref.ref[EventStream[E]], ...] = ()
        self._lock = threading.RLock()

    @property
    def listening(self) -> bool:
        """True if there is a subscriber: without one, no event needs to be created."""
        return bool(self._streams)

    @property
    def locks(self) -> list[threading.RLock]:
        """Its own lock and those of its streams."""
        streams = [stream for reference in self._streams if (stream := reference()) is not None]
        return [self._lock, *(stream.lock for stream in streams)]

    def subscribe(self, capacity: int) -> EventStream[E]:
        """A stream of the events from now on."""
        stream: EventStream[E] = EventStream(capacity)
        with self._lock:
            self._forget_closed()
            self._streams = (*self._streams, weakref.ref(stream))
        if self._closed:
            stream.close()
        return stream

    def emit(self, event: E) -> None:
        """Pass ``event`` to every subscriber."""
        gone = False
        for reference in self._streams:
            stream = reference()
            if stream is None or stream.closed:
                gone = True
            else:
                stream.offer(event)
        if gone:
            self._forget_closed()

    def close(self) -> None:
        """Close every stream: no more events will occur."""
        self._closed = True
        for reference in self._streams:
            if (stream := reference()) is not None:
                stream.close()

    def _forget_closed(self) -> None:
        with self._lock:
            found = [(reference, reference()) for reference in self._streams]
            self._streams = tuple(r for r, stream in found if stream is not None and not stream.closed)
