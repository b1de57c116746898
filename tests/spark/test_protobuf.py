"""Protobuf values in Spark: batches, streams, writes, bad records; a schema of a file, which workers don't
need."""

import base64
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import functions as F  # noqa: N812
from support.protobuf_messages import descriptor

from spark_kafka_native.formats.protobuf.descriptors import to_text
from spark_kafka_native.formats.registry import SchemaRegistry
from spark_kafka_native.testing import EmbeddedKafka, EmbeddedRegistry

pytestmark = [pytest.mark.broker, pytest.mark.spark]
EVERYTHING = "test.three.Everything"


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("protobuf") / "everything.desc"
    path.write_bytes(base64.b64decode(to_text(descriptor(EVERYTHING))))
    return {
        "value.format": "protobuf",
        "value.descriptorFile": str(path),
        "value.message": EVERYTHING,
        "unknownOptions": "error",
    }


def load(spark: Any, kafka: EmbeddedKafka, topic: str, **options: str) -> Any:
    reader = spark.read.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    return reader.options(subscribe=topic, **options).load()


@pytest.fixture(scope="module")
def topic(peer: Any, kafka: EmbeddedKafka) -> str:
    made = GetMessageClass(descriptor(EVERYTHING))
    values: list[bytes | None] = [
        made(
            an_int32=i,
            a_string=f"n{i}",
            a_uint64=2**64 - 1,
            color=i % 2,
            at={"seconds": i},
            took={"seconds": i, "nanos": 1_000},
            by_name={"k": i},
            parts=[{"name": "p", "size": 0}],
        ).SerializeToString()
        for i in range(1, 501)
    ]
    values[10], values[20] = None, b"\xff broken"
    peer.create(kafka, "protobuf", 2)
    records = [(i % 2, f"{i}".encode(), value, 1_700_000_000_000, ()) for i, value in enumerate(values)]
    peer.write(kafka.bootstrap_servers, "protobuf", records)
    return "protobuf"


def test_a_batch_with_its_bad_record(
    spark: Any, kafka: EmbeddedKafka, topic: str, options: dict[str, str]
) -> None:
    with pytest.raises(Exception, match=r"protobuf-0 at offset 10: .*no protobuf message of this type"):
        load(spark, kafka, topic, **options).select("value").collect()
    rows = load(spark, kafka, topic, mode="permissive", **options)
    bad = rows.where("_error is not null").collect()
    assert [bytes(row._corrupt_record) for row in bad] == [b"\xff broken"]
    good = load(spark, kafka, topic, mode="dropmalformed", **options)
    columns = [
        "value.an_int32",
        "value.a_string",
        "value.a_uint64",
        "value.color",
        "value.by_name",
        "value.parts.size",
        F.unix_micros("value.at").alias("at"),
        F.col("value.took").cast("interval second").cast("string").alias("took"),
    ]
    found = good.where("value is not null").select(*columns).orderBy("an_int32").collect()
    assert len(found) == 498
    assert [tuple(row) for row in found[:2]] == [
        (i, f"n{i}", 2**64 - 1, "GREEN" if i % 2 else None, {"k": i}, [0], i * 1_000_000, took)
        for i, took in ((1, "INTERVAL '01.000001' SECOND"), (2, "INTERVAL '02.000001' SECOND"))
    ]
    assert good.count() == 499


def test_a_stream_into_another_topic(
    spark: Any, kafka: EmbeddedKafka, topic: str, options: dict[str, str], tmp_path: Path
) -> None:
    kafka.create_topic("protobuf-out", 2)
    stream = (
        spark.readStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="200", **options)
        .options(mode="dropmalformed")
        .load()
    )
    query = (
        stream.where("value is not null")
        .select("key", "value")
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .options(topic="protobuf-out", checkpointLocation=str(tmp_path), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    made = GetMessageClass(descriptor(EVERYTHING))
    sent = {row.key: row.value for row in load(spark, kafka, topic).collect()}
    copied = {row.key: row.value for row in load(spark, kafka, "protobuf-out").collect()}
    assert len(copied) == 498
    for key, value in copied.items():
        assert made.FromString(bytes(value)) == made.FromString(bytes(sent[key]))


def test_a_value_that_does_not_fit_stops_the_write(
    spark: Any, kafka: EmbeddedKafka, options: dict[str, str]
) -> None:
    kafka.create_topic("protobuf-refused", 1)
    rows = spark.range(1).select(F.struct(F.lit(2**40).alias("an_int32")).alias("value"))
    writer = rows.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    with pytest.raises(Exception, match="`an_int32` does not fit int32"):
        writer.options(topic="protobuf-refused", **options).mode("append").save()
    rows = spark.range(1).select(F.struct(F.lit(1).alias("unknown")).alias("value"))
    writer = rows.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    with pytest.raises(Exception, match="has no field 'unknown'"):
        writer.options(topic="protobuf-refused", **options).mode("append").save()


def test_a_registry_names_the_schema_of_each_value(
    spark: Any, kafka: EmbeddedKafka, registry: EmbeddedRegistry
) -> None:
    kafka.create_topic("protobuf-registry", 2)
    schemas = SchemaRegistry.from_settings({"registry.url": registry.url})
    assert schemas is not None
    text = 'syntax = "proto3"; package s; message Note { string n = 1; } message Order { int64 id = 1; }'
    schemas.register("protobuf-registry-value", text, "PROTOBUF")
    options = {
        "value.format": "protobuf",
        "value.message": "s.Order",
        "registry.url": registry.url,
        "unknownOptions": "error",
    }
    rows = spark.range(1, 101).select(F.struct("id").alias("value"))
    writer = rows.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    writer.options(topic="protobuf-registry", **options).mode("append").save()
    read = load(spark, kafka, "protobuf-registry", **options)
    assert sorted(row.id for row in read.select("value.id").collect()) == list(range(1, 101))
    raw = load(spark, kafka, "protobuf-registry").selectExpr("substring(value, 6, 2) as indexes").distinct()
    assert [bytes(row.indexes) for row in raw.collect()] == [b"\x02\x02"]
