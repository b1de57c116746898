"""A test fails for the threads that it leaves behind, and only for those."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONFTEST = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support.hooks import leaks
from support.hooks.leaks import pytest_runtest_setup, pytest_runtest_teardown
leaks.GRACE_S = 0.5
"""
TESTS = """
import threading, time
import pytest

over = threading.Event()

def start(name, daemon=True):
    threading.Thread(target=over.wait, args=(60,), name=name, daemon=daemon).start()

def test_of_a_mock_broker():
    start("mock-broker-1")

def test_that_keeps_the_interpreter():
    start("mine", daemon=False)

def test_of_a_router_that_stays():
    start("kafka-lookup")

def test_whose_thread_ends_soon():
    threading.Thread(target=time.sleep, args=(0.1,), name="mock-broker-2", daemon=True).start()

@pytest.fixture(scope="module")
def shared():
    start("mock-broker-3")

def test_with_a_broker_of_the_module(shared):
    pass

def test_the_end():
    over.set()
"""


def test_threads_that_are_left_behind_fail_their_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:randomly -p no:cacheprovider\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert "6 passed, 2 errors" in ran.stdout, ran.stdout + ran.stderr
    assert "ERROR test_some.py::test_of_a_mock_broker" in ran.stdout
    assert "the test left threads behind: mock-broker-1" in ran.stdout
    assert "ERROR test_some.py::test_that_keeps_the_interpreter" in ran.stdout
    assert "the test left threads behind: mine" in ran.stdout
