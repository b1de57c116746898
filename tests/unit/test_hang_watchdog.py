"""A test run ends, with the cause in its last lines, when a test ends its process or never ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.hooks import hang_watchdog as never_hang

CONFTEST = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support.hooks.hang_watchdog import pytest_configure, pytest_unconfigure
"""


def test_a_test_that_ends_its_process_does_not_run_again_and_again(tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_good.py").write_text("def test_good(): pass")
    (tmp_path / "test_bad.py").write_text(
        "import os\n"
        f"def test_bad():\n    open({str(counted)!r}, 'a').write('x')\n    os._exit(1)\n"
        "def test_other(): pass"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "-p",
        "no:cacheprovider",
    ]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "crashed while running" in ran.stdout
    # The other process may get it, as a part of what the first one left; no third one is started.
    assert len(counted.read_text()) <= 2


def test_a_run_of_which_nothing_is_heard_says_what_it_was_doing_and_ends(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def end(code: int) -> None:
        raise SystemExit(code)

    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(never_hang, "SILENCE_S", 0.5)
    monkeypatch.setattr(
        never_hang, "_descendants", lambda root: [(4711, root, "python"), (4712, 4711, "java")]
    )
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr(os, "_exit", end)
    watch = never_hang._Watch()
    watch.pytest_runtest_logstart("test_over")
    watch.pytest_runtest_logfinish("test_over")
    watch.pytest_runtest_logstart("test_bad")
    with pytest.raises(SystemExit, match="3"):
        watch.run()
    said = capfd.readouterr().err
    assert "Nothing was heard of any test for 0.5 s" in said
    assert "test_bad, for " in said
    assert "test_over" not in said
    assert "4712 of 4711: java" in said
    assert killed == [(4711, signal.SIGABRT), (4711, signal.SIGKILL)]


def test_the_watch_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = never_hang._Watch()
    watch.over.set()
    began = time.monotonic()
    watch.run()
    assert time.monotonic() - began < 60


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_below_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in [pid for pid, _, _ in never_hang._descendants(os.getpid())]
        child.communicate(b"\n", timeout=60)
