"""What a signal's handler may run between any two steps of the main thread, run at a chosen one of them.

CPython runs handlers where a function begins, after a call of a C function, and where a loop begins
anew. `sys.setprofile` hears of the first two.
"""

import sys
from collections.abc import Callable
from types import FrameType


def steps_of(call: Callable[[], object]) -> int:
    """At how many steps of ``call`` a handler could run."""
    count = 0

    def look(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal count
        count += event in ("call", "c_return")

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def run_at(step: int, handler: Callable[[], object], call: Callable[[], object]) -> bool:
    """Run ``call``, and ``handler`` within it at that step (0 is the first). Whether it came so far."""
    left, ran = step, False

    def look(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal left, ran
        if event not in ("call", "c_return"):
            return
        if left == 0:
            sys.setprofile(None)
            ran = True
            handler()
        left -= 1

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return ran
