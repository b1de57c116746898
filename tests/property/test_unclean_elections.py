"""Members of a group, while leaders are elected that lack the end of a log (KIP-320): each record of the
log that is left is committed once and in order, unless a member says that the log was cut back.

Its broker is a real one to a member, in another thread: which records are fetched when the log changes, only
the machine knows. So a seed gives the same story, not the same run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from support.hooks.fresh_seeds import try_seeds

from spark_kafka_native.kafka.errors import CommitFailedError, LogTruncatedError
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.transactional_producer import TransactionalProducer
from spark_kafka_native.testing import MockBroker

A0 = TopicPartition("a", 0)
WITHIN_S = 60.0
SHORTLY_S = 0.02
"""For a read that may find nothing."""


class Story:
    """What happens to a log, and to the members that read it one after the other."""

    def __init__(self, seed: int, broker: MockBroker) -> None:
        self.random = random.Random(seed)
        self.broker = broker
        self.count = 0
        self.open: list[bytes | None] = []
        """The records that were read since the last commit."""
        self.committed: list[bytes | None] = []
        self.has_lost = False
        self.consumer = self.join()
        self.producer = TransactionalProducer(broker.bootstrap_servers, "x", retry_backoff_ms=5)

    def join(self) -> GroupConsumer:
        return GroupConsumer(
            self.broker.bootstrap_servers, "a", "g",
            enable_auto_commit=False, retry_backoff_ms=5, auto_offset_reset="earliest",
            max_partition_fetch_bytes=self.random.choice([1, 300, 1 << 20]),
        )  # fmt: skip

    def step(self) -> None:
        steps: list[Callable[[], None]] = [
            self.append, self.append, self.elect, self.poll, self.poll, self.poll, self.commit,
            self.commit_in_transaction, self.abort, self.restart, self.pause, self.cut,
        ]  # fmt: skip
        self.random.choice(steps)()

    def append(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            values = [b"%d" % (self.count + n) for n in range(self.random.randint(1, 5))]
            self.count += len(values)
            self.broker.append("a", values)

    def elect(self) -> None:
        self.broker.move_leader("a", 0, self.random.randint(1, 2))
        if self.random.random() < 0.7:
            self.append()

    def cut(self) -> None:
        end = len(self.log)
        self.broker.cut_log("a", 0, self.random.randint(max(0, end - 8), end))
        self.has_lost |= len(self.log) < end
        if self.random.random() < 0.7:
            self.append()

    def poll(self) -> None:
        found = self.consumer.poll(SHORTLY_S, max_records=self.random.randint(1, 6))
        self.open += [record.value for record in found]

    def pause(self) -> None:
        if A0 in self.consumer.assignment:
            self.consumer.pause(A0)
            self.consumer.resume(A0)

    def commit(self) -> None:
        """It leaves out records that are gone: the next read says so."""
        self.consumer.commit()
        if A0 in self.consumer.assignment:
            if self.broker.committed("g").get(A0, 0) == (self.consumer.position(A0) or 0):
                self.committed += self.open
            self.open.clear()

    def commit_in_transaction(self) -> None:
        try:
            with self.producer.transaction():
                offsets = self.consumer.offsets_to_commit()
                if offsets:
                    self.producer.send_offsets(offsets, self.consumer.group_metadata())
        except CommitFailedError:  # records that are gone are among them
            assert self.has_lost
            self.abort()
        else:
            self.committed += self.open
            self.open.clear()

    def abort(self) -> None:
        self.consumer.seek_to_committed()
        self.open.clear()

    def restart(self) -> None:
        """Another member continues at the committed offset."""
        self.consumer.close()
        self.open.clear()
        self.consumer = self.join()

    @property
    def log(self) -> list[bytes | None]:
        return [record.value for record in self.broker.records("a")]

    def end(self) -> None:
        self.restart()
        until = time.monotonic() + WITHIN_S
        while A0 not in self.consumer.assignment or self.consumer.position(A0) != len(self.log):
            assert time.monotonic() < until
            self.poll()
        self.commit()
        assert self.committed == self.log


def check(seed: int) -> None:
    with MockBroker(2) as broker:
        broker.create_topic("a")
        story = Story(seed, broker)
        story.append()
        try:
            for _ in range(story.random.randint(5, 30)):
                story.step()
            story.end()
        except LogTruncatedError:
            assert story.has_lost
        finally:
            story.consumer.close()
            story.producer.close()


def test_each_record_that_is_left_is_committed_once_or_the_cut_is_noticed() -> None:
    try_seeds(check, "unclean elections", range(10))
