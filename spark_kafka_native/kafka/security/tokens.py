"""`current_token`: the current OAUTHBEARER token of a configuration. It is fetched once for all connections,
and renewed after 75 to 80 % of its lifetime.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import importlib
import json
import logging
import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import BadStatusLine, IncompleteRead
from types import ModuleType
from typing import Any, Final, NamedTuple

from ..config.secret import Secret
from ..config.security_config import MSK_IAM, SecurityConfig
from ..errors import AuthenticationError, ConfigError, KafkaError, NetworkError, own_copy
from ..runtime.background import Lookups
from ..runtime.deadline import Deadline
from ..runtime.fork import in_forked_child, no_fork
from .config_providers import check_module, resolve
from .credentials import client_credentials, client_of, jaas_of, revealed, seconds, unsecured_token

TokenProvider = Callable[[], "str | tuple[str, int]"]
"""Returns a token, or a token and its expiry in milliseconds since 1970."""

_PROVIDER: Final = "sasl.oauthbearer.token.provider"
_MSK_MODULE: Final = "aws_msk_iam_sasl_signer"
_FETCH_SHARE: Final = 0.9
_REFRESH_FROM, _REFRESH_TO = 0.75, 0.8
"""Less than 80 to 90 % of a session's lifetime, at which a connection is renewed: the new connection should
get a new token."""
_RENEWAL_WAIT_MS, _RENEWAL_SHARE = 1_000, 0.25
"""Limits of a wait for a new token while the present one is valid; the second is of the caller's time."""
_PAUSE_MS: Final = 30_000
"""After a renewal that failed: until then the present token is used while it is valid."""
HANGING_MS: Final = 60_000
"""After this time another fetch is begun beside one without an answer, which keeps its thread."""
MAX_HANGING: Final = 64
MAX_SOURCES: Final = 64
"""Limit of configurations with kept tokens; the oldest one is removed first."""
_NO_ANSWER: Final = (
    *(TimeoutError, ConnectionError, socket.gaierror),
    *(ssl.SSLEOFError, IncompleteRead, BadStatusLine),
)
_NO_WAY: Final = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)
_NO_THREAD: Final = "can't start new thread"
"""Python's words where there are too many. As the interpreter ends they are others, and stay true."""
_NAMES_OF_LIBRARIES: Final = frozenset(
    {"ConnectionError", "Timeout", "ConnectError", "TimeoutException", "NetworkError", "RemoteProtocolError"}
    | {"NewConnectionError", "NameResolutionError", "TimeoutError"}
)
"""Those of `requests`, `httpx` and `urllib3`, which may not be installed."""
_MAX_CAUSES: Final = 8
_LOG: Final = logging.getLogger("spark_kafka_native")


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token. Ages are seconds since it was asked for, None if its lifetime is unknown."""

    value: Secret
    asked_at: float
    asked_at_steady: float
    refresh_age: float | None
    expiry_age: float | None


class TokenSource:
    """The tokens of one configuration. Any thread may use it; several that need a new token share one fetch.

    A thread of its own fetches, so that a signal handler that interrupts a caller, and closes a client,
    holds up no thread of that client. Callers join a fetch in progress, until it counts as hanging.
    """

    def __init__(
        self,
        fetch: Callable[[Deadline], tuple[str, float | None]],
        clock: Callable[[], float] = time.time,
        uniform: Callable[[float, float], float] = random.uniform,
        steady: Callable[[], float] = time.monotonic,
        name: str = "its source",
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._uniform = uniform
        self._steady = steady
        self._name = name
        self._fetches = Lookups(MAX_HANGING, name="kafka-token")
        self._number = 0
        """Of the fetch that callers begin or join."""
        self._hangs_from: Deadline | None = None
        """Of the fetch in progress."""
        self._token: Token | None = None
        self._renewal_pause = Deadline.after_ms(0)

    @property
    def has_token(self) -> bool:
        """True once a token came, which may have expired."""
        return self._token is not None

    def token(self, deadline: Deadline) -> Secret:
        """A token that remains valid for a while. Raises the error of fetching a new one, unless the present
        one is still valid.
        """
        known = self._token
        if known is not None and known.refresh_age is not None and self._age(known) < known.refresh_age:
            return known.value
        limit = deadline
        if known is not None and self._is_valid(known):
            if not self._renewal_pause.expired:
                return known.value
            # The login needs its time: the renewal goes on without it.
            limit = deadline.within_ms(min(_RENEWAL_WAIT_MS, _RENEWAL_SHARE * deadline.remaining_ms))
        try:
            return self._shared(deadline, limit).value
        except KafkaError as error:
            # By the time of now: the token may have expired during the attempt.
            if known is None or not self._is_valid(known):
                raise
            self._renewal_pause = Deadline.after_ms(_PAUSE_MS)
            _LOG.warning("OAUTHBEARER: no new token (%s); the present one is used until it expires", error)
            return known.value

    def _is_valid(self, token: Token) -> bool:
        return token.expiry_age is not None and self._age(token) < token.expiry_age

    def _age(self, token: Token) -> float:
        """By both clocks: one may be set back, the other may stand still while the machine sleeps."""
        return max(self._clock() - token.asked_at, self._steady() - token.asked_at_steady)

    def _shared(self, deadline: Deadline, limit: Deadline) -> Token:
        """A new token, fetched until ``deadline`` by this call or by one of another thread that is in
        progress, and waited for until ``limit``. The failure of such a call, which may have had less time, is
        not that of this one, but for a refusal: to repeat it might lock the account.
        """
        while True:
            own: list[bool] = []
            if self._hangs_from is not None and self._hangs_from.expired:
                self._number, self._hangs_from = self._number + 1, None

            def fetch(own: list[bool] = own, number: int = self._number) -> Token:
                own.append(True)
                return self._fetched(number, deadline)

            found = None
            with _failures_of(own):
                found = self._fetches.ask(self._number, fetch, limit)
            if found is not None:
                return found
            if limit.expired:
                raise NetworkError(f"OAUTHBEARER: no token came in time from {self._name}")

    def _fetched(self, number: int, deadline: Deadline) -> Token:
        """What the thread of a fetch does."""
        self._hangs_from = Deadline.after_ms(HANGING_MS)
        try:
            # A little less time than the caller waits: then its own error arrives, with the reason.
            token = self._new(deadline.within_ms(_FETCH_SHARE * deadline.remaining_ms))
            known = self._token
            if known is None or known.asked_at_steady <= token.asked_at_steady:
                self._token = token
            return token
        finally:
            if number == self._number:
                self._hangs_from = None

    def _new(self, deadline: Deadline) -> Token:
        asked_at, steady = self._clock(), self._steady()
        try:
            text, expires_at = self._fetch(deadline)
        except KafkaError:
            raise
        except Exception as error:  # noqa: BLE001 - no failure may pass by a token that is valid
            kind = NetworkError if _may_pass(error) else AuthenticationError
            raise kind(f"OAUTHBEARER: {self._name} failed with {type(error).__name__}") from None
        own = _expiry(text)
        # The answer of a cache may give the lifetime that the token had when it was made. One that is over is
        # no sign of that if the clocks differ.
        if expires_at is None or (own is not None and self._clock() < own < expires_at):
            expires_at = own
        refresh_age = expiry_age = None
        if expires_at is not None:
            if expires_at <= self._clock():
                raise AuthenticationError(
                    "OAUTHBEARER: the token has expired already; is its source up to date?"
                )
            expiry_age = expires_at - asked_at
            refresh_age = expiry_age * self._uniform(_REFRESH_FROM, _REFRESH_TO)
        return Token(
            value=Secret(text),
            asked_at=asked_at,
            asked_at_steady=steady,
            refresh_age=refresh_age,
            expiry_age=expiry_age,
        )


@contextlib.contextmanager
def _failures_of(own: list[bool]) -> Iterator[None]:
    """Raises those of an ``own`` fetch, and refusals of any."""
    try:
        yield
    except AuthenticationError as error:
        raise own_copy(error) from error.__cause__
    except (KafkaError, OSError):  # OSError: its caller was interrupted before a thread had started
        if own:
            raise


class _Key(NamedTuple):
    """The settings alone are not enough: their references may read another user's credentials by now."""

    security: SecurityConfig
    user: bytes
    """A digest of what the references read of the user: see `_user`."""


