"""A test run that a shell started in the background hears SIGINT."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

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
