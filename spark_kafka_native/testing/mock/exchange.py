"""`Exchange`: from a request's bytes to those of its response, by Kafka's specification and the script."""

from __future__ import annotations

import dataclasses
import logging
import struct
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from ...kafka.error_code import ErrorCode
from .listener import Outgoing, Then
from .message_spec import MessageReader, MessageSpec, MessageSpecs, VersionRange
from .mock_cluster import Call, MockCluster, Respond
from .script import Effect, Fields, MockRequest, Script, find_places, topic_of

_LOG = logging.getLogger("spark_kafka_native.testing.mock")
_LENGTH: Final = 4
_API_VERSIONS: Final = "ApiVersions"
_HIGHEST: Final[Mapping[str, int]] = {"AddPartitionsToTxn": 3, "EndTxn": 4, "TxnOffsetCommit": 4}
"""Later versions are for brokers among themselves, or need KIP-890's transactions."""
_WHOLE: Final = (
    "DescribeCluster",
    "InitProducerId",
    "ListGroups",
    "AddOffsetsToTxn",
    "EndTxn",
    "SaslHandshake",
    "SaslAuthenticate",
)
"""Their response has one error code: `Exchange` applies the script's refusal."""
_OF_MEMBERS: Final = ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup")
"""Their response has one as well, and they refuse invalid requests by themselves."""
_BEFORE_SASL: Final = (_API_VERSIONS, "SaslHandshake", "SaslAuthenticate")
"""What a connection may ask before its user is known."""
_MECHANISM: Final = "PLAIN"


class Authentication:
    """SASL PLAIN (RFC 4616), with or without TLS.

    ``users`` has names and passwords; None: clients need no authentication.
    """

    def __init__(self, users: Mapping[str, str] | None) -> None:
        self.users = users
        self._connections: set[int] = set()
        """Those that have authenticated, by number."""

    def responders(self) -> dict[str, Respond]:
        """The methods for each API."""
        return {"SaslHandshake": self.handshake, "SaslAuthenticate": self.authenticate}

    def permits(self, request: MockRequest) -> bool:
        """True if the connection may ask this already."""
        return self.users is None or request.api in _BEFORE_SASL or request.connection in self._connections

    def handshake(self, call: Call) -> Fields:
        """SaslHandshake."""
        is_known = call.fields["mechanism"] == _MECHANISM
        code = ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return {"error_code": code, "mechanisms": [_MECHANISM]}

    def authenticate(self, call: Call) -> Fields:
        """SaslAuthenticate: from then on the connection may ask anything."""
        _, user, password = [*call.fields["auth_bytes"].split(b"\0"), b"", b""][:3]
        users = self.users or {}
        if users.get(user.decode(errors="replace"), "").encode() != password or not password:
            message = "Authentication failed: Invalid username or password"
            return {"error_code": ErrorCode.SASL_AUTHENTICATION_FAILED, "error_message": message}
        self._connections.add(call.request.connection)
        return {"error_message": None}


