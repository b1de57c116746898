"""Members of a group that read, transform and write in transactions: each record counts once."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.consumer.reading import wait_until
from support.group.offsets import committed

from spark_kafka_native.kafka import (
    Consumer,
    GroupConsumer,
    GroupMembership,
    Producer,
    TopicPartition,
    TransactionAbortableError,
    TransactionalProducer,
)
from spark_kafka_native.kafka.consumer.fetched_records import FetchedRecords
from spark_kafka_native.kafka.errors import CommitFailedError, ConfigError

pytestmark = pytest.mark.broker

PROTOCOLS = ["classic", "consumer"]
WAIT_S = 120


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex}"


@pytest.fixture
def join(kafka: Any, group: str) -> Iterator[Callable[..., GroupConsumer]]:
    """A consumer of the test's group, closed at its end."""
    made: list[GroupConsumer] = []

    def make(topic: str, **settings: Any) -> GroupConsumer:
        settings = {"heartbeat_interval_ms": 200, "isolation_level": "read_committed"} | settings
        made.append(GroupConsumer(kafka.bootstrap_servers, topic, group, **settings))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def fill(kafka: Any, topic: str, partitions: int, count: int) -> None:
    kafka.create_topic(topic, partitions)
    with Producer(kafka.bootstrap_servers) as producer:
        for number in range(count):
            producer.send(topic, value=b"%d" % number, partition=number % partitions)


def values(kafka: Any, topic: str, count: int) -> list[bytes | None]:
    """The committed values of a topic of one partition: ``count``, and those that follow by then."""
    found: list[bytes | None] = []
    until = time.monotonic() + WAIT_S
    with Consumer(kafka.bootstrap_servers, topic, start=0, isolation_level="read_committed") as consumer:
        while len(found) < count or any(consumer.lag().values()):
            assert time.monotonic() < until, f"{len(found)} of {count}"
            found.extend(record.value for record in consumer.poll(timeout=0.5))
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_that_was_replaced_commits_nothing(
    kafka: Any, topic: str, group: str, join: Callable[..., GroupConsumer], protocol: str
) -> None:
    fill(kafka, topic, 1, 10)
    kafka.create_topic(f"{topic}-out", 1)
    zombie = join(topic, group_protocol=protocol, enable_auto_commit=False, max_poll_interval_ms=1_500)
    with TransactionalProducer(kafka.bootstrap_servers, f"{topic}-1") as producer:
        records = [zombie.fetch_record(WAIT_S) for _ in range(3)]
        done = zombie.offsets_to_commit(*filter(None, records))
        assert done == {TopicPartition(topic, 0): 3}
        membership = zombie.group_metadata()
        producer.begin()
        producer.send(f"{topic}-out", value="of a zombie").result(WAIT_S)
        # It is away for too long, and another member goes on with what it had.
        other = join(topic, group_protocol=protocol)
        until = time.monotonic() + WAIT_S
        while not (other.assignment and set(other.lag().values()) == {0}):
            assert time.monotonic() < until
            other.read(0.05)
        with pytest.raises(CommitFailedError, match="not in group"):
            zombie.group_metadata()
        with pytest.raises(
            TransactionAbortableError, match=r"ILLEGAL_GENERATION|UNKNOWN_MEMBER_ID|STALE_MEMBER"
        ):
            producer.send_offsets(done, membership)
        producer.abort()
        other.close()
        assert committed(kafka, group, topic, 1) == [10]
        # Once it is a member again, the coordinator would take what it says: so it does not say it.
        until = time.monotonic() + WAIT_S
        while not _owns_again(zombie, topic):
            assert time.monotonic() < until
        with pytest.raises(CommitFailedError, match="earlier assignment"):
            zombie.offsets_to_commit(*filter(None, records))
        with producer.transaction():
            producer.send(f"{topic}-out", value="of a member")
            producer.send_offsets({TopicPartition(topic, 0): 10}, zombie.group_metadata())
    assert values(kafka, f"{topic}-out", 1) == [b"of a member"]


def _owns_again(consumer: GroupConsumer, topic: str) -> bool:
    tp = TopicPartition(topic, 0)
    consumer.fetch_record(0.05)
    return tp in consumer.assignment and consumer.position(tp) == 10


