"""`Wakeup`: lets any thread end the sender's wait for its sockets."""

from __future__ import annotations

import contextlib
import os


class Wakeup:
    """A pipe that is readable after `set`, until `clear`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._is_set = False

    def fileno(self) -> int:
        """What to wait for."""
        return self._read

    def set(self) -> None:
        """End the wait, now or the next one. Costs a system call only the first time."""
        if not self._is_set:
            self._is_set = True
            with contextlib.suppress(OSError):  # full: it is readable anyway; closed: nobody waits
                os.write(self._write, b"\0")

    def clear(self) -> None:
        """Before looking for what there is to do: what comes after this wakes again."""
        with contextlib.suppress(OSError):
            os.read(self._read, 4096)
        self._is_set = False

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._read)
        os.close(self._write)
