"""`in_forked_child`: the one way in which this package reacts to a fork.

A forked child has the memory of its parent, but one of its threads only. A lock that another thread held is
never released there, and a socket or a pipe is shared with the parent. So each owner of such state registers
a function here that replaces it. The function runs in the child before any other code, while there is one
thread, so that no call has to check in which process it runs.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
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


os.register_at_fork(after_in_child=_reset_all)
