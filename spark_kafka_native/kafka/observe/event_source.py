"""`EventSource`: where a client says what happened, to all who have subscribed."""

from __future__ import annotations

import threading
import weakref
from typing import Generic, TypeVar

from .event_stream import Event, EventStream

E = TypeVar("E", bound=Event)


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
