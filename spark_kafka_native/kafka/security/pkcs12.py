"""PKCS12 stores as PEM, where ``cryptography`` is installed."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.secret import Secret
from ..errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Pkcs12:
    """What is in a store, as PEM. ``key`` and ``chain`` are empty where the store has only trusted
    certificates.
    """

    key: Secret
    chain: str
    certificates: Secret

    def identity(self, shown: str) -> Secret:
        """Private key and chain together. `ConfigError` where there is none."""
        if not self.key.reveal() or not self.chain:
            raise ConfigError(f"{shown} holds no private key with its certificate")
        return Secret(self.key.reveal() + self.chain)


def read_pkcs12(shown: str, content: bytes, password: Secret | None) -> Pkcs12:
    """Read a PKCS12 store; ``shown`` names setting and file. Raises `ConfigError`, never with the content."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise ConfigError(
            f"{shown} is a PKCS12 store, which takes the package cryptography: pip install "
            f"cryptography, or convert it to PEM: openssl pkcs12 -in store.p12 -out store.pem -nodes"
        ) from None
    try:
        store = pkcs12.load_pkcs12(content, None if password is None else password.reveal().encode())
    except (ValueError, TypeError):
        raise ConfigError(f"{shown} is not a PKCS12 store that this password opens") from None
    pem = serialization.Encoding.PEM
    own = [] if store.cert is None else [store.cert.certificate]
    others = [found.certificate for found in store.additional_certs]
    key = (
        b""
        if store.key is None
        else store.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return Pkcs12(
        key=Secret(key.decode()),
        chain=b"".join(one.public_bytes(pem) for one in [*own, *others]).decode() if own else "",
        certificates=Secret(b"".join(one.public_bytes(pem) for one in [*own, *others]).decode()),
    )
