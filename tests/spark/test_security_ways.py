"""Each way in by everything that uses one: batch write and read, streams, exactly-once, group, admin and the
command line. And each of them with credentials that end while a stream runs.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.brokers.kerberos import in_spark, java_properties, require_gssapi

from spark_kafka_native.cli.main import main
from spark_kafka_native.kafka import Admin, Consumer, GroupConsumer, Producer
from spark_kafka_native.testing import EmbeddedKafka
from spark_kafka_native.testing.credentials import unsigned_token, write_certificates

pytestmark = [pytest.mark.spark, pytest.mark.broker]

WAYS = (
    "PLAIN",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "OAUTHBEARER",
    "mTLS",
    "GSSAPI",
    "delegation token",
    "delegation tokens of tasks",
    "GSSAPI and tokens of tasks",
)
ENDING = tuple(way for way in WAYS if "GSSAPI" not in way and "of tasks" not in way)
"""Tickets end in tests/spark/test_kerberos.py, tokens of tasks, with and without, in
tests/spark/test_delegation_tokens.py."""
SESSION_MS = 4_000
"""When a session of SASL ends and the credentials are asked for again."""
Options = dict[str, str]


@pytest.fixture(scope="module")
def secured() -> Iterator[EmbeddedKafka]:
    settings = {
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.sasl_ssl.connections.max.reauth.ms": SESSION_MS,
        "delegation.token.secret.key": "not-for-production",
    }
    listeners = ("SASL_SSL", "SSL")
    with (
        EmbeddedKafka(
            listeners=listeners, client_auth="requested", kerberos=True, properties=settings
        ) as running,
        in_spark(running.kdc),
    ):
        yield running


def of_listener(kafka: EmbeddedKafka, listener: str) -> Options:
    assert kafka.certificates is not None
    return {
        "bootstrap.servers": kafka.bootstrap_servers_for(listener),
        "security.protocol": listener,
        "ssl.truststore.location": str(kafka.certificates.authority),
    }


def with_certificate(kafka: EmbeddedKafka) -> Options:
    assert kafka.certificates is not None
    return of_listener(kafka, "SSL") | {"ssl.keystore.location": str(kafka.certificates.client)}


def with_token(kafka: EmbeddedKafka) -> Options:
    with Admin(with_certificate(kafka)) as admin:
        token = admin.create_delegation_token()
        admin.await_delegation_token(token)
    login = {"sasl.username": token.token_id, "sasl.password": token.hmac.reveal(), "sasl.tokenauth": "true"}
    return of_listener(kafka, "SASL_SSL") | {"sasl.mechanism": "SCRAM-SHA-512"} | login


def properties(kafka: EmbeddedKafka, way: str) -> Options:
    """Of a client."""
    if way in ("mTLS", "delegation tokens of tasks"):
        return with_certificate(kafka)
    if way == "delegation token":
        return with_token(kafka)
    found = of_listener(kafka, "SASL_SSL")
    if way == "OAUTHBEARER":
        return found | {"sasl.mechanism": way, "sasl.oauthbearer.token": unsigned_token("alice")}
    if "GSSAPI" in way:
        require_gssapi()
        assert kafka.kdc is not None
        return found | java_properties(kafka.kdc) | {"security.protocol": "SASL_SSL"}
    return found | {"sasl.mechanism": way, "sasl.username": "alice", "sasl.password": "alice-secret"}


def in_options(kafka: EmbeddedKafka, way: str, given: Options) -> Options:
    found = {f"kafka.{name}": value for name, value in given.items()}
    if "of tasks" not in way:
        return found
    servers = kafka.bootstrap_servers_for("SASL_SSL")
    return found | {"delegationTokens": "true", "delegationTokens.bootstrapServers": servers}


def writing(
    spark: SparkSession, given: Options, source: str, sink: str, checkpoint: Path, **more: str
) -> Any:
    """A stream from one topic to another."""
    stream = spark.readStream.format("pykafka").options(**given).option("subscribe", source)
    writer = stream.option("startingOffsets", "earliest").load().select("value").writeStream
    writer = writer.format("pykafka").options(**given, **more).option("topic", sink)
    return writer.option("checkpointLocation", str(checkpoint))


@pytest.mark.parametrize("way", WAYS)
def test_each_way_in_does_everything(
    spark: SparkSession,
    secured: EmbeddedKafka,
    way: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = way.replace(" ", "-")
    source, sink, once = (secured.create_topic(f"{name}-{part}") for part in ("in", "out", "once"))
    client = properties(secured, way)
    given = in_options(secured, way, client)
    expected = [str(number) for number in range(50)]

    rows = spark.range(0, 50, 1, 1).selectExpr("cast(id as string) value")
    rows.write.format("pykafka").options(**given).option("topic", source).mode("append").save()
    for topic, more in ((sink, {}), (once, {"deliveryGuarantee": "exactly-once"})):
        query = writing(spark, given, source, topic, tmp_path / topic, **more)
        query = query.trigger(availableNow=True).start()
        assert query.awaitTermination(300)
    for topic in (sink, once):
        frame = spark.read.format("pykafka").options(**given).option("subscribe", topic).load()
        assert [row[0] for row in frame.selectExpr("cast(value as string)").collect()] == expected

    with Producer(client) as producer:
        producer.send(source, value="50")
    with GroupConsumer(client, source, group=f"{name}-group", auto_offset_reset="earliest") as consumer:
        found = []
        while len(found) < 51:
            found += [record.value.decode() for record in consumer.poll(60)]
        consumer.commit()
    assert found == [*expected, "50"]
    with Admin(client) as admin:
        assert [lag.lag for lag in admin.group_lag(f"{name}-group").values()] == [0]
    words = [word for pair in client.items() for word in ("-X", "=".join(pair))]
    capsys.readouterr()
    assert main(["tail", source, "--from=-1", *words]) == 0
    assert "50" in capsys.readouterr().out


# --- credentials that end -----------------------------------------------------------------------------------


@dataclass
class Ending:
    """Credentials of one way in, in files that they are read from again."""

    options: Options
    end: Callable[[], object]
    renew: Callable[[], object]
    says: str


def ending(kafka: EmbeddedKafka, way: str, folder: Path) -> Ending:
    if way == "mTLS":
        return _ending_certificate(kafka, folder)
    if way == "delegation token":
        return _ending_token(kafka, folder)
    if way == "OAUTHBEARER":
        file = folder / "token"
        file.write_text(unsigned_token("alice"))
        given = {"sasl.mechanism": way, "sasl.oauthbearer.token": f"file:{file}"}
        return Ending(
            options=of_listener(kafka, "SASL_SSL") | given,
            end=lambda: replace(file, unsigned_token("alice", -10)),
            renew=lambda: replace(file, unsigned_token("alice")),
            says="OAUTHBEARER",
        )
    user, file = f"user-of-{way.lower()}", folder / "password"
    file.write_text("alice-secret")
    if way == "PLAIN":
        given = {"sasl.mechanism": way, "sasl.username": "alice", "sasl.password": f"file:{file}"}
        return Ending(
            options=of_listener(kafka, "SASL_SSL") | given,
            end=lambda: replace(file, "changed"),
            renew=lambda: replace(file, "alice-secret"),
            says="PLAIN: the broker refused",
        )

    def change(*, delete: bool) -> None:
        with Admin(with_certificate(kafka)) as admin:
            if delete:
                admin.delete_scram_user(user, mechanism=way)
                return
            admin.set_scram_user(user, "alice-secret", mechanism=way, iterations=4096)
            wait_until("the user is known", lambda: admin.describe_scram_users([user])[user])

    change(delete=False)
    given = {"sasl.mechanism": way, "sasl.username": user, "sasl.password": "alice-secret"}
    return Ending(
        options=of_listener(kafka, "SASL_SSL") | given,
        end=lambda: change(delete=True),
        renew=lambda: change(delete=False),
        says=f"{way}: the broker refused",
    )


def _ending_certificate(kafka: EmbeddedKafka, folder: Path) -> Ending:
    """TLS has no sessions that end: connections do, here because the broker is restarted."""
    assert kafka.certificates is not None
    file, right = folder / "client.pem", kafka.certificates.client
    shutil.copy(right, file)
    others = write_certificates(folder / "others", "localhost")

    def end() -> None:
        shutil.copy(others.client, file)
        kafka.restart(1)

    return Ending(
        options=of_listener(kafka, "SSL") | {"ssl.keystore.location": str(file)},
        end=end,
        renew=lambda: shutil.copy(right, file),
        says="certificate",
    )


def _ending_token(kafka: EmbeddedKafka, folder: Path) -> Ending:
    files = {name: folder / name for name in ("sasl.username", "sasl.password")}

    def renew() -> Options:
        given = with_token(kafka)
        for name, file in files.items():
            replace(file, given[name])
        return given

    def end() -> None:
        ours = files["sasl.username"].read_text()
        with Admin(with_certificate(kafka)) as admin:
            # Those of other users, of other tests, are not ours to end.
            (one,) = (one for one in admin.describe_delegation_tokens() if one.token_id == ours)
            admin.expire_delegation_token(one)

    options = renew() | {name: f"file:{file}" for name, file in files.items()}
    return Ending(options=options, end=end, renew=renew, says="has expired or was revoked")


def replace(file: Path, text: str) -> None:
    """At once, as what keeps a credential fresh does."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def wait_until(what: str, true: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.mark.parametrize("way", ENDING)
