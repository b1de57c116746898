"""`Wakeup`: lets any thread end another one's wait for its sockets."""

from __future__ import annotations

import contextlib
import os
import select
import threading


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
