"""Certificates and bearer tokens for a test broker and its clients, made on the fly."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """Paths of PEM files.

    ``server`` and ``client`` hold key and chain together (as a Java PEM keystore wants them);
    ``client_certificate`` and ``client_key`` are the same client's in two files, as Python and librdkafka
    want them.
    """

    authority: Path
    server: Path
    client: Path
    client_certificate: Path
    client_key: Path


def write_certificates(folder: Path, *hosts: str) -> Certificates:
    """Make a new authority and write what it issues for ``hosts`` and for one client into ``folder``."""
    import trustme

    folder.mkdir(parents=True, exist_ok=True)
    made = Certificates(
        authority=folder / "authority.pem",
        server=folder / "server.pem",
        client=folder / "client.pem",
        client_certificate=folder / "client-certificate.pem",
        client_key=folder / "client-key.pem",
    )
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(made.authority))
    server = authority.issue_cert(*hosts)
    made.server.write_bytes(_key(server.private_key_pem.bytes()) + _chain(server))
    client = authority.issue_cert("client@spark-kafka-native.test", common_name="client")
    made.client_key.write_bytes(_key(client.private_key_pem.bytes()))
    made.client_certificate.write_bytes(_chain(client))
    made.client.write_bytes(made.client_key.read_bytes() + made.client_certificate.read_bytes())
    return made


def _chain(issued: object) -> bytes:
    return b"".join(blob.bytes() for blob in issued.cert_chain_pems)  # type: ignore[attr-defined]


def _key(pem: bytes) -> bytes:
    """The same key as PKCS#8, the only form that Kafka reads; trustme writes the older ones."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(pem, password=None)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def unsigned_token(user: str, lifetime_s: float = 3600) -> str:
    """A JWT (``alg: none``) for ``user`` that expires in ``lifetime_s``; a negative one has expired
    already.
    """
    now = time.time()
    claims = {"sub": user, "iat": int(min(now, now + lifetime_s - 1)), "exp": now + lifetime_s}
    return f"{_part({'alg': 'none'})}.{_part(claims)}."


def _part(value: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
