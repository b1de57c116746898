"""Spark on this machine: a standalone master and its workers, started from the pip package, and the settings
that a session's unix domain sockets need.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from .errors import ClusterStartError
from .java import find_java
from .processes import Guard, GuardedProcess, free_ports

_HOST = "127.0.0.1"
_LONGEST_ADDRESS = 103  # bytes of a socket's path: macOS has the least room, 104 with the zero at the end
_NAME_LENGTH = len("/.01234567-89ab-cdef-0123-456789abcdef.sock")  # how Spark names them


class StandaloneSpark:
    """A master and its workers that live as long as the ``with`` block, and never longer than this process.

    Each of ``workers`` offers ``cores`` and ``memory_mb``. ``hosts`` puts them on several loopback addresses
    (127.0.0.2, ...; on Linux all of 127/8 is ours): Spark speculates only between hosts.
    Entering it sets ``PYSPARK_PYTHON`` to this Python; a session on it takes the settings of `conf`.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        cores: int = 1,
        memory_mb: int = 1024,
        hosts: Sequence[str] | None = None,
        startup_timeout_s: float = 60,
    ) -> None:
        self._hosts = list(hosts or [_HOST] * workers)
        if len(self._hosts) != workers:
            raise ValueError(f"{workers} workers need {workers} hosts, not {len(self._hosts)}")
        self._cores = cores
        self._memory_mb = memory_mb
        self._startup_timeout_s = startup_timeout_s
        self._guard: Guard | None = None
        self._master_url = ""
        self.master: GuardedProcess | None = None
        self.workers: list[GuardedProcess] = []

    def __enter__(self) -> StandaloneSpark:
        if self._guard is not None:
            raise RuntimeError("this StandaloneSpark is already running")
        find_java()  # its message says more than Spark's scripts do
        # The driver names the workers' Python, and takes its name from nowhere but this variable.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        self._guard = Guard("spark-kafka-native-spark-")
        try:
            self._start(self._guard)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def master_url(self) -> str:
        """``spark://host:port``, for ``SparkSession.builder.master``."""
        if not self._guard:
            raise RuntimeError("this StandaloneSpark is not running: use it in a with statement")
        return self._master_url

    @property
    def folder(self) -> Path:
        """Holds the logs: ``master``, ``worker-<n>``, and those of the executors below ``work-<n>``."""
        if not self._guard:
            raise RuntimeError("this StandaloneSpark is not running: use it in a with statement")
        return self._guard.folder

    @property
    def conf(self) -> dict[str, str]:
        """Settings that a session on this cluster needs."""
        return {
            "spark.driver.host": _HOST,
            "spark.driver.bindAddress": _HOST,
            "spark.ui.enabled": "false",
        }

    def close(self) -> None:
        """Kill master, workers and their executors, and remove their folder. Harmless when repeated."""
        guard, self._guard = self._guard, None
        if guard:
            guard.close()

    def _start(self, guard: Guard) -> None:
        self.workers = []
        port, master_ui, *worker_uis = free_ports(2 + len(self._hosts))
        self._master_url = f"spark://{_HOST}:{port}"
        arguments = ["--host", _HOST, "--port", str(port), "--webui-port", str(master_ui)]
        self.master = self._launch(guard, "master", "master.Master", arguments)
        self._await(guard, "master", self.master, "I have been elected leader")
        for number, (host, ui) in enumerate(zip(self._hosts, worker_uis, strict=True), 1):
            arguments = [
                "--host",
                host,
                "--webui-port",
                str(ui),
                "--work-dir",
                str(guard.folder / f"work-{number}"),
            ]
            arguments += ["--cores", str(self._cores), "--memory", f"{self._memory_mb}m", self._master_url]
            self.workers.append(self._launch(guard, f"worker-{number}", "worker.Worker", arguments))
        for number, worker in enumerate(self.workers, 1):
            self._await(guard, f"worker-{number}", worker, "Successfully registered with master")

    def _launch(self, guard: Guard, name: str, class_name: str, arguments: list[str]) -> GuardedProcess:
        home = _spark_home()
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_LOCAL_DIRS": str(guard.folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            # Quick to start; no server on a port that we did not choose; nothing outside the folder.
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData "
            f"-Dspark.master.rest.enabled=false -Djava.io.tmpdir={guard.folder}",
            "PYSPARK_PYTHON": sys.executable,
        }
        environment.pop("SPARK_MASTER_HOST", None)
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{class_name}", *arguments]
        return guard.start(command, output=guard.folder / name, env=environment)

    def _await(self, guard: Guard, name: str, process: GuardedProcess, words: str) -> None:
        output = guard.folder / name
        deadline = time.monotonic() + self._startup_timeout_s
        while words not in (said := output.read_text(encoding="utf-8", errors="replace")):
            if process.returncode is not None:
                raise ClusterStartError(f"Spark's {name} ended while starting. It said:\n{said[-4000:]}")
            if time.monotonic() > deadline:
                waited = f"{self._startup_timeout_s:g} s"
                raise ClusterStartError(
                    f"Spark's {name} was not ready after {waited}. It said:\n{said[-4000:]}"
                )
            time.sleep(0.05)


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ClusterStartError("PySpark is not installed here: pip install 'spark-kafka-native[spark]'")
    return Path(spec.origin).parent


def unix_socket_settings(folder: Path) -> dict[str, str]:
    """Spark settings for unix domain sockets below ``folder``; off where its path is too long for one.

    A path can be: macOS has temp folders of 49 characters. Spark then fails with "AF_UNIX path too long".
    """
    fits = len(os.fsencode(folder)) + _NAME_LENGTH <= _LONGEST_ADDRESS
    return {
        "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX") and fits).lower(),
        "spark.python.unix.domain.socket.dir": str(folder),
    }
