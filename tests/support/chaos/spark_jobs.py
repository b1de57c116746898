"""The Spark jobs of `test_chaos`, in one Spark session in a process of its own, which runs as a script.

A line of standard input is the path of a job. Its result is ``result.json`` beside it: the rows of a read, or
the error. The rows of a job pass gates, which are files that the test creates: so it is known to run while
something happens to it, and how far it has come.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from spark_kafka_native.spark.source import KafkaDataSource
from spark_kafka_native.spark.write.stream_writer import KafkaStreamWriter

COMMIT_POINTS = ("before", "halfway", "after")
"""Of a micro-batch: what of it is committed when the process that commits it dies."""
_CLIENT = {
    "kafka.request.timeout.ms": "5000",
    "kafka.retry.backoff.ms": "20",
    "kafka.default.api.timeout.ms": "300000",
    "kafka.max.partition.fetch.bytes": "100000",
    "kafka.delivery.timeout.ms": "300000",
    "kafka.max.block.ms": "300000",
}
"""Small fetches, or a read has everything before a fault strikes; and patience with a machine that stalls."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """``kind``: read, write or copy (a stream). ``records``: in each partition of the source, or in each task
    of a write. ``once``: exactly once. ``strict``: a loss of data is an error. ``packed``: one task reads all
    partitions."""

    kind: str
    folder: str
    bootstrap_servers: str
    source: str
    sink: str
    records: int
    gates: int
    partitions: int
    once: bool = False
    strict: bool = True
    packed: bool = False

    def save(self) -> Path:
        path = Path(self.folder, "job.json")
        path.write_text(json.dumps(asdict(self)))
        return path

    def options(self) -> dict[str, str]:
        return _CLIENT | {"kafka.bootstrap.servers": self.bootstrap_servers}

    def read_options(self) -> dict[str, str]:
        lenient = {"failOnDataLoss": str(self.strict).lower(), "kafkaConsumer.pollTimeoutMs": "300000"}
        packing = {"maxPartitions": "1"} if self.packed else {}
        return self.options() | lenient | packing | {"subscribe": self.source}

    def write_options(self) -> dict[str, str]:
        guarantee = "exactly-once" if self.once else "at-least-once"
        return self.options() | {"topic": self.sink, "deliveryGuarantee": guarantee}


def wait_for_gate(folder: Path, gate: int) -> None:
    """On a worker: a file says that it waits in the middle of a task, with its parent's pid and its own."""
    opened, deadline = folder / f"gate-{gate}", time.monotonic() + 900
    mark = folder / f"waiting-{gate}-{os.getppid()}-{os.getpid()}"
    while not opened.exists():
        mark.touch()
        assert time.monotonic() < deadline, f"gate {gate} stays closed"
        time.sleep(0.02)
    mark.unlink(missing_ok=True)


