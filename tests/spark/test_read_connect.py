"""Spark Connect: a client without a JVM of its own reads, writes and streams through the same source."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SCRIPT = """
import sys
import time
from pyspark.sql import SparkSession
from spark_kafka_native import StreamMetrics, lag, register

bootstrap_servers, topic, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
assert "connect" in type(spark).__module__
register(spark)
metrics = StreamMetrics()
spark.streams.addListener(metrics)
numbers = spark.range(1000).selectExpr("cast(id as string) as key", "cast(id * 2 as string) as value")
(
    numbers.write.format("pykafka").mode("append")
    .option("kafka.bootstrap.servers", bootstrap_servers).option("topic", topic).save()
)
options = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic}
back = spark.read.format("pykafka").options(**options).schema("key string, value string").load()
assert back.exceptAll(numbers).count() == 0 and numbers.exceptAll(back).count() == 0
back.createOrReplaceTempView("back")
doubled = spark.sql("select count(*) from back where int(value) = 2 * int(key)")
print("rows", doubled.first()[0])
copy = topic + "-copy"
stream = spark.readStream.format("pykafka").options(**options).option("startingOffsets", "earliest")
stream = stream.option("maxOffsetsPerTrigger", "400").load()
def run():
    query = (
        stream.select("key", "value", "partition").writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", bootstrap_servers).option("topic", copy)
        .option("checkpointLocation", folder).trigger(availableNow=True).start()
    )
    assert lag(query).records >= 0
    assert query.awaitTermination(300)
    return query
query = run()
behind = lag(query)
print("lag", len(behind.partitions), behind.records, "<table>" in behind._repr_html_())
(
    numbers.limit(10).write.format("pykafka").mode("append")
    .option("kafka.bootstrap.servers", bootstrap_servers).option("topic", topic).save()
)
run()
copied = spark.read.format("pykafka").options(**options | {"subscribe": copy})
copied = copied.schema("key string, value string").load()
print("copied", copied.count(), copied.distinct().count())
until = time.monotonic() + 240  # events come when they come
while (found := metrics.metrics()).value("kafka.stream.records") < 1010 and time.monotonic() < until:
    time.sleep(0.1)
print("listened", found.value("kafka.stream.records"), found.value("kafka.stream.failures"))
try:
    spark.read.format("pykafka").option("subscribe", topic).load().count()
except Exception as error:
    print("error", "Option 'kafka.bootstrap.servers' must be specified" in str(error))
spark.stop()
"""


@pytest.mark.timeout(900)
def test_a_local_connect_server_reads_writes_and_streams(peer, kafka, topic, tmp_path, script_environment):
    for name in (topic, f"{topic}-copy"):
        peer.create(kafka, name, 3)
    script = tmp_path / "connect.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), kafka.bootstrap_servers, topic, str(tmp_path / "checkpoint")],
        env=script_environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "rows 1000" in done.stdout
    assert "lag 3 0 True" in done.stdout
    assert "copied 1010 1000" in done.stdout
    assert "listened 1010 0" in done.stdout
    assert "error True" in done.stdout
