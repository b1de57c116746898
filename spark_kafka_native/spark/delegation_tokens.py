"""``delegationTokens=true``: the driver logs in with the credentials of the options, tasks with a delegation
token that it creates (KIP-48).

`TokenOptions` makes the config of tasks, which has no credentials, and `TokenLogin` is what they get in their
place. A `TokenKeeper` on the driver creates the token, renews it and creates another one before the last one
ends. A streaming read has a keeper; all other reads and writes have `shared_login` or a `LentToken`.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..kafka.config.client_config import ClientConfig
from ..kafka.config.secret import Secret
from ..kafka.config.security_config import SecurityConfig, SecurityProtocol
from ..kafka.errors import ConfigError, KafkaError
from ..kafka.runtime.deadline import Deadline
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
REPLACE_BELOW: Final = 0.25
"""The share below which another token takes its place even if a broker that answers does not know that one
yet: the end of the last one is closer."""
KNOWN_MS: Final = 10_000
"""How long to wait until all brokers know a new token."""
EXPIRE_MS: Final = 5_000
NEXT_MS: Final = 10_000
"""How long a micro-batch waits for another token while the last one works."""
PAUSE_MS: Final = 60_000
"""After that, if it was in vain, but at most `PAUSE_SHARE` of a token's time."""
PAUSE_SHARE: Final = 0.05


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
class Moment:
    """A time by both clocks of this machine: one stops while it sleeps, and the other one can be set."""

    wall_s: float
    steady_s: float

    @classmethod
    def now(cls) -> Moment:
        """By both clocks."""
        return cls(wall_s=time.time(), steady_s=time.monotonic())

    def age_ms(self) -> float:
        """The milliseconds since then, by the clock by which more time has passed."""
        return 1_000 * max(time.time() - self.wall_s, time.monotonic() - self.steady_s, 0.0)


@dataclass(frozen=True, kw_only=True)
class HeldToken:
    """A token, and how long it lasts from when it was created or renewed.

    The brokers' clock may be another one: only spans of it count.
    """

    token: DelegationToken
    life_ms: int
    """From then to its expiry."""
    most_ms: int
    """From then to the end of its maximum lifetime."""
    since: Moment

    @classmethod
    def created(cls, token: DelegationToken) -> HeldToken:
        """A token that was created just now."""
        return cls(
            token=token,
            life_ms=token.expires_ms - token.issued_ms,
            most_ms=token.max_ms - token.issued_ms,
            since=Moment.now(),
        )

    @property
    def login(self) -> TokenLogin:
        """What tasks get of it."""
        return TokenLogin(token_id=self.token.token_id, hmac=self.token.hmac)

    @property
    def left(self) -> float:
        """The share of its time that is left; 0 once it has expired."""
        return max(0.0, 1 - self.since.age_ms() / self.life_ms) if self.life_ms > 0 else 0.0

    def renewed(self, expires_ms: int) -> HeldToken:
        """The same token after a renewal that has moved its expiry to ``expires_ms``."""
        most_ms = int(self.most_ms - self.since.age_ms())
        left_ms = most_ms - (self.token.max_ms - expires_ms)
        token = replace(self.token, expires_ms=expires_ms)
        return HeldToken(token=token, life_ms=left_ms, most_ms=most_ms, since=Moment.now())

    def advice(self) -> str:
        """``keep``, ``renew`` or ``replace``: a renewed token must last, too."""
        if self.left >= RENEW_BELOW:
            return "keep"
        return "renew" if self.left and self.most_ms - self.since.age_ms() >= self.life_ms else "replace"


@dataclass(frozen=True, kw_only=True)
class KeptTokens:
    """What a `TokenKeeper` knows. Plain data."""

    held: HeldToken | None = None
    """The one that tasks get."""
    coming: HeldToken | None = None
    """The next one, while not all brokers that can be reached know it."""
    failed: Moment | None = None
    """When the last attempt at another token has failed."""

    @property
    def usable(self) -> HeldToken | None:
        """`held`, if tasks get it without a question to the cluster."""
        held = self.held
        if held is None or not held.left:
            return None
        pause_ms = min(PAUSE_MS, held.life_ms * PAUSE_SHARE)
        is_pause = self.failed is not None and self.failed.age_ms() < pause_ms
        return held if is_pause or held.advice() == "keep" else None


