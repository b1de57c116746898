"""Spark through a Kerberos listener: a keytab that Spark ships, and a stream that outlives its tickets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.brokers.kerberos import in_spark, plain_properties, require_gssapi

from spark_kafka_native.spark.read.stream_reader import ReadLimit
from spark_kafka_native.testing import EmbeddedKafka

pytestmark = [pytest.mark.spark, pytest.mark.broker]

SESSION_MS = 1500
TICKET = "3s"


@pytest.fixture(scope="module")
def realm() -> Iterator[EmbeddedKafka]:
    require_gssapi()
    settings = {"listener.name.sasl_plaintext.connections.max.reauth.ms": SESSION_MS}
    with (
        EmbeddedKafka(listeners=("SASL_PLAINTEXT",), kerberos=True, properties=settings) as running,
        in_spark(running.kdc, ticket_lifetime=TICKET),
    ):
        yield running


@pytest.fixture(scope="module")
def given(realm: EmbeddedKafka) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in plain_properties(realm).items()}


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 1).selectExpr("cast(id as string) value")


def values(spark: SparkSession, given: dict[str, str], topic: str) -> list[int]:
    committed = given | {"kafka.isolation.level": "read_committed"}
    frame = spark.read.format("pykafka").options(**committed).option("subscribe", topic).load()
    return [int(row[0]) for row in frame.selectExpr("cast(value as string)").collect()]


def test_an_exactly_once_stream_outlives_tickets_and_sessions(
    spark: SparkSession, realm: EmbeddedKafka, given: dict[str, str], tmp_path: Path
) -> None:
    """Three micro-batches of a second and more: tickets last 3 s, sessions 1.5 s."""

    def slowly(batches: Any) -> Any:
        import time

        for batch in batches:
            time.sleep(1)
            yield batch

    source, sink = (realm.create_topic(f"long-{name}") for name in ("in", "out"))
    numbers(spark, 60).write.format("pykafka").options(**given).option("topic", source).mode("append").save()
    slow = spark.readStream.format("pykafka").options(**given).option("subscribe", source)
    query = (
        slow.option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 20)
        .load()
        .selectExpr("value")
        .mapInArrow(slowly, "value binary")
        .writeStream.format("pykafka")
        .options(**given)
        .option("topic", sink)
        .option("deliveryGuarantee", "exactly-once")
        .option("transactionalIdPrefix", "long")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    if ReadLimit is not None:  # PySpark 4.1 reads all there is in one micro-batch
        assert len(query.recentProgress) >= 3
    assert values(spark, given, sink) == list(range(60))


def test_a_keytab_that_spark_ships(
    spark: SparkSession, realm: EmbeddedKafka, given: dict[str, str], tmp_path: Path
) -> None:
    assert realm.kdc is not None
    topic, name = realm.create_topic("shipped"), "shipped.keytab"
    path = tmp_path / name
    path.write_bytes(realm.kdc.keytab("alice").read_bytes())
    spark.sparkContext.addFile(str(path))
    shipped = given | {"kafka.sasl.kerberos.keytab": name}
    numbers(spark, 10).write.format("pykafka").options(**shipped).option("topic", topic).mode("append").save()
    assert values(spark, shipped, topic) == list(range(10))
    with pytest.raises(Exception, match=r"sasl.kerberos.keytab: other.keytab on .* can't be read"):
        values(spark, given | {"kafka.sasl.kerberos.keytab": "other.keytab"}, topic)
