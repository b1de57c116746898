"""`Mechanism`: what the client side of a SASL mechanism is to whoever carries its messages."""

from __future__ import annotations

from typing import Final, Protocol

from ..config.secret import Secret

MAX_SASL_BYTES: Final = 64 * 1024
"""No message of a mechanism is longer. Those of Kafka's are below a kilobyte, tokens a few."""


class Mechanism(Protocol):
    """One authentication; made anew for each.

    ``token = start()``; then ``token = step(challenge)`` with each answer until it is None: authenticated.
    Raises
    `AuthenticationError` where the broker breaks the rules or does not prove itself. No error shows a secret.
    """

    name: str
    """As Kafka calls it: PLAIN, SCRAM-SHA-512, ..."""

    secret: Secret
    """What a broker's words are not shown for, should they repeat it."""

    def start(self) -> bytes:
        """The first message."""

    def step(self, challenge: bytes) -> bytes | None:
        """The answer to ``challenge``; None once nothing is left to say and the broker has proved what it
        must.
        """
