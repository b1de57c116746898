"""SaslHandshake and SaslAuthenticate: carry the messages of a SASL mechanism (KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

from ..message import Request, Response, field
from ..wire import Bytes, Error, Int64, String


class SaslHandshakeResponse(Response):
    """The mechanisms of the listener, also if it refuses the requested one."""

    error_code: Error
    mechanisms: list[String]


class SaslHandshakeRequest(Request[SaslHandshakeResponse], api_key=17, versions=(1, 1)):
    """Version 1: the mechanism's messages follow as SaslAuthenticate. After version 0 they would follow
    without a header.
    """

    mechanism: String


class SaslAuthenticateResponse(Response):
    """The broker's message. The client must authenticate again within ``session_lifetime_ms`` of the last
    one; 0: never.
    """

    error_code: Error
    error_message: String | None = field(nullable=0)
    auth_bytes: Bytes
    session_lifetime_ms: Int64 = field(since=1, ignorable=True, default=0)


class SaslAuthenticateRequest(Request[SaslAuthenticateResponse], api_key=36, versions=(0, 2), flexible=2):
    """The client's message. It holds secrets, so its ``repr`` does not show its field."""

    auth_bytes: Bytes

    def __repr__(self) -> str:
        return "SaslAuthenticateRequest(auth_bytes=****)"
