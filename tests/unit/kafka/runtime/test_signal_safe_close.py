"""A consumer that is closed within one of its calls is closed at the end of the outermost one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_kafka_native.kafka.runtime.signal_safe_close import closed_late


class Consumer:
    def __init__(self) -> None:
        self.done: list[str] = []
        self._callers: set[int] = set()
        self._close_asked: set[int] = set()

    def close(self) -> None:
        if threading.get_ident() in self._callers:
            self._close_asked.add(threading.get_ident())
        else:
            self._close_late()

    def _close_late(self) -> None:
        self.done.append("closed")

    @closed_late
    def inner(self, *, closes: bool) -> None:
        if closes:
            self.close()
        self.done.append("inner")

    @closed_late
    def beside(self) -> None:
        """Another thread is in a call when this one is closed, until after it."""
        with ThreadPoolExecutor(1) as pool:
            self.close()
            pool.submit(self.inner, closes=False).result(60)
            self.done.append("beside")

    @closed_late
    def outer(self, *, closes: str, fails: bool = False) -> None:
        self.inner(closes=closes == "inside")
        if closes == "after":
            self.close()
        self.done.append("outer")
        if fails:
            raise ZeroDivisionError


@pytest.mark.parametrize("closes", ["inside", "after"])
def test_a_close_waits_for_the_outermost_call(closes: str) -> None:
    consumer = Consumer()
    consumer.outer(closes=closes)
    assert consumer.done == ["inner", "outer", "closed"]


def test_a_call_that_raises_is_followed_by_the_close() -> None:
    consumer = Consumer()
    with pytest.raises(ZeroDivisionError):
        consumer.outer(closes="after", fails=True)
    assert consumer.done == ["inner", "outer", "closed"]


def test_a_call_of_another_thread_is_not_followed_by_the_close() -> None:
    consumer = Consumer()
    consumer.beside()
    assert consumer.done == ["inner", "beside", "closed"]


def test_a_close_between_two_calls_is_carried_out_at_once() -> None:
    consumer = Consumer()
    consumer.outer(closes="")
    consumer.close()
    assert consumer.done == ["inner", "outer", "closed"]
    assert not consumer._close_asked
