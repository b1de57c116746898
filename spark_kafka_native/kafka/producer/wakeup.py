"""`Wakeup`: lets any thread end the sender's wait for its sockets."""

from __future__ import annotations

import contextlib
import os
import threading


class Wakeup:
    """A pipe that is readable after `set`, until `clear`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._is_set = False
        # A late `set` must not write to a descriptor that is somebody else's by now.
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """What to wait for."""
        return self._read

    def set(self) -> None:
        """End the wait, now or the next one; nothing once closed. Costs a system call only the first time."""
        if self._is_set:
            return
        with self._lock:
            if self._write >= 0:
                self._is_set = True
                with contextlib.suppress(BlockingIOError):  # full: it is readable anyway
                    os.write(self._write, b"\0")

    def clear(self) -> None:
        """Before looking for what there is to do: what comes after this wakes again."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)
        self._is_set = False

    def close(self) -> None:
        """Close the pipe."""
        with self._lock:
            read, write, self._read, self._write = self._read, self._write, -1, -1
        for descriptor in (read, write):
            if descriptor >= 0:
                os.close(descriptor)
