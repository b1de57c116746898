"""The mock broker of the package, scripted with the client's own messages.

A test answers with a typed response, or with a function of the typed request, where `MockBroker` itself takes
fields by their names in Kafka's specification. Sockets, frames, logs and every answer that a test does not
script are the mock's.
"""

from __future__ import annotations

import ssl
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

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
from spark_kafka_native.kafka.protocol.api.fetch import FetchRequest, FetchResponse, PartitionData
from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse
from spark_kafka_native.kafka.protocol.message import Request, Response
from spark_kafka_native.kafka.protocol.message_codec import codec
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.encode import encode_record_batch
from spark_kafka_native.testing import Effect, MockBroker
from spark_kafka_native.testing.mock.mock_cluster import MockCluster, MockTopic
from spark_kafka_native.testing.mock.partition_log import PartitionLog
from spark_kafka_native.testing.mock.script import Fault, MockRequest


@dataclass(frozen=True)
class Raw:
    """These bytes, as they are (the length prefix included)."""

    data: bytes


class HangUp:
    """Close the connection instead of answering."""


class Silence:
    """Never answer, neither this request nor any later one; keep the connection."""


class NoAnswer:
    """Go on without an answer, as after a Produce with ``acks=0``."""


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


Answer = Response | Raw | Late | Cut | Dribble | type[HangUp | Silence | NoAnswer] | Callable[..., Any]


@dataclass(frozen=True)
class Asked:
    """A request that came in."""

    request: Request[Any]
    version: int
    correlation_id: int
    connection: int
    at: float


class ScriptedBroker:
    """One broker of a `MockBroker`, its own or that of a cluster. Answers with the next pushed answer for the
    request's class, else with its standing answer, else as the mock does."""

    def __init__(
        self, node_id: int = 1, tls: ssl.SSLContext | None = None, mock: MockBroker | None = None
    ) -> None:
        self.node_id = node_id
        self.mock = MockBroker(tls=tls) if mock is None else mock
        self._number = 1 if mock is None else node_id
        self.versions = {key: cls.versions for key, cls in all_requests().items()}
        self._standing: dict[type[Request[Any]], Fault] = {}
        self._pushed: dict[type[Request[Any]], list[Fault]] = defaultdict(list)
        self.on(ApiVersionsRequest, self._api_versions)

    @property
    def host(self) -> str:
        """The name that Metadata has."""
        return self.mock.cluster.addresses[self._number][0]

    @host.setter
    def host(self, name: str) -> None:
        self.mock.cluster.addresses[self._number] = (name, self.port)

    @property
    def port(self) -> int:
        """The port that Metadata has."""
        return self.mock.cluster.addresses[self._number][1]

    @port.setter
    def port(self, port: int) -> None:
        self.mock.cluster.addresses[self._number] = (self.host, port)

    def start(self) -> None:
        """Listen, on the same port as before."""
        self.mock.start(self._number)

    def stop(self) -> None:
        """Close the listener and every connection; the cluster does not notice."""
        self.mock.stop(self._number, is_noticed=False)

    def stop_listening(self) -> None:
        """Refuse new connections; the open ones stay."""
        self.mock.refuse(self._number)

    def hang_up(self) -> None:
        """Close every connection; new ones are accepted."""
        self.mock.hang_up(self._number)

    def __enter__(self) -> ScriptedBroker:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.mock.__exit__(*raised)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def on(self, request: type[Request[Any]], answer: Answer) -> None:
        """Answer every such request so; a function gets (request, version) and returns an answer."""
        before = self._standing.get(request)
        self._standing[request] = self._fault(request, answer, times=None)
        if before is not None:
            before.withdraw()

    def push(self, request: type[Request[Any]], *answers: Answer) -> None:
        """Answer the next such requests so, one each, before the standing answer counts again."""
        self._pushed[request] += [self._fault(request, answer, times=1) for answer in answers]

    def pushed(self, request: type[Request[Any]]) -> int:
        """How many pushed answers no request has come for so far."""
        return sum(not fault.is_over for fault in self._pushed[request])

    def _fault(self, request: type[Request[Any]], answer: Answer, *, times: int | None) -> Fault:
        fault = self.mock.on(api_of(request), node_id=self._number, times=times)
        return fault.choose(lambda came: _effect(came, answer))

    @property
    def asked(self) -> list[Asked]:
        """The requests so far."""
        return [typed(one) for one in self.mock.requests if one.node_id == self._number]

    def requests(self, request: type[Request[Any]]) -> list[Any]:
        """The requests of that class so far."""
        return [typed(one).request for one in self.mock.asked(api_of(request)) if one.node_id == self._number]

    @property
    def connections(self) -> int:
        """How many connections have sent a request."""
        return len({one.connection for one in self.mock.requests if one.node_id == self._number})

    def _api_versions(self, _request: Request[Any], _version: int) -> ApiVersionsResponse:
        keys = [
            ApiVersion(api_key=k, min_version=lo, max_version=hi) for k, (lo, hi) in self.versions.items()
        ]
        return ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=keys)


