"""`World`: the environment of a fetch, without a socket or a thread; a test moves its clock."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from spark_kafka_native.kafka.cluster.router import Leader
from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig
from spark_kafka_native.kafka.consumer.fetch_lookups import FetchLookups
from spark_kafka_native.kafka.consumer.fetcher import FetchClock, FetchRun
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import KafkaError, NetworkError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from spark_kafka_native.kafka.runtime.background import Background
from spark_kafka_native.kafka.runtime.deadline import Deadline
from support.record_batches import batch, record

ONE, TWO, THREE = (TopicPartition("t", partition) for partition in range(3))
ID = UUID(int=1)


class FakePending:
    def __init__(self, connection: FakeConnection, request: Any) -> None:
        self.connection, self.request = connection, request
        self.answer: Any = None
        self.abandoned = self.released = 0

    def result(self, _timeout_ms: float) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def abandon(self) -> None:
        self.abandoned += 1

    def release(self) -> None:
        self.released += 1


class FakeConnection:
    def __init__(self, node_id: int) -> None:
        self.node_id, self.muted_ms, self.version = node_id, 0.0, 13
        self.requests: list[FakePending] = []
        self.versions: list[int] = []
        self.trimmed = 0
        self.buffers = SimpleNamespace(trim=self._trim)

    def _trim(self) -> None:
        self.trimmed += 1

    def version_of(self, request: Any, until: int | None = None) -> int:
        assert request is FetchRequest
        return self.version if until is None else min(self.version, until)

    def submit(self, request: Any, version: int) -> FakePending:
        self.requests.append(FakePending(self, request))
        self.versions.append(version)
        return self.requests[-1]

    def give_up(self, pending: FakePending, after_ms: float, *, is_overdue: bool) -> None:
        assert is_overdue
        pending.answer = NetworkError(f"no answer within {after_ms:.0f} ms")


class AtOnce(Background):
    """Does in the run's own thread what it is given."""

    def start(self, key: Hashable, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        assert key not in self
        try:
            outcome: Any = work()
        except KafkaError as error:
            outcome = error
        then(outcome)

    def deadline(self, timeout_ms: float) -> Deadline:
        return Deadline.after_ms(timeout_ms)


class World:
    """The router that a run is given, its connections, and the run's clock."""

    def __init__(self) -> None:
        self.config = ClientConfig.from_properties(
            {"bootstrap.servers": "a:1", "request.timeout.ms": "3000", "client.rack": "r1"}
        )
        self.now = 0.0
        self.clock = FetchClock(lambda: self.now)
        self.leaders: dict[TopicPartition, Any] = dict.fromkeys((ONE, TWO, THREE), Leader(1, 5, ID))
        self.brokers: dict[int, Any] = {node_id: FakeConnection(node_id) for node_id in (1, 2)}
        self.snapshot = SimpleNamespace(brokers=self.brokers)
        self.connected: set[int] = set()
        self.looked_up: list[str] = []
        self.failure: Exception | None = None

    def knows(self, topics: Any) -> bool:
        assert set(topics) == {"t"}
        return False

    def metadata(self, topics: Any, *, deadline: Deadline) -> None:
        assert topics == {"t"}
        assert 50_000 < deadline.remaining_ms <= 60_000
        self._look_up("known")

    def refresh(self, topics: Any, deadline: Deadline) -> None:
        assert topics == {"t"}
        assert deadline.remaining_ms <= 3_000
        self._look_up("anew")

    def _look_up(self, how: str) -> None:
        self.looked_up.append(how)
        if self.failure is not None:
            raise self.failure

    def known_leaders(self, topic_partitions: Any) -> dict[TopicPartition, Any]:
        return {topic_partition: self.leaders[topic_partition] for topic_partition in topic_partitions}

    def ready(self, node_id: int) -> FakeConnection | None:
        return self.brokers[node_id] if node_id in self.connected else None

    def connection(self, node_id: int, deadline: Deadline) -> FakeConnection:
        assert 50_000 < deadline.remaining_ms <= 60_000
        found = self.brokers[node_id]
        if isinstance(found, Exception):
            raise found
        self.connected.add(node_id)
        return found

    def deadline(self, timeout_ms: float = 60_000) -> Deadline:
        return Deadline.after_ms(timeout_ms)

    def wait_for_any(
        self, pendings: list[FakePending], _until: Deadline, _wakeup: object
    ) -> list[FakePending]:
        return [pending for pending in pendings if pending.answer is not None]


def start(
    world: World,
    *topic_partitions: TopicPartition,
    background: Background | None = None,
    run_with: dict[str, Any] | None = None,
    **config: Any,
) -> FetchRun:
    router: Any = world
    config = {"fetch_max_wait_ms": 500, "poll_timeout_ms": 10_000} | config
    lookups = FetchLookups(router, background=background or AtOnce("kafka-fetch"))
    run = FetchRun(router, ConsumerConfig(**config), lookups=lookups, clock=world.clock, **(run_with or {}))
    for topic_partition in topic_partitions:
        run.add(topic_partition, 10, 20)
    return run


def round_of(run: FetchRun) -> Any:
    """The records that are ready; without any, send requests and look for answers once."""
    return run.next(Deadline.after_ms(0))


def told(**partitions: bytes | ErrorCode) -> FetchResponse:
    """``p0=...``: the records of partition 0, or its error code."""
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic="",
                topic_id=ID,
                partitions=[
                    PartitionData(
                        partition_index=int(name[1:]),
                        error_code=what if isinstance(what, ErrorCode) else ErrorCode.NONE,
                        high_watermark=100,
                        last_stable_offset=100,
                        aborted_transactions=None,
                        records=None if isinstance(what, ErrorCode) else memoryview(what),
                    )
                    for name, what in partitions.items()
                ],
            )
        ]
    )


def records(first: int, count: int = 2) -> bytes:
    return batch([record(i) for i in range(count)], base_offset=first)


def asked(pending: FakePending) -> dict[int, int]:
    """From where each partition was asked for."""
    return {p.partition: p.fetch_offset for topic in pending.request.topics for p in topic.partitions}
