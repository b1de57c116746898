import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafka_native.kafka import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    # pytest's own folders have paths too long for Spark's unix domain sockets.
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        yield Path(name)


class Demo:
    """A demo that is killed after some minutes, so that no test waits for its output for ever."""

    def __init__(self, temp_folder: Path, *arguments: str) -> None:
        # Not a pipe: an unread one is full some time.
        self.complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in close()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spark_kafka_native", "demo", *arguments],
            env={**os.environ, "TMPDIR": str(temp_folder), "DEMO_TEST": str(temp_folder)},
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
        )
        self._alarm = threading.Timer(600, self.process.kill)
        self._alarm.daemon = True
        self._alarm.start()

    def complained(self) -> str:
        self.complaints.seek(0)
        return self.complaints.read()

    def close(self) -> None:
        self._alarm.cancel()
        self.process.kill()
        self.process.stdout.close()
        self.process.wait(60)
        self.complaints.close()


@pytest.fixture
def start_demo(short_folder: Path) -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []

    def start(*arguments: str) -> Demo:
        started.append(Demo(short_folder, *arguments))
        return started[-1]

    yield start
    for demo in started:
        demo.close()


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


def test_every_record_comes_back_and_nothing_is_left(short_folder, start_demo):
    demo = start_demo("--records", "20000", "--partitions", "3")
    said = demo.process.communicate(timeout=800)[0]
    complaints = demo.complained()
    assert demo.process.returncode == 0, said + complaints
    assert "all there, once, unchanged" in said
    assert said.count(" records/s") == 2
    assert "order 7 of shop 0" in said or "|topic|" in said.replace(" ", "")
    assert "Traceback" not in complaints
    assert left_behind(short_folder) == []


# SIGTERM takes the way of SIGINT, as tests of the command line show: it need not start a demo in each run.
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak), signal.SIGKILL]
)
def test_nothing_is_left_when_stopped_in_the_middle(short_folder, start_demo, number):
    demo = start_demo("--records", "300000000")  # minutes: however slow we are, it is in the middle
    addresses = ""
    while "warming up" not in (line := demo.process.stdout.readline()):
        assert line, demo.complained()
        addresses = line.rpartition(" ")[2].strip() if "Kafka" in line else addresses
    with Cluster.connect(addresses) as cluster:
        while not cluster.offsets("demo", 0).end:
            assert demo.process.poll() is None, demo.complained()
            time.sleep(0.05)
    assert len(left_behind(short_folder)) >= 6  # two folders; demo, broker, Spark and two guards
    demo.process.send_signal(number)
    code = demo.process.wait(120)  # not until all is written
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in demo.complained()
    deadline = time.monotonic() + 120
    while left := left_behind(short_folder):
        # After a SIGKILL no process waits for the rest to end; else it has ended before the demo does.
        assert number == signal.SIGKILL, left
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
