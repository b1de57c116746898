"""Writes from a Spark cluster of two workers that has the package from ``--py-files`` only: pure Python
out of a zip."""

import json

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SCRIPT = """
import json, sys
from pyspark.sql import SparkSession, functions as F
import spark_kafka_native

bootstrap_servers, topic, summary = sys.argv[1:]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
spark_kafka_native.register(spark)
frame = spark.range(0, 20_000, 1, 4).select(
    F.col("id").cast("string").alias("key"), F.concat(F.lit("value "), "id").alias("value")
)
(
    frame.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap_servers).option("topic", topic)
    .option("kafka.compression.type", "zstd").option("summaryPath", summary).mode("append").save()
)
found = (
    spark.read.format("pykafka").option("kafka.bootstrap.servers", bootstrap_servers)
    .option("subscribe", topic).load().select(F.col("key").cast("string"), F.col("value").cast("string"))
)
print("RESULT", json.dumps({"count": found.count(), "other": found.exceptAll(frame).count()}))
spark.stop()
"""


def test_two_workers_write_every_row_once(kafka, topic, tmp_path, run_on_two_workers):
    kafka.create_topic(topic, partitions=4)
    summary = tmp_path / "summary.json"
    found = run_on_two_workers(SCRIPT, kafka.bootstrap_servers, topic, str(summary))
    assert found == {"count": 20_000, "other": 0}
    told = json.loads(summary.read_text())
    assert (told["records"], told["tasks"]) == (20_000, 4)
