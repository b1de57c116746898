"""The protocol half of a connection: frames, request and response headers, correlation ids.

Sans I/O: no socket, clock or thread. The owner calls ``send`` in the order of writing and ``receive`` in the
order of reading. A broker answers in order, so any correlation id but the oldest in flight is a
`ProtocolError`, after which the connection must be closed.

A frame is an int32 length and as many bytes. The length is the first number in which a peer can lie: it is
checked against the cap before anything of that size is allocated. The first four bytes of other protocols are
recognised, because a wrong port is the most likely reason (Java clients used to allocate 352 MB for a TLS
alert: KAFKA-4493).

Two special cases of headers: a request header of a flexible version (v2) still has its ``client_id`` as an
int16 string; an ApiVersions response has header v0 at every version, because the client does not know yet
which versions the broker supports (KIP-511).
"""

from __future__ import annotations

import collections
import struct
from dataclasses import dataclass
from typing import Any, Final

from ..error_code import ErrorCode
from ..errors import ProtocolError
from .api.api_versions import ApiVersionsRequest
from .message import Request, Response
from .message_codec import codec
from .wire import Buffer, Text, join_short, read_varint, refuse_length

MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
"""The default cap on a response: twice ``fetch.max.bytes``, and the limit of librdkafka and franz-go."""
PREFIX_BYTES: Final = 4
MAX_KEPT_BYTES: Final = 256 * 1024
"""The size up to which a response is kept for comparison with the next one: some 5,000 partitions."""

_LENGTH: Final = struct.Struct(">i")
_REQUEST_HEADER: Final = struct.Struct(">hhi")
_CORRELATION_ID: Final = struct.Struct(">i")
_LAST_CORRELATION_ID: Final = (1 << 31) - 1
_TLS_RECORD_TYPES: Final = {0x15: "a TLS alert", 0x16: "a TLS handshake"}
_write_client_id = Text().writer(compact=False, nullable=True)
_UNSUPPORTED_VERSION: Final = int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(2, "big")


@dataclass(frozen=True, slots=True)
class _InFlight:
    correlation_id: int
    request: Request[Any]
    version: int


class Framing:
    """Correlation ids and framing of one connection. Thread-safe for one sender and one receiver only."""

    def __init__(self, client_id: str | None, *, max_frame_length: int = MAX_FRAME_BYTES) -> None:
        self._client_id = client_id
        self.max_frame_length = max_frame_length
        self._next_correlation_id = 0
        self._in_flight: collections.deque[_InFlight] = collections.deque()
        self._last: dict[tuple[type[Request[Any]], int], tuple[bytes, Response]] = {}
        """The last response to each polled request."""

    @property
    def in_flight(self) -> int:
        """The number of requests that wait for their response."""
        return len(self._in_flight)

    def send(self, request: Request[Any], version: int) -> tuple[int, list[Buffer]]:
        """Return the correlation id and the frame of a request, as buffers to be written in this order.

        The request is not in flight if this raises, or if it is never answered (``request.answered``).
        """
        request_class = type(request)
        body = codec(request_class, version).write(request.downgraded(version))
        correlation_id = self._next_correlation_id
        header = build_request_header(request_class, version, correlation_id, self._client_id)
        self._next_correlation_id = 0 if correlation_id == _LAST_CORRELATION_ID else correlation_id + 1
        if request.answered:
            self._in_flight.append(_InFlight(correlation_id, request, version))
        return correlation_id, build_frame([header, *body])

    def frame_length(self, prefix: Buffer) -> int:
        """Return the number of bytes behind ``prefix``; `ProtocolError` if too long, or no Kafka response."""
        return read_frame_length(prefix, self.max_frame_length)

    def receive(self, frame: memoryview) -> tuple[int, Response]:
        """Return the correlation id and the response in a frame (without its length); records are views."""
        correlation_id = read_correlation_id(frame)
        if not self._in_flight:
            raise ProtocolError(
                f"a response with correlation id {correlation_id} came, but nothing was asked"
            )
        oldest = self._in_flight[0]
        if correlation_id != oldest.correlation_id:
            raise ProtocolError(
                f"a response with correlation id {correlation_id} came where {oldest.correlation_id} "
                f"({type(oldest.request).api_name()} v{oldest.version}) was due"
            )
        self._in_flight.popleft()
        request_class = type(oldest.request)
        body = frame[response_header_size(frame, request_class, oldest.version) :]
        version = oldest.version
        if request_class is ApiVersionsRequest and body[:2] == _UNSUPPORTED_VERSION:
            # KIP-511: a broker that does not know the version answers in the version that all clients know.
            version = 0
        response = self._read(request_class, version, body)
        return correlation_id, response.upgraded(version, oldest.request)

    def _read(self, request_class: type[Request[Any]], version: int, body: memoryview) -> Response:
        """Return the response in ``body``: the previous one if the bytes are the same."""
        last = self._last.get((request_class, version))
        if last is not None and memoryview(last[0]) == body:
            return last[1]
        response = codec(request_class.response, version).read(body)
        if request_class.polled:
            self._last.pop((request_class, version), None)
            if len(body) <= MAX_KEPT_BYTES:
                self._last[request_class, version] = bytes(body), response
        return response


def build_frame(buffers: list[Buffer]) -> list[Buffer]:
    """Put the length before ``buffers``; short buffers are joined with it."""
    return join_short([_LENGTH.pack(sum(map(len, buffers))), *buffers])


def read_frame_length(prefix: Buffer, max_frame_length: int = MAX_FRAME_BYTES) -> int:
    """Read the number of bytes behind ``prefix``; `ProtocolError` if it cannot begin a Kafka response."""
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


def build_request_header(
    request_class: type[Request[Any]], version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Build request header v1, or v2 (with an empty tag section) where ``version`` is flexible."""
    out: list[Buffer] = [_REQUEST_HEADER.pack(request_class.api_key, version, correlation_id)]
    _write_client_id(client_id, out)
    if version >= request_class.flexible:
        out.append(b"\0")
    return b"".join(out)


def read_correlation_id(frame: memoryview) -> int:
    """Read the correlation id, with which a response header of any version begins."""
    if len(frame) < _CORRELATION_ID.size:
        raise ProtocolError(f"a response of {len(frame)} bytes is too short to have a correlation id")
    return int(_CORRELATION_ID.unpack_from(frame)[0])


def response_header_size(frame: memoryview, request_class: type[Request[Any]], version: int) -> int:
    """Return the size of the response header at the start of ``frame``: v0, or v1 with its tags skipped."""
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
