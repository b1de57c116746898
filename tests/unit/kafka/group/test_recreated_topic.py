"""A topic that is deleted and created again at once, under a group that reads it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup

from spark_kafka_native.kafka.errors import CommitFailedError, TopicRecreatedError
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.model import TopicPartition

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)
WITHIN_S = 120


@pytest.mark.parametrize("explicit", [False, True])
def test_offsets_of_a_topic_are_not_committed_for_the_one_that_has_replaced_it(explicit: bool) -> None:
    """The next member with the partition would skip as many records of the new topic."""
    with ScriptedCluster(1) as cluster:
        for name, tp in (("a", A0), ("b", B0)):
            cluster.create(name)
            cluster.logs[tp].append([b"one"])
        group = ScriptedGroup(cluster, [A0, B0])
        settings: dict[str, Any] = {
            "enable_auto_commit": not explicit,
            "auto_commit_interval_ms": 3_600_000,
        }
        with GroupConsumer(cluster.bootstrap_servers, ["a", "b"], "g", **settings) as consumer:
            read = {record.topic_partition: record for record in (next(consumer), next(consumer))}
            assert read.keys() == {A0, B0}
            cluster.topic_ids["a"] = uuid.uuid4()
            with pytest.raises(TopicRecreatedError, match="a was deleted and created again"):
                consumer.fetch_record(WITHIN_S)
            if explicit:
                with pytest.raises(CommitFailedError, match="a-0: the topic was deleted and created again"):
                    consumer.commit(read[A0])
                consumer.commit()
                assert group.committed == {B0: 1}
                consumer.seek(A0, 0)
                again = consumer.fetch_record(WITHIN_S)
                assert again is not None
                consumer.commit(again)
    assert group.committed == ({A0: 1, B0: 1} if explicit else {B0: 1})
