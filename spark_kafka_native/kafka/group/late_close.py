"""`LateClose`: `close` in the handler of a signal that has interrupted a call of the same consumer.

The thread that the signal has interrupted may hold any lock, and may be in the midst of an exchange with a
broker: nothing can be committed before it has gone on. So the consumer is closed at the end of that call.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

S = TypeVar("S", bound="LateClose")
P = ParamSpec("P")
R = TypeVar("R")


class LateClose(ABC):
    """Part of `GroupConsumer`."""

    def __init__(self) -> None:
        self._callers: set[int] = set()
        """The threads that are in one of the calls which are `closed_late`."""
        self._close_asked = False
        """Whether `close` was called within one of them."""

    @abstractmethod
    def _close_late(self) -> None:
        """Close; what was handed out last is not done."""


def closed_late(call: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """``call``, at whose end the consumer is closed if that was asked for within it."""

    @functools.wraps(call)
    def called(self: S, /, *args: P.args, **settings: P.kwargs) -> R:
        here = threading.get_ident()
        outermost = here not in self._callers
        try:
            self._callers.add(here)
            return call(self, *args, **settings)
        finally:
            if outermost:
                self._callers.discard(here)
                if self._close_asked:
                    self._close_late()

    return called


def within_handler() -> bool:
    """True if the handler of a signal is running in this thread: CPython calls it with the frame that the
    signal has interrupted, which is also the one below it.
    """
    frame = sys._getframe(1)
    while (below := frame.f_back) is not None:
        names, rest, _, values = inspect.getargvalues(frame)
        given = [values.get(name) for name in names] + list(values.get(rest, ()) if rest else ())
        if any(one is below for one in given):
            return True
        frame = below
    return False
