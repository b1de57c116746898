"""Ctrl-C, SIGTERM and a closed terminal as one exception, so that every ``with`` block cleans up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """This process was asked to end. No `Exception`, so that nobody takes it for an error to go on after."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Raise `Stopped` in the main thread on SIGINT, SIGTERM and SIGHUP.

    Only once: on the way out a second signal is ignored, because it would leave things behind.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
