"""`SteppedProducer`: the half of a producer that sends, as `Producer` puts it together, without a thread,
sockets and a clock of its own: the test calls each step, and its cluster reads the bytes on the wire."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import numpy as np
import pyarrow as pa

from spark_kafka_native.kafka.cluster.metadata import ClusterMetadata
from spark_kafka_native.kafka.config.client_config import ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import KafkaError, NetworkError
from spark_kafka_native.kafka.observe.metrics import MetricsRegistry
from spark_kafka_native.kafka.producer.accumulating.batch import Batch, BatchEncoder, Origin, ProducerIdentity
from spark_kafka_native.kafka.producer.accumulating.memory import BufferMemory, Room
from spark_kafka_native.kafka.producer.accumulating.topic_buffer import BufferParts, TopicBuffer
from spark_kafka_native.kafka.producer.accumulating.topics import Topics
from spark_kafka_native.kafka.producer.completion import BatchCompletion
from spark_kafka_native.kafka.producer.delivery import DeliveryBlock, Outcome, Waiters
from spark_kafka_native.kafka.producer.oversized import OverLimit
from spark_kafka_native.kafka.producer.sending.produce_requests import Answered, ProduceAnswer
from spark_kafka_native.kafka.producer.sending.sender import SenderLoop
from spark_kafka_native.kafka.producer.sending.verdict import Failed
from spark_kafka_native.kafka.producer.spill_folder import SpillFolder
from spark_kafka_native.kafka.producer.spilling import Replay, Spilling
from spark_kafka_native.kafka.producer.stats import StatsRecorder
from spark_kafka_native.kafka.protocol.api.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from spark_kafka_native.kafka.records.columns import RecordColumns

E = ErrorCode


class Packet(NamedTuple):
    """A batch on the wire."""

    topic: str
    topic_id: UUID
    partition: int
    data: bytes


class Cluster(Protocol):
    """What a test has in its place."""

    by_id: bool
    """True if Produce names topics by id."""

    def metadata(self) -> ClusterMetadata: ...

    def identify(self) -> ProducerIdentity: ...

    def posting(self) -> None:
        """A request is about to be sent; an error that is no `Exception` is the death of the process."""

    def take_in(self, packet: Packet, node_id: int) -> ErrorCode: ...

    def ended(self, record: int, outcome: Outcome) -> None: ...


@dataclass
class Answer:
    """A `PendingResponse`."""

    done: bool = False
    response: ProduceResponse | None = None
    what: str = "Produce"

    def result(self, _timeout: float) -> ProduceResponse:
        if self.response is None:
            raise NetworkError("lost")
        return self.response

    def release(self) -> None:
        pass


@dataclass(eq=False)
class Link:
    """A `Connection` to a broker."""

    cluster: Cluster
    node_id: int
    sent: deque[tuple[list[Packet], Answer]] = field(default_factory=deque)
    answered: deque[tuple[ProduceResponse, Answer]] = field(default_factory=deque)
    closed: bool = False
    has_unwritten = renewal_due = False
    muted_ms = answered_at = 0

    @property
    def address(self) -> str:
        return f"broker:{self.node_id}"

    def alive(self) -> bool:
        return not self.closed

    def poll(self) -> None:
        pass

    def version_of(self, _request: type, highest: int = 13) -> int:
        return min(highest, 13 if self.cluster.by_id else 12)

    def post(self, request: ProduceRequest, _version: int) -> Answer:
        self.cluster.posting()
        packets = [
            Packet(topic.name, topic.topic_id, data.index, bytes(data.records or b""))
            for topic in request.topic_data
            for data in topic.partition_data
        ]
        answer = Answer()
        self.sent.append((packets, answer))
        return answer

    def serve(self) -> None:
        """The broker takes the next request in."""
        if self.sent:
            packets, answer = self.sent.popleft()
            self.answered.append((self._take_in(packets), answer))

    def hear(self) -> None:
        """The next response arrives."""
        if self.answered:
            response, answer = self.answered.popleft()
            answer.response, answer.done = response, True

    def hang_up(self, still_read: int = 0) -> None:
        """It dies: the broker still reads the first few requests on it; no response comes back."""
        for packets, _ in list(self.sent)[:still_read]:
            self._take_in(packets)
        for _, answer in [*self.sent, *self.answered]:
            answer.done = True
        self.sent.clear()
        self.answered.clear()
        self.closed = True

    def give_up(self, _pending: Answer, _timeout_ms: int, *, is_overdue: bool) -> None:
        assert is_overdue
        self.hang_up(len(self.sent))

    def _take_in(self, packets: list[Packet]) -> ProduceResponse:
        responses = []
        for one in packets:
            code = self.cluster.take_in(one, self.node_id)
            answer = PartitionProduceResponse(index=one.partition, error_code=code, base_offset=-1)
            told = TopicProduceResponse(name=one.topic, topic_id=one.topic_id, partition_responses=[answer])
            responses.append(told)
        return ProduceResponse(responses=responses)


class Reports(DeliveryBlock):
    """The records from ``first`` on; the cluster's test gets their outcomes."""

    def __init__(self, first: int, length: int, waiters: Waiters, cluster: Cluster) -> None:
        super().__init__(length, waiters, lambda: None)
        self.first, self.cluster = first, cluster

    def report(self, rows: Any, _first: int, outcome: Outcome) -> None:
        for row in rows.tolist():
            self.cluster.ended(self.first + row, outcome)


