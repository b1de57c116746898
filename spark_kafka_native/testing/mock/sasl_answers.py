"""Answers to a client that authenticates: SASL PLAIN (RFC 4616), with or without TLS."""

from __future__ import annotations

from typing import Final

from ...kafka.error_code import ErrorCode
from .mock_cluster import Call, MockCluster
from .script import Fields

BEFORE_USERS: Final = ("ApiVersions", "SaslHandshake", "SaslAuthenticate")
"""What a connection may ask before its user is known."""

_MECHANISM: Final = "PLAIN"


def sasl_handshake(_cluster: MockCluster, call: Call) -> Fields:
    """SaslHandshake."""
    is_known = call.fields["mechanism"] == _MECHANISM
    code = ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
    return {"error_code": code, "mechanisms": [_MECHANISM]}


def sasl_authenticate(cluster: MockCluster, call: Call) -> Fields:
    """SaslAuthenticate: from then on the connection may ask anything."""
    _, user, password = [*call.fields["auth_bytes"].split(b"\0"), b"", b""][:3]
    users = cluster.users or {}
    if users.get(user.decode(errors="replace"), "").encode() != password or not password:
        message = "Authentication failed: Invalid username or password"
        return {"error_code": ErrorCode.SASL_AUTHENTICATION_FAILED, "error_message": message}
    cluster.authenticated.add(call.request.connection)
    return {"error_message": None}
