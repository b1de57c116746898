"""TLS against a listener with a certificate: its name and its issuer are checked."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedBroker, properties

from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.errors import SecurityError
from spark_kafka_native.kafka.network.connection import Connection
from spark_kafka_native.kafka.protocol.api.api_versions import ApiVersionsRequest
from spark_kafka_native.testing.credentials import Certificates, write_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """For ``localhost`` only: the address 127.0.0.1 is another name."""
    return write_certificates(tmp_path_factory.mktemp("certificates"), "localhost")


@pytest.fixture
def broker(certificates: Certificates) -> Iterator[ScriptedBroker]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server)
    with ScriptedBroker(tls=context) as running:
        yield running


def connect(broker: ScriptedBroker, host: str, authority: Path | None, **changed: object) -> Connection:
    settings = properties(f"{host}:{broker.port}", security_protocol="SSL", **changed)
    if authority is not None:
        settings = {**settings, "ssl.truststore.location": str(authority)}
    return Connection.open(host, broker.port, ClientConfig.from_properties(settings))


def test_the_name_of_the_certificate_is_taken(broker: ScriptedBroker, certificates: Certificates) -> None:
    connection = connect(broker, "localhost", certificates.authority)
    assert not connection.closed
    assert len(broker.requests(ApiVersionsRequest)) == 1


def test_another_name_than_the_certificates_is_refused_before_anything_is_sent(
    broker: ScriptedBroker, certificates: Certificates
) -> None:
    with pytest.raises(SecurityError, match=r"not trusted: .*127\.0\.0\.1"):
        connect(broker, "127.0.0.1", certificates.authority)
    assert not broker.asked


@pytest.mark.parametrize("off", ["", "none"])
def test_the_name_is_not_looked_at_where_that_is_turned_off(
    broker: ScriptedBroker, certificates: Certificates, off: str
) -> None:
    name = "ssl_endpoint_identification_algorithm"
    assert not connect(broker, "127.0.0.1", certificates.authority, **{name: off}).closed


def test_an_authority_that_is_not_trusted_is_refused(broker: ScriptedBroker) -> None:
    name = "ssl_endpoint_identification_algorithm"
    for changed in ({}, {name: ""}):
        with pytest.raises(SecurityError, match="certificate is not trusted"):
            connect(broker, "localhost", None, **changed)
    assert not broker.asked


def test_an_address_that_hangs_up_on_tls_is_not_the_last(
    broker: ScriptedBroker, certificates: Certificates
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as other:

        def resolve(_host: str, _port: int) -> list[Any]:
            found = [other.getsockname(), ("127.0.0.1", broker.port)]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in found]

        hanging_up = threading.Thread(target=lambda: other.accept()[0].close(), daemon=True)
        hanging_up.start()
        settings = properties(f"localhost:{broker.port}", security_protocol="SSL")
        config = replace(
            ClientConfig.from_properties(
                {**settings, "ssl.truststore.location": str(certificates.authority)}
            ),
            resolver=resolve,
            connection_attempt_delay_ms=-1,
        )
        # The certificate's name is the host's, whichever address answers.
        assert not Connection.open("localhost", broker.port, config).closed
        hanging_up.join(60)
