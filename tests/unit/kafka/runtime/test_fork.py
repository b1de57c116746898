"""What a forked child resets."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable

import pytest
from support.forked_child import holds_in_forked_child

from spark_kafka_native.kafka.runtime import fork
from spark_kafka_native.kafka.runtime.fork import in_forked_child, no_fork

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Owner:
    def __init__(self, reset: Callable[[], None] = lambda: None) -> None:
        self.resets = 0
        self._reset_too = reset
        in_forked_child(self.reset)

    def reset(self) -> None:
        self.resets += 1
        self._reset_too()


def test_the_child_resets_each_object_once_and_the_parent_none() -> None:
    first, second = Owner(), Owner()
    assert holds_in_forked_child(lambda: (first.resets, second.resets) == (1, 1))
    assert (first.resets, second.resets) == (0, 0)


def test_a_function_is_called_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork, "_resets", set())
    called: list[bool] = []

    def reset() -> None:
        called.append(True)

    in_forked_child(reset)
    del reset
    gc.collect()
    assert holds_in_forked_child(lambda: called == [True])
    assert called == []


def test_an_object_is_not_kept_alive() -> None:
    owner = Owner()
    gone, known = weakref.ref(owner), len(fork._resets)
    del owner
    gc.collect()
    assert gone() is None
    assert len(fork._resets) < known


def test_an_error_in_one_reset_does_not_prevent_the_others() -> None:
    def fail() -> None:
        os.close(2)  # the interpreter reports the error there
        raise ZeroDivisionError

    owners = [Owner(fail if number % 2 else lambda: None) for number in range(8)]
    assert holds_in_forked_child(lambda: [one.resets for one in owners] == [1] * 8)


def test_a_reset_may_make_objects_that_are_reset_after_the_next_fork() -> None:
    made: list[Owner] = []
    owner = Owner(lambda: made.append(Owner()))
    assert holds_in_forked_child(lambda: owner.resets == 1 and made[0].resets == 0)


def test_a_fork_waits_for_what_must_not_be_cut_short() -> None:
    """The child may do the same, and so may the parent again."""
    entered, done = threading.Event(), []

    def work() -> None:
        with no_fork():
            entered.set()
            release.wait(20)
            done.append(True)

    release = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(20)
    timer = threading.Timer(0.2, release.set)
    timer.start()

    def child() -> bool:
        """Not in the thread that has forked."""
        seen: list[bool] = []

        def look() -> None:
            with no_fork(), no_fork():
                seen.extend(done)

        other = threading.Thread(target=look, daemon=True)
        other.start()
        other.join(10)
        return seen == [True]

    assert holds_in_forked_child(child, seconds=20)
    thread.join()
    timer.join()
    with no_fork():
        assert holds_in_forked_child(child, seconds=20)
    assert holds_in_forked_child(child, seconds=20)