_registered: dict[str, TokenProvider] = {}
_sources: dict[_Key, TokenSource] = {}
_DIGEST_KEY: Final = os.urandom(32)


def register_token_provider(name: str, provider: TokenProvider) -> None:
    """Make ``sasl.oauthbearer.token.provider=name`` call ``provider`` in this process: configs remain plain
    data.

    A Spark executor is another process: use ``module:function`` there.
    """
    if not name or ":" in name or name == MSK_IAM:
        raise ValueError(f"a token provider's name must have no colon and not be {MSK_IAM}, as {name!r}")
    _registered[name] = provider
    for key in list(_sources):  # they keep tokens of the provider before, perhaps another user's
        if key.security.token_provider == name:
            _sources.pop(key, None)


def current_token(security: SecurityConfig, deadline: Deadline) -> Secret:
    """The token for a new connection. Raises `AuthenticationError`, `ConfigError`, `NetworkError`."""
    if security.token is not None:  # reading it again costs nothing, and a rotated file takes effect at once
        return TokenSource(_fetcher(security), name="sasl.oauthbearer.token").token(deadline)
    # Without a lock, which a signal handler could find held: each step is a single operation on a dict.
    key = _key(security)
    source = _sources.get(key)
    if source is None:
        source = _sources.setdefault(key, TokenSource(_fetcher(security, key.user), name=_name(security)))
        for old in list(_sources)[:-MAX_SOURCES]:
            _sources.pop(old, None)
    token = source.token(deadline)
    for other in _keys_of(security):  # not before: the references may read the former user's again
        if other != key:
            _sources.pop(other, None)
    return token


