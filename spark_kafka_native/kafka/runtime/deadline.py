"""`Deadline`: a limit for an operation and everything below it; `Wakeup`: ends a thread's wait for its
sockets; `LoopTimer`: when a thread's loop has to run again.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable

Clock = Callable[[], float]
"""A monotonic clock in seconds, as `time.monotonic`."""


class Wakeup:
    """A pipe that is readable from `set` to `clear`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._is_set = False
        # A late `set` must not write to a descriptor that was closed and reused. Re-entrant: a signal handler
        # may close the client.
        self.lock = threading.RLock()

    def fileno(self) -> int:
        """The file descriptor to poll."""
        return self._read

    @property
    def is_set(self) -> bool:
        """True if it was set and not cleared since."""
        return self._is_set

    def set(self) -> None:
        """End the current wait or the next one; does nothing once closed. Only the first call costs a system
        call.
        """
        if self._is_set:
            return
        with self.lock:
            with contextlib.suppress(BlockingIOError):  # full: it is readable anyway
                if self._write >= 0:  # no call in between, at which a signal handler could close it
                    os.write(self._write, b"\0")
            # Last: after an interrupt before this, `is_set` must not claim that the byte was written.
            self._is_set = True

    def refresh(self) -> None:
        """Update `is_set` after the descriptor was found readable: it is readable before `set` assigns
        `is_set`, and an interrupt may prevent that assignment.
        """
        with self.lock:
            if not self._is_set and self._read >= 0:
                poller = select.poll()
                poller.register(self._read, select.POLLIN)
                self._is_set = bool(poller.poll(0))

    def clear(self) -> None:
        """Call before looking for work: a `set` after this wakes the thread again."""
        with self.lock:
            with contextlib.suppress(BlockingIOError):
                os.read(self._read, 4096)
            self._is_set = False

    def close(self) -> None:
        """Close the pipe."""
        with self.lock:
            read, write, self._read, self._write = self._read, self._write, -1, -1
        for descriptor in (read, write):
            if descriptor >= 0:
                os.close(descriptor)


class Deadline:
    """A limit on a monotonic clock. It is passed down instead of a timeout, so that nested waits do not add
    up.

    With a wake-up (`with_wakeup`) it expires as soon as that is set.
    """

    __slots__ = ("_at", "_wakeup", "clock")

    def __init__(self, at: float, clock: Clock = time.monotonic, wakeup: Wakeup | None = None) -> None:
        self._at = at
        self.clock = clock
        self._wakeup = wakeup

    @classmethod
    def after_ms(cls, timeout_ms: float, clock: Clock = time.monotonic) -> Deadline:
        """The deadline ``timeout_ms`` milliseconds from now."""
        return cls(clock() + timeout_ms / 1000, clock)

    @classmethod
    def of(cls, timeout: Timeout, default_ms: float) -> Deadline:
        """The deadline that a caller gave as ``timeout``; without one, ``default_ms`` from now."""
        if isinstance(timeout, Deadline):
            return timeout
        return cls.after_ms(default_ms if timeout is None else timeout * 1000)

    @property
    def remaining_ms(self) -> float:
        """Milliseconds left, never below 0."""
        if self._wakeup is not None and self._wakeup.is_set:
            return 0.0
        return max(0.0, (self._at - self.clock()) * 1000)

    @property
    def expired(self) -> bool:
        """True if no time is left."""
        return self.clock() >= self._at or (self._wakeup is not None and self._wakeup.is_set)

    @property
    def cancelled(self) -> bool:
        """True if the operation was cancelled by its wake-up."""
        return self._wakeup is not None and self._wakeup.is_set

    def within_ms(self, timeout_ms: float) -> Deadline:
        """This deadline or ``timeout_ms`` from now, whichever is earlier."""
        return Deadline(min(self._at, self.clock() + timeout_ms / 1000), self.clock, self._wakeup)

    def from_now_ms(self, timeout_ms: float) -> Deadline:
        """``timeout_ms`` from now, even if that is later than this deadline; cancelled by the same
        wake-up.
        """
        return Deadline(self.clock() + timeout_ms / 1000, self.clock, self._wakeup)

    def with_wakeup(self, wakeup: Wakeup) -> Deadline:
        """This deadline, which now also expires when ``wakeup`` is set. ``wakeup`` must stay open
        meanwhile.
        """
        return Deadline(self._at, self.clock, wakeup)

    def poll(self, poller: select.poll) -> list[tuple[int, int]]:
        """The ready descriptors of ``poller`` with their events; empty if this deadline passed first."""
        # Rounded up: poll(0) in the last millisecond would spin.
        wakeup, timeout_ms = self._wakeup, int(self.remaining_ms) + 1
        if wakeup is None or (also := wakeup.fileno()) < 0:
            return poller.poll(timeout_ms)
        poller.register(also, select.POLLIN)
        ready = poller.poll(timeout_ms)
        found = [one for one in ready if one[0] != also]
        if len(found) < len(ready):
            wakeup.refresh()  # so that `cancelled` is true for a caller that asks why nothing was ready
        return found


Timeout = float | Deadline | None
"""How long a call may take, including all its waits: seconds, a `Deadline` (which several calls may share),
or None for the client's setting."""


MAX_WAIT_S = 3_600.0
"""Where nothing has to be done at any known time."""


class LoopTimer:
    """The thread of the loop owns it: each step of a turn says by when it has to run again."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
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
