"""TLS against local listeners: trust, client certificates, files, and the error of each mistake."""

from __future__ import annotations

import datetime
import logging
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate
from support.brokers.scripted_broker import properties
from support.brokers.tls_server import PASSWORD, greet, server, wanting_client
from support.forked_child import holds_in_forked_child

from spark_kafka_native.kafka.config.client_config import ClientConfig, SecurityConfig, SecurityProtocol
from spark_kafka_native.kafka.errors import AuthenticationError, ConfigError, KafkaError, SecurityError
from spark_kafka_native.kafka.network import handshake
from spark_kafka_native.kafka.network.transport import Transport
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.security import config_providers, tls
from spark_kafka_native.kafka.security.tls import tls_context
from spark_kafka_native.pem import private_file

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC)


def test_a_trusted_broker_is_greeted_under_its_name(
    listen: Any, authority: trustme.CA, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *a, **k: found(host.rstrip("."), *a, **k))
    listener = listen(server(authority))
    greet(listener, folder)
    greet(listener, folder, host="localhost.")  # many resolvers take it, certificates never carry it
    greet(listener, folder, host="127.0.0.1")
    assert listener.server_names == ["localhost", "localhost", None]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_waits_for_certificates_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else OpenSSL's locks, held by another thread of the parent, are never released in the child."""
    begun, release, read = threading.Event(), threading.Event(), list[bool]()
    made = ssl.create_default_context()

    def create() -> ssl.SSLContext:
        begun.set()
        release.wait(0.2)
        read.append(True)
        return made

    monkeypatch.setattr(ssl, "create_default_context", create)
    monkeypatch.setattr(tls, "_build", tls._build.__wrapped__)
    thread = threading.Thread(target=tls_context, args=(SecurityConfig(protocol=SecurityProtocol.SSL),))
    thread.start()
    assert begun.wait(20)
    assert holds_in_forked_child(lambda: read == [True])
    thread.join()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"not_before": NOW - 9 * DAY, "not_after": NOW - DAY}, "certificate has expired"),
        ({"not_before": NOW + DAY, "not_after": NOW + 9 * DAY}, "certificate is not yet valid"),
    ],
)
def test_a_certificate_out_of_its_time_is_refused(
    listen: Any, authority: trustme.CA, folder: Path, options: Any, says: str
) -> None:
    with pytest.raises(
        SecurityError, match=rf"localhost:\d+: the broker's certificate is not trusted: {says}"
    ):
        greet(listen(server(authority, **options)), folder)


def test_a_certificate_for_another_host_is_refused(listen: Any, authority: trustme.CA, folder: Path) -> None:
    with pytest.raises(SecurityError, match="Hostname mismatch, certificate is not valid for 'localhost'"):
        greet(listen(server(authority, "kafka.example.org")), folder)
    with pytest.raises(SecurityError, match="IP address mismatch"):
        greet(listen(server(authority, "localhost")), folder, host="127.0.0.1")


def test_a_certificate_of_an_unknown_authority_is_refused(listen: Any, folder: Path) -> None:
    with pytest.raises(SecurityError, match=r"not trusted: (unable to get local issuer|self-signed)"):
        greet(listen(server(trustme.CA())), folder)


def test_each_certificate_of_a_truststore_is_trusted(
    listen: Any, authority: trustme.CA, folder: Path
) -> None:
    """As in Java: an intermediate authority without its root, or a broker's own certificate."""
    between = authority.create_child_ca()
    broker = between.issue_cert("localhost")
    listener = listen(broker.configure_cert)
    for trusted in (between.cert_pem, broker.cert_chain_pems[0]):
        text = trusted.bytes().decode()
        for known in (text, text.replace("CERTIFICATE-----", "X509 CERTIFICATE-----")):
            greet(listener, folder, ssl_truststore_certificates=known)
    other = between.issue_cert("localhost").cert_chain_pems[0], authority.create_child_ca().cert_pem
    for trusted in other:
        with pytest.raises(SecurityError, match="not trusted"):
            greet(listener, folder, ssl_truststore_certificates=trusted.bytes().decode())


