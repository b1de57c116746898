"""Brokers that misbehave on purpose, for the faults that a real one can't show.

`ScriptedBroker` is a TCP server that answers each request as the test says; `ScriptedCluster` gives several
of them metadata and logs to agree on. Their codec is the client's own: that it is Kafka's is proved
elsewhere, against Kafka's message specs and a real broker.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api import all_requests
from spark_kafka_native.kafka.protocol.api.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from spark_kafka_native.kafka.protocol.api.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from spark_kafka_native.kafka.protocol.api.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from spark_kafka_native.kafka.protocol.api.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_native.kafka.protocol.message import Request, Response
from spark_kafka_native.kafka.protocol.message_codec import codec
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.encode import encode_record_batch


@dataclass(frozen=True)
class Raw:
    """These bytes, as they are (the length prefix included)."""

    data: bytes


class HangUp:
    """Close the connection instead of answering."""


class Silence:
    """Never answer, keep the connection."""


@dataclass(frozen=True)
class Late:
    """Answer after a delay."""

    seconds: float
    answer: Any


@dataclass(frozen=True)
class Cut:
    """Send only the first ``length`` bytes of the answer's frame, then hang up."""

    answer: Any
    length: int


@dataclass(frozen=True)
class Dribble:
    """Send the answer's frame in pieces of ``piece`` bytes, with a pause between them."""

    answer: Any
    piece: int
    pause_s: float


Answer = Response | Raw | Late | Cut | Dribble | type[HangUp] | type[Silence] | Callable[..., Any]


@dataclass(frozen=True)
class Asked:
    """A request that came in."""

    request: Request[Any]
    version: int
    correlation_id: int
    connection: int
    at: float


class ScriptedBroker:
    """One listener. Answers with the next pushed answer for the request's class, else with its standing
    answer."""

    def __init__(self, node_id: int = 1, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.node_id = node_id
        self.host = host
        self.tls = tls
        self.asked: list[Asked] = []
        self.connections = 0
        self.versions = {key: cls.versions for key, cls in all_requests().items()}
        self._pushed: dict[type[Request[Any]], deque[Answer]] = defaultdict(deque)
        self._standing: dict[type[Request[Any]], Answer] = {ApiVersionsRequest: self._api_versions}
        self._sockets: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self.port = 0
        self.start()

    def start(self) -> None:
        """Listen, on the same port as before."""
        self._listener = socket.create_server((self.host, self.port), reuse_port=False)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """Close the listener and every connection."""
        self.stop_listening()
        self.hang_up()

    def stop_listening(self) -> None:
        """Refuse new connections; the open ones stay."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def hang_up(self) -> None:
        """Close every connection; new ones are accepted."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._sockets.clear()

    def __enter__(self) -> ScriptedBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def on(self, request: type[Request[Any]], answer: Answer) -> None:
        """Answer every such request so; a function gets (request, version) and returns an answer."""
        self._standing[request] = answer

    def push(self, request: type[Request[Any]], *answers: Answer) -> None:
        """Answer the next such requests so, one each, before the standing answer counts again."""
        self._pushed[request].extend(answers)

    def requests(self, request: type[Request[Any]]) -> list[Any]:
        """The requests of that class so far."""
        return [asked.request for asked in self.asked if isinstance(asked.request, request)]

    def _api_versions(self, _request: Request[Any], _version: int) -> ApiVersionsResponse:
        keys = [
            ApiVersion(api_key=k, min_version=lo, max_version=hi) for k, (lo, hi) in self.versions.items()
        ]
        return ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=keys)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(sock)
            threading.Thread(target=self._serve, args=(sock, self.connections), daemon=True).start()

    def _serve(self, sock: socket.socket, connection: int) -> None:
        with contextlib.suppress(OSError, EOFError):
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_side=True)
                self._sockets.append(sock)
            while True:
                (length,) = struct.unpack(">i", _receive(sock, 4))
                asked = _read_request(memoryview(_receive(sock, length)), connection)
                self.asked.append(asked)
                if not self._reply(sock, asked, self._choose(type(asked.request))):
                    break
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    def _choose(self, request: type[Request[Any]]) -> Answer:
        pushed = self._pushed[request]
        return pushed.popleft() if pushed else self._standing[request]

    def _reply(self, sock: socket.socket, asked: Asked, answer: Any) -> bool:
        """Send the answer; False to hang up after it."""
        match answer:
            case Response():
                sock.sendall(build_frame(asked, answer))
            case Raw(data):
                sock.sendall(data)
            case Late(seconds, later):
                time.sleep(seconds)
                return self._reply(sock, asked, later)
            case Cut(whole, length):
                sock.sendall(build_frame(asked, self._response(asked, whole))[:length])
                return False
            case Dribble(whole, piece, pause_s):
                frame = build_frame(asked, self._response(asked, whole))
                for at in range(0, len(frame), piece):
                    sock.sendall(frame[at : at + piece])
                    time.sleep(pause_s)
            case type() if answer is HangUp:
                return False
            case type() if answer is Silence:
                return True
            case _:
                return self._reply(sock, asked, answer(asked.request, asked.version))
        return True

    def _response(self, asked: Asked, answer: Any) -> Response:
        response = answer if isinstance(answer, Response) else answer(asked.request, asked.version)
        assert isinstance(response, Response)
        return response


