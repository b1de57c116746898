"""Java property names and keywords become checked, frozen configs; errors name the property."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_kafka_native.kafka.cluster.router import router_for
from spark_kafka_native.kafka.config.client_config import (
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    SecurityConfig,
    SecurityProtocol,
    TransactionConfig,
    configs_from,
    split_address,
    unknown_properties,
)
from spark_kafka_native.kafka.config.properties import Properties, property_field
from spark_kafka_native.kafka.config.reader_config import OffsetReset, ReaderConfig
from spark_kafka_native.kafka.config.secret import Secret
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.group.group_config import GroupConfig
from spark_kafka_native.kafka.model import Acks, IsolationLevel, OffsetAt
from spark_kafka_native.kafka.security.config_providers import read_properties

BOOTSTRAP = {"bootstrap.servers": "a:9092"}
REQUIRED: dict[type[Properties], dict[str, Any]] = {
    ClientConfig: {"bootstrap_servers": ("a:9092",)},
    TransactionConfig: {"transactional_id": "t"},
}


def test_a_string_of_bootstrap_servers_is_refused_with_the_remedy() -> None:
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
    reader, producer, transaction = ReaderConfig(), ProducerConfig(), TransactionConfig(transactional_id="t")
    assert (reader.max_poll_records, transaction.transaction_timeout_ms) == (500, 60_000)
    assert (producer.delivery_timeout_ms, producer.retries, producer.max_in_flight) == (120_000, 2**31 - 1, 5)


def test_where_java_is_less_careful_the_default_is_another() -> None:
    """A misspelt topic is not created, and no record is skipped because its offset is not in the log."""
    assert not ProducerConfig().allow_auto_create_topics
    assert ReaderConfig().auto_offset_reset is OffsetReset.NONE


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("request.timeout.ms", "soon", "must be a whole number, not 'soon'"),
        ("request.timeout.ms", "0", "must be between 1 and 2147483647, not 0"),
        ("fetch.max.bytes", "1e6", "must be a whole number"),
        ("isolation.level", "serializable", "must be read_uncommitted or read_committed, not 'serializable'"),
        ("check.crcs", "yes", "must be true or false"),
        ("security.protocol", "TLS", "must be one of PLAINTEXT, SSL"),
        ("security.protocol", "SASL_SSL", "SASL_SSL needs sasl.mechanism"),
        ("ssl.endpoint.identification.algorithm", "ldaps", "must be https"),
        ("ssl.keystore.key", "secret", "must be given together"),
        ("client.dns.lookup", "all", "must be use_all_dns_ips or resolve_canonical"),
        ("broker.address.family", "v5", "must be one of any, v4, v6"),
        ("source.address", "localhost", "must be an IP address of this machine"),
        ("bootstrap.servers", "", "must name at least one"),
        ("bootstrap.servers", "a", "'a' is not host:port"),
        ("bootstrap.servers", "a:1,b:x", "'b:x' is not host:port"),
        ("bootstrap.servers", "a:65536", "is not host:port"),
        ("bootstrap.servers", "a:0", "is not host:port"),
        ("bootstrap.servers", "a:1" + "9" * 5000, "is not host:port"),
        ("bootstrap.servers", "::1:9092", r"write it as \[::1\]:9092"),
    ],
)
def test_errors_name_the_property(name: str, value: str, says: str) -> None:
    properties = BOOTSTRAP | {name: value}
    with pytest.raises(ConfigError, match=says):
        (ClientConfig.from_properties(properties), ConsumerConfig.from_properties(properties))


@pytest.mark.parametrize("config", [ClientConfig, ReaderConfig, ProducerConfig, TransactionConfig])
def test_a_number_beyond_its_bounds_is_refused(config: type[Properties]) -> None:
    """A bound of 0 is one, too: a negative wait or size has no meaning."""
    bounded = [f for f in fields(config) if f.metadata.get("min_value") is not None]
    assert any(f.metadata["min_value"] == 0 for f in bounded) or config is TransactionConfig
    for f in bounded:
        low, high = f.metadata["min_value"], f.metadata["max_value"]
        for beyond in (low - 1, *([] if high is None else [high + 1])):
            with pytest.raises(ConfigError, match=rf"^{f.metadata['property']} must be .*, not {beyond}$"):
                config.from_properties({f.metadata["property"]: beyond}, **REQUIRED.get(config, {}))


LARGEST = {
    "max.in.flight.requests.per.connection": 1_000,
    "connections.per.broker": 100,
    "transaction.version": 2,
}
"""Of the others it is the largest number of 32 bits."""
WITHOUT_END = {
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "max.block.ms",
    "buffer.memory",
    "queue.buffering.max.messages",
}
"""Neither in a request nor in a setting of a socket."""
SMALLEST = {
    "receive.message.max.bytes": 1_000,
    **dict.fromkeys(
        (
            "connection.attempt.delay.ms",
            "socket.keepalive.idle.ms",
            "connections.max.idle.ms",
            "receive.buffer.bytes",
            "send.buffer.bytes",
        ),
        -1,
    ),
    **dict.fromkeys(
        (
            "retry.backoff.ms",
            "retry.backoff.max.ms",
            "metadata.max.age.ms",
            "fetch.min.bytes",
            "fetch.max.wait.ms",
            "end.of.log.wait.ms",
            "batch.size",
            "linger.ms",
            "max.block.ms",
            "retries",
        ),
        0,
    ),
}
"""Of the others it is 1."""


@pytest.mark.parametrize("config", [ClientConfig, ReaderConfig, ProducerConfig, TransactionConfig])
def test_each_number_has_the_bounds_of_its_property(config: type[Properties]) -> None:
    """Most are sent in 32 bits, or are times that a system call takes: one that is larger fails in there."""
    found = {
        f.metadata["property"]: (f.metadata["min_value"], f.metadata["max_value"])
        for f in fields(config)
        if f.metadata.get("parse") is int and f.default is not None
    }
    assert found == {
        name: (SMALLEST.get(name, 1), None if name in WITHOUT_END else LARGEST.get(name, 2**31 - 1))
        for name in found
    }


@pytest.mark.parametrize(
    ("config", "given", "field", "value"),
    [
        (ClientConfig, {"client.rack": "a"}, "client_rack", "b"),
        (ConsumerConfig, {"fetch.max.bytes": "5"}, "fetch_max_bytes", 7),
        (ReaderConfig, {"max.poll.records": "5"}, "max_poll_records", 7),
        (ProducerConfig, {"acks": "1"}, "acks", Acks.NONE),
        (TransactionConfig, {"transaction.timeout.ms": "5"}, "transaction_timeout_ms", 7),
        (SecurityConfig, {"security.protocol": "PLAINTEXT"}, "protocol", SecurityProtocol.SSL),
    ],
)
def test_a_field_takes_precedence_over_its_property(
    config: type[Properties], given: dict[str, str], field: str, value: object
) -> None:
    made = config.from_properties(given, **REQUIRED.get(config, {}) | {field: value})
    assert getattr(made, field) == value


@pytest.mark.parametrize("name", ["truststore", "keystore"])
def test_javas_default_type_of_a_store_is_no_error_without_a_store(name: str) -> None:
    """Templates spell it out; the error was about a file that was not given."""
    for protocol in ("PLAINTEXT", "SSL"):
        properties = BOOTSTRAP | {f"ssl.{name}.type": "JKS", "security.protocol": protocol}
        ClientConfig.from_properties(properties)
    store = {f"ssl.{name}.location": "a.JKS"}
    (warning,) = ClientConfig.from_properties(BOOTSTRAP | store).security.warnings
    assert warning.startswith(f"ssl.{name}.location without effect")
    with pytest.raises(ConfigError, match="keytool"):
        ClientConfig.from_properties(BOOTSTRAP | store | {"security.protocol": "SSL"})


def test_the_type_of_a_store_counts_more_than_its_name() -> None:
    """Java writes PKCS12 into files that are still called .jks."""
    store = {"security.protocol": "SSL", "ssl.truststore.location": "a.jks", "ssl.truststore.type": "PKCS12"}
    assert ClientConfig.from_properties(BOOTSTRAP | store).security.ca_location == "a.jks"


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
    assert config.security.key_password == Secret("hunter2")
    assert "hunter2" not in repr(config)
    assert "KEY" not in repr(config)


def test_unknown_names_come_with_the_nearest() -> None:
    known = (ClientConfig, SecurityConfig, ConsumerConfig, ProducerConfig)
    assert unknown_properties(["fetch.max.byte", "zzz", "session.timeout.ms", "fetch.max.bytes"], *known) == {
        "fetch.max.byte": "fetch.max.bytes",
        "zzz": None,
    }


@pytest.mark.parametrize(
    ("config", "given", "field", "found"),
    [
        (SecurityConfig, {"protocol": "SSL"}, "protocol", SecurityProtocol.SSL),
        (SecurityConfig, {"protocol": "ssl", "verify_certificate": "false"}, "verify_certificate", False),
        (SecurityConfig, {"mechanism": "scram-sha-256"}, "mechanism", "SCRAM-SHA-256"),
        (SecurityConfig, {"password": "hunter2"}, "password", Secret("hunter2")),
        (SecurityConfig, {"ca_location": Path("/ca.pem")}, "ca_location", "/ca.pem"),
        (SecurityConfig, {"tls_versions": "TLSv1.3"}, "tls_versions", ("TLSv1.3",)),
        (SecurityConfig, {"tls_versions": ["TLSv1.3"]}, "tls_versions", ("TLSv1.3",)),
        (SecurityConfig, {"extensions": (("a", "b,c"),)}, "extensions", (("a", "b,c"),)),
        (ClientConfig, {"bootstrap_servers": ["a:1", "b:2"]}, "bootstrap_servers", ("a:1", "b:2")),
        (ConsumerConfig, {"check_crcs": "false"}, "check_crcs", False),
        (ConsumerConfig, {"fetch_max_bytes": np.int64(7)}, "fetch_max_bytes", 7),
        (
            ConsumerConfig,
            {"isolation_level": "read_committed"},
            "isolation_level",
            IsolationLevel.READ_COMMITTED,
        ),
        (ProducerConfig, {"acks": -1}, "acks", Acks.ALL),
        (ProducerConfig, {"acks": "all"}, "acks", Acks.ALL),
        (ProducerConfig, {"acks": 1}, "acks", Acks.LEADER),
        (ProducerConfig, {"linger_ms": "12"}, "linger_ms", 12),
        (ProducerConfig, {"compression_type": "ZSTD"}, "compression_type", "zstd"),
        (ProducerConfig, {"enable_idempotence": "False"}, "enable_idempotence", False),
    ],
)
def test_texts_are_parsed_to_their_values(
    config: Any, given: dict[str, Any], field: str, found: object
) -> None:
    value = getattr(config(**given), field)
    assert value == found
    assert type(value) is type(found)


@pytest.mark.parametrize(
    ("config", "given", "says"),
    [
        (SecurityConfig, {"protocol": "TLS"}, "security.protocol must be one of PLAINTEXT, SSL.*not 'TLS'"),
        (
            SecurityConfig,
            {"protocol": None},
            "security.protocol must be of the type SecurityProtocol, not None",
        ),
        (SecurityConfig, {"protocol": True}, "security.protocol must be of the type"),
        (SecurityConfig, {"check_hostname": "false"}, "ssl.endpoint.identification.algorithm must be https"),
        (
            SecurityConfig,
            {"verify_certificate": 0},
            "enable.ssl.certificate.verification must be of the type bool",
        ),
        (SecurityConfig, {"mechanism": "SPNEGO"}, r"sasl.mechanism must be one of PLAIN, .*, GSSAPI"),
        (SecurityConfig, {"tls_versions": ()}, "ssl.enabled.protocols must name TLSv1.2"),
        (SecurityConfig, {"username": 5}, "sasl.username must be of the type str, not 5"),
        (ClientConfig, {"bootstrap_servers": ("a:1",), "client_id": ["a", "b"]}, "must be of the type str"),
        (
            SecurityConfig,
            {"password": b"marked"},
            "sasl.password must be a Secret or a str, not of the type bytes",
        ),
        (ClientConfig, {"bootstrap_servers": ("a:1", 5)}, "bootstrap.servers must be of the type|is not"),
        (ClientConfig, {"bootstrap_servers": ("a:1",), "security": "SSL"}, "security must be of the type"),
        (ClientConfig, {"bootstrap_servers": ("a:1",), "request_timeout_ms": 1.5}, "must be of the type int"),
        (
            ClientConfig,
            {"bootstrap_servers": ("a:1",), "request_timeout_ms": True},
            "must be of the type int",
        ),
        (ClientConfig, {"bootstrap_servers": ("a:1",), "request_timeout_ms": "0"}, "must be between 1 and"),
        (ConsumerConfig, {"isolation_level": 1}, "must be read_uncommitted or read_committed, not 1"),
        (ConsumerConfig, {"check_crcs": 1}, "check.crcs must be of the type bool"),
        (ConsumerConfig, {"header_keys": "strict"}, "header_keys must be of the type HeaderKeys"),
        (ReaderConfig, {"auto_offset_reset": "by_duration:P"}, "must be earliest, latest, none or by_dur"),
        (ReaderConfig, {"auto_offset_reset": "by_duration:PT"}, "must be earliest, latest, none or by_dur"),
        (
            ReaderConfig,
            {"auto_offset_reset": "by_duration=PT24H"},
            "must be earliest, latest, none or by_dur",
        ),
        (ReaderConfig, {"auto_offset_reset": "PT24H"}, "must be earliest, latest, none or by_duration"),
        (
            TransactionConfig,
            {"transactional_id": "t", "transaction_timeout_ms": 0},
            "transaction.timeout.ms must be between 1",
        ),
        (TransactionConfig, {}, "transactional.id must be given"),
        (ProducerConfig, {"acks": 2}, r"acks must be all \(or -1\), 1 or 0, not 2"),
        (ProducerConfig, {"acks": "most"}, "acks must be all"),
        (ProducerConfig, {"compression_type": "brotli"}, "compression.type must be one of none, gzip"),
        (ProducerConfig, {"linger_ms": None}, "linger.ms must be of the type int"),
        (ProducerConfig, {"linger_ms": "soon"}, "linger.ms must be a whole number"),
    ],
)
def test_unparsable_values_are_refused(config: Any, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        config(**given)
    assert "marked" not in str(caught.value)


def test_a_secret_among_properties_is_itself() -> None:
    names = ClientConfig.from_properties(BOOTSTRAP | {"sasl.password": Secret("hunter2")})  # type: ignore[dict-item]
    assert names.security.password == Secret("hunter2")
    for bad in (None, b"hunter2"):
        with pytest.raises(ConfigError, match=r"sasl.password must be a str, not of the type") as caught:
            ClientConfig.from_properties(BOOTSTRAP | {"sasl.password": bad})  # type: ignore[dict-item]
        assert "hunter2" not in str(caught.value)
    both = {"ssl.keystore.key": Secret("a"), "ssl.key.pem": Secret("b")}
    with pytest.raises(ConfigError, match="mean the same and differ"):
        ClientConfig.from_properties(BOOTSTRAP | both)  # type: ignore[operator]


@pytest.mark.parametrize(
    "name", ["security.protocl", "security_protocol", "Security.Protocol", "security.protocols"]
)
def test_a_slip_in_security_protocol_is_not_plaintext(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown property {name}: did you mean security.protocol\?"):
        ClientConfig.from_properties(BOOTSTRAP | {name: "SSL"})
    ClientConfig.from_properties(BOOTSTRAP | {"security.providers": "x"})


def test_users_with_different_passwords_are_different_configs() -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
    configs = {
        ClientConfig.from_properties(BOOTSTRAP | login | {"sasl.password": text}) for text in ("a", "b")
    }
    assert len(configs) == 2
    first, second = (router_for(config) for config in configs)
    assert first is not second


def test_librdkafkas_names_mean_the_same():
    given = {
        "queue.buffering.max.ms": "7",
        "message.send.max.retries": "3",
        "message.timeout.ms": "9000",
        "request.required.acks": "-1",
        "compression.codec": "lz4",
        "max.in.flight": "2",
    }
    found = ProducerConfig.from_properties(given)
    assert (found.linger_ms, found.retries, found.delivery_timeout_ms) == (7, 3, 9_000)
    assert (found.acks, found.compression_type, found.max_in_flight) == (Acks.ALL, "lz4", 2)
    both = {"linger.ms": "5", "queue.buffering.max.ms": "7"}
    with pytest.raises(ConfigError, match=r"linger\.ms and queue\.buffering\.max\.ms mean the same"):
        ProducerConfig.from_properties(both)
    reader = {"metadata.broker.list": "a:1", "fetch.message.max.bytes": "100"}
    assert ClientConfig.from_properties(reader).bootstrap_servers == ("a:1",)
    assert ConsumerConfig.from_properties(reader).max_partition_fetch_bytes == 100


def test_records_are_not_given_up_while_they_linger():
    assert ProducerConfig(linger_ms=100, delivery_timeout_ms=100).linger_ms == 100
    with pytest.raises(ConfigError, match=r"linger\.ms=101 is longer than delivery\.timeout\.ms=100"):
        ProducerConfig(linger_ms=101, delivery_timeout_ms=100)


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
        ("::1", r"'::1' looks like IPv6; write it as \[address\]:port$"),
        ("[::1:9092", "is not host:port|looks like IPv6"),
        ("::1]:9092", "looks like IPv6"),
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
    with pytest.raises(TypeError, match="no setting 'acks'"):  # a producer's property
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
        given, {"client_id": "two", "acks": 0, "compression_type": "ZSTD"}, ProducerConfig
    )
    assert (client.client_id, producer.acks, producer.linger_ms) == ("two", Acks.NONE, 3)
    assert producer.compression_level == 4
    chosen = {"compression_type": "zstd", "compression_level": 9}
    assert configs_from(given, chosen, ProducerConfig)[1].compression_level == 9

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
    # Without the keywords the mapping would be incomplete.
    mixed = {"bootstrap.servers": "a", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    assert configs_from(mixed, {"username": "u", "password": "p"})[0].security.password == Secret("p")


def test_security_of_another_kind_is_refused_and_not_shown() -> None:
    with pytest.raises(
        ConfigError, match="security must be a SecurityConfig, not of the type dict"
    ) as caught:
        configs_from("a", {"security": {"password": "hunter2"}})
    assert "hunter2" not in str(caught.value)


def test_settings_given_twice_are_refused() -> None:
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
        # Users share one dict between a producer and a consumer; that is fine.
        configs_from({"bootstrap.servers": "a", "group.id": "g", "check.crcs": "true"}, {}, ProducerConfig)


def test_a_consumer_refuses_a_group_that_it_would_not_be_in() -> None:
    """It would commit nothing, and all records would be read again by the next one."""
    with pytest.raises(ConfigError, match=r"group\.id: a Consumer is in no group.*Use GroupConsumer"):
        Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "billing"}, "a")


@pytest.mark.parametrize("name", ["partitioner", "partitioner.class"])
def test_librdkafkas_name_of_the_partitioner_counts(name: str) -> None:
    _, producer = configs_from({"bootstrap.servers": "a", name: "consistent_random"}, {}, ProducerConfig)
    assert producer.partitioner == "consistent_random"


@pytest.mark.parametrize("own", [ProducerConfig, ConsumerConfig])
def test_a_misspelt_property_makes_no_other_unknown(own: type[Properties]) -> None:
    """In a mapping that a producer shares with a consumer."""
    shared = {"bootstrap.servers": "a", "isolation.level": "read_committed", "acks": "1", "lingr.ms": 5}
    with pytest.warns(UserWarning, match=r"'lingr\.ms' is ignored; did you mean 'linger\.ms'") as warned:
        configs_from(shared, {}, own)
    assert len(warned) == 1


def test_brokers_by_librdkafkas_name() -> None:
    (client,) = configs_from({"metadata.broker.list": "a,b:1"}, {})
    assert client.bootstrap_servers == ("a:9092", "b:1")


@pytest.mark.parametrize(
    ("policy", "place"),
    [
        ("none", None),
        ("Earliest", OffsetAt.EARLIEST),
        ("latest", OffsetAt.LATEST),
        ("by_duration:P1DT2H3M4.5S", OffsetAt.timestamp(100_000_000 - 93_784_500)),
        ("by_duration:P2D", OffsetAt.timestamp(0)),
        ("By_Duration:PT1S", OffsetAt.timestamp(99_999_000)),
    ],
)
def test_where_each_reset_policy_goes_on(policy: str, place: OffsetAt | None) -> None:
    """A time before the epoch is its beginning."""
    assert OffsetReset.parse(policy).place(100_000_000) == place


def test_blanks_around_a_value_do_not_count() -> None:
    """As in Java: a file may have them at the end of a line, and the group was another one."""
    found = read_properties(
        "bootstrap.servers=a:1 \nclient.id=me \nclient.rack= az1 \nsecurity.protocol= SASL_SSL \n"
        "sasl.mechanism=PLAIN \nsasl.username=u\t\nsasl.password=s3 c \n",
        lambda _: True,
    )
    config = ClientConfig.from_properties(found)
    assert (config.client_id, config.client_rack, config.security.username) == ("me", "az1", "u")
    assert config.security.password == Secret("s3 c")
    other = ClientConfig.from_properties(
        found | {"client.id": "me\u3000\x01", "sasl.password": Secret(" as it is ")}
    )
    assert other.client_id == "me\u3000"  # Java takes no other blanks away
    assert other.security.password == Secret(" as it is ")
    assert GroupConfig.from_properties({"group.id": "billing "}).group_id == "billing"
    with pytest.raises(ConfigError):
        TransactionConfig.from_properties({"transactional.id": " "})
