"""`in_forked_child`: the one way in which this package reacts to a fork; `no_fork`, to put one off.

A forked child has the memory of its parent, but one of its threads only. A lock that another thread held is
never released there, and a socket or a pipe is shared with the parent. So each owner of such state registers
a function here that replaces it. The function runs in the child before any other code, while there is one
thread, so that no call has to check in which process it runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from types import MethodType

_resets: set[Callable[[], Callable[[], object] | None]] = set()


def in_forked_child(reset: Callable[[], object]) -> None:
    """Call ``reset`` in every child that this process forks. A method is called while its object is alive,
    and does not keep it alive. The order is not defined.

    ``reset`` must take no lock of the parent's, wait for nothing and write to no inherited socket or pipe.
    """
    if isinstance(reset, MethodType):
        _resets.add(weakref.WeakMethod(reset, _resets.discard))
    else:
        _resets.add(lambda: reset)


def _reset_all() -> None:
    with contextlib.ExitStack() as stack:  # it calls each of them, even if others raise
        for entry in list(_resets):
            if (reset := entry()) is not None:
                stack.callback(reset)


_forking = threading.RLock()
"""Held by the thread that forks, and in `no_fork`."""


@contextlib.contextmanager
def no_fork() -> Iterator[None]:
    """For a late import in a thread: other threads fork when it has ended. Python's lock of a module that a
    thread of the parent was importing is never released in a child, which waits at its own import for ever.
    """
    with _forking:
        yield


def _in_child() -> None:
    global _forking
    _forking = threading.RLock()


in_forked_child(_in_child)
os.register_at_fork(
    before=lambda: _forking.acquire(), after_in_parent=lambda: _forking.release(), after_in_child=_reset_all
)
