"""Spark's own connector, in a virtual environment of its own: made on first use, kept in ``.venv-jvm``.

PySpark 4.2.0, because the connector's jar is not published for every newer PySpark. The jars come through
the Ivy that PySpark ships.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_kafka_native.testing import JarsUnavailableError, run_ivy

FETCH_TIMEOUT_S = 240.0
PYSPARK = "4.2.0"
COORDINATES = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", PYSPARK),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", PYSPARK),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
# What the package itself needs, so that `pykafka` can run on the very same PySpark.
PACKAGES = (
    f"pyspark=={PYSPARK}",
    "numpy>=1.26",
    "pyarrow>=18",
    "pandas>=2.2,<3",
    "fastcrc>=0.4.0",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JvmConnector:
    """Where the interpreter with PySpark 4.2.0 is, and the connector's jars."""

    python: Path
    jars: tuple[Path, ...]


def prepare_jvm_connector(folder: Path) -> JvmConnector:
    """Make ``folder`` if it isn't there: a virtual environment and, inside it, the four jars."""
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists():
        print(f"making {folder}: PySpark {PYSPARK} and the JVM connector (once)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        resolve_jars(folder / "connector")
        ready.touch()
    return JvmConnector(python=python, jars=tuple(sorted((folder / "connector").glob("*.jar"))))


def resolve_jars(target: Path, wanted: Sequence[tuple[str, str, str]] = COORDINATES) -> None:
    """Exactly the jars ``wanted``, by default the connector's four: what they depend on is inside PySpark.

    Raises `JarsUnavailableError` and `subprocess.TimeoutExpired` when they can't be fetched.
    """
    target.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + FETCH_TIMEOUT_S
    for coordinates in wanted:
        arguments = ["-dependency", *coordinates, "-confs", "default", "-notransitive"]
        arguments += ["-cache", str(target / "cache"), "-retrieve", f"{target}/[artifact]-[revision].[ext]"]
        ran = run_ivy(arguments, timeout_s=max(deadline - time.monotonic(), 1))
        if ran.returncode:
            raise JarsUnavailableError(f"{':'.join(coordinates)}: {(ran.stdout + ran.stderr)[-2000:]}")
