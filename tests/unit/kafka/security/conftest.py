"""A certificate authority, a folder of its certificates and keys, and TLS listeners."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509 import load_pem_x509_certificate
from support.brokers.tls_server import PASSWORD, Listener


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def folder(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    authority.cert_pem.write_to_path(str(made / "ca.pem"))
    client = authority.issue_cert("client@example.org", common_name="client")
    chain = b"".join(blob.bytes() for blob in client.cert_chain_pems)
    key = serialization.load_pem_private_key(client.private_key_pem.bytes(), None)
    plain = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    locked = serialization.BestAvailableEncryption(PASSWORD.encode())
    (made / "chain.pem").write_bytes(chain)
    (made / "key.pem").write_bytes(plain)
    (made / "both.pem").write_bytes(plain + chain)
    (made / "locked.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked) + chain
    )
    other = authority.issue_cert("other@example.org")
    (made / "mismatch.pem").write_bytes(other.private_key_pem.bytes() + chain)
    (made / "store.p12").write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"client",
            key,
            load_pem_x509_certificate(chain),
            None,
            locked,  # type: ignore[arg-type]
        )
    )
    ca = load_pem_x509_certificate(authority.cert_pem.bytes())
    (made / "trust.p12").write_bytes(
        pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(ca, b"ca")], locked)
    )
    return made


@pytest.fixture
def listen() -> Iterator[Callable[..., Listener]]:
    made: list[Listener] = []

    def start(prepare: Callable[[ssl.SSLContext], Any]) -> Listener:
        made.append(Listener(prepare))
        return made[-1]

    yield start
    for listener in made:
        listener.close()
