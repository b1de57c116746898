"""Elections by a real controller: back and forth without a restart, unclean, and of coordinators."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.exactly_once.read_committed import read_committed
from support.waiting import eventually

from spark_kafka_native.kafka import Consumer, GroupConsumer, Producer, TransactionalProducer
from spark_kafka_native.kafka.admin import Admin, NewTopic
from spark_kafka_native.kafka.cluster.coordinators import CoordinatorKey, find_coordinator
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.errors import LogTruncatedError
from spark_kafka_native.kafka.model import Acks, IsolationLevel, TopicPartition
from spark_kafka_native.kafka.protocol.api.find_coordinator import GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE

pytestmark = pytest.mark.broker

ROUNDS = 40


@pytest.fixture
def admin(kafka_cluster: Any) -> Iterator[Admin]:
    with Admin(kafka_cluster.bootstrap_servers) as made:
        yield made


def test_leaders_that_are_elected_back_and_forth_lose_and_double_nothing(
    kafka_cluster: Any, admin: Admin, topic: str
) -> None:
    """The controller makes another replica the preferred one, and elects it, again and again."""
    admin.create_topics([NewTopic(topic, replicas=[[1, 2, 3]])])
    place, leaders, over = TopicPartition(topic, 0), list[int](), threading.Event()

    def elect() -> None:
        try:
            for number in range(1, ROUNDS + 1):
                order = [(number + shift) % 3 + 1 for shift in range(3)]
                admin.reassign({place: order})
                eventually(lambda: place not in admin.list_reassignments())
                if admin.elect_leaders([place]):
                    leaders.append(order[0])
        finally:
            over.set()

    electing = threading.Thread(target=elect)
    sent, read = list[bytes](), list[bytes | None]()
    settings = {"request_timeout_ms": 20_000, "fetch_max_wait_ms": 50}
    with (
        Producer(kafka_cluster.bootstrap_servers, linger_ms=1) as producer,
        Consumer(kafka_cluster.bootstrap_servers, topic, start="earliest", **settings) as consumer,
    ):
        electing.start()
        while not over.is_set():
            for _ in range(20):
                sent.append(b"%d" % len(sent))
                producer.send(topic, sent[-1])
            read += [record.value for record in consumer.poll(0.02)]
        electing.join()
        producer.flush(60)
        assert producer.stats().failed_records == 0
        eventually(lambda: read.extend(one.value for one in consumer.poll(0.2)) or len(read) >= len(sent))
    assert len(leaders) >= ROUNDS // 2
    assert read == sent
    assert read_committed(kafka_cluster.bootstrap_servers, topic, 1, timeout_s=60) == {0: sent}


@pytest.mark.parametrize("new_records", [3, 25], ids=["shorter", "longer"])
def test_an_unclean_election_is_a_loss_at_its_offset(
    kafka_cluster: Any, admin: Admin, topic: str, new_records: int
) -> None:
    """A leader that lacks the last ten records takes others at their offsets, fewer or more than before."""
    configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    admin.create_topics([NewTopic(topic, replicas=[[1, 2]], configs=configs)])
    place, servers = TopicPartition(topic, 0), kafka_cluster.bootstrap_servers
    with contextlib.ExitStack() as stack:
        consumer = stack.enter_context(Consumer(servers, topic, start="earliest"))
        read: list[bytes | None] = []

        def read_until(count: int) -> None:
            eventually(lambda: read.extend(one.value for one in consumer.poll(0.2)) or len(read) >= count)

        with Producer(servers, acks=Acks.ALL) as producer:
            for number in range(10):
                producer.send(topic, b"old %d" % number)
            producer.flush(60)
        read_until(10)
        kafka_cluster.kill(2)
        stack.callback(kafka_cluster.restart, 1)
        with Producer(servers, acks=Acks.LEADER, enable_idempotence=False) as producer:
            for number in range(10, 20):
                producer.send(topic, b"old %d" % number)
            producer.flush(60)
        read_until(20)
        kafka_cluster.kill(1)
        kafka_cluster.restart(2)
        eventually(lambda: admin.elect_leaders([place], unclean=True) or leader_of(admin, place) == 2)
        with Producer(servers, acks=Acks.LEADER, enable_idempotence=False) as producer:
            for number in range(new_records):
                producer.send(topic, b"new %d" % number)
            producer.flush(60)
        with pytest.raises(LogTruncatedError) as raised:
            eventually(lambda: read.extend(one.value for one in consumer.poll(0.5)))
        assert (raised.value.topic_partition, raised.value.end_offset) == (place, 10)
        assert read == [b"old %d" % number for number in range(20)]
        consumer.seek(raised.value.end_offset, place.partition)
        read.clear()
        read_until(new_records)
        assert read == [b"new %d" % number for number in range(new_records)]


def leader_of(admin: Admin, place: TopicPartition) -> int:
    return admin.describe_topics([place.topic])[place.topic].partitions[place.partition].leader


def coordinator_of(admin: Admin, kind: int, name: str) -> int:
    """As the brokers say it now."""
    router = Router(admin.router.config)
    try:
        return find_coordinator(router, CoordinatorKey(kind, name), router.deadline(60_000))
    finally:
        router.close()


def test_a_coordinator_that_is_killed_before_a_commit_costs_nothing(
    kafka_cluster: Any, admin: Admin, topic: str
) -> None:
    """That of a transaction, between its last record and its end; that of a group, before a commit."""
    kafka_cluster.create_topic(topic, 1, replication_factor=3)
    servers, written = kafka_cluster.bootstrap_servers, list[bytes]()
    with TransactionalProducer(servers, f"{topic}-id") as producer:
        for commits in (False, True):
            producer.begin()
            values = [b"%d" % number for number in range(len(written), len(written) + 5)]
            for value in values:
                producer.send(topic, value)
            producer.flush(60)
            node_id = coordinator_of(admin, TRANSACTION_KEY_TYPE, f"{topic}-id")
            kafka_cluster.kill(node_id)
            try:
                producer.commit() if commits else producer.abort()
            finally:
                kafka_cluster.restart(node_id)
            written += values if commits else []
    assert read_committed(servers, topic, 1, timeout_s=60) == {0: written}

    group = f"{topic}-group"
    settings = {"isolation_level": IsolationLevel.READ_COMMITTED, "enable_auto_commit": False}
    with GroupConsumer(servers, topic, group, auto_offset_reset="earliest", **settings) as consumer:
        read: list[bytes | None] = []
        eventually(lambda: read.extend(one.value for one in consumer.poll(0.2, 1)) or len(read) >= 3)
        read_before = len(read)
        node_id = coordinator_of(admin, GROUP_KEY_TYPE, group)
        kafka_cluster.kill(node_id)
        try:
            consumer.commit()
        finally:
            kafka_cluster.restart(node_id)
        (committed,) = consumer.committed().values()
    with GroupConsumer(servers, topic, group, auto_offset_reset="latest", **settings) as after:
        eventually(lambda: read.extend(one.value for one in after.poll(0.2)) or len(read) >= len(written))
    assert committed is not None
    assert read_before == 3
    assert read == written
