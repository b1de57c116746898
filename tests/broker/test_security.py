"""Each mechanism against a real broker with TLS, SASL and ACLs: what works, what fails, and the
words of each error.

A refusal must come within the time that the configuration allows, and without another try.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.consumer.reading import Reading, records_of

from spark_kafka_native.kafka.admin import Admin, NewTopic
from spark_kafka_native.kafka.cluster import retry_policy
from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.config.jaas import OAUTHBEARER_MODULE, SCRAM_MODULE
from spark_kafka_native.kafka.errors import AuthenticationError, BrokerError, KafkaError
from spark_kafka_native.kafka.group.committed_offsets import commit_offsets, committed_offsets
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.errors import DeliveryError
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.security.tokens import register_token_provider
from spark_kafka_native.testing import EmbeddedKafka
from spark_kafka_native.testing.credentials import unsigned_token
from spark_kafka_native.testing.embedded_kafka import ACLS

pytestmark = pytest.mark.broker

USERS = {
    "alice": "alice-marked",
    "bob": "bob-marked",
    "reader": "reader-marked",
    "umlaut": "pässwörd=with_marks",
}
LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SESSION_MS = 3_000
LIMIT_S = 60
"""socket.connection.setup.timeout.ms: no refusal may take longer, however long one may try."""


@pytest.fixture(scope="module")
def secured() -> Iterator[EmbeddedKafka]:
    settings = {
        **ACLS,
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
        "listener.name.sasl_plaintext.connections.max.reauth.ms": SESSION_MS,
        "auto.create.topics.enable": "false",
    }
    with EmbeddedKafka(
        listeners=LISTENERS, users=USERS, client_auth="requested", properties=settings
    ) as running:
        running.create_topic("orders", 2)
        running.create_topic("secret", 1)
        for user in ("alice", "client", "umlaut"):
            running.allow(user, "all", "topic", "orders")
            running.allow(user, "idempotent_write", "cluster", "kafka-cluster")
        running.allow("reader", "describe", "topic", "orders")
        running.allow("bob", "read", "topic", "secret")
        running.allow("alice", "describe", "group", "seen")
        running.allow("reader", "read", "group", "readers")
        yield running


def options(secured: EmbeddedKafka, listener: str, **given: object) -> dict[str, str]:
    found = {
        "bootstrap.servers": secured.bootstrap_servers_for(listener),
        "security.protocol": listener,
        "socket.connection.setup.timeout.ms": str(LIMIT_S * 1000),
        "default.api.timeout.ms": str(LIMIT_S * 5000),
    }
    if "SSL" in listener:
        assert secured.certificates is not None
        found["ssl.ca.location"] = str(secured.certificates.authority)
    return found | {name.replace("_", "."): str(value) for name, value in given.items()}


def sasl(mechanism: str, user: str = "alice", password: str | None = None) -> dict[str, str]:
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "sasl_oauthbearer_token": unsigned_token(user)}
    given = USERS[user] if password is None else password
    return {"sasl_mechanism": mechanism, "sasl_username": user, "sasl_password": given}


def write_and_read(settings: dict[str, str], values: list[bytes]) -> None:
    """Write ``values`` to a partition, and find them behind the earlier records."""
    names = {name.replace(".", "_"): value for name, value in settings.items()}
    reading = Reading(names.pop("bootstrap_servers"), **names)
    tp = TopicPartition("orders", 0)
    first = reading.bounds("orders")[tp][1]
    producer = Producer(ClientConfig.from_properties(settings), ProducerConfig())
    for value in values:
        producer.send("orders", value=value, partition=0)
    producer.close(20)
    found = reading.read("orders")[0]
    assert [record.value for record in found if record.offset >= first] == values
    reading.router.close()


WAYS = [
    *[
        pytest.param("SASL_SSL", sasl(name), id=name)
        for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
    ],
    pytest.param("SASL_PLAINTEXT", sasl("SCRAM-SHA-256"), id="SCRAM without TLS"),
    pytest.param("SASL_SSL", sasl("SCRAM-SHA-512", "umlaut"), id="SCRAM, not ASCII"),
    pytest.param("SASL_SSL", sasl("PLAIN", "umlaut"), id="PLAIN, not ASCII"),
    pytest.param(
        "SASL_SSL",
        {
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_jaas_config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="alice" password="alice-marked";',
        },
        id="jaas",
    ),
    pytest.param(
        "SASL_SSL",
        {
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_jaas_config": f"kafkashaded.{SCRAM_MODULE} required "
            'username="alice" password="alice-marked";',
        },
        id="jaas, as on Databricks",
    ),
    pytest.param(
        "SASL_SSL",
        {
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_jaas_config": f'{OAUTHBEARER_MODULE} required unsecuredLoginStringClaim_sub="alice";',
        },
        id="unsigned token of jaas",
    ),
    pytest.param("SSL", {"ssl_keystore_location": "client"}, id="mTLS"),
]


@pytest.mark.parametrize(("listener", "given"), WAYS)
def test_each_way_in_writes_and_reads(secured: EmbeddedKafka, listener: str, given: dict[str, str]) -> None:
    assert secured.certificates is not None
    if listener == "SSL":
        given = {"ssl_keystore_location": str(secured.certificates.client)}
    write_and_read(options(secured, listener, **given), [b"one", b"two", b"three"])


def test_the_section_of_the_clients_page_runs(secured: EmbeddedKafka, tmp_path: Path) -> None:
    """It connects with TLS and SCRAM to ``localhost:9094``, and ``ca.pem`` is there."""
    page = (Path(__file__).parents[2] / "docs/client.md").read_text()
    section = re.search(r"^## TLS and SASL$(.*?)^## ", page, flags=re.MULTILINE | re.DOTALL)
    assert section is not None
    (program,) = re.findall(r"^```python\n(.*?)^```$", section[1], flags=re.MULTILINE | re.DOTALL)
    assert secured.certificates is not None
    shutil.copy(secured.certificates.authority, tmp_path / "ca.pem")

    ran = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-c"),
            program.replace("localhost:9094", secured.bootstrap_servers_for("SASL_SSL")),
        ],
        cwd=tmp_path,
        env=os.environ | {"KAFKA_PASSWORD": USERS["alice"]},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-5000:]


def test_a_token_provider_is_asked_once_for_all_connections(secured: EmbeddedKafka) -> None:
    calls = []

    def provide() -> str:
        calls.append(1)
        return unsigned_token("alice")

    register_token_provider("broker-test", provide)
    given = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_provider": "broker-test"}
    write_and_read(options(secured, "SASL_SSL", **given), [b"x"])
    assert len(calls) == 1


# --- refused clients ----------------------------------------------------------------------------------------

AUTHENTICATION_FAILED = "the broker refused: SASL_AUTHENTICATION_FAILED"
REFUSALS = [
    *[
        pytest.param(
            "SASL_SSL", sasl(name, password="wrong-marked"), AUTHENTICATION_FAILED, id=f"password {name}"
        )
        for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    ],
    *[
        pytest.param(
            "SASL_SSL",
            {"sasl_mechanism": name, "sasl_username": "nobody", "sasl_password": "x-marked"},
            AUTHENTICATION_FAILED,
            id=f"user {name}",
        )
        for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    ],
    pytest.param(
        "SASL_PLAINTEXT", sasl("PLAIN", password="wrong-marked"), AUTHENTICATION_FAILED, id="password, no TLS"
    ),
    pytest.param(
        "SASL_SSL",
        {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token": "marked.no.jwt"},
        "OAUTHBEARER: the broker refused",
        id="no JWT",
    ),
    pytest.param(
        "SASL_SSL",
        {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token": unsigned_token("alice", -60)},
        "the token has expired already",
        id="expired token",
    ),
    pytest.param("SSL", {}, "the broker refused the client's certificate", id="no client certificate"),
]


@pytest.mark.parametrize(("listener", "given", "says"), REFUSALS)
def test_a_refusal_is_final_and_in_time(
    secured: EmbeddedKafka, listener: str, given: dict[str, str], says: str
) -> None:
    settings = options(secured, listener, **given)
    names = {name.replace(".", "_"): value for name, value in settings.items()}
    began = time.monotonic()
    with pytest.raises(AuthenticationError, match=says) as caught:
        Reading(names.pop("bootstrap_servers"), **names).partitions("orders")
    assert time.monotonic() - began < LIMIT_S
    assert "marked" not in str(caught.value)


@pytest.mark.parametrize(("protocol", "listener"), list(itertools.permutations(LISTENERS, 2)))
def test_the_wrong_security_protocol_is_named(
    secured: EmbeddedKafka, protocol: str, listener: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_policy, "HANG_UP_WAIT_MS", 1_000)
    given = sasl("SCRAM-SHA-256") if protocol.startswith("SASL") else {}
    settings = options(secured, protocol, **given) | {
        "bootstrap.servers": secured.bootstrap_servers_for(listener)
    }
    names = {name.replace(".", "_"): value for name, value in settings.items()}
    began = time.monotonic()
    with pytest.raises(KafkaError, match=r"security\.protocol|client's certificate"):
        Reading(names.pop("bootstrap_servers"), **names).partitions("orders")
    assert time.monotonic() - began < LIMIT_S


# --- denied operations --------------------------------------------------------------------------------------


def reading_as(secured: EmbeddedKafka, user: str) -> Reading:
    settings = options(secured, "SASL_SSL", **sasl("SCRAM-SHA-256", user))
    names = {name.replace(".", "_"): value for name, value in settings.items()}
    return Reading(names.pop("bootstrap_servers"), **names)


def produce_as(secured: EmbeddedKafka, user: str, topic: str, **settings: Any) -> None:
    config = ClientConfig.from_properties(options(secured, "SASL_SSL", **sasl("SCRAM-SHA-256", user)))
    producer = Producer(config, ProducerConfig(**settings))
    try:
        producer.send(topic, value=b"x").result(LIMIT_S)
    finally:
        producer.close(1)


TP = TopicPartition("orders", 0)
DENIALS = {
    "describe topic": (
        lambda kafka: reading_as(kafka, "alice").partitions("secret"),
        r"topic secret: TOPIC_AUTHORIZATION_FAILED \(the client's principal needs an ACL for Describe "
        r"on the topic\)",
    ),
    "read topic": (
        lambda kafka: list(reading_as(kafka, "reader").fetch({TP: (0, 1)})),
        r"fetching orders-0 at offset 0: TOPIC_AUTHORIZATION_FAILED \(.* ACL for Read on the topic\)",
    ),
    "write topic": (
        lambda kafka: produce_as(kafka, "reader", "orders", enable_idempotence=False),
        r"Produce to orders-0|Produce to orders-1",
    ),
    "write, named": (
        lambda kafka: produce_as(kafka, "reader", "orders", enable_idempotence=False),
        r"TOPIC_AUTHORIZATION_FAILED \(.* ACL for Write on the topic\)",
    ),
    "idempotent write": (
        lambda kafka: produce_as(kafka, "reader", "orders"),
        r"InitProducerId.*CLUSTER_AUTHORIZATION_FAILED \(.* ACL for Write on a topic, or IdempotentWrite on",
    ),
    "describe group": (
        lambda kafka: committed_offsets(reading_as(kafka, "alice").router, "not-mine", [TP]),
        r"GROUP_AUTHORIZATION_FAILED \(.* ACL for Describe on the group\)",
    ),
    "commit to group": (
        lambda kafka: commit_offsets(reading_as(kafka, "alice").router, "seen", {TP: 1}),
        r"GROUP_AUTHORIZATION_FAILED \(.* ACL for Read on the group\)",
    ),
    "commit of a topic": (
        lambda kafka: commit_offsets(reading_as(kafka, "reader").router, "readers", {TP: 1}),
        r"orders.*TOPIC_AUTHORIZATION_FAILED \(.* ACL for Read on the topic\)",
    ),
    "create topic": (
        lambda kafka: Admin(reading_as(kafka, "alice").router).create_topics(
            [NewTopic(name="new", partitions=1)]
        ),
        r"creating topic new: (TOPIC|CLUSTER)_AUTHORIZATION_FAILED \(.* ACL for Create",
    ),
    "delete topic": (
        lambda kafka: Admin(reading_as(kafka, "reader").router).delete_topics(["orders"]),
        r"deleting topic orders: TOPIC_AUTHORIZATION_FAILED \(.* ACL for Delete on the topic\)",
    ),
    "topic configs": (
        lambda kafka: Admin(reading_as(kafka, "reader").router).describe_topic_configs(["orders"]),
        r"describing configs of orders: TOPIC_AUTHORIZATION_FAILED \(.* ACL for DescribeConfigs on the "
        r"topic\)",
    ),
}


@pytest.mark.parametrize("case", DENIALS)
def test_what_is_denied_is_named_with_its_operation_and_at_once(secured: EmbeddedKafka, case: str) -> None:
    act, says = DENIALS[case]
    began = time.monotonic()
    with pytest.raises((BrokerError, DeliveryError), match=says):
        act(secured)
    assert time.monotonic() - began < LIMIT_S


def test_one_denied_topic_does_not_hold_up_another(secured: EmbeddedKafka) -> None:
    metadata = reading_as(secured, "alice").router.metadata({"orders", "secret"})
    assert len(metadata.topic("orders").partitions) == 2
    with pytest.raises(BrokerError, match="topic secret: TOPIC_AUTHORIZATION_FAILED"):
        metadata.topic("secret")


# --- sessions that end (KIP-368) ----------------------------------------------------------------------------


@pytest.mark.timed(0.2)
def test_sessions_are_renewed_in_the_middle_of_writing_and_reading(
    secured: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Four sessions long: nothing lost, twice or out of order, by a producer without sequence numbers too."""
    settings = options(secured, "SASL_PLAINTEXT", **sasl("SCRAM-SHA-512"))
    config = ClientConfig.from_properties(settings)
    producer = Producer(config, ProducerConfig(linger_ms=1, enable_idempotence=False, retries=0))
    end = time.monotonic() + 4 * SESSION_MS / 1000
    names = {name.replace(".", "_"): value for name, value in settings.items()}
    reading = Reading(names.pop("bootstrap_servers"), **names)
    tp = TopicPartition("orders", 1)
    first = reading.bounds("orders")[tp][1]
    sent = []
    with caplog.at_level(logging.WARNING):
        while time.monotonic() < end:
            sent.append(producer.send("orders", value=b"%d" % len(sent), partition=1))
            if len(sent) % 50 == 0:
                sent[-1].result(60)
                reading.partitions("orders")
        producer.close(20)
    for delivery in sent:
        delivery.result(0)
    found = [record.value for record in reading.read("orders")[1] if record.offset >= first]
    assert found == [b"%d" % number for number in range(len(sent))]
    assert "SASL session" not in caplog.text


