"""``delegationTokens=true`` through Spark: tasks have tokens only, which are renewed, replaced and expired.
One that ends too early stops the query, and nothing is lost.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from support.brokers.kerberos import in_spark, plain_properties, require_gssapi

from spark_kafka_native.kafka import Admin, BrokerError, Consumer, DelegationToken, ErrorCode, Producer
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.network.connection import Connection
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.testing import EmbeddedKafka

pytestmark = [pytest.mark.spark, pytest.mark.broker]

USERS = {"alice": "alice-marked", "bob": "bob-marked", "carol": "carol-marked", "dora": "dora-marked"}
Options = dict[str, str]


def started(brokers: int = 1, *, kerberos: bool = False, **properties: object) -> EmbeddedKafka:
    named = {name.replace("__", "."): value for name, value in properties.items()}
    return EmbeddedKafka(
        brokers=brokers,
        listeners=("SASL_PLAINTEXT", "PLAINTEXT"),
        kerberos=kerberos,
        users=USERS,
        properties={"delegation.token.secret.key": "not-for-production"} | named,
    )


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with started() as running:
        yield running


def of_driver(kafka: EmbeddedKafka, user: str = "alice") -> Options:
    """PLAIN, which no task can use: it is not the mechanism of tokens."""
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers_for("SASL_PLAINTEXT"),
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": user,
        "kafka.sasl.password": USERS[user],
        "delegationTokens": "true",
    }


def of_kerberos_driver(kafka: EmbeddedKafka, user: str) -> Options:
    """With a keytab."""
    require_gssapi()
    given = {f"kafka.{name}": value for name, value in plain_properties(kafka, user).items()}
    return given | {"delegationTokens": "true"}


def tokens_of(kafka: EmbeddedKafka, user: str = "alice") -> dict[str, int]:
    """The expiry of each token that lives."""
    given = {name.removeprefix("kafka."): value for name, value in of_driver(kafka, user).items()}
    del given["delegationTokens"]
    with Admin(given) as admin:
        return {one.token_id: one.expires_ms for one in admin.describe_delegation_tokens([f"User:{user}"])}


def revoke_all(kafka: EmbeddedKafka, user: str = "alice") -> None:
    given = {name.removeprefix("kafka."): value for name, value in of_driver(kafka, user).items()}
    del given["delegationTokens"]
    with Admin(given) as admin:
        # Those of the other users, of other tests, are not hers to end.
        for one in admin.describe_delegation_tokens([f"User:{user}"]):
            try:
                admin.expire_delegation_token(one)
            except BrokerError as error:  # the query may have ended it meanwhile
                if error.error_code is not ErrorCode.DELEGATION_TOKEN_NOT_FOUND:
                    raise


def wait_until(what: str, true: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def write(spark: SparkSession, options: Options, topic: str, values: range, **more: str) -> None:
    rows = spark.range(values.start, values.stop, 1, 1).selectExpr("cast(id as string) value")
    rows.write.format("pykafka").options(**options, **more).option("topic", topic).mode("append").save()


def stream(
    spark: SparkSession, options: Options, source: str, sink: str, checkpoint: Path, **more: str
) -> Any:
    frame = spark.readStream.format("pykafka").options(**options).option("subscribe", source)
    writer = frame.option("startingOffsets", "earliest").load().select("value").writeStream
    writer = writer.format("pykafka").options(**options, **more).option("topic", sink)
    return writer.option("checkpointLocation", str(checkpoint))


def values_in(kafka: EmbeddedKafka, topic: str) -> Counter[str]:
    settings = {"bootstrap.servers": kafka.bootstrap_servers_for("PLAINTEXT")}
    with Consumer(settings | {"isolation.level": "read_committed"}, topic, stop_at_end=True) as consumer:
        return Counter(record.value.decode() for record in consumer)


def once(values: range) -> Counter[str]:
    return Counter(str(value) for value in values)


def test_each_way_through_spark_leaves_what_it_must_alone(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    # New names each time: a second run must not fail for what the first one has left.
    source, sink = (kafka.create_topic(f"{name}-{uuid.uuid4().hex[:8]}", 2) for name in ("in", "out"))
    options = of_driver(kafka)
    write(spark, options, source, range(50))
    write(spark, options, source, range(50, 60), deliveryGuarantee="exactly-once")
    assert tokens_of(kafka) == {}

    frame = spark.read.format("pykafka").options(**options).option("subscribe", source).load()
    assert frame.count() == 60
    shared = tokens_of(kafka)
    assert len(shared) == 1
    again = spark.read.format("pykafka").options(**options).option("subscribe", source).load()
    assert again.count() == frame.count() == 60
    assert tokens_of(kafka) == shared

    for name, more in (("plain", {}), ("once", {"deliveryGuarantee": "exactly-once"})):
        query = stream(spark, options, source, sink, tmp_path / name, **more)
        query = query.trigger(availableNow=True).start()
        assert query.awaitTermination(300)
    assert values_in(kafka, sink) == Counter({str(value): 2 for value in range(60)})
    wait_until("the streams have expired theirs", lambda: tokens_of(kafka) == shared)

    with pytest.raises(Exception, match="marked-by-the-query"):
        spark.sql("select cast(raise_error('marked-by-the-query') as string) value").write.format(
            "pykafka"
        ).options(**options).option("topic", sink).mode("append").save()
    assert tokens_of(kafka) == shared


def test_two_queries_of_one_session_do_not_end_each_others_token(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    name = uuid.uuid4().hex[:8]
    source = kafka.create_topic(f"two-in-{name}")
    sinks = [kafka.create_topic(f"two-out-{name}-{number}") for number in range(2)]
    options = of_driver(kafka, "bob")
    write(spark, options, source, range(10))
    one, other = (stream(spark, options, source, sink, tmp_path / sink).start() for sink in sinks)
    one.processAllAvailable()
    other.processAllAvailable()
    assert len(tokens_of(kafka, "bob")) == 3  # one for each source, and one for both sinks
    one.stop()
    wait_until("its own token is expired", lambda: len(tokens_of(kafka, "bob")) == 2)
    write(spark, options, source, range(10, 20))
    other.processAllAvailable()
    other.stop()
    assert values_in(kafka, sinks[1]) == once(range(20))
    wait_until("only that of the session is left", lambda: len(tokens_of(kafka, "bob")) == 1)


def revoking(kafka: EmbeddedKafka, topic: str, *, tasks: int, fails: bool) -> Callable[[Any], Any]:
    """For `mapInArrow` with two partitions. When the rows of the first one are in the log, and all ``tasks``
    that write are logged in, the other one makes their token useless for a further login and has no rows, or,
    if it ``fails``, an error.
    """
    plain = kafka.bootstrap_servers_for("PLAINTEXT")
    given = {name.removeprefix("kafka."): value for name, value in of_driver(kafka, "carol").items()}
    del given["delegationTokens"]

    def function(batches: Any) -> Any:
        import time

        from pyspark import TaskContext

        from spark_kafka_native.kafka import Admin, Cluster

        for batch in batches:
            if TaskContext.get().partitionId() == 0:
                yield batch
        if TaskContext.get().partitionId() == 0:
            return
        deadline = time.monotonic() + 120
        with Cluster.connect(plain) as cluster, Admin(plain) as anyone, Admin(given) as admin:
            while (
                not cluster.offsets(topic, 0).end
                or sum(topic in one.transactional_id for one in anyone.list_transactions()) < tasks
            ):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            for token in admin.describe_delegation_tokens(["User:carol"]):
                admin.expire_delegation_token(token)
            while admin.describe_delegation_tokens(["User:carol"]):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        if fails:
            raise RuntimeError("marked-by-the-task")

    return function


@pytest.mark.parametrize(
    ("way", "fails"), [("atomic", False), ("atomic", True), ("named", False), ("stream", False)]
)
def test_a_transaction_is_ended_although_its_token_has(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, way: str, fails: bool
) -> None:
    name = f"{way}-{fails}-{uuid.uuid4().hex[:8]}"
    sink, source = kafka.create_topic(name), kafka.create_topic(f"{name}-in", 2)
    options = of_driver(kafka, "carol") | {
        "deliveryGuarantee": "exactly-once",
        "transactionalIdPrefix": name,
        # No other test's token, which is revoked.
        "delegationTokens.maxLifetime": f"{86_400 + random.randrange(10_000)}s",
    }
    # The driver of a named write has a transactional id, too.
    make = revoking(kafka, sink, tasks={"atomic": 1, "named": 3, "stream": 2}[way], fails=fails)
    failure: Any = None
    try:
        if way == "stream":
            rows = spark.range(40).selectExpr("cast(id as string) value", "int(id / 20) partition")
            plain = {"kafka.bootstrap.servers": kafka.bootstrap_servers_for("PLAINTEXT")}
            rows.write.format("pykafka").options(**plain).option("topic", source).mode("append").save()
            frame = spark.readStream.format("pykafka").options(**plain).option("subscribe", source)
            frame = frame.option("startingOffsets", "earliest").load().select("value")
            writer = frame.mapInArrow(make, "value binary").writeStream.format("pykafka").options(**options)
            writer = writer.option("topic", sink).option("checkpointLocation", str(tmp_path))
            assert writer.trigger(availableNow=True).start().awaitTermination(300)
        else:
            rows = spark.range(0, 40, 1, 2).selectExpr("cast(id as string) value")
            writer = rows.mapInArrow(make, "value string").write.format("pykafka").options(**options)
            writer = writer.option("writeId", "once") if way == "named" else writer
            writer.option("topic", sink).mode("append").save()
    except Exception as error:
        failure = error
    assert "marked-by-the-task" in str(failure) if fails else failure is None, failure
    with Admin(kafka.bootstrap_servers_for("PLAINTEXT")) as admin:
        assert [
            one for one in admin.list_transactions(states=["Ongoing"]) if name in one.transactional_id
        ] == []
    assert values_in(kafka, sink) == (Counter() if fails else once(range(20)))


SHORT_MS = 18_000
"""Longer than a first micro-batch takes on a busy machine: its tasks keep the token that they began with."""


@pytest.fixture(scope="module")
def hasty() -> Iterator[EmbeddedKafka]:
    """A cluster where a token lasts for seconds, as others' last for days. Each broker learns of a new one
    in its own time.
    """
    with (
        started(
            brokers=3,
            kerberos=True,
            delegation__token__expiry__time__ms=SHORT_MS,
            delegation__token__max__lifetime__ms=SHORT_MS * 5 // 4,
            # Brokers pass the creation of a token on to the controller, and wait as long for a paused one.
            controller__socket__timeout__ms=3_000,
        ) as running,
        in_spark(running.kdc, ticket_lifetime="5s"),
    ):
        yield running


def test_each_broker_knows_a_token_that_was_waited_for_and_a_paused_one_holds_nothing_up(
    hasty: EmbeddedKafka,
) -> None:
    given = {name.removeprefix("kafka."): value for name, value in of_driver(hasty, "carol").items()}
    del given["delegationTokens"]

    def log_in(token: DelegationToken, *node_ids: int) -> None:
        login = {"sasl.username": token.token_id, "sasl.password": token.hmac.reveal()}
        mechanism = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.tokenauth": "true"}
        for node_id in node_ids:
            address = {"bootstrap.servers": hasty.broker(node_id).address("SASL_PLAINTEXT")}
            config = ClientConfig.from_properties(given | login | mechanism | address)
            deadline = Deadline.after_ms(60_000)
            Connection.open(config.bootstrap_servers[0], config=config, deadline=deadline).close()

    with Admin(given | {"request.timeout.ms": "5000"}) as admin:
        for _ in range(3):
            made = admin.create_delegation_token()
            admin.await_delegation_token(made)
            log_in(made, 1, 2, 3)
        hasty.pause(3)
        try:
            made = admin.create_delegation_token()
            admin.await_delegation_token(made, 9)
            log_in(made, 1, 2)
        finally:
            hasty.resume(3)
        admin.await_delegation_token(made)


class Feed:
    """Writes a number whenever it is asked to."""

    def __init__(self, kafka: EmbeddedKafka, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers_for("PLAINTEXT")})
        self._topic = topic
        self.count = 0

    def more(self) -> None:
        self._producer.send(self._topic, value=str(self.count))
        self._producer.flush()
        self.count += 1


def ended(query: StreamingQuery) -> str:
    """What a query says that has failed."""
    wait_until("the query has failed", lambda: not query.isActive)
    return str(query.exception())


@pytest.mark.parametrize(
    ("user", "of_user"), [("alice", of_driver), ("dora", of_kerberos_driver)], ids=["PLAIN", "GSSAPI"]
)
def test_a_stream_outlives_its_tokens_and_stops_at_one_that_was_revoked(
    spark: SparkSession,
    hasty: EmbeddedKafka,
    tmp_path: Path,
    user: str,
    of_user: Callable[[EmbeddedKafka, str], Options],
) -> None:
    """The driver's tickets last for seconds too."""
    name = f"{user}-{uuid.uuid4().hex[:8]}"
    source, sink = hasty.create_topic(f"{name}-in", 3), hasty.create_topic(f"{name}-out", 3)
    options, feed = of_user(hasty, user), Feed(hasty, source)
    writing = stream(spark, options, source, sink, tmp_path / "checkpoint", deliveryGuarantee="exactly-once")
    query = writing.start()
    feed.more()
    query.processAllAvailable()
    first = tokens_of(hasty, user)
    # Of reading and of writing: two where tokens last for days. On a slow machine one is replaced by now.
    assert len(first) >= 2

    def outlived() -> bool:
        known, now_ms = tokens_of(hasty, user), time.time() * 1_000
        feed.more()
        query.processAllAvailable()
        # Not only those that are gone: brokers name expired ones for an hour.
        return all(known.get(token, 0) <= now_ms for token in first)

    wait_until("the first tokens have ended, and the query reads and writes", outlived)
    assert query.isActive
    assert query.exception() is None

    def fed() -> bool:
        # Each time: a query that was just about to replace its tokens would never use the revoked ones.
        revoke_all(hasty, user)
        feed.more()
        time.sleep(0.5)
        return not query.isActive

    wait_until("the query has stopped", fed)
    said = ended(query)
    assert "has expired or was revoked" in said
    assert USERS[user] not in said

    restarted = writing.start()
    feed.more()
    restarted.processAllAvailable()
    restarted.stop()
    assert values_in(hasty, sink) == once(range(feed.count))


def test_a_dataframe_that_is_older_than_its_token_says_so(spark: SparkSession, hasty: EmbeddedKafka) -> None:
    topic = hasty.create_topic(f"kept-{uuid.uuid4().hex[:8]}")
    options = of_driver(hasty, "bob")
    write(spark, options, topic, range(5))

    def load() -> Any:
        return spark.read.format("pykafka").options(**options).option("subscribe", topic).load()

    frame = load()
    assert frame.count() == 5

    def failed() -> str:
        try:
            frame.count()
        except Exception as error:
            return str(error)
        return ""

    wait_until("its token has expired", failed)
    assert "has expired or was revoked" in failed()
    assert load().count() == 5