def forget_token(security: SecurityConfig) -> None:
    """Fetch a new token for the next connection: a broker has refused the present one."""
    for key in _keys_of(security):
        _sources.pop(key, None)


def _keys_of(security: SecurityConfig) -> list[_Key]:
    return [key for key in list(_sources) if key.security == security]


def _key(security: SecurityConfig) -> _Key:
    """Raises `ConfigError` if the user can't be read, unless tokens of one are known."""
    try:
        return _Key(security, _user(security))
    except ConfigError:
        known = [key for key in _keys_of(security) if (source := _sources.get(key)) and source.has_token]
        if len(known) != 1:
            raise
        return known[0]


def _user(security: SecurityConfig) -> bytes:
    if security.token_provider is None and security.token_endpoint_url is not None:
        return _digest(*client_of(security, jaas_of(security)))
    jaas = security.jaas_config
    return _digest(None if jaas is None else resolve("sasl.jaas.config", jaas))


def _digest(*parts: str | None) -> bytes:
    return hashlib.blake2b(json.dumps(parts).encode(), key=_DIGEST_KEY).digest()


def _name(security: SecurityConfig) -> str:
    if security.token_provider is not None:
        return f"the token provider {security.token_provider}"
    return "sasl.jaas.config" if security.token_endpoint_url is None else "the token endpoint"


def _fetcher(
    security: SecurityConfig, user: bytes | None = None
) -> Callable[[Deadline], tuple[str, float | None]]:
    given, provider, url = security.token, security.token_provider, security.token_endpoint_url
    if given is not None:
        return lambda _deadline: (resolve("sasl.oauthbearer.token", given).strip(), None)
    if provider is not None:
        return lambda _deadline: _call(provider, security)
    if url is None:  # SecurityConfig has checked that sasl.jaas.config has the necessary options
        return lambda _deadline: unsecured_token(jaas_of(security))

    def fetch(deadline: Deadline) -> tuple[str, float | None]:
        with no_fork():
            from .oidc import ClientCredentials, fetch_token  # late: it imports http.client

        client_id, client_secret, scope = client_credentials(security)
        if user not in (None, _digest(client_id, scope)):
            raise NetworkError("OAUTHBEARER: the references read another client id by now: connect again")
        credentials = ClientCredentials(
            url=url,
            client_id=client_id,
            client_secret=client_secret,
            scope=scope,
            ca_location=security.https_ca_location,
        )
        asked_at = time.time()
        token, lifetime_s = fetch_token(credentials, deadline)
        return token, None if lifetime_s is None else asked_at + lifetime_s

    return fetch


