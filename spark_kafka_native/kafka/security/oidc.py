"""A token from a token endpoint, with OIDC client credentials (RFC 6749, section 4.4), over HTTPS.

The endpoint is an option, so a user could make this process send requests to any URL. `http_request` has the
rules for that. No error shows anything that was sent or received.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import time
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from ...http_request import ForbiddenAddressError, HttpRequest, RefusedError, RequestError, send
from ...pem import trust
from ..config.secret import Secret
from ..config.security_config import check_token_url
from ..errors import AuthenticationError, ConfigError, NetworkError
from ..runtime.deadline import Deadline
from ..runtime.fork import no_fork
from ..runtime.name_lookup import AddressInfo, resolved
from .config_providers import check_url, read_file
from .credentials import seconds

ALLOW_HTTP: Final = "PYKAFKA_ALLOW_HTTP_LOCALHOST"
"""If set to ``true``, http is allowed for a token endpoint on this machine: for tests."""
MAX_BODY_BYTES: Final = 64 * 1024
TIMEOUT_MS: Final = 10_000
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
    check_token_url(url)
    is_https = urlsplit(url).scheme == "https"
    if not is_https and os.environ.get(ALLOW_HTTP, "").lower() != "true":
        raise ConfigError(f"{_URL}: http is for tests on this machine only; set {ALLOW_HTTP}=true for it")
    with no_fork():  # OpenSSL has locks of its own as it reads certificates
        tls = _tls(credentials) if is_https else None
    try:
        answer = send(
            url,
            _request(credentials),
            tls,
            time.monotonic() + limit.remaining_ms / 1000,
            max_body_bytes=MAX_BODY_BYTES,
            resolve=lambda host, port, _: _addresses(host, port, limit),
        )
    except ForbiddenAddressError as error:
        raise ConfigError(f"{_URL}: {error}") from None
    except RefusedError as error:
        raise AuthenticationError(f"the token endpoint can't be asked: {error}") from None
    except RequestError as error:
        raise NetworkError(f"{urlsplit(url).netloc}: the token endpoint can't be asked ({error})") from None
    return _read_answer(answer.status, answer.body)


def _request(credentials: ClientCredentials) -> HttpRequest:
    login = f"{credentials.client_id}:{credentials.client_secret.reveal()}".encode()
    form = {"grant_type": "client_credentials"} | ({"scope": credentials.scope} if credentials.scope else {})
    headers = {
        "Authorization": "Basic " + base64.b64encode(login).decode(),
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    return HttpRequest(method="POST", headers=headers, body=urlencode(form).encode())


def _addresses(host: str, port: int, deadline: Deadline) -> list[AddressInfo]:
    try:
        return resolved(host, port, deadline)
    except NetworkError as error:
        raise OSError(0, str(error)) from None


def _read_answer(status: int, body: bytes) -> tuple[str, float | None]:
    if status >= 500 or status in (408, 429):
        raise NetworkError(f"the token endpoint answered with HTTP status {status}")
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        answer = {}
    if status not in (200, 201):
        error = answer.get("error")
        known = f" ({error})" if isinstance(error, str) and error in _OAUTH_ERRORS else ""
        raise AuthenticationError(f"the token endpoint refused: HTTP status {status}{known}")
    token, lifetime_s = answer.get("access_token"), seconds(answer.get("expires_in"))
    if not isinstance(token, str) or not token:
        raise AuthenticationError("the token endpoint's answer has no access_token")
    return token, lifetime_s if lifetime_s is not None and lifetime_s > 0 else None


def _tls(credentials: ClientCredentials) -> ssl.SSLContext:
    if credentials.ca_location is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        pem = read_file("https.ca.location", credentials.ca_location)
        try:
            trust(context, pem.decode())
        except ValueError:
            raise ConfigError(
                f"https.ca.location: {credentials.ca_location} holds no PEM certificate"
            ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
