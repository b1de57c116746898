"""The parent's end of a contender: start its process, give it jobs, measure its memory, stop it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

HARNESS = Path(__file__).resolve().parent
REPOSITORY = HARNESS.parent.parent
UNIX_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}
CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "3g",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


class ContenderError(RuntimeError):
    """A contender's process ended; the message is the end of what it printed."""


@dataclass(slots=True, kw_only=True)
class Contender:
    """A warm Spark session in a process of its own. Owned by one thread."""

    name: str
    python: Path
    conf: dict[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    """Python data sources to register: "ceiling", "pykafka"."""
    version: str = ""
    process: subprocess.Popen[str] | None = None
    log: IO[str] | None = None

    def start(self) -> Contender:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process is
        settings = {"conf": {**CONF, **self.conf}, "sources": self.sources}
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": f"{HARNESS.parent}{os.pathsep}{REPOSITORY}",
            # A compiled worker start is no part of any measurement, a half-written .pyc would be.
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.process = subprocess.Popen(
            [self.python, HARNESS / "session.py", json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment,
        )  # fmt: skip
        self.version = self.answer()["version"]
        return self

    def run(self, job: str, **parameters: Any) -> float:
        """Run one job; its seconds."""
        return float(self.ask(job, **parameters)["seconds"])

    def ask(self, job: str, **parameters: Any) -> dict[str, Any]:
        """Run one job; ``{"seconds": ..., "result": ...}``."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"job": job, **parameters}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ContenderError(f"{self.name} ended:\n{self.log_tail()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def log_tail(self, characters: int = 6000) -> str:
        assert self.log is not None
        self.log.seek(0)
        return self.log.read()[-characters:]

    def peak_worker_bytes(self) -> int:
        """The largest resident size that any living Python worker of this session has had (VmHWM)."""
        assert self.process is not None
        sizes = [peak_bytes(pid) for pid in descendants(self.process.pid) if is_python_worker(pid)]
        return max(sizes, default=0)

    def stop(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        if self.log is not None:
            self.log.close()


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path("/proc", str(pid), "task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def is_python_worker(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return False


def peak_bytes(pid: int) -> int:
    try:
        status = Path("/proc", str(pid), "status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0)
