"""PLAIN (RFC 4616): name and password as they are. Only TLS keeps them from being read on the way."""

from __future__ import annotations

from ..config.secret import Secret
from ..errors import ConfigError


class Plain:
    """The broker proves nothing in PLAIN: its certificate must."""

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
        """Done: that the broker did not refuse is all there is."""
        return None
