"""What fails while the machine stands still is run again, with new fixtures; otherwise it has failed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.hooks.reruns import STOOD_STILL_S, Pace
from support.inner_pytest import run_pytest

CONFTEST = f"""
import os, signal, subprocess, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import pytest
from support.hooks.reruns import pytest_configure, pytest_runtest_protocol, pytest_terminal_summary

made = []

def stand_still():
    # A process of another session goes on, and makes those of this one go on.
    code = "import os, signal, sys, time; time.sleep(0.5); os.killpg(int(sys.argv[1]), signal.SIGCONT)"
    subprocess.Popen([sys.executable, "-c", code, str(os.getpgid(0))], start_new_session=True)
    os.killpg(0, signal.SIGSTOP)

@pytest.fixture(scope="module")
def brittle():
    made.append("brittle")
    if made.count("brittle") == 1:
        stand_still()
        raise RuntimeError("not ready in time")
    return len(made)

@pytest.fixture
def fresh():
    made.append("fresh")
    return made.count("fresh")
"""
TESTS = """
import pytest
from conftest import made, stand_still

pytestmark = pytest.mark.timed(0.3)

def test_after_a_fixture_that_failed(brittle):
    assert brittle == 2

def test_in_vain_at_first(fresh):
    if fresh == 1:
        stand_still()
    assert fresh == 2, "it was the first time"

def test_in_vain_always():
    made.append("always")
    stand_still()
    assert made.count("always") == 0, "all in vain"

def test_how_often():
    assert made.count("always") == 4
"""


def test_only_what_fails_while_the_machine_stands_still_is_run_again(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, CONFTEST, TESTS)
    assert "1 failed, 3 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "test_some.py::test_in_vain_at_first ran again, as the machine had stood still for" in ran.stdout
    assert "it was the first time" in ran.stdout
    assert "not ready in time" in ran.stdout
    assert "Rescued by a second run: 0 after a failure, 2 after a stall." in ran.stdout


GIVES_UP = """
from conftest import made

def test_spark_gives_up(fresh):
    if fresh == 1:
        raise RuntimeError("Python worker failed to connect back.\\n=== Streaming Query ===")

def test_spark_says_something_else(fresh):
    assert fresh != 3, "Python worker exited unexpectedly (crashed)"
"""


def test_what_spark_gave_up_on_in_ten_seconds_runs_again(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, CONFTEST, GIVES_UP)
    assert "1 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "test_some.py::test_spark_gives_up ran again, as a Python process of Spark's had not" in ran.stdout
    assert "test_spark_says_something_else ran again" not in ran.stdout
    assert "Rescued by a second run: 0 after a failure, 1 after a stall." in ran.stdout


RACES = """
from conftest import made

def races(name):
    made.append(name)
    assert made.count(name) == 2, f"{name} failed once"

def test_the_first():
    races("the first")

def test_in_vain():
    assert not "in vain"

def test_one_too_many():
    races("one too many")
"""


@pytest.mark.parametrize(("chances", "passed"), [("0", 0), ("2", 1), ("3", 2)])
def test_second_chances_are_few_and_named(tmp_path: Path, chances: str, passed: int) -> None:
    ran = run_pytest(tmp_path, CONFTEST, RACES, chances=chances)
    assert f"{3 - passed} failed" in ran.stdout, ran.stdout + ran.stderr
    said = "test_some.py::test_the_first ran again, as it failed once: A DEFECT"
    assert (said in ran.stdout) == (passed > 0)


def test_a_long_error_is_shown_from_its_beginning(tmp_path: Path) -> None:
    """The exception of a query of Spark's ends with its plan."""
    once = "ran = []\ndef test_one():\n    ran.append(1)\n    assert len(ran) == 2, 'why\\n' + 'plan\\n' * 50"
    ran = run_pytest(tmp_path, CONFTEST, once, chances="2")
    _, _, shown = ran.stdout.partition("ran again")
    assert "AssertionError: why" in shown
    assert 12 < shown.count("plan") < 40


@pytest.mark.parametrize(("rescued", "code"), [(2, 0), (3, 1)])
def test_more_rescues_than_second_chances_fail_the_run(tmp_path: Path, rescued: int, code: int) -> None:
    """Counted over all processes, each of which gives its own."""
    once = "ran = []\ndef test_{0}():\n    ran.append(1)\n    assert len(ran) == 2\n"
    for number in range(rescued):
        (tmp_path / f"test_{number}.py").write_text(once.format(number))
    ran = run_pytest(tmp_path, CONFTEST, "", "-n", "3", "--dist", "loadfile", chances="2")
    assert f"{rescued} passed" in ran.stdout, ran.stdout + ran.stderr
    assert f"Rescued by a second run: {rescued} after a failure, 0 after a stall." in ran.stdout
    assert ("More than 2 after a failure fail the run." in ran.stdout) == (rescued > 2)
    assert ran.returncode == code


def test_the_clock_is_looked_at_all_the_while() -> None:
    pace = Pace()
    pace.latest_s()
    time.sleep(0.2)
    late_s = pace.latest_s()
    pace.close()
    assert 0 <= late_s < STOOD_STILL_S  # or the machine has stood still, and this is run again


STARVES = """
import os, signal, subprocess, sys

def test_alone(fresh):
    if fresh == 1:
        code = "import os, signal, sys, time; time.sleep(1); os.kill(int(sys.argv[1]), signal.SIGCONT)"
        subprocess.Popen([sys.executable, "-c", code, str(os.getpid())])
        os.kill(os.getpid(), signal.SIGSTOP)
    assert fresh == 2, "it was the first time"
"""


def test_a_process_that_stands_still_alone_is_not_excused(tmp_path: Path) -> None:
    """As where its threads starve each other: the clock is in another process."""
    ran = run_pytest(tmp_path, CONFTEST, STARVES)
    assert "1 failed" in ran.stdout, ran.stdout + ran.stderr
    assert "ran again" not in ran.stdout
