"""SASL mechanisms, sans-IO: PLAIN (RFC 4616), SCRAM (RFC 5802, RFC 7677) and OAUTHBEARER (RFC 7628).

A mechanism turns the broker's challenges into the client's messages; `network.authentication` carries them.
User names and passwords are encoded as UTF-8 without SASLprep, as Java's client and Kafka's own tools do:
preparing them here would refuse passwords that those have stored.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from ..config.secret import Secret
from ..errors import AuthenticationError, ConfigError

MAX_SASL_BYTES: Final = 64 * 1024
"""Limit of a SASL message. Kafka's messages are below a kilobyte, tokens a few kilobytes."""


class Mechanism(Protocol):
    """One authentication; each one needs a new object.

    ``token = start()``; then ``token = step(challenge)`` for each challenge, until it returns None:
    authenticated. Raises `AuthenticationError` if the broker violates the protocol or fails to prove its
    identity. No error shows a secret.
    """

    name: str
    """Kafka's name: PLAIN, SCRAM-SHA-512, ..."""

    secret: Secret
    """If an error message of the broker contains it, the message is not shown."""

    def start(self) -> bytes:
        """The first message."""

    def step(self, challenge: bytes) -> bytes | None:
        """The response to ``challenge``; None once the exchange is complete and the broker has proved its
        identity as far as the mechanism allows.
        """


class Plain:
    """PLAIN (RFC 4616): user name and password in clear text; only TLS protects them. The mechanism does not
    authenticate the broker: its certificate must.
    """

    name = "PLAIN"

    def __init__(self, username: str, password: Secret) -> None:
        if not username or not password.reveal():
            raise ConfigError("SASL PLAIN: the user name and the password must not be empty")
        if "\0" in username or "\0" in password.reveal():
            raise ConfigError("SASL PLAIN: the user name and the password must not contain a NUL character")
        self._username = username
        self.secret = password

    def start(self) -> bytes:
        """The only message."""
        return f"\0{self._username}\0{self.secret.reveal()}".encode()

    def step(self, challenge: bytes) -> bytes | None:  # noqa: ARG002 - an answer to PLAIN carries nothing
        """None: in PLAIN there is no further message."""
        return None


MIN_ITERATIONS: Final = 4096
"""RFC 7677. With fewer iterations, as a fake broker could request, the password is cheap to guess from a
recorded exchange."""
MAX_ITERATIONS: Final = 1_000_000
"""About a second of CPU. Kafka stores 4096 to 16384; a hostile broker could request days."""
SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

_GS2_HEADER: Final = "n,,"
_PRINTABLE: Final = re.compile(rb"[\x21-\x2b\x2d-\x7e]+")
_ITERATIONS: Final = re.compile(r"[1-9][0-9]{0,18}")
_SERVER_ERRORS: Final = frozenset(
    (
        "invalid-encoding", "extensions-not-supported", "invalid-proof", "channel-bindings-dont-match",
        "server-does-support-channel-binding", "channel-binding-not-supported",
        "unsupported-channel-binding-type", "unknown-user", "invalid-username-encoding", "no-resources",
        "other-error",
    )
)  # fmt: skip
"""RFC 5802, section 7. Any other error text is not shown: it could contain anything."""


class _State(enum.Enum):
    START = enum.auto()
    SERVER_FIRST = enum.auto()
    SERVER_FINAL = enum.auto()
    DONE = enum.auto()


def new_nonce() -> str:
    """192 random bits, printable and without a comma."""
    return secrets.token_urlsafe(24)


