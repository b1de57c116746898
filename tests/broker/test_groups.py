"""Consumers of a group on a real broker, by both protocols."""

from __future__ import annotations

import random
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from support.group.members import MemberProcess
from support.group.offsets import committed
from support.interrupts.keyboard_interrupts import repeat_until_interrupted

from spark_kafka_native.kafka import OffsetToCommit, Producer, Record, Router, TopicPartition
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.errors import (
    BrokerError,
    CommitFailedError,
    ConfigError,
    ConsumerClosedError,
    NoCommittedOffsetError,
)
from spark_kafka_native.kafka.group.committed_offsets import commit_offsets, committed_offsets
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.model import OffsetAt

pytestmark = pytest.mark.broker

PROTOCOLS = ["classic", "consumer"]
WAIT_S = 240


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex}"


@pytest.fixture
def join(kafka: Any, group: str) -> Iterator[Callable[..., GroupConsumer]]:
    """A consumer of the test's group, closed at its end."""
    made: list[GroupConsumer] = []

    def make(topics: Any, protocol: str = "classic", **settings: Any) -> GroupConsumer:
        settings = {"heartbeat_interval_ms": 200, "metadata_max_age_ms": 500} | settings
        made.append(
            GroupConsumer(kafka.bootstrap_servers, topics, group, group_protocol=protocol, **settings)
        )
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def produce(kafka: Any, topic: str, partition: int, count: int) -> None:
    with Producer(kafka.bootstrap_servers) as producer:
        for number in range(count):
            producer.send(topic, value=b"%d" % number, partition=partition)


def read_until(condition: Callable[[], object], *consumers: GroupConsumer) -> dict[TopicPartition, list[int]]:
    """What the consumers read until it is so."""
    found: dict[TopicPartition, list[int]] = {}
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, [repr(consumer) for consumer in consumers]
        for consumer in consumers:
            fetched = consumer.read(0.02)
            if fetched is not None and fetched.columns.offset is not None:
                found.setdefault(fetched.topic_partition, []).extend(fetched.columns.offset.tolist())
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_share_and_one_takes_over(
    kafka: Any, topic: str, group: str, join: Callable[..., GroupConsumer], protocol: str
) -> None:
    kafka.create_topic(topic, 4)
    for partition in range(4):
        produce(kafka, topic, partition, 100)
    events: list[tuple[str, list[TopicPartition]]] = []
    strategy: dict[str, Any] = {"partition_assignment_strategy": "cooperative-sticky"}
    first = join(
        topic,
        protocol,
        on_assigned=lambda _, partitions: events.append(("assigned", partitions)),
        on_revoked=lambda _, partitions: events.append(("revoked", partitions)),
        **(strategy if protocol == "classic" else {}),
    )
    read: dict[TopicPartition, list[int]] = {}
    read |= read_until(lambda: len(first.assignment) == 4 and set(first.lag().values()) == {0}, first)
    assert {len(offsets) for offsets in read.values()} == {100}
    second = join(topic, protocol, **(strategy if protocol == "classic" else {}))
    again = read_until(lambda: len(first.assignment) == len(second.assignment) == 2, first, second)
    assert again == {}, "read twice"
    assert [event for event, _ in events] == ["assigned", "revoked"]
    assert len(events[1][1]) == 2, "more was given up than had to be"
    assert second.position(min(second.assignment)) in (100, None)
    second.close()
    read_until(lambda: len(first.assignment) == 4, first)
    first.close()
    assert committed(kafka, group, topic, 4) == [100] * 4


def test_a_killed_member_leaves_what_it_did_not_commit(
    kafka: Any, topic: str, group: str, join: Callable[..., GroupConsumer]
) -> None:
    kafka.create_topic(topic, 2)
    for partition in range(2):
        produce(kafka, topic, partition, 50)
    member = MemberProcess("ours", kafka.bootstrap_servers, topic, group, "range", session_ms=3_000)
    try:
        until = time.monotonic() + WAIT_S
        while sum(map(len, member.read.values())) < 100:
            assert time.monotonic() < until, member.complaints()
            time.sleep(0.02)
        member.kill()
    finally:
        member.end()
    before = committed(kafka, group, topic, 2)
    consumer = join(topic)
    tps = [TopicPartition(topic, number) for number in range(2)]
    read = read_until(lambda: len(consumer.assignment) == 2 and set(consumer.lag().values()) == {0}, consumer)
    for tp, offset in zip(tps, before, strict=True):
        assert read.get(tp, []) == list(range(offset or 0, 50))


