"""Work in threads for a loop: its end is reported in the loop's own, once, and no thread is left."""

from __future__ import annotations

import itertools
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.forked_child import holds_in_forked_child
from support.interrupts.signal_steps import interrupted_at

from spark_kafka_native.kafka.errors import NetworkError
from spark_kafka_native.kafka.runtime.background import SHARED_WAIT_MS, Background
from spark_kafka_native.kafka.runtime.deadline import Wakeup


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background("kafka-fetch")
    yield made
    made.close()


def settled(background: Background, key: object) -> None:
    until = time.monotonic() + 60
    while key in background:
        assert time.monotonic() < until
        background.settle()
        time.sleep(0.001)


def test_what_came_of_it_is_told_in_the_loops_thread(background: Background) -> None:
    told: list[Any] = []

    def fail() -> None:
        raise NetworkError("gone")

    def note(outcome: object) -> None:
        told.append((outcome, threading.get_ident()))

    background.start("one", lambda: threading.get_ident(), note)
    settled(background, "one")
    background.start("two", fail, note)
    settled(background, "two")
    assert [told[0][1], told[1][1]] == [threading.get_ident()] * 2
    assert told[0][0] != threading.get_ident()
    assert str(told[1][0]) == "gone"


def test_there_is_one_of_a_kind_at_a_time(background: Background) -> None:
    gate, done = threading.Event(), []
    background.start("one", lambda: gate.wait(60), done.append)
    background.start("one", lambda: done.append("never"), done.append)
    background.start("two", lambda: "other", done.append)
    settled(background, "two")
    assert done == ["other"]
    assert "one" in background
    gate.set()
    settled(background, "one")
    assert done == ["other", True]
    background.start("one", lambda: "again", done.append)
    settled(background, "one")
    assert done == ["other", True, "again"]


def test_all_that_has_ended_is_passed_on_at_once(background: Background) -> None:
    """The wakeup was set for all of it and is cleared."""
    outcomes: list[int] = []
    for key in range(3):
        background.start(key, lambda key=key: key, outcomes.append)
    for thread in [one for one in threading.enumerate() if one.name.startswith("kafka-fetch-")]:
        thread.join(60)
    background.settle()
    assert sorted(outcomes) == [0, 1, 2]
    assert background.wakeup is None


def test_the_loop_is_woken_by_what_it_waits_with(background: Background) -> None:
    assert background.wakeup is None  # nothing would set it
    assert background.max_wait_ms == float("inf")
    background.start("one", lambda: 1, lambda _: None)
    own = background.wakeup
    assert own is not None
    assert background.max_wait_ms == SHARED_WAIT_MS
    until = time.monotonic() + 60
    while not own.is_set:
        assert time.monotonic() < until
    background.settle()
    assert not own.is_set
    assert background.wakeup is None

    given = Wakeup()
    other = Background("kafka-fetch", given)
    other.start("one", lambda: 1, lambda _: None)
    assert other.max_wait_ms == float("inf")
    while not given.is_set:
        assert time.monotonic() < until
    other.settle()
    assert given.is_set  # its owner's to clear
    other.close()
    given.close()


def test_an_outcome_is_there_before_the_loop_is_woken_for_it() -> None:
    """Else the loop could look for it too early, and wait on."""
    found: list[int] = []

    class Seen(Wakeup):
        def set(self) -> None:
            found.append(len(background._ended))
            super().set()

    given = Seen()
    background = Background("kafka-fetch", given)
    background.start("one", lambda: 1, lambda _: None)
    settled(background, "one")
    for thread in [one for one in threading.enumerate() if one.name == "kafka-fetch-one"]:
        thread.join(60)
    assert found == [1]
    background.close()
    given.close()


def test_a_wakeup_that_comes_late_is_cleared_by_the_next_look(background: Background) -> None:
    """Its work was settled already: the loop must not run without a pause until other work ends."""
    gate = threading.Event()
    background.start("one", lambda: gate.wait(60), lambda _: None)
    own = background.wakeup
    assert own is not None
    own.set()
    background.settle()
    assert not own.is_set
    gate.set()
    settled(background, "one")


