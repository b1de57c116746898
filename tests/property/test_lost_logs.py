"""A member of a group, while its log is lost, trimmed and written anew between transactions that commit or
abort: each record that the log still has is in one committed transaction, exactly once.

Its broker is a real one to it, in another thread: which records are fetched when the log changes, only the
machine knows. So a seed gives the same story, not the same run.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from support.brokers.scripted_broker import ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup
from support.group.parts import parts_of
from support.hooks.fresh_seeds import try_seeds

from spark_kafka_native.kafka.errors import LogTruncatedError
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.testing.mock.partition_log import BatchHeader

A0 = TopicPartition("a", 0)
WITHIN_S = 60.0
SHORTLY_S = 0.02
"""For a read that may find nothing."""


class Story:
    """What happens to a log, and to the member that reads it with the policy `earliest`."""

    def __init__(self, seed: int, cluster: ScriptedCluster, consumer: GroupConsumer, group: ScriptedGroup):
        self.random = random.Random(seed)
        self.log: Any = cluster.logs[A0]
        self.consumer = consumer
        self.group = group
        self.count = 0
        self.there: dict[int, bytes | None] = {}
        """What the log has, by offset."""
        self.open: list[bytes | None] = []
        """The records that were read and are in no committed transaction so far."""
        self.committed: list[bytes | None] = []

    def step(self) -> None:
        steps: list[Callable[[], None]] = [
            self.append, self.append, self.read, self.read, self.poll, self.commit_transaction,
            self.commit_transaction, self.abort_transaction, self.abort_transaction, self.commit, self.commit,
            self.lose, self.lose, self.lose, self.trim, self.pause,
        ]  # fmt: skip
        self.random.choice(steps)()

    def append(self) -> None:
        values: list[bytes | None] = [b"%d" % (self.count + n) for n in range(self.random.randint(1, 8))]
        self.count += len(values)
        self.there |= dict(enumerate(values, self.log.end_offset))
        self.log.append(values)

    def read(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            record = self.consumer.fetch_record(SHORTLY_S)
            if record is None:
                return
            self.open.append(record.value)

    def poll(self) -> None:
        found = self.consumer.poll(SHORTLY_S, max_records=self.random.randint(1, 6))
        self.open += [record.value for record in found]

    def pause(self) -> None:
        self.consumer.pause(A0)
        self.consumer.resume(A0)

    def commit_transaction(self) -> None:
        self.group.committed |= self.consumer.offsets_to_commit()
        self._is_committed()

    def commit(self) -> None:
        self.consumer.commit()
        self._is_committed()

    def _is_committed(self) -> None:
        self.committed += self.open
        self.open.clear()

    def abort_transaction(self) -> None:
        if self.consumer.position(A0) is not None:
            self.consumer.offsets_to_commit()
        self.consumer.seek_to_committed()
        self.open.clear()

    def lose(self) -> None:
        """A broker comes back without its log. The member notices it, before there are as many records: its
        broker says nothing of leader epochs, by which it would notice that later."""
        self._await_fetched()
        self.log.batches.clear()
        self.log.end_offset = self.log.log_start_offset = 0
        self.there.clear()
        self._await_fetched()
        if self.random.random() < 0.7:
            self.append()

    def trim(self) -> None:
        """Retention: the first batches are gone."""
        del self.log.batches[: self.random.randint(0, len(self.log.batches) // 2)]
        if self.log.batches:
            self.log.log_start_offset = start = BatchHeader.read(self.log.batches[0]).base_offset
            self.there = {offset: value for offset, value in self.there.items() if offset >= start}
        if self.random.random() < 0.5:
            self._await_fetched()

    def _await_fetched(self) -> None:
        """The reader is at the end of the log, and records that it has fetched wait for the caller."""
        reader, until = parts_of(self.consumer).reader, time.monotonic() + WITHIN_S
        while True:
            if self.consumer.position(A0) is None:
                record = self.consumer.fetch_record(0.01)
                if record is not None:
                    self.open.append(record.value)
            if A0 in reader.partitions:
                read = reader.buffer.partition(A0)
                fetched_until = read.waiting[-1].next_offset if read.waiting else read.position
                if fetched_until == self.log.end_offset:
                    return
            assert time.monotonic() < until
            time.sleep(0.002)

    def end(self) -> None:
        self.abort_transaction()
        until = time.monotonic() + WITHIN_S
        while self.consumer.position(A0) != self.log.end_offset:
            assert time.monotonic() < until, self.consumer.position(A0)
            self.poll()
        self.committed += self.open
        doubled = [value for value, count in Counter(self.committed).items() if count > 1]
        assert not doubled, f"committed twice: {doubled}"
        lost = [value for value in self.there.values() if value not in self.committed]
        assert not lost, f"in no transaction: {lost}"


def check(seed: int) -> None:
    with ScriptedCluster(1) as cluster:
        cluster.create("a", partitions=1)
        group = ScriptedGroup(cluster, [A0])
        with GroupConsumer(
            cluster.bootstrap_servers, "a", "g",
            enable_auto_commit=False, retry_backoff_ms=5, auto_offset_reset="earliest",
        ) as consumer:  # fmt: skip
            story = Story(seed, cluster, consumer, group)
            until = time.monotonic() + WITHIN_S
            while A0 not in consumer.assignment:
                assert time.monotonic() < until
                assert consumer.read(SHORTLY_S) is None
            story.append()
            try:
                for _ in range(story.random.randint(5, 30)):
                    story.step()
                story.end()
            except LogTruncatedError:
                return  # a commit may be of before a loss, or of after it: the caller decides


def test_each_record_that_is_left_is_committed_once() -> None:
    try_seeds(check, "lost logs", range(3))
