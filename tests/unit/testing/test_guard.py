import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_kafka_native.testing import GuardError
from spark_kafka_native.testing.processes import Guard

SLEEPER = [sys.executable, "-S", "-c", "import time; print('up', flush=True); time.sleep(600)"]
# A process that SIGTERM does not end: one that is paused, or hangs.
DEAF = [
    sys.executable,
    "-S",
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\n"
    "time.sleep(600)",
]
# A process with a child of its own, both of which ignore SIGTERM.
FAMILY = [
    sys.executable,
    "-S",
    "-c",
    "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = os.fork()\n"
    "if child: print(child, flush=True)\n"
    "time.sleep(600)",
]
PARENT = """
import json, os, sys, time
from pathlib import Path
from spark_kafka_native.testing.processes import Guard
guard = Guard("guard-test-")
process = guard.start(json.loads(sys.argv[1]), output=guard.folder / "output")
if sys.argv[2] == "fork" and os.fork() == 0:
    os.close(1)
    time.sleep(20)
    os._exit(0)
while not (guard.folder / "output").read_text():
    time.sleep(0.01)
print(json.dumps({"guard": guard.pid, "folder": str(guard.folder), "pid": process.pid}), flush=True)
time.sleep(600)
"""


@pytest.fixture
def guard():
    guard = Guard("guard-test-")
    yield guard
    guard.close()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        pass
    else:
        return state != "Z"
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def eventually(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def family(guard: Guard) -> tuple[int, int]:
    output = guard.folder / "output"
    process = guard.start(FAMILY, output=output)
    eventually(lambda: output.exists() and output.read_text())
    return process.pid, int(output.read_text())


def test_close_ends_children_and_grandchildren_and_removes_the_folder(guard):
    parent, child = family(guard)
    folder = guard.folder
    assert alive(parent)
    assert alive(child)
    guard.close()
    assert not alive(parent)
    assert not folder.exists()
    eventually(lambda: not alive(child))
    guard.close()  # harmless


def test_exit_codes_and_signals(guard):
    output = guard.folder / "output"
    process = guard.start([sys.executable, "-c", "print('hello'); raise SystemExit(7)"], output=output)
    assert process.wait(60) == 7
    assert process.returncode == 7
    assert output.read_text() == "hello\n"
    assert not process.send(signal.SIGTERM)
    sleeper = guard.start(SLEEPER, output=output)
    with pytest.raises(TimeoutError, match=f"process {sleeper.pid} still runs"):
        sleeper.wait(0.1)
    assert sleeper.send(signal.SIGTERM)
    assert sleeper.wait(60) == -signal.SIGTERM


def test_what_a_dead_process_started_ends_too(guard):
    parent, child = family(guard)
    os.kill(parent, signal.SIGKILL)
    eventually(lambda: not alive(parent))
    process = guard.start(SLEEPER, output=guard.folder / "other")  # the guard is still at work
    from spark_kafka_native.testing.processes import GuardedProcess

    assert GuardedProcess(guard, parent).returncode == -signal.SIGKILL
    eventually(lambda: not alive(child))
    assert process.returncode is None


def test_a_program_that_is_not_there(guard):
    with pytest.raises(GuardError, match="/nowhere/java"):
        guard.start(["/nowhere/java"], output=guard.folder / "output")
    with pytest.raises(GuardError, match="no process 1 was started here"):
        guard._ask(verb="signal", pid=1, signal=9)


def test_environment_and_folder_of_a_process(guard):
    output = guard.folder / "output"
    process = guard.start(
        [sys.executable, "-c", "import os; print(os.getcwd(), os.environ['A'], 'HOME' in os.environ)"],
        output=output,
        env={"A": "b"},
    )
    assert process.wait(60) == 0
    assert output.read_text() == f"{guard.folder} b False\n"


def test_a_signal_handler_may_close_it_while_a_command_waits_for_its_answer(guard, monkeypatch):
    process = guard.start(SLEEPER, output=guard.folder / "output")
    os.kill(guard.pid, signal.SIGSTOP)  # it answers nothing

    def close(*_):
        os.kill(guard.pid, signal.SIGCONT)
        guard.close()

    def receive():
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return Guard._receive(guard)

    monkeypatch.setattr(guard, "_receive", receive)
    former = signal.signal(signal.SIGALRM, close)
    try:
        with pytest.raises(GuardError, match=f"guard process {guard.pid} is gone"):
            _ = process.returncode
    finally:
        signal.signal(signal.SIGALRM, former)
    assert not alive(process.pid)
    assert not guard.folder.exists()


def test_a_fork_that_closes_it_ends_nothing(guard):
    process = guard.start(SLEEPER, output=guard.folder / "output")
    child = os.fork()
    if child == 0:
        try:
            guard.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert process.returncode is None
    assert guard.folder.exists()


def test_a_fork_that_uses_it_is_refused(guard):
    """It would read an answer that the parent waits for."""
    process = guard.start(SLEEPER, output=guard.folder / "output")
    child = os.fork()
    if child == 0:
        try:
            guard.start(SLEEPER, output=guard.folder / "output")
        except GuardError:
            os._exit(7)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert process.returncode is None


def test_a_folder_that_can_not_be_made():
    with pytest.raises(GuardError, match=r"no temporary folder can be made: .*File name too long"):
        Guard("x" * 300)


def test_a_closed_guard_says_so(guard):
    guard.close()
    with pytest.raises(GuardError, match="closed"):
        guard.start(SLEEPER, output=guard.folder / "output")


@pytest.mark.parametrize("program", [SLEEPER, DEAF], ids=["sleeper", "deaf"])
def test_killed_guard_takes_its_children_along(guard, program):
    output = guard.folder / "output"
    process = guard.start(program, output=output)
    eventually(lambda: output.exists() and output.read_text())
    os.kill(guard.pid, signal.SIGKILL)
    with pytest.raises(GuardError, match=f"guard process {guard.pid} is gone"):
        process.wait(60)
    if sys.platform.startswith("linux"):
        eventually(lambda: not alive(process.pid))
    guard.close()
    assert not guard.folder.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", ["plain", "fork"])
def test_nothing_outlives_a_killed_parent(number, how):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, json.dumps(SLEEPER), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    told = json.loads(parent.stdout.readline())
    assert alive(told["pid"])
    parent.send_signal(number)
    parent.wait(60)
    parent.stdout.close()
    eventually(lambda: not alive(told["pid"]))
    eventually(lambda: not alive(told["guard"]))
    assert not Path(told["folder"]).exists()