class Loop(SenderLoop):
    """It notes if it may end: where a topic that is asked for by name may have been created again, or at a
    half of a batch that may be in the log as a whole."""

    may_end = is_doubtful = False

    def _settle(self, answer: ProduceAnswer, now: float) -> None:
        if isinstance(answer, Answered) and not answer.by_id:
            queue, order = self.queues.of(answer.batch.topic_partition), answer.batch.order
            is_early = any(one.order < order for one in [*queue.in_flight, *queue.waiting])
            code = answer.response.error_code
            self.is_doubtful |= code is E.UNKNOWN_TOPIC_OR_PARTITION or (code is E.NONE and is_early)
        super()._settle(answer, now)

    def _give_up(self, verdict: Failed, batch: Batch, cause: KafkaError) -> None:
        self.may_end = self.is_doubtful or batch.sending.of_indefinite
        super()._give_up(verdict, batch, cause)


class SteppedProducer:
    """With a spill folder. Its records are numbers."""

    def __init__(self, cluster: Cluster, folder: Path, clock: Callable[[], float], **config: Any) -> None:
        self.cluster = cluster
        self.clock = clock
        self.links: dict[int, Link] = {}
        self.asking: deque[Callable[[], Any]] = deque()
        """Questions of the background, which are not answered yet."""
        self.inbox: deque[Batch] = deque()
        self.router: Any = SimpleNamespace(
            config=SimpleNamespace(
                retry_backoff_ms=10,
                retry_backoff_max_ms=50,
                request_timeout_ms=1_000,
                metadata_max_age_ms=10**9,
                connection_setup_timeout_ms=1_000,
            ),
            snapshot=cluster.metadata(),
            metrics=MetricsRegistry(),
            refresh=self._refresh,
            ask_any=self._identify,
            connection=self._connect,
            outage=lambda _: None,
        )
        settings = ProducerConfig(linger_ms=0, batch_records=4, compression_type="none", **config)
        stats, waiters, encoder = StatsRecorder(), Waiters(), BatchEncoder(settings)
        buffers: dict[str, TopicBuffer] = {}
        self.memory = BufferMemory(10**9, 10**9)
        self.folder = SpillFolder(str(folder))
        spilling = Spilling(self.folder)
        self.completion = BatchCompletion(self.memory, stats, spilling, None, False, waiters)
        replay = Replay(spilling.left_over, self.inbox.extend, waiters)
        parts = BufferParts(
            config=settings,
            partitioner="default",
            encoder=encoder,
            memory=self.memory,
            new_block=lambda length: DeliveryBlock(length, waiters, lambda: None),
            post=self.inbox.extend,
            wake=lambda: None,
            clock=clock,
        )
        self.topics = Topics(buffers, self.router, parts, replay.post)
        over_limit = OverLimit(settings, buffers, encoder, self.memory, self.completion, stats)
        self.loop = Loop(
            self.router,
            settings,
            topics=self.topics,
            memory=self.memory,
            completion=self.completion,
            spilling=spilling,
            over_limit=over_limit,
            replay=replay,
            stats=stats,
            transaction=None,
            inbox=self.inbox,
            wake=lambda: None,
        )
        self.loop.timer.clock = clock
        self.loop.lookups.start = lambda ask, _name: self.asking.append(ask)  # type: ignore[method-assign]

    def open(self, topic: str) -> bool:
        """Its buffer is made, if the topic is there: the batches that an earlier producer left come first."""
        self._refresh()
        found = self.router.snapshot.topics[topic]
        if topic not in self.topics.buffers and found.partitions:
            list(self.topics._add([(found, 10**6)], for_replay=True))
            for batch in self.inbox:
                batch.sending.since = self.clock()
        return topic in self.topics.buffers

    def send(self, topic: str, first: int, count: int, partition: int) -> None:
        room = Room()
        self.memory.overdraw(room, 100 * count, count)
        values = pa.array([b"%d" % record for record in range(first, first + count)], pa.binary())
        columns, sizes = RecordColumns(length=count, value=values), np.full(count, 100)
        origin = Origin(Reports(first, count, self.completion.waiters, self.cluster))
        partitions = np.full(count, partition, np.int32)
        self.topics.buffers[topic].append_columns(columns, sizes, partitions, origin, room)

    def turn(self, *, closing: bool = False) -> None:
        self.loop.turn(deque(), closing)

    def look_up(self) -> None:
        """The next question of the background is answered."""
        if self.asking:
            self.loop.lookups.finished.append(self.asking.popleft()())

    @property
    def fatal(self) -> KafkaError | None:
        return self.loop.failures.fatal

    @property
    def idle(self) -> bool:
        """True if nothing is under way, or waits for its next try."""
        return self.loop.empty and not self.loop.spilling.backlogs

    def end(self) -> None:
        """As its thread does at the end: batches that have not ended go to the folder."""
        self.loop.end()
        self.completion.close()

    def kill(self) -> None:
        """The folder stays as it is."""
        self.folder.forget()

    def _refresh(self, *_: Any) -> None:
        self.router.snapshot = self.cluster.metadata()

    def _identify(self, *_: Any) -> Any:
        identity = self.cluster.identify()
        return SimpleNamespace(error_code=E.NONE, **identity._asdict())

    def _connect(self, node_id: int, *_: Any) -> Link:
        link = self.links[node_id] = Link(self.cluster, node_id)
        return link
