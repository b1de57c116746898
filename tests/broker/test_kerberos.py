"""GSSAPI against a real broker and a real KDC; Java's console clients are the witnesses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kafka_native.testing import EmbeddedKafka, EmbeddedKdc
from spark_kafka_native.testing.console import consume, produce

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def realm() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(listeners=("SASL_PLAINTEXT", "PLAINTEXT"), kerberos=True) as running:
        yield running


@pytest.fixture
def kdc(realm: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> EmbeddedKdc:
    assert realm.kdc is not None
    monkeypatch.setenv("KRB5_CONFIG", str(realm.kdc.krb5_conf))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", *realm.kdc.jvm_options)
    return realm.kdc


def java(kdc: EmbeddedKdc) -> dict[str, str]:
    """The properties of a Java client, as its users paste them."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true "
        f'storeKey=true keyTab="{kdc.keytab("alice")}" principal="{kdc.principal("alice")}";',
    }


def test_the_embedded_kdc_logs_java_in(realm: EmbeddedKafka, kdc: EmbeddedKdc) -> None:
    topic = realm.create_topic("java-alone")
    produce(realm.bootstrap_servers, topic, [("a", "1")], producer_properties=java(kdc))
    (record,) = consume(realm.bootstrap_servers, topic, max_records=1, consumer_properties=java(kdc))
    assert (record.key, record.value) == (b"a", b"1")
