"""`LogThrottle`: limits log lines about events that may occur a thousand times a second, such as retries."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

INTERVAL_S: Final = 10.0
"""Minimum interval between log lines of one kind."""
MAX_KINDS: Final = 256
"""Limit of remembered kinds, which include names of topics and brokers. Further new kinds within the interval
count as one."""
_OTHERS: Final = object()


class LogThrottle:
    """Writes to ``log``. Any thread may use it; at worst a line appears twice."""

    def __init__(
        self, log: logging.Logger, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._interval_s = interval_s
        self._clock = clock
        self._logged: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        self._new_since = float("-inf")
        self._new = 0

    @property
    def kinds(self) -> int:
        """The number of remembered kinds."""
        return len(self._logged)

    def info(self, kind: Hashable, message: str, *arguments: object) -> None:
        """Log ``message % arguments`` at INFO, unless a line of this ``kind`` was logged within the interval.
        The next line says how many were left out.
        """
        self._log_line(logging.INFO, kind, message, arguments)

    def warning(self, kind: Hashable, message: str, *arguments: object) -> None:
        """As `info`, at WARNING."""
        self._log_line(logging.WARNING, kind, message, arguments)

    def _log_line(self, level: int, kind: Hashable, message: str, arguments: tuple[object, ...]) -> None:
        if not self._log.isEnabledFor(level):
            return
        now = self._clock()
        kind = self._kind(kind, now)
        logged_at, left_out = self._logged.get(kind, (float("-inf"), 0))
        if now - logged_at < self._interval_s:
            self._logged[kind] = logged_at, left_out + 1
            return
        self._logged[kind] = now, 0
        while len(self._logged) > MAX_KINDS:
            self._logged.popitem(last=False)
        more = f" ({left_out} more like it since the last line)" if left_out else ""
        self._log.log(level, message + more, *arguments)

    def _kind(self, kind: Hashable, now: float) -> Hashable:
        """``kind``, or a common kind if there were too many new kinds to remember each of them until it
        recurs.
        """
        if kind in self._logged:
            return kind
        if now - self._new_since >= self._interval_s:
            self._new_since, self._new = now, 0
        self._new += 1
        return kind if self._new <= MAX_KINDS else _OTHERS
