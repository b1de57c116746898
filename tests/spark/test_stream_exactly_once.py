"""The exactly-once sink in Spark: restarts, a commit that raises after its effect, SIGKILL of the driver."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.group.committed_offsets import all_committed_offsets
from spark_kafka_native.spark.source import KafkaDataSource
from spark_kafka_native.spark.write.stream_writer import KafkaStreamWriter

pytestmark = [pytest.mark.broker, pytest.mark.spark]

DRIVER = """
import signal, sys, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession
from spark_kafka_native.spark.source import KafkaDataSource
from spark_kafka_native.spark.write.driver import stream_commit
from spark_kafka_native.spark.write.stream_writer import KafkaStreamWriter

servers, source, sink, checkpoint, phase = sys.argv[1:]
mark = Path(checkpoint).parent / "die"

def wait_for_death():
    mark.touch()
    while phase != "standing" or not mark.with_name("go").exists():
        time.sleep(0.05)

class Writer(KafkaStreamWriter):
    def write(self, iterator):
        batch = TaskContext.get().getLocalProperty("streaming.sql.batchId")
        def rows():
            for one in iterator:
                yield one.slice(0, 1)
                if batch == "1" and phase == "running":
                    wait_for_death()
                yield one.slice(1)
        return super().write(rows())
    def commit(self, messages, batchId):
        if batchId == 1 and phase in ("committing", "standing"):
            end_all = stream_commit._end_all
            def half(router, transactions, **how):
                first = end_all(router, transactions[:1], **how)
                wait_for_death()
                return first + end_all(router, transactions[1:], **how)
            stream_commit._end_all = half
        super().commit(messages, batchId)
        if batchId == 1 and phase == "committed":
            wait_for_death()

class Dying(KafkaDataSource):
    @classmethod
    def name(cls):
        return "dying"
    def streamWriter(self, schema, overwrite):
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = Writer
        return writer

spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.speculation", "true" if phase == "speculation" else "false").getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(KafkaDataSource)
spark.dataSource.register(Dying)
frame = (spark.readStream.format("pykafka")
    .option("kafka.bootstrap.servers", servers).option("subscribe", source)
    .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "8").load())
query = (frame.select("key", "value").writeStream.format("dying")
    .option("kafka.bootstrap.servers", servers).option("deliveryGuarantee", "exactly-once")
    .option("transactionTimeout", "20s" if phase == "standing" else "60s")
    .option("topic", sink).option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
query.awaitTermination()
"""


class RaisingWriter(KafkaStreamWriter):
    def commit(self, messages, batchId):
        super().commit(messages, batchId)
        if batchId == 1:
            raise RuntimeError("raised after its effect")


class RaisingSource(KafkaDataSource):
    @classmethod
    def name(cls):
        return "raising"

    def streamWriter(self, schema, overwrite):
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = RaisingWriter
        return writer


class StandingWriter(KafkaStreamWriter):
    """The second task stands still when it has written a row."""

    def write(self, iterator):
        def rows():
            for one in iterator:
                yield one.slice(0, 1)
                if TaskContext.get().partitionId() == 1:
                    time.sleep(600)
                yield one.slice(1)

        return super().write(rows())


class StandingSource(KafkaDataSource):
    @classmethod
    def name(cls):
        return "standing"

    def streamWriter(self, schema, overwrite):
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = StandingWriter
        return writer


@pytest.fixture
def once(kafka, topic, stream, tmp_path):
    """``once(**options)``: run the query from the test's topic to its copy, up to the end of the topic."""

    def run(source="pykafka", waits=True, **options):
        frame = stream(maxOffsetsPerTrigger="8").frame()
        query = (
            frame.select("key", "value")
            .writeStream.format(source)
            .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
            .option("topic", f"{topic}-copy")
            .option("deliveryGuarantee", "exactly-once")
            .options(**options)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        if waits:
            query.awaitTermination(300)
        return query

    return run


@pytest.fixture
def topics(peer, kafka, topic):
    for name in (topic, f"{topic}-copy"):
        peer.create(kafka, name, 2)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(20, 2))


def settle(kafka, query_id, tasks=2):
    """Wait for open commits: a reader right after the commit may not see it yet."""
    router = Router(ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,)))
    last = {}
    for task in range(tasks):
        found = all_committed_offsets(router, f"pykafka-{query_id}-{task}")
        last |= {(task, tp.topic): one.offset for tp, one in found.items()}
    router.close()
    return last


def seen(peer, spark, kafka, topic):
    read = peer.read(spark, kafka, f"{topic}-copy", kafka__isolation__level="read_committed")
    return Counter(bytes(row.value) for row in read.collect())


def each_once(count):
    return Counter(b"v%d" % number for number in range(count))


def test_each_row_once_over_batches_and_restarts(peer, spark, kafka, topic, topics, once):
    query = once()
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10, 2, start=20))
    assert once().id == query.id
    markers = settle(kafka, query.id)
    assert seen(peer, spark, kafka, topic) == each_once(30)
    assert markers == {(0, f"{topic}-copy"): 4, (1, f"{topic}-copy"): 4}


