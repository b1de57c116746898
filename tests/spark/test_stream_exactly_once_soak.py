"""The exactly-once sink in Spark itself: three brokers that are killed and paused, a proxy that loses and
delays replies, tasks that are killed at each crash point, and a driver that is killed again and again.

EXACTLY_ONCE_SPARK_RECORDS, EXACTLY_ONCE_SPARK_DRIVER_KILLS and EXACTLY_ONCE_SEED say how much of it;
EXACTLY_ONCE_SPARK_REPORT names a file for the figures. The written records are checked by `record_checker`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.exactly_once.nemesis import SETTINGS, Nemesis, disturb, process
from support.exactly_once.sink_processes import COMMIT_POINTS, POINTS, Events, Plan, rows

from spark_kafka_native.kafka import Producer
from spark_kafka_native.testing import EmbeddedKafka, FaultProxy

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.soak]
PROGRAMS = Path(__file__).parents[1] / "support/exactly_once"

DRIVER = """
import os, random, signal, sys, time
from functools import partial
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession, functions as F
from support.exactly_once.sink_processes import COMMIT_POINTS, Events, Plan, TASK_POINTS, after, die
from spark_kafka_native.spark.source import KafkaDataSource
from spark_kafka_native.spark.write.stream_writer import KafkaStreamWriter

plan_path, servers, source, checkpoint, life, protocol, commit_point = sys.argv[1:]
PLAN = Plan.load(plan_path)

def wait_for_death(point):
    Events(PLAN.folder).tell(f"killed at {point}")
    signal.pause()

