"""GSSAPI (RFC 4752), sans-IO: Kerberos proves both sides to each other, then both agree on no security layer.

The Kerberos library stands behind `SecurityContext` (`security.kerberos` makes one), which has contacted the
KDC before the exchange begins: the mechanism itself only computes.
"""

from __future__ import annotations

import enum
from typing import Final, Protocol

from ..config.secret import Secret
from ..errors import AuthenticationError
from .sasl import MAX_SASL_BYTES

NO_LAYER: Final = 1
_LAYERS: Final = {NO_LAYER: "none", 2: "integrity", 4: "confidentiality"}
_OFFER_BYTES: Final = 4
"""One byte with the layers, three with the size of the largest message."""


class SecurityContext(Protocol):
    """The client's side of a security context (RFC 2743). Each method raises `AuthenticationError` with what
    the library said.
    """

    @property
    def complete(self) -> bool:
        """True once the context is established."""

    @property
    def mutual(self) -> bool:
        """True if the broker has proved its identity; meaningful once the context is established."""

    @property
    def principal(self) -> str:
        """The client's own principal; known once the context is established."""

    def step(self, token: bytes) -> bytes:
        """Process the broker's token. Returns the next token for it, empty if none is needed."""

    def unwrap(self, message: bytes) -> bytes:
        """The content of a message of the broker, with its integrity verified."""

    def wrap(self, content: bytes) -> bytes:
        """A message for the broker, with protected integrity but readable."""


class _State(enum.Enum):
    CONTEXT = enum.auto()
    LAYERS = enum.auto()
    OUTCOME = enum.auto()
    DONE = enum.auto()


class Gssapi:
    """GSSAPI with a context and the context's first token.

    The states are CONTEXT (tokens until the context is established) -> LAYERS (the broker offers security
    layers, the client chooses "none") -> OUTCOME (an empty message) -> DONE; any other message is an
    `AuthenticationError`. Kafka knows no security layer: TLS is what encrypts.
    """

    name = "GSSAPI"

    def __init__(self, context: SecurityContext, first: bytes) -> None:
        self.secret = Secret("")
        self._context = context
        self._first = first
        self._state = _State.CONTEXT

    def start(self) -> bytes:
        """The context's first token."""
        if not self._first or len(self._first) > MAX_SASL_BYTES:
            raise self._failure(
                f"the first token of the Kerberos library has {len(self._first)} bytes; 1 to "
                f"{MAX_SASL_BYTES} are allowed"
            )
        return self._first

    def step(self, challenge: bytes) -> bytes | None:
        """The answer to the broker's token or offer; None once the broker has accepted the choice."""
        if len(challenge) > MAX_SASL_BYTES:
            raise self._failure(f"the broker's message is longer than {MAX_SASL_BYTES} bytes")
        state, self._state = self._state, _State.DONE
        if state is _State.CONTEXT:
            return self._establish(challenge)
        if state is _State.LAYERS:
            return self._choose(challenge)
        if state is _State.OUTCOME and not challenge:
            return None
        raise self._failure("the broker sent a message after the last one")

    def _establish(self, challenge: bytes) -> bytes:
        if not challenge:
            raise self._failure("the broker ended the exchange without proving its identity")
        answer = self._context.step(challenge)
        if not self._context.complete:
            if not answer:
                raise self._failure("the context is incomplete and has nothing left to send")
            self._state = _State.CONTEXT
            return answer
        if not self._context.mutual:
            raise self._failure("the broker did not prove its identity (no mutual authentication)")
        self._state = _State.LAYERS
        return answer

    def _choose(self, challenge: bytes) -> bytes:
        offer = self._context.unwrap(challenge)
        if len(offer) != _OFFER_BYTES:
            raise self._failure(
                f"the broker's offer of security layers has {len(offer)} bytes instead of {_OFFER_BYTES}"
            )
        if not offer[0] & NO_LAYER:
            offered = ", ".join(name for bit, name in _LAYERS.items() if offer[0] & bit) or "nothing"
            raise self._failure(
                f"the broker demands a security layer (it offers {offered}), which Kafka's protocol does not "
                f"have; the listener must offer the quality of protection auth, and SASL_SSL encrypts"
            )
        # The size that the broker offers is not looked at: it is for layers, and Java's brokers send 65536
        # with "none", although RFC 4752 has 0. Ours must be 0. The identity is Java's, too: the principal.
        self._state = _State.OUTCOME
        return self._context.wrap(bytes((NO_LAYER, 0, 0, 0)) + self._context.principal.encode())

    def _failure(self, why: str) -> AuthenticationError:
        return AuthenticationError(f"GSSAPI: {why}")
