"""Waiting for a condition, in place of a sleep."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], object], what: str = "it", seconds: float = 120) -> None:
    """Wait until ``holds()`` is true. Fails after ``seconds``, which no test takes unless it fails."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come true within {seconds:g} s"
        time.sleep(0.005)
