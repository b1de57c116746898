"""Registries over TLS: which certificates are trusted, and ours for those that ask for one."""

import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from support.http_server import serving

from spark_kafka_native.formats.registry import RegistryError, SchemaRegistry, registry_client

_BODY = b'{"schema": "\\"int\\""}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(_BODY) + _BODY


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_client, "_ROUNDS", 1)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@contextmanager
def secure(authority: trustme.CA, *, asks_for_certificate: bool = False) -> Iterator[str]:
    """The URL of a server that answers one request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    if asks_for_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                connection, _ = server.accept()
                with connection, context.wrap_socket(connection, server_side=True) as secured:
                    secured.recv(65536)
                    secured.sendall(ANSWER)
            except (OSError, ssl.SSLError):
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://localhost:{server.getsockname()[1]}"
        finally:
            thread.join()


def asked(url: str, **settings: str) -> SchemaRegistry:
    given = {"registry.url": url} | {
        f"registry.{name.replace('_', '.')}": text for name, text in settings.items()
    }
    registry = SchemaRegistry.from_settings(given)
    assert registry is not None
    return registry


def pem(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


def test_an_authority_of_ones_own(authority: trustme.CA) -> None:
    with secure(authority) as url:
        login = {"user": "me", "password": "s3cr3t"}
        assert asked(url, ssl_ca=pem(authority), **login).schema(1).text == '"int"'


@pytest.mark.parametrize("before", ["# Főtanúsítvány\n", "\ufeff"], ids=["comment", "byte order mark"])
def test_authorities_with_text_between_them(authority: trustme.CA, before: str) -> None:
    context = registry_client.parse_client(
        {"registry.url": "https://h", "registry.ssl.ca": before + pem(authority) + before}
    ).tls
    assert context is not None
    assert len(context.get_ca_certs()) == 1


def test_authorities_that_can_not_be_read(authority: trustme.CA) -> None:
    for given in ("", "ő", pem(authority).replace("MII", "é", 1)):
        with pytest.raises(RegistryError, match=r"registry\.ssl\.ca holds no PEM certificate"):
            asked("https://h", ssl_ca=given)


@pytest.mark.parametrize("other", [True, False])
def test_a_certificate_that_is_not_trusted(authority: trustme.CA, other: bool) -> None:
    given = {"ssl_ca": pem(trustme.CA())} if other else {}
    with secure(authority) as url, pytest.raises(RegistryError, match="certificate is not trusted"):
        asked(url, **given).schema(1)


def test_a_certificate_of_another_host(authority: trustme.CA) -> None:
    with secure(authority) as url, pytest.raises(RegistryError, match="certificate is not trusted"):
        asked(url.replace("localhost", "127.0.0.1"), ssl_ca=pem(authority)).schema(1)


def test_a_registry_that_asks_for_a_certificate(authority: trustme.CA) -> None:
    own = authority.issue_cert("client")
    key, chain = own.private_key_pem.bytes().decode(), own.cert_chain_pems[0].bytes().decode()
    with secure(authority, asks_for_certificate=True) as url:
        registry = asked(url, ssl_ca=pem(authority), ssl_key=key, ssl_certificate=chain)
        assert registry.schema(1).text == '"int"'
    with (
        secure(authority, asks_for_certificate=True) as url,
        pytest.raises(RegistryError, match="schema with id 1"),
    ):
        asked(url, ssl_ca=pem(authority)).schema(1)


def test_a_certificate_of_ones_own_goes_with_the_authorities_of_the_system(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "authorities.pem"
    path.write_bytes(authority.cert_pem.bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    own = authority.issue_cert("client")
    key, chain = own.private_key_pem.bytes().decode(), own.cert_chain_pems[0].bytes().decode()
    with secure(authority, asks_for_certificate=True) as url:
        assert asked(url, ssl_key=key, ssl_certificate=chain).schema(1).text == '"int"'
    # An authority of one's own replaces them: no other one vouches for this registry.
    with secure(authority) as url, pytest.raises(RegistryError, match="certificate is not trusted"):
        asked(url, ssl_ca=pem(trustme.CA())).schema(1)


def test_a_registry_is_asked_with_tls_of_today(authority: trustme.CA) -> None:
    found = registry_client.parse_client({"registry.url": "https://h", "registry.ssl.ca": pem(authority)})
    assert found.tls is not None
    assert found.tls.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert (found.tls.verify_mode, found.tls.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_certificates_are_for_the_urls_that_are_secure(authority: trustme.CA) -> None:
    """A registry may have nodes of both kinds."""
    with serving(lambda _: (200, {}, {"schema": '"int"'})) as served:
        assert asked(served.url, ssl_ca=pem(authority)).schema(1).text == '"int"'


def test_a_key_may_have_blanks_for_line_breaks(authority: trustme.CA) -> None:
    """As a continued line of a .properties file has them, and as brokers take it."""
    own = authority.issue_cert("client")
    key, chain = own.private_key_pem.bytes().decode(), own.cert_chain_pems[0].bytes().decode()
    with secure(authority, asks_for_certificate=True) as url:
        in_a_line = {"ssl_key": key.replace("\n", " "), "ssl_certificate": chain.replace("\n", " ")}
        assert asked(url, ssl_ca=pem(authority), **in_a_line).schema(1).text == '"int"'


def test_an_authority_without_its_root() -> None:
    """As brokers take it."""
    middle = trustme.CA().create_child_ca()
    with secure(middle) as url:
        assert asked(url, ssl_ca=pem(middle)).schema(1).text == '"int"'


def test_a_key_does_not_stay_in_a_file(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = authority.issue_cert("client")
    key, chain = own.private_key_pem.bytes().decode(), own.cert_chain_pems[0].bytes().decode()
    asked("https://of.a.key", ssl_key=key, ssl_certificate=chain)
    with pytest.raises(RegistryError, match="must be PEM"):
        asked("https://of.a.key", ssl_key=key, ssl_certificate="none")
    assert list(tmp_path.iterdir()) == []


def test_an_encrypted_key(authority: trustme.CA) -> None:
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    own = authority.issue_cert("client")
    plain = serialization.load_pem_private_key(own.private_key_pem.bytes(), None)
    locked = plain.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"s3cr3t"),
    ).decode()
    chain = own.cert_chain_pems[0].bytes().decode()
    with pytest.raises(RegistryError, match=r"set registry\.ssl\.keyPassword"):
        asked("https://h", ssl_key=locked, ssl_certificate=chain)
    with pytest.raises(RegistryError, match="must be PEM") as raised:
        asked("https://h", ssl_key=locked, ssl_certificate=chain, ssl_keypassword="s3cr3t-not")
    assert "s3cr3t" not in str(raised.value)
    with secure(authority, asks_for_certificate=True) as url:
        given = {
            "ssl_ca": pem(authority),
            "ssl_key": locked,
            "ssl_certificate": chain,
            "ssl_keypassword": "s3cr3t",
        }
        assert asked(url, **given).schema(1).text == '"int"'
