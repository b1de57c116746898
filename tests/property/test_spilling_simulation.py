"""A producer with a spill folder against a naive model of a broker's log, at random: as in
`test_sending_simulation`, answers are lost, late and false, leaders move, limits change, and topics are
deleted and created again. Batches expire, or use their retries up, go to the folder, and are sent again from
there; producers are closed, killed, or end, and the next one takes the folder over.

Nothing that is reported as written, or as kept, is lost, nothing is doubled, nothing overtakes, and no record
that is reported as not written is in a log. In the end the folder is empty.
"""

from __future__ import annotations

import itertools
import os
import random
from contextlib import closing
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from support.hooks.fresh_seeds import try_seeds
from support.producer.naive_log import Log
from support.producer.stepped_producer import Link, Packet, SteppedProducer

from spark_kafka_native.kafka.cluster.metadata import ClusterMetadata, Partition, Topic
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import Broker
from spark_kafka_native.kafka.producer.accumulating.batch import ProducerIdentity
from spark_kafka_native.kafka.producer.delivery import Outcome
from spark_kafka_native.kafka.producer.errors import DeliveryStatus
from spark_kafka_native.kafka.producer.spill_folder import SpillFolder
from spark_kafka_native.kafka.records.batch import HEADER
from spark_kafka_native.kafka.records.decode import decode_record_set

E = ErrorCode
SEEDS = int(os.environ.get("SPILLING_SIMULATIONS", "20"))
STEPS = 400
NODES = (1, 2, 3)
APPLIED_OR_NOT = [E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.NOT_LEADER_OR_FOLLOWER]
NOT_APPLIED = [E.NOT_ENOUGH_REPLICAS, E.LEADER_NOT_AVAILABLE, E.UNKNOWN_TOPIC_OR_PARTITION]

RECREATES_BY_NAME = False
"""Known: a batch of the folder gets new numbers although one from behind it may be in the new topic."""
DOUBTFUL_HALVES = False
"""Known: halves of a batch that is in the log as a whole are doubled when they are sent again from the
folder, as a warning says."""


class Killed(BaseException):
    """The process has died."""


