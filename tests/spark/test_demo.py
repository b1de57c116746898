import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    # pytest's own folders have paths too long for Spark's unix domain sockets.
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        yield Path(name)


def start_demo(temp_folder: Path, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "spark_kafka_native", "demo", *arguments],
        env={**os.environ, "TMPDIR": str(temp_folder), "DEMO_TEST": str(temp_folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_behind(temp_folder: Path) -> list[str]:
    """Files in the temp folder, and processes with the demo's environment."""
    found = [path.name for path in temp_folder.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"DEMO_TEST={temp_folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
        except OSError:
            continue
    return found


def test_every_record_comes_back_and_nothing_is_left(short_folder):
    demo = start_demo(short_folder, "--records", "20000", "--partitions", "3")
    said, complaints = demo.communicate(timeout=500)
    assert demo.returncode == 0, said + complaints
    assert "all there, once, unchanged" in said
    assert said.count(" records/s") == 2
    assert "order 7 of shop 0" in said or "|topic|" in said.replace(" ", "")
    assert "Traceback" not in complaints
    assert left_behind(short_folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_stopped_in_the_middle(short_folder, number):
    demo = start_demo(short_folder)
    while "Spark starts" not in (line := demo.stdout.readline()):
        assert line, demo.stderr.read()
    time.sleep(1)
    assert demo.poll() is None, demo.stderr.read()
    assert len(left_behind(short_folder)) >= 6  # two folders; demo, broker, Spark and two guards
    demo.send_signal(number)
    code = demo.wait(60)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    deadline = time.monotonic() + 30
    while left := left_behind(short_folder):
        # After a SIGKILL nobody waits for the rest to end; else it has ended before the demo does.
        assert number == signal.SIGKILL, left
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
