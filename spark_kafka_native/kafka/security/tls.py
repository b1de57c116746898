"""TLS contexts made from a `SecurityConfig`. The system's defaults stay on: verified chain, checked host
name, TLS 1.2 or later.

Files are read for each connection, so that the next connection picks up rotated ones; the context is built
anew only when their contents have changed. PKCS12 stores are converted to PEM by ``cryptography`` where it is
installed.
"""

from __future__ import annotations

import functools
import re
import ssl
from dataclasses import dataclass

from ...pem import in_lines, private_file, trust
from ..config.secret import Secret
from ..config.security_config import SecurityConfig, java_keystore
from ..errors import ConfigError
from ..runtime.fork import no_fork
from .config_providers import read_file, resolve

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, kw_only=True)
class _Material:
    """All inputs of a context, read and resolved. ``truststore``: None trusts the system's certificates."""

    versions: tuple[str, ...]
    cipher_suites: tuple[str, ...]
    check_hostname: bool
    verify: bool
    truststore: Secret | None
    truststore_name: str
    identity: Secret | None
    """Private key and certificate chain, PEM."""
    identity_name: str
    key_password: Secret | None


def tls_context(security: SecurityConfig) -> ssl.SSLContext:
    """The context for a new connection under ``security``.

    Raises `ConfigError` with the file or property that cannot be used, never with its contents.
    """
    truststore, truststore_name = _truststore(security)
    identity, identity_name = _identity(security)
    password = security.key_password
    material = _Material(
        versions=security.tls_versions,
        cipher_suites=security.cipher_suites,
        check_hostname=security.check_hostname,
        verify=security.verify_certificate,
        truststore=truststore,
        truststore_name=truststore_name,
        identity=identity,
        identity_name=identity_name,
        key_password=None if password is None else Secret(resolve("ssl.key.password", password)),
    )
    with no_fork():  # OpenSSL has locks of its own as it reads certificates
        return _build(material)


@functools.lru_cache(maxsize=8)
def _build(material: _Material) -> ssl.SSLContext:
    if material.truststore is None:
        context = ssl.create_default_context()
    else:  # the same checks with an empty trust store: a given truststore replaces the system's
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, material.truststore_name, material.truststore)
    context.minimum_version = min(_VERSIONS[version] for version in material.versions)
    context.maximum_version = max(_VERSIONS[version] for version in material.versions)
    if material.cipher_suites:
        _choose_ciphers(context, material.cipher_suites)
    context.check_hostname = material.check_hostname and material.verify
    if not material.verify:
        context.verify_mode = ssl.CERT_NONE
    if material.identity is not None:
        _present(context, material.identity_name, material.identity, material.key_password)
    return context


