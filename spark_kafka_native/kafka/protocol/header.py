"""Request and response headers. Two of the protocol's special cases live here and nowhere else.

A request header of a flexible version (v2) still has its ``client_id`` as an int16 string; an ApiVersions
response has header v0 at every version, for the client cannot know yet what the broker speaks (KIP-511).
"""

from __future__ import annotations

import struct
from typing import Any

from ..errors import ProtocolError
from .api.api_versions import ApiVersionsRequest
from .message import Request
from .wire import Buffer, Text, read_varint, refuse_length

_REQUEST = struct.Struct(">hhi")
_CORRELATION_ID = struct.Struct(">i")
_write_client_id = Text().writer(compact=False, nullable=True)


def build_request_header(
    request_class: type[Request[Any]], version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Build request header v1, or v2 (with an empty tag section) where ``version`` is flexible."""
    out: list[Buffer] = [_REQUEST.pack(request_class.api_key, version, correlation_id)]
    _write_client_id(client_id, out)
    if version >= request_class.flexible:
        out.append(b"\0")
    return b"".join(out)


def read_correlation_id(frame: memoryview) -> int:
    """Read what every response begins with, whatever its header's version."""
    if len(frame) < _CORRELATION_ID.size:
        raise ProtocolError(f"a response of {len(frame)} bytes is too short to have a correlation id")
    return int(_CORRELATION_ID.unpack_from(frame)[0])


def response_header_size(frame: memoryview, request_class: type[Request[Any]], version: int) -> int:
    """How many bytes of ``frame`` the response header takes: v0, or v1 with its tags skipped."""
    at = _CORRELATION_ID.size
    if version < request_class.flexible or request_class is ApiVersionsRequest:
        return at
    try:
        count, at = read_varint(frame, at)
        for _ in range(count):
            tag, at = read_varint(frame, at)
            size, at = read_varint(frame, at)
            if at + size > len(frame):
                raise refuse_length(f"tag {tag} of the response header", size, at, frame)
            at += size
    except IndexError as error:
        raise ProtocolError(f"a response of {len(frame)} bytes is cut off inside its header") from error
    return at
