"""OAUTHBEARER (RFC 7628): a bearer token and, if any, SASL extensions (KIP-342)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from ..config.secret import Secret
from ..errors import AuthenticationError, ConfigError
from .mechanism import MAX_SASL_BYTES

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x20-\x7e\t\r\n]+")
_STATUSES: Final = frozenset(("invalid_request", "invalid_token", "insufficient_scope"))
_KICK: Final = b"\x01"
"""What a client answers to an error, to be told the failure in the regular way."""


class OAuthBearer:
    """One message; a broker that refuses the token says why, and expects `\\x01` before it fails."""

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
        """None for an empty answer: accepted. Any other is the broker's reason to refuse."""
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
    """`ConfigError` for an extension that RFC 7628 and KIP-342 do not allow; its value is not shown."""
    for name, value in extensions.items():
        if not _EXTENSION_NAME.fullmatch(name) or name.lower() == "auth":
            raise ConfigError("SASL OAUTHBEARER: the name of an extension is letters only, and not auth")
        if not _EXTENSION_VALUE.fullmatch(value):
            raise ConfigError(f"SASL OAUTHBEARER: the extension {name} is empty or not printable ASCII")


def _status(challenge: bytes) -> str:
    try:
        told = json.loads(challenge)
    except (ValueError, RecursionError):
        return "without a reason that can be read"
    status = told.get("status") if isinstance(told, dict) else None
    return status if isinstance(status, str) and status in _STATUSES else "without a known reason"