def test_credentials_that_end_stop_a_stream_that_goes_on_with_others(
    spark: SparkSession, secured: EmbeddedKafka, way: str, tmp_path: Path
) -> None:
    name = way.replace(" ", "-")
    source, sink = (secured.create_topic(f"{name}-ending-{part}") for part in ("in", "out"))
    credentials = ending(secured, way, tmp_path)
    given = {f"kafka.{option}": value for option, value in credentials.options.items()}
    stream = writing(spark, given, source, sink, tmp_path / "checkpoint", deliveryGuarantee="exactly-once")
    count = 0

    def feed() -> None:
        nonlocal count
        with Producer(with_certificate(secured)) as producer:
            producer.send(source, value=str(count))
        count += 1

    query = stream.start()
    feed()
    query.processAllAvailable()
    credentials.end()

    def fed() -> bool:
        feed()
        return not query.isActive

    wait_until("the query has stopped", fed)
    said = str(query.exception())
    assert credentials.says in said
    assert "alice-secret" not in said

    credentials.renew()
    again = stream.start()
    feed()
    again.processAllAvailable()
    again.stop()
    committed = with_certificate(secured) | {"isolation.level": "read_committed"}
    with Consumer(committed, sink, stop_at_end=True) as consumer:
        found = Counter(record.value.decode() for record in consumer)
    assert found == Counter(str(number) for number in range(count))
