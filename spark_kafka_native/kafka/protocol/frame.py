"""Frames: an int32 length, then that many bytes. The length is the first thing a stranger may lie about.

The cap is checked before anything of that size is allocated; the first four bytes of other protocols are
recognised, for a wrong port is the likeliest reason (Java clients used to allocate 352 MB for a TLS alert:
KAFKA-4493).
"""

from __future__ import annotations

import struct
from typing import Final

from ..errors import ProtocolError
from .wire import Buffer, join_short

MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
"""The default cap on a response: twice ``fetch.max.bytes``, and what librdkafka and franz-go allow."""

PREFIX_BYTES: Final = 4

_LENGTH: Final = struct.Struct(">i")
_TLS_RECORD_TYPES: Final = {0x15: "a TLS alert", 0x16: "a TLS handshake"}


def build_frame(buffers: list[Buffer]) -> list[Buffer]:
    """Put the length before ``buffers``; what is short goes into one buffer with it."""
    return join_short([_LENGTH.pack(sum(map(len, buffers))), *buffers])


def read_frame_length(prefix: Buffer, max_frame_length: int = MAX_FRAME_BYTES) -> int:
    """Read how many bytes follow the four of ``prefix``; `ProtocolError` for what is no Kafka response."""
    if spoken := _other_protocol(bytes(prefix)):
        raise ProtocolError(f"the peer answered with {spoken}")
    length = int(_LENGTH.unpack(prefix)[0])
    if length < 0:
        raise ProtocolError(
            f"the frame length {length} is negative: this is not a Kafka broker, or the stream broke"
        )
    if length < PREFIX_BYTES:
        raise ProtocolError(f"a frame of {length} bytes is too short to have a correlation id")
    if length > max_frame_length:
        raise ProtocolError(
            f"a frame of {length} bytes is over the limit of {max_frame_length}: raise "
            "receive.message.max.bytes, or check that the port speaks the Kafka protocol"
        )
    return length


def _other_protocol(prefix: bytes) -> str | None:
    if prefix == b"HTTP":
        return "HTTP: the port belongs to a web server, not to a Kafka listener"
    if prefix == b"SSH-":
        return "SSH: the port belongs to an SSH server, not to a Kafka listener"
    kind = _TLS_RECORD_TYPES.get(prefix[0])
    if kind and prefix[1] == 3 and prefix[2] <= 4:
        return f"{kind}: the listener speaks TLS; set security.protocol to SSL or SASL_SSL"
    return None
