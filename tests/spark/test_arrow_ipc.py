"""Arrow IPC streams as values in Spark: their rows are an array, or columns where each stream has one."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from spark_kafka_native.testing import EmbeddedKafka

pytestmark = [pytest.mark.broker, pytest.mark.spark]
FIELDS = "sensor: string, celsius: double"


def load(spark: Any, kafka: EmbeddedKafka, topic: str, **options: str) -> Any:
    reader = spark.read.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    return reader.options(subscribe=topic, unknownOptions="error", **options).load()


def test_streams_of_many_rows(spark: Any, peer: Any, kafka: EmbeddedKafka) -> None:
    table = pa.table({"celsius": [1.5, None, 3.0], "sensor": ["a", "b", "c"], "other": [1, 2, 3]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    values = [bytes(sink.getvalue()), None, b"broken", bytes(sink.getvalue())]
    topic = peer.create(kafka, "arrow-ipc")
    records = [(0, None, value, 1_700_000_000_000, ()) for value in values]
    peer.write(kafka.bootstrap_servers, topic, records)
    options = {"value.format": "arrow-ipc", "value.schema": f"array<struct<{FIELDS}>>"}
    read = load(spark, kafka, topic, mode="permissive", **options)
    rows = read.selectExpr("offset", "inline(value)").orderBy("offset", "sensor").collect()
    one = [("a", 1.5), ("b", None), ("c", 3.0)]
    assert [tuple(row) for row in rows] == [(offset, *row) for offset in (0, 3) for row in one]
    assert [row.offset for row in read.where("_error is not null").collect()] == [2]
    with pytest.raises(Exception, match=r"arrow-ipc-0 at offset 2: .*no Arrow IPC stream"):
        load(spark, kafka, topic, **options).collect()


def test_what_is_written_is_read_again(spark: Any, kafka: EmbeddedKafka) -> None:
    for layout in ("struct", "columns"):
        topic = f"arrow-ipc-{layout}"
        kafka.create_topic(topic, 1)
        rows = spark.range(50).select(
            F.col("id").cast("string").alias("sensor"), (F.col("id") / 7).alias("celsius")
        )
        whole = F.collect_list(F.struct("sensor", "celsius")).alias("value")
        written = rows if layout == "columns" else rows.coalesce(1).agg(whole)
        options = {"value.format": "arrow-ipc", "value.layout": layout}
        writer = written.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        writer.options(topic=topic, **options).mode("append").save()
        schema = "sensor string, celsius double" if layout == "columns" else f"array<struct<{FIELDS}>>"
        read = load(spark, kafka, topic, **options, **{"value.schema": schema})
        found = read.select("sensor", "celsius") if layout == "columns" else read.selectExpr("inline(value)")
        assert sorted(found.collect()) == sorted(rows.collect())
        assert read.count() == (50 if layout == "columns" else 1)
