"""Avro in Spark: batches, streams, writes with exactly-once, bad records, keys of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812
from support.avro_cases import read, write

from spark_kafka_native.testing import EmbeddedKafka, EmbeddedRegistry

pytestmark = [pytest.mark.broker, pytest.mark.spark]

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}
OPTIONS = {
    "value.format": "avro",
    "value.schema": json.dumps(ORDER),
    "key.format": "avro",
    "key.schema": '"long"',
    "unknownOptions": "error",
}


def load(spark: Any, kafka: EmbeddedKafka, topic: str, **options: str) -> Any:
    reader = spark.read.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    return reader.options(subscribe=topic, **options).load()


def order(i: int) -> dict[str, Any]:
    return {
        "id": i,
        "customer": None if i % 5 == 0 else f"c{i}",
        "placed": 1_700_000_000_000 + i,
        "tags": ["t"] * (i % 3),
        "counts": {"k": i},
        "kind": "AB"[i % 2],
    }


@pytest.fixture(scope="module")
def orders(peer: Any, kafka: EmbeddedKafka) -> str:
    """500 records; the value of record 10 is null, that of 20 is broken, and so is the key of 30."""
    values: list[bytes | None] = [write(ORDER, order(i)) for i in range(500)]
    keys = [write("long", i) for i in range(500)]
    values[10], values[20], keys[30] = None, b"\xff broken", b""
    peer.create(kafka, "avro", 2)
    peer.write(
        kafka.bootstrap_servers,
        "avro",
        [(i % 2, keys[i], value, 1_700_000_000_000, ()) for i, value in enumerate(values)],
    )
    return "avro"


def test_a_batch_by_each_mode(spark: Any, kafka: EmbeddedKafka, orders: str) -> None:
    frame = load(spark, kafka, orders, mode="permissive", **OPTIONS)
    assert frame.schema["value"].dataType.simpleString() == (
        "struct<id:bigint,customer:string,placed:timestamp,tags:array<string>,counts:map<string,int>,kind:string>"
    )
    assert frame.schema["key"].dataType.simpleString() == "bigint"
    rows = {row.partition + 2 * row.offset: row for row in frame.collect()}
    assert {i for i, row in rows.items() if row._error is not None} == {20, 30}
    assert "it is not of its Avro schema: `customer`: it is none of the types" in rows[20]._error
    assert bytes(rows[20]._corrupt_record) == b"\xff broken"
    assert {i for i, row in rows.items() if row.value is None} == {10, 20}
    assert all(row.key == i for i, row in rows.items() if i != 30)
    for i, row in rows.items():
        if row.value is not None:
            placed = row.value.placed.timestamp() * 1000
            assert row.value.asDict() | {"placed": round(placed)} == order(i)
    dropped = load(spark, kafka, orders, mode="dropmalformed", **OPTIONS)
    assert dropped.count() == 498
    with pytest.raises(Exception, match=r"avro-[01] at offset 1[05]: the (key|value) can't be decoded"):
        load(spark, kafka, orders, **OPTIONS).collect()


def test_a_few_fields_and_another_schema_to_read_as(spark: Any, kafka: EmbeddedKafka, orders: str) -> None:
    reader = spark.read.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    some = {name: text for name, text in OPTIONS.items() if not name.startswith("key.")}
    two = reader.options(subscribe=orders, mode="dropmalformed", **some).schema(
        "value struct<counts: map<string,int>, id: double>"
    )
    assert {
        (row.value.counts["k"], row.value.id) for row in two.load().where("value is not null").collect()
    } == {(i, float(i)) for i in range(500) if i not in (10, 20)}
    later = {"type": "record", "name": "Order", "fields": [
        {"name": "number", "type": "double", "aliases": ["id"]},
        {"name": "note", "type": "string", "default": "none"}]}  # fmt: skip
    read_as = load(
        spark, kafka, orders, mode="dropmalformed", **some, **{"value.avroSchema": json.dumps(later)}
    )
    assert {(row.value.number, row.value.note) for row in read_as.where("value is not null").collect()} == {
        (float(i), "none") for i in range(500) if i not in (10, 20)
    }


def test_a_stream_writes_avro_exactly_once(
    spark: Any, kafka: EmbeddedKafka, orders: str, tmp_path: Any
) -> None:
    kafka.create_topic("avro-out", 2)
    stream = (
        spark.readStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .options(subscribe=orders, startingOffsets="earliest", maxOffsetsPerTrigger="150")
        .options(mode="dropmalformed", **OPTIONS)
        .load()
    )
    query = (
        stream.where("value.id % 2 = 0")
        .select("key", "value")
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .options(topic="avro-out", checkpointLocation=str(tmp_path), deliveryGuarantee="exactly-once")
        .options(**OPTIONS)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None
    raw = load(spark, kafka, "avro-out", **{"kafka.isolation.level": "read_committed"}).collect()
    wanted = set(range(0, 500, 2)) - {10, 20, 30}
    assert sorted(read(bytes(row.key), "long") for row in raw) == sorted(wanted)
    assert {bytes(row.value) for row in raw} == {write(ORDER, order(i)) for i in wanted}


def test_columns_are_written_by_the_schema_that_they_have(spark: Any, kafka: EmbeddedKafka) -> None:
    kafka.create_topic("avro-derived", 1)
    rows = spark.range(100).select(
        F.col("id").alias("key"),
        F.col("id").alias("number"),
        F.when(F.col("id") % 2 == 0, F.concat(F.lit("n"), "id")).alias("name"),
        (F.col("id") / 100).cast("decimal(10,2)").alias("price"),
    )
    options = {
        "value.format": "avro",
        "value.layout": "columns",
        "key.format": "avro",
        "unknownOptions": "error",
    }
    writer = rows.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    writer.options(topic="avro-derived", **options).mode("append").save()
    schema = {"type": "record", "name": "topLevelRecord", "fields": [
        {"name": "number", "type": ["long", "null"]},
        {"name": "name", "type": ["string", "null"]},
        {"name": "price", "type": [{"type": "fixed", "name": "f", "size": 5, "logicalType": "decimal",
                                    "precision": 10, "scale": 2}, "null"]}]}  # fmt: skip
    again = load(
        spark,
        kafka,
        "avro-derived",
        **options,
        **{"value.schema": json.dumps(schema), "key.schema": '"long"'},
    )
    columns = ["key", "number", "name", "price"]
    assert again.select(*columns).orderBy("key").collect() == rows.orderBy("key").collect()


def test_a_row_that_the_schema_does_not_have_fails_the_write(spark: Any, kafka: EmbeddedKafka) -> None:
    kafka.create_topic("avro-refused", 1)
    schema = {"type": "record", "name": "R", "fields": [{"name": "name", "type": "string"}]}
    rows = spark.range(3).select(F.struct(F.when(F.col("id") < 2, "x").alias("name")).alias("value"))
    writer = (
        rows.coalesce(1).write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    )
    given = {"value.format": "avro", "value.schema": json.dumps(schema)}
    with pytest.raises(
        Exception, match=r"row 2 for topic avro-refused: the value can't be encoded: `name` is null, and its"
    ):
        writer.options(topic="avro-refused", **given).mode("append").save()
    with pytest.raises(Exception, match=r"value\.schema: a write takes the types of its columns"):
        writer.options(topic="avro-refused", **{**given, "value.schema": "name string"}).mode("append").save()


def test_a_registry_gives_the_schemas_of_reads_and_writes(
    spark: Any, kafka: EmbeddedKafka, registry: EmbeddedRegistry
) -> None:
    kafka.create_topic("avro-registry", 1)
    options = {"value.format": "avro", "registry.url": registry.url, "unknownOptions": "error"}
    for version, columns in enumerate((["id"], ["id", "name"])):
        rows = spark.range(5).select(
            F.struct(
                *(F.col("id").cast("string").alias(one) if one == "name" else one for one in columns)
            ).alias("value")
        )
        fields = [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"], "default": None},
        ]
        schema = {"type": "record", "name": "R", "fields": fields[: len(columns)]}
        writer = rows.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        given = {"value.schema": json.dumps(schema), "registry.register": "true"}
        writer.options(topic="avro-registry", **options, **given).mode("append").save()
        assert load(spark, kafka, "avro-registry").count() == 5 * (version + 1)
    found = load(spark, kafka, "avro-registry", **options)
    assert found.schema["value"].dataType.simpleString() == "struct<id:bigint,name:string>"
    assert sorted((row.value.id, row.value.name or "") for row in found.collect()) == sorted(
        [(i, "") for i in range(5)] + [(i, str(i)) for i in range(5)]
    )