def test_a_commit_that_raises_after_its_effect_costs_nothing(peer, spark, kafka, topic, topics, once):
    spark.dataSource.register(RaisingSource)
    with pytest.raises(Exception, match="raised after its effect"):
        once("raising")
    settle(kafka, once().id)
    assert seen(peer, spark, kafka, topic) == each_once(20)


def test_a_batch_that_is_cancelled_leaves_nothing_open(spark, kafka, topics, once):
    """`query.stop()` also interrupts the query's thread, and with it an abort that Spark has begun."""
    spark.dataSource.register(StandingSource)
    query = once("standing", waits=False, **{"kafka.linger.ms": "0"})
    try:
        await_open(kafka, query.id, ["0", "1"])
        await_a_task(spark)
        spark.sparkContext.cancelJobGroup(query.runId)
        with pytest.raises(StreamingQueryException, match="cancelled"):
            query.awaitTermination(120)
    finally:
        query.stop()
    await_open(kafka, query.id, [])


def await_open(kafka, query_id, wanted):
    """Until exactly these tasks have a transaction open."""
    until, lead, tasks = time.monotonic() + 120, f"pykafka-{query_id}-", None
    with Admin(kafka.bootstrap_servers) as admin:
        while tasks != wanted:
            assert time.monotonic() < until, tasks
            found = admin.list_transactions(states=["Ongoing"])
            names = [one.transactional_id for one in found]
            tasks = [name.removeprefix(lead) for name in names if name.startswith(lead)]
            time.sleep(0.1)


def await_a_task(spark):
    """Until the first of two tasks has ended, as the driver knows it."""
    until, status = time.monotonic() + 120, spark.sparkContext.statusTracker()
    while not any(
        (stage := status.getStageInfo(one)) and stage.numCompletedTasks == 1
        for one in status.getActiveStageIds()
    ):
        assert time.monotonic() < until
        time.sleep(0.1)


SOAK = pytest.mark.soak
"""Each takes a Spark session of its own."""


@pytest.mark.parametrize(
    "phase", [pytest.param("running", marks=SOAK), "committing", pytest.param("committed", marks=SOAK)]
)
def test_sigkill_of_the_driver(peer, spark, kafka, topic, topics, once, tmp_path, script_environment, phase):
    driver = start_driver(kafka, topic, tmp_path, script_environment, phase)
    try:
        await_mark(driver, tmp_path)
    finally:
        end(driver)
    settle(kafka, once().id)
    assert seen(peer, spark, kafka, topic) == each_once(20)


def await_mark(driver, folder):
    """Until the driver is where it is to die."""
    deadline = time.monotonic() + 300
    while not (folder / "die").exists():
        assert driver.poll() is None, driver.stderr.read().decode()[-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def end(driver):
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    driver.stderr.close()


@pytest.mark.parametrize("overtaken", [pytest.param(False, marks=SOAK), True], ids=["alone", "overtaken"])
def test_a_driver_that_stands_still_in_a_commit_goes_on_without_effect(
    peer, spark, kafka, topic, topics, once, tmp_path, script_environment, overtaken
):
    """SIGSTOP of a whole application, with one of two transactions committed, until the other has expired, or
    another application has gone on from its checkpoint.
    """
    driver = start_driver(kafka, topic, tmp_path, script_environment, "standing")
    try:
        await_mark(driver, tmp_path)
        (query_id,) = (tmp_path / "checkpoint" / "metadata").read_text().split('"id":"')[1:]
        query_id = query_id.partition('"')[0]
        os.killpg(driver.pid, signal.SIGSTOP)
        if overtaken:
            assert once().id == query_id
        await_open(kafka, query_id, [])
        (tmp_path / "go").touch()
        os.killpg(driver.pid, signal.SIGCONT)
        _, said = driver.communicate(timeout=300)
        assert driver.returncode
        # After standing still longer than the transaction timeout, its own deadline may have passed, too.
        refused = r"EndTxn \(commit\) for transactional id|EndTxn to the coordinator of .* in time"
        assert re.search(refused, said.decode()), said.decode()[-4000:]
    finally:
        end(driver)
    settle(kafka, once().id)
    assert seen(peer, spark, kafka, topic) == each_once(20)


@SOAK
def test_speculation_is_refused(kafka, topic, topics, tmp_path, script_environment):
    driver = start_driver(kafka, topic, tmp_path, script_environment, "speculation")
    _, said = driver.communicate(timeout=300)
    assert driver.returncode
    assert "exactly-once can't be had with spark.speculation=true" in said.decode()


def start_driver(kafka, topic, tmp_path, environment, phase):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    return subprocess.Popen(
        [
            sys.executable,
            script,
            kafka.bootstrap_servers,
            topic,
            f"{topic}-copy",
            tmp_path / "checkpoint",
            phase,
        ],
        env=environment | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"asyncProgressTrackingEnabled": "true"}, "async progress tracking"),  # Spark's own words
        ({"kafka.acks": "1"}, "kafka.acks=all"),
        ({"transactionTimeout": "1h"}, r"timeout\.ms=3600000 is over .*max\.timeout\.ms=900000"),
    ],
)
def test_what_cannot_be_had_with_it_is_refused(topics, once, options, words):
    with pytest.raises(Exception, match=words):
        once(**options)
