"""`PendingCommit`: a commit that is on its way, and the future of its outcome."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from ..errors import KafkaError
from ..model import TopicPartition
from ..runtime.deadline import Deadline
from ..runtime.waiting import LocklessCondition

Then = Callable[[KafkaError | None], object]


class PendingCommit(Future[None]):
    """The thread that sends it calls `end`; any other thread may wait.

    `Future.result` waits in a `threading.Condition`: interrupted there, a caller leaves the lock of the
    future taken, and the thread that sends would wait for it for ever, and with it all later commits. So the
    waits here do without that lock.
    """

    def __init__(self, offsets: dict[TopicPartition, int], then: Then | None = None) -> None:
        """``then`` is called with the outcome first, by the thread that sends."""
        super().__init__()
        self.offsets = offsets
        self._then = then
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

    def wait(self, deadline: Deadline | None) -> bool:
        """Wait until it has ended; False if ``deadline`` passed first."""
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
