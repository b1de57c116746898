"""Batch writes with a writeId in Spark: SIGKILL of the driver and another run, foreachBatch, refusals."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from chispa import assert_df_equality

pytestmark = [pytest.mark.broker, pytest.mark.spark]

DRIVER = """
import signal, sys
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession
from spark_kafka_native.spark.source import KafkaDataSource
from spark_kafka_native.spark.write.driver import many_transactions, resumable_write
from spark_kafka_native.spark.write.batch_writer import KafkaBatchWriter

servers, topic, phase, mark = sys.argv[1:]

def wait_for_death():
    Path(mark).touch()
    signal.pause()

class Writer(KafkaBatchWriter):
    def write(self, iterator):
        def rows():
            for one in iterator:
                yield one.slice(0, 1)
                if phase == "running" and TaskContext.get().partitionId() == 3:
                    wait_for_death()
                yield one.slice(1)
        return super().write(rows())
    def commit(self, messages):
        original, ended = resumable_write._commit, []
        def half(*arguments):
            if len(ended) == 2:
                wait_for_death()
            ended.append(original(*arguments))
            return ended[-1]
        if phase == "committing":
            many_transactions.AT_ONCE, resumable_write._commit = 1, half
        super().commit(messages)
        if phase == "committed":
            wait_for_death()

class Dying(KafkaDataSource):
    @classmethod
    def name(cls):
        return "dying"
    def writer(self, schema, overwrite):
        writer = super().writer(schema, overwrite)
        writer.__class__ = Writer
        return writer

spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.speculation", "true" if phase == "speculation" else "false").getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(Dying)
(spark.range(0, 1000, 1, 4).selectExpr("cast(id as string) as value").write.format("dying").mode("append")
    .option("kafka.bootstrap.servers", servers).option("topic", topic)
    .option("deliveryGuarantee", "exactly-once").option("writeId", f"{topic}.1").save())
"""


def start_driver(kafka, topic, tmp_path, environment, phase):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    return subprocess.Popen(
        [sys.executable, script, kafka.bootstrap_servers, topic, phase, tmp_path / "die"],
        env=environment | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def save(kafka, topic):
    kafka.create_topic(topic, 3)

    def run(frame, write_id=f"{topic}.1", **options):
        write = frame.write.format("pykafka").mode("append").options(**options)
        write = write.option("kafka.bootstrap.servers", kafka.bootstrap_servers).option("topic", topic)
        write.option("deliveryGuarantee", "exactly-once").option("writeId", write_id).save()

    return run


@pytest.fixture
def seen(peer, spark, kafka, topic):
    """``seen()``: the values that readers with read_committed see."""

    def read():
        frame = peer.read(spark, kafka, topic, kafka__isolation__level="read_committed")
        return frame.selectExpr("cast(value as string) as value")

    return read


def numbers(spark, count, partitions=4):
    return spark.range(0, count, 1, partitions).selectExpr("cast(id as string) as value")


SOAK = pytest.mark.soak
"""Each takes a Spark session of its own."""


@pytest.mark.parametrize(
    ("phase", "committed"),
    [
        pytest.param("running", 0, marks=SOAK),
        ("committing", 500),
        pytest.param("committed", 1000, marks=SOAK),
    ],
)
def test_a_job_whose_driver_was_killed_is_finished_by_the_next_run(
    spark, kafka, topic, save, seen, tmp_path, script_environment, phase, committed
):
    driver = start_driver(kafka, topic, tmp_path, script_environment, phase)
    try:
        deadline = time.monotonic() + 300
        while not (tmp_path / "die").exists():
            assert driver.poll() is None, driver.stderr.read().decode()[-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        driver.stderr.close()
    summary = tmp_path / "summary.json"
    save(numbers(spark, 1000), summaryPath=str(summary))
    assert_df_equality(seen(), numbers(spark, 1000), ignore_row_order=True, ignore_nullable=True)
    told = json.loads(summary.read_text())
    assert (told["writeId"], told["committedBefore"]) == (f"{topic}.1", committed)
    assert (told["tasks"], told["records"]) == (4, 1000 - committed)
    save(numbers(spark, 1000))
    assert seen().count() == 1000


def test_other_rows_under_a_name_are_refused_and_another_name_takes_them(spark, save, seen):
    save(numbers(spark, 100))
    save(numbers(spark, 100))
    for other in (numbers(spark, 101), numbers(spark, 100, 3), numbers(spark, 0)):
        with pytest.raises(Exception, match="if it is another write, give it another writeId"):
            save(other)
    assert_df_equality(seen(), numbers(spark, 100), ignore_row_order=True, ignore_nullable=True)
    # A shuffle may bring its rows in another order.
    shuffled = numbers(spark, 100).repartition(3, "value")
    save(shuffled, "2")
    save(shuffled, "2")
    assert seen().count() == 200


def test_foreach_batch_is_exactly_once_with_a_name_of_the_batch(
    peer, spark, kafka, topic, stream, save, seen
):
    peer.create(kafka, f"{topic}-in", 2)
    peer.write(kafka.bootstrap_servers, f"{topic}-in", peer.numbered(20, 2))
    source = stream(f"{topic}-in", maxOffsetsPerTrigger="8")
    failures = ["raised after its effect"]

    def write(frame, batch_id):
        save(frame.selectExpr("key", "value"), f"{topic}-{batch_id}")
        if batch_id == 1 and failures:
            raise RuntimeError(failures.pop())

    def run():
        writer = source.frame().writeStream.foreachBatch(write).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(source.checkpoint)).start()
        assert query.awaitTermination(300)

    with pytest.raises(Exception, match="raised after its effect"):
        run()
    run()
    wanted = spark.createDataFrame([(f"v{number}",) for number in range(20)], "value string")
    assert_df_equality(seen(), wanted, ignore_row_order=True, ignore_nullable=True)


def test_a_stream_takes_no_name(kafka, topic, stream, peer, tmp_path):
    peer.create(kafka, topic, 1)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(2))
    write = stream().frame().select("value").writeStream.format("pykafka").trigger(availableNow=True)
    write = write.option("kafka.bootstrap.servers", kafka.bootstrap_servers).option("topic", topic)
    write = write.option("deliveryGuarantee", "exactly-once").option("writeId", "x")
    with pytest.raises(Exception, match="'writeId' is for batch writes"):
        write.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination(300)


@SOAK
def test_speculation_is_refused(kafka, topic, tmp_path, script_environment):
    kafka.create_topic(topic, 1)
    driver = start_driver(kafka, topic, tmp_path, script_environment, "speculation")
    _, said = driver.communicate(timeout=300)
    assert driver.returncode
    assert "exactly-once can't be had with spark.speculation=true" in said.decode()
