"""`Turns`: one thread at a time, for whom the others wait no longer than they have time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from ..errors import NetworkError
from .deadline import Deadline
from .naps import Naps

T = TypeVar("T")


class _Turn:
    """Waits for its turn, or has it."""

    __slots__ = ("thread_id",)

    def __init__(self) -> None:
        self.thread_id = threading.get_ident()


class Turns:
    """As a lock that a thread may take again while it has it. Any thread may use it.

    A lock that is waited for with a timeout can't be told from one that was not got, where an interrupt comes
    as it is returned, and it would stay locked. Here each has a turn of its own, which it takes back.
    """

    def __init__(self) -> None:
        self._turns: dict[_Turn, None] = {}
        self._naps = Naps()

    def run(self, work: Callable[[], T], deadline: Deadline, doing: str) -> T:
        """Do ``work`` while nobody else does. Raises `NetworkError` when others, whose deadlines may be later
        ones, are at it until ``deadline``; ``doing`` says what that is.
        """
        mine = _Turn()
        try:
            self._turns[mine] = None
            # Even with no time left: it may well be free.
            if not self._naps.wait(lambda: list(self._turns)[0].thread_id == mine.thread_id, deadline):  # noqa: RUF015
                raise NetworkError(f"another thread was {doing} all the time that there was")
            return work()
        finally:
            # One call of what no interrupt gets into: not a method of ours, no context manager.
            self._turns.pop(mine, None)
            self._naps.wake()
