"""What makes Spark's JVMs start quickly: each of two dozen in a run of the tests lives for a minute."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
"""A compiler that pays off later is not worth its CPU; a warning of the archive would be standard output."""


def archive() -> Path:
    """The classes that Spark loads when it starts, as ``make test`` has written them; it need not exist."""
    return Path(sys.prefix, f"spark-{importlib.metadata.version('pyspark')}.jsa")


def options() -> str:
    """For ``SPARK_SUBMIT_OPTS``, and for executors."""
    return f"{QUICK} -XX:SharedArchiveFile={archive()}" if archive().exists() else QUICK
