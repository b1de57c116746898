"""`PartitionQueue` against a naive model of a broker's log, at random: answers lost, late and false,
leaders that move, batches that are too large, refused or given up, a topic that is deleted and created
again. Nothing that is reported as written is lost, nothing is doubled, nothing overtakes, and no batch that
is reported as not written is in a log. The producer goes on; it may end only where its topic was created
again, or may have been (brokers that are asked by name denied it, or confirmed a batch before an earlier
one), or at a half of a batch that may be in the log as a whole, as brokers don't recognise halves.
"""

from __future__ import annotations

import os
import random
from collections import deque
from dataclasses import dataclass
from uuid import UUID

import pytest
from support.hooks.fresh_seeds import try_seeds
from support.producer.naive_log import Log
from support.producer.sending_batches import TP, encode, numbers

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, NetworkError
from spark_kafka_native.kafka.producer.accumulating.batch import Batch, ProducerIdentity, SendingState
from spark_kafka_native.kafka.producer.errors import DeliveryStatus
from spark_kafka_native.kafka.producer.sending.idempotence import ProducerId
from spark_kafka_native.kafka.producer.sending.partition_queue import (
    NeedProducerId,
    PartitionQueue,
    Send,
    SendingRules,
)
from spark_kafka_native.kafka.producer.sending.verdict import FAIL, Delivered, Failed, Retry, Split, Verdict

E = ErrorCode
SEEDS = int(os.environ.get("SENDING_SIMULATIONS", "60"))
STEPS = 400
APPLIED_OR_NOT = [
    E.REQUEST_TIMED_OUT,
    E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    E.NOT_LEADER_OR_FOLLOWER,
    E.KAFKA_STORAGE_ERROR,
]
NOT_APPLIED = [E.NOT_ENOUGH_REPLICAS, E.CORRUPT_MESSAGE, E.LEADER_NOT_AVAILABLE, E.UNKNOWN_TOPIC_OR_PARTITION]


@dataclass
class Packet:
    """A batch on the wire, as its bytes say."""

    batch: Batch
    numbers: tuple[int, int, int]
    records: list[int]
    topic_id: int


