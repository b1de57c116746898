"""A window of events, which never delays the code that emits them."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from support.forked_child import holds_in_forked_child
from support.interrupts.held_lock import held_by_another_thread

from spark_kafka_native.kafka.observe import events
from spark_kafka_native.kafka.observe.events import EventSource, EventStream
from spark_kafka_native.kafka.runtime.deadline import Deadline


@dataclass(frozen=True)
class Step:
    number: int

    def to_dict(self) -> dict[str, Any]:
        return {"event": "step", "number": self.number}


@pytest.fixture
def source() -> EventSource[Step]:
    return EventSource()


def eventually(holds: Any) -> None:
    until = Deadline.after_ms(60_000)
    while not holds():
        assert not until.expired
        time.sleep(0.005)


def test_events_come_in_order_and_end_with_the_client(source: EventSource[Step]) -> None:
    stream = source.subscribe(10)
    for number in range(3):
        source.emit(Step(number))
    source.close()
    source.emit(Step(9))
    assert [event.number for event in stream] == [0, 1, 2]
    assert (stream.seen, stream.dropped, stream.closed) == (3, 0, True)
    assert stream.take() is None


def test_an_event_just_before_the_end_is_not_missed(source: EventSource[Step]) -> None:
    stream = source.subscribe(10)
    looked = stream.lock

    class Looked:
        """After the reader has found nothing, the last event and the end arrive."""

        def __enter__(self) -> None:
            looked.acquire()

        def __exit__(self, *_: object) -> None:
            looked.release()
            stream.lock = looked
            source.emit(Step(7))
            source.close()

    stream.lock = Looked()  # type: ignore[assignment]
    assert [event.number for event in stream] == [7]


def test_the_oldest_are_dropped_and_counted(source: EventSource[Step]) -> None:
    stream = source.subscribe(2)
    for number in range(5):
        source.emit(Step(number))
    assert (stream.seen, stream.dropped, len(stream)) == (5, 3, 2)
    assert [event.number for event in stream.drain()] == [3, 4]
    assert stream.drain() == []
    assert repr(stream) == "<EventStream: 5 seen, 0 waiting, 3 dropped>"


def test_each_subscriber_has_its_own_window(source: EventSource[Step]) -> None:
    slow, fast = source.subscribe(1), source.subscribe(10)
    for number in range(3):
        source.emit(Step(number))
    assert [event.number for event in slow.drain()] == [2]
    assert [event.number for event in fast.drain()] == [0, 1, 2]


def test_without_subscribers_no_event_is_needed(source: EventSource[Step]) -> None:
    assert not source.listening
    stream = source.subscribe(1)
    assert source.listening
    del stream
    gc.collect()
    source.emit(Step(0))
    assert not source.listening
    with source.subscribe(1) as closed:
        assert source.listening
    source.emit(Step(1))
    assert not source.listening
    assert len(closed) == 0


def test_a_subscriber_that_is_gone_takes_no_event_from_those_behind_it(source: EventSource[Step]) -> None:
    gone, stream = source.subscribe(1), source.subscribe(10)
    gone.close()
    for number in range(2):
        source.emit(Step(number))
    assert [event.number for event in stream.drain()] == [0, 1]


def test_closed_streams_do_not_pile_up_where_no_event_occurs(source: EventSource[Step]) -> None:
    streams = [source.subscribe(1) for _ in range(3)]
    for stream in streams:
        stream.close()
    streams.append(source.subscribe(1))
    assert source.locks[1:] == [streams[-1].lock]


def test_a_stream_of_a_closed_source_is_at_its_end(source: EventSource[Step]) -> None:
    source.close()
    assert list(source.subscribe(1)) == []


def test_a_stream_that_is_made_while_the_source_closes_is_at_its_end(
    source: EventSource[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader would wait for ever."""
    first, made = source.subscribe(1), []
    monkeypatch.setattr(first, "close", lambda: made.append(source.subscribe(1)))
    source.close()
    assert [stream.closed for stream in made] == [True]


def test_it_waits_no_longer_than_the_timeout(source: EventSource[Step]) -> None:
    assert source.subscribe(1).take(timeout=0.001) is None


@pytest.mark.parametrize("ends", ["an event", "the client", "the subscriber"])
def test_a_waiting_reader_gets_the_event(source: EventSource[Step], ends: str) -> None:
    stream, found = source.subscribe(1), []
    waiting = threading.Thread(target=lambda: found.append(stream.take()))
    waiting.start()
    eventually(lambda: stream._condition.waiting > 0)
    {"an event": lambda: source.emit(Step(7)), "the client": source.close, "the subscriber": stream.close}[
        ends
    ]()
    waiting.join(60)
    assert found == ([Step(7)] if ends == "an event" else [None])


def test_threads_lose_no_event(source: EventSource[Step]) -> None:
    stream = source.subscribe(100)
    taken: list[Step] = []

    def take() -> None:
        taken.extend(stream)

    def emit() -> None:
        for number in range(1_000):
            source.emit(Step(number))

    takers = [threading.Thread(target=take) for _ in range(2)]
    emitters = [threading.Thread(target=emit) for _ in range(3)]
    for thread in takers + emitters:
        thread.start()
    for thread in emitters:
        thread.join(60)
    source.close()
    for thread in takers:
        thread.join(60)
    assert stream.seen == len(taken) + stream.dropped == 3_000


def test_a_forked_child_gets_none_and_waits_for_none(source: EventSource[Step]) -> None:
    stream = source.subscribe(5)
    source.emit(Step(0))

    def is_empty() -> bool:
        source.emit(Step(1))
        return stream.take() is None and stream.drain() == [] and list(stream) == [] and stream.closed

    with held_by_another_thread(stream.lock):
        assert holds_in_forked_child(is_empty)
    assert stream.drain() == [Step(0)]


def test_a_forked_child_has_subscribers_of_its_own(source: EventSource[Step]) -> None:
    """Even if a thread of the parent is subscribing at the moment of the fork."""
    stream = source.subscribe(5)

    def is_its_own() -> bool:
        if source.listening:
            return False
        own = source.subscribe(5)
        source.emit(Step(1))
        return own.drain() == [Step(1)]

    with held_by_another_thread(source.locks[0]):
        assert holds_in_forked_child(is_its_own)
    source.emit(Step(0))
    assert stream.drain() == [Step(0)]


def test_a_window_has_room_for_something() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        EventStream(0)


def test_a_closed_stream_takes_no_event() -> None:
    """An event that is emitted meanwhile would lie in it for ever, and count as seen."""
    stream: EventStream[Any] = EventStream(3)
    stream.offer("before")
    stream.close()
    stream.offer("after")
    assert (stream.seen, stream.drain()) == (1, ["before"])


def test_an_event_is_waited_for_as_many_seconds_as_the_caller_says(
    source: EventSource[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_ms: list[float] = []

    def after_ms(milliseconds: float) -> Deadline:
        waited_ms.append(milliseconds)
        return Deadline.after_ms(milliseconds)

    monkeypatch.setattr(events, "Deadline", SimpleNamespace(after_ms=after_ms))
    assert source.subscribe(1).take(timeout=0.05) is None
    assert waited_ms == [50]
