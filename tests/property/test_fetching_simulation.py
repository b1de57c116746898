"""A `PartitionReader`, with the fetch, the look-ups and the buffer below it, against naive logs, at random:
answers lost, late, cut off and false, leaders that move and lag behind, followers that serve, transactions,
compaction, retention, logs that are cut back, topics that are created again; while its caller seeks, pauses,
gives back and goes away. Each record comes in the order of its log, from the position on, once. It skips none
without an error or a reset, and those come only where a log has lost something.
"""

from __future__ import annotations

import os
import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pytest
from support.consumer.naive_partition import NODES, Batch, NaivePartition, chain
from support.consumer.stepped_reader import SteppedReader, stepped

from spark_kafka_native.kafka.config.reader_config import OffsetReset
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    CorruptRecordError,
    KafkaError,
    LogTruncatedError,
    NetworkError,
    OffsetOutOfRangeError,
    ProtocolError,
    TopicRecreatedError,
)
from spark_kafka_native.kafka.model import IsolationLevel, Record, TopicPartition
from spark_kafka_native.kafka.protocol.api import metadata as md
from spark_kafka_native.kafka.protocol.api.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from spark_kafka_native.kafka.protocol.api.list_offsets import (
    EARLIEST_TIMESTAMP,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from spark_kafka_native.kafka.protocol.api.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline

E = ErrorCode
SEEDS = int(os.environ.get("FETCHING_SIMULATIONS", "30"))
STEPS = 400
TPS = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
CODES = [
    E.NOT_LEADER_OR_FOLLOWER,
    E.FENCED_LEADER_EPOCH,
    E.UNKNOWN_LEADER_EPOCH,
    E.REPLICA_NOT_AVAILABLE,
    E.KAFKA_STORAGE_ERROR,
    E.OFFSET_NOT_AVAILABLE,
    E.UNKNOWN_SERVER_ERROR,
]


@dataclass(eq=False)
class Topic:
    id: UUID
    partitions: list[NaivePartition]


@dataclass(eq=False)
class Reading:
    """How far the application has read a partition."""

    position: int
    last: list[tuple[int, Batch]] = field(default_factory=list)
    """The records since it was moved, of one log."""
    topic_id: UUID | None = None
    resets: deque[tuple[int, int]] = field(default_factory=deque)
    """Those that the reader has applied, and that its records do not show so far."""
    passed: list[tuple[Record, tuple[int, int]]] = field(default_factory=list)
    """Those that the last read has shown, each with the first record behind it."""
    sought: bool = False
    """True if it was moved to a place that is no offset of the log."""
    paused: bool = False


class World:
    """Three brokers, and an application that reads their three partitions."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        chance = self.rng.random
        self.now = self.passing = 0.0
        self.version = self.rng.choice([11, 12, 13, 17])
        self.committed = chance() < 0.6
        self.policy = self.rng.choice(["none", "earliest", "latest"])
        self.cuts, self.trims, self.corrupts, self.strays = (chance() < 0.4 for _ in range(4))
        self.compacted = self.rng.choice([0.3, 0.95])
        self.recreates = self.version >= 13 and chance() < 0.4
        self.near = self.rng.choice([None, None, 3])
        self.faults = True
        self.topics: dict[str, Topic] = {}
        self.made: dict[UUID, Topic] = {}
        self.hosted: dict[int, dict[UUID, Topic]] = {node_id: {} for node_id in NODES}
        """The topics that a broker serves: it may not have heard that one was deleted."""
        self.views: dict[int, Any] = {}
        self.written: dict[int, tuple[UUID, TopicPartition, int, Batch]] = {}
        self.count = self.ids = self.corrupted = self.unreadable = 0
        self.rests = 0
        self.lost_topics: set[str] = set()
        self.readings: dict[TopicPartition, Reading] = {}
        self.returned: list[Record] = []
        """By the last read."""
        self.reader: SteppedReader
        for name in ("t", "u"):
            self.create(name)
        for node_id in NODES:
            self.learn(node_id)

    @property
    def config(self) -> dict[str, Any]:
        level = IsolationLevel.READ_COMMITTED if self.committed else IsolationLevel.READ_UNCOMMITTED
        return {
            "fetch_max_wait_ms": 100,
            "isolation_level": level,
            "auto_offset_reset": OffsetReset.parse(self.policy),
            "prefetch_max_bytes": self.rng.choice([1, 200, 1 << 20]),
            "max_partition_fetch_bytes": self.rng.choice([1, 150, 300, 1 << 20]),
            "fetch_max_bytes": self.rng.choice([300, 1 << 20]),
        }

    # The cluster.

    def create(self, name: str) -> None:
        self.ids += 1
        count = sum(tp.topic == name for tp in TPS)
        topic = Topic(UUID(int=self.ids), [NaivePartition(self.rng) for _ in range(count)])
        self.topics[name] = self.made[topic.id] = topic
        for node_id in NODES:
            self.hosted[node_id][topic.id] = topic

    def delete(self) -> None:
        name = self.rng.choice("tu")
        if self.recreates and name in self.topics:
            del self.topics[name]
            self.lost_topics.add(name)

    def recreate(self) -> None:
        for name in "tu":
            if name not in self.topics:
                self.create(name)

    def learn(self, node_id: int) -> None:
        """A broker hears the latest news of the controller."""
        self.views[node_id] = [
            (name, topic.id, [(one.leader, one.epoch) for one in topic.partitions])
            for name, topic in self.topics.items()
        ]
        self.hosted[node_id] = {topic.id: topic for topic in self.topics.values()}

    @property
    def partitions(self) -> list[tuple[TopicPartition, NaivePartition]]:
        return [
            (TopicPartition(name, index), one)
            for name, topic in self.topics.items()
            for index, one in enumerate(topic.partitions)
        ]

    def partition(self, tp: TopicPartition) -> NaivePartition | None:
        return topic.partitions[tp.partition] if (topic := self.topics.get(tp.topic)) else None

    def append(self) -> None:
        self.append_to(self.rng.sample(self.partitions, min(len(self.partitions), 2)))

    def append_to(self, partitions: list[tuple[TopicPartition, NaivePartition]]) -> None:
        for tp, partition in partitions:
            values = list(range(self.count, self.count + self.rng.randint(1, 5)))
            self.count += len(values)
            partition.append(values, self.rng.choice([None, None, 7, 8]))
            added = partition.batches[-1]
            for offset, value in added.values.items():
                self.written[value] = self.topics[tp.topic].id, tp, offset, added

    def change(self) -> None:
        """One thing happens in the cluster."""
        if not self.partitions:
            return
        _, partition = self.rng.choice(self.partitions)
        node_id = self.rng.choice(NODES)
        actions = [
            (self.append, 6),
            (lambda: partition.copy(node_id), 8),
            (lambda: partition.inform(node_id), 2),
            (lambda: partition.end_transactions(0.5), 2),
            (lambda: partition.elect(clean=not self.cuts or self.rng.random() < 0.5), 2),
            (lambda: self.learn(node_id), 2),
            (lambda: partition.compact(self.compacted), 0.6),
            (partition.trim if self.trims else self.append, 0.3),
            (self.delete, 0.15),
        ]
        self.choose(actions)

    def choose(self, actions: list[Any]) -> None:
        self.rng.choices([action for action, _ in actions], [weight for _, weight in actions])[0]()

    # Its answers.

    def is_fault(self, chance: float) -> bool:
        return self.faults and self.rng.random() < chance

    def metadata(self, names: list[str]) -> Any:
        if self.is_fault(0.1):
            raise NetworkError("no broker answers")
        view = {name: (topic_id, led) for name, topic_id, led in self.views[self.rng.choice(NODES)]}
        topics = []
        for name in names:
            topic_id, led = view.get(name, (UUID(int=0), []))
            partitions = [
                md.MetadataResponsePartition(
                    error_code=E.NONE,
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=epoch,
                    replica_nodes=[],
                    isr_nodes=[],
                )
                for index, (leader, epoch) in enumerate(led)
            ]
            code = E.NONE if led else E.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(
                md.MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, partitions=partitions)
            )
        down = self.rng.choice(NODES) if self.is_fault(0.1) else None
        brokers = [md.MetadataResponseBroker(node_id=one, host="h", port=one) for one in NODES if one != down]
        return md.MetadataResponse(brokers=brokers, topics=topics)

    def dial(self) -> None:
        if self.is_fault(0.1):
            raise NetworkError("refused")

    def heard(self) -> KafkaError | None:
        if not self.is_fault(0.005):
            return None
        self.unreadable += 1
        return ProtocolError("it cannot be read")

    def between_tries(self) -> None:
        if not self.faults:
            return
        for _ in range(3):
            self.change()
        self.learn(self.rng.choice(NODES))
        for _, partition in self.partitions:
            partition.copy(self.rng.choice(NODES))

    def hosts(self, node_id: int, name: str, topic_id: UUID | None = None) -> list[NaivePartition]:
        if topic_id is None or not topic_id.int:
            found = self.topics.get(name)
        else:
            found = self.hosted[node_id].get(topic_id)
        return found.partitions if found else []

    def answer(self, request: Any, node_id: int, version: int) -> Any:
        if isinstance(request, FetchRequest):
            return self.answer_fetch(request, node_id, version)
        if self.is_fault(0.1):
            raise NetworkError("hung up")
        if isinstance(request, ListOffsetsRequest):
            return ListOffsetsResponse(
                topics=[
                    ListOffsetsTopicResponse(
                        name=topic.name,
                        partitions=[
                            self.list_offset(
                                node_id, topic.name, one, committed=bool(request.isolation_level)
                            )
                            for one in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ]
            )
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        self.find_end_of_epoch(node_id, topic.topic, one) for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def list_offset(self, node_id: int, name: str, one: Any, *, committed: bool) -> Any:
        hosted = self.hosts(node_id, name)
        code, offset = E.UNKNOWN_TOPIC_OR_PARTITION, -1
        if hosted:
            partition = hosted[one.partition_index]
            replica = partition.replicas[node_id]
            code = partition.refusal(node_id, one.current_leader_epoch, of_leader=True)
            if not code and one.timestamp == EARLIEST_TIMESTAMP:
                offset = replica.start
            elif not code and replica.high_watermark < replica.epochs.get(replica.epoch, 0):
                code = E.OFFSET_NOT_AVAILABLE  # KIP-207
            elif not code:
                offset = replica.stable if committed else replica.high_watermark
        return ListOffsetsPartitionResponse(
            partition_index=one.partition_index, error_code=code, offset=offset
        )

    def find_end_of_epoch(self, node_id: int, name: str, one: Any) -> EpochEndOffset:
        code, found = E.UNKNOWN_TOPIC_OR_PARTITION, (-1, -1)
        if hosted := self.hosts(node_id, name):
            partition = hosted[one.partition]
            code = partition.refusal(node_id, one.current_leader_epoch, of_leader=True)
            if not code:
                found = partition.replicas[node_id].end_of_epoch(one.leader_epoch)
        return EpochEndOffset(
            partition=one.partition, error_code=code, leader_epoch=found[0], end_offset=found[1]
        )

    def answer_fetch(self, request: FetchRequest, node_id: int, version: int) -> FetchResponse:
        if self.is_fault(0.02):
            return FetchResponse(error_code=E.UNKNOWN_SERVER_ERROR, responses=[])
        topics, left, throttled = [], request.max_bytes, self.is_fault(0.02)
        served = False
        for topic in request.topics:
            answers: list[Any] = []
            for asked in topic.partitions:
                hosted = self.hosts(node_id, topic.topic, topic.topic_id if version >= 13 else None)
                if not hosted:
                    gone = E.UNKNOWN_TOPIC_ID if version >= 13 else E.UNKNOWN_TOPIC_OR_PARTITION
                    answers.append(refused(asked.partition, gone))
                    continue
                near = self.near if request.rack_id else None
                partition = hosted[asked.partition]
                data, batches = partition.fetch(
                    node_id, asked, committed=bool(request.isolation_level), near=near
                )
                if self.is_fault(0.03):
                    data = refused(asked.partition, self.rng.choice(CODES))
                elif batches and not throttled and not self.is_fault(0.02):
                    records = self.records(batches, min(left, asked.partition_max_bytes), served)
                    left -= len(records)
                    served = served or bool(records)
                    data = replace(data, records=memoryview(records) if records else None)
                if not self.is_fault(0.02):
                    answers += [data] * (2 if self.is_fault(0.02) else 1)
            named = {"topic_id": topic.topic_id} if version >= 13 else {"topic": topic.topic}
            topics.append(FetchableTopicResponse(partitions=answers, **named))
        if throttled and self.rng.random() < 0.5:
            topics = []
        return FetchResponse(responses=topics, throttle_time_ms=int(throttled))

    def records(self, batches: list[Batch], limit: int, served: bool) -> bytearray:
        """The first batch comes whole if nothing came before it (KIP-74), else whole or not at all."""
        encoded = [one.encoded() for one in batches]
        if limit < len(encoded[0]) and served:
            return bytearray()
        limit = max(limit, len(encoded[0]))
        if self.is_fault(0.2):
            limit = min(limit, len(encoded[0]) + self.rng.randint(0, 400))
        records = bytearray(b"".join(encoded)[:limit])
        if self.corrupts and self.is_fault(0.03):
            self.corrupted += 1
            number = self.rng.randrange(len(encoded))
            begin = sum(map(len, encoded[:number]))
            if begin + 61 < len(records):  # what the checksum covers
                records[self.rng.randrange(begin + 21, min(begin + len(encoded[number]), len(records)))] ^= 1
        return records

    # The application.

    def add(self, tp: TopicPartition) -> None:
        if (partition := self.partition(tp)) is not None:
            at = self.rng.randint(partition.led.start, max(partition.led.start, partition.led.high_watermark))
            self.readings[tp] = Reading(at, sought=at > partition.sure)
            self.reader.add(tp, at)

    def remove(self, tp: TopicPartition) -> None:
        """And perhaps add it again, as another member of a group would."""
        self.take_resets()
        reading, epochs = self.readings.pop(tp), {}
        at = self.reader.position(tp)
        assert at >= reading.position or reading.resets, f"{tp}: the position {at} is before what was read"
        if self.rng.random() < 0.7:
            epochs = self.reader.leader_epochs({tp: at})
        topic_id = self.reader.topic_ids.get(tp)
        is_lost = tp in self.reader.buffer.broken
        assert self.reader.remove(tp) == at
        if is_lost or at < reading.position or self.rng.random() < 0.3:
            return
        if not reading.resets:
            self.check_hidden(tp, reading, at)
        last = reading.last[-1:] if epochs and not reading.resets else []
        self.readings[tp] = Reading(at, last, topic_id, sought=reading.sought)
        self.reader.add(tp, at, topic_id, epochs.get(tp, -1))

    def seek(self, tp: TopicPartition, at: int | None = None) -> None:
        self.take_resets()
        partition, reading = self.partition(tp), self.readings[tp]
        if at is None:
            if partition is None:
                return
            at = self.rng.randint(partition.led.start, max(partition.led.start, partition.led.high_watermark))
            is_stray = self.strays and self.rng.random() < 0.2
            if is_stray:
                at = self.rng.choice([partition.led.end + 3, 0])
            reading.sought = is_stray or at > partition.sure
        if isinstance(self.reader.buffer.partition(tp).error, TopicRecreatedError):
            reading.topic_id = None
        self.reader.seek(tp, at)
        reading.position, reading.last = at, []
        reading.resets.clear()

    def pause(self, tp: TopicPartition) -> None:
        reading = self.readings[tp]
        (self.reader.resume if reading.paused else self.reader.pause)(tp)
        reading.paused = not reading.paused

    def read(self) -> None:
        self.rests -= 1
        if self.rests > 0 and self.faults:
            return
        soon, self.returned = Deadline.after_ms(0), []
        for reading in self.readings.values():
            reading.passed.clear()
        kind = self.rng.random()
        try:
            if kind < 0.5:
                self.returned = self.reader.poll(self.rng.randint(1, 9), soon)
            elif kind < 0.8:
                self.returned = [one for one in [self.reader.next_record(soon)] if one]
            elif (found := self.reader.read_columns(soon)) is not None:
                self.returned = list(found.columns.records(*found.topic_partition))
        except KafkaError as error:
            self.judge(error)
        self.take_resets()
        for one in self.returned:
            self.take(one)

    def give_back(self) -> None:
        """What the last read has returned, or the rest of it."""
        if self.returned:
            one = self.rng.choice(self.returned)
            tp, reading = one.topic_partition, self.readings.get(one.topic_partition)
            behind = self.returned[self.returned.index(one) + 1 :]
            if self.reader.give_back(tp, one.offset) and reading is not None:
                reading.last = [known for known in reading.last if known[0] < one.offset]
                reading.position = one.offset
                undone = [reset for first, reset in reading.passed if first in behind]
                if undone:
                    reading.last = []
                reading.resets.extendleft(reversed(undone))
            self.returned = []

    def rest(self) -> None:
        self.rests = self.rng.randint(1, 20)

    def take_resets(self) -> None:
        for tp, former, offset in self.reader.resets:
            if (reading := self.readings.get(tp)) is not None:
                self.check_loss(tp, former, "a reset")
                reading.resets.append((former, offset))
        self.reader.resets.clear()

    def check_loss(self, tp: TopicPartition, offset: int, kind: str) -> None:
        partition, reading = self.partition(tp), self.readings[tp]
        has_lost = partition is None or tp.topic in self.lost_topics or partition.cuts or reading.sought
        assert has_lost or offset < partition.start, f"{kind} at {offset} of {tp}, which has lost nothing"

    def judge(self, error: KafkaError) -> None:
        match error:
            case OffsetOutOfRangeError():
                tp = error.topic_partition
                assert self.policy == "none" or error.log_start_offset is None, error
                self.check_loss(tp, error.offset, str(error))
                self.seek(tp)
            case LogTruncatedError():
                tp = error.topic_partition
                partition = self.partition(tp)
                has_lost = partition is None or partition.cuts or self.readings[tp].sought
                assert has_lost or tp.topic in self.lost_topics, error
                assert error.end_offset < error.position
                self.seek(tp, min(error.end_offset, self.readings[tp].position))
            case TopicRecreatedError():
                assert error.topic in self.lost_topics, error
                for tp in self.reader.recreated:
                    self.seek(tp, 0)
            case CorruptRecordError():
                assert self.corrupted > 1, error
                self.seek(error.topic_partition, self.readings[error.topic_partition].position)
            case ProtocolError():
                assert self.unreadable, error
            case BrokerError(error_code=E.UNKNOWN_TOPIC_OR_PARTITION | E.UNKNOWN_TOPIC_ID):
                assert self.lost_topics, error
            case _:
                raise error

    # Its records.

    def take(self, one: Record) -> None:
        tp, reading = one.topic_partition, self.readings[one.topic_partition]
        topic_id, of, offset, batch = self.written[int(one.value or b"")]
        assert (tp, one.offset) == (of, offset), f"{one} belongs to {of} at {offset}"
        assert not reading.paused, f"{one}, though it is paused"
        assert not self.committed or batch.transaction is None or batch.transaction.committed, (
            f"hidden: {one}"
        )
        start = self.made[topic_id].partitions[tp.partition].start
        while (problem := self.problem(reading, topic_id, (offset, batch), start)) is not None:
            assert reading.resets, f"{tp} at {offset}, read up to {reading.position}: {problem}"
            reading.passed.append((one, reading.resets.popleft()))
            reading.position = reading.passed[-1][1][1]
            reading.last = []
        reading.position = offset + 1
        reading.last.append((offset, batch))
        reading.topic_id = topic_id if self.version >= 13 else None

    def problem(self, reading: Reading, topic_id: UUID, at: tuple[int, Batch], start: int) -> str | None:
        """``start`` is the first offset of the log: no broker knows of a cut before it."""
        offset, batch = at
        if offset < reading.position:
            return "it was read before"
        if reading.topic_id not in (None, topic_id):
            return "it is of another topic"
        if missing := self.shown(batch, reading.position, offset):
            return f"it lacks {missing}"
        if reading.last and reading.last[-1][1] not in chain(batch) and reading.position > start:
            return "the log was cut before it"
        return None

    def shown(self, tip: Batch | None, begin: int, end: int) -> list[int]:
        """The offsets of the log that ends with ``tip`` that a reader gets, or has to wait for."""
        return [
            at
            for one in chain(tip, begin)
            if not one.is_marker
            and (not self.committed or one.transaction is None or one.transaction.committed is not False)
            for at in one.values
            if begin <= at < end
        ]

    def check_hidden(self, tp: TopicPartition, reading: Reading, until: int) -> None:
        """There is a log with nothing to read from the position to ``until``."""
        if (partition := self.partition(tp)) is None or tp.topic in self.lost_topics:
            return
        tips = [one.tip for one in partition.replicas.values()] + [*partition.batches]
        fitting = [tip for tip in tips if not reading.last or reading.last[-1][1] in chain(tip)]
        assert (
            any(
                not self.shown(tip, reading.position, until)
                for tip in fitting
                if tip is None or tip.end >= until
            )
            or until == reading.position
        ), f"{tp}: skipped between {reading.position} and {until}"

    # The whole.

    def step(self) -> None:
        self.passing += self.rng.random() * 0.03
        node_id = self.rng.choice(NODES)
        links = self.reader.stepped_router.links
        tp = self.rng.choice(TPS)
        known = tp in self.readings
        actions = [
            (self.change, 12),
            (self.reader.turn, 10),
            (self.reader.look_up, 5),
            (lambda: [one.serve() for one in links.values()], 8),
            (lambda: node_id in links and links[node_id].hear(), 12),
            (lambda: node_id in links and links[node_id].hang_up(), 0.4),
            (self.read, 10),
            (self.give_back, 1),
            (self.rest, 0.4),
            (lambda: self.seek(tp) if known else self.add(tp), 0.5),
            (lambda: self.pause(tp) if known else self.add(tp), 0.8),
            (lambda: self.remove(tp) if known else self.add(tp), 0.5),
            (self.recreate, 1),
            (self.jump, 0.1),
            (self.round, 12),
        ]
        self.choose(actions)

    def round(self) -> None:
        """Each part takes one step."""
        self.reader.turn()
        self.reader.look_up()
        for link in list(self.reader.stepped_router.links.values()):
            link.serve()
            link.hear()
        self.read()

    def jump(self) -> None:
        self.passing += 1.5

    def wait(self) -> None:
        """The time of the steps before passes where the fetch waits."""
        self.now, self.passing = self.now + self.passing, 0.0

    def settle(self) -> None:
        """Nothing happens any more: everything is read."""
        self.faults = False
        self.recreate()
        self.append_to(self.partitions)  # brokers never compact the last batch away
        for _, partition in self.partitions:
            partition.end_transactions()
        for node_id in NODES * 2:
            self.learn(node_id)
            for _, partition in self.partitions:
                partition.copy(node_id, whole=True)
        for tp, reading in list(self.readings.items()):
            if reading.paused:
                self.pause(tp)
        for turn in range(1_500):
            self.passing += 0.05
            self.round()
            # It may be at the end of a topic of the name that is gone.
            if turn > 80 and not self.returned and all(map(self.is_at_end, self.readings)):
                return
        at = {str(tp): (self.reader.position(tp), self.partition(tp).led.end) for tp in self.readings}
        raise AssertionError(f"it does not come to the end: {at}")

    def is_at_end(self, tp: TopicPartition) -> bool:
        partition = self.partition(tp)
        assert partition is not None
        is_idle = tp not in self.reader.buffer.broken and not self.reader.buffer.partition(tp).waiting
        return is_idle and self.reader.position(tp) == partition.led.end

    def check_end(self) -> None:
        for tp, partition in self.partitions:
            if (reading := self.readings.get(tp)) is None:
                continue
            while (problem := self.problem_at_end(tp, reading, partition)) is not None:
                assert reading.resets, f"{tp}, read up to {reading.position}: {problem}"
                _, reading.position = reading.resets.popleft()
                reading.last = []

    def problem_at_end(self, tp: TopicPartition, reading: Reading, partition: NaivePartition) -> str | None:
        tip = partition.led.tip
        if reading.topic_id not in (None, self.topics[tp.topic].id):
            return "it is another topic"
        if reading.last and reading.last[-1][1] not in chain(tip) and reading.position > partition.start:
            return "the log was cut without a word"
        left = self.shown(tip, reading.position, partition.led.end)
        return f"it never came to {left}" if left else None


def refused(index: int, code: ErrorCode) -> Any:
    return PartitionData(
        partition_index=index, error_code=code, high_watermark=-1, aborted_transactions=None, records=None
    )


def check(seed: int) -> None:
    world = World(seed)
    client = {"request.timeout.ms": "1000", "retry.backoff.ms": "10", "retry.backoff.max.ms": "50"}
    client |= {"client.rack": "r", "metadata.max.age.ms": "3000"}
    with stepped(world, client, world.rng.choice([1, 30, 1 << 20]), **world.config) as world.reader:
        for _ in range(6):
            world.append()
        for tp in TPS:
            world.add(tp)
        for _ in range(STEPS):
            world.step()
        world.settle()
        world.check_end()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_record_is_read_once_and_in_order_whatever_happens(seed: int) -> None:
    check(seed)
