"""What the read tests share: topics, records written by another client, and reads of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from confluent_kafka import Producer

import spark_kafka_native
from spark_kafka_native.testing import StandaloneSpark


def create(kafka: Any, topic: str, partitions: int = 1, **config: Any) -> str:
    """A topic that keeps what is written, however old its timestamps."""
    named = {name.replace("__", ".").replace("_", "."): value for name, value in config.items()}
    return str(kafka.create_topic(topic, partitions, config={"retention.ms": -1} | named))


def write(
    bootstrap_servers: str,
    topic: str,
    records: Iterable[tuple[int, bytes | None, bytes | None, int, Sequence[tuple[str, bytes | None]]]],
    **config: Any,
) -> None:
    """Write (partition, key, value, timestamp_ms, headers) with confluent-kafka, in order."""
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "linger.ms": 20, "enable.idempotence": True, "log_level": 0}
        | {name.replace("_", "."): value for name, value in config.items()}
    )
    failures: list[Any] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(error)

    for partition, key, value, timestamp_ms, headers in records:
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=delivered,
                    timestamp=timestamp_ms,
                    headers=list(headers),
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
    assert not failures, failures[:3]


def numbered(
    count: int, partitions: int = 1, start: int = 0
) -> list[tuple[int, bytes, bytes, int, list[Any]]]:
    """``count`` records, round robin: key ``k7``, value ``v7``, timestamp 1 700 000 000 007."""
    return [
        (i % partitions, b"k%d" % i, b"v%d" % i, 1_700_000_000_000 + i, [])
        for i in range(start, start + count)
    ]


def read(spark: Any, kafka: Any, topic: str | None = None, schema: Any = None, **options: Any) -> Any:
    """``spark.read.format("pykafka")``; ``__`` in an option's name stands for a dot."""
    reader = spark.read.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    if topic is not None:
        reader = reader.option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), value)
    return (reader if schema is None else reader.schema(schema)).load()


def offsets(frame: Any) -> dict[int, list[int]]:
    """The offsets of each partition, in the order in which they came."""
    found: dict[int, list[int]] = {}
    for row in frame.select("partition", "offset").collect():
        found.setdefault(row.partition, []).append(row.offset)
    return found


def message_of(error: Any) -> str:
    """What a user reads, without line breaks of tracebacks in the way."""
    return str(error.value)


@pytest.fixture(scope="session")
def peer() -> SimpleNamespace:
    """The functions above: files of tests can't import each other."""
    functions = (create, write, numbered, read, offsets, message_of)
    return SimpleNamespace(**{function.__name__: function for function in functions})


def make_zip(path: Path) -> Path:
    """The package as ``--py-files`` takes it: pure Python."""
    package = Path(spark_kafka_native.__file__).parent
    with zipfile.ZipFile(path, "w") as archive:
        for file in package.rglob("*.py"):
            archive.write(file, Path(package.name) / file.relative_to(package))
    return path


@pytest.fixture
def script_environment() -> dict[str, str]:
    """For a script with a Spark of its own: the session of the other tests leaves traces in the environment,
    which a Connect client refuses."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return clean | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture
def run_on_two_workers(tmp_path: Path, script_environment: dict[str, str]) -> Callable[..., dict[str, Any]]:
    """``run_on_two_workers(script, *arguments)``: submit a script, with the package as a zip, to a cluster
    of two workers that has it from nowhere else; what it printed as JSON behind ``RESULT``."""

    def run(script: str, *arguments: str) -> dict[str, Any]:
        job = tmp_path / "job.py"
        job.write_text(script)
        archive = make_zip(tmp_path / "spark_kafka_native.zip")
        with StandaloneSpark(workers=2) as cluster:
            done = subprocess.run(
                [
                    str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
                    *("--master", cluster.master_url, "--py-files", str(archive)),
                    *(f"--conf={name}={value}" for name, value in cluster.conf.items()),
                    *(str(job), *arguments),
                ],
                env=script_environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        assert done.returncode == 0, done.stderr[-4000:]
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
        return dict(json.loads(line.removeprefix("RESULT ")))

    return run
