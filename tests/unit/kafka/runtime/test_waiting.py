"""A re-entrant lock with a deadline, and its state after an interrupt."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from spark_kafka_native.kafka.errors import NetworkError
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.runtime.waiting import DeadlineLock, LocklessCondition

SOON = 60_000.0


def in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_others_wait_for_as_long_as_they_have_time() -> None:
    lock, begun, ended, done = DeadlineLock(), threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        assert ended.wait(60)
        done.append("slow")

    first = in_thread(lambda: lock.run(slow, Deadline.after_ms(SOON), "sleeping"))
    assert begun.wait(60)
    for limit_ms in (0, 20):
        with pytest.raises(NetworkError, match="another thread was sleeping"):
            lock.run(lambda: done.append("never"), Deadline.after_ms(limit_ms), "sleeping")
    second = in_thread(lambda: lock.run(lambda: done.append("next"), Deadline.after_ms(SOON), "sleeping"))
    ended.set()
    first.join(60)
    second.join(60)
    assert done == ["slow", "next"]
    assert lock.run(lambda: 1, Deadline.after_ms(0), "sleeping") == 1  # free, although no time is left


def test_a_thread_may_take_the_lock_that_it_holds() -> None:
    lock = DeadlineLock()
    refused: list[NetworkError] = []

    def other() -> None:
        try:
            lock.run(lambda: 1, Deadline.after_ms(0), "outer")
        except NetworkError as error:
            refused.append(error)

    def outer() -> int:
        assert lock.run(lambda: 1, Deadline.after_ms(0), "inner") == 1
        in_thread(other).join(60)
        return 2

    assert lock.run(outer, Deadline.after_ms(0), "outer") == 2
    assert len(refused) == 1  # the end of the inner call released nothing of the outer one


@pytest.mark.parametrize("where", ["wait", "work"])
def test_an_interrupt_leaves_the_lock_to_others(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    lock = DeadlineLock()
    wait_for = LocklessCondition.wait_for

    def interrupted(*arguments: Any) -> None:
        """Ctrl-C just after the lock was taken, or in the middle of the work."""
        if where == "wait":
            wait_for(*arguments)
        raise KeyboardInterrupt

    if where == "wait":
        monkeypatch.setattr(LocklessCondition, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock.run(lambda: interrupted(), Deadline.after_ms(SOON), "working")
    monkeypatch.undo()
    others: list[int] = []
    in_thread(lambda: others.append(lock.run(lambda: 1, Deadline.after_ms(0), "working"))).join(60)
    assert others == [1]
