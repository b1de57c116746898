"""``demo``: a million records through Spark into a real Kafka and back, checked and timed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .progress import step

_WRITE_TASKS = 8
_WARM_UP_RECORDS = 20_000
_SHOWN_ROWS = 5


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What must be the same before and after: how many records, and sums over hashes of all they hold.

    A lost, doubled or changed record changes them; so does a key that comes back with another record's value.
    """

    records: int
    hashes: int


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="write a million records to a real Kafka through Spark, read them back, check them",
        description="Starts a Kafka broker and Spark on this machine, writes records with "
        'df.write.format("pykafka"), reads them with spark.read.format("pykafka") and checks them.',
    )
    parser.add_argument("--records", type=int, default=1_000_000, help="number of records (default 1000000)")
    parser.add_argument("--partitions", type=int, default=4, help="partitions of the topic (default 4)")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo. Returns 0 when every record came back unchanged."""
    if arguments.records < 1 or arguments.partitions < 1:
        arguments.parser.error("--records and --partitions must be at least 1")
    from ..testing.guard import Guard

    started = time.monotonic()
    guard = Guard("spark-kafka-native-demo-")  # removes Spark's files even when this process is killed
    try:
        same = _run(guard.folder, arguments.records, arguments.partitions)
    finally:
        guard.close()
    seconds = time.monotonic() - started
    print(f"\nBroker and Spark have stopped and left nothing behind, after {seconds:.0f} s in total.")
    return 0 if same else 1


def _run(folder: Path, records: int, partitions: int) -> bool:
    from ..testing.embedded_kafka import EmbeddedKafka
    from ..testing.jars import KAFKA_VERSION
    from .local_spark import local_spark

    print(f"A real Kafka, {records:,} records through Spark and back\n", flush=True)
    with ExitStack() as stack:
        with step(f"Apache Kafka {KAFKA_VERSION} starts") as say:
            kafka = stack.enter_context(EmbeddedKafka())
            say(kafka.bootstrap_servers)
        with step("Spark starts") as say:
            spark = stack.enter_context(local_spark(folder))
            say(f"{spark.version}, local[2]")
        round_trip = _RoundTrip(spark=spark, bootstrap_servers=kafka.bootstrap_servers)
        with step("warming up, both ways", round_trip.share_done):
            kafka.create_topic("warm-up", partitions)
            round_trip.write("warm-up", _WARM_UP_RECORDS)
            round_trip.read_all("warm-up")
        kafka.create_topic("demo", partitions)
        with step("writing with df.write.format('pykafka')", round_trip.share_done) as say:
            write_s = _timed(lambda: round_trip.write("demo", records))
            say(_rate(records, write_s))
        with step("reading with spark.read.format('pykafka')", round_trip.share_done) as say:
            read_s = _timed(lambda: round_trip.read_all("demo"))
            say(_rate(records, read_s))
        with step("checking every record", round_trip.share_done) as say:
            wanted, by_partition = round_trip.sums_written(records), round_trip.sums_read("demo")
            same = _check(wanted, by_partition)
            say("all there, once, unchanged" if same else "NOT what was written")
        _show(round_trip, by_partition)
    return same


@dataclass(frozen=True, kw_only=True)
class _RoundTrip:
    spark: Any
    bootstrap_servers: str

    def rows(self, records: int) -> Any:
        """``records`` rows of a short key and a value of 100 bytes, made by Spark itself."""
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        order = F.concat(F.lit("order "), F.col("id"), F.lit(" of shop "), F.col("id") % 7, F.lit(" "))
        return self.spark.range(0, records, 1, _WRITE_TASKS).select(
            F.col("id").cast("string").alias("key"), F.rpad(order, 100, ".").alias("value")
        )

    def write(self, topic: str, records: int) -> None:
        """Append the rows to ``topic``."""
        (
            self.rows(records)
            .write.format("pykafka")
            .option("kafka.bootstrap.servers", self.bootstrap_servers)
            .option("topic", topic)
            .mode("append")
            .save()
        )

    def read(self, topic: str) -> Any:
        """All that is in ``topic``, as Spark sees it."""
        return (
            self.spark.read.format("pykafka")
            .option("kafka.bootstrap.servers", self.bootstrap_servers)
            .option("subscribe", topic)
            .load()
        )

    def read_all(self, topic: str) -> None:
        """Read every row and column of ``topic`` and throw them away."""
        self.read(topic).write.format("noop").mode("overwrite").save()

    def sums_written(self, records: int) -> Sums:
        """The sums over the rows that `write` gets."""
        row = self.rows(records).agg(*_sums()).first()
        return Sums(records=row.records, hashes=row.hashes)

    def sums_read(self, topic: str) -> list[Any]:
        """The sums per partition of ``topic``, with its min and max offset."""
        from pyspark.sql import functions as F  # noqa: N812

        bounds = [F.min("offset").alias("first_offset"), F.max("offset").alias("last_offset")]
        by_partition = self.read(topic).groupBy("partition").agg(*_sums(), *bounds)
        rows: list[Any] = by_partition.orderBy("partition").collect()
        return rows

    def share_done(self) -> float | None:
        """How much of Spark's running stages is done, 0 to 1; None while none runs."""
        tracker = self.spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        total = sum(stage.numTasks for stage in stages if stage)
        return sum(stage.numCompletedTasks for stage in stages if stage) / total if total else None


def _sums() -> list[Any]:
    from pyspark.sql import functions as F  # noqa: N812

    hashed = F.xxhash64(F.col("key").cast("binary"), F.col("value").cast("binary"))
    # 32 bits of each hash: their sum stays a whole number in 64 bits for up to two thousand million records.
    return [F.count("*").alias("records"), F.sum(hashed.bitwiseAND(0xFFFFFFFF)).alias("hashes")]


def _check(wanted: Sums, by_partition: list[Any]) -> bool:
    found = Sums(
        records=sum(row.records for row in by_partition), hashes=sum(row.hashes for row in by_partition)
    )
    without_gaps = all(row.last_offset - row.first_offset + 1 == row.records for row in by_partition)
    return found == wanted and without_gaps


def _show(round_trip: _RoundTrip, by_partition: list[Any]) -> None:
    print("\n  partition    records     offsets               hash sum")
    for row in by_partition:
        offsets = f"{row.first_offset}..{row.last_offset}"
        print(f"  {row.partition:9} {row.records:10,}     {offsets:16} {row.hashes:>14x}")
    print()
    rows = round_trip.read("demo").limit(_SHOWN_ROWS)
    shown = rows.selectExpr(
        "cast(key as string) key",
        "trim(trailing '.' from cast(value as string)) value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    )
    shown.show(truncate=False)


def _timed(action: Callable[[], None]) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started


def _rate(records: int, seconds: float) -> str:
    return f"{records / seconds:,.0f} records/s"
