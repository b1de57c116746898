"""A Spark session on this machine for the commands that need one; it leaves no process and no file behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def local_spark(folder: Path, cores: int = 2, settings: dict[str, str] | None = None) -> Iterator[Any]:
    """A session whose every file is below ``folder``. When the block ends, so has Spark's JVM."""
    # Workers would be the python3 of PATH otherwise, and the host's name may resolve to an address not ours.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_LOCAL_DIRS"] = str(folder)
    # The JVM that only assembles Spark's command line reads this too, and it writes to the temp folder.
    os.environ["SPARK_LAUNCHER_OPTS"] = "-XX:-UsePerfData"
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
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    java = session.sparkContext._gateway.proc
    try:
        yield session
    finally:
        with suppress(Exception):
            session.stop()
        java.stdin.close()  # how Spark's JVM learns that nobody needs it any more
        try:
            java.wait(20)
        except subprocess.TimeoutExpired:
            java.kill()


_LOG_SETTINGS = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
