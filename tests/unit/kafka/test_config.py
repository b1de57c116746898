"""Java's property names become checked, frozen values; what is wrong is named."""

from __future__ import annotations

import pickle

import pytest

from spark_kafka_native.kafka.config import (
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    SecurityConfig,
    SecurityProtocol,
    split_address,
    unknown_properties,
)
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.model import IsolationLevel

BOOTSTRAP = {"bootstrap.servers": "a:9092"}


def test_a_string_of_bootstrap_servers_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"must be a tuple, as \('a:9092',\)"):
        ClientConfig(bootstrap_servers="a:9092")  # type: ignore[arg-type]


def test_properties_are_parsed_and_others_left_alone() -> None:
    properties = BOOTSTRAP | {
        "request.timeout.ms": "1234",
        "client.rack": "r1",
        "security.protocol": "ssl",
        "ssl.truststore.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "",
        "fetch.max.bytes": "99",
        "isolation.level": "READ_COMMITTED",
        "check.crcs": "False",
        "max.poll.records": "7",
    }
    client, consumer = ClientConfig.from_properties(properties), ConsumerConfig.from_properties(properties)
    assert (client.bootstrap_servers, client.request_timeout_ms, client.client_rack) == (
        ("a:9092",),
        1234,
        "r1",
    )
    assert client.security.protocol is SecurityProtocol.SSL
    assert (client.security.ca_location, client.security.check_hostname) == ("/ca.pem", False)
    assert (consumer.fetch_max_bytes, consumer.check_crcs) == (99, False)
    assert consumer.isolation_level is IsolationLevel.READ_COMMITTED


def test_defaults_are_javas() -> None:
    client, consumer = ClientConfig.from_properties(BOOTSTRAP), ConsumerConfig()
    assert (client.request_timeout_ms, client.default_api_timeout_ms) == (30_000, 60_000)
    assert (client.retry_backoff_ms, client.retry_backoff_max_ms) == (100, 1_000)
    assert (consumer.fetch_min_bytes, consumer.fetch_max_wait_ms, consumer.check_crcs) == (1, 500, True)
    assert client.security.check_hostname


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("request.timeout.ms", "soon", "must be a whole number, not 'soon'"),
        ("request.timeout.ms", "0", "must be between 1 and 2147483647, not 0"),
        ("fetch.max.bytes", "1e6", "must be a whole number"),
        ("isolation.level", "serializable", "must be read_uncommitted or read_committed, not 'serializable'"),
        ("check.crcs", "yes", "must be true or false"),
        ("security.protocol", "TLS", "must be one of PLAINTEXT, SSL"),
        ("security.protocol", "SASL_SSL", "SASL_SSL is not supported yet"),
        ("ssl.endpoint.identification.algorithm", "ldaps", "must be https"),
        ("ssl.truststore.location", "a.JKS", "keytool"),
        ("ssl.keystore.key", "secret", "must be given together"),
        ("bootstrap.servers", "", "must name at least one"),
        ("bootstrap.servers", "a", "'a' is not host:port"),
        ("bootstrap.servers", "a:1,b:x", "'b:x' is not host:port"),
        ("bootstrap.servers", "a:65536", "is not host:port"),
        ("bootstrap.servers", "::1:9092", r"write it as \[::1\]:9092"),
    ],
)
def test_what_is_wrong_is_named(name: str, value: str, says: str) -> None:
    properties = BOOTSTRAP | {name: value}
    with pytest.raises(ConfigError, match=says):
        (ClientConfig.from_properties(properties), ConsumerConfig.from_properties(properties))


def test_addresses() -> None:
    assert split_address("[::1]:9092") == ("::1", 9092)
    assert split_address("PLAINTEXT://host:1") == ("host", 1)
    assert ClientConfig.from_properties({"bootstrap.servers": " a:1 , b:2,"}).bootstrap_servers == (
        "a:1",
        "b:2",
    )


def test_configs_are_plain_values() -> None:
    first, second = (ClientConfig.from_properties(BOOTSTRAP | {"client.id": "x"}) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert pickle.loads(pickle.dumps(first)) == first


def test_secrets_stay_out_of_texts() -> None:
    secrets = {
        "ssl.key.password": "hunter2",
        "ssl.keystore.key": "KEY",
        "ssl.keystore.certificate.chain": "C",
    }
    config = ClientConfig.from_properties(BOOTSTRAP | secrets)
    assert config.security.key_password == "hunter2"
    assert "hunter2" not in repr(config)
    assert "KEY" not in repr(config)


def test_unknown_names_come_with_the_nearest() -> None:
    known = (ClientConfig, SecurityConfig, ConsumerConfig, ProducerConfig)
    assert unknown_properties(["fetch.max.byte", "zzz", "session.timeout.ms", "fetch.max.bytes"], *known) == {
        "fetch.max.byte": "fetch.max.bytes",
        "zzz": None,
    }
