"""One thread at a time, and nobody waits longer than there is time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from spark_kafka_native.kafka.errors import NetworkError
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.runtime.turns import Turns

SOON = 60_000.0


def in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_others_wait_for_as_long_as_they_have_time() -> None:
    turns, begun, ended, done = Turns(), threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        assert ended.wait(60)
        done.append("slow")

    first = in_thread(lambda: turns.run(slow, Deadline.after_ms(SOON), "sleeping"))
    assert begun.wait(60)
    for limit_ms in (0, 20):
        with pytest.raises(NetworkError, match="another thread was sleeping"):
            turns.run(lambda: done.append("never"), Deadline.after_ms(limit_ms), "sleeping")
    second = in_thread(lambda: turns.run(lambda: done.append("next"), Deadline.after_ms(SOON), "sleeping"))
    ended.set()
    first.join(60)
    second.join(60)
    assert done == ["slow", "next"]
    assert turns.run(lambda: 1, Deadline.after_ms(0), "sleeping") == 1  # free, though there is no time


def test_a_thread_may_take_its_own_turn_again() -> None:
    turns = Turns()
    refused: list[NetworkError] = []

    def other() -> None:
        try:
            turns.run(lambda: 1, Deadline.after_ms(0), "outer")
        except NetworkError as error:
            refused.append(error)

    def outer() -> int:
        assert turns.run(lambda: 1, Deadline.after_ms(0), "inner") == 1
        in_thread(other).join(60)
        return 2

    assert turns.run(outer, Deadline.after_ms(0), "outer") == 2
    assert len(refused) == 1  # the end of the inner one was not that of the outer one


@pytest.mark.parametrize("where", ["wait", "work"])
def test_an_interrupt_leaves_the_turn_to_others(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    turns = Turns()
    wait = turns._naps.wait

    def interrupted(*arguments: Any) -> None:
        """Ctrl-C comes just as the turn was got, or in the middle of the work."""
        if where == "wait":
            wait(*arguments)
        raise KeyboardInterrupt

    if where == "wait":
        monkeypatch.setattr(turns._naps, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        turns.run(lambda: interrupted(), Deadline.after_ms(SOON), "working")
    monkeypatch.undo()
    others: list[int] = []
    in_thread(lambda: others.append(turns.run(lambda: 1, Deadline.after_ms(0), "working"))).join(60)
    assert others == [1]