class World:
    """Topic ``t`` with two partitions, three brokers with one log of each, and a network that the random
    numbers are against."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        random.seed(seed)  # for the backoffs
        self.folder = folder
        self.logs = [(Log(), Log())]
        """Of each topic that had the name; the last one is the one that has it now."""
        self.now = 1.0
        self.leader = 1
        self.faults, self.deleted = True, False
        self.outcomes: dict[int, Outcome] = {}
        self.unheard: set[int] = set()
        """Records in the memory of a producer that was killed."""
        self.halved: set[int] = set()
        """Records of a batch in a log that was refused as too large when it was sent again."""
        self.count = self.producer_ids = 0
        self.by_id = self.rng.random() < 0.6
        self.recreates = (self.by_id or RECREATES_BY_NAME) and self.rng.random() < 0.5
        self.max_records = self.rng.choice([1, 3, 4, 4])
        self.start()

    def start(self) -> None:
        self.opened = False
        self.producer = SteppedProducer(
            self,
            self.folder,
            lambda: self.now,
            retries=self.rng.choice([2, 10**9]),
            delivery_timeout_ms=self.rng.choice([500, 5_000]),
        )

    # The cluster.

    def metadata(self) -> ClusterMetadata:
        """Of a broker that may lag behind."""
        leader = self.rng.choice(NODES) if self.faults and self.rng.random() < 0.2 else self.leader
        partitions = {i: Partition(i, leader, -1, NODES, NODES, E.NONE) for i in (0, 1)}
        topic = Topic(
            name="t",
            topic_id=None if self.deleted else UUID(int=len(self.logs)),
            partitions={} if self.deleted else partitions,
            error_code=E.UNKNOWN_TOPIC_OR_PARTITION if self.deleted else E.NONE,
            internal=False,
        )
        brokers = {i: Broker(node_id=i, host="broker", port=i, rack=None) for i in NODES}
        return ClusterMetadata(brokers=brokers, topics={"t": topic})

    def identify(self) -> ProducerIdentity:
        # A cluster never gives out an id twice.
        self.producer_ids += 1
        return ProducerIdentity(self.producer_ids, self.rng.choice([0, 2**15 - 3]))

    def posting(self) -> None:
        if self.faults and self.rng.random() < 0.002:
            raise Killed

    def take_in(self, packet: Packet, node_id: int) -> ErrorCode:
        """A broker does with it what it likes."""
        fault = self.rng.random() if self.faults else 1.0
        header = np.frombuffer(packet.data, HEADER, 1)[0]
        numbers = int(header["producer_id"]), int(header["producer_epoch"]), int(header["base_sequence"])
        values = decode_record_set(memoryview(packet.data), fetch_offset=0).columns.value
        records = [int(value) for value in values.to_pylist()]
        if node_id != self.leader:
            return E.NOT_LEADER_OR_FOLLOWER
        if self.by_id and (self.deleted or packet.topic_id.int != len(self.logs)):
            return E.UNKNOWN_TOPIC_ID
        if self.deleted:
            return E.UNKNOWN_TOPIC_OR_PARTITION
        log = self.logs[-1][packet.partition]
        if len(records) > self.max_records:  # before duplicates are looked for
            if records[0] in log.records and not DOUBTFUL_HALVES:
                self.halved.update(records)
            return E.MESSAGE_TOO_LARGE
        if fault < 0.07:
            return self.rng.choice(NOT_APPLIED + APPLIED_OR_NOT)
        # Refused when it comes from the folder, it would stay there, and the others overtake it.
        if fault < 0.08 and not any(one in self.outcomes for one in records):
            return E.INVALID_RECORD
        code = log.append(numbers, records)
        return self.rng.choice(APPLIED_OR_NOT) if fault < 0.13 else code

    def ended(self, record: int, outcome: Outcome) -> None:
        assert record not in self.outcomes, f"{record} ended twice"
        self.outcomes[record] = outcome
        if outcome.status is DeliveryStatus.NOT_PERSISTED:
            assert record not in self.written(), f"{record} is reported as not written, and there"

    def written(self) -> set[int]:
        return {record for log in itertools.chain(*self.logs) for record in log.records}

    # What may happen.

    def add(self) -> None:
        self.opened = self.opened or self.producer.open("t")
        if self.opened:
            count = self.rng.randint(1, 4)
            self.producer.send("t", self.count, count, self.rng.choice([0, 0, 1]))
            self.count += count

    def turn(self, *, closing: bool = False) -> None:
        try:
            self.producer.turn(closing=closing)
        except Killed:
            self.kill()
        if self.producer.fatal is not None:
            may_end = len(self.logs) > 1 or self.producer.loop.may_end
            assert may_end, f"{self.producer.fatal}, though the broker lost nothing"
            self.end()

    def link(self) -> Link | None:
        busy = [link for link in self.producer.links.values() if link.sent or link.answered]
        return self.rng.choice(busy) if busy else None

    def serve(self) -> None:
        if link := self.link():
            link.serve()

    def hear(self) -> None:
        if link := self.link():
            link.hear()

    def hang_up(self) -> None:
        if link := self.link():
            link.hang_up(self.rng.randint(0, len(link.sent)))

    def wait(self) -> None:
        self.now += self.rng.choice([0.5, 2, 35])

    def move(self) -> None:
        self.leader = self.rng.choice(NODES)

    def limit(self) -> None:
        self.max_records = self.rng.choice([1, 3, 4, 4])

    def delete(self) -> None:
        self.deleted = self.recreates

    def create(self) -> None:
        if self.deleted:
            self.deleted = False
            self.logs.append((Log(), Log()))
            self.move()

    def kill(self) -> None:
        self.unheard |= set(range(self.count)) - self.outcomes.keys()
        self.producer.kill()
        self.replace()

    def close(self) -> None:
        before = self.producer
        for _ in range(self.rng.randint(0, 3)):
            if self.producer is before:
                self.turn(closing=True)
        if self.producer is before:
            self.end()

    def end(self) -> None:
        self.producer.end()
        left = set(range(self.count)) - self.outcomes.keys() - self.unheard
        assert not left, f"records without an end: {left}"
        self.replace()

    def replace(self) -> None:
        """The next producer takes the folder over."""
        for link in self.producer.links.values():
            link.hang_up(self.rng.randint(0, len(link.sent)))
        self.start()

    # The whole.

    def step(self) -> None:
        self.now += self.rng.random() * 0.03
        actions = {
            self.add: 6,
            self.producer.look_up: 8,
            self.serve: 8,
            self.hear: 8,
            self.hang_up: 0.4,
            self.wait: 0.2,
            self.move: 0.3,
            self.limit: 0.3,
            self.delete: 0.2,
            self.create: 2,
            self.kill: 0.15,
            self.close: 0.15,
        }
        self.rng.choices(list(actions), list(actions.values()))[0]()
        if self.rng.random() < 0.6:
            self.turn()

    def settle(self) -> None:
        """No more faults: everything ends."""
        self.faults = False
        self.create()
        for _ in range(4_000):
            self.now += 5 if self.producer.loop.empty else 0.02
            self.opened = self.opened or self.producer.open("t")
            self.turn()
            while self.producer.asking:
                self.producer.look_up()
            for link in list(self.producer.links.values()):
                link.serve()
                link.hear()
            if self.opened and self.producer.idle:
                self.producer.end()
                return
        raise AssertionError("it does not end")


def check(seed: int, folder: Path) -> None:
    world = World(seed, folder)
    for _ in range(STEPS):
        world.step()
    world.settle()
    for log in itertools.chain(*world.logs):
        whole = [record for record in log.records if record not in world.halved]
        assert whole == sorted(set(whole)), f"doubled or overtaken: {whole}"
    ends, found = world.outcomes, world.written()
    assert ends.keys() | world.unheard == set(range(world.count)), "records without an end"
    with closing(SpillFolder(str(folder))) as left:
        assert not left.entries, "records are left in the folder"
    written = {record for record, end in ends.items() if end.status is DeliveryStatus.PERSISTED}
    kept = {record for record, end in ends.items() if end.error is not None and end.error.spilled}
    assert written <= found, f"reported as written, and not there: {written - found}"
    assert kept <= found, f"reported as kept, and lost: {kept - found}"
    refused = {record for record, end in ends.items() if end.status is DeliveryStatus.NOT_PERSISTED} - kept
    assert not refused & found, f"reported as not written, and there: {refused & found}"


@pytest.mark.parametrize("part", range(2))
def test_nothing_is_lost_doubled_or_overtaken(part: int, tmp_path: Path) -> None:
    folders = (tmp_path / str(count) for count in itertools.count())
    try_seeds(lambda seed: check(seed, next(folders)), f"spilling {part}", range(part, SEEDS, 2))
