"""The protocol half of a connection: requests to bytes, bytes to responses, and which answers which.

Sans I/O: no socket, clock or thread; whoever owns it keeps ``send`` in the order of writing and ``receive``
in the order of reading. A broker answers in order, so anything but the oldest correlation id in flight is a
`ProtocolError`, after which the connection must be closed.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any, Final

from ..error_code import ErrorCode
from ..errors import ProtocolError
from .api.api_versions import ApiVersionsRequest
from .codec import codec
from .frame import MAX_FRAME_BYTES, build_frame, read_frame_length
from .header import build_request_header, read_correlation_id, response_header_size
from .message import Request, Response
from .wire import Buffer

_LAST_CORRELATION_ID: Final = (1 << 31) - 1
MAX_KEPT_BYTES: Final = 256 * 1024
"""Of an answer that is kept to be compared with the next: some 5,000 partitions."""
_UNSUPPORTED_VERSION: Final = int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(2, "big")


@dataclass(frozen=True, slots=True)
class _InFlight:
    correlation_id: int
    request: Request[Any]
    version: int


class Session:
    """Correlation ids and framing of one connection. Not thread-safe but for one sender and one receiver."""

    def __init__(self, client_id: str | None, *, max_frame_length: int = MAX_FRAME_BYTES) -> None:
        self._client_id = client_id
        self.max_frame_length = max_frame_length
        self._next_correlation_id = 0
        self._in_flight: collections.deque[_InFlight] = collections.deque()
        self._last: dict[tuple[type[Request[Any]], int], tuple[bytes, Response]] = {}
        """The last answer to each request that is polled."""

    @property
    def in_flight(self) -> int:
        """How many requests wait for their response."""
        return len(self._in_flight)

    def send(self, request: Request[Any], version: int) -> tuple[int, list[Buffer]]:
        """The correlation id and the frame of a request, as buffers to be written in this order.

        Nothing is in flight when this raises, or when the request is not answered (``request.answered``).
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
        """How many bytes follow these four; `ProtocolError` for what is no Kafka response or too long."""
        return read_frame_length(prefix, self.max_frame_length)

    def receive(self, frame: memoryview) -> tuple[int, Response]:
        """The correlation id and the response in a frame (without its length); records are views of it."""
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
            version = (
                0  # KIP-511: a broker that does not know the version answers in the only one it is sure of
            )
        response = self._read(request_class, version, body)
        return correlation_id, response.upgraded(version, oldest.request)

    def _read(self, request_class: type[Request[Any]], version: int, body: memoryview) -> Response:
        """The response in ``body``; that of the last time if its bytes are the same."""
        last = self._last.get((request_class, version))
        if last is not None and memoryview(last[0]) == body:
            return last[1]
        response = codec(request_class.response, version).read(body)
        if request_class.polled:
            self._last.pop((request_class, version), None)
            if len(body) <= MAX_KEPT_BYTES:
                self._last[request_class, version] = bytes(body), response
        return response
