import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.broker]


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


def test_every_record_comes_back_and_nothing_is_left(tmp_path):
    demo = start_demo(tmp_path, "--records", "20000", "--partitions", "3")
    said, complaints = demo.communicate(timeout=500)
    assert demo.returncode == 0, said + complaints
    assert "all there, once, unchanged" in said
    assert said.count(" records/s") == 2
    assert "order 7 of shop 0" in said or "|topic|" in said.replace(" ", "")
    assert "Traceback" not in complaints
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_stopped_in_the_middle(tmp_path, number):
    demo = start_demo(tmp_path)
    while "Spark starts" not in (line := demo.stdout.readline()):
        assert line, demo.stderr.read()
    time.sleep(1)
    assert demo.poll() is None, demo.stderr.read()
    assert len(left_behind(tmp_path)) >= 6  # two folders; demo, broker, Spark and two guards
    demo.send_signal(number)
    code = demo.wait(60)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    deadline = time.monotonic() + 30
    while left := left_behind(tmp_path):
        # After a SIGKILL nobody waits for the rest to end; else it has ended before the demo does.
        assert number == signal.SIGKILL, left
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
