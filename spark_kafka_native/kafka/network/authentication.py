"""SASL on a new connection (KIP-43, KIP-152, KIP-368): chooses the configured mechanism and exchanges its
messages.

A failure is final (`AuthenticationError`): another attempt with the same credentials would lock accounts.
There is no fallback to another mechanism.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

from ..config.jaas import JaasConfig
from ..config.secret import Secret
from ..config.security_config import SecurityConfig
from ..error_code import ErrorCode
from ..errors import (
    AuthenticationError,
    ConfigError,
    LoginClosedError,
    NetworkError,
    RequestTimedOutError,
)
from ..protocol.api.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest
from ..protocol.message import Request, Response
from ..protocol.versions import VersionRanges, negotiate
from ..runtime.deadline import Deadline
from ..runtime.fork import no_fork
from ..security.config_providers import resolve
from ..security.credentials import as_given, jaas_of, option, revealed
from ..security.sasl import Mechanism, OAuthBearer, Plain, Scram
from ..security.tokens import current_token, forget_token

MAX_ROUNDS: Final = 8
"""Maximum number of client messages in one authentication; SCRAM needs two."""
_MAX_SHOWN: Final = 200
_TELLING: Final = 12
"""If an error message of the broker repeats this many consecutive characters of a secret, it is not shown."""


_EXTENSION: Final = "extension_"
_SAYS_LIFETIME: Final = 1
"""The first version of SaslAuthenticate with the lifetime of the session in its response."""
R = TypeVar("R", bound=Response)


class Peer(Protocol):
    """A connected broker that answers one request at a time."""

    @property
    def address(self) -> str:
        """``host:port``, for errors."""

    def ask(self, request: Request[R], version: int, deadline: Deadline) -> R:
        """Send ``request`` in exactly that version and wait for its response. Raises `NetworkError` and
        `ProtocolError`.
        """


def authenticate(
    peer: Peer, security: SecurityConfig, api_versions: VersionRanges, deadline: Deadline
) -> int:
    """Authenticate as ``security`` says. Returns the session's lifetime in milliseconds, 0 if it does not
    expire.

    Raises `AuthenticationError`, `ConfigError`, and what the connection raises.
    """
    mechanism = mechanism_for(security, peer.address.rpartition(":")[0], deadline)
    try:
        _choose(peer, mechanism, api_versions, deadline)
        version = negotiate(SaslAuthenticateRequest, api_versions)
        lifetime_ms = _exchange(peer, mechanism, version, deadline)
        if not lifetime_ms and version >= _SAYS_LIFETIME and _token_id(mechanism) is not None:
            # The broker removes expired tokens now and then only. Until then they pass, for no time at all.
            raise AuthenticationError(f"{mechanism.name}: the session has ended as it began")
        return lifetime_ms
    except AuthenticationError as error:
        _forget_credentials(security)
        raise AuthenticationError(f"{peer.address}: {error}{_about_token(mechanism, security)}") from None
    except ConfigError:  # a token that is too long
        forget_token(security)
        raise
    except RequestTimedOutError:
        raise
    except NetworkError as error:
        raise LoginClosedError(f"{error} while authenticating with {mechanism.name}") from error


def _token_id(mechanism: Mechanism) -> str | None:
    return mechanism.token_id if isinstance(mechanism, Scram) else None


def _about_token(mechanism: Mechanism, security: SecurityConfig) -> str:
    if _token_id(mechanism) is None:
        return ""
    token_id = as_given(security, security.username, "username")
    return f". Delegation token {token_id} has expired or was revoked, or this broker does not know it yet"


def _choose(peer: Peer, mechanism: Mechanism, api_versions: VersionRanges, deadline: Deadline) -> None:
    request = SaslHandshakeRequest(mechanism=mechanism.name)
    response = peer.ask(request, negotiate(SaslHandshakeRequest, api_versions), deadline)
    if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(_shown(name) for name in response.mechanisms) or "none"
        raise AuthenticationError(
            f"the broker does not offer the SASL mechanism {mechanism.name}; it offers {offered}"
        )
    if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationError(
            "the listener takes no SASL; set security.protocol to PLAINTEXT or SSL, or use its SASL port"
        )
    if response.error_code:
        raise AuthenticationError(f"the broker refused {mechanism.name}: {response.error_code.name}")


def _exchange(peer: Peer, mechanism: Mechanism, version: int, deadline: Deadline) -> int:
    message = mechanism.start()
    for _ in range(MAX_ROUNDS):
        response = peer.ask(SaslAuthenticateRequest(auth_bytes=message), version, deadline)
        _raise_if_refused(response, mechanism)
        answer = mechanism.step(response.auth_bytes)
        if answer is None:
            return max(0, response.session_lifetime_ms)
        message = answer
    raise AuthenticationError(f"{mechanism.name}: authentication did not finish in {MAX_ROUNDS} rounds")


def _raise_if_refused(response: SaslAuthenticateResponse, mechanism: Mechanism) -> None:
    if not response.error_code:
        return
    text = response.error_message or ""
    text = "" if _echoes(text, mechanism.secret.reveal()) else _shown(text)
    reason = f" ({text})" if text else ""
    raise AuthenticationError(f"{mechanism.name}: the broker refused: {response.error_code.name}{reason}")


def _echoes(text: str, secret: str) -> bool:
    """True if ``text`` contains the secret, or enough of a long one to be of use: a broker may return a token
    truncated.
    """
    size = min(len(secret), _TELLING)
    return size > 0 and any(secret[at : at + size] in text for at in range(len(secret) - size + 1))


def _shown(text: str) -> str:
    """A broker's text, made safe for a log."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MAX_SHOWN])