@pytest.mark.parametrize(("with_chain", "trusted"), [(False, [True, False]), (True, [True, True])])
def test_a_store_with_a_key_may_be_the_truststore(
    listen: Any, authority: trustme.CA, folder: Path, tmp_path: Path, with_chain: bool, trusted: list[bool]
) -> None:
    """As the keystore of a broker, copied: its own certificate is trusted, and those of its chain."""
    between = authority.create_child_ca()
    broker, other = between.issue_cert("localhost"), between.issue_cert("localhost")
    leaf, *chain = (load_pem_x509_certificate(blob.bytes()) for blob in broker.cert_chain_pems)
    key: Any = load_pem_private_key(broker.private_key_pem.bytes(), None)
    others = chain if with_chain else None
    content = pkcs12.serialize_key_and_certificates(b"broker", key, leaf, others, NoEncryption())
    (tmp_path / "broker.p12").write_bytes(content)
    for certificate, is_trusted in zip((broker, other), trusted, strict=True):
        listener = listen(certificate.configure_cert)
        if is_trusted:
            greet(listener, folder, ssl_truststore_location=tmp_path / "broker.p12")
        else:
            with pytest.raises(SecurityError, match="not trusted"):
                greet(listener, folder, ssl_truststore_location=tmp_path / "broker.p12")


def test_a_given_truststore_replaces_the_systems(
    listen: Any, authority: trustme.CA, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SecurityError, match="not trusted"):
        greet(listen(server(authority)), folder, ssl_truststore_location=None)
    public = trustme.CA()
    public.cert_pem.write_to_path(tmp_path / "system.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "system.pem"))
    monkeypatch.setattr(tls, "_build", tls._build.__wrapped__)  # it remembers contexts
    greet(listen(server(public)), folder, ssl_truststore_location=None)
    with pytest.raises(SecurityError, match="not trusted"):
        greet(listen(server(public)), folder)


def test_a_self_signed_certificate_is_refused(listen: Any, folder: Path, tmp_path: Path) -> None:
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(tmp_path / "k"), "-out", str(tmp_path / "c"), "-nodes", "-days", "2"]
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", *files, *subject], capture_output=True
    )
    if made.returncode:
        pytest.skip("no openssl here")
    listener = listen(lambda context: context.load_cert_chain(tmp_path / "c", tmp_path / "k"))
    with pytest.raises(SecurityError, match="self-signed certificate"):
        greet(listener, folder)


def test_only_the_name_check_goes_with_an_empty_algorithm(
    listen: Any, authority: trustme.CA, folder: Path
) -> None:
    greet(listen(server(authority, "other")), folder, ssl_endpoint_identification_algorithm="")
    with pytest.raises(SecurityError, match="not trusted"):
        greet(listen(server(trustme.CA(), "other")), folder, ssl_endpoint_identification_algorithm="")


def test_without_verification_any_certificate_is_accepted(listen: Any, folder: Path) -> None:
    greet(listen(server(trustme.CA(), "other")), folder, enable_ssl_certificate_verification="false")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"enable_ssl_certificate_verification": "false"}, "ANY certificate is accepted"),
        ({"ssl_endpoint_identification_algorithm": ""}, "may be for any host name"),
        ({"security_protocol": "PLAINTEXT", "sasl_mechanism": "PLAIN"}, "sasl.mechanism=PLAIN does nothing"),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_username": "a",
                "sasl_password": "b",
            },
            "everybody on the way can read and use",
        ),
    ],
)
def test_settings_that_weaken_the_protection_are_warned_of_at_every_start(
    caplog: pytest.LogCaptureFixture, given: dict[str, str], says: str
) -> None:
    security = ClientConfig.from_properties(
        properties("a:1", **{"security_protocol": "SSL"} | given)
    ).security
    handshake.warn_of.cache_clear()  # a new process
    with caplog.at_level(logging.WARNING):
        handshake.warn_of(security)
        handshake.warn_of(security)
    assert caplog.text.count(says) == 1


def test_the_defaults_warn_of_nothing() -> None:
    for protocol in ("PLAINTEXT", "SSL"):
        config = ClientConfig.from_properties(properties("a:1", security_protocol=protocol))
        assert config.security.warnings == ()


IDENTITIES = {
    "one file": {"ssl_keystore_location": "both.pem"},
    "two files": {"ssl_certificate_location": "chain.pem", "ssl_key_location": "key.pem"},
    "encrypted": {"ssl_keystore_location": "locked.pem", "ssl_key_password": PASSWORD},
    "PKCS12": {"ssl_keystore_location": "store.p12", "ssl_keystore_password": PASSWORD},
    "PKCS12 by type": {
        "ssl_keystore_location": "store.p12",
        "ssl_keystore_type": "pkcs12",
        "ssl_keystore_password": PASSWORD,
    },
    "PKCS12 trust": {
        "ssl_keystore_location": "both.pem",
        "ssl_truststore_location": "trust.p12",
        "ssl_truststore_password": PASSWORD,
    },
}


