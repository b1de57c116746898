"""``delegationTokens=true``: the driver logs in with the credentials of the options, tasks with a delegation
token that it creates (KIP-48).

`TokenOptions` makes the config of tasks, which has no credentials, and `TokenLogin` is what they get in their
place. A `TokenKeeper` on the driver creates the token, renews it and creates another one before the last one
ends. `shared_login` keeps one for all processes in which a session plans; `LentToken` is that of one batch
write, which expires it at its end.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import pickle
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..kafka.config.client_config import ClientConfig
from ..kafka.config.secret import Secret, is_reference
from ..kafka.config.security_config import SecurityConfig, SecurityProtocol
from ..kafka.errors import ConfigError, KafkaError
from ..kafka.runtime.deadline import Deadline
from ..kafka.security.config_providers import resolve
from .options.option_values import OptionValues

if TYPE_CHECKING:
    from ..kafka.admin.admin import Admin
    from ..kafka.admin.delegation_tokens import DelegationToken

_LOG: Final = logging.getLogger("spark_kafka_native")
_OPTION: Final = "delegationTokens"
_DETAILS: Final = (f"{_OPTION}.mechanism", f"{_OPTION}.bootstrapServers", f"{_OPTION}.maxLifetime")
_OF_TASKS: Final = (
    "ca_location", "ca_pem", "truststore_password", "truststore_type", "tls_versions", "cipher_suites",
    "check_hostname", "verify_certificate",
)  # fmt: skip
"""The security settings that tasks share with the driver: how a broker is trusted, and no credentials."""
RENEW_BELOW: Final = 0.5
"""The share of its time below which a token is renewed. At least that share is left to each micro-batch:
while one runs, no token is renewed."""
KNOWN_MS: Final = 10_000
"""How long to wait until all brokers know a new token."""
EXPIRE_MS: Final = 5_000
RENEW_MS: Final = 10_000
"""How long a micro-batch waits for another token while the last one works."""
PAUSE_S: Final = 60.0
"""After that."""


@dataclass(frozen=True, kw_only=True)
class TokenLogin:
    """What a task logs in with."""

    token_id: str
    hmac: Secret

    def to(self, client: ClientConfig) -> ClientConfig:
        """``client``, which `TokenOptions.of_tasks` has made, with this login."""
        security = replace(client.security, username=self.token_id, password=self.hmac)
        return replace(client, security=security)


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """How tokens are made and used. Plain data."""

    mechanism: str
    bootstrap_servers: tuple[str, ...] | None
    """The listener for tasks; None: the one that the driver uses."""
    max_lifetime_ms: int | None

    @classmethod
    def parse(cls, values: OptionValues, client: ClientConfig) -> TokenOptions | None:
        """None where tokens are not asked for. Raises `ConfigError` for a driver that can't create any."""
        if not values.value(_OPTION):
            for name in _DETAILS:
                if name in values:
                    raise ConfigError(f"Option '{name}' has no effect without {_OPTION}=true")
            return None
        servers = values.text(f"{_OPTION}.bootstrapServers")
        _check_driver(client.security, is_listener_given=servers is not None)
        options = cls(
            mechanism=values.value(f"{_OPTION}.mechanism").upper(),
            bootstrap_servers=None if servers is None else _servers(servers),
            max_lifetime_ms=values.value(f"{_OPTION}.maxLifetime"),
        )
        options.of_tasks(client)
        return options

    def of_tasks(self, client: ClientConfig) -> ClientConfig:
        """``client`` for tasks: without the driver's credentials, and without a login."""
        given = client.security
        protocol = SecurityProtocol.SASL_SSL if given.encrypted else SecurityProtocol.SASL_PLAINTEXT
        security = SecurityConfig(
            protocol=protocol,
            mechanism=self.mechanism,
            username="",
            password=Secret(""),
            token_auth=True,
            **{name: getattr(given, name) for name in _OF_TASKS},
        )
        servers = self.bootstrap_servers or client.bootstrap_servers
        return replace(client, security=security, bootstrap_servers=servers)


def _servers(text: str) -> tuple[str, ...]:
    return ClientConfig.from_properties({"bootstrap.servers": text}).bootstrap_servers


