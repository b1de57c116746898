"""`configs_from`: what a user gives becomes configs, or an error that says what was meant."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pytest

from spark_kafka_native.kafka.config.client_config import (
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    SecurityConfig,
    configs_from,
)
from spark_kafka_native.kafka.config.properties import Properties, property_field
from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.config.security_config import SecurityProtocol
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.model import Acks, IsolationLevel


@dataclass(frozen=True, kw_only=True)
class GroupSettings(Properties):
    session_timeout_ms: int = property_field("session.timeout.ms", 45_000)


@pytest.mark.parametrize(
    ("bootstrap", "addresses"),
    [
        ("a:1", ("a:1",)),
        ("a", ("a:9092",)),
        ("a, b:2 ,", ("a:9092", "b:2")),
        (["a", "b:2"], ("a:9092", "b:2")),
        (("a,b:2", "c"), ("a:9092", "b:2", "c:9092")),
        ("[::1]", ("[::1]:9092",)),
        ("[::1]:7", ("[::1]:7",)),
        ("SSL://a", ("SSL://a:9092",)),
        ({"bootstrap.servers": "a,b:2"}, ("a:9092", "b:2")),
        ({"bootstrap.servers": ["a", "b:2"]}, ("a:9092", "b:2")),
        (ClientConfig(bootstrap_servers=("a:1",)), ("a:1",)),
    ],
)
def test_bootstrap_is_a_text_a_sequence_a_config_or_properties(bootstrap: Any, addresses: object) -> None:
    (client,) = configs_from(bootstrap, {})
    assert client.bootstrap_servers == addresses


@pytest.mark.parametrize(
    ("bootstrap", "says"),
    [
        (None, "not of the type NoneType"),
        (b"a:1", "not of the type bytes"),
        ({"a:1"}, "not of the type set"),
        (["a", 2], "must be host:port of some brokers"),
        ("", "must name at least one broker"),
        ([], "must name at least one broker"),
        ({"client.id": "x"}, "must name at least one broker"),
        ("a:b", "is not host:port"),
        ("::1", "looks like IPv6"),
        ({1: "a"}, "a property's name is a str"),
    ],
)
def test_a_bootstrap_that_can_not_be_is_refused(bootstrap: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        configs_from(bootstrap, {})


def test_keywords_go_to_the_config_that_has_them() -> None:
    client, producer, group = configs_from(
        "a",
        {"acks": "1", "client_id": "me", "protocol": "SSL", "session_timeout_ms": 6, "linger_ms": "7"},
        ProducerConfig,
        GroupSettings,
    )
    assert (client.client_id, client.security.protocol) == ("me", SecurityProtocol.SSL)
    assert (producer.acks, producer.linger_ms) == (Acks.LEADER, 7)
    assert group.session_timeout_ms == 6


@pytest.mark.parametrize(
    ("keyword", "meant"),
    [
        ("ack", "'acks'"),
        ("lingerms", "'linger_ms'"),
        ("security_protocol", "'protocol'"),
        ("sasl_mechanism", "'mechanism'"),
    ],
)
def test_an_unknown_keyword_names_the_nearest(keyword: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"no setting '{keyword}': did you mean {meant}"):
        configs_from("a", {keyword: 1}, ProducerConfig)
    with pytest.raises(TypeError, match="no setting 'acks'"):  # a producer's
        configs_from("a", {"acks": 1}, ConsumerConfig)
    with pytest.raises(TypeError, match=r"no setting 'xyzzy'$"):
        configs_from("a", {"xyzzy": 1})


def test_a_keyword_takes_precedence_over_properties_and_configs() -> None:
    given = {
        "bootstrap.servers": "a",
        "client.id": "one",
        "acks": -1,
        "linger.ms": 3,
        "compression.zstd.level": 4,
    }
    client, producer = configs_from(
        given, {"client_id": "two", "acks": 0, "compression_type": "zstd"}, ProducerConfig
    )
    assert (client.client_id, producer.acks, producer.linger_ms) == ("two", Acks.NONE, 3)
    assert producer.compression_level == 4

    start = ClientConfig(bootstrap_servers=("a:1",), client_id="one", client_rack="r")
    changed, produced = configs_from(
        start, {"client_id": "two", "linger_ms": 9}, ProducerConfig(acks=Acks.LEADER)
    )
    assert (changed.client_id, changed.client_rack) == ("two", "r")
    assert (produced.acks, produced.linger_ms) == (Acks.LEADER, 9)


def test_security_comes_as_a_config_as_keywords_or_both() -> None:
    tls = SecurityConfig(protocol=SecurityProtocol.SSL)
    assert configs_from("a", {"security": tls})[0].security == tls
    assert configs_from(ClientConfig(bootstrap_servers=("a:1",), security=tls), {})[0].security == tls
    login = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "u", "password": "p"}
    for bootstrap in ("a", ClientConfig(bootstrap_servers=("a:1",))):
        for extra in ({}, {"security": SecurityConfig(ca_location="ca.pem")}):
            made = configs_from(bootstrap, login | extra)[0].security
            assert (made.password, made.uses_sasl) == (Secret("p"), True)
            assert made.ca_location == ("ca.pem" if extra else None)
    # A mapping that would be incomplete without the keywords.
    mixed = {"bootstrap.servers": "a", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    assert configs_from(mixed, {"username": "u", "password": "p"})[0].security.password == Secret("p")


def test_security_of_another_kind_is_refused_and_not_shown() -> None:
    with pytest.raises(
        ConfigError, match="security must be a SecurityConfig, not of the type dict"
    ) as caught:
        configs_from("a", {"security": {"password": "hunter2"}})
    assert "hunter2" not in str(caught.value)


def test_what_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="bootstrap_servers is given twice"):
        configs_from("a", {"bootstrap_servers": "b"})
    assert configs_from(None, {"bootstrap_servers": "b"})[0].bootstrap_servers == ("b:9092",)
    with pytest.raises(ConfigError, match="acks stands in the mapping, and a ProducerConfig is given too"):
        configs_from({"bootstrap.servers": "a", "acks": 1}, {}, ProducerConfig())


def test_properties_take_values_of_any_simple_type() -> None:
    given = {
        "bootstrap.servers": "a",
        "security.protocol": SecurityProtocol.SSL,
        "sasl.password": Secret("p"),
        "request.timeout.ms": 5,
        "isolation.level": IsolationLevel.READ_COMMITTED,
        "check.crcs": False,
        "client.id": 42,
    }
    client, consumer = configs_from(given, {}, ConsumerConfig)
    assert (client.security.protocol, client.request_timeout_ms) == (SecurityProtocol.SSL, 5)
    assert (consumer.isolation_level, consumer.check_crcs) == (IsolationLevel.READ_COMMITTED, False)
    assert client.client_id == "42"


def test_an_unknown_property_is_named_with_the_nearest() -> None:
    with pytest.warns(
        UserWarning, match="'compresion.type' is ignored; did you mean 'compression.type'"
    ) as told:
        configs_from({"bootstrap.servers": "a", "compresion.type": "zstd"}, {}, ProducerConfig)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # One dict for a producer and a consumer is what people have; nothing is wrong with it.
        configs_from({"bootstrap.servers": "a", "group.id": "g", "check.crcs": "true"}, {}, ProducerConfig)


def test_brokers_by_librdkafkas_name() -> None:
    (client,) = configs_from({"metadata.broker.list": "a,b:1"}, {})
    assert client.bootstrap_servers == ("a:9092", "b:1")