def build_frame(asked: Asked, response: Response, correlation_id: int | None = None) -> bytes:
    """The response's frame with its length."""
    flexible = asked.version >= type(asked.request).flexible and not isinstance(
        asked.request, ApiVersionsRequest
    )
    version = asked.version
    if isinstance(response, ApiVersionsResponse) and response.error_code is ErrorCode.UNSUPPORTED_VERSION:
        version = 0
    body = b"".join(codec(type(response), version).write(response))
    header = struct.pack(">i", asked.correlation_id if correlation_id is None else correlation_id)
    frame = header + (b"\0" if flexible else b"") + body
    return struct.pack(">i", len(frame)) + frame


def _read_request(frame: memoryview, connection: int) -> Asked:
    api_key, version, correlation_id, client_id_length = struct.unpack_from(">hhih", frame)
    request = all_requests()[api_key]
    at = 10 + max(0, client_id_length) + (1 if version >= request.flexible else 0)
    lowest, highest = request.versions
    known = min(max(version, lowest), highest)
    return Asked(
        codec(request, known).read(frame[at:]), version, correlation_id, connection, time.monotonic()
    )


def _receive(sock: socket.socket, length: int) -> bytes:
    parts = []
    while length:
        part = sock.recv(length)
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


@dataclass
class Log:
    """One partition of a `ScriptedCluster`."""

    leader: int
    leader_epoch: int = 0
    batches: list[bytes] = field(default_factory=list)
    log_start_offset: int = 0
    end_offset: int = 0
    last_stable_offset: int | None = None

    def append(self, values: list[bytes | None], **options: Any) -> None:
        """Append one batch with these values."""
        columns = RecordColumns(length=len(values), value=pa.array(values, pa.binary()))
        batch = bytearray(encode_record_batch(columns, now_ms=1_000, **options))
        struct.pack_into(">q", batch, 0, self.end_offset)
        struct.pack_into(">i", batch, 12, self.leader_epoch)
        self.batches.append(bytes(batch))
        self.end_offset += len(values)

    def read(self, offset: int, max_bytes: int) -> bytes:
        """As a broker: from the batch that holds ``offset``, whole batches up to the limit, and one
        at least.
        """
        found, size = [], 0
        for batch in self.batches:
            base, delta = struct.unpack_from(">q", batch)[0], struct.unpack_from(">i", batch, 23)[0]
            if base + delta < offset:
                continue
            if found and size + len(batch) > max_bytes:
                break
            found.append(batch)
            size += len(batch)
        return b"".join(found)