class Exchange:
    """Responds to requests for all brokers of a mock. Any thread may call it."""

    def __init__(
        self,
        specs: MessageSpecs,
        cluster: MockCluster,
        responders: Mapping[str, Respond],
        users: Mapping[str, str] | None,
        versions: Mapping[str, tuple[int, int]],
        see: Callable[[MockRequest], None],
    ) -> None:
        self._specs, self._cluster, self._versions, self._see = specs, cluster, versions, see
        self._authentication = Authentication(users)
        self._responders = {**responders, **self._authentication.responders()}
        self.script = Script()
        self.closed = threading.Event()
        self._failures: list[tuple[MockRequest, Exception]] = []
        for api, (lowest, highest) in versions.items():
            self.check_api(api)
            spoken = self._known(api)
            if lowest <= highest and not (lowest in spoken and highest in spoken):
                known = f"{spoken.lowest} to {spoken.highest}"
                raise ValueError(f"versions of {api} are {lowest} to {highest}: this Kafka has {known}")

    def _known(self, api: str) -> VersionRange:
        """What this mock could speak of an API."""
        found = self._specs[f"{api}Request"].versions
        if api == "SaslHandshake":  # 0 has frames without a header behind it
            return VersionRange(1, found.highest)
        return VersionRange(found.lowest, min(found.highest, _HIGHEST.get(api, found.highest)))

    def _is_asked_for(self, api: str) -> bool:
        return self._authentication.users is not None or not api.startswith("Sasl")

    def check_api(self, api: str) -> None:
        """Raise `ValueError` where Kafka has no such API."""
        if api not in self._specs.apis.values():
            raise ValueError(f"Kafka has no API {api!r}; names are as in Produce, ListOffsets")

    def check(self) -> None:
        """Raise `RuntimeError` for the first request that got no response as the script says."""
        failures, self._failures = self._failures, []
        for request, error in failures:
            what = f"{request.api}, version {request.version}"
            raise RuntimeError(f"{what}, was not answered: {type(error).__name__}: {error}") from error

    def versions_of(self, api: str) -> VersionRange:
        """The versions of an API that the brokers speak: all of Kafka's, or the configured ones; none of an
        API that they cannot answer.
        """
        spec = self._known(api)
        if api in self._versions:
            return VersionRange(*self._versions[api])
        known = (api in self._responders and self._is_asked_for(api)) or api == _API_VERSIONS
        known = known or api in self.script.apis()
        return spec if known else VersionRange.parse(None)

    def respond(self, api: str, body: bytes, version: int, node_id: int) -> bytes:
        """Carry a request out that came over no connection, without any fault, and return the body of the
        response; no bytes if a broker sends none.
        """
        request = self._request(api, version, body, node_id)
        fields = self._respond(request, [])
        return b"" if fields is None else self._specs[f"{api}Response"].write(fields, version)

    def serve(self, frame: bytes, node_id: int, connection: int) -> Outgoing:
        """What to send in response to ``frame``, its length included, and what becomes of the connection."""
        try:
            request, spec = self._read(frame, node_id, connection)
        except ValueError as error:
            _LOG.warning("broker %d: a request can't be read, its connection is closed: %s", node_id, error)
            return Outgoing(b"", Then.CLOSE)
        self._see(request)
        if request.version not in self.versions_of(request.api) and not self._is_scripted(request, spec):
            return self._refuse(request)
        if not self._authentication.permits(request):
            what = (request.node_id, request.connection, request.api)
            _LOG.warning("broker %d: connection %d asks for %s before it says who it is (SASL)", *what)
            return Outgoing(b"", Then.CLOSE)
        try:
            return self._carry_out(request, spec)
        except Exception as error:  # noqa: BLE001 - a function of the script may raise anything
            _LOG.exception("broker %d could not respond to %r: the connection is closed", node_id, request)
            if not self.closed.is_set():  # brokers that stop have no brokers to name in Metadata
                self._failures.append((request, error))
            return Outgoing(b"", Then.CLOSE)

    def _carry_out(self, request: MockRequest, spec: MessageSpec) -> Outgoing:
        with self._cluster.changed:
            taken = self.script.take(request)
        faults = [fault.effect_on(request) for fault in taken]
        for fault in faults:
            self._wait(fault)
        if any(fault.is_hang_up for fault in faults):
            return Outgoing(b"", Then.CLOSE)
        if any(fault.is_ignored for fault in faults):
            return Outgoing(b"", Then.SILENCE)
        whole = next((fault.frame for fault in faults if fault.frame is not None), None)
        if whole is None:
            body = self._body(request, faults)
            if body is None:
                return Outgoing(b"", Then.CLOSE if any(one.is_hang_up for one in faults) else Then.NEXT)
            whole = _frame(request, spec, body)
        return _spoil(whole, faults, self.closed)

    def _read(self, frame: bytes, node_id: int, connection: int) -> tuple[MockRequest, MessageSpec]:
        reader = MessageReader(frame)
        api_key, version = reader.primitive("int16"), reader.primitive("int16")
        correlation_id, client_id = reader.primitive("int32"), reader.primitive("string")
        if api_key not in self._specs.apis:
            _LOG.warning(
                "broker %d was asked for an API with the key %d, which Kafka has not", node_id, api_key
            )
            raise EOFError
        api = self._specs.apis[api_key]
        spec = self._specs[f"{api}Request"]
        if version in spec.flexible:
            for _ in range(reader.varint()):
                reader.varint()
                reader.take(reader.varint())
        request = self._request(api, version, frame[reader.at :], node_id)
        come = {"connection": connection, "client_id": client_id, "correlation_id": correlation_id}
        return dataclasses.replace(request, **come), spec

    def _request(self, api: str, version: int, body: bytes, node_id: int) -> MockRequest:
        spec = self._specs[f"{api}Request"]
        fields = spec.read(body, version) if version in spec.versions else {}
        with self._cluster.changed:
            places = tuple(find_places(fields, self._cluster.topic_name))
        return MockRequest(
            api=api,
            version=version,
            fields=fields,
            node_id=node_id,
            connection=0,
            client_id=None,
            correlation_id=0,
            at=time.monotonic(),
            body=body,
            places=places,
        )

    def _is_scripted(self, request: MockRequest, spec: MessageSpec) -> bool:
        """True if faults may answer it at a version that is not offered."""
        is_narrowed = request.api in self._versions
        return not is_narrowed and request.version in spec.versions and request.api in self.script.apis()

    def _refuse(self, request: MockRequest) -> Outgoing:
        """ApiVersions is answered at version 0 (KIP-511); anything else ends the connection."""
        if request.api == _API_VERSIONS:
            code = int(ErrorCode.UNSUPPORTED_VERSION)
            body = self._specs["ApiVersionsResponse"].write(self._api_versions() | {"error_code": code}, 0)
            return Outgoing(_sized(struct.pack(">i", request.correlation_id) + body))
        _LOG.warning(
            "broker %d was asked for %s, version %d, which the mock does not speak: the connection is closed",
            request.node_id,
            request.api,
            request.version,
        )
        return Outgoing(b"", Then.CLOSE)

    def _wait(self, fault: Effect) -> None:
        if fault.delay_s:
            self.closed.wait(fault.delay_s)
        while fault.gate is not None and not fault.gate.wait(0.02) and not self.closed.is_set():
            pass

    def _body(self, request: MockRequest, faults: list[Effect]) -> bytes | None:
        replies = [fault.response for fault in faults if fault.response is not None]
        fields: Fields | None
        if replies:
            reply = replies[0](request) if callable(replies[0]) else replies[0]
            if reply is None or isinstance(reply, bytes):
                return reply
            fields = dict(reply)
        else:
            fields = self._respond(request, faults)
        if fields is None:
            return None
        for fault in faults:
            for edit in fault.edits:
                edit(fields)
            self._spoil_records(fields, fault)
        return self._specs[f"{request.api}Response"].write(fields, request.version)

    def _respond(self, request: MockRequest, faults: list[Effect]) -> Fields | None:
        code = next((fault.code for fault in faults if fault.code is not None), ErrorCode.NONE)
        if request.api == _API_VERSIONS:
            return self._api_versions() | {"error_code": code}
        if request.api not in self._responders:
            return {"error_code": code}
        call = Call(request, faults)
        refusal = call.refusal()
        if request.api in _WHOLE and refusal is not None and not refusal.applied:
            return {"error_code": refusal.code}
        with self._cluster.changed:
            fields = self._responders[request.api](call)
        if fields is not None and refusal is not None and request.api in _WHOLE + _OF_MEMBERS:
            fields["error_code"] = refusal.code
        return fields

    def _spoil_records(self, fields: Fields, fault: Effect) -> None:
        for topic in fields.get("responses", ()) if fault.spoilt_records else ():
            name = topic_of(topic, self._cluster.topic_name)
            for part in topic.get("partitions", ()):
                records = bytearray(part.get("records") or b"")
                if records and fault.covers(name, part["partition_index"]):
                    for byte in fault.spoilt_records:
                        records[byte] ^= 0xFF
                    part["records"] = bytes(records)

    def _api_versions(self) -> Fields:
        keys = []
        for api_key, api in self._specs.apis.items():
            spoken = self.versions_of(api)
            if spoken.highest >= spoken.lowest:
                keys.append({"api_key": api_key, "min_version": spoken.lowest, "max_version": spoken.highest})
        return {"api_keys": keys}


def _frame(request: MockRequest, spec: MessageSpec, body: bytes) -> bytes:
    tags = b"\0" if request.version in spec.flexible and request.api != _API_VERSIONS else b""
    return _sized(struct.pack(">i", request.correlation_id) + tags + body)


def _sized(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def _spoil(frame: bytes, faults: list[Effect], closed: threading.Event) -> Outgoing:
    """The frame as it leaves the broker; its pauses end when that is ``closed``."""
    then = Then.NEXT
    spoilt = bytearray(frame)
    slowed = next((fault.pieces for fault in faults if fault.pieces is not None), None)
    pieces = slowed and (slowed[0], partial(closed.wait, slowed[1]))
    for fault in faults:
        for byte in fault.spoilt:
            spoilt[byte if byte < 0 else _LENGTH + byte] ^= 0xFF
        if fault.cut_after is not None:
            spoilt, then = spoilt[: fault.cut_after], Then.CLOSE
        if fault.is_silence:
            spoilt, then = bytearray(), Then.SILENCE
    return Outgoing(bytes(spoilt), then, pieces)
