"""Waiting for other threads: a condition without a lock, and a re-entrant lock with a deadline.

Both exist because of interrupts. Ctrl-C raises `KeyboardInterrupt` in the main thread between any two
bytecodes, and a signal handler may run there and close the client. The standard library's primitives are not
safe then: `threading.Condition.wait` takes its lock again before it returns, and an interrupt may leave it
held; `Lock.acquire(timeout=...)` may be interrupted when it has the lock and has not yet returned True; and
`threading.Event.set` holds a plain lock, so that a signal handler that calls `set` meanwhile deadlocks.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ..errors import NetworkError
from .deadline import Deadline

T = TypeVar("T")

MAX_WAIT_S = 1.0
"""The predicate is checked at least this often: an interrupted thread may have failed to notify the
others."""


class LocklessCondition:
    """Like `threading.Condition`, without a lock: the predicate synchronizes itself. Any thread may use it.

    No lock is held while waiting, and none is taken again afterwards, so an interrupt leaves nothing locked.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[threading.Lock, object]] = deque()

    @property
    def waiting(self) -> int:
        """The number of threads that are waiting now."""
        return len(self._waiting)

    def notify_all(self) -> None:
        """Make every waiting thread check its predicate again."""
        with contextlib.suppress(IndexError):
            while self._waiting:
                self._waiting.popleft()[0].release()

    def notify_last(self) -> None:
        """Make the thread that began to wait last check its predicate again."""
        with contextlib.suppress(IndexError):
            if self._waiting:
                self._waiting.pop()[0].release()

    def notify(self, awaited: object) -> None:
        """Make the threads that wait for ``awaited`` check their predicates again."""
        for waiter in list(self._waiting):
            if waiter[1] is awaited:
                with contextlib.suppress(ValueError):  # another thread has notified it
                    self._waiting.remove(waiter)
                    waiter[0].release()

    def wait_for(
        self, predicate: Callable[[], bool], deadline: Deadline | None, awaited: object = None
    ) -> bool:
        """Wait until ``predicate`` is true; False if ``deadline`` passed first. `notify` finds this thread
        by ``awaited``.
        """
        while not predicate():
            notified = threading.Lock()
            notified.acquire()
            waiter = (notified, awaited)
            self._waiting.append(waiter)
            try:
                if predicate():  # it may have become true before this thread was in the queue
                    return True
                if deadline is not None and deadline.expired:
                    return predicate()
                left_s = MAX_WAIT_S if deadline is None else deadline.remaining_ms / 1000
                notified.acquire(timeout=min(MAX_WAIT_S, left_s))
            finally:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)
        return True


class _Entry:
    """A thread that holds a `DeadlineLock` or waits for it."""

    __slots__ = ("thread_id",)

    def __init__(self) -> None:
        self.thread_id = threading.get_ident()


class DeadlineLock:
    """A re-entrant lock with a deadline. Any thread may use it.

    The lock is a queue of entries; the first one holds it. Each `run` has an entry of its own and removes
    that entry at its end, so it never has to know whether it got the lock before an interrupt came.
    """

    def __init__(self) -> None:
        self._entries: dict[_Entry, None] = {}
        self._released = LocklessCondition()

    def run(self, work: Callable[[], T], deadline: Deadline, doing: str) -> T:
        """Call ``work`` while no other thread holds the lock.

        Raises `NetworkError` if other threads, possibly with later deadlines, hold it until ``deadline``;
        ``doing`` names the work in that error.
        """
        mine = _Entry()
        try:
            self._entries[mine] = None
            # Even with no time left: the lock may be free.
            if not self._released.wait_for(
                lambda: list(self._entries)[0].thread_id == mine.thread_id,  # noqa: RUF015
                deadline,
            ):
                raise NetworkError(f"another thread was {doing} all the time that there was")
            return work()
        finally:
            # A single C call, which no interrupt divides: not a method of ours, no context manager.
            self._entries.pop(mine, None)
            self._released.notify_all()


def is_held(lock: threading.RLock) -> bool:
    """True if this thread holds ``lock``."""
    try:
        lock.release()
    except RuntimeError:
        return False
    lock.acquire()
    return True


@contextlib.contextmanager
def released(locks: Iterable[threading.RLock]) -> Iterator[None]:
    """Release those of ``locks`` that this thread holds until the end of the block, as
    `threading.Condition.wait` does with its lock. ``locks`` are ordered from the outermost to the innermost.

    A thread holds one of them while it waits only in a signal handler: the handler may have interrupted its
    own thread anywhere, and what it waits for may need the locks that are held there. What they guard may
    have changed when the interrupted code continues.
    """
    held: list[threading.RLock] = []
    try:
        for lock in locks:
            with contextlib.suppress(RuntimeError):  # this thread does not hold it, or released it fully
                while True:
                    lock.release()
                    held.append(lock)
        yield
    finally:
        for lock in held:
            lock.acquire()
