"""TLS versions, cipher suites and key sizes: the allowed ones are used, and all others refused."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from support.brokers.scripted_broker import properties
from support.brokers.tls_server import greet, server

from spark_kafka_native.kafka.config.client_config import ClientConfig, SecurityConfig
from spark_kafka_native.kafka.errors import ConfigError, KafkaError, SecurityError
from spark_kafka_native.kafka.network.transport import Transport
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.security.tls import tls_context

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_broker_that_speaks_only_old_tls_is_refused(
    listen: Any, authority: trustme.CA, folder: Path, version: ssl.TLSVersion
) -> None:
    def prepare(context: ssl.SSLContext) -> None:
        server(authority)(context)
        context.minimum_version = context.maximum_version = version
        context.set_ciphers("ALL:@SECLEVEL=0")

    with pytest.raises(KafkaError, match=r"TLS handshake failed|during the TLS handshake"):
        greet(listen(prepare), folder)


@pytest.mark.parametrize(
    ("asked", "spoken", "works"),
    [
        ("TLSv1.3", "TLSv1_2", False),
        ("TLSv1.2", "TLSv1_3", False),
        ("TLSv1.2", "TLSv1_2", True),
        ("TLSv1.2,TLSv1.3", "TLSv1_3", True),
    ],
)
def test_enabled_protocols_are_obeyed(
    listen: Any, authority: trustme.CA, folder: Path, asked: str, spoken: str, works: bool
) -> None:
    def prepare(context: ssl.SSLContext) -> None:
        server(authority)(context)
        context.minimum_version = context.maximum_version = ssl.TLSVersion[spoken]

    listener = listen(prepare)
    if works:
        greet(listener, folder, ssl_enabled_protocols=asked)
        return
    with pytest.raises(KafkaError, match=r"TLS handshake failed|during the TLS handshake"):
        greet(listener, folder, ssl_enabled_protocols=asked)


def test_a_broker_with_no_cipher_in_common_is_refused(
    listen: Any, authority: trustme.CA, folder: Path
) -> None:
    def prepare(context: ssl.SSLContext) -> None:
        server(authority)(context)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0")

    # Named explicitly: the default ciphers depend on the build of Python.
    ciphers = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    with pytest.raises(SecurityError, match=r"TLS handshake failed: .*handshake failure"):
        greet(listen(prepare), folder, ssl_cipher_suites=ciphers)


def test_a_key_that_is_too_weak_is_refused(listen: Any, folder: Path, tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 7, NOW - DAY, NOW + DAY)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "weak.pem").write_bytes(plain + certificate.public_bytes(pem))

    def prepare(context: ssl.SSLContext) -> None:
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.load_cert_chain(tmp_path / "weak.pem")

    with pytest.raises(SecurityError, match="key too weak"):
        greet(listen(prepare), folder, ssl_truststore_location=tmp_path / "weak.pem")


@pytest.mark.parametrize(
    ("suites", "version", "cipher"),
    [
        ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384", "TLSv1.2", "ECDHE-ECDSA-AES256-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_AES_128_GCM_SHA256", "TLSv1.3", None),
        ("TLS_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLSv1.3", None),
    ],
)
def test_chosen_cipher_suites_are_spoken_and_no_others(
    listen: Any, authority: trustme.CA, folder: Path, suites: str, version: str, cipher: str | None
) -> None:
    listener = listen(server(authority, key_type=trustme.KeyType.ECDSA))
    config = ClientConfig.from_properties(
        properties(
            "a:1",
            security_protocol="SSL",
            ssl_truststore_location=folder / "ca.pem",
            ssl_cipher_suites=suites,
        )
    )
    transport = Transport.connect("localhost", listener.port, config, Deadline.after_ms(60_000))
    spoken: ssl.SSLSocket = transport._socket  # type: ignore[assignment]
    assert spoken.version() == version
    assert cipher is None or spoken.cipher()[0] == cipher  # type: ignore[index]
    transport.close()


@pytest.mark.parametrize(
    ("suites", "versions", "says"),
    [
        (
            "TLS_RSA_WITH_RC4_128_MD5",
            "TLSv1.2",
            "TLS_RSA_WITH_RC4_128_MD5 is not a cipher suite that this client has",
        ),
        ("ECDHE-RSA-AES128-GCM-SHA256,aNULL", "TLSv1.2", "aNULL is not a cipher suite"),
        ("ALL:!DH", "TLSv1.2", "must be names of cipher suites"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "TLSv1.3", "has none for the versions in ssl.enabled.protocols"),
        ("TLS_AES_128_GCM_SHA256", "TLSv1.2", "has none for the versions in ssl.enabled.protocols"),
    ],
)
def test_cipher_suites_that_can_not_be_chosen_are_named(suites: str, versions: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tls_context(
            SecurityConfig.from_properties(
                {"ssl.cipher.suites": suites, "ssl.enabled.protocols": versions, "security.protocol": "SSL"}
            )
        )