class TokenKeeper:
    """Has one living token, by the credentials of the driver. For one thread."""

    def __init__(self, client: ClientConfig, options: TokenOptions, kept: KeptTokens | None = None) -> None:
        self._client = client
        self._options = options
        self.kept = kept or KeptTokens()
        self._replaced: HeldToken | None = None
        """The last one before: tasks that run still use it. Those before it have ended by then."""

    def login(self) -> HeldToken:
        """A token with at least half of its time left, or the last one while there is no other. Raises the
        client's errors where there is none."""
        if (usable := self.kept.usable) is not None:
            return usable
        last = self.kept.held
        is_alive = last is not None and last.left > 0
        with self._admin() as admin:
            try:
                found = self._next(admin, admin.router.deadline(NEXT_MS if is_alive else None))
            except KafkaError as error:
                if last is None or not is_alive:
                    raise
                self.kept = replace(self.kept, failed=Moment.now())
                _LOG.warning(
                    "Delegation token %s could not be renewed or replaced; it is used while it lasts: %s",
                    last.token.token_id, error,
                )  # fmt: skip
                return last
        self.kept = KeptTokens(held=found)
        return found

    def forget_revoked(self) -> None:
        """Ask the cluster whether it still knows the token, and the one that is to replace it."""
        held, coming = self.kept.held, self.kept.coming
        owners = list(dict.fromkeys(one.token.owner for one in (held, coming) if one is not None))
        if not owners:
            return
        with self._admin() as admin:
            known = {one.token_id for one in admin.describe_delegation_tokens(owners)}
        is_revoked = held is not None and held.token.token_id not in known
        # A broker that was asked may not know a new token yet.
        is_new = coming is not None and not is_revoked and coming.since.age_ms() < KNOWN_MS
        if coming is not None and coming.token.token_id not in known and not is_new:
            coming = None
        self.kept = replace(self.kept, held=None if is_revoked else held, coming=coming)

    def expire_new(self, before: KeptTokens) -> bool:
        """End the tokens that were created since ``before``; False if there are none. Never raises a
        `KafkaError`."""
        known = {one.token.token_id for one in (before.held, before.coming) if one is not None}
        held, coming = (
            None if one is None or one.token.token_id in known else one
            for one in (self.kept.held, self.kept.coming)
        )
        TokenKeeper(self._client, self._options, KeptTokens(held=held, coming=coming)).expire()
        return held is not None or coming is not None

    def expire(self) -> None:
        """End all tokens that may still live. Never raises a `KafkaError`: they end by themselves, too."""
        # Those that live longest first: there may be no time for all.
        living = [one for one in (self.kept.coming, self.kept.held, self._replaced) if one is not None]
        self._replaced, self.kept = None, KeptTokens()
        if not living:
            return
        with self._admin() as admin:
            limit = admin.router.deadline(EXPIRE_MS)
            for one in living:
                try:
                    admin.expire_delegation_token(one.token, limit)
                except KafkaError as error:
                    _LOG.info("Delegation token %s was left to expire: %s", one.token.token_id, error)

    def _next(self, admin: Admin, limit: Deadline) -> HeldToken:
        held, coming = self.kept.held, self.kept.coming
        if coming is None or not coming.left:
            if held is not None and held.advice() == "renew":
                try:
                    return held.renewed(admin.renew_delegation_token(held.token, limit))
                except KafkaError as error:
                    _LOG.info("Delegation token %s is replaced: %s", held.token.token_id, error)
            coming = HeldToken.created(
                admin.create_delegation_token(limit, max_lifetime_ms=self._options.max_lifetime_ms)
            )
            # A signal may end the wait: then `expire` ends this one, too.
            self.kept = replace(self.kept, coming=coming)
        try:
            admin.await_delegation_token(coming.token, limit.within_ms(KNOWN_MS))
        except KafkaError as error:
            if held is not None and held.left >= REPLACE_BELOW:
                raise
            _LOG.warning("Not all brokers know delegation token %s yet: %s", coming.token.token_id, error)
        self._replaced = held or self._replaced
        return coming

    def _admin(self) -> Admin:
        from ..kafka.admin.admin import Admin  # late: workers read this module, too

        return Admin(self._client)


def session_folder() -> Path | None:
    """The local folder of the session on the driver, which goes with it; None where there is none."""
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return Path(folder) if folder and Path(folder).is_dir() else None


def write_private(folder: Path, prefix: str, content: bytes) -> str:
    """A new file in the session's ``folder`` that only this user can read. Raises `ConfigError`, and leaves
    no file, where that is not possible."""
    name = None
    try:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=prefix)  # mode 0600
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
    except BaseException as error:
        if name is not None:
            with suppress(OSError):
                os.unlink(name)
        if isinstance(error, OSError):
            raise unusable(folder, error) from error
        raise
    return name


def unusable(folder: Path, error: OSError) -> ConfigError:
    """The error for a session's ``folder`` in which nothing can be kept."""
    return ConfigError(
        f"{_OPTION}=true keeps logins in {folder} (spark.local.dir), which is not possible: "
        f"{(error.strerror or str(error)).lower()}"
    )
