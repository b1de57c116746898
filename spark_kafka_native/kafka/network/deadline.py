"""`Deadline`: a moment that an operation and everything below it must not outlive."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds that only ever grow, as `time.monotonic`."""


class Deadline:
    """A moment on a monotonic clock. Passed down instead of a timeout, so that nested waits can't add up."""

    __slots__ = ("_at", "clock")

    def __init__(self, at: float, clock: Clock = time.monotonic) -> None:
        self._at = at
        self.clock = clock

    @classmethod
    def after_ms(cls, timeout_ms: float, clock: Clock = time.monotonic) -> Deadline:
        """The moment ``timeout_ms`` milliseconds from now."""
        return cls(clock() + timeout_ms / 1000, clock)

    @property
    def remaining_ms(self) -> float:
        """Milliseconds left, never below 0."""
        return max(0.0, (self._at - self.clock()) * 1000)

    @property
    def expired(self) -> bool:
        """Whether nothing is left."""
        return self.clock() >= self._at

    def within_ms(self, timeout_ms: float) -> Deadline:
        """This moment or ``timeout_ms`` from now, whichever comes first."""
        return Deadline(min(self._at, self.clock() + timeout_ms / 1000), self.clock)