class World:
    """One partition, three brokers with one log, and a network that the random numbers are against."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.producer_id = ProducerId()
        rules = SendingRules(
            retries=10**9, pipelined=False, delay_s=lambda _: self.rng.random(), topic_propagation_s=10**9
        )
        self.partition = PartitionQueue(TP, rules, self.producer_id)
        self.logs = [Log()]
        """Of each topic that had the name; the last one is the one that has it now."""
        self.known_id = 1
        self.deleted = False
        self.now = 0.0
        self.leader = self.known_leader = 1
        self.sent: dict[int, deque[Packet]] = {node_id: deque() for node_id in (1, 2, 3)}
        self.answers: dict[int, deque[tuple[Batch, ErrorCode]]] = {node_id: deque() for node_id in (1, 2, 3)}
        self.records: dict[Batch, list[int]] = {}
        self.bytes: dict[tuple[Batch, tuple[int, int, int]], bytes] = {}
        self.told: dict[int, DeliveryStatus] = {}
        self.count = self.order = self.producer_ids = 0
        self.faults = True
        self.by_id = self.rng.random() < 0.6
        self.recreates = self.rng.random() < 0.5
        self.is_doubtful = self.ended = False
        self.unsure: set[Batch] = set()
        """Those that have an attempt with an unknown outcome."""
        self.split_in_doubt: set[int] = set()
        """Places of those that were sent in halves, while no half is known to be in the log."""
        self.max_records = self.rng.choice([1, 3, 4])
        self.expires = self.rng.random() < 0.7

    # What may happen.

    def add(self) -> None:
        self.order += 1
        n = self.rng.randint(1, 4)
        ids = list(range(self.count, self.count + n))
        self.count += n
        self.partition.add(self.make(ids, (self.order,)))

    def send(self) -> None:
        if len(self.partition.in_flight) >= 5:
            return
        step = self.partition.next(self.now, self.known_leader, UUID(int=self.known_id))
        if isinstance(step, NeedProducerId):
            # A cluster never gives out an id twice.
            self.producer_ids += 1
            self.producer_id.received(ProducerIdentity(self.producer_ids, self.rng.choice([0, 2**15 - 3])))
        if not isinstance(step, Send):
            return
        batch = step.batch
        self.partition.sent(batch, self.known_leader)
        packet = Packet(batch, numbers(batch), self.records[batch], self.known_id)
        before = self.bytes.setdefault((batch, packet.numbers), bytes(batch.data))
        assert before == batch.data, "a retry with other bytes"
        self.sent[self.known_leader].append(packet)

    def serve(self, node_id: int) -> None:
        """A broker takes the next request in, and does with it what it likes."""
        if not self.sent[node_id]:
            return
        packet = self.sent[node_id].popleft()
        self.answers[node_id].append((packet.batch, self.take_in(packet, node_id)))

    def take_in(self, packet: Packet, node_id: int) -> ErrorCode:
        fault = self.rng.random() if self.faults else 1.0
        if node_id != self.leader:
            return E.NOT_LEADER_OR_FOLLOWER
        if self.by_id and (self.deleted or packet.topic_id != len(self.logs)):
            return E.UNKNOWN_TOPIC_ID
        if self.deleted:
            return E.UNKNOWN_TOPIC_OR_PARTITION
        if len(packet.records) > self.max_records:  # before duplicates are looked for
            return E.MESSAGE_TOO_LARGE
        if fault < 0.07:
            return self.rng.choice(NOT_APPLIED + APPLIED_OR_NOT)
        if fault < 0.08:
            return E.INVALID_RECORD
        code = self.logs[-1].append(packet.numbers, packet.records)
        return self.rng.choice(APPLIED_OR_NOT) if fault < 0.13 else code

    def hear(self, node_id: int) -> None:
        """The next answer of a broker arrives."""
        if self.answers[node_id]:
            batch, code = self.answers[node_id].popleft()
            sent_before = [*self.partition.in_flight, *self.partition.waiting]
            is_early = code is E.NONE and any(one.order < batch.order for one in sent_before)
            self.is_doubtful |= is_early or code is E.UNKNOWN_TOPIC_OR_PARTITION
            if code in APPLIED_OR_NOT:
                self.unsure.add(batch)
            cause = BrokerError(code, "Produce")
            self.act(self.partition.answered(batch, code, cause, self.now, by_id=self.by_id), batch)

    def hang_up(self, node_id: int) -> None:
        """A connection dies: the broker still reads the first few batches on it; no response comes back."""
        answered = [batch for batch, _ in self.answers[node_id]]
        packets = list(self.sent[node_id])
        for packet in packets[: self.rng.randint(0, len(packets))]:
            self.take_in(packet, node_id)
        self.answers[node_id].clear()
        self.sent[node_id].clear()
        for batch in [*answered, *(packet.batch for packet in packets)]:
            self.unsure.add(batch)
            self.act(self.partition.lost(batch, NetworkError("lost"), self.now), batch)

    def expire(self) -> None:
        left = self.partition.unended()
        if left and self.expires:
            self.give_up([left[0] if self.rng.random() < 0.7 else self.rng.choice(left)])

    def move(self) -> None:
        self.leader = self.rng.choice([1, 2, 3])

    def limit(self) -> None:
        self.max_records = self.rng.choice([1, 3, 4])

    def delete(self) -> None:
        self.deleted = self.recreates

    def create(self) -> None:
        if self.deleted:
            self.deleted = False
            self.logs.append(Log())
            self.move()

    # The outcomes.

    def act(self, verdict: Verdict | None, batch: Batch) -> None:
        match verdict:
            case Delivered():
                if len(batch.order) > 1:
                    self.split_in_doubt.discard(batch.order[0])
                if not batch.ended:
                    self.end(batch, DeliveryStatus.PERSISTED)
            case Retry(refresh=True):
                self.known_leader = self.leader if self.rng.random() < 0.8 else self.rng.choice([1, 2, 3])
                # By name only metadata show that a lost batch may be in another topic: they don't lag here.
                if not self.by_id or self.rng.random() < 0.6:
                    self.known_id = len(self.logs)
            case Split():
                if batch in self.unsure:
                    self.split_in_doubt.add(batch.order[0])
                ids = self.records[batch]
                parts = ids[: len(ids) // 2], ids[len(ids) // 2 :]
                halves = [self.make(part, (*batch.order, place)) for place, part in enumerate(parts)]
                self.partition.take_over(batch, halves)
                self.partition.replace(batch, halves)
            case Failed() if verdict == FAIL:
                self.give_up([batch])
            case Failed():
                may_be_another = len(self.logs) > 1 or (self.is_doubtful and not self.by_id)
                may_end = may_be_another or batch.order[0] in self.split_in_doubt
                assert may_end, f"{verdict} of {batch}, though the broker lost nothing"
                self.ended = True
                self.give_up(self.partition.unended())

    def give_up(self, batches: list[Batch]) -> None:
        self.partition.given_up(batches)
        for batch in batches:
            self.end(batch, batch.undelivered_status)

    def end(self, batch: Batch, status: DeliveryStatus) -> None:
        batch.ended = True
        for record in self.records[batch]:
            assert record not in self.told, "it ended twice"
            self.told[record] = status

    def make(self, ids: list[int], order: tuple[int, ...]) -> Batch:
        data = encode([b"%d" % i for i in ids])
        batch = Batch(TP, data, len(ids), 0, [], 0, order, SendingState(self.now))
        self.records[batch] = ids
        return batch

    # The whole.

    def step(self) -> None:
        node_id = self.rng.choice([1, 2, 3, self.leader, self.known_leader])
        self.now += self.rng.random() * 0.2
        actions = [
            (self.add, 4),
            (self.send, 10),
            (lambda: self.serve(node_id), 8),
            (lambda: self.hear(node_id), 8),
            (lambda: self.hang_up(node_id), 0.4),
            (self.expire, 0.3),
            (self.move, 0.3),
            (self.limit, 0.3),
            (self.delete, 0.2),
            (self.create, 2),
        ]
        chosen = self.rng.choices([action for action, _ in actions], [weight for _, weight in actions])[0]
        chosen()

    def settle(self) -> None:
        """No more faults: everything ends."""
        self.faults = False
        self.create()
        if self.ended:
            for node_id in (1, 2, 3):
                self.hang_up(node_id)
            return
        for _ in range(10_000):
            if self.partition.idle:
                return
            self.now += 1
            self.known_leader, self.known_id = self.leader, len(self.logs)
            self.send()
            for node_id in (1, 2, 3):
                self.serve(node_id)
                self.hear(node_id)
            if self.ended:
                return
        raise AssertionError(f"it does not end: {self.partition.unended()}")


def check(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
        if world.ended:
            break
    world.settle()
    told = world.told
    assert len(told) == world.count, f"seed {seed}: records without an end"
    for log in world.logs:
        assert log.records == sorted(set(log.records)), f"seed {seed}: doubled or overtaken"
    found = {record for log in world.logs for record in log.records}
    lost = [i for i, status in told.items() if status is DeliveryStatus.PERSISTED and i not in found]
    assert not lost, f"seed {seed}: told as written, and not there"
    lies = [i for i, status in told.items() if status is DeliveryStatus.NOT_PERSISTED and i in found]
    assert not lies, f"seed {seed}: told as not written, and there"


@pytest.mark.parametrize("part", range(6))
def test_whatever_happens_the_log_is_right_and_the_words_are_true(part: int) -> None:
    try_seeds(check, f"sending {part}", range(part, SEEDS, 6))


def test_a_sign_of_another_topic_outlives_the_batch_that_was_sent_again_for_it() -> None:
    try_seeds(check, "a sign of another topic", [499739981], seconds=0)