class ScriptedCluster:
    """Brokers 1..n with metadata, offsets and fetches answered from `logs`, until a test scripts
    otherwise.
    """

    def __init__(self, brokers: int = 1) -> None:
        self.brokers = {node_id: ScriptedBroker(node_id) for node_id in range(1, brokers + 1)}
        self.logs: dict[TopicPartition, Log] = {}
        self.topic_ids: dict[str, UUID] = {}
        self.racks: dict[int, str | None] = defaultdict(lambda: None)
        for broker in self.brokers.values():
            broker.on(MetadataRequest, self.metadata)
            broker.on(ListOffsetsRequest, self.list_offsets)
            broker.on(FetchRequest, self.fetcher(broker.node_id))

    def __enter__(self) -> ScriptedCluster:
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            broker.stop()

    def __getitem__(self, node_id: int) -> ScriptedBroker:
        return self.brokers[node_id]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def create(self, topic: str, partitions: int = 1, *, leader: int | None = None) -> list[TopicPartition]:
        """Create a topic, its leaders in turn."""
        self.topic_ids[topic] = uuid4()
        created = [TopicPartition(topic, index) for index in range(partitions)]
        for tp in created:
            self.logs[tp] = Log(leader=leader or 1 + tp.partition % len(self.brokers))
        return created

    def metadata(self, request: MetadataRequest, _version: int) -> MetadataResponse:
        wanted = list(self.topic_ids) if request.topics is None else [topic.name for topic in request.topics]
        logs: dict[str, list[tuple[int, Log]]] = defaultdict(list)
        for tp, log in self.logs.items():
            logs[tp.topic].append((tp.partition, log))
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(
                    node_id=b.node_id, host=b.host, port=b.port, rack=self.racks[b.node_id]
                )
                for b in self.brokers.values()
            ],
            cluster_id="scripted",
            controller_id=1,
            topics=[self._describe(name, logs.get(name, [])) for name in wanted],
        )

    def _describe(self, name: str, logs: list[tuple[int, Log]]) -> MetadataResponseTopic:
        known = name in self.topic_ids
        return MetadataResponseTopic(
            error_code=ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            name=name,
            topic_id=self.topic_ids.get(name, UUID(int=0)),
            partitions=[
                MetadataResponsePartition(
                    error_code=ErrorCode.NONE,
                    partition_index=index,
                    leader_id=log.leader,
                    leader_epoch=log.leader_epoch,
                    replica_nodes=list(self.brokers),
                    isr_nodes=list(self.brokers),
                )
                for index, log in logs
            ],
        )

    def list_offsets(self, request: ListOffsetsRequest, _version: int) -> ListOffsetsResponse:
        def one(topic: str, index: int, timestamp: int) -> ListOffsetsPartitionResponse:
            log = self.logs[TopicPartition(topic, index)]
            offset = {-2: log.log_start_offset, -1: log.end_offset}.get(timestamp, -1)
            return ListOffsetsPartitionResponse(
                partition_index=index, error_code=ErrorCode.NONE, offset=offset
            )

        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=t.name,
                    partitions=[one(t.name, p.partition_index, p.timestamp) for p in t.partitions],
                )
                for t in request.topics
            ]
        )

    def fetcher(self, node_id: int) -> Callable[[FetchRequest, int], FetchResponse]:
        """The standing answer of a broker to fetches."""

        def fetch(request: FetchRequest, version: int) -> FetchResponse:
            names = {topic_id: name for name, topic_id in self.topic_ids.items()}
            responses, left = [], request.max_bytes
            for topic in request.topics:
                name = topic.topic if version <= 12 else names.get(topic.topic_id)
                partitions = []
                for asked in topic.partitions:
                    data = self.fetch_partition(node_id, name, asked, left)
                    left -= len(data.records or b"")
                    partitions.append(data)
                responses.append(
                    FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions)
                )
            return FetchResponse(responses=responses)

        return fetch

    def fetch_partition(self, node_id: int, name: str | None, asked: Any, max_bytes: int) -> PartitionData:
        if name is None:
            return refusal(asked.partition, ErrorCode.UNKNOWN_TOPIC_ID)
        log = self.logs.get(TopicPartition(name, asked.partition))
        if log is None:
            return refusal(asked.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if log.leader != node_id:
            return refusal(asked.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not log.log_start_offset <= asked.fetch_offset <= log.end_offset:
            return refusal(asked.partition, ErrorCode.OFFSET_OUT_OF_RANGE)
        records = b""
        if max_bytes > 0:
            records = log.read(asked.fetch_offset, min(max_bytes, asked.partition_max_bytes))
        stable = log.end_offset if log.last_stable_offset is None else log.last_stable_offset
        return PartitionData(
            partition_index=asked.partition,
            error_code=ErrorCode.NONE,
            high_watermark=log.end_offset,
            last_stable_offset=stable,
            log_start_offset=log.log_start_offset,
            aborted_transactions=None,
            records=memoryview(records),
        )


def refusal(partition: int, error_code: ErrorCode) -> PartitionData:
    """An error for one partition of a fetch."""
    return PartitionData(
        partition_index=partition,
        error_code=error_code,
        high_watermark=-1,
        aborted_transactions=None,
        records=None,
    )


def values_of(columns: RecordColumns) -> list[bytes | None]:
    """The values of fetched columns."""
    assert columns.value is not None
    values: list[bytes | None] = columns.value.to_pylist()
    return values


def offsets_of(columns: RecordColumns) -> list[int]:
    """The offsets of fetched columns."""
    assert columns.offset is not None
    return np.asarray(columns.offset).tolist()


def properties(bootstrap_servers: str, **changed: object) -> Mapping[str, str]:
    """Client properties that don't let a test wait: underscores in names stand for dots."""
    quick = {"retry_backoff_ms": 10, "retry_backoff_max_ms": 50, "request_timeout_ms": 2_000} | changed
    return {"bootstrap.servers": bootstrap_servers} | {
        name.replace("_", "."): str(value) for name, value in quick.items()
    }
