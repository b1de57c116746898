"""Spark Connect: a client without a JVM of its own reads and writes through the same source."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SCRIPT = """
import sys
from pyspark.sql import SparkSession
from spark_kafka_native import register

bootstrap_servers, topic = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert "connect" in type(spark).__module__
register(spark)
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
try:
    spark.read.format("pykafka").option("subscribe", topic).load().count()
except Exception as error:
    print("error", "Option 'kafka.bootstrap.servers' must be specified" in str(error))
spark.stop()
"""


def test_a_local_connect_server_reads_and_writes(peer, kafka, topic, tmp_path, script_environment):
    peer.create(kafka, topic, 3)
    script = tmp_path / "connect.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), kafka.bootstrap_servers, topic],
        env=script_environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "rows 1000" in done.stdout
    assert "error True" in done.stdout
