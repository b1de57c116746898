"""`make jitter` holds up the product's threads, and only those."""

from __future__ import annotations

from pathlib import Path

from support.inner_pytest import run_pytest

CONFTEST = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import threading
from support.hooks import jitter
from support.hooks.jitter import pytest_configure, pytest_runtest_call
jitter.HELD_UP, jitter.LATE, jitter.PRODUCT, jitter.held = 1.0, 1.0, "test_some.py", []
jitter._sleep = lambda _: jitter.held.append(threading.current_thread().name)
"""
TESTS = """
import os, threading
from support.hooks import jitter

def product():
    pass

def test_the_main_thread():
    jitter.held.clear()
    product()
    assert jitter.held == ["MainThread"]

def test_another_thread():
    jitter.held.clear()
    thread = threading.Thread(target=product, name="other")
    thread.start()
    thread.join(60)
    assert jitter.held == ["other"] * 2  # before it begins, and in the call

def test_calls_of_others():
    jitter.held.clear()
    os.path.join("a", "b")
    assert jitter.held == []
"""


def test_calls_within_the_product_are_held_up(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, CONFTEST, TESTS)
    assert "3 passed" in ran.stdout, ran.stdout + ran.stderr
