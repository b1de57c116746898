"""`Deadline`: a moment that an operation and everything below it must not outlive."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds that only ever grow, as `time.monotonic`."""


class Wakeup:
    """A pipe that is readable after `set`, until `clear`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._is_set = False
        # A late `set` must not write to a descriptor that belongs to somebody else by now.
        # Reentrant: the handler of a signal may close the client.
        self.lock = threading.RLock()

    def fileno(self) -> int:
        """What to wait for."""
        return self._read

    @property
    def is_set(self) -> bool:
        """Whether it was set and not cleared since."""
        return self._is_set

    def set(self) -> None:
        """End the current wait or the next one; does nothing once closed. Only the first call costs a system
        call."""
        if self._is_set:
            return
        with self.lock:
            with contextlib.suppress(BlockingIOError):  # full: it is readable anyway
                if self._write >= 0:  # nothing is called in between, where a signal's handler might close it
                    os.write(self._write, b"\0")
            # Last: an interrupt before this must not make others believe that it was written.
            self._is_set = True

    def look(self) -> None:
        """Call where it was found readable, before `is_set` is asked: it is readable before `set` comes to
        note that it is set, and an interrupt may keep it from that.
        """
        with self.lock:
            if not self._is_set and self._read >= 0:
                poller = select.poll()
                poller.register(self._read, select.POLLIN)
                self._is_set = bool(poller.poll(0))

    def clear(self) -> None:
        """Call before looking for work: what comes after this wakes again."""
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
    """A moment on a monotonic clock. Passed down instead of a timeout, so that nested waits can't add up.

    It may come early: once a wakeup is set, there is no time left for anybody below (`or_when`).
    """

    __slots__ = ("_at", "_wakeup", "clock")

    def __init__(self, at: float, clock: Clock = time.monotonic, wakeup: Wakeup | None = None) -> None:
        self._at = at
        self.clock = clock
        self._wakeup = wakeup

    @classmethod
    def after_ms(cls, timeout_ms: float, clock: Clock = time.monotonic) -> Deadline:
        """The moment ``timeout_ms`` milliseconds from now."""
        return cls(clock() + timeout_ms / 1000, clock)

    @classmethod
    def of(cls, timeout: Timeout, default_ms: float) -> Deadline:
        """What a caller gave as ``timeout``; without one the moment ``default_ms`` from now."""
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
        """Whether nothing is left."""
        return self.clock() >= self._at or (self._wakeup is not None and self._wakeup.is_set)

    @property
    def called_off(self) -> bool:
        """Whether nobody wants any more what has this deadline."""
        return self._wakeup is not None and self._wakeup.is_set

    def within_ms(self, timeout_ms: float) -> Deadline:
        """This moment or ``timeout_ms`` from now, whichever comes first."""
        return Deadline(min(self._at, self.clock() + timeout_ms / 1000), self.clock, self._wakeup)

    def from_now_ms(self, timeout_ms: float) -> Deadline:
        """The moment ``timeout_ms`` from now, be it later than this one; called off together with it."""
        return Deadline(self.clock() + timeout_ms / 1000, self.clock, self._wakeup)

    def or_when(self, wakeup: Wakeup) -> Deadline:
        """This moment, or at once when ``wakeup`` is set, which must stay open meanwhile."""
        return Deadline(self._at, self.clock, wakeup)

    def poll(self, poller: select.poll) -> list[tuple[int, int]]:
        """What is ready of what ``poller`` has, with its events; nothing when this comes first."""
        # Rounded up: poll(0) in the last millisecond would spin.
        wakeup, timeout_ms = self._wakeup, int(self.remaining_ms) + 1
        if wakeup is None or (also := wakeup.fileno()) < 0:
            return poller.poll(timeout_ms)
        poller.register(also, select.POLLIN)
        ready = poller.poll(timeout_ms)
        found = [one for one in ready if one[0] != also]
        if len(found) < len(ready):
            wakeup.look()  # so that it is `called_off` to whoever asks why nothing came
        return found


Timeout = float | Deadline | None
"""Seconds for a call with all that it waits for; or a `Deadline`, which several calls may share; or None: the
client's setting for such calls."""
