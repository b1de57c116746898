"""What the read tests share: topics, records written by another client, and reads of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from confluent_kafka import Producer
from support.brokers.kerberos import KRB5_CONF

from spark_kafka_native.cli.zip import write_zip
from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.testing import StandaloneSpark

# Python workers have the environment that the session's JVM was started with.
os.environ["KRB5_CONFIG"] = str(KRB5_CONF)


def create(kafka: Any, topic: str, partitions: int = 1, **config: Any) -> str:
    """A topic that keeps its records, however old their timestamps."""
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
    assert producer.flush(240) == 0
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


@pytest.fixture
def script_environment() -> dict[str, str]:
    """For a script with a Spark of its own: the session of the other tests leaves traces in the environment,
    which a Connect client refuses."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    quick = {"SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"]}
    return clean | quick | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture
def run_on_two_workers(
    spark_cluster: StandaloneSpark, tmp_path: Path, script_environment: dict[str, str]
) -> Callable[..., dict[str, Any]]:
    """``run_on_two_workers(script, *arguments)``: submit a script, with the package as a zip, to the module's
    cluster of two workers, which has it from nowhere else; what it printed as JSON behind ``RESULT``."""

    def run(script: str, *arguments: str, timeout_s: float = 600) -> dict[str, Any]:
        job = tmp_path / "job.py"
        job.write_text(script)
        archive = tmp_path / "spark_kafka_native.zip"
        write_zip(archive)
        done = subprocess.run(
            [
                str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
                *("--master", spark_cluster.master_url, "--py-files", str(archive)),
                *(f"--conf={name}={value}" for name, value in spark_cluster.conf.items()),
                f"--conf=spark.executor.extraJavaOptions={script_environment['SPARK_SUBMIT_OPTS']}",
                *(str(job), *arguments),
            ],
            env=script_environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
        return dict(json.loads(line.removeprefix("RESULT ")))

    return run


@pytest.fixture
def admin(kafka: Any) -> Iterator[Admin]:
    """Of the broker."""
    router = Router(ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,)))
    yield Admin(router)
    router.close()


class Stream:
    """A streaming read of one topic and checkpoint, run as often as a test wants; keeps the rows."""

    def __init__(
        self, spark: Any, kafka: Any, checkpoint: Path, topic: str | None, options: dict[str, str]
    ) -> None:
        self.spark = spark
        self.checkpoint = checkpoint
        self.options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "startingOffsets": "earliest",
        } | options
        if topic is not None:
            self.options["subscribe"] = topic
        self.batches: list[list[str]] = []
        self.ids: list[int] = []
        self.crash: Callable[[int], bool] = lambda _batch: False

    def frame(self, **options: str) -> Any:
        return self.spark.readStream.format("pykafka").options(**(self.options | options)).load()

    def start(self, trigger: dict[str, Any] | None = None, **options: str) -> Any:
        """Start it with further options (``__`` for a dot)."""
        given = {name.replace("__", "."): value for name, value in options.items()}
        frame = self.frame(**given).selectExpr("topic", "partition", "offset", "cast(value as string) value")
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def run(self, trigger: dict[str, Any] | None = None, **options: str) -> list[list[str]]:
        """Run to the end of the topic; the batches of this run."""
        before = len(self.batches)
        query = self.start(trigger or {"availableNow": True}, **options)
        try:
            assert query.awaitTermination(300), f"it still runs: {query.lastProgress}"
        finally:
            query.stop()
        return self.batches[before:]

    def values(self) -> list[str]:
        return sorted((value for batch in self.batches for value in batch), key=lambda value: int(value[1:]))

    def offsets_log(self, batch: int) -> dict[str, Any]:
        """The end of a batch as the checkpoint has it."""
        return dict(json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[2]))

    def _take(self, frame: Any, batch: int) -> None:
        rows = frame.collect()
        if self.crash(batch):
            raise RuntimeError(f"crash in batch {batch}")
        self.batches.append([row.value for row in rows])
        self.ids.append(batch)


@pytest.fixture
def stream(spark: Any, kafka: Any, tmp_path: Path, topic: str) -> Callable[..., Stream]:
    """``stream(topic, **options)``: see `Stream`; by default the test's own topic."""

    def make(name: str | None = topic, **options: str) -> Stream:
        given = {option.replace("__", "."): value for option, value in options.items()}
        return Stream(spark, kafka, tmp_path / f"checkpoint-{uuid.uuid4().hex[:6]}", name, given)

    return make
