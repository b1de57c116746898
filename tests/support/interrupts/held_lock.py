"""A lock that another thread holds, as one may at the moment of a fork."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def held_by_another_thread(lock: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    """Until the end of the ``with``."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    yield
    done.set()
    holder.join(60)