def hold(job: Job) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Pass rows on as far as the gates are open. Without exactly-once the key names the attempt of the task
    that wrote a record: two attempts never have the same."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context, folder = TaskContext.get(), Path(job.folder)
        attempt = str(context.taskAttemptId())
        if context.attemptNumber():
            Path(folder, f"again-{attempt}").touch()
        for batch in batches:
            number = int(batch.column("value")[len(batch) - 1].as_py().split(b" ", 3)[2])
            wait_for_gate(folder, min(number * job.gates // job.records, job.gates - 1))
            if "key" in batch.schema.names and not job.once:
                key = pa.array([attempt] * len(batch), pa.string())
                batch = batch.set_column(batch.schema.get_field_index("key"), "key", key)
            yield batch

    return run


class Writer(KafkaStreamWriter):
    """Dies in a commit where a file ``die`` names the point."""

    folder = ""

    def commit(self, messages: Any, batchId: int) -> None:
        from spark_kafka_native.spark.write.driver import stream_commit

        armed = Path(self.folder, "die")
        point = armed.read_text() if armed.exists() else ""

        def die() -> None:
            armed.rename(armed.with_name("died"))
            os.kill(os.getpid(), signal.SIGKILL)

        end_all = stream_commit._end_all

        def end_half(router: Any, transactions: Any, **how: Any) -> Any:
            end_all(router, transactions[: len(transactions) // 2], **how)
            return die()

        if point == "before":
            die()
        if point == "halfway":
            stream_commit._end_all = end_half
        super().commit(messages, batchId)
        if point:
            die()


class Chaotic(KafkaDataSource):
    """`pykafka` with this writer."""

    @classmethod
    def name(cls) -> str:
        return "chaotic"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        folder = self.options.pop("folder")
        writer = super().streamWriter(schema, overwrite)
        writer.__class__, writer.folder = Writer, folder
        return writer


def read(spark: Any, job: Job) -> list[list[Any]]:
    offsets = {
        name: json.dumps({job.source: {str(index): offset for index in range(job.partitions)}})
        for name, offset in (("startingOffsets", 0), ("endingOffsets", job.records))
    }
    frame = spark.read.format("pykafka").options(**job.read_options(), **offsets).load()
    frame = frame.select("partition", "offset", "value")
    rows = frame.mapInArrow(hold(job), frame.schema).collect()
    return [[row.partition, row.offset, bytes(row.value).decode()] for row in rows]


def write(spark: Any, job: Job) -> None:
    """Task ``t`` has the rows ``0 t n``, and row ``n`` goes to partition ``n % partitions``."""
    rows = spark.range(0, job.partitions * job.records, 1, job.partitions)
    rows = rows.selectExpr(f"id div {job.records} task", f"id % {job.records} number").selectExpr(
        f"cast(number % {job.partitions} as int) partition",
        "cast(null as string) key",
        "cast(concat_ws(' ', 0, task, number, repeat('x', 1000)) as binary) value",
    )
    named = {"writeId": job.sink} if job.once else {}
    held = rows.mapInArrow(hold(job), rows.schema)
    held.write.format("pykafka").options(**job.write_options(), **named).mode("append").save()


def copy(spark: Any, job: Job) -> None:
    """Partition ``p`` of the source goes to partition ``p % partitions``. A query that ended as its commit
    died is started again."""
    source = job.read_options() | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "3000"}
    frame = spark.readStream.format("pykafka").options(**source).load()
    rows = frame.selectExpr(f"partition % {job.partitions} partition", "cast(key as string) key", "value")
    held = rows.mapInArrow(hold(job), rows.schema).writeStream.format("chaotic")
    held = held.options(
        **job.write_options(), folder=job.folder, checkpointLocation=f"{job.folder}/checkpoint"
    )
    died, seen = Path(job.folder, "died"), False
    while True:
        query = held.trigger(processingTime="0 seconds").start()
        try:
            query.processAllAvailable()
            return
        except Exception:
            if seen or not died.exists():
                raise
            seen = True
        finally:
            query.stop()


def main() -> None:
    # A session of the tests that started this process leaves traces.
    for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
        if name != "SPARK_SUBMIT_OPTS":
            del os.environ[name]
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
        "spark.python.unix.domain.socket.enabled": "true",  # over TCP a socket may hold a whole partition
        "spark.sql.streaming.stopTimeout": "120s",
        "spark.sql.streaming.minBatchesToRetain": "10",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(KafkaDataSource)
    spark.dataSource.register(Chaotic)
    for line in sys.stdin:
        job = Job(**json.loads(Path(line.strip()).read_text()))
        try:
            result = {"rows": {"read": read, "write": write, "copy": copy}[job.kind](spark, job)}
        except Exception as error:
            result = {"error": str(error)}
        partial = Path(job.folder, "result.partial")
        partial.write_text(json.dumps(result))
        partial.rename(partial.with_suffix(".json"))


if __name__ == "__main__":
    main()
