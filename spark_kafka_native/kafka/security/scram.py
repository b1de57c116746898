"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the password never leaves, and the broker proves
to know it.

Names and passwords go as UTF-8 without SASLprep, as in Java's client and Kafka's own tools: preparing them
here would
refuse passwords that those have stored.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Final

from ..config.secret import Secret
from ..errors import AuthenticationError, ConfigError
from .mechanism import MAX_SASL_BYTES

MIN_ITERATIONS: Final = 4096
"""RFC 7677. Fewer make a recorded exchange cheap to guess the password from: a fake broker would ask for
1.
"""
MAX_ITERATIONS: Final = 1_000_000
"""About a second of CPU. Kafka stores 4096 to 16384; a hostile broker could ask for days."""
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
"""RFC 5802, section 7. What is not among them is not shown: it could be anything."""


class _State(enum.Enum):
    START = enum.auto()
    SERVER_FIRST = enum.auto()
    SERVER_FINAL = enum.auto()
    DONE = enum.auto()


def new_nonce() -> str:
    """192 random bits, printable and without a comma."""
    return secrets.token_urlsafe(24)


class Scram:
    """START -> SERVER_FIRST -> SERVER_FINAL -> DONE; anything else that comes is an `AuthenticationError`.

    ``token_auth``: user name and password are id and HMAC of a delegation token (KIP-48).
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

    def start(self) -> bytes:
        """client-first-message."""
        user = self._username.replace("=", "=3D").replace(",", "=2C")
        self._client_first_bare = f"n={user},r={self._nonce}" + (
            ",tokenauth=true" if self._token_auth else ""
        )
        self._state = _State.SERVER_FIRST
        return (_GS2_HEADER + self._client_first_bare).encode()

    def step(self, challenge: bytes) -> bytes | None:
        """client-final-message for server-first-message; None once the server's signature was right."""
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
        """The client's proof; notes the signature that the server must show. The salted password ends
        here.
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
            told = challenge[2:].decode("ascii", "replace")
            raise self._failure(f"the broker refused: {told if told in _SERVER_ERRORS else 'other-error'}")
        signature = self._decode(self._fields(challenge, ("v",))["v"], "signature")
        if not hmac.compare_digest(signature, self._server_signature):
            raise self._failure(
                "the broker's signature is wrong: it does not know the password, and may be an impostor"
            )

    def _fields(self, message: bytes, names: tuple[str, ...]) -> dict[str, str]:
        """The attributes of a server's message: these, in this order; extensions may follow, once each."""
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
