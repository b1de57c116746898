"""A real broker spoken to the wrong way: named errors, soon, and nothing large is allocated. And
TLS done right.
"""

from __future__ import annotations

import socket
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from support.consumer.reading import Reading

from spark_kafka_native.kafka.admin import Admin, NewTopic
from spark_kafka_native.kafka.errors import BrokerError, ConfigError, KafkaError, SecurityError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.testing import EmbeddedKafka

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def secured() -> Iterator[EmbeddedKafka]:
    """A broker with both kinds of listener that hangs up on idle connections after a second."""
    with EmbeddedKafka(
        listeners=("PLAINTEXT", "SSL"), properties={"connections.max.idle.ms": 1_000}, client_auth="requested"
    ) as running:
        running.create_topic("here", 2)
        yield running


def tls(cluster: EmbeddedKafka, **changed: object) -> Reading:
    assert cluster.certificates is not None
    trusted = {"security_protocol": "SSL", "ssl_truststore_location": cluster.certificates.authority}
    return Reading(cluster.bootstrap_servers_for("SSL"), **(trusted | changed))


def test_tls(secured: EmbeddedKafka) -> None:
    reading = tls(secured)
    assert reading.read("here") == {0: [], 1: []}
    [broker] = reading.router.metadata().brokers.values()
    assert secured.bootstrap_servers_for("SSL") == f"{broker.host}:{broker.port}"


def test_tls_with_a_client_certificate_and_inline_pem(secured: EmbeddedKafka) -> None:
    certificates = secured.certificates
    assert certificates is not None
    reading = Reading(
        secured.bootstrap_servers_for("SSL"),
        security_protocol="SSL",
        ssl_truststore_certificates=certificates.authority.read_text(),
        ssl_keystore_location=certificates.client,
    )
    assert reading.read("here") == {0: [], 1: []}


def test_tls_carries_large_frames(secured: EmbeddedKafka) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    producer = confluent_kafka.Producer({"bootstrap.servers": secured.bootstrap_servers, "log_level": 0})
    secured.create_topic("large", 1)
    for number in range(60):
        producer.produce("large", b"%d" % number * 200_000)
        producer.flush()
    found = tls(secured).read("large", max_partition_fetch_bytes=3_000_000)[0]
    assert [record.value for record in found] == [b"%d" % number * 200_000 for number in range(60)]


@pytest.mark.parametrize(("protocol", "listener"), [("SSL", "PLAINTEXT"), ("PLAINTEXT", "SSL")])
def test_the_wrong_security_protocol_is_named(secured: EmbeddedKafka, protocol: str, listener: str) -> None:
    reading = Reading(
        secured.bootstrap_servers_for(listener), security_protocol=protocol, default_api_timeout_ms=300_000
    )
    tracemalloc.start()
    began = time.monotonic()
    with pytest.raises(KafkaError, match=r"security\.protocol") as raised:
        reading.partitions("here")
    took, (_, peak) = time.monotonic() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took < 60
    assert peak < 20_000_000
    assert "TLS" in str(raised.value) or listener in str(raised.value)


def test_a_certificate_of_nobody_we_trust_is_refused(secured: EmbeddedKafka) -> None:
    reading = Reading(
        secured.bootstrap_servers_for("SSL"), security_protocol="SSL", default_api_timeout_ms=300_000
    )
    began = time.monotonic()
    with pytest.raises(SecurityError, match=r"certificate is not trusted: (self.signed|unable to get)"):
        reading.partitions("here")
    assert time.monotonic() - began < 60


def test_a_certificate_of_another_host_is_refused_unless_told_otherwise(secured: EmbeddedKafka) -> None:
    port = secured.bootstrap_servers_for("SSL").rpartition(":")[2]
    alias = {"security_protocol": "SSL", "ssl_truststore_location": secured.certificates.authority}  # type: ignore[union-attr]
    # 127.0.0.2 is this machine too, and not in the certificate.
    with socket.create_server(("127.0.0.2", 0)):
        pass
    reading = Reading(f"127.0.0.2:{port}", **alias, default_api_timeout_ms=2_000)
    with pytest.raises(KafkaError, match=r"IP address mismatch|not valid for '127.0.0.2'|connection refused"):
        reading.partitions("here")


def test_files_that_cannot_be_used_are_named(secured: EmbeddedKafka, tmp_path: object) -> None:
    with pytest.raises(ConfigError, match=r"ssl.truststore.location: /no/such/file on .* can't be read"):
        tls(secured, ssl_truststore_location="/no/such/file").partitions("here")
    with pytest.raises(ConfigError, match=r"ssl.keystore.location: .* is not PEM that can be used"):
        tls(secured, ssl_keystore_location=__file__).partitions("here")
    with pytest.raises(ConfigError, match="keytool"):
        tls(secured, ssl_truststore_location="trust.jks")
    with pytest.raises(ConfigError, match=r"SASL_SSL needs sasl\.mechanism"):
        tls(secured, security_protocol="SASL_SSL")


def test_an_idle_connection_is_replaced_without_a_word(secured: EmbeddedKafka) -> None:
    for reading in (Reading(secured.bootstrap_servers), tls(secured)):
        assert reading.read("here") == {0: [], 1: []}
        time.sleep(2.5)
        assert reading.read("here") == {0: [], 1: []}


def test_a_missing_topic_is_named(secured: EmbeddedKafka) -> None:
    reading = Reading(secured.bootstrap_servers)
    with pytest.raises(BrokerError, match="topic not-here: UNKNOWN_TOPIC_OR_PARTITION"):
        reading.partitions("not-here")
    with pytest.raises(BrokerError, match="not-here: UNKNOWN_TOPIC_OR_PARTITION"):
        list(reading.fetch({TopicPartition("not-here", 0): (0, 1)}))


@pytest.mark.parametrize("name", ["", ".", "with space", "ü", "x" * 250])
def test_an_impossible_topic_name_is_refused_at_once(secured: EmbeddedKafka, name: str) -> None:
    reading = Reading(secured.bootstrap_servers, default_api_timeout_ms=300_000)
    began = time.monotonic()
    refusal, why = (BrokerError, "INVALID_TOPIC_EXCEPTION") if name else (ValueError, "not empty")
    with pytest.raises(refusal, match=why):
        Admin(reading.router).create_topics([NewTopic(name=name, partitions=1)])
    with pytest.raises(BrokerError):
        list(reading.fetch({TopicPartition(name, 0): (0, 1)}))
    assert time.monotonic() - began < 60