def test_commits_are_explicit_without_automatic_ones(
    kafka: Any, topic: str, group: str, join: Callable[..., GroupConsumer]
) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka, topic, 0, 10)
    consumer = join(topic, enable_auto_commit=False)
    records = [consumer.fetch_record(WAIT_S) for _ in range(6)]
    assert [record.offset for record in records if record] == list(range(6))
    assert committed(kafka, group, topic, 1) == [None]
    third, fifth = records[2], records[4]
    assert third is not None
    assert fifth is not None
    consumer.commit(fifth)
    assert committed(kafka, group, topic, 1) == [5]
    done: Future[None] = consumer.commit_async(third)  # behind the other: nothing goes back
    done.result(WAIT_S)
    assert committed(kafka, group, topic, 1) == [5]
    with pytest.raises(CommitFailedError, match="only offsets 0 to 6 were read"):
        consumer.commit(offsets={TopicPartition(topic, 0): 9})
    consumer.commit()
    assert committed(kafka, group, topic, 1) == [6]
    consumer.seek(TopicPartition(topic, 0), 2)
    again = consumer.fetch_record(WAIT_S)
    assert again is not None
    consumer.commit(again)  # after a seek it may
    assert committed(kafka, group, topic, 1) == [3]
    consumer.seek(TopicPartition(topic, 0), OffsetAt.LATEST)
    assert consumer.position(TopicPartition(topic, 0)) == 10
    consumer.close()
    assert committed(kafka, group, topic, 1) == [3]
    with pytest.raises(ConsumerClosedError):
        consumer.fetch_record()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_commit_of_an_older_generation_fails(
    kafka: Any, topic: str, group: str, join: Callable[..., GroupConsumer], protocol: str
) -> None:
    """The caller of the first is away for too long; others go on with what it had, and then it comes back."""
    kafka.create_topic(topic, 1)
    produce(kafka, topic, 0, 10)
    lost: list[list[TopicPartition]] = []
    slow = join(topic, protocol, max_poll_interval_ms=1_500, on_lost=lambda _, found: lost.append(found))
    records = [slow.fetch_record(WAIT_S) for _ in range(3)]
    assert records[2] is not None
    other = join(topic, protocol)
    read_until(lambda: other.assignment and set(other.lag().values()) == {0}, other)
    with pytest.raises(CommitFailedError, match="not in group"):
        slow.commit(records[2])
    other.close()
    assert committed(kafka, group, topic, 1) == [10]
    until = time.monotonic() + WAIT_S
    while not (slow.assignment and lost):
        assert time.monotonic() < until
        assert slow.fetch_record(0.05) is None
    # Once, unless the machine stood still for as long as the caller may be away.
    assert lost[0] == [TopicPartition(topic, 0)]
    said, until = "", time.monotonic() + WAIT_S
    while "earlier assignment" not in said:
        assert time.monotonic() < until, said
        slow.fetch_record(0.05)
        if slow.position(TopicPartition(topic, 0)) is not None:
            with pytest.raises(CommitFailedError) as caught:
                slow.commit(records[2])
            said = str(caught.value)
    assert committed(kafka, group, topic, 1) == [10]


def test_an_exception_leaves_the_record_that_it_came_from(
    kafka: Any, topic: str, group: str, join: Callable[..., GroupConsumer]
) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka, topic, 0, 10)
    with pytest.raises(ZeroDivisionError), join(topic) as consumer:  # noqa: PT012 - what a user would write
        for record in consumer:
            if record.offset == 6:
                raise ZeroDivisionError
    assert committed(kafka, group, topic, 1) == [6]
    with join(topic) as consumer:
        for record in consumer:
            if record.offset == 8:
                break
    assert record.offset == 8
    assert committed(kafka, group, topic, 1) == [9]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_topics_come_and_go(
    kafka: Any, topic: str, join: Callable[..., GroupConsumer], protocol: str
) -> None:
    other = f"{topic}-other"
    kafka.create_topic(topic, 1)
    consumer = join(re.compile(re.escape(topic) + ".*"), protocol)
    read_until(lambda: consumer.assignment == {TopicPartition(topic, 0)}, consumer)
    kafka.create_topic(other, 2)
    produce(kafka, other, 1, 5)
    read = read_until(lambda: len(consumer.assignment) == 3 and set(consumer.lag().values()) == {0}, consumer)
    assert read == {TopicPartition(other, 1): [0, 1, 2, 3, 4]}
    consumer.subscribe(other)
    read_until(lambda: {tp.topic for tp in consumer.assignment} == {other}, consumer)
    consumer.add_topics(topic)
    consumer.remove_topics(other)
    read_until(lambda: consumer.assignment == {TopicPartition(topic, 0)}, consumer)


def test_a_static_member_comes_back_without_a_rebalance(
    kafka: Any, topic: str, join: Callable[..., GroupConsumer]
) -> None:
    kafka.create_topic(topic, 2)
    static = join(topic, group_instance_id="one")
    other = join(topic, group_instance_id="two")
    read_until(lambda: len(static.assignment) == len(other.assignment) == 1, static, other)
    had = static.assignment
    static.close()
    back = join(topic, group_instance_id="one")
    read_until(lambda: back.assignment == had, other, back)
    assert len(other.assignment) == 1
    impostor = join(topic, group_instance_id="two")
    with pytest.raises(BrokerError, match=r"FENCED_INSTANCE_ID.*|same group\.instance\.id"):
        read_until(lambda: False, other)
    impostor.close()