def _call(name: str, security: SecurityConfig) -> tuple[str, float | None]:
    provider = _provider(name, security)
    try:
        found: Any = provider()
    except KafkaError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the user's; its words may hold the token
        kind = NetworkError if _may_pass(error) else AuthenticationError
        raise kind(f"the token provider {name} failed with {type(error).__name__}") from None
    token, expires_ms = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(token, str) or not isinstance(expires_ms, int | float | None):
        raise AuthenticationError(
            f"the token provider {name} must return a str, or a tuple of a str and milliseconds since 1970"
        )
    return token, seconds(expires_ms, per_second=1000)


def _may_pass(error: BaseException) -> bool:
    """True if ``error`` is of a connection that failed, or of a thread that could not start: nothing was
    refused, and another attempt locks no account. Not by its context: a refusal may be raised where such an
    error was handled.
    """
    one: object = error
    for _ in range(_MAX_CAUSES):
        if isinstance(one, _NO_ANSWER) or (isinstance(one, OSError) and one.errno in _NO_WAY):
            return True
        if isinstance(one, RuntimeError) and str(one) == _NO_THREAD:
            return True
        if not _NAMES_OF_LIBRARIES.isdisjoint(kind.__name__ for kind in type(one).__mro__):
            return True
        # urllib and urllib3 name the cause in `reason`.
        one = getattr(one, "__cause__", None) or getattr(one, "reason", None)
    return False


def _provider(name: str, security: SecurityConfig) -> TokenProvider:
    if name == MSK_IAM:
        return lambda: _msk_token(security)
    if name in _registered:
        return _registered[name]
    module, colon, function = name.partition(":")
    if not colon:
        raise ConfigError(
            f"sasl.oauthbearer.token.provider={name}: nothing was registered under this name in this "
            f"process; on Spark executors it must be module:function"
        )
    check_module(_PROVIDER, module)
    try:
        found = _imported(module, function)
    except ConfigError:
        raise
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"sasl.oauthbearer.token.provider={name} can't be imported ({type(error).__name__}); is the "
            f"module on the executors too?"
        ) from None
    if not callable(found):
        raise ConfigError(f"sasl.oauthbearer.token.provider={name} is no function")
    return found  # type: ignore[no-any-return]


def _imported(module: str, path: str) -> Any:
    """``path`` in ``module``. A module on the way must be allowed, too: else one would lend all that it
    imports.
    """
    with no_fork():
        found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
        if isinstance(found, ModuleType):
            check_module(_PROVIDER, found.__name__)
    return found


def _msk_token(security: SecurityConfig) -> tuple[str, int]:
    region = security.aws_region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise ConfigError(f"{MSK_IAM} needs the cluster's region: sasl.oauthbearer.aws.region or AWS_REGION")
    check_module(f"sasl.oauthbearer.token.provider={MSK_IAM}", _MSK_MODULE)
    try:
        with no_fork():
            from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise ConfigError(
            f"{MSK_IAM} takes the package aws-msk-iam-sasl-signer-python: pip install "
            f"'spark-kafka-native[msk]'"
        ) from None
    jaas = jaas_of(security)
    profile, role = revealed(jaas, "awsProfileName"), revealed(jaas, "awsRoleArn")
    if profile is not None and role is not None:
        raise ConfigError("sasl.jaas.config: awsProfileName and awsRoleArn: give one of them")
    signer = MSKAuthTokenProvider
    if profile is not None:
        token, expires_ms = signer.generate_auth_token_from_profile(region, profile)
    elif role is not None:
        session = revealed(jaas, "awsRoleSessionName")
        names = (role,) if session is None else (role, session)
        token, expires_ms = signer.generate_auth_token_from_role_arn(region, *names)
    else:
        token, expires_ms = signer.generate_auth_token(region)
    return token, int(expires_ms)


def _expiry(token: str) -> float | None:
    """``exp`` of a JWT; None for any other token. It only determines when to fetch a new token; the broker
    validates it.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    return seconds(claims.get("exp")) if isinstance(claims, dict) else None


in_forked_child(_sources.clear)  # the threads that fetch are the parent's
