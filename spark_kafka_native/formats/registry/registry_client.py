"""`RegistryClient`: requests to a schema registry, tried again where that may help.

The interface is that of Confluent's Schema Registry, which others offer, too:
https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import random
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, Final
from urllib.parse import urlsplit

from ...http_request import Answer, HttpRequest, RefusedError, RequestError, send
from ...pem import in_lines, private_file, trust
from .errors import CredentialsError, RegistryError, UnknownSchemaError

_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
REQUEST_S: Final = 10.0
"""For one answer, from looking up the name to the last byte."""
OPERATION_S: Final = 60.0
"""For all attempts together."""
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""Of an answer."""
_ROUNDS: Final = 6
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 20.0
_TRY_AGAIN: Final = frozenset([408, 429, 500, 502, 503, 504])
_NOT_FOUND: Final = frozenset([40401, 40402, 40403])
"""Confluent's codes for a subject, a version or a schema that does not exist. Another 404 is that of a wrong
URL."""
_IS_IT: Final = "is the URL that of a schema registry?"


@dataclass(kw_only=True)
class RegistryClient:
    """Where a registry is, and how to log in."""

    urls: tuple[str, ...]
    """Of one registry: the next one is asked where one does not answer, and from then on first; also where
    one lacks a schema, as it may be behind the others."""
    authorization: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    _answered: int = field(default=0, init=False, repr=False)
    """The place of the URL that answered last. Threads may write it at the same time."""

    @property
    def shown(self) -> str:
        """The URLs, for messages."""
        return ", ".join(self.urls)

    def ask(
        self, what: str, path: str, body: Mapping[str, Any] | None = None, *, until: float | None = None
    ) -> dict[str, Any]:
        """The answer, an object; ``what`` names subject or id in errors. With a ``body`` it is a POST.
        ``until``: a moment of `time.monotonic`, by default `OPERATION_S` from now.

        Raises `UnknownSchemaError` if each URL says that it does not exist, and `RegistryError` if it
        refuses, or does not answer in time (`CredentialsError`: it refuses the credentials); caused by an
        `UnknownSchemaError` if some of the URLs say that it does not exist, and the others do not answer.
        """
        request = self._request(path, body)
        until = monotonic() + OPERATION_S if until is None else until
        first, count = self._answered, len(self.urls)
        lacking, unknown = set[int](), None
        reasons = dict[int, str]()
        for attempt in itertools.count():
            place = (first + attempt) % count
            url = self.urls[place]
            pause_s = 0.0
            now = monotonic()
            try:
                # One that does not answer leaves time for those that are still to be asked in this round.
                share_s = (until - now) / (count - attempt % count)
                answer = self._send(url, request, now + min(REQUEST_S, share_s))
                if answer.status not in _TRY_AGAIN:
                    self._answered = place
                    return _read(answer, what, url)
                reasons[place], pause_s = f"{url}: HTTP status {answer.status}", _retry_after_s(answer)
            except RequestError as error:
                reasons[place] = f"{url}: {error}"
            except UnknownSchemaError as error:
                lacking.add(place)
                if len(lacking) == count:
                    raise
                unknown = error
            rounds, asked = divmod(attempt + 1, count)
            if asked == 0:  # all of them were asked
                pause_s = max(pause_s, _FIRST_PAUSE_S * 2**rounds)
            pause_s = min(pause_s, _LONGEST_PAUSE_S) * random.uniform(0.8, 1.2)
            if rounds >= _ROUNDS or monotonic() + pause_s >= until:
                break
            sleep(pause_s)
        causes = "; ".join(reasons.values()) or "it has not answered"
        raise RegistryError(
            f"Can't get the {what} from the schema registry at {self.shown}: {causes} "
            f"({attempt + 1} attempts)" + (f". {unknown}, but another may have it" if unknown else "")
        ) from unknown

    def _request(self, path: str, body: Mapping[str, Any] | None) -> HttpRequest:
        headers = {"Accept": f"{_MEDIA_TYPE}, application/json", "Content-Type": _MEDIA_TYPE}
        if self.authorization is not None:
            headers["Authorization"] = self.authorization
        data = None if body is None else json.dumps(body).encode()
        return HttpRequest(method="GET" if body is None else "POST", path=path, headers=headers, body=data)

    def _send(self, url: str, request: HttpRequest, until: float) -> Answer:
        secure = urlsplit(url).scheme == "https"
        tls = (self.tls or ssl.create_default_context()) if secure else None
        try:
            return send(url, request, tls, until, max_body_bytes=MAX_BODY_BYTES)
        except RefusedError as error:
            raise RegistryError(f"The schema registry at {url} can't be asked: {error}") from None


