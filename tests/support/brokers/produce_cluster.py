"""`ProduceCluster`: scripted brokers that keep a log and check sequence numbers as Kafka's do, and
misbehave on cue."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import Record, TopicPartition
from spark_kafka_native.kafka.protocol.api.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse
from spark_kafka_native.kafka.protocol.api.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from spark_kafka_native.kafka.protocol.api.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from spark_kafka_native.kafka.records.batch import HEADER
from spark_kafka_native.kafka.records.decode import decode_record_set
from support.brokers.scripted_broker import HangUp, NoAnswer, ScriptedCluster, Silence


@dataclass(frozen=True)
class Step:
    """What happens to the next batch of a partition: applied or not, answered with what."""

    applied: bool
    answer: Any
    """An ErrorCode, HangUp or Silence."""


def refused(code: ErrorCode) -> Step:
    return Step(False, code)


LOST_REQUEST = Step(False, HangUp)
LOST_ANSWER = Step(True, HangUp)
NO_ANSWER = Step(True, Silence)
NO_ANSWER_NOT_APPLIED = Step(False, Silence)


@dataclass
class Arrived:
    """A batch that a broker was sent."""

    node_id: int
    topic_partition: TopicPartition
    data: bytes
    at: float

    def header(self, name: str) -> int:
        return int(np.frombuffer(self.data, HEADER, 1)[0][name])


@dataclass
class ProducerState:
    epoch: int
    last: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))


class ProduceCluster(ScriptedCluster):
    """Brokers that take batches in, in the manner of Kafka's ``ProducerAppendInfo``."""

    def __init__(
        self, brokers: int = 1, max_message_bytes: int = 1_048_588, socket_buffer_bytes: int | None = None
    ) -> None:
        super().__init__(brokers, socket_buffer_bytes)
        self.max_message_bytes = max_message_bytes
        self.told_max_message_bytes: int | None = None
        self.limits: dict[str, int] = {}
        """Of single topics, shown to clients or not; the others have that of the cluster."""
        self.limit_errors: dict[str, ErrorCode] = {}
        """Of the topics that may not be described."""
        self.too_large = ErrorCode.MESSAGE_TOO_LARGE
        self.scripts: dict[TopicPartition, deque[Step]] = defaultdict(deque)
        self.arrived: list[Arrived] = []
        self.states: dict[tuple[TopicPartition, Any, int], ProducerState] = {}
        self.next_producer_id = 1000
        self.duplicates_without_offset = False
        self.delay_s = 0.0
        self.throttle_ms = 0
        self.lock = threading.Lock()
        for broker in self.brokers.values():
            broker.on(InitProducerIdRequest, self._identify)
            broker.on(DescribeConfigsRequest, self._configs)
            broker.on(ProduceRequest, self.producer(broker.node_id))

    def script(self, tp: TopicPartition, *steps: Step) -> None:
        self.scripts[tp].extend(steps)

    def values(self, tp: TopicPartition) -> list[bytes | None]:
        """Every value in the log, in order."""
        found: list[bytes | None] = []
        for batch in self.logs[tp].batches:
            columns = decode_record_set(batch, fetch_offset=0).columns
            assert columns.value is not None
            found += columns.value.to_pylist()
        return found

    def records(self, tp: TopicPartition) -> list[Record]:
        """Every record in the log, in order."""
        return [
            record
            for batch in self.logs[tp].batches
            for record in decode_record_set(batch, fetch_offset=0).columns.records(*tp)
        ]

    def batches(self, tp: TopicPartition) -> list[Arrived]:
        """What arrived for a partition, refused or not."""
        return [one for one in self.arrived if one.topic_partition == tp]

    @contextlib.contextmanager
    def forbid(self, topic: str) -> Iterator[None]:
        """Answer Metadata requests for ``topic`` as unauthorized."""

        def metadata(request: MetadataRequest, version: int) -> MetadataResponse:
            told = self.metadata(request, version)
            topics = [
                dataclasses.replace(t, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, partitions=[])
                if t.name == topic
                else t
                for t in told.topics
            ]
            return dataclasses.replace(told, topics=topics)

        for broker in self.brokers.values():
            broker.on(MetadataRequest, metadata)
        yield
        for broker in self.brokers.values():
            broker.on(MetadataRequest, self.metadata)

    def _identify(self, _request: InitProducerIdRequest, _version: int) -> InitProducerIdResponse:
        with self.lock:
            self.next_producer_id += 1
            return InitProducerIdResponse(
                throttle_time_ms=0,
                error_code=ErrorCode.NONE,
                producer_id=self.next_producer_id,
                producer_epoch=0,
            )

    def _configs(self, request: DescribeConfigsRequest, _version: int) -> DescribeConfigsResponse:
        told = self.told_max_message_bytes or self.max_message_bytes
        limits = self.limits if self.told_max_message_bytes is None else {}
        return DescribeConfigsResponse(
            throttle_time_ms=0,
            results=[
                DescribeConfigsResult(
                    error_code=self.limit_errors.get(resource.resource_name, ErrorCode.NONE),
                    error_message=None,
                    resource_type=2,
                    resource_name=resource.resource_name,
                    configs=[
                        DescribeConfigsResourceResult(
                            name="max.message.bytes",
                            value=str(limits.get(resource.resource_name, told)),
                            read_only=False,
                            is_sensitive=False,
                        )
                    ],
                )
                for resource in request.resources
            ],
        )

    def producer(self, node_id: int) -> Any:
        """The standing answer of a broker to produce requests."""

        def produce(request: ProduceRequest, version: int) -> Any:
            if self.delay_s:
                time.sleep(self.delay_s)
            names = {topic_id: name for name, topic_id in self.topic_ids.items()}
            answers, lost = [], None
            with self.lock:
                for topic in request.topic_data:
                    name = topic.name if version <= 12 else names.get(topic.topic_id)
                    told = []
                    for part in topic.partition_data:
                        data = bytes(part.records or b"")
                        answer = self._take(node_id, name, part.index, data)
                        if answer in (HangUp, Silence):
                            lost = answer
                        else:
                            told.append(answer)
                    answers.append(
                        TopicProduceResponse(
                            name=topic.name, topic_id=topic.topic_id, partition_responses=told
                        )
                    )
            if lost is not None:
                return lost
            if request.acks == 0:
                return NoAnswer
            return ProduceResponse(responses=answers, throttle_time_ms=self.throttle_ms)

        return produce

    def _take(self, node_id: int, name: str | None, index: int, data: bytes) -> Any:
        if name is None:
            return _answer(index, ErrorCode.UNKNOWN_TOPIC_ID)
        tp = TopicPartition(name, index)
        self.arrived.append(Arrived(node_id, tp, data, time.monotonic()))
        script = self.scripts[tp]
        step = script.popleft() if script else None
        log = self.logs.get(tp)
        if log is None:
            return _answer(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if step is not None and not step.applied:
            return step.answer if step.answer in (HangUp, Silence) else _answer(index, step.answer)
        if log.leader != node_id:
            answer: Any = _answer(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif len(data) > self.limits.get(name, self.max_message_bytes):
            answer = _answer(index, self.too_large)
        else:
            answer = self._append(tp, log, data)
        if step is not None:
            answer = step.answer if step.answer in (HangUp, Silence) else _answer(index, step.answer)
        return answer

    def _append(self, tp: TopicPartition, log: Any, data: bytes) -> PartitionProduceResponse:
        head = np.frombuffer(data, HEADER, 1)[0]
        producer_id, epoch = int(head["producer_id"]), int(head["producer_epoch"])
        count = int(head["records_count"])
        if producer_id >= 0:
            first = int(head["base_sequence"])
            last = (first + count - 1) & 0x7FFFFFFF
            key = (tp, self.topic_ids.get(tp.topic), producer_id)
            state = self.states.get(key)
            if state is not None:
                if epoch < state.epoch:
                    return _answer(tp.partition, ErrorCode.INVALID_PRODUCER_EPOCH)
                if epoch > state.epoch:
                    if first != 0:
                        return _answer(tp.partition, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
                    state = None
            if state is None:
                state = self.states[key] = ProducerState(epoch)
            for known_first, known_last, offset in state.last:
                if (known_first, known_last) == (first, last):
                    if self.duplicates_without_offset:
                        return _answer(tp.partition, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
                    return _answer(tp.partition, ErrorCode.NONE, offset)
            if state.last and first != (state.last[-1][1] + 1) & 0x7FFFFFFF:
                return _answer(tp.partition, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            state.last.append((first, last, log.end_offset))
        stored = bytearray(data)
        stored[0:8] = log.end_offset.to_bytes(8, "big")
        log.batches.append(bytes(stored))
        base = log.end_offset
        log.end_offset += count
        return _answer(tp.partition, ErrorCode.NONE, base)


def _answer(index: int, code: ErrorCode, base_offset: int = -1) -> PartitionProduceResponse:
    return PartitionProduceResponse(index=index, error_code=code, base_offset=base_offset)