@pytest.mark.parametrize("given", IDENTITIES.values(), ids=IDENTITIES)
def test_a_client_certificate_is_shown(
    listen: Any, authority: trustme.CA, folder: Path, given: dict[str, str]
) -> None:
    listener = listen(wanting_client(authority))
    located = {name: folder / value if "location" in name else value for name, value in given.items()}
    greet(listener, folder, **located)
    assert dict(pair[0] for pair in listener.clients[0]["subject"])["commonName"] == "client"


@pytest.mark.parametrize("name", ["PKCS12", "PKCS12 trust", "encrypted"])
def test_passwords_of_stores_and_keys_may_be_references(
    listen: Any, authority: trustme.CA, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("STORE_PASSWORD", PASSWORD)
    listener = listen(wanting_client(authority))
    given = {
        setting: "env:STORE_PASSWORD" if value == PASSWORD else folder / value
        for setting, value in IDENTITIES[name].items()
    }
    greet(listener, folder, **given)
    assert len(listener.clients) == 1


def test_pem_may_have_blanks_for_line_breaks(listen: Any, authority: trustme.CA, folder: Path) -> None:
    """As a continued line of a .properties file has them."""
    listener = listen(wanting_client(authority))
    for blank in (" ", "", "  \n\n\t"):
        locked = (folder / "locked.pem").read_text().replace("\n", blank)
        key, mark, chain = locked.partition("-----BEGIN CERTIFICATE-----")
        inline = {
            "ssl_truststore_certificates": (folder / "ca.pem").read_text().replace("\n", blank),
            "ssl_keystore_certificate_chain": mark + chain,
            "ssl_keystore_key": key,
            "ssl_key_password": PASSWORD,
        }
        greet(listener, folder, **inline)
    assert len(listener.clients) == 3


def test_a_certificate_that_is_not_ascii_is_refused(authority: trustme.CA) -> None:
    pem = authority.cert_pem.bytes().decode().replace("MII", "é", 1)
    given = properties("a:1", security_protocol="SSL", ssl_truststore_certificates=pem)
    with pytest.raises(ConfigError, match="no certificate that can be read"):
        tls_context(ClientConfig.from_properties(given).security)


def test_the_headers_of_an_encrypted_key_stay(listen: Any, authority: trustme.CA, folder: Path) -> None:
    key = load_pem_private_key((folder / "key.pem").read_bytes(), None)
    given = key.private_bytes(
        Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(PASSWORD.encode())
    ).decode()
    assert "DEK-Info: " in given
    listener = listen(wanting_client(authority))
    chain = (folder / "chain.pem").read_text()
    for text in (given, given.replace("\n", " "), given.replace("\n", "\r\n")):
        inline = {"ssl_keystore_certificate_chain": chain, "ssl_keystore_key": text}
        greet(listener, folder, **inline, ssl_key_password=PASSWORD)
    assert len(listener.clients) == 3


@pytest.mark.parametrize("name", ["ssl_keystore_key", "ssl_keystore_key_secret", "ssl_key_pem"])
def test_inline_pem_and_references(listen: Any, authority: trustme.CA, folder: Path, name: str) -> None:
    listener = listen(wanting_client(authority))
    inline = {
        "ssl_truststore_certificates": "Bag Attributes\n" + (folder / "ca.pem").read_text() + "trailing text",
        "ssl_keystore_certificate_chain": (folder / "chain.pem").read_text(),
        name: (folder / "key.pem").read_text(),
    }
    greet(listener, folder, **inline)
    greet(
        listener,
        folder,
        **inline
        | {
            name: f"file:{folder / 'key.pem'}",
            "ssl_truststore_certificates": f"file:{folder / 'ca.pem'}",
            "ssl_keystore_certificate_chain": f"file:{folder / 'chain.pem'}",
        },
    )
    assert len(listener.clients) == 2


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
@pytest.mark.parametrize("shown", [None, "foreign"])
def test_a_missing_or_foreign_client_certificate_is_an_authentication_error(
    listen: Any, authority: trustme.CA, folder: Path, tmp_path: Path, version: str, shown: str | None
) -> None:
    def prepare(context: ssl.SSLContext) -> None:
        wanting_client(authority)(context)
        context.maximum_version = ssl.TLSVersion[version]

    given = {}
    if shown:
        foreign = trustme.CA().issue_cert("x@example.org")
        chain = b"".join(blob.bytes() for blob in foreign.cert_chain_pems)
        (tmp_path / "foreign.pem").write_bytes(foreign.private_key_pem.bytes() + chain)
        given = {"ssl_keystore_location": tmp_path / "foreign.pem"}
    # OpenSSL 1.2 servers report a missing certificate as a handshake failure.
    with pytest.raises(SecurityError, match=r"refused the client's certificate|handshake failure") as caught:
        greet(listen(prepare), folder, **given)
    if version == "TLSv1_3":
        assert isinstance(caught.value, AuthenticationError)
        assert "ssl.keystore.location" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ssl_keystore_location": "locked.pem"}, "the key is encrypted: set ssl.key.password"),
        ({"ssl_keystore_location": "locked.pem", "ssl_key_password": "wrong"}, "ssl.key.password is wrong"),
        (
            {"ssl_keystore_location": "locked.pem", "ssl_key_password": "x" * 2000},
            "ssl.key.password is wrong",
        ),
        ({"ssl_keystore_location": "mismatch.pem"}, "the private key is not the certificate's"),
        ({"ssl_keystore_location": "chain.pem"}, "must hold a private key and its certificate chain"),
        (
            {"ssl_keystore_location": "chain.pem", "ssl_key_password": PASSWORD},
            "must hold a private key and its certificate chain",
        ),
        ({"ssl_keystore_location": "key.pem"}, "must hold a private key and its certificate chain"),
        ({"ssl_keystore_location": "none.pem"}, "none.pem on .* can't be read"),
        (
            {"ssl_certificate_location": "chain.pem", "ssl_key_location": "none.pem"},
            "ssl.key.location: .*none.pem",
        ),
        ({"ssl_truststore_location": "key.pem"}, "no certificate that can be read"),
        ({"ssl_truststore_location": "store.p12"}, "not a PKCS12 store that this password opens"),
        (
            {"ssl_keystore_location": "store.p12", "ssl_keystore_password": "wrong"},
            "not a PKCS12 store that this",
        ),
        ({"ssl_keystore_location": "trust.p12", "ssl_keystore_password": PASSWORD}, "holds no private key"),
        (
            {"ssl_keystore_location": "store.p12", "ssl_keystore_type": "PEM"},
            r"not PEM that can be used \(not a text",
        ),
    ],
)
def test_unusable_files_are_named_and_never_shown(folder: Path, given: dict[str, str], says: str) -> None:
    located = {name: folder / value if "location" in name else value for name, value in given.items()}
    config = ClientConfig.from_properties(properties("a:1", security_protocol="SSL", **located))
    with pytest.raises(ConfigError, match=says) as caught:
        tls_context(config.security)
    shown = str(caught.value)
    assert PASSWORD not in shown
    assert "PRIVATE KEY" not in shown


