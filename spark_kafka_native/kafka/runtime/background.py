"""Short-lived threads: `start_thread`; `Background` for a loop that must not wait for a broker; `Lookups` for
answers that several threads wait for.

In a `Background` a thread does the work; `settle` passes the outcome on in the loop's thread, so that no
other thread changes the state of the loop.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from ..errors import KafkaError, NetworkError
from .deadline import Deadline, Wakeup
from .fork import in_forked_child
from .waiting import LocklessCondition

T = TypeVar("T")
SHARED_WAIT_MS = 100
"""Limit of a wait for connections that other threads may read from too, while work is under way."""

MAX_LOOKUPS = 256
"""Limit of lookup threads, one per key. It is larger than a cluster's number of brokers, so that host names
that are never answered do not use it up; and it bounds the threads that a dead name server collects."""


def start_thread(work: Callable[[], object], name: str) -> None:
    """Do ``work``, which must not raise, in a daemon thread. It is done at once, in this thread, if no thread
    can start: because the interpreter is ending (Python 3.12 on), or because there are too many.

    After an interrupt (Ctrl-C) the thread may run or not.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        work()


class _Work:
    """One piece of work, and the function that gets its outcome."""

    __slots__ = ("key", "then")

    def __init__(self, key: Hashable, then: Callable[[Any], None]) -> None:
        self.key = key
        self.then = then


class Background:
    """The work that is under way, one piece for each key: the choice of keys bounds the number of threads.

    Used by one thread. ``name`` begins the names of the threads. ``wakeup`` is set when work has ended;
    without one, it has its own. In a forked child no work is under way.
    """

    def __init__(self, name: str, wakeup: Wakeup | None = None) -> None:
        self._name = name
        self.given = wakeup
        """The wakeup of the caller, which may set it for reasons of its own."""
        self._closed = False
        self._start_empty()
        in_forked_child(self._start_empty)

    def _start_empty(self) -> None:
        # In a child the pipes are the parent's as well: writing to them would wake the parent.
        self._own: Wakeup | None = None
        self._end: Wakeup | None = None
        self._under_way: dict[Hashable, _Work] = {}
        self._ended: deque[tuple[_Work, object]] = deque()
        self._threads: set[_Work] = set()

    def __contains__(self, key: Hashable) -> bool:
        """True if that work is under way."""
        return key in self._under_way

    @property
    def wakeup(self) -> Wakeup | None:
        """The wakeup to wait for besides sockets; None if no work is under way that would set it."""
        return self.given or (self._own if self._under_way else None)

    @property
    def max_wait_ms(self) -> float:
        """How long to wait for sockets together with `wakeup`: a response that another thread has read does
        not end such a wait. A caller with a wakeup of its own has connections of its own.
        """
        return SHARED_WAIT_MS if self.given is None and self.wakeup is not None else float("inf")

    def deadline(self, timeout_ms: float) -> Deadline:
        """``timeout_ms`` from now, for work under way; `close` ends it."""
        assert self._end is not None, "work that was started has an end"
        return Deadline.after_ms(timeout_ms).with_wakeup(self._end)

    def start(self, key: Hashable, work: Callable[[], T], then: Callable[[T | KafkaError], None]) -> None:
        """Do ``work`` in a thread; `settle` calls ``then`` with its result or the `KafkaError` that it
        raised. Does nothing while there is work under the same ``key``.
        """
        if key in self._under_way or self._closed:
            return
        if self._end is None:
            self._own = Wakeup() if self.given is None else None
            self._end = Wakeup()
        mine = _Work(key, then)
        try:
            self._under_way[key] = mine
            self._threads.add(mine)
            start_thread(partial(self._run, mine, work), f"{self._name}-{key}")
        except BaseException:  # an interrupt: the thread may run or not
            self._under_way.pop(key, None)
            raise

    def settle(self) -> None:
        """Pass on the outcomes of work that has ended. Raises an error that is no `KafkaError`: a bug."""
        if self._closed:
            return
        if self._own is not None:
            self._own.clear()  # first: work that ends later is seen, or ends the next wait
        while self._ended:
            ended, outcome = self._ended[0]
            # Work that was interrupted as it was started may have lost its key: no caller waits for it.
            is_wanted = self._under_way.get(ended.key) is ended
            # First: an interrupt from here on loses the outcome, and the work can be started again.
            if is_wanted:
                del self._under_way[ended.key]
            self._ended.popleft()
            if not is_wanted:
                continue
            if isinstance(outcome, BaseException) and not isinstance(outcome, KafkaError):
                raise outcome
            ended.then(outcome)

    def close(self) -> None:
        """Cancel work under way, without waiting for it; its outcome is dropped."""
        self._closed = True
        self._under_way.clear()
        self._ended.clear()
        if self._own is not None:
            self._own.close()
        if self._end is not None:
            self._end.set()
            self._close_unused()

    def _run(self, mine: _Work, work: Callable[[], object]) -> None:
        outcome: object
        try:
            outcome = work()
        except BaseException as error:  # noqa: BLE001 - `settle` raises it
            outcome = error
        if not self._closed:
            self._ended.append((mine, outcome))
            if (wakeup := self.given or self._own) is not None:
                wakeup.set()
        self._threads.discard(mine)
        self._close_unused()

    def _close_unused(self) -> None:
        """Called by `close` and by each thread: the last of them closes the wakeup."""
        if self._closed and not self._threads and self._end is not None:
            self._end.close()


