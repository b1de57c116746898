"""What the process that ends a batch write gets in the place of the driver's credentials.

Spark pickles its writer for tasks and for the process that commits or aborts alike, so that one has what
tasks have: a delegation token, which may have ended by then. `DriverCredentials` lets it log in as the driver
does, and `LentToken` is the token of the write, which it expires.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...kafka.config.client_config import ClientConfig
from ..delegation_tokens import (
    HeldToken,
    KeptTokens,
    TokenKeeper,
    TokenLogin,
    TokenOptions,
    session_folder,
    write_private,
)

if TYPE_CHECKING:
    from ...kafka.admin.delegation_tokens import DelegationToken

_LOG: Final = logging.getLogger("spark_kafka_native")
_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, kw_only=True)
class DriverCredentials:
    """The driver's client, halved: its bytes combined with as many random ones (a one-time pad), which are in
    a file on the driver. Either half reveals nothing.
    """

    half: bytes
    """Empty in a session without a local folder: then there are no credentials."""
    pad: str

    @classmethod
    def of(cls, client: ClientConfig) -> DriverCredentials:
        """Halve ``client``. Raises `ConfigError` where the session's folder takes no half."""
        folder = session_folder()
        if folder is None:
            return cls(half=b"", pad="")
        content = pickle.dumps(client)
        whole = hashlib.sha256(content).digest() + content
        pad = os.urandom(len(whole))
        name = write_private(folder, "pykafka-pad-", pad)
        return cls(half=_combined(whole, pad), pad=name)

    def client(self) -> ClientConfig | None:
        """The driver's client; None if its other half is not there (any more)."""
        if not self.pad:
            return None
        try:
            other = Path(self.pad).read_bytes()
        except OSError:
            return None
        if len(other) != len(self.half):
            return None
        whole = _combined(self.half, other)
        digest, content = whole[:_DIGEST_BYTES], whole[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != digest:
            return None
        client: ClientConfig = pickle.loads(content)
        return client

    def discard(self) -> None:
        """Nothing is left to end: remove the half that is on the driver."""
        if self.pad:
            with suppress(OSError):
                Path(self.pad).unlink()


def _combined(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")


@dataclass(frozen=True, kw_only=True)
class LentToken:
    """The token of one batch write."""

    token: DelegationToken
    options: TokenOptions
    credentials: DriverCredentials

    @classmethod
    def create(cls, client: ClientConfig, options: TokenOptions) -> LentToken:
        """Create a token. Raises the client's errors."""
        credentials = DriverCredentials.of(client)  # first: without it the token could not be ended
        try:
            token = TokenKeeper(client, options).login().token
        except BaseException:
            credentials.discard()
            raise
        return cls(token=token, options=options, credentials=credentials)

    @property
    def login(self) -> TokenLogin:
        """What tasks get of it."""
        return TokenLogin(token_id=self.token.token_id, hmac=self.token.hmac)

    def expire(self) -> None:
        """End it, once. Never raises a `KafkaError`: it ends by itself, too."""
        client = self.credentials.client()
        self.credentials.discard()
        if client is None:
            _LOG.info("Delegation token %s was left to expire", self.token.token_id)
            return
        kept = KeptTokens(held=HeldToken.created(self.token))
        TokenKeeper(client, self.options, kept).expire()
