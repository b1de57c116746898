"""Each way in, through Spark: a batch write, a batch read, and a stream from one topic to another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.brokers.kerberos import in_spark, java_properties, require_gssapi

from spark_kafka_native.testing import EmbeddedKafka
from spark_kafka_native.testing.credentials import unsigned_token

pytestmark = [pytest.mark.spark, pytest.mark.broker]

WAYS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "mTLS", "GSSAPI")


@pytest.fixture(scope="module")
def secured() -> Iterator[EmbeddedKafka]:
    settings = {"listener.name.ssl.ssl.client.auth": "required"}
    listeners = ("SASL_SSL", "SSL")
    with (
        EmbeddedKafka(
            listeners=listeners, client_auth="requested", kerberos=True, properties=settings
        ) as running,
        in_spark(running.kdc),
    ):
        yield running


def options(kafka: EmbeddedKafka, way: str) -> dict[str, str]:
    assert kafka.certificates is not None
    listener = "SSL" if way == "mTLS" else "SASL_SSL"
    found = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers_for(listener),
        "kafka.security.protocol": listener,
        "kafka.ssl.truststore.location": str(kafka.certificates.authority),
    }
    if way == "mTLS":
        return found | {"kafka.ssl.keystore.location": str(kafka.certificates.client)}
    if way == "OAUTHBEARER":
        token = {"kafka.sasl.oauthbearer.token": unsigned_token("alice")}
        return found | {"kafka.sasl.mechanism": way} | token
    if way == "GSSAPI":
        require_gssapi()
        kerberos = java_properties(kafka.kdc) | {"security.protocol": listener}
        return found | {f"kafka.{name}": value for name, value in kerberos.items()}
    login = {"kafka.sasl.username": "alice", "kafka.sasl.password": "alice-secret"}
    return found | {"kafka.sasl.mechanism": way} | login


@pytest.mark.parametrize("way", WAYS)
def test_each_way_in_writes_reads_and_streams(
    spark: SparkSession, secured: EmbeddedKafka, way: str, tmp_path: Path
) -> None:
    source, sink = (secured.create_topic(f"{way}-{name}") for name in ("in", "out"))
    given = options(secured, way)

    def values(topic: str) -> list[Any]:
        frame = spark.read.format("pykafka").options(**given).option("subscribe", topic).load()
        return [row[0] for row in frame.selectExpr("cast(value as string)").collect()]

    expected = [str(number) for number in range(50)]
    rows = spark.range(0, 50, 1, 1).selectExpr("cast(id as string) value")
    rows.write.format("pykafka").options(**given).option("topic", source).mode("append").save()
    stream = spark.readStream.format("pykafka").options(**given).option("subscribe", source)
    query = (
        stream.option("startingOffsets", "earliest")
        .load()
        .select("value")
        .writeStream.format("pykafka")
        .options(**given)
        .option("topic", sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert values(sink) == expected
