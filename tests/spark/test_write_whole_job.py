"""Batch writes with deliveryGuarantee=exactly-once: the whole job is seen by read_committed readers, or
nothing of it."""

import os
import subprocess
import sys
from collections import Counter

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.spark]

DRIVER = """
import os, signal, sys
from pyspark import TaskContext
from pyspark.sql import SparkSession
from spark_kafka_native.spark.source import KafkaDataSource

servers, topic, fault = sys.argv[1:]
spark = (SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    .config("spark.speculation", "true" if fault == "speculation" else "false").getOrCreate())
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(KafkaDataSource)

def tries(batches):
    for number, batch in enumerate(batches):
        if number == 60 and TaskContext.get().attemptNumber() < 2:
            raise RuntimeError("this attempt dies half-way")
        yield batch

frame = spark.range(0, 1000, 1, 1).selectExpr("cast(id as string) as value")
(frame.mapInArrow(tries, "value string").write.format("pykafka").mode("append")
    .option("kafka.bootstrap.servers", servers).option("topic", topic)
    .option("kafka.linger.ms", "0").option("deliveryGuarantee", "exactly-once").save())
"""


@pytest.fixture
def save(kafka, topic):
    kafka.create_topic(topic, 2)

    def run(frame, **options):
        write = frame.write.format("pykafka").mode("append").options(**options)
        write = write.option("kafka.bootstrap.servers", kafka.bootstrap_servers).option("topic", topic)
        write.option("deliveryGuarantee", "exactly-once").save()

    return run


def seen(peer, spark, kafka, topic):
    read = peer.read(spark, kafka, topic, kafka__isolation__level="read_committed")
    return Counter(int(row.value) for row in read.collect())


def numbers(spark, count, partitions):
    return spark.range(0, count, 1, partitions).selectExpr("cast(id as string) as value")


def test_one_task_writes_all_or_nothing(peer, spark, kafka, topic, save):
    frame = numbers(spark, 500, 4)
    with pytest.raises(Exception, match=r"of the DataFrame has rows.*repartition\(1\)"):
        save(frame, transactionalIdPrefix=topic)
    # What that one has left is nothing to the next.
    save(frame.coalesce(1), transactionalIdPrefix=topic)
    assert seen(peer, spark, kafka, topic) == Counter(range(500))
    save(frame.where("value < 0"), transactionalIdPrefix=topic)
    # Partitions without rows are no harm, after a shuffle that Spark plans while it runs either.
    ten = frame.where("value < 10").repartition(3).groupBy("value").count().select("value").repartition(1)
    save(ten.union(frame.where("value < 0")))
    assert seen(peer, spark, kafka, topic) == Counter(range(500)) + Counter(range(10))


def test_a_row_that_fails_takes_all_of_them_with_it(peer, spark, kafka, topic, save):
    rows = [(str(i), i // 499 * 7) for i in range(500)]
    frame = spark.createDataFrame(rows, "value string, partition int").coalesce(1)
    with pytest.raises(Exception, match="partition 7"):
        save(frame)
    assert seen(peer, spark, kafka, topic) == {}


def test_what_cannot_be_had_is_said_on_the_driver(spark, topic, save):
    with pytest.raises(Exception, match=r"timeout\.ms=3600000 is over .*max\.timeout\.ms=900000"):
        save(numbers(spark, 3, 1), transactionTimeout="1h")


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["attempts", "speculation"])
def test_attempts_that_die_half_way_and_speculation(
    peer, spark, kafka, topic, save, script_environment, fault, tmp_path
):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    done = subprocess.run(
        [sys.executable, script, kafka.bootstrap_servers, topic, fault],
        env=script_environment | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if fault == "speculation":
        assert "exactly-once can't be had with spark.speculation=true" in done.stderr
        assert seen(peer, spark, kafka, topic) == {}
    else:
        assert done.returncode == 0, done.stderr[-4000:]
        assert seen(peer, spark, kafka, topic) == Counter(range(1000))
