"""SaslHandshake and SaslAuthenticate: the way of a mechanism's messages (KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

from ..message import Request, Response, field
from ..wire import Bytes, Error, Int64, String


class SaslHandshakeResponse(Response):
    """The mechanisms that the listener has, also where it refuses the one asked for."""

    error_code: Error
    mechanisms: list[String]


class SaslHandshakeRequest(Request[SaslHandshakeResponse], api_key=17, versions=(1, 1)):
    """Version 1: the mechanism's messages follow as SaslAuthenticate. After version 0 they would be bare
    bytes.
    """

    mechanism: String


class SaslAuthenticateResponse(Response):
    """The broker's message. ``session_lifetime_ms`` after the last one: authenticate again by then; 0:
    never.
    """

    error_code: Error
    error_message: String | None = field(nullable=0)
    auth_bytes: Bytes
    session_lifetime_ms: Int64 = field(since=1, ignorable=True, default=0)


class SaslAuthenticateRequest(Request[SaslAuthenticateResponse], api_key=36, versions=(0, 2), flexible=2):
    """The client's message. A dataclass prints its fields: this one holds secrets and must not."""

    auth_bytes: Bytes

    def __repr__(self) -> str:
        return "SaslAuthenticateRequest(auth_bytes=****)"
