"""Events: a client emits them to an `EventSource`, and each subscriber reads them from an `EventStream`.

A stream holds a bounded window of events, so that a slow subscriber loses events and never delays the client.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from typing import Any, Generic, Protocol, Self, TypeVar

from ..runtime.deadline import Deadline
from ..runtime.waiting import LocklessCondition


class Event(Protocol):
    """What an event can do."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        ...


E = TypeVar("E", bound=Event)


class EventStream(Generic[E]):
    """A window that slides: at most ``capacity`` events wait in it, and a further one pushes out the oldest.

    Any thread may use it. Whoever is slow, or does not read at all, loses events (``dropped`` counts them),
    and holds up nobody. It ends when the client does, or with `close`; a process forked from this one gets
    none.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.capacity = capacity
        self.seen = 0
        """Events since it was subscribed, dropped ones included."""
        self.dropped = 0
        """Events that were pushed out before they were taken."""
        self._process_id = os.getpid()
        self.lock = threading.RLock()  # reentrant: the handler of a signal may close the client
        self._events: deque[E] = deque()
        self._condition = LocklessCondition()
        self._closed = False

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<EventStream: {self.seen} seen, {len(self)} waiting, {self.dropped} dropped{state}>"

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Self:
        """The events as they come, until the stream is closed and empty."""
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
        """Whether no more events will come. Those that wait can still be taken."""
        return self._closed or self._process_id != os.getpid()

    def take(self, timeout: float | None = None) -> E | None:
        """The oldest event; waits for one for ``timeout`` seconds (None: as long as the stream is open). None
        where none came."""
        deadline = None if timeout is None else Deadline.after_ms(timeout * 1000)
        while True:
            if self._process_id != os.getpid():
                return None
            closed = self.closed  # asked first: the last event may come just before the end
            with self.lock:
                if self._events:
                    return self._events.popleft()
            if closed or not self._condition.wait_for(lambda: bool(self._events) or self.closed, deadline):
                return None

    def drain(self) -> list[E]:
        """All that wait, without waiting."""
        if self._process_id != os.getpid():
            return []
        with self.lock:
            found = list(self._events)
            self._events.clear()
        return found

    def close(self) -> None:
        """Take in no more. May be called twice."""
        self._closed = True
        self._condition.notify_all()

    def offer(self, event: E) -> None:
        """The client's word: this has happened. It never waits for whoever reads."""
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
    """Any thread may use it. A stream that nobody holds any more is forgotten."""

    def __init__(self) -> None:
        self._streams: tuple[weakref.ref[EventStream[E]], ...] = ()
        self._lock = threading.RLock()
        self._closed = False

    @property
    def listening(self) -> bool:
        """Whether anybody has subscribed: an event need not be made for nobody."""
        return bool(self._streams)

    @property
    def locks(self) -> list[threading.RLock]:
        """Its own and those of its streams."""
        streams = [stream for reference in self._streams if (stream := reference()) is not None]
        return [self._lock, *(stream.lock for stream in streams)]

    def subscribe(self, capacity: int) -> EventStream[E]:
        """A stream of what happens from now on."""
        stream: EventStream[E] = EventStream(capacity)
        with self._lock:
            self._streams = (*self._streams, weakref.ref(stream))
        if self._closed:
            stream.close()
        return stream

    def emit(self, event: E) -> None:
        """It has happened."""
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
        """Nothing more will happen."""
        self._closed = True
        for reference in self._streams:
            if (stream := reference()) is not None:
                stream.close()

    def _forget_closed(self) -> None:
        with self._lock:
            found = [(reference, reference()) for reference in self._streams]
            self._streams = tuple(r for r, stream in found if stream is not None and not stream.closed)
