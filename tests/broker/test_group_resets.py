"""A group whose committed offset does not exist (any more)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from spark_kafka_native.kafka import ClientConfig, Producer, Router, TopicPartition, committed_offsets
from spark_kafka_native.kafka.group.committing import commit_offsets
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("by_hand", [False, True])
def test_commits_follow_a_reset_that_goes_back(kafka: Any, topic: str, by_hand: bool) -> None:
    """If they did not, whoever goes on from the old offset later would skip what came up to there."""
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