@pytest.mark.timed(0.2)
def test_sessions_end_under_fetches_that_outlast_them(
    secured: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Fetches wait at the end of the log for longer than a session lasts, others ask on the same connections,
    and a producer that may not try again writes: nothing lost, twice or out of order."""
    settings = options(secured, "SASL_PLAINTEXT", **sasl("SCRAM-SHA-512"))
    names = {name.replace(".", "_"): value for name, value in settings.items()}
    reading = Reading(names.pop("bootstrap_servers"), **names)
    count = 60
    ranges = {tp: (end, end + count) for tp, (_, end) in reading.bounds("orders").items()}
    stop = threading.Event()
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            while not stop.wait(0.01):
                assert len(reading.bounds("orders")) == 2
        except BaseException as error:
            failures.append(error)

    def write() -> None:
        config = ClientConfig.from_properties(settings)
        producer = Producer(config, ProducerConfig(linger_ms=1, enable_idempotence=False, retries=0))
        try:
            for number in range(count):
                for tp in ranges:
                    producer.send("orders", value=b"%d" % number, partition=tp.partition)
                stop.wait(5 * SESSION_MS / 1000 / count)
            producer.close(20)
        except BaseException as error:
            failures.append(error)

    others = [threading.Thread(target=act) for act in (ask, ask, write)]
    for thread in others:
        thread.start()
    found: dict[TopicPartition, list[bytes | None]] = {tp: [] for tp in ranges}
    waits = {
        "fetch_min_bytes": 10_000_000,
        "fetch_max_wait_ms": SESSION_MS + 500,
        "end_of_log_wait_ms": 30_000,
    }
    try:
        with caplog.at_level(logging.WARNING):
            for fetched in reading.fetch(ranges, **waits):
                found[fetched.topic_partition] += [record.value for record in records_of(fetched)]
    finally:
        stop.set()
        for thread in others:
            thread.join(60)
    assert failures == []
    assert found == {tp: [b"%d" % number for number in range(count)] for tp in ranges}
    assert "SASL session" not in caplog.text


def test_an_expiring_token_is_followed_by_a_new_one(secured: EmbeddedKafka) -> None:
    made = []

    def provide() -> str:
        made.append(1)
        return unsigned_token("alice", 2)

    register_token_provider("short", provide)
    given = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_provider": "short"}
    settings = options(secured, "SASL_SSL", **given)
    names = {name.replace(".", "_"): value for name, value in settings.items()}
    reading = Reading(names.pop("bootstrap_servers"), **names)
    deadline = time.monotonic() + 60
    while len(made) < 3:
        assert time.monotonic() < deadline
        assert len(reading.partitions("orders")) == 2
        time.sleep(0.1)
