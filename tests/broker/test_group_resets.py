"""A group with a committed offset that does not exist (any more)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from spark_kafka_native.kafka import (
    Admin,
    ClientConfig,
    NewTopic,
    Producer,
    Record,
    Router,
    TopicPartition,
    TopicRecreatedError,
    committed_offsets,
)
from spark_kafka_native.kafka.errors import CommitFailedError
from spark_kafka_native.kafka.group.committed_offsets import commit_offsets
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("by_hand", [False, True])
def test_commits_follow_a_reset_that_goes_back(kafka: Any, topic: str, by_hand: bool) -> None:
    """If they did not, a member that goes on from the old offset later would skip the records up to there."""
    kafka.create_topic(topic, 1)
    group, tp = f"group-{uuid.uuid4().hex}", TopicPartition(topic, 0)
    with Producer(kafka.bootstrap_servers) as producer:
        for number in range(10):
            producer.send(topic, value=b"%d" % number)
    router = Router(ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,)))
    commit_offsets(router, group, {tp: 100})
    settings = {"enable_auto_commit": not by_hand, "auto_commit_interval_ms": 100}
    with GroupConsumer(kafka.bootstrap_servers, topic, group, **settings) as consumer:
        for expected in range(5):
            record = consumer.fetch_record(60) if by_hand else next(consumer)
            assert record is not None
            assert record.offset == expected
            if by_hand:
                consumer.commit(record)
    assert committed_offsets(router, group, [tp]) == {tp: 5}
    router.close()


@pytest.mark.parametrize("explicit", [False, True])
def test_offsets_of_a_topic_are_not_committed_for_the_one_that_has_replaced_it(
    kafka: Any, topic: str, explicit: bool
) -> None:
    """The next member with the partition would skip as many records of the new topic."""
    kafka.create_topic(topic, 1)
    group = f"group-{uuid.uuid4().hex}"
    servers = kafka.bootstrap_servers
    with Producer(servers) as producer:
        for number in range(5):
            producer.send(topic, value=b"old %d" % number)
    settings = {"enable_auto_commit": not explicit, "auto_commit_interval_ms": 600_000}
    with GroupConsumer(servers, topic, group, **settings) as consumer:
        last = [next(consumer) for _ in range(5)][-1]
        with Admin(servers) as admin:
            admin.delete_topics([topic])
            admin.create_topics([NewTopic(topic, 1)])
        with Producer(servers) as producer:
            for number in range(10):
                producer.send(topic, value=b"new %d" % number)
        with pytest.raises(TopicRecreatedError):
            consumer.fetch_record(60)
        if explicit:
            with pytest.raises(CommitFailedError, match="was deleted and created again"):
                consumer.commit(last)
            consumer.commit()
    with GroupConsumer(servers, topic, group) as consumer:
        found: list[Record] = []
        while len(found) < 10:
            records = consumer.poll(60)
            assert records, found
            found += records
    assert [record.value for record in found] == [b"new %d" % number for number in range(10)]