class Transformer:
    """A member in a thread of its own that copies what it reads, each fetch in a transaction."""

    def __init__(self, kafka: Any, consumer: GroupConsumer, name: str, out: str) -> None:
        self.written = 0
        self.failure: BaseException | None = None
        self._leaves = threading.Event()
        self._consumer, self._out = consumer, out
        self._producer = TransactionalProducer(kafka.bootstrap_servers, name)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self._leaves.set()
        self._thread.join(WAIT_S)
        assert self.failure is None
        assert not self._thread.is_alive()

    def _work(self) -> None:
        try:
            with self._producer, self._consumer:
                while not self._leaves.is_set():
                    if (fetched := self._consumer.read(0.1)) is not None:
                        self._copy(fetched)
        except BaseException as error:
            self.failure = error

    def _copy(self, fetched: FetchedRecords) -> None:
        with contextlib.suppress(CommitFailedError, TransactionAbortableError):
            with self._consumer.transaction(self._producer):
                for record in fetched.columns:
                    self._producer.send(self._out, value=record.value)
            self.written += len(fetched.columns)


# KIP-848's members hear of a rebalance with a heartbeat, which the broker wants every 5 s.
@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.soak)])
def test_each_record_counts_once_while_members_come_and_go(
    kafka: Any, topic: str, group: str, join: Callable[..., GroupConsumer], protocol: str
) -> None:
    out = f"{topic}-out"
    kafka.create_topic(topic, 4)
    kafka.create_topic(out, 1)
    numbers = itertools.count()
    until = time.monotonic() + WAIT_S

    def member(number: int) -> Transformer:
        consumer = join(topic, group_protocol=protocol, enable_auto_commit=False)
        return Transformer(kafka, consumer, f"{topic}-{number}", out)

    with Producer(kafka.bootstrap_servers, linger_ms=0) as producer:

        def write_until(condition: Callable[[], bool]) -> None:
            while not condition():
                assert time.monotonic() < until
                for number in itertools.islice(numbers, 8):
                    producer.send(topic, value=b"%d" % number, partition=number % 4)
                producer.flush(WAIT_S)
                time.sleep(0.02)

        first = member(1)
        write_until(lambda: first.written > 30)
        second = member(2)
        write_until(lambda: second.written > 30)
        first.leave()
        third = member(3)
        write_until(lambda: third.written > 30)
    count = next(numbers)
    while sum(offset or 0 for offset in committed(kafka, group, topic, 4)) < count:
        assert time.monotonic() < until
        time.sleep(0.05)
    second.leave()
    third.leave()
    assert sorted(int(value or b"") for value in values(kafka, out, count)) == list(range(count))


def test_who_it_is_and_when_it_is_nobody(
    kafka: Any, topic: str, group: str, join: Callable[..., GroupConsumer]
) -> None:
    fill(kafka, topic, 1, 1)
    consumer = join(topic, enable_auto_commit=False, group_instance_id="one")
    assert consumer.fetch_record(WAIT_S) is not None
    found = consumer.group_metadata()
    assert isinstance(found, GroupMembership)
    assert (found.group_id, found.group_instance_id) == (group, "one")
    assert found.member_id.startswith("one-")
    assert found.generation_id >= 1
    automatic = join(f"{topic}-none")
    with pytest.raises(ConfigError, match="enable_auto_commit=False"):
        automatic.group_metadata()


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_what_was_written_in_transactions_is_committed_automatically(
    kafka: Any, topic: str, group: str, join: Callable[..., GroupConsumer], isolation_level: str
) -> None:
    """A position is behind the markers of a transaction, which no consumer was handed."""
    kafka.create_topic(topic, 2)
    with TransactionalProducer(kafka.bootstrap_servers, f"{topic}-1") as producer:
        for number in range(10):
            producer.begin()
            for partition in range(2):
                producer.send(topic, value=b"%d" % number, partition=partition)
            producer.flush(WAIT_S)
            (producer.abort if number % 3 == 2 else producer.commit)()
    count = 14 if isolation_level == "read_committed" else 20
    with join(topic, isolation_level=isolation_level, auto_commit_interval_ms=0) as consumer:
        assert len(list(itertools.islice(consumer, count))) == count
        assert set(committed(kafka, group, topic, 2)) != {None}  # it does not wait for the end
        # Whether the last marker was fetched by then is up to the broker.
        wait_until("behind the last marker", lambda: set(consumer.lag().values()) == {0}, WAIT_S)
    assert committed(kafka, group, topic, 2) == [20, 20]
    with join(topic, isolation_level=isolation_level) as again:
        with Producer(kafka.bootstrap_servers) as producer:
            producer.send(topic, value="new", partition=0)
        assert next(again).value == b"new"
