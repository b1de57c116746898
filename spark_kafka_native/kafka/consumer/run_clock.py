"""`RunClock`: seconds that count only while the fetch itself is running."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from ..runtime.deadline import Clock


class RunClock:
    """A clock that stands still outside of `running`: while the caller is busy with its records, no broker is
    late.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._ran = 0.0
        self._since: float | None = None

    def now(self) -> float:
        """Seconds that it has run for."""
        return self._ran if self._since is None else self._ran + self._clock() - self._since

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The time within counts."""
        self._since = self._clock()
        try:
            yield
        finally:
            self._ran, self._since = self.now(), None
