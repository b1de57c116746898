"""SIGKILL of the driver in each phase of a micro-batch, and the JVM connector on the same checkpoint."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.spark]

DRIVER = """
import os, signal, sys
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession
from spark_kafka_native.spark.source import KafkaDataSource
from spark_kafka_native.spark.read.stream_reader import KafkaStreamReader
from spark_kafka_native.spark.write.stream_writer import KafkaStreamWriter

servers, source, sink, checkpoint, phase, die_in = sys.argv[1:]
mark = Path(checkpoint).parent / "die"

def wait_for_death(now):
    if now == phase:
        mark.touch()
        signal.pause()

class Reader(KafkaStreamReader):
    def partitions(self, start, end):
        tasks = super().partitions(start, end)
        if list(Path(checkpoint, "offsets").glob(die_in)):
            wait_for_death("planned")
        return tasks

class Writer(KafkaStreamWriter):
    def write(self, iterator):
        batch = TaskContext.get().getLocalProperty("streaming.sql.batchId")
        def rows():
            for one in iterator:
                yield one.slice(0, 1)
                if batch == die_in:
                    wait_for_death("running")
                yield one.slice(1)
        return super().write(rows())
    def commit(self, messages, batchId):
        if str(batchId) == die_in:
            wait_for_death("written")
        super().commit(messages, batchId)

class Dying(KafkaDataSource):
    @classmethod
    def name(cls):
        return "dying"
    def streamReader(self, schema):
        reader = super().streamReader(schema)
        reader.__class__ = Reader
        return reader
    def streamWriter(self, schema, overwrite):
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = Writer
        return writer

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(Dying)
frame = (spark.readStream.format("dying")
    .option("kafka.bootstrap.servers", servers).option("subscribe", source)
    .option("startingOffsets", "latest-10").option("maxOffsetsPerTrigger", "4").load())
query = (frame.select("key", "value").writeStream.format("dying")
    .option("kafka.bootstrap.servers", servers)
    .option("topic", sink).option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
query.awaitTermination()
"""


SOAK = pytest.mark.soak
"""Each takes a Spark session of its own. In the one that is left, the plan is there and a part is written."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("phase", "die_in"),
    [
        pytest.param("planned", "0", marks=SOAK),
        ("running", "0"),
        pytest.param("written", "1", marks=SOAK),
        pytest.param("planned", "2", marks=SOAK),
    ],
)
def test_sigkill_of_the_driver(
    peer, spark, kafka, topic, stream, tmp_path, script_environment, phase, die_in
):
    copy, checkpoint = f"{topic}-copy", tmp_path / "checkpoint"
    for name in (topic, copy):
        peer.create(kafka, name)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(12))
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    driver = subprocess.Popen(
        [sys.executable, script, kafka.bootstrap_servers, topic, copy, checkpoint, phase, die_in],
        env=script_environment | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 300
        while not (tmp_path / "die").exists():
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(60)
    # More arrives before the restart: latest-10 would be another place now.
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(8, start=12))
    frame = stream(startingOffsets="latest-10", maxOffsetsPerTrigger="4").frame()
    query = (
        frame.select("key", "value")
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("topic", copy)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300), query.lastProgress
    rows = peer.read(spark, kafka, copy).orderBy("offset").collect()
    found = [int(bytes(row.value)[1:]) for row in rows]
    # At least once, and in order: once those that a batch wrote twice are left out.
    assert list(dict.fromkeys(found)) == list(range(2, 20))
    assert len(found) <= 18 + 4
    starts = json.loads((checkpoint / "offsets" / "0").read_text().splitlines()[2])
    assert f"#start {topic} 0:2" in starts
