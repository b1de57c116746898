"""Spark's ``from_avro`` and ``to_avro`` on the same bytes: the same but for a list in docs/formats.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_native.testing import JarsUnavailableError, run_ivy
from spark_kafka_native.testing.java import cache_folder, locked

pytestmark = pytest.mark.spark

MODULE = ("org.apache.spark", "spark-avro_2.13", "4.1.1")
"""The newest that Ivy resolves. It has the expressions alone: the code that reads and writes is in PySpark's
own jar, of its version."""
DIFFERENT = {
    "time-micros",
    "timestamp-nanos",
    "local-timestamp-nanos",
    "nullable",
    "union",
    "bytes behind",
    "not UTF-8",
    "boolean of 2",
    "key twice",
    "array of null",
    "size of a block",
    "reader: nullable field without default added",
    "reader: millis read as micros",
}
"""The cases of `avro_witness` that the table on the page explains."""


@pytest.fixture(scope="session")
def avro_jars() -> str:
    folder = cache_folder() / "-".join(MODULE[1:])
    with locked(cache_folder() / f"{folder.name}.lock"):
        if not list(folder.glob("*.jar")):
            folder.mkdir(parents=True, exist_ok=True)
            wanted = ["-dependency", *MODULE, "-confs", "default", "-notransitive"]
            wanted += ["-cache", f"{folder}/cache", "-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
            try:
                ran = run_ivy(wanted, timeout_s=240)
            except (JarsUnavailableError, subprocess.TimeoutExpired) as error:
                pytest.skip(f"spark-avro could not be fetched: {str(error)[-500:]}")
            if ran.returncode:
                pytest.skip(f"spark-avro could not be fetched: {(ran.stdout + ran.stderr)[-500:]}")
    return ",".join(map(str, folder.glob("*.jar")))


def test_spark_gives_the_same(avro_jars: str, script_environment: dict[str, str]) -> None:
    tests = Path(__file__).parents[1]
    path = os.pathsep.join(filter(None, [str(tests), script_environment.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("avro_witness.py"), avro_jars],
        env=script_environment | {"PYTHONPATH": path, "TZ": "UTC"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    differing: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    unexplained = {name: both for name, both in differing.items() if name not in DIFFERENT}
    assert not unexplained
    assert set(differing) == DIFFERENT
