"""A re-entrant lock with a deadline, its state after an interrupt, and locks released while waiting."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.waiting import eventually

from spark_kafka_native.kafka.errors import NetworkError
from spark_kafka_native.kafka.runtime import waiting
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.runtime.waiting import DeadlineLock, LocklessCondition, is_held, released

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


def test_the_lock_goes_at_once_from_each_to_the_next_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they came; a thread that is not notified would wait for an hour here."""
    monkeypatch.setattr(waiting, "MAX_WAIT_S", 3600.0)
    lock, ended, done, threads = DeadlineLock(), threading.Event(), list[int](), []

    def take(number: int) -> None:
        def work() -> None:
            assert ended.wait(60)
            done.append(number)

        lock.run(work, Deadline.after_ms(SOON), "sleeping")

    for number in range(4):
        threads.append(in_thread(lambda number=number: take(number)))
        eventually(lambda number=number: len(lock._entries) == number + 1)
        eventually(lambda number=number: lock._released.waiting == number)
    ended.set()
    threads[-1].join(30)
    assert done == [0, 1, 2, 3]


def test_a_condition_that_becomes_true_before_the_wait_needs_no_notification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "MAX_WAIT_S", 3600.0)
    condition, looks = LocklessCondition(), list[bool]()

    def came_meanwhile() -> bool:
        """Another thread assigns it, and notifies those that wait, just after the first look."""
        looks.append(bool(looks))
        return looks[-1]

    waiter = in_thread(lambda: condition.wait_for(came_meanwhile, None))
    waiter.join(30)
    assert looks == [False, True]
    assert not waiter.is_alive()


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


def test_a_notification_finds_the_threads_that_wait_for_something_or_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "MAX_WAIT_S", 3600.0)
    condition, awaited = LocklessCondition(), ["a", "b", "a", "c"]
    ready, done = [False] * 4, list[int]()
    threads = []

    def wait(number: int) -> None:
        assert condition.wait_for(lambda: ready[number], Deadline.after_ms(SOON), awaited[number])
        done.append(number)

    for number in range(4):
        threads.append(in_thread(lambda number=number: wait(number)))
        eventually(lambda number=number: condition.waiting == number + 1)
    ready[:] = [True] * 4
    condition.notify("no such")
    assert condition.waiting == 4
    condition.notify("a")
    eventually(lambda: sorted(done) == [0, 2])
    assert condition.waiting == 2
    condition.notify_last()
    eventually(lambda: done[2:] == [3])
    assert condition.waiting == 1
    condition.notify_last()
    condition.notify_last()  # none is left
    for thread in threads:
        thread.join(60)
    assert done[2:] == [3, 1]


def test_a_lock_is_held_by_its_own_thread_only() -> None:
    lock, seen = threading.RLock(), list[bool]()
    assert not is_held(lock)
    with lock:
        assert is_held(lock)
        in_thread(lambda: seen.append(is_held(lock))).join(60)
    assert seen == [False]
    assert not is_held(lock)


def test_held_locks_are_released_for_the_block_and_taken_again() -> None:
    outer, inner, other = threading.RLock(), threading.RLock(), threading.RLock()
    free: list[bool] = []

    def try_all() -> None:
        for lock in (outer, inner, other):
            free.append(lock.acquire(blocking=False))
            lock.release()

    with outer, outer, inner:
        with released([outer, inner, other]):
            in_thread(try_all).join(60)
        assert is_held(outer)
        assert is_held(inner)
        assert not is_held(other)
    assert free == [True] * 3
    assert not is_held(outer)
    assert not is_held(inner)


def test_released_locks_are_taken_again_from_the_outermost_on() -> None:
    """In the other order two threads could wait for each other."""
    done: list[str] = []

    class Lock:
        def __init__(self, name: str) -> None:
            self.name = name
            self.held = 1

        def release(self) -> None:
            if not self.held:
                raise RuntimeError
            self.held -= 1

        def acquire(self) -> None:
            self.held += 1
            done.append(self.name)

    locks: Any = [Lock("outer"), Lock("middle"), Lock("inner")]
    with released(locks):
        assert [lock.held for lock in locks] == [0, 0, 0]
    assert done == ["outer", "middle", "inner"]