def _read(answer: Answer, what: str, url: str) -> dict[str, Any]:
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError):
        content = None
    failed = f"Can't get the {what} from the schema registry at {url}: HTTP status {answer.status}"
    if not isinstance(content, dict):
        raise RegistryError(f"{failed} with no JSON object; {_IS_IT}")
    if answer.status == 200:
        return content
    code, message = content.get("error_code"), content.get("message")
    said = f" ({''.join(filter(str.isprintable, message[:500]))})" if isinstance(message, str) else ""
    if answer.status == 404 and code in _NOT_FOUND:
        raise UnknownSchemaError(f"There is no {what} in the schema registry at {url}{said}")
    if answer.status in (401, 403):
        raise CredentialsError(
            f"{failed}: the credentials (registry.user and registry.password, or registry.token) are "
            "missing, wrong or not allowed to"
        )
    raise RegistryError(f"{failed}{said}" + (f"; {_IS_IT}" if answer.status == 404 else ""))


def _retry_after_s(answer: Answer) -> float:
    """The seconds of ``Retry-After``; 0 if there are none, or if it is a date."""
    try:
        seconds = float(answer.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def parse_client(settings: Mapping[str, str]) -> RegistryClient:
    """The client that the settings ``registry.*`` describe. Raises `RegistryError`, never with a value that
    may be secret."""
    urls = tuple(filter(None, (url.strip() for url in settings["registry.url"].split(","))))
    if not urls:
        raise RegistryError("registry.url is empty")
    authorization = _authorization(settings)
    in_clear = settings.get("registry.allowhttp", "false").strip().lower() == "true"
    for url in urls:
        _check_url(url, has_secret=authorization is not None and not in_clear)
    return RegistryClient(urls=urls, authorization=authorization, tls=_tls_context(settings))


def _authorization(settings: Mapping[str, str]) -> str | None:
    user, password = settings.get("registry.user"), settings.get("registry.password")
    token = settings.get("registry.token")
    if (user is None) != (password is None):
        raise RegistryError("registry.user and registry.password need each other")
    if user is not None and token is not None:
        raise RegistryError("registry.token and registry.user exclude each other")
    if user is not None:
        if ":" in user:
            raise RegistryError("registry.user must have no colon in it (RFC 7617)")
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    if token is not None and not (token.isascii() and token.isprintable()):
        raise RegistryError("registry.token has characters that a token can't have")
    return None if token is None else f"Bearer {token}"


def _check_url(url: str, *, has_secret: bool) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise RegistryError("registry.url is no URL") from None
    if parts.username is not None or parts.password is not None:
        raise RegistryError(
            "registry.url must have no user and password in it, as it is shown in messages: use "
            "registry.user and registry.password"
        )
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or port == 0
        or parts.query
        or parts.fragment
    ):
        raise RegistryError(
            "registry.url must be https://host:port/path, or several of them, comma-separated"
        )
    if any(letter.isspace() or ord(letter) < 32 for letter in url) or not url.isascii():
        raise RegistryError("registry.url must be ASCII without white space")
    if parts.scheme == "http" and has_secret and parts.hostname not in _LOCAL:
        raise RegistryError(
            f"registry.url: http would send the credentials in clear to {parts.hostname}; use https, or "
            "registry.allowHttp=true"
        )


def _tls_context(settings: Mapping[str, str]) -> ssl.SSLContext | None:
    """None for the system's certificates and no client certificate."""
    authority = settings.get("registry.ssl.ca")
    certificate, key = settings.get("registry.ssl.certificate"), settings.get("registry.ssl.key")
    if authority is None and certificate is None and key is None:
        return None
    context = ssl.create_default_context() if authority is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if authority is not None:
        try:
            trust(context, authority)
        except ValueError:
            raise RegistryError("registry.ssl.ca holds no PEM certificate; a file is file:/path") from None
    if certificate is not None or key is not None:
        _present(context, f"{key or ''}\n{certificate or ''}", settings.get("registry.ssl.keypassword"))
    return context


def _present(context: ssl.SSLContext, pem: str, password: str | None) -> None:
    def ask() -> str:
        # Without a callable OpenSSL would prompt on the terminal.
        if password is None:
            raise RegistryError("registry.ssl.key is encrypted: set registry.ssl.keyPassword")
        return password

    try:
        with private_file(in_lines(pem)) as path:
            context.load_cert_chain(path, password=ask)
    except (OSError, ValueError) as error:
        if isinstance(error, RegistryError):
            raise
        raise RegistryError(
            "registry.ssl.certificate and registry.ssl.key must be PEM, a private key and its certificates; "
            "a file is file:/path"
        ) from None
