"""`Waiters`: threads that wait until the sender has got somewhere; not in a forked child, where it never
will."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ..observe.metrics import MetricsRegistry
from ..runtime.deadline import Deadline
from ..runtime.waiting import LocklessCondition
from .errors import ProducerClosedError


class Waiters(LocklessCondition):
    """Who waits for the sender."""

    def __init__(self, metrics: MetricsRegistry | None = None) -> None:
        super().__init__()
        self.metrics = metrics or MetricsRegistry()
        self.lock = threading.RLock()
        """Guards what deliveries know, all of them: nobody holds it for long."""
        self._process_id = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this is a process forked from the producer's: nothing ends there any more."""
        return os.getpid() != self._process_id

    def check_process(self) -> None:
        """Raise `ProducerClosedError` where the process is `forked`."""
        if self.forked:
            raise ProducerClosedError(
                "the producer was made in another process (before a fork); make one in this process"
            )

    def wait_for(self, predicate: Callable[[], bool], deadline: Deadline | None) -> bool:
        """Wait until ``predicate`` is true; False if ``deadline`` passed first. Raises as `check_process`."""

        def look() -> bool:
            if predicate():
                return True
            self.check_process()
            return False

        return super().wait_for(look, deadline)