class _Lookup(Generic[T]):
    """A lookup in progress, and its answer."""

    def __init__(self, question: Callable[[], T]) -> None:
        self.question = question
        self.answer: T | None = None
        self.failure: BaseException | None = None
        self.unclaimed = [True]
        """Empty once a thread runs it."""
        self.done = False

    def claim(self) -> bool:
        """True for one caller: the thread that is to run it."""
        try:
            return self.unclaimed.pop()
        except IndexError:
            return False


class Lookups:
    """Lookups in progress, one for each key, each in a thread of its own. Any thread may use it.

    Callers wait for the answer until their deadlines. A lookup goes on when its callers have stopped waiting,
    and a later caller with the same key joins it.

    It has no lock: a signal handler may interrupt a thread in here and close a client. Its own threads need
    the answer for that. Each change is a single operation on a dict.
    """

    def __init__(self, max_lookups: int = MAX_LOOKUPS, name: str = "kafka-lookup") -> None:
        self._name = name
        self._max_lookups = max_lookups
        self._under_way: dict[Hashable, _Lookup[Any]] = {}
        self._condition = LocklessCondition()

    def ask(self, key: Hashable, question: Callable[[], T], deadline: Deadline) -> T | None:
        """The answer to ``question``, or to the lookup with the same ``key`` that is in progress; None if
        ``deadline`` passed first. Raises the error of the question, and `NetworkError` if too many other
        lookups were unanswered until the deadline.
        """
        joined: list[_Lookup[T]] = []

        def join() -> bool:
            joined.extend(self._join(key, question))
            return bool(joined)

        if not self._condition.wait_for(join, deadline):
            raise NetworkError(f"not asked, as {self._max_lookups} other lookups are not answered")
        if not self._condition.wait_for(lambda: joined[0].done, deadline):
            return None
        if joined[0].failure is not None:
            raise joined[0].failure.with_traceback(None)
        return joined[0].answer

    def _join(self, key: Hashable, question: Callable[[], T]) -> list[_Lookup[T]]:
        """The lookup for ``key``, started if necessary; empty while too many are in progress."""
        lookup = _Lookup(question)
        try:
            # Several threads that ask at once may exceed the maximum by their number.
            if key not in self._under_way and len(self._under_way) >= self._max_lookups:
                return []
            # Within the try: an interrupt after this would leave a lookup that no thread runs.
            lookup = self._under_way.setdefault(key, lookup)
            if lookup.unclaimed:  # perhaps another caller's, interrupted before it started a thread
                start_thread(partial(self._run, key, lookup), self._name)
        except BaseException as interrupt:
            # Unless a thread runs it, none will: other callers must not wait for it.
            if lookup.claim():
                lookup.failure = OSError(f"interrupted by {interrupt!r}")
                self._end(key, lookup)
            raise
        return [lookup]

    def _run(self, key: Hashable, lookup: _Lookup[Any]) -> None:
        if not lookup.claim():
            return
        try:
            lookup.answer = lookup.question()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            lookup.failure = error
        finally:
            self._end(key, lookup)

    def _end(self, key: Hashable, lookup: _Lookup[Any]) -> None:
        if self._under_way.get(key) is lookup:
            self._under_way.pop(key, None)
        lookup.done = True
        self._condition.notify_all()
