"""`closed_late`: `close` in a signal handler that has interrupted a call of the same consumer.

The interrupted thread may hold any lock, and may be in the middle of an exchange with a broker: nothing can
be committed before it continues. So the consumer is closed at the end of the interrupted call.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class ClosedLate(Protocol):
    """A consumer with methods that are decorated with `closed_late`."""

    _callers: set[int]
    """The threads that are in one of these methods."""
    _close_asked: set[int]
    """The threads in which `close` was called within one of them."""

    def _close_late(self) -> None:
        """Close; the records that were handed out last are not done."""


S = TypeVar("S", bound=ClosedLate)
P = ParamSpec("P")
R = TypeVar("R")


def closed_late(call: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Close the consumer at the end of ``call`` if `close` was called within it. Not at the end of a call in
    another thread: that may be one that must not close it, such as the one that sends its commits.
    """

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
                if here in self._close_asked:
                    self._close_late()

    return called


def within_handler() -> bool:
    """True if a signal handler is running in this thread: CPython calls it with the frame that the signal has
    interrupted, which is also the frame below its own.
    """
    frame = sys._getframe(1)
    while (below := frame.f_back) is not None:
        names, rest, _, values = inspect.getargvalues(frame)
        given = [values.get(name) for name in names] + list(values.get(rest, ()) if rest else ())
        if any(one is below for one in given):
            return True
        frame = below
    return False