def _check_driver(security: SecurityConfig, *, is_listener_given: bool) -> None:
    if security.protocol is SecurityProtocol.PLAINTEXT or (
        security.protocol is SecurityProtocol.SSL and not security.presents_certificate
    ):
        raise ConfigError(
            f"{_OPTION}=true: the cluster gives tokens to a driver that logs in; set "
            "kafka.security.protocol=SASL_SSL and a mechanism, or SSL with a client certificate"
        )
    if security.logs_in_with_token:
        raise ConfigError(
            f"{_OPTION}=true: the driver logs in with a delegation token itself, for which no cluster makes "
            f"another one. Leave {_OPTION} out: tasks then use the token of the options"
        )
    if security.protocol is SecurityProtocol.SSL and not is_listener_given:
        raise ConfigError(
            f"{_OPTION}=true with kafka.security.protocol=SSL: a token is a login of SASL. Name the brokers' "
            f"SASL_SSL listener in {_OPTION}.bootstrapServers; tasks use that one"
        )


# --- on the driver ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HeldToken:
    """A token, and when it was created or renewed by both clocks of this machine.

    The brokers' clock may be another one: only spans of it count. Of this machine's clocks, one stops while
    it sleeps and the other one can be set: the one by which more time has passed counts.
    """

    token: DelegationToken
    life_ms: int
    """From then to its expiry."""
    most_ms: int
    """From then to the end of its maximum lifetime."""
    wall_s: float
    steady_s: float

    @classmethod
    def created(cls, token: DelegationToken) -> HeldToken:
        """A token that was created just now."""
        return cls(
            token=token,
            life_ms=token.expires_ms - token.issued_ms,
            most_ms=token.max_ms - token.issued_ms,
            wall_s=time.time(),
            steady_s=time.monotonic(),
        )

    @property
    def login(self) -> TokenLogin:
        """What tasks get of it."""
        return TokenLogin(token_id=self.token.token_id, hmac=self.token.hmac)

    def age_ms(self) -> float:
        """The milliseconds since it was created or renewed."""
        return 1_000 * max(time.time() - self.wall_s, time.monotonic() - self.steady_s, 0.0)

    def renewed(self, expires_ms: int) -> HeldToken:
        """The same token after a renewal that has moved its expiry to ``expires_ms``."""
        most_ms = int(self.most_ms - self.age_ms())
        left_ms = most_ms - (self.token.max_ms - expires_ms)
        token = replace(self.token, expires_ms=expires_ms)
        return replace(
            self, token=token, life_ms=left_ms, most_ms=most_ms, wall_s=time.time(), steady_s=time.monotonic()
        )

    def advice(self) -> str:
        """``keep``, ``renew`` or ``replace``: a renewed token must last, too."""
        left_ms = self.life_ms - self.age_ms()
        if left_ms >= self.life_ms * RENEW_BELOW:
            return "keep"
        return "renew" if left_ms > 0 and self.most_ms - self.age_ms() >= self.life_ms else "replace"