class Scram:
    """SCRAM (RFC 5802, RFC 7677): the password is never sent, and the broker proves that it knows it.

    The states are START -> SERVER_FIRST -> SERVER_FINAL -> DONE; any other message is an
    `AuthenticationError`. ``token_auth``: user name and password are id and HMAC of a delegation token
    (KIP-48).
    """

    def __init__(
        self,
        name: str,
        username: str,
        password: Secret,
        *,
        token_auth: bool = False,
        nonce: Callable[[], str] = new_nonce,
    ) -> None:
        if not username or not password.reveal():
            raise ConfigError(f"SASL {name}: the user name and the password must not be empty")
        self.name = name
        self._hash = SCRAM_HASHES[name]
        self._username = username
        self.secret = password
        self._token_auth = token_auth
        self._nonce = nonce()
        self._state = _State.START
        self._client_first_bare = ""
        self._server_signature = b""

    @property
    def token_id(self) -> str | None:
        """The id of the delegation token; None if it logs in with a password."""
        return self._username if self._token_auth else None

    def start(self) -> bytes:
        """client-first-message."""
        user = self._username.replace("=", "=3D").replace(",", "=2C")
        self._client_first_bare = f"n={user},r={self._nonce}" + (
            ",tokenauth=true" if self._token_auth else ""
        )
        self._state = _State.SERVER_FIRST
        return (_GS2_HEADER + self._client_first_bare).encode()

    def step(self, challenge: bytes) -> bytes | None:
        """client-final-message in response to server-first-message; None once the server's signature is
        verified.
        """
        if len(challenge) > MAX_SASL_BYTES:
            raise self._failure(f"the broker's message is longer than {MAX_SASL_BYTES} bytes")
        state, self._state = self._state, _State.DONE
        if state is _State.SERVER_FIRST:
            answer = self._client_final(challenge)
            self._state = _State.SERVER_FINAL
            return answer
        if state is _State.SERVER_FINAL:
            self._check_final(challenge)
            return None
        raise self._failure("the broker sent a message after the last one")

    def _client_final(self, challenge: bytes) -> bytes:
        fields = self._fields(challenge, ("r", "s", "i"))
        nonce, salt, iterations = fields["r"], self._decode(fields["s"], "salt"), fields["i"]
        if not nonce.startswith(self._nonce) or not _PRINTABLE.fullmatch(nonce.encode()):
            raise self._failure("the broker's nonce does not begin with ours: this is not its answer to us")
        if len(nonce) == len(self._nonce):
            raise self._failure("the broker added nothing to our nonce")
        if not _ITERATIONS.fullmatch(iterations):
            raise self._failure("the broker's iteration count is not a number")
        if not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
            raise self._failure(
                f"the broker asks for {iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are "
                f"allowed"
            )
        binding = base64.b64encode(_GS2_HEADER.encode()).decode()
        without_proof = f"c={binding},r={nonce}"
        signed = f"{self._client_first_bare},{challenge.decode()},{without_proof}".encode()
        proof = self._sign(salt, int(iterations), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _sign(self, salt: bytes, iterations: int, signed: bytes) -> bytes:
        """The client's proof. Stores the signature that the server must send; the salted password is not
        kept.
        """
        password = self.secret.reveal().encode()
        salted = hashlib.pbkdf2_hmac(self._hash, password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        signature = hmac.digest(stored_key, signed, self._hash)
        server_key = hmac.digest(salted, b"Server Key", self._hash)
        self._server_signature = hmac.digest(server_key, signed, self._hash)
        return bytes(a ^ b for a, b in zip(client_key, signature, strict=True))

    def _check_final(self, challenge: bytes) -> None:
        if not challenge:
            raise self._failure("the broker let us in without proving that it knows the password")
        if challenge.startswith(b"e="):
            error = challenge[2:].decode("ascii", "replace")
            raise self._failure(f"the broker refused: {error if error in _SERVER_ERRORS else 'other-error'}")
        signature = self._decode(self._fields(challenge, ("v",))["v"], "signature")
        if not hmac.compare_digest(signature, self._server_signature):
            raise self._failure(
                "the broker's signature is wrong: it does not know the password, and may be an impostor"
            )

    def _fields(self, message: bytes, names: tuple[str, ...]) -> dict[str, str]:
        """The attributes of a server message: exactly ``names`` in this order; each extension may follow
        once.
        """
        if not message.isascii():
            raise self._failure("the broker's message is not ASCII")
        pairs = [part.partition("=") for part in message.decode().split(",")]
        found = {name: value for name, _, value in pairs}
        if any(name == "m" for name, _, _ in pairs):
            raise self._failure("the broker demands an extension (m=) that this client does not know")
        if len(found) != len(pairs):
            raise self._failure("the broker's message has an attribute twice")
        if tuple(name for name, _, _ in pairs[: len(names)]) != names or not all(
            found[name] for name in names
        ):
            raise self._failure(f"the broker's message lacks one of the attributes {', '.join(names)}")
        return found

    def _decode(self, text: str, what: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise self._failure(f"the broker's {what} is not base64") from None

    def _failure(self, why: str) -> AuthenticationError:
        return AuthenticationError(f"{self.name}: {why}")


_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x20-\x7e\t\r\n]+")
_STATUSES: Final = frozenset(("invalid_request", "invalid_token", "insufficient_scope"))
_KICK: Final = b"\x01"
"""The client's response to an error, after which the broker fails the authentication in the regular way."""


class OAuthBearer:
    r"""OAUTHBEARER (RFC 7628): a bearer token and optional SASL extensions (KIP-342).

    One message. A broker that refuses the token sends the reason, and expects `\x01` before it fails.
    """

    name = "OAUTHBEARER"

    def __init__(self, token: Secret, extensions: Mapping[str, str] | None = None) -> None:
        self._extensions = dict(extensions or {})
        if not _TOKEN.fullmatch(token.reveal()):
            raise ConfigError(
                "SASL OAUTHBEARER: the token is empty or has characters that no bearer token has"
            )
        check_extensions(self._extensions)
        self.secret = token
        self._refused: str | None = None

    def start(self) -> bytes:
        """The token with its extensions."""
        extensions = "".join(f"\x01{name}={value}" for name, value in self._extensions.items())
        message = f"n,,\x01auth=Bearer {self.secret.reveal()}{extensions}\x01\x01".encode()
        if len(message) > MAX_SASL_BYTES:
            raise ConfigError(f"SASL OAUTHBEARER: token and extensions take more than {MAX_SASL_BYTES} bytes")
        return message

    def step(self, challenge: bytes) -> bytes | None:
        """None for an empty challenge: accepted. Any other challenge is the broker's reason to refuse."""
        if self._refused is not None:
            raise AuthenticationError(f"OAUTHBEARER: the broker refused the token ({self._refused})")
        if not challenge:
            return None
        if len(challenge) > MAX_SASL_BYTES:
            raise AuthenticationError(
                f"OAUTHBEARER: the broker's message is longer than {MAX_SASL_BYTES} bytes"
            )
        self._refused = _status(challenge)
        return _KICK


def check_extensions(extensions: Mapping[str, str]) -> None:
    """Raise `ConfigError` for an extension that RFC 7628 and KIP-342 do not allow; its value is not shown."""
    for name, value in extensions.items():
        if not _EXTENSION_NAME.fullmatch(name) or name.lower() == "auth":
            raise ConfigError("SASL OAUTHBEARER: the name of an extension is letters only, and not auth")
        if not _EXTENSION_VALUE.fullmatch(value):
            raise ConfigError(f"SASL OAUTHBEARER: the extension {name} is empty or not printable ASCII")


def _status(challenge: bytes) -> str:
    try:
        answer = json.loads(challenge)
    except (ValueError, RecursionError):
        return "without a reason that can be read"
    status = answer.get("status") if isinstance(answer, dict) else None
    return status if isinstance(status, str) and status in _STATUSES else "without a known reason"
