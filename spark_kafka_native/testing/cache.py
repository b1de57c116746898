"""The project's folder in the user's cache, shared by every process of this user.

This module is independent of the folder's contents.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE_VARIABLE = "SPARK_KAFKA_NATIVE_CACHE"


def cache_folder() -> Path:
    """``$SPARK_KAFKA_NATIVE_CACHE``, else ``spark-kafka-native`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        folder = Path(named)
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "spark-kafka-native")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` against all other processes; waits for as long as another one holds it.

    The kernel drops the lock when its holder dies, so a killed process blocks no other.
    """
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
