"""Random batches and histories on a real broker: three clients write, and the same three read the same."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.hooks.fresh_seeds import run_seed, try_seeds
from support.three_clients import (
    CODECS,
    COMMITTED,
    UNCOMMITTED,
    Java,
    Seen,
    Written,
    check_readers_agree,
    librdkafka,
    librdkafka_sends,
    ours_reads,
    ours_writes,
)
from support.waiting import eventually

from spark_kafka_native.kafka import ConfigResource, TransactionalProducer
from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.cluster.offsets import list_offsets
from spark_kafka_native.kafka.model import OffsetAt, TopicPartition

pytestmark = pytest.mark.broker

KEPT = {"retention.ms": -1}
"""Some records are said to be very old."""
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
    "max.compaction.lag.ms": "100",
}
OPEN_MS = 900_000
"""The longest that a broker allows: an abort by timeout between two reads would tell them apart."""
NAMES = ["h", "", "ü", "a" * 40]


def some_records(rng: random.Random, partitions: int, count: int) -> list[Written]:
    def data() -> bytes | None:
        return rng.choice(
            [None, b"", rng.randbytes(rng.choice([1, 7, 60, 3000])), b"same" * rng.randrange(200)]
        )

    return [
        Written(
            partition=rng.randrange(partitions),
            timestamp_ms=rng.choice([1, 1_700_000_000_000 + rng.randrange(10_000), 1 << 40]),
            key=data(),
            value=data(),
            headers=tuple(
                (rng.choice(NAMES), rng.choice([None, b"", rng.randbytes(5)]))
                for _ in range(rng.choice([0, 0, 1, 3]))
            ),
            flushed=rng.randrange(8) == 0,
        )
        for _ in range(count)
    ]


def check_batches(kafka: Any, topic: str, seed: int, count: int = 40) -> None:
    """Each client writes the same records with each codec; all read all."""
    servers, rng = kafka.bootstrap_servers, random.Random(seed)
    java, written = Java(servers), dict[str, list[Written]]()
    for codec in CODECS:
        for writer in ("ours", "librdkafka", "java"):
            name = f"{topic}-{codec}-{writer}"
            kafka.create_topic(name, 2, config=KEPT)
            records = written[name] = some_records(rng, 2, count)
            if writer == "ours":
                ours_writes(servers, name, codec, records)
            elif writer == "librdkafka":
                librdkafka_sends(librdkafka(servers, compression_type=codec), name, records)
            else:
                java.write(name, codec, records)
    for name in written:
        java.read(name, COMMITTED)
    read = java.run()
    for name, records in written.items():
        seen = check_readers_agree(servers, name, COMMITTED, read)
        for partition in range(2):
            expected = [one[1:5] for one in records if one.partition == partition]
            found = [one for one in seen if one.partition == partition]
            assert [one.offset for one in found] == list(range(len(found)))
            assert [one[3:] for one in found] == expected, f"{name}-{partition}"
            assert {one.timestamp_type for one in found} <= {0}


def test_batches_are_the_same_to_all_clients(kafka: Any, topic: str) -> None:
    check_batches(kafka, topic, run_seed())


# --- histories ----------------------------------------------------------------------------------------------


class History:
    """What happens to one topic."""

    def __init__(self, kafka: Any, admin: Admin, topic: str, rng: random.Random, compacts: bool) -> None:
        self.kafka, self.admin, self.topic, self.rng = kafka, admin, topic, rng
        self.compacts = 2 if compacts else 0
        self.servers = kafka.bootstrap_servers
        self.partitions = rng.choice([1, 2, 3])
        self.log: list[str] = []
        self.open: list[TransactionalProducer] = []
        kafka.create_topic(topic, self.partitions, config=KEPT)

    def happen(self) -> None:
        """One thing more."""
        steps: Sequence[Callable[[], None]] = [
            *([self.write] * 3),
            *([self.transact] * 4),
            self.grow,
            self.cut,
            self.recreate,
            self.leave_open,
            *([self.compact] * self.compacts),
        ]
        step = self.rng.choice(steps)
        self.log.append(step.__name__)
        step()

    def some(self) -> list[Written]:
        return some_records(self.rng, self.partitions, self.rng.randrange(1, 12))

    def write(self) -> None:
        codec = self.rng.choice(CODECS)
        if self.rng.randrange(2):
            ours_writes(self.servers, self.topic, codec, self.some())
        else:
            librdkafka_sends(librdkafka(self.servers, compression_type=codec), self.topic, self.some())

    def transact(self) -> None:
        commits = self.rng.randrange(2) == 0
        if self.rng.randrange(2):
            with TransactionalProducer(self.servers, f"{self.topic}-ours") as producer:
                self._begin(producer)
                producer.commit() if commits else producer.abort()
            return
        theirs = librdkafka(self.servers, transactional_id=f"{self.topic}-theirs")
        theirs.init_transactions(60)
        theirs.begin_transaction()
        librdkafka_sends(theirs, self.topic, self.some())
        theirs.commit_transaction(60) if commits else theirs.abort_transaction(60)

    def _begin(self, producer: TransactionalProducer) -> None:
        producer.begin()
        for one in self.some():
            producer.send(
                self.topic,
                one.value,
                key=one.key,
                partition=one.partition,
                timestamp_ms=one.timestamp_ms,
                headers=list(one.headers),
            )
        producer.flush()

    def leave_open(self) -> None:
        """A transaction that stays open until the end: it holds the last stable offset."""
        name = f"{self.topic}-open-{len(self.open)}"
        producer = TransactionalProducer(self.servers, name, transaction_timeout_ms=OPEN_MS)
        self.open.append(producer)
        self._begin(producer)

    def grow(self) -> None:
        if self.partitions < 5:
            self.partitions += 1
            self.admin.create_partitions({self.topic: self.partitions})
            described = self.admin.describe_topics
            eventually(lambda: len(described([self.topic])[self.topic].partitions) == self.partitions)

    def cut(self) -> None:
        """Records are deleted up to somewhere below the high watermark."""
        place = TopicPartition(self.topic, self.rng.randrange(self.partitions))
        (end,) = list_offsets(self.admin.router, {place: OffsetAt.LATEST}).values()
        self.admin.delete_records({place: self.rng.randint(0, end.offset or 0)})

    def recreate(self) -> None:
        if not self.open:  # an open transaction would lose its topic
            self.admin.delete_topics([self.topic])
            eventually(lambda: self.topic not in self.admin.list_topics())
            self.partitions = self.rng.choice([1, 2, 3])
            self.kafka.create_topic(self.topic, self.partitions, config=KEPT)

    def compact(self) -> None:
        """The log cleaner removes all but the last record of each key, and those without one: gaps, empty
        batches and markers without a transaction stay.
        """
        if self.open:  # the cleaner stops before an open transaction
            return
        resource = ConfigResource.topic(self.topic)
        self.admin.alter_configs(resource, COMPACTED)
        now_ms, sent = int(time.time() * 1000), list[Written]()

        def compacted() -> bool:
            """A record that is a second younger than the last one closes its segment."""
            count = len(sent) // self.partitions
            more = [
                Written(one, now_ms + count * 1000, b"again", b"%d" % count, ())
                for one in range(self.partitions)
            ]
            ours_writes(self.servers, self.topic, "none", more)
            sent.extend(more)
            gone = {(one.partition, one.value) for one in sent} - {
                (one.partition, one.value) for one in self.seen()
            }
            return {partition for partition, _ in gone} == set(range(self.partitions))

        eventually(compacted)
        self.admin.alter_configs(resource, dict.fromkeys(COMPACTED))
        eventually(lambda: self.seen() == self.seen())

    def seen(self) -> list[Seen]:
        return ours_reads(self.servers, self.topic, UNCOMMITTED)


def check_histories(kafka: Any, topic: str, seed: int, histories: int, steps: int) -> None:
    rng, java, made = random.Random(seed), Java(kafka.bootstrap_servers), list[History]()
    with Admin(kafka.bootstrap_servers) as admin:
        try:
            for number in range(histories):
                made.append(History(kafka, admin, f"{topic}-{number}", rng, compacts=number % 3 == 0))
                for _ in range(steps):
                    made[-1].happen()
            for one in made:
                java.read(one.topic, COMMITTED)
                java.read(one.topic, UNCOMMITTED)
            read = java.run()
            for one in made:
                for level in (COMMITTED, UNCOMMITTED):
                    try:
                        check_readers_agree(kafka.bootstrap_servers, one.topic, level, read)
                    except AssertionError as error:
                        error.add_note(f"seed {seed}: {', '.join(one.log)}")
                        raise
        finally:
            for producer in [producer for one in made for producer in one.open]:
                producer.close()


def test_histories_are_the_same_to_all_clients(kafka: Any, topic: str) -> None:
    check_histories(kafka, topic, run_seed(), histories=6, steps=8)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_great_many_batches_and_histories(kafka: Any, topic: str) -> None:
    def check(seed: int) -> None:
        check_batches(kafka, f"{topic}-{seed}-b", seed, count=400)
        check_histories(kafka, f"{topic}-{seed}-h", seed, histories=20, steps=15)

    try_seeds(check, "three clients", range(20))
