"""`LoopTimer`: when the sender's loop has to run again."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_WAIT_S = 3_600.0
"""Where nothing has to be done at any known time."""


class LoopTimer:
    """The sender's thread owns it: each step of a turn says by when it has to run again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.next_at = 0.0
        """Monotonic seconds: the latest time at which something has to be done."""

    def start_turn(self) -> float:
        """A turn of the loop begins; returns the time."""
        now = self.clock()
        self.next_at = now + MAX_WAIT_S
        return now

    def by(self, moment: float) -> None:
        """Something has to be done by ``moment``."""
        self.next_at = min(self.next_at, moment)

    def at_once(self) -> None:
        """Something has to be done without waiting."""
        self.by(self.clock())