def test_a_mistake_of_ours_is_raised(background: Background) -> None:
    background.start("one", lambda: 1 // 0, lambda _: None)
    with pytest.raises(ZeroDivisionError):
        settled(background, "one")


@pytest.mark.parametrize("ends", ["before", "after"])
def test_a_close_calls_it_off_and_leaves_nothing(ends: str) -> None:
    """What the work waited with is closed, whether it ends before the close or after it."""
    background, told, begun, seen, gate = (
        Background("kafka-fetch"),
        [],
        threading.Event(),
        [],
        threading.Event(),
    )

    def work() -> None:
        deadline = background.deadline(3_600_000)
        seen.append(deadline.expired)
        begun.set()
        assert gate.wait(60)
        seen.append(deadline.expired)

    background.start("one", work, told.append)
    assert begun.wait(60)
    [thread] = [one for one in threading.enumerate() if one.name == "kafka-fetch-one"]
    if ends == "before":
        gate.set()
        thread.join(60)
    end, own = background._end, background._own
    assert end is not None
    assert own is not None
    assert end.fileno() >= 0, "work that begins later is called off with it, too"
    background.close()
    if ends == "after":
        assert end.fileno() >= 0, "the work still waits with it, and another file may get its number"
    gate.set()
    thread.join(60)
    background.settle()
    assert seen == [False, ends == "after"]
    assert told == []
    assert (end.fileno(), own.fileno()) == (-1, -1)
    background.start("one", lambda: told.append("never"), told.append)
    assert told == []


def test_without_threads_it_is_done_at_once(background: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    told: list[Any] = []
    background.start("one", lambda: 1, told.append)
    assert background.wakeup is not None
    assert background.wakeup.is_set
    background.settle()
    assert told == [1]
    assert "one" not in background


def test_an_interrupt_at_the_start_lets_it_be_started_again(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    told: list[Any] = []
    start: Callable[..., None] = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        background.start("one", lambda: 1, told.append)
    monkeypatch.setattr(threading.Thread, "start", start)
    background.start("one", lambda: 2, told.append)
    settled(background, "one")
    assert told == [2]


def test_what_was_interrupted_at_its_start_is_not_told_for_what_came_after_it(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    start: Callable[..., None] = threading.Thread.start

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    told: list[Any] = []
    first, second = threading.Event(), threading.Event()
    monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        background.start("one", lambda: first.wait(60) and 1, told.append)
    monkeypatch.setattr(threading.Thread, "start", start)
    [thread] = [one for one in threading.enumerate() if one.name == "kafka-fetch-one"]
    background.start("one", lambda: second.wait(60) and 2, told.append)
    first.set()
    thread.join(60)
    background.settle()
    assert told == []
    assert "one" in background
    second.set()
    settled(background, "one")
    assert told == [2]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_nothing_under_way_and_calls_nothing_off(background: Background) -> None:
    gate, begun, told = threading.Event(), threading.Event(), []
    deadlines = []

    def work() -> bool:
        deadlines.append(background.deadline(3_600_000))
        begun.set()
        return gate.wait(60)

    background.start("one", work, told.append)
    assert begun.wait(60)

    def starts_anew() -> bool:
        background.settle()
        again = "one" not in background
        background.start("one", lambda: 2, told.append)
        settled(background, "one")
        background.close()
        return again and told == [2]

    assert holds_in_forked_child(starts_anew)
    poller = select.poll()
    assert background._end is not None
    poller.register(background._end.fileno(), select.POLLIN)
    assert poller.poll(0) == []
    assert not deadlines[0].cancelled
    gate.set()
    settled(background, "one")
    assert told == [True]


def test_an_outcome_that_an_interrupt_of_settle_loses_can_be_asked_for_again() -> None:
    """At each step: otherwise its key would be under way for ever, and nothing would be done under it."""
    for step in itertools.count():
        background, told = Background("kafka-fetch"), list[str]()
        background.start("one", lambda: "first", told.append)
        until = time.monotonic() + 60
        while not background._ended:
            assert time.monotonic() < until
            time.sleep(0.001)
        with interrupted_at(step) as came:
            background.settle()
        settled(background, "one")
        if not told:
            background.start("one", lambda: "second", told.append)
            settled(background, "one")
        background.close()
        assert told in (["first"], ["second"])
        if not came:
            break
    assert step > 3