def api_of(request: type[Request[Any]]) -> str:
    """Kafka's name of the API."""
    return request.__name__.removesuffix("Request")


def typed(came: MockRequest) -> Asked:
    """The request as a message of the client."""
    (request,) = (one for one in all_requests().values() if api_of(one) == came.api)
    lowest, highest = request.versions
    message = codec(request, min(max(came.version, lowest), highest)).read(memoryview(came.body))
    return Asked(message, came.version, came.correlation_id, came.connection, came.at)


def _effect(came: MockRequest, answer: Any) -> Effect:
    match answer:
        case Response():
            return Effect().reply(_body(answer, came.version))
        case Raw(data):
            return Effect().send(data)
        case Late(seconds, later):
            return _made_when_sent(came, later).delay(seconds)
        case Cut(whole, length):
            return _made_when_sent(came, whole).cut(length)
        case Dribble(whole, piece, pause_s):
            return _made_when_sent(came, whole).dribble(piece, pause_s)
        case type() if answer is HangUp:
            return Effect().hang_up()
        case type() if answer is Silence:
            return Effect().ignore()
        case type() if answer is NoAnswer:
            return Effect().reply(lambda _: None)
    return _effect(came, answer(typed(came).request, came.version))


def _made_when_sent(came: MockRequest, answer: Any) -> Effect:
    """The effect of an answer; its function is called after a delay, not before it."""
    if isinstance(answer, type | Response):
        return _effect(came, answer)
    return Effect().reply(lambda came: _body(answer(typed(came).request, came.version), came.version))


def _body(response: Response, version: int) -> bytes:
    if isinstance(response, ApiVersionsResponse) and response.error_code is ErrorCode.UNSUPPORTED_VERSION:
        version = 0
    return b"".join(codec(type(response), version).write(response))


def frame(response: Response, version: int, correlation_id: int) -> bytes:
    """The response as it is sent, with its length."""
    tags = b"\0" if version >= type(response).flexible else b""
    sent = struct.pack(">i", correlation_id) + tags + _body(response, version)
    return struct.pack(">i", len(sent)) + sent


class Log:
    """One partition of a `ScriptedCluster`: a log of the mock, which a test changes as it likes."""

    def __init__(self, leader: int = 1, *, of: PartitionLog | None = None) -> None:
        self.log = PartitionLog("", 0, leader) if of is None else of

    def append(self, values: list[bytes | None], **options: Any) -> None:
        """Append one batch with these values."""
        columns = RecordColumns(length=len(values), value=pa.array(values, pa.binary()))
        code, _ = self.log.append(bytes(encode_record_batch(columns, now_ms=1_000, **options)))
        assert not code, code

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "log":
            object.__setattr__(self, name, value)
        elif name == "last_stable_offset":
            self.log.open_transactions = {} if value is None else {-1: value}
        else:
            assert hasattr(self.log, name), name
            setattr(self.log, name, value)


