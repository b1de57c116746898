"""A `MockBroker` that authenticates its clients."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import confluent_kafka
import kafka as kafka_python
import pytest
import trustme
from support.brokers.framed_client import WITHIN_S, Peer

from spark_kafka_native.kafka import Admin, AuthenticationError, KafkaError, Producer
from spark_kafka_native.testing import MockBroker

OURS: dict[str, Any] = {
    "protocol": "SASL_PLAINTEXT",
    "mechanism": "PLAIN",
    "username": "alice",
    "password": "secret",
}


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker(users={"alice": "secret"}) as broker:
        broker.create_topic("orders")
        yield broker


def test_those_who_are_known_may_write(broker: MockBroker) -> None:
    with Producer(broker.bootstrap_servers, **OURS) as producer:
        producer.send("orders", value=b"ours").result(timeout=WITHIN_S)
    common = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "secret"}
    servers = {"bootstrap.servers": broker.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT"}
    librdkafka = confluent_kafka.Producer({**common, **servers})
    librdkafka.produce("orders", b"librdkafka")
    assert librdkafka.flush(WITHIN_S) == 0
    python = kafka_python.KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username="alice",
        sasl_plain_password="secret",
    )
    python.send("orders", b"python").get(WITHIN_S)
    python.close()

    assert [record.value for record in broker.records("orders")] == [b"ours", b"librdkafka", b"python"]


@pytest.mark.parametrize("wrong", [{"password": "guess"}, {"username": "bob"}])
def test_others_are_refused(broker: MockBroker, wrong: dict[str, Any]) -> None:
    with pytest.raises(AuthenticationError), Admin(broker.bootstrap_servers, **OURS | wrong) as admin:
        admin.list_topics()


def test_a_mechanism_that_is_not_spoken_is_refused(broker: MockBroker) -> None:
    scram = OURS | {"mechanism": "SCRAM-SHA-256"}
    with pytest.raises(KafkaError, match="PLAIN"), Admin(broker.bootstrap_servers, **scram) as admin:
        admin.list_topics()


def test_a_stranger_is_hung_up_on(broker: MockBroker, caplog: pytest.LogCaptureFixture) -> None:
    with (
        closing(Peer(broker.bootstrap_servers)) as known,
        closing(Peer(broker.bootstrap_servers)) as peer,
        caplog.at_level(logging.WARNING),
    ):
        mine = known.ask("SaslAuthenticate", {"auth_bytes": b"\0alice\0secret"}, 1)
        assert mine["error_code"] == known.ask("ListGroups", {}, 4)["error_code"] == 0
        offered = {one["api_key"] for one in peer.ask("ApiVersions", {}, 0)["api_keys"]}
        assert {17, 36} < offered
        told = peer.ask("SaslAuthenticate", {"auth_bytes": b"\0bob\0"}, 1)
        assert told["error_code"] == 58  # SASL_AUTHENTICATION_FAILED: no password is no way in
        peer.send("ListGroups", {}, 4)
        assert peer.read(1) == b""
    assert "asks for ListGroups before it says who it is" in caplog.text


def test_one_without_users_does_not_offer_sasl() -> None:
    with MockBroker() as broker, closing(Peer(broker.bootstrap_servers)) as peer:
        offered = {one["api_key"] for one in peer.ask("ApiVersions", {}, 0)["api_keys"]}
        assert not {17, 36} & offered


def test_a_refusal_can_be_scripted_over_tls_too() -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    secured = OURS | {"protocol": "SASL_SSL", "ca_pem": authority.cert_pem.bytes().decode()}
    with MockBroker(tls=context, users={"alice": "secret"}) as broker:
        broker.create_topic("orders")
        broker.on("SaslAuthenticate").fail("SASL_AUTHENTICATION_FAILED")
        with pytest.raises(AuthenticationError), Admin(broker.bootstrap_servers, **secured) as admin:
            admin.list_topics()
        with Admin(broker.bootstrap_servers, **secured) as admin:
            assert admin.list_topics() == ["orders"]
