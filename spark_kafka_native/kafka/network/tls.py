"""TLS contexts out of a `SecurityConfig`. The system's defaults stay on: verified chain, checked host name,
TLS 1.2+.
"""

from __future__ import annotations

import functools
import os
import ssl
import tempfile

from ..config import SecurityConfig
from ..errors import ConfigError


@functools.lru_cache(maxsize=16)
def tls_context(security: SecurityConfig) -> ssl.SSLContext:
    """The context for connections under ``security``; built once per process and config.

    Raises `ConfigError` that names the file or property that can't be used, never its contents.
    """
    if security.ca_location is None and security.ca_pem is None:
        context = ssl.create_default_context()
    else:  # the same checks, but trusting nobody yet: a given truststore replaces the system's
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = security.check_hostname
    if security.ca_location is not None:
        _trust_file(context, security.ca_location)
    if security.ca_pem is not None:
        _trust_text(context, security.ca_pem)
    if security.certificate_location is not None:
        _present(context, security.certificate_location, security.key_password, "ssl.keystore.location")
    if security.certificate_pem is not None and security.key_pem is not None:
        _present_text(context, security.key_pem + "\n" + security.certificate_pem, security.key_password)
    return context


def _trust_file(context: ssl.SSLContext, location: str) -> None:
    try:
        context.load_verify_locations(cafile=location)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(_unreadable("ssl.truststore.location", location, error)) from None


def _trust_text(context: ssl.SSLContext, pem: str) -> None:
    try:
        context.load_verify_locations(cadata=pem)
    except (ValueError, ssl.SSLError):
        raise ConfigError("ssl.truststore.certificates holds no PEM certificate that can be read") from None


def _present_text(context: ssl.SSLContext, pem: str, password: str | None) -> None:
    # load_cert_chain reads files only: a private folder (0700) and a file (0600) that lives for this call.
    with tempfile.TemporaryDirectory(prefix="spark-kafka-native-") as folder:
        path = os.path.join(folder, "client.pem")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(pem)
        _present(context, path, password, "ssl.keystore.key")


def _present(context: ssl.SSLContext, location: str, password: str | None, name: str) -> None:
    def ask() -> str:
        # Without a callable OpenSSL would prompt on the terminal of whoever runs this.
        if password is None:
            raise ConfigError(f"{name} is encrypted: set ssl.key.password")
        return password

    try:
        context.load_cert_chain(location, password=ask)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(_unreadable(name, location, error)) from None


def _unreadable(name: str, location: str, error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        reason = error.reason or "no certificate or key in it"
        return f"{name}: {location} is not PEM that can be used ({reason})"
    return f"{name}: {location} can't be read on {os.uname().nodename} ({error.strerror or error})"
