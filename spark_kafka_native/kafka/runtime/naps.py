"""`Naps`: threads that wait until another one has got somewhere.

No lock is held while waiting, and none has to be taken again afterwards: an interrupt (Ctrl-C raises anywhere
in the main thread, between two bytecodes too) leaves nothing locked, as it may with `threading.Condition`.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from .deadline import Deadline

MAX_NAP_S = 1.0
"""Nothing is missed by sleeping longer: an interrupt may have kept somebody from waking the others."""


class Naps:
    """Who waits. Any thread may `wake` all of them, or `wait` for what another thread makes true."""

    def __init__(self) -> None:
        self._waiting: deque[threading.Lock] = deque()

    def wake(self) -> None:
        """Let everybody look again."""
        with contextlib.suppress(IndexError):
            while self._waiting:
                self._waiting.popleft().release()

    def wait(self, ended: Callable[[], bool], deadline: Deadline | None) -> bool:
        """Wait until ``ended``; False when ``deadline`` came first."""
        while not ended():
            nap = threading.Lock()
            nap.acquire()
            self._waiting.append(nap)
            try:
                if ended():  # it may have ended before anybody knew of this nap
                    return True
                if deadline is not None and deadline.expired:
                    return ended()
                left_s = MAX_NAP_S if deadline is None else deadline.remaining_ms / 1000
                nap.acquire(timeout=min(MAX_NAP_S, left_s))
            finally:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(nap)
        return True