class TokenKeeper:
    """Has one living token, by the credentials of the driver. For one thread."""

    def __init__(self, client: ClientConfig, options: TokenOptions, held: HeldToken | None = None) -> None:
        self._client = client
        self._options = options
        self.held = held
        self._replaced: list[HeldToken] = []
        self._new: HeldToken | None = None
        """A token that was created just now, until all brokers know it."""
        self._not_before_s = 0.0

    def login(self) -> TokenLogin:
        """Of a token with at least half of its time left. Raises the client's errors where there is none."""
        if self.held is not None and self.held.advice() == "keep":
            return self.held.login
        is_alive = self.held is not None and self.held.age_ms() < self.held.life_ms
        if is_alive and self.held is not None and time.monotonic() < self._not_before_s:
            return self.held.login
        with self._admin() as admin:
            limit = admin.router.deadline(RENEW_MS if is_alive else None)
            try:
                self.held = self._next(admin, self.held, limit)
            except KafkaError as error:
                if self.held is None or not is_alive:
                    raise
                self._not_before_s = time.monotonic() + PAUSE_S
                _LOG.warning(
                    "Delegation token %s could not be renewed or replaced; it is used while it lasts: %s",
                    self.held.token.token_id, error,
                )  # fmt: skip
        return self.held.login

    def forget_revoked(self) -> None:
        """Ask the cluster whether it still knows the token."""
        if self.held is None:
            return
        with self._admin() as admin:
            known = admin.describe_delegation_tokens([self.held.token.owner])
        if not any(one.token_id == self.held.token.token_id for one in known):
            self.held = None

    def expire(self) -> None:
        """End all tokens that may still live. Never raises a `KafkaError`: they end by themselves, too."""
        # Those that live longest first: there may be no time for all.
        held = [one for one in (self._new, self.held, *reversed(self._replaced)) if one is not None]
        self._replaced, self.held, self._new = [], None, None
        if not held:
            return
        with self._admin() as admin:
            limit = admin.router.deadline(EXPIRE_MS)
            for one in held:
                try:
                    admin.expire_delegation_token(one.token, limit)
                except KafkaError as error:
                    _LOG.info("Delegation token %s was left to expire: %s", one.token.token_id, error)

    def _next(self, admin: Admin, held: HeldToken | None, limit: Deadline) -> HeldToken:
        if held is not None and held.advice() == "renew":
            try:
                return held.renewed(admin.renew_delegation_token(held.token, limit))
            except KafkaError as error:
                _LOG.info("Delegation token %s is replaced: %s", held.token.token_id, error)
        made = HeldToken.created(
            admin.create_delegation_token(limit, max_lifetime_ms=self._options.max_lifetime_ms)
        )
        self._new = made  # a signal may end the wait: then `expire` ends this one, too
        try:
            admin.await_delegation_token(made.token, admin.router.deadline(KNOWN_MS))
        except KafkaError as error:
            _LOG.warning("Not all brokers know delegation token %s yet: %s", made.token.token_id, error)
        self._new = None
        if held is not None:
            # Tasks that run still use it. Those that have ended need no request.
            self._replaced = [one for one in self._replaced if one.age_ms() < one.life_ms]
            self._replaced.append(held)
        return made

    def _admin(self) -> Admin:
        from ..kafka.admin.admin import Admin  # late: workers read this module, too

        return Admin(self._client)


def _session_folder() -> Path | None:
    """The local folder of the session on the driver, which goes with it."""
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return Path(folder) if folder else None


_in_process: dict[str, HeldToken] = {}
"""The tokens of a process that has no such folder."""


@dataclass(frozen=True, kw_only=True)
class SharedLogin:
    """The login of `shared_login`, and where its token is kept."""

    login: TokenLogin
    place: str

    def forget(self) -> None:
        """The token may be the reason of a failure: the next `shared_login` creates another one."""
        _in_process.pop(self.place, None)
        with suppress(OSError):
            Path(self.place).unlink()


def shared_login(client: ClientConfig, options: TokenOptions, *, ask: bool) -> SharedLogin:
    """A login for the tasks of a batch read or of a micro-batch to write, of which no process sees the end.

    All with the same credentials share it: Spark plans each micro-batch in another process. The session's
    local folder keeps it for them, in a file that only this user can read. ``ask``: ask the cluster first
    whether it has been revoked. Raises the client's errors.
    """
    folder = _session_folder()
    if folder is None or not folder.is_dir():
        place = _key(client, options, b"")
        keeper = TokenKeeper(client, options, _in_process.get(place))
        login = _login(keeper, ask=ask)
        if keeper.held is not None:
            _in_process[place] = keeper.held
        return SharedLogin(login=login, place=place)
    with _locked(folder / "pykafka-tokens") as salt:
        file = folder / f"pykafka-token-{_key(client, options, salt)}"
    with _locked(folder / f"{file.name}-lock"):  # not of others: it is held while the cluster is asked
        keeper = TokenKeeper(client, options, _read(file))
        before = keeper.held
        login = _login(keeper, ask=ask)
        if keeper.held is not None and keeper.held is not before:
            _write(file, keeper.held)
        return SharedLogin(login=login, place=str(file))


def _login(keeper: TokenKeeper, *, ask: bool) -> TokenLogin:
    if ask:
        keeper.forget_revoked()
    return keeper.login()


