"""What a signal's handler may run between any two steps of the main thread, run at a chosen one of them.

CPython runs handlers where a function begins, after a call of a C function, after a call with ``*arguments``,
and where a loop begins anew. `sys.setprofile` hears of the first three.
"""

import _weakrefset
import contextlib
import dis
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType

_DROPPING = (weakref.__file__, _weakrefset.__file__)
_CALL_WITH_STAR = dis.opmap["CALL_FUNCTION_EX"]


def is_step(frame: FrameType, event: str) -> bool:
    """True if a handler could run at this event. One that raises at a return loses the result."""
    if event == "return" and (caller := frame.f_back) is not None:
        return caller.f_code.co_code[caller.f_lasti] == _CALL_WITH_STAR
    return event in ("call", "c_return")


def steps_of(call: Callable[[], object]) -> int:
    """At how many steps of ``call`` a handler could run."""
    count = 0

    def look(frame: FrameType, event: str, _what: object) -> None:
        nonlocal count
        count += is_step(frame, event)

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def run_at(step: int, handler: Callable[[], object], call: Callable[[], object]) -> bool:
    """Run ``call``, and ``handler`` within it at that step (0 is the first). Whether it came so far."""
    left, ran = step, False

    def look(frame: FrameType, event: str, _what: object) -> None:
        nonlocal left, ran
        if not is_step(frame, event):
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


@contextlib.contextmanager
def interrupted_at(step: int, *, below: bool = False) -> Iterator[list[bool]]:
    """A KeyboardInterrupt at that step of our own functions (0 is the first); says whether it came so far.

    ``below``: or of what they call, such as the standard library's. Where Python drops exceptions (the
    collector may free what an earlier interrupt has left behind), it comes later.
    """
    left, came = step, list[bool]()

    def counts(file: str) -> bool:
        return file not in (__file__, contextlib.__file__) if below else "spark_kafka_native" in file

    def drops(frame: FrameType | None) -> bool:
        """True in destructors and callbacks of weak references, and where a generator expression that was
        not used up may be closed."""
        while (
            frame is not None
            and frame.f_code.co_filename not in _DROPPING
            and frame.f_code.co_name not in ("__del__", "<genexpr>")
        ):
            frame = frame.f_back
        return frame is not None

    def look(frame: FrameType, event: str, _what: object) -> None:
        nonlocal left
        if came or not is_step(frame, event) or not counts(frame.f_code.co_filename):
            return
        if left > 0:
            left -= 1
        elif not drops(frame):
            came.append(True)
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        yield came
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
