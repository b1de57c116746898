"""A token from a token endpoint, with OIDC client credentials (RFC 6749, section 4.4), over HTTPS.

The endpoint is an option, so a user could make this process send requests to any URL. Hence the rules: https
only, no redirect to another host, no link-local address (where clouds keep their metadata), and limits for
the response's size and time. No error shows anything that was sent or received.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import ipaddress
import json
import os
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urlencode, urljoin, urlsplit

from ..config.secret import Secret
from ..config.security_config import check_token_url
from ..errors import AuthenticationError, ConfigError, KafkaError, NetworkError
from ..runtime.deadline import Deadline
from ..runtime.name_lookup import resolved
from .config_providers import ALLOWED_URLS, check_url, read_file
from .credentials import seconds

ALLOW_HTTP: Final = "PYKAFKA_ALLOW_HTTP_LOCALHOST"
"""If set to ``true``, http is allowed for a token endpoint on this machine: for tests."""
MAX_BODY_BYTES: Final = 64 * 1024
TIMEOUT_MS: Final = 10_000
_MAX_REDIRECTS: Final = 3
_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_OAUTH_ERRORS: Final = frozenset(
    (
        "invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type",
        "invalid_scope",
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ClientCredentials:
    """A token endpoint, and the credentials for it."""

    url: str
    client_id: str
    client_secret: Secret
    scope: str | None = None
    ca_location: str | None = None


def fetch_token(credentials: ClientCredentials, deadline: Deadline) -> tuple[str, float | None]:
    """The token and its lifetime in seconds (None if the endpoint does not return it).

    Raises `AuthenticationError` if the endpoint refuses, `NetworkError` if another attempt may succeed, and
    `ConfigError` if the URL is not allowed.
    """
    limit = deadline.within_ms(TIMEOUT_MS)
    url = credentials.url
    check_url(_URL, url)
    for _ in range(_MAX_REDIRECTS + 1):
        check_token_url(url)
        status, body, location = _post(urlsplit(url), credentials, limit)
        if status not in (307, 308):
            return _read_answer(status, body)
        url = _redirected(url, location)
    raise AuthenticationError("the token endpoint redirects again and again")


def _redirected(url: str, location: str | None) -> str:
    target = urljoin(url, location or "")
    before, after = urlsplit(url), urlsplit(target)
    if (before.scheme, before.netloc) != (after.scheme, after.netloc):
        raise AuthenticationError(
            "the token endpoint redirects to another host, which does not get the client secret"
        )
    return target


def _post(
    parts: SplitResult, credentials: ClientCredentials, deadline: Deadline
) -> tuple[int, bytes, str | None]:
    host = parts.hostname or ""
    if parts.scheme != "https" and os.environ.get(ALLOW_HTTP, "").lower() != "true":
        raise ConfigError(f"{_URL}: http is for tests on this machine only; set {ALLOW_HTTP}=true for it")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    sock: socket.socket | None = None
    # One timer for the whole request: a socket timeout would restart with each byte.
    watchdog = threading.Timer(deadline.remaining_ms / 1000, lambda: _cut(sock))
    watchdog.daemon = True
    watchdog.start()
    try:
        sock = _connect(host, port, deadline)
        if parts.scheme == "https":
            sock = _tls(credentials).wrap_socket(sock, server_hostname=host)
        if deadline.expired:  # the timer may have expired between two sockets, and closed neither
            raise TimeoutError
        return _ask(sock, host, port, parts, credentials)
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationError(
            f"{host}:{port}: the token endpoint's certificate is not trusted: {error.verify_message}"
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, KafkaError):
            raise
        late = "no answer in time" if deadline.expired else type(error).__name__
        raise NetworkError(f"{host}:{port}: the token endpoint can't be asked ({late})") from None
    finally:
        watchdog.cancel()
        if sock is not None:
            sock.close()


def _ask(
    sock: socket.socket, host: str, port: int, parts: SplitResult, credentials: ClientCredentials
) -> tuple[int, bytes, str | None]:
    login = f"{credentials.client_id}:{credentials.client_secret.reveal()}".encode()
    form = {"grant_type": "client_credentials"} | ({"scope": credentials.scope} if credentials.scope else {})
    connection = http.client.HTTPConnection(host, port)
    connection.sock = sock
    connection.request(
        "POST",
        (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        body=urlencode(form),
        headers={
            "Authorization": "Basic " + base64.b64encode(login).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
            "Connection": "close",
        },
    )
    response = connection.getresponse()
    body = response.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise AuthenticationError(f"the token endpoint's answer is longer than {MAX_BODY_BYTES} bytes")
    return response.status, body, response.getheader("Location")


def _read_answer(status: int, body: bytes) -> tuple[str, float | None]:
    if status >= 500 or status == 429:
        raise NetworkError(f"the token endpoint answered with HTTP status {status}")
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        answer = {}
    if status != 200:
        error = answer.get("error")
        known = f" ({error})" if isinstance(error, str) and error in _OAUTH_ERRORS else ""
        raise AuthenticationError(f"the token endpoint refused: HTTP status {status}{known}")
    token, lifetime_s = answer.get("access_token"), seconds(answer.get("expires_in"))
    if not isinstance(token, str) or not token:
        raise AuthenticationError("the token endpoint's answer has no access_token")
    return token, lifetime_s if lifetime_s is not None and lifetime_s > 0 else None


def _connect(host: str, port: int, deadline: Deadline) -> socket.socket:
    try:
        found = resolved(host, port, deadline)
    except NetworkError as error:
        raise NetworkError(f"the token endpoint can't be asked: {error}") from None
    failure: OSError | None = None
    for family, kind, protocol, _, target in found:
        address = ipaddress.ip_address(str(target[0]).partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_link_local and os.environ.get(ALLOWED_URLS) is None:
            raise ConfigError(
                f"{_URL}: {host} is a link-local address; such an endpoint must be among {ALLOWED_URLS}"
            )
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(deadline.remaining_ms / 1000, 0.001))
            sock.connect(target)
            return sock
        except OSError as error:
            sock.close()
            failure = error
    raise failure or OSError("no address")


def _tls(credentials: ClientCredentials) -> ssl.SSLContext:
    if credentials.ca_location is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        pem = read_file("https.ca.location", credentials.ca_location)
        try:
            context.load_verify_locations(cadata=pem.decode())
        except (ValueError, ssl.SSLError):
            raise ConfigError(
                f"https.ca.location: {credentials.ca_location} holds no PEM certificate"
            ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _cut(sock: socket.socket | None) -> None:
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
