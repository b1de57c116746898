"""`in_forked_child`: the one way in which this package reacts to a fork; `no_fork`, to put one off.

A forked child has the memory of its parent, but one of its threads only. A lock that another thread held is
never released there, and a socket or a pipe is shared with the parent. So each owner of such state registers
a function here that replaces it. The function runs in the child before any other code, while there is one
thread, so that no call has to check in which process it runs.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - as logging
import contextlib
import logging  # noqa: F401 - before `register_at_fork`: no fork waits with its lock, which an import may need
import os
import threading
import time
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Final

_MAX_WAIT_S: Final = 30
"""A fork waits no longer: a user's module may hang as it is imported, or wait for the thread that forks."""
_LOOK_AGAIN_S: Final = 0.02
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
"""Held by the thread that forks."""
_blocks: set[weakref.ref[threading.RLock]] = set()
"""The locks of `no_fork`, each as long as its block needs it."""
_held: list[threading.RLock] = []
"""Those that the thread that forks has taken."""


def no_fork() -> contextlib.AbstractContextManager[bool]:
    """For a late import in a thread: other threads fork when it has ended. Python's lock of a module that a
    thread of the parent was importing is never released in a child, which waits at its own import for ever.

    Each block has a lock of its own, so that no thread waits for the import of another one. No interrupt
    comes between taking or releasing it and the block, as there is no Python code in between.
    """
    mine = threading.RLock()
    with _forking:
        _blocks.add(weakref.ref(mine, _blocks.discard))
    return mine


def _before_fork() -> None:
    until = time.monotonic() + _MAX_WAIT_S
    while True:
        _forking.acquire()
        if _take_all() or time.monotonic() >= until:
            return
        # Not while it is held: a module that is imported may have a block of its own.
        _forking.release()
        time.sleep(_LOOK_AGAIN_S)


def _take_all() -> bool:
    """True if no block goes on; the locks of all are held then, and otherwise none."""
    for lock in [lock for entry in list(_blocks) if (lock := entry()) is not None]:
        if not lock.acquire(timeout=_LOOK_AGAIN_S):
            _release_all()
            return False
        _held.append(lock)
    return True


def _release_all() -> None:
    while _held:
        _held.pop().release()


def _in_parent() -> None:
    if _forking._is_owned():  # type: ignore[attr-defined] # not after an interrupt while it waited
        _release_all()
        _forking.release()


def _in_child() -> None:
    global _forking
    _forking = threading.RLock()
    _blocks.clear()
    _held.clear()


in_forked_child(_in_child)
os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_reset_all)
