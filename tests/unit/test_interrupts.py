"""A test run that a shell started in the background hears SIGINT; interrupts of tests are not dropped."""

from __future__ import annotations

import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

from support.interrupts.signal_steps import interrupted_at

from spark_kafka_native.kafka.runtime.deadline import Deadline

SCRIPT = f"""
import os, signal, subprocess, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support.hooks.interrupts import hear_interrupts

signal.signal(signal.SIGINT, signal.SIG_IGN)
os.kill(os.getpid(), signal.SIGINT)
hear_interrupts()
interrupted = [sys.executable, "-c", "import os; os.kill(os.getpid(), 2)"]
child = subprocess.run(interrupted, stderr=subprocess.DEVNULL)
print(child.returncode)
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_it_and_its_children_hear_an_interrupt_that_was_ignored() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert ran.stdout == f"{-signal.SIGINT}\ninterrupted\n", ran.stderr


def test_this_run_hears_them() -> None:
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_an_interrupt_comes_after_the_end_of_a_generator_expression() -> None:
    """`all` leaves it before its end, and what it raises while it is closed is dropped."""
    namespace: dict[str, Any] = {}
    code = compile("def first(values):\n return all(value for value in values)", "spark_kafka_native", "exec")
    exec(code, namespace)
    namespace["first"]([0])
    for step in range(10):
        with interrupted_at(step) as came:
            namespace["first"]([0, 1])
            Deadline.after_ms(0)
        if not came:
            break
    assert step > 3


def test_an_interrupt_comes_after_a_finalizer_that_would_drop_it() -> None:
    """Else it is gone, and what an earlier one has left behind stays: a thread, say."""

    class Left:
        pass

    left, ran = Left(), list[Deadline]()
    weakref.finalize(left, lambda: ran.append(Deadline.after_ms(0)))
    with interrupted_at(0) as came:
        del left
        assert not came
        Deadline.after_ms(0)
        raise AssertionError("it did not come")
    assert came
    assert len(ran) == 1