def test_nothing_committed_and_no_reset_is_an_error(
    kafka: Any, topic: str, join: Callable[..., GroupConsumer]
) -> None:
    kafka.create_topic(topic, 1)
    consumer = join(topic, auto_offset_reset="none")
    with pytest.raises(NoCommittedOffsetError, match="seek to where it begins"):
        read_until(lambda: False, consumer)
    produce(kafka, topic, 0, 3)
    consumer.seek(TopicPartition(topic, 0), 1)
    record = consumer.fetch_record(WAIT_S)
    assert record is not None
    assert record.offset == 1


def test_latest_skips_nothing_between_two_members(
    kafka: Any, topic: str, join: Callable[..., GroupConsumer]
) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka, topic, 0, 5)
    consumer = join(topic, auto_offset_reset="latest")
    read_until(lambda: consumer.assignment and consumer.position(TopicPartition(topic, 0)) == 5, consumer)
    consumer.close()
    produce(kafka, topic, 0, 5)
    again = join(topic, auto_offset_reset="latest")
    record = again.fetch_record(WAIT_S)
    assert record is not None
    assert record.offset == 5


def test_close_while_the_group_waits_for_another_member(
    kafka: Any, topic: str, join: Callable[..., GroupConsumer]
) -> None:
    """The JoinGroup of the second is held back, as the first's caller does not come."""
    kafka.create_topic(topic, 2)
    first = join(topic)
    read_until(lambda: len(first.assignment) == 2, first)
    second = join(topic)
    waiting = threading.Thread(target=lambda: second.read(1.0))
    waiting.start()
    waiting.join()
    assert second.assignment == frozenset()
    began = time.monotonic()
    second.close()
    assert time.monotonic() - began < 200, "it waited for the rebalance"
    produce(kafka, topic, 0, 1)
    assert first.fetch_record(WAIT_S) is not None


def test_what_is_wrong_is_said_at_once(kafka: Any, topic: str, group: str) -> None:
    servers = kafka.bootstrap_servers
    with pytest.raises(ConfigError, match=r"group\.id must name the group"):
        GroupConsumer(servers, topic)
    with pytest.raises(ConfigError, match="topics must name at least one"):
        GroupConsumer(servers, [], group)
    with pytest.raises(ConfigError, match="one or more of range, roundrobin"):
        GroupConsumer(servers, topic, group, partition_assignment_strategy="rnage")
    with pytest.raises(ConfigError, match=r"heartbeat\.interval\.ms"):
        GroupConsumer(servers, topic, group, session_timeout_ms=1000, heartbeat_interval_ms=1000)
    with pytest.raises(TypeError, match="did you mean 'group_instance_id'"):
        GroupConsumer(servers, topic, group, group_instance="x")
    consumer = GroupConsumer(servers, topic, group, session_timeout_ms=10, heartbeat_interval_ms=5)
    with pytest.raises(BrokerError, match=r"session\.timeout\.ms is outside"):
        read_until(lambda: False, consumer)
    consumer.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one in a destructor
@pytest.mark.parametrize("by_hand", [False, True])
def test_interrupts_lose_no_record(
    kafka: Any, topic: str, join: Callable[..., GroupConsumer], by_hand: bool
) -> None:
    kafka.create_topic(topic, 2)
    for partition in range(2):
        produce(kafka, topic, partition, 6_000)
    consumer = join(topic, auto_commit_interval_ms=20)
    chance, found, box = random.Random(), list[Record](), list[Record | None]([None])

    def read() -> None:
        # Not next(consumer): an interrupt at the end of a function written in C loses what it returns.
        box[0] = consumer.fetch_record(5.0) if by_hand else consumer.__next__()
        if box[0] is not None:
            found.append(box[0])
            box[0] = None

    until = time.monotonic() + WAIT_S
    rounds = 0
    while len(found) < 11_990:
        assert time.monotonic() < until, len(found)
        # Once records come, thousands are read in some milliseconds.
        repeat_until_interrupted(
            chance.uniform(0.001, 0.003) if found else chance.uniform(0.002, 0.022), read
        )
        rounds += 1
        if box[0] is not None and (not found or found[-1] is not box[0]):
            found.append(box[0])
        box[0] = None
    assert rounds > 2
    for partition in range(2):
        offsets = [record.offset for record in found if record.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_offsets_of_more_partitions_than_one_batch_holds_are_committed(
    kafka: Any, topic: str, group: str
) -> None:
    """As one request the coordinator refuses them, as UNKNOWN_SERVER_ERROR: its records are over 1 MiB."""
    kafka.create_topic(topic, 300)
    positions = {
        TopicPartition(topic, partition): OffsetToCommit(offset=partition, metadata="m" * 4_000)
        for partition in range(300)
    }
    router = Router(ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,)))
    commit_offsets(router, group, positions)
    assert committed_offsets(router, group, list(positions)) == {tp: tp.partition for tp in positions}
    router.close()