def mechanism_for(security: SecurityConfig, host: str, deadline: Deadline) -> Mechanism:
    """The configured mechanism, never another one, with the credentials of this moment: a rotated file takes
    effect at once. ``host`` is what the broker was dialled as.

    Raises `ConfigError`; with OAUTHBEARER also the errors of `current_token`, with GSSAPI those of
    `gssapi_mechanism`.
    """
    name = security.mechanism
    if name is None:
        raise ConfigError("sasl.mechanism is missing")
    if name == "GSSAPI":
        with no_fork():
            from ..security.kerberos import gssapi_mechanism  # late: only Kerberos needs it

        return gssapi_mechanism(security, host, deadline)
    jaas = jaas_of(security)
    if name == "OAUTHBEARER":
        extensions, token = _extensions(security, jaas), current_token(security, deadline)
        try:
            return OAuthBearer(token, extensions)
        except ConfigError:
            forget_token(security)
            raise
    username, password = _login(security, jaas)
    if name == "PLAIN":
        return Plain(username, password)
    token_auth = security.token_auth or (revealed(jaas, "tokenauth") or "").lower() == "true"
    return Scram(name, username, password, token_auth=token_auth)


def _forget_credentials(security: SecurityConfig) -> None:
    """Get new ones for the next connection: a broker has refused the present ones."""
    forget_token(security)
    if security.mechanism == "GSSAPI":
        from ..security.kerberos import forget_login  # it is imported: a login was made

        forget_login(security)


def _login(security: SecurityConfig, jaas: JaasConfig | None) -> tuple[str, Secret]:
    username = security.username or revealed(jaas, "username")
    password = security.password or option(jaas, "password")
    if username is None or password is None:
        raise ConfigError("sasl.jaas.config lacks username or password")
    return resolve("sasl.username", username), Secret(resolve("sasl.password", password))


def _extensions(security: SecurityConfig, jaas: JaasConfig | None) -> dict[str, str]:
    found = dict(security.extensions)
    for known, value in () if jaas is None else jaas.options:
        if known.startswith(_EXTENSION):
            name = known.removeprefix(_EXTENSION)
            if found.setdefault(name, value.reveal()) != value.reveal():
                both = "sasl.oauthbearer.extensions and sasl.jaas.config"
                raise ConfigError(f"the extension {name} is given twice, by {both}, with two values")
    return found
