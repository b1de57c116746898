"""`PendingCommit`: a commit that is on its way, and the future of its outcome."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ..errors import KafkaError
from ..model import TopicPartition
from ..runtime.deadline import Deadline
from ..runtime.waiting import LocklessCondition

_LOG = logging.getLogger("spark_kafka_native.group")

Then = Callable[[KafkaError | None], object]


class PendingCommit(Future[None]):
    """The thread that sends it calls `end`; any other thread may wait.

    `Future` has a lock: interrupted while it has it, a caller leaves it taken, and the thread that sends
    would wait for it for ever, and with it all later commits. So waits and callbacks do without it here.
    """

    def __init__(
        self,
        offsets: dict[TopicPartition, int],
        then: Then | None = None,
        check_waiter: Callable[[], object] = lambda: None,
    ) -> None:
        """``then`` is called with the outcome first, by the thread that sends. ``check_waiter`` is called
        before a wait, and raises where that would not end."""
        super().__init__()
        self.offsets = offsets
        self._then = then
        self._check_waiter = check_waiter
        self._callbacks: deque[Callable[[Future[None]], Any]] = deque()
        self._failure: KafkaError | None = None
        self._has_ended = False
        self._news = LocklessCondition()
        self.set_running_or_notify_cancel()

    def end(self, failure: KafkaError | None) -> None:
        """It was committed, or was not for ``failure``."""
        if self._then is not None:
            self._then(failure)
        self._failure, self._has_ended = failure, True
        self._news.notify_all()
        if failure is None:
            self.set_result(None)
        else:
            self.set_exception(failure)
        while self._callbacks:
            try:
                self._call_back()
            except BaseException:  # noqa: BLE001 - its sys.exit() must not end the thread that sends all commits
                _LOG.exception("a callback of a commit ended its thread, which goes on")

    def add_done_callback(self, fn: Callable[[Future[None]], Any]) -> None:
        """As `Future.add_done_callback`: the thread that sends calls it, or this call if it has ended."""
        self._callbacks.append(fn)
        if self._has_ended:
            self._call_back()

    def _call_back(self) -> None:
        try:
            callback = self._callbacks.popleft()
        except IndexError:
            return  # another thread has called it
        try:
            callback(self)
        except Exception:  # noqa: BLE001 - as `Future`
            _LOG.exception("a callback of a commit failed")

    def wait(self, deadline: Deadline | None) -> bool:
        """Wait until it has ended; False if ``deadline`` passed first. Raises as ``check_waiter``."""
        if not self._has_ended:
            self._check_waiter()
        return self._news.wait_for(lambda: self._has_ended, deadline)

    def done(self) -> bool:
        """As `Future.done`."""
        return self._has_ended

    def result(self, timeout: float | None = None) -> None:
        """As `Future.result`."""
        if (failure := self.exception(timeout)) is not None:
            raise failure

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """As `Future.exception`."""
        if not self.wait(None if timeout is None else Deadline.after_ms(timeout * 1000)):
            raise TimeoutError
        return self._failure