@contextmanager
def _locked(file: Path) -> Iterator[bytes]:
    """Only one process of this machine is in the block at a time. Yields random bytes of the session."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b") as opened:
        with suppress(ImportError):  # Windows, where Spark plans in a process after the other
            import fcntl

            fcntl.flock(opened, fcntl.LOCK_EX)
        salt = opened.read()
        if not salt:
            salt = os.urandom(32)
            opened.write(salt)
            opened.flush()
        yield salt


def _key(client: ClientConfig, options: TokenOptions, salt: bytes) -> str:
    """Equal for equal credentials only: no user gets the token of another one. It reveals nothing of them."""
    security = {
        one.name: value.reveal() if isinstance(value, Secret) else str(value)
        for one in fields(client.security)
        if (value := getattr(client.security, one.name)) is not None
    }
    identity = _identity(client, security)
    text = json.dumps([client.bootstrap_servers, security, repr(options), identity], sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=salt, digest_size=16).hexdigest()


def _identity(client: ClientConfig, settings: Mapping[str, str]) -> list[str]:
    """The user, as far as the settings themselves do not say it: a ticket cache, a token from a provider, the
    values of files and variables. Raises the client's errors."""
    # A token of a file included, all of it: a token that names another user is easily written.
    found = [resolve(name, value) for name, value in sorted(settings.items()) if is_reference(value)]
    security = client.security
    deadline = Deadline.after_ms(client.default_api_timeout_ms)
    if security.uses_sasl and security.mechanism == "GSSAPI":
        from ..kafka.security.kerberos import log_in, login_of

        return [*found, log_in(login_of(security), deadline)[0]]
    if security.uses_sasl and security.token_provider is not None:
        from ..kafka.security.tokens import current_token

        return [*found, _subject(current_token(security, deadline).reveal())]
    return found


def _subject(token: str) -> str:
    """The user of a token: issuer and subject of a JWT; of another token all of it."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return json.dumps([claims.get("iss", ""), claims["sub"]])
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        return token


def _read(file: Path) -> HeldToken | None:
    from ..kafka.admin.delegation_tokens import DelegationToken

    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
        token = found.pop("token")
        token["hmac"], token["renewers"] = Secret(token["hmac"]), tuple(token["renewers"])
        return HeldToken(token=DelegationToken(**token), **found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # another one is created


def _write(file: Path, held: HeldToken) -> None:
    token = {one.name: getattr(held.token, one.name) for one in fields(held.token)}
    content = {one.name: getattr(held, one.name) for one in fields(held)} | {
        "token": token | {"hmac": held.token.hmac.reveal()}
    }
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix="pykafka-")  # mode 0600
    with os.fdopen(descriptor, "w") as opened:
        json.dump(content, opened)
    os.replace(name, file)


# --- of one batch write -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LentToken:
    """The token of one batch write, which the process that commits or aborts it expires.

    That process gets what tasks get, too. So the driver's credentials are halved: this object has their bytes
    combined with as many random ones (a one-time pad), which are in a file on the driver. Either half
    reveals nothing.
    """

    token: DelegationToken
    options: TokenOptions
    half: bytes
    pad: str

    @classmethod
    def create(cls, client: ClientConfig, options: TokenOptions) -> LentToken:
        """Create a token. Raises the client's errors."""
        keeper = TokenKeeper(client, options)
        keeper.login()
        assert keeper.held is not None
        half, pad = _halved(pickle.dumps(client))
        return cls(token=keeper.held.token, options=options, half=half, pad=pad)

    @property
    def login(self) -> TokenLogin:
        """What tasks get of it."""
        return TokenLogin(token_id=self.token.token_id, hmac=self.token.hmac)

    def expire(self) -> None:
        """End it, once. Never raises a `KafkaError`: it ends by itself, too."""
        content = _joined(self.half, self.pad)
        if content is None:
            _LOG.info("Delegation token %s was left to expire", self.token.token_id)
            return
        TokenKeeper(pickle.loads(content), self.options, HeldToken.created(self.token)).expire()


_DIGEST_BYTES: Final = 32


def _halved(content: bytes) -> tuple[bytes, str]:
    """Two halves of ``content`` and its digest: bytes, and the path of a file; empty where none can be."""
    folder = _session_folder()
    if folder is None or not folder.is_dir():
        return b"", ""
    whole = hashlib.sha256(content).digest() + content
    pad = os.urandom(len(whole))
    descriptor, name = tempfile.mkstemp(dir=folder, prefix="pykafka-pad-")  # mode 0600
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(pad)
    return _combined(whole, pad), name


def _joined(half: bytes, pad: str) -> bytes | None:
    """What `_halved` has made two halves of; its file is removed."""
    if not pad:
        return None
    try:
        other = Path(pad).read_bytes()
        Path(pad).unlink()
    except OSError:
        return None
    if len(other) != len(half):
        return None
    whole = _combined(half, other)
    digest, content = whole[:_DIGEST_BYTES], whole[_DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == digest else None


def _combined(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")