def _choose_ciphers(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    """Set the cipher suites. OpenSSL silently ignores unknown names; here each name must be one that
    it has.
    """
    ours = {name: name for name in (cipher["name"] for cipher in context.get_ciphers())}
    of_iana = {_compact(name): name for name in ours}
    chosen = [ours.get(name) or of_iana.get(_compact(name)) for name in names]
    if None in chosen:
        raise ConfigError(
            f"ssl.cipher.suites: {names[chosen.index(None)]} is not a cipher suite that this client has; it "
            f"has {', '.join(ours)}"
        )
    # Python cannot choose among the suites of TLS 1.3: a version is disabled if none of its suites is named.
    older = [name for name in chosen if name is not None and not name.startswith("TLS_")]
    if older:
        context.set_ciphers(":".join(older))
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if len(older) == len(chosen):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if context.minimum_version > context.maximum_version:
        raise ConfigError("ssl.cipher.suites has none for the versions in ssl.enabled.protocols")


def _compact(name: str) -> str:
    """A form that IANA's and OpenSSL's names of a TLS 1.2 suite share.

    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256; OpenSSL omits CBC, and the hash of
    CHACHA20-POLY1305.
    """
    found = name.upper().removeprefix("TLS_").replace("_WITH_", "_").replace("_", "-")
    found = re.sub(r"(AES|CAMELLIA|ARIA)-(128|256)", r"\1\2", found).removeprefix("RSA-")
    return re.sub(r"-CBC(?=-SHA)|(?<=CHACHA20-POLY1305)-SHA256$", "", found)


def _truststore(security: SecurityConfig) -> tuple[Secret | None, str]:
    if security.ca_pem is not None:
        name = "ssl.truststore.certificates"
        return Secret(resolve(name, security.ca_pem)), name
    name = "ssl.truststore.location"
    if security.ca_location is None:
        return None, name
    content = read_file(name, security.ca_location)
    shown = f"{name}: {security.ca_location}"
    if _is_pkcs12(name, security.ca_location, security.truststore_type, content):
        password = _store_password("ssl.truststore.password", security.truststore_password)
        return read_pkcs12(shown, content, password).certificates, shown
    return _pem_text(shown, content), shown


def _store_password(name: str, given: Secret | None) -> Secret | None:
    return given and Secret(resolve(name, given))


def _identity(security: SecurityConfig) -> tuple[Secret | None, str]:
    name = "ssl.keystore.key"
    if security.certificate_pem is not None and security.key_pem is not None:
        chain = resolve("ssl.keystore.certificate.chain", security.certificate_pem)
        return Secret(resolve(name, security.key_pem) + "\n" + chain), name
    if security.certificate_location is not None:
        shown = f"ssl.certificate.location: {security.certificate_location}"
        content = read_file("ssl.certificate.location", security.certificate_location)
        if security.key_location is not None:
            content = read_file("ssl.key.location", security.key_location) + b"\n" + content
        return _pem_text(shown, content), shown
    name = "ssl.keystore.location"
    if security.keystore_location is None:
        return None, name
    content = read_file(name, security.keystore_location)
    shown = f"{name}: {security.keystore_location}"
    if _is_pkcs12(name, security.keystore_location, security.keystore_type, content):
        password = _store_password("ssl.keystore.password", security.keystore_password)
        return read_pkcs12(shown, content, password).identity(shown), shown
    return _pem_text(shown, content), shown


_PKCS12 = re.compile(rb"\x30(?:\x80|\x81.|\x82..|\x83...|\x84....)\x02\x01\x03", re.DOTALL)
"""A sequence that begins with the version, 3."""
_JKS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""The first bytes of JKS and JCEKS."""


def _is_pkcs12(setting: str, location: str, kind: str | None, content: bytes) -> bool:
    """By the content, where the type does not say it: Java gives PKCS12 any name. Raises `ConfigError` for a
    format that only Java reads, and for PEM if the type is another one."""
    if content.startswith(_JKS):
        raise java_keystore(setting, location)
    is_pkcs12 = kind != "PEM" and _PKCS12.match(content) is not None
    if kind in ("PKCS12", "JKS") and not is_pkcs12 and b"-----BEGIN " in content:
        name = setting.replace(".location", ".type")
        raise ConfigError(f"{setting}: {location} is PEM, not {kind}: {name} must be PEM")
    if kind == "PKCS12" or (kind is None and location.lower().endswith((".p12", ".pfx"))):
        return True
    if kind == "JKS" and not is_pkcs12:
        raise java_keystore(setting, location)
    return is_pkcs12


def _pem_text(shown: str, content: bytes) -> Secret:
    try:
        return Secret(content.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"{shown} is not PEM that can be used (not a text)") from None


def _trust(context: ssl.SSLContext, name: str, pem: Secret) -> None:
    try:
        trust(context, pem.reveal())
    except ValueError:
        raise ConfigError(f"{name} is not PEM that can be used (no certificate that can be read)") from None


def _present(context: ssl.SSLContext, name: str, pem: Secret, password: Secret | None) -> None:
    def ask() -> str:
        # Without a callable OpenSSL would prompt on the terminal.
        if password is None:
            raise ConfigError(f"{name}: the key is encrypted: set ssl.key.password")
        return password.reveal()

    try:
        with private_file(in_lines(pem.reveal())) as path:
            context.load_cert_chain(path, password=ask)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name} is not PEM that can be used ({_reason(error, pem, password)})") from None


def _reason(error: Exception, pem: Secret, password: Secret | None) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    if reason == "KEY_VALUES_MISMATCH":
        return "the private key is not the certificate's"
    # Not each release of OpenSSL gives a missing key as the reason.
    if password is not None and "PRIVATE KEY-----" in pem.reveal():
        return "ssl.key.password is wrong, or the key can't be read"
    return "it must hold a private key and its certificate chain"


@dataclass(frozen=True, kw_only=True)
class Pkcs12:
    """The contents of a PKCS12 store, as PEM. ``key`` and ``chain`` are empty if the store has only trusted
    certificates.
    """

    key: Secret
    chain: str
    certificates: Secret

    def identity(self, shown: str) -> Secret:
        """Private key and chain together. Raises `ConfigError` if there is none."""
        if not self.key.reveal() or not self.chain:
            raise ConfigError(f"{shown} holds no private key with its certificate")
        return Secret(self.key.reveal() + self.chain)


def read_pkcs12(shown: str, content: bytes, password: Secret | None) -> Pkcs12:
    """Read a PKCS12 store; ``shown`` is setting and file. Raises `ConfigError`, never with the content."""
    try:
        with no_fork():
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