class Writer(KafkaStreamWriter):
    def write(self, iterator):
        from spark_kafka_native.kafka.config.client_config import TransactionConfig
        from spark_kafka_native.spark.write.worker import transactional_task
        from spark_kafka_native.spark.write.marker_store import GroupMarkers
        from spark_kafka_native.spark.write.worker.write_rows import WriteTask

        context, events = TaskContext.get(), Events(PLAN.folder)
        batch = context.getLocalProperty("streaming.sql.batchId")
        rng = random.Random(f"{PLAN.seed} {life} {batch} {context.partitionId()} {context.attemptNumber()}")
        point = rng.choice(TASK_POINTS) if context.attemptNumber() < 2 and rng.random() < 0.12 else None
        at = lambda one: partial(die, events, one) if one == point else lambda: None
        transactional_task.TransactionConfig = partial(TransactionConfig, transaction_version=int(protocol))
        after(transactional_task.TransactionalProducer, "initialize", at("initialized"))
        after(GroupMarkers, "last", at("marker-read"))
        after(WriteTask, "write", at("producing"))
        after(WriteTask, "finish", at("acknowledged"))
        message = super().write(iterator)
        at("returned")()
        return message

    def commit(self, messages, batchId):
        from spark_kafka_native.spark.write.driver import stream_commit

        end_all = stream_commit._end_all
        def dying(router, transactions, **how):
            if commit_point == "before-end":
                wait_for_death("before-end")
            if commit_point == "after-end":
                end_all(router, transactions[: max(1, len(transactions) // 2)], **how)
                wait_for_death("after-end")
            return end_all(router, transactions, **how)
        stream_commit._end_all = dying
        super().commit(messages, batchId)
        Events(PLAN.folder).tell("a batch is committed")
        if commit_point == "committed":
            wait_for_death("committed")

class Dying(KafkaDataSource):
    @classmethod
    def name(cls):
        return "dying"
    def streamWriter(self, schema, overwrite):
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = Writer
        return writer

spark = (SparkSession.builder.master("local[2,6]").config("spark.ui.enabled", "false")
    .config("spark.python.worker.reuse", "false").getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(KafkaDataSource)
spark.dataSource.register(Dying)
frame = (spark.readStream.format("pykafka")
    .option("kafka.bootstrap.servers", servers).option("subscribe", source)
    .option("kafka.request.timeout.ms", "5000").option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", str(PLAN.tasks * PLAN.rows)).load())
index = F.split(F.split(F.col("value").cast("string"), " ")[0], "-")[2].cast("int")
query = (frame.select("value", (index % PLAN.partitions).cast("int").alias("partition"))
    .writeStream.format("dying").option("kafka.bootstrap.servers", servers)
    .option("kafka.request.timeout.ms", "5000").option("kafka.retry.backoff.ms", "20")
    .option("deliveryGuarantee", "exactly-once").option("transactionTimeout", "1m")
    .option("topic", PLAN.topic).option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
query.awaitTermination()
"""


def write_source(kafka: EmbeddedKafka, plan: Plan, source: str) -> None:
    """Partition ``t`` has the rows of task ``t``, batch by batch."""
    kafka.create_topic(source, plan.tasks)
    with Producer(kafka.bootstrap_servers) as producer:
        for batch_id in range(plan.batches):
            for task in range(plan.tasks):
                for part in rows(plan, batch_id, task):
                    producer.send_columns(part.select(["value"]), source, task)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


class Lives:
    """Of the driver: each ends with SIGKILL, or as it is done, or because the query failed."""

    def __init__(self, plan: Plan, folder: Path, servers: str, source: str) -> None:
        self.plan, self.folder, self.servers, self.source = plan, folder, servers, source
        self.events = Events(plan.folder)
        self.rng = random.Random(f"{plan.seed} lives")
        self.counts: Counter[str] = Counter()
        self.script = folder / "driver.py"
        self.script.write_text(DRIVER)

    def run(self, kills: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        life = 0
        while True:
            assert time.monotonic() < deadline, self.counts
            life += 1
            if self._live(life, self.counts["driver kills"] < kills):
                return

    def _live(self, life: int, kill: bool) -> bool:
        """True if the query came to the end of the topic."""
        point = COMMIT_POINTS[life % 3] if kill and life % 2 else "none"
        command = [
            *(self.script, self.folder / "plan.json", self.servers, self.source, self.folder / "checkpoint"),
            *(life, self.rng.choice(self.plan.protocols), point),
        ]
        before = self.events.count("a batch is committed")
        with (
            (self.folder / f"driver-{life}").open("wb") as output,
            process(*command, stdout=output, stderr=output) as driver,
        ):
            if kill and point != "none":
                seen = self.events.count(f"killed at {point}")
                wait_until(
                    lambda: driver.poll() is not None or self.events.count(f"killed at {point}") > seen, 300
                )
            elif kill:
                batches = before + self.rng.randint(0, 2)
                wait_until(
                    lambda: driver.poll() is not None or self.events.count("a batch is committed") > batches,
                    300,
                )
                wait_until(lambda: driver.poll() is not None, self.rng.uniform(0, 2))
            else:
                wait_until(lambda: driver.poll() is not None, 1200)
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait(60)
                self.counts["driver kills"] += 1
                return False
        self.counts["queries that failed" if driver.returncode else "queries that ended"] += 1
        return driver.returncode == 0


@pytest.mark.timeout(6 * 3600)
def test_each_row_once_whoever_dies(tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records = int(os.environ.get("EXACTLY_ONCE_SPARK_RECORDS", "40000"))
    kills = int(os.environ.get("EXACTLY_ONCE_SPARK_DRIVER_KILLS", "40"))
    seed = int(os.environ.get("EXACTLY_ONCE_SEED", str(int(time.time()))))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    for name in [name for name in os.environ if name.startswith("PYSPARK_") and name != "PYSPARK_PYTHON"]:
        monkeypatch.delenv(name)
    with (
        EmbeddedKafka(3, properties=SETTINGS, startup_timeout_s=240) as kafka,
        FaultProxy(kafka.bootstrap_servers, seed=seed) as proxy,
    ):
        kafka.create_topic(topic, 3)
        plan = Plan(
            bootstrap_servers=proxy.bootstrap_servers,
            topic=topic,
            folder=str(tmp_path),
            seed=seed,
            batches=records // 800,
            tasks=2,
            rows=400,
        )
        path = plan.save()
        write_source(kafka, plan, f"{topic}-source")
        disturb(proxy)
        lives = Lives(plan, tmp_path, proxy.bootstrap_servers, f"{topic}-source")
        # One for each batch that is committed, or that was begun by a driver that is killed.
        nemesis = Nemesis(kafka, tmp_path, seed, lambda n: n <= lives.events.count("a batch is committed"))
        began = time.monotonic()
        with process(
            PROGRAMS / "record_checker.py", path, kafka.bootstrap_servers, stdout=subprocess.PIPE
        ) as checker:
            nemesis.start()
            try:
                lives.run(kills, 5 * 3600)
            finally:
                nemesis.stop()
            (tmp_path / "done").touch()
            said, _ = checker.communicate(timeout=300)
    told: dict[str, Any] = json.loads(said.splitlines()[-1])
    happened = Counter(line.partition(": ")[0] for line in lives.events.read())
    fell = Counter(f"{one.api} {one.side} {type(one.fault).__name__}" for one in proxy.trace)
    report = {
        "seconds": round(time.monotonic() - began),
        **told,
        "broker kills": nemesis.kills,
        "broker pauses": nemesis.pauses,
        **lives.counts,
        "events": dict(sorted(happened.items())),
        "faults": dict(sorted(fell.items())),
        "seed": seed,
    }
    if where := os.environ.get("EXACTLY_ONCE_SPARK_REPORT"):
        Path(where).write_text(json.dumps(report, indent=1))
    assert told == {"records": plan.records, "wrong": {}}, report
    assert lives.counts["driver kills"] >= kills or lives.counts["queries that ended"], report
    if kills >= 2 * len(POINTS):
        assert all(happened[f"killed at {one}"] for one in COMMIT_POINTS), report