class Logs(MutableMapping[TopicPartition, Log]):
    """The partitions of a cluster. The last one of a topic may be deleted, or one be added behind it."""

    def __init__(self, cluster: MockCluster) -> None:
        self._cluster = cluster

    def __getitem__(self, tp: TopicPartition) -> Log:
        log = self._cluster.log(*tp)
        if log is None:
            raise KeyError(tp)
        return Log(of=log)

    def __setitem__(self, tp: TopicPartition, log: Log) -> None:
        logs = self._cluster.topics[tp.topic].partitions
        assert tp.partition == len(logs), f"{tp} would leave a gap"
        log.log.topic, log.log.partition = tp
        logs.append(log.log)

    def __delitem__(self, tp: TopicPartition) -> None:
        logs = self._cluster.topics[tp.topic].partitions
        assert tp.partition == len(logs) - 1, f"{tp} would leave a gap"
        logs.pop()

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(
            [TopicPartition(t.name, p.partition) for t in self._cluster.topics.values() for p in t.partitions]
        )

    def __len__(self) -> int:
        return sum(len(topic.partitions) for topic in self._cluster.topics.values())


class TopicIds(MutableMapping[str, UUID]):
    """The topics that the brokers know. A deleted one is set again with its logs; under another id, it is
    another topic of that name."""

    def __init__(self, cluster: MockCluster) -> None:
        self._cluster = cluster
        self._deleted: dict[str, MockTopic] = {}

    def __getitem__(self, name: str) -> UUID:
        return self._cluster.topics[name].topic_id

    def __setitem__(self, name: str, topic_id: UUID) -> None:
        with self._cluster.changed:
            topic = self._cluster.topics.setdefault(
                name, self._deleted.get(name) or MockTopic(name, topic_id, [], {})
            )
            topic.topic_id = topic_id

    def __delitem__(self, name: str) -> None:
        with self._cluster.changed:
            self._deleted[name] = self._cluster.topics.pop(name)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._cluster.topics))

    def __len__(self) -> int:
        return len(self._cluster.topics)


class ScriptedCluster:
    """Brokers 1..n of one `MockBroker`, which answers until a test scripts otherwise."""

    def __init__(self, brokers: int = 1, socket_buffer_bytes: int | None = None) -> None:
        self.mock = MockBroker(brokers, socket_buffer_bytes=socket_buffer_bytes)
        self.brokers = {node_id: ScriptedBroker(node_id, mock=self.mock) for node_id in range(1, brokers + 1)}
        self.logs = Logs(self.mock.cluster)
        self.topic_ids = TopicIds(self.mock.cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.mock.__exit__(*raised)

    def __getitem__(self, node_id: int) -> ScriptedBroker:
        return self.brokers[node_id]

    @property
    def bootstrap_servers(self) -> str:
        return self.mock.bootstrap_servers

    def create(self, topic: str, partitions: int = 1, *, leader: int | None = None) -> list[TopicPartition]:
        """Create a topic, its leaders in turn."""
        self.mock.create_topic(topic, partitions)
        created = [TopicPartition(topic, index) for index in range(partitions)]
        for tp in created if leader is not None else ():
            self.logs[tp].leader = leader
        return created

    def own(self, request: Request[Any], version: int, node_id: int = 1) -> Any:
        """What the broker would answer."""
        body = b"".join(codec(type(request), version).write(request))
        told = self.mock.respond(api_of(type(request)), body, version=version, node_id=node_id)
        return codec(type(request).response, version).read(memoryview(told))

    def metadata(self, request: MetadataRequest, version: int) -> MetadataResponse:
        """The brokers' own answer."""
        return self.own(request, version)

    def list_offsets(self, request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        """The own answer of the broker that leads the first of the partitions."""
        first = request.topics[0]
        log = self.logs.get(TopicPartition(first.name, first.partitions[0].partition_index))
        return self.own(request, version, 1 if log is None else log.leader)

    def fetcher(self, node_id: int) -> Callable[[FetchRequest, int], FetchResponse]:
        """A broker's own answer to fetches."""
        return lambda request, version: self.own(request, version, node_id)


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
