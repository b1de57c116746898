"""pytest plugin of `make jitter`: each thread is held up at random calls within the product, mostly for some
milliseconds, now and then as long as on a busy machine; some begin as late. Races show that otherwise wait
for such a machine.

Not part of other runs. The delays are not the same again: threads draw them in the order in which they run.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from types import FrameType

import pytest

HELD_UP, FOR_LONG = 0.003, 0.0001
"""Chances of a call."""
LATE = 0.1
"""Chance of a thread: it begins when what it was started for may be over."""
SHORT_S, LONG_S = (0.0, 0.02), (0.05, 0.4)
PRODUCT = "/spark_kafka_native/"

_RUN = threading.Thread.run.__code__
_draw = random.Random()
_sleep = time.sleep  # tests replace the module's


def hold_up(frame: FrameType, event: str, _: object) -> None:
    """The profile function of a thread: Python calls it at each call and each return."""
    if event != "call":
        return
    chance = _draw.random()
    if frame.f_code is _RUN and chance < LATE:
        _sleep(_draw.uniform(*LONG_S))
    if chance < HELD_UP and PRODUCT in frame.f_code.co_filename:
        _sleep(_draw.uniform(*(LONG_S if chance < FOR_LONG else SHORT_S)))


def pytest_configure() -> None:
    threading.setprofile(hold_up)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> object:
    """The main thread within tests only, not in pytest's own work."""
    sys.setprofile(hold_up)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