def test_a_store_shows_the_authorities_between_its_certificate_and_the_trusted_one(
    listen: Any, authority: trustme.CA, folder: Path, tmp_path: Path
) -> None:
    """A broker that trusts the root alone can't verify the certificate without them."""
    between = authority.create_child_ca()
    client = between.issue_cert("client@example.org", common_name="client")
    leaf, *others = (load_pem_x509_certificate(blob.bytes()) for blob in client.cert_chain_pems)
    key: Any = load_pem_private_key(client.private_key_pem.bytes(), None)
    content = pkcs12.serialize_key_and_certificates(b"client", key, leaf, others, NoEncryption())
    (tmp_path / "client.p12").write_bytes(content)
    listener = listen(wanting_client(authority))
    greet(listener, folder, ssl_keystore_location=tmp_path / "client.p12")
    assert dict(pair[0] for pair in listener.clients[0]["subject"])["commonName"] == "client"
    assert others


def test_a_wrong_passphrase_does_not_ask_at_the_terminal(folder: Path) -> None:
    program = (
        "from spark_kafka_native.kafka.config.security_config import SecurityConfig\n"
        "from spark_kafka_native.kafka.security.tls import tls_context\n"
        f"tls_context(SecurityConfig(keystore_location={str(folder / 'locked.pem')!r}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert "set ssl.key.password" in ran.stderr
    assert "Enter PEM pass phrase" not in ran.stdout + ran.stderr


def test_without_cryptography_the_pkcs12_error_has_the_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    given = {"security_protocol": "SSL", "ssl_keystore_location": folder / "store.p12"}
    with pytest.raises(ConfigError, match="pip install cryptography, or convert it to PEM: openssl pkcs12"):
        tls_context(ClientConfig.from_properties(properties("a:1", **given)).security)


@pytest.mark.parametrize("name", ["truststore", "keystore"])
@pytest.mark.parametrize("given", [{"location": "/etc/my.jks"}, {"location": "/etc/my", "type": "JKS"}])
def test_a_java_keystore_is_refused_with_the_conversion(name: str, given: dict[str, str]) -> None:
    names = {f"ssl.{name}.{part}": value for part, value in given.items()}
    with pytest.raises(ConfigError) as caught:
        ClientConfig.from_properties(dict(properties("a:1")) | names | {"security.protocol": "SSL"})
    location = given["location"]
    assert (
        f"keytool -importkeystore -srckeystore {location} -destkeystore {name}.p12 -deststoretype "
        f"PKCS12, then "
        f"openssl pkcs12 -in {name}.p12 -out {name}.pem -nodes"
    ) in str(caught.value)


@pytest.mark.parametrize("length", [b"\x80", b"\x81\n", b"\x82\n\n", b"\x82\x0a\x11", b"\x83\0\n\r"])
def test_pkcs12_of_any_length_is_known_by_its_content(length: bytes) -> None:
    """A byte of the length may be that of a line break."""
    content = b"\x30" + length + b"\x02\x01\x03and so on"
    assert tls._is_pkcs12("ssl.keystore.location", "a.keystore", "JKS", content)
    with pytest.raises(ConfigError):
        tls._is_pkcs12("ssl.keystore.location", "a.keystore", "JKS", content.replace(b"\x03", b"\x04"))


@pytest.mark.parametrize("name", ["truststore", "keystore"])
@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_pem_under_another_type_is_an_error_that_names_the_type(
    tmp_path: Path, authority: trustme.CA, name: str, kind: str
) -> None:
    """As with ``-X ssl.ca.location=ca.pem`` over a file for Java."""
    location = tmp_path / "any"
    location.write_bytes(b"# Ours\n" + authority.cert_pem.bytes())
    given = {"security_protocol": "SSL", f"ssl_{name}_location": location, f"ssl_{name}_type": kind}
    security = ClientConfig.from_properties(properties("a:1", **given)).security
    with pytest.raises(ConfigError) as caught:
        tls_context(security)
    assert str(caught.value) == (
        f"ssl.{name}.location: {location} is PEM, not {kind}: ssl.{name}.type must be PEM"
    )


@pytest.mark.parametrize("name", ["a.jks", "a.keystore"])
@pytest.mark.parametrize("kind", [{}, {"ssl_keystore_type": "JKS", "ssl_truststore_type": "JKS"}])
def test_a_store_that_java_names_as_it_likes_is_read_by_its_content(
    listen: Any, authority: trustme.CA, folder: Path, tmp_path: Path, name: str, kind: dict[str, str]
) -> None:
    """keytool writes PKCS12 since Java 9, and Java reads it with ssl.keystore.type=JKS, too."""
    given: dict[str, Any] = dict(kind)
    for store, source in (("keystore", "store.p12"), ("truststore", "trust.p12")):
        (tmp_path / store).mkdir()
        (tmp_path / store / name).write_bytes((folder / source).read_bytes())
        given |= {f"ssl_{store}_location": tmp_path / store / name, f"ssl_{store}_password": PASSWORD}
    listener = listen(wanting_client(authority))
    greet(listener, folder, **given)
    assert len(listener.clients) == 1
    for store in ("keystore", "truststore"):
        content = (tmp_path / store / name).read_bytes()
        for magic in (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"):
            (tmp_path / store / name).write_bytes(magic + bytes(100))
            with pytest.raises(ConfigError, match=f"ssl.{store}.location=.*{name} is a Java keystore"):
                greet(listener, folder, **given)
        (tmp_path / store / name).write_bytes(content)


def test_a_certificate_in_der_is_no_pkcs12(authority: trustme.CA, tmp_path: Path) -> None:
    der = ssl.PEM_cert_to_DER_cert(authority.cert_pem.bytes().decode())
    (tmp_path / "ca.cer").write_bytes(der)
    given = properties("a:1", security_protocol="SSL", ssl_truststore_location=tmp_path / "ca.cer")
    with pytest.raises(ConfigError, match="not PEM that can be used"):
        tls_context(ClientConfig.from_properties(given).security)


def test_rotated_files_count_at_the_next_connect(listen: Any, authority: trustme.CA, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(ca))
    listener = listen(server(authority))
    config = ClientConfig.from_properties(
        properties("a:1", security_protocol="SSL", ssl_truststore_location=ca)
    )
    with pytest.raises(SecurityError, match="not trusted"):
        greet(listener, tmp_path)
    authority.cert_pem.write_to_path(str(ca))
    greet(listener, tmp_path)
    # A context is built once for as long as nothing changes.
    assert tls_context(config.security) is tls_context(config.security)


def test_only_allowed_files_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(config_providers.ALLOWED_FILES, str(folder / "sub"))
    for name in ("ssl_truststore_location", "ssl_keystore_location", "ssl_certificate_location"):
        given = {"security_protocol": "SSL", name: folder / "both.pem"}
        with pytest.raises(
            ConfigError, match=rf"{name.replace('_', '.')}: .* is not among PYKAFKA_ALLOWED_FILES"
        ):
            tls_context(ClientConfig.from_properties(properties("a:1", **given)).security)


def test_a_key_is_never_written_to_a_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(os, "memfd_create"):
        pytest.skip("files in memory are Linux's")
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda *_a, **_k: pytest.fail("a file was made"))
    tls._build.cache_clear()
    given = {"security_protocol": "SSL", "ssl_keystore_location": folder / "both.pem"}
    tls_context(ClientConfig.from_properties(properties("a:1", **given)).security)


def test_without_files_in_memory_a_private_one_is_gone_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tls._build.cache_clear()
    given = {"security_protocol": "SSL", "ssl_keystore_location": folder / "both.pem"}
    tls_context(ClientConfig.from_properties(properties("a:1", **given)).security)
    assert list(tmp_path.iterdir()) == []
    with private_file("key") as path:
        modes = [found.stat().st_mode & 0o777 for found in (Path(path), Path(path).parent)]
    assert modes == [0o600, 0o700]
    assert list(tmp_path.iterdir()) == []


def test_a_tls_client_on_a_plain_port_gets_the_reason(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:
        port = plain.getsockname()[1]

        def answer() -> None:
            accepted, _ = plain.accept()
            accepted.recv(100)
            accepted.sendall(b"\0\0\0\x04none")
            accepted.close()

        threading.Thread(target=answer, daemon=True).start()
        config = ClientConfig.from_properties(properties("a:1", security_protocol="SSL"))
        with pytest.raises(
            SecurityError, match=r"does not speak TLS; set .*PLAINTEXT \(with SASL: SASL_PLAINTEXT\)"
        ):
            Transport.connect("127.0.0.1", port, config, Deadline.after_ms(60_000))


def test_a_stream_that_is_cut_without_a_goodbye_is_an_error(
    listen: Any, authority: trustme.CA, folder: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server(authority)(context)

        def cut() -> None:
            accepted, _ = plain.accept()
            encrypted = context.wrap_socket(accepted, server_side=True)
            encrypted.sendall(b"\0\0")
            socket.socket.shutdown(encrypted, socket.SHUT_RDWR)  # no close_notify

        threading.Thread(target=cut, daemon=True).start()
        names = {"security_protocol": "SSL", "ssl_truststore_location": folder / "ca.pem"}
        config = ClientConfig.from_properties(properties("a:1", **names))
        limit = Deadline.after_ms(60_000)
        transport = Transport.connect("localhost", plain.getsockname()[1], config, limit)

        def read_on() -> None:
            while not limit.expired:
                transport.read_into(memoryview(bytearray(4)))
                transport.wait(transport.read_waits_for, limit)

        with pytest.raises(KafkaError, match=r"closed the connection|connection lost while reading"):
            read_on()
        transport.close()


def test_properties_of_tls_on_an_open_connection_are_warned_of() -> None:
    for protocol, better in (("PLAINTEXT", "SSL"), ("SASL_PLAINTEXT", "SASL_SSL")):
        config = SecurityConfig.from_properties(
            {
                "security.protocol": protocol,
                "ssl.ca.location": "/ca.pem",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "a",
                "sasl.password": "b",
            }
        )
        assert any(
            "ssl.truststore.location without effect" in warning and warning.endswith(f"set {better}")
            for warning in config.warnings
        )
    encrypted = {"security.protocol": "SSL", "ssl.ca.location": "/ca.pem"}
    assert SecurityConfig.from_properties(encrypted).warnings == ()
