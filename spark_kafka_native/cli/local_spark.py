"""A Spark session on this machine for the commands that need one; it leaves no process and no file behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..testing.unix_sockets import unix_socket_settings


@contextmanager
def local_spark(folder: Path, cores: int = 2, settings: dict[str, str] | None = None) -> Iterator[Any]:
    """A session whose every file is below ``folder``. When the block ends, so has Spark's JVM.

    What Spark and its workers write to standard error goes to the file ``spark.err`` there; its end is shown
    when the block fails.
    """
    _set_environment(folder)
    errors = folder / "spark.err"
    with _stderr_into(errors):  # the JVM keeps this file as its standard error, and so do the workers
        session = _build(folder, cores, settings or {})
    java = session.sparkContext._gateway.proc
    try:
        yield session
    except Exception as error:
        print(errors.read_text(encoding="utf-8", errors="replace")[-4000:], file=sys.stderr)
        # Said now: an error of the JVM's asks the JVM for its text, and that is about to end.
        print(str(error)[:4000], file=sys.stderr)
        raise
    finally:
        with suppress(Exception):  # after a signal the gateway may be dead already; it ends below in any case
            session.stop()
        java.stdin.close()  # how Spark's JVM learns that nobody needs it any more
        try:
            java.wait(20)
        except subprocess.TimeoutExpired:
            java.kill()


def _set_environment(folder: Path) -> None:
    # Workers would be the python3 of PATH otherwise, and the host's name may resolve to an address not ours.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_LOCAL_DIRS"] = str(folder)
    # The JVM that only assembles Spark's command line writes to the temp folder too.
    os.environ["SPARK_LAUNCHER_OPTS"] = "-XX:-UsePerfData"


def _build(folder: Path, cores: int, settings: dict[str, str]) -> Any:
    from pyspark.sql import SparkSession

    log_settings = folder / "log4j2.properties"
    log_settings.write_text(_LOG_SETTINGS, encoding="ascii")
    java_options = f"-Djava.io.tmpdir={folder} -XX:-UsePerfData -Dlog4j2.configurationFile={log_settings}"
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", java_options)
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
    )
    for name, value in (unix_socket_settings(folder) | settings).items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own, about versions of pandas
        on_interrupt = signal.getsignal(signal.SIGINT)
        session = builder.getOrCreate()
        signal.signal(signal.SIGINT, on_interrupt)  # PySpark puts a handler of its own there
        return session


@contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


_LOG_SETTINGS = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
