"""`released`: waiting without the locks that this thread holds.

Nobody waits with a lock in hand, but for a signal's handler: it may have interrupted its own thread anywhere,
and what it waits for may need the locks that are held there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator


def is_held(lock: threading.RLock) -> bool:
    """Whether this thread holds ``lock``."""
    try:
        lock.release()
    except RuntimeError:
        return False
    lock.acquire()
    return True


@contextlib.contextmanager
def released(locks: Iterable[threading.RLock]) -> Iterator[None]:
    """Release those of ``locks`` that this thread holds until the end of the block, as
    `threading.Condition.wait` does with one. They are named from the outermost to the innermost.

    What they guard may have changed when the code that was interrupted goes on.
    """
    held: list[threading.RLock] = []
    try:
        for lock in locks:
            with contextlib.suppress(RuntimeError):  # it is not, or no more, this thread's
                while True:
                    lock.release()
                    held.append(lock)
        yield
    finally:
        for lock in held:
            lock.acquire()
