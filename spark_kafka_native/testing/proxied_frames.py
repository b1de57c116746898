"""What a `FaultProxy` reads and changes in frames: bytes in, bytes out. No socket, no clock.

Brokers' addresses in replies become the proxy's, or clients would go round it: in Metadata, FindCoordinator,
DescribeCluster and (KIP-951) Produce. Fetch has them from version 16 on, which is not offered, as a fetch
is too large to be taken apart.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..kafka.error_code import ErrorCode
from ..kafka.errors import ProtocolError
from ..kafka.protocol.api import all_requests
from ..kafka.protocol.api.api_versions import ApiVersionsRequest
from ..kafka.protocol.api.cluster import DescribeClusterRequest
from ..kafka.protocol.api.fetch import FetchRequest
from ..kafka.protocol.api.find_coordinator import FindCoordinatorRequest
from ..kafka.protocol.api.metadata import MetadataRequest
from ..kafka.protocol.api.produce import ProduceRequest
from ..kafka.protocol.framing import PREFIX_BYTES, build_frame, response_header_size
from ..kafka.protocol.message import Request, Response, Struct
from ..kafka.protocol.message_codec import codec
from .faults import Fault, Flip, ProxiedRequest, RewriteError

Address = tuple[str, int]

_HEADER: Final = struct.Struct(">hhih")
_LAST_FETCH_WITHOUT_ADDRESSES: Final = 15
_UNOFFERED: Final = frozenset({78, 79})
"""ShareFetch and ShareAcknowledge tell addresses, and this client has no share groups."""
_WITH_ADDRESSES: Final = (MetadataRequest, FindCoordinatorRequest, DescribeClusterRequest, ProduceRequest)


def read_request(
    frame: bytes, *, broker: str, broker_index: int, connection: int, ordinal: int
) -> ProxiedRequest:
    """The request in a frame (with its length). Raises `ProtocolError` for any other frame."""
    try:
        api_key, version, correlation_id, length = _HEADER.unpack_from(frame, PREFIX_BYTES)
    except struct.error as error:
        raise ProtocolError(f"a request of {len(frame)} bytes is cut off inside its header") from error
    at = PREFIX_BYTES + _HEADER.size
    client_id = None if length < 0 else frame[at : at + length].decode("utf-8", "replace")
    at += max(0, length)
    known = all_requests().get(api_key)
    if known is not None and version >= known.flexible:
        at += 1  # no client has tags there
    return ProxiedRequest(
        broker=broker,
        broker_index=broker_index,
        connection=connection,
        ordinal=ordinal,
        api_key=api_key,
        version=version,
        correlation_id=correlation_id,
        client_id=client_id,
        body=memoryview(frame)[at:],
    )


def is_answered(request: ProxiedRequest) -> bool:
    """True if the broker answers: not to a produce request with ``acks=0``."""
    return request.api_key != ProduceRequest.api_key or request.message.answered


def offered_versions(limits: Mapping[str, int]) -> dict[int, int]:
    """The highest version of each API that is offered, ``limits`` (by name) in mind. Raises `ValueError` for
    a name that is none."""
    found = {key: request.versions[1] for key, request in all_requests().items()}
    found[FetchRequest.api_key] = _LAST_FETCH_WITHOUT_ADDRESSES
    keys = {request.api_name(): key for key, request in all_requests().items()}
    for name, limit in limits.items():
        if name not in keys:
            raise ValueError(f"no API is called {name!r}: there are {', '.join(sorted(keys))}")
        found[keys[name]] = min(found[keys[name]], limit)
    return found


def redirect(
    frame: bytes, request: ProxiedRequest, to: Callable[[Address], Address], limits: Mapping[int, int]
) -> bytes:
    """The reply's frame, with ``to`` of each broker's address, and no more versions than ``limits``."""
    known = all_requests().get(request.api_key)
    if known is ApiVersionsRequest:
        return _rewrite(frame, request, lambda reply: _offer(reply, limits))
    if known in _WITH_ADDRESSES:
        return _rewrite(frame, request, lambda reply: _each(reply, lambda one: _move(one, to)))
    return frame


def rewrite_error(frame: bytes, request: ProxiedRequest, code: ErrorCode) -> bytes:
    """The reply's frame, with ``code`` for each error code. Raises `ValueError` where the API is unknown."""
    if request.api_key not in all_requests():
        raise ValueError(f"the error codes of {request.api} are not known here: name an API in the rule")

    def change(one: Any) -> Any:
        names = [name for name, value in _values(one).items() if isinstance(value, ErrorCode)]
        return dataclasses.replace(one, **dict.fromkeys(names, code)) if names else one

    return _rewrite(frame, request, lambda reply: _each(reply, change))


def changed(frame: bytes, request: ProxiedRequest, fault: Fault) -> bytes:
    """The frame after a fault that changes its bytes; unchanged by any other fault."""
    if isinstance(fault, RewriteError):
        return rewrite_error(frame, request, fault.error_code)
    if isinstance(fault, Flip):
        flipped = bytearray(frame)
        flipped[-1 if fault.byte is None else fault.byte] ^= 1
        return bytes(flipped)
    return frame


def _rewrite(frame: bytes, request: ProxiedRequest, change: Callable[[Any], Any]) -> bytes:
    request_class: type[Request[Any]] = all_requests()[request.api_key]
    view = memoryview(frame)[PREFIX_BYTES:]
    start, version = response_header_size(view, request_class, request.version), request.version
    unsupported = int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(2, "big")
    if request_class is ApiVersionsRequest and view[start : start + 2] == unsupported:
        version = 0  # KIP-511
    found = codec(request_class.response, version)
    return b"".join(build_frame([view[:start], *found.write(change(found.read(view[start:])))]))


def _offer(reply: Any, limits: Mapping[int, int]) -> Response:
    offered = [
        dataclasses.replace(one, max_version=min(one.max_version, limits.get(one.api_key, one.max_version)))
        for one in reply.api_keys
        if one.api_key not in _UNOFFERED
    ]
    found: Response = dataclasses.replace(reply, api_keys=offered)
    return found


def _move(one: Any, to: Callable[[Address], Address]) -> Any:
    if not {"host", "port"} <= _values(one).keys() or not one.host or one.port < 0:
        return one
    host, port = to((one.host, one.port))
    return dataclasses.replace(one, host=host, port=port)


def _each(one: Any, change: Callable[[Any], Any]) -> Any:
    """``change`` of each structure in ``one``, the innermost first."""
    if isinstance(one, list):
        return [_each(element, change) for element in one]
    if not isinstance(one, Struct):
        return one
    nested = {
        name: _each(value, change) for name, value in _values(one).items() if isinstance(value, list | Struct)
    }
    whole: Any = one
    return change(dataclasses.replace(whole, **nested) if nested else whole)


def _values(one: Any) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
