"""`GroupConsumer.seek` and automatic commits: a position that was sought is no work that was done."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup

from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.model import TopicPartition

A0 = TopicPartition("a", 0)
WITHIN_S = 120


@pytest.fixture
def group() -> Iterator[ScriptedGroup]:
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"0", b"1", b"2", b"3"])
        yield ScriptedGroup(cluster, [A0])


@pytest.mark.parametrize("sought", [0, 2, 4])
def test_what_was_sought_is_committed_only_once_something_was_read_there(
    group: ScriptedGroup, sought: int
) -> None:
    group.committed[A0] = 1
    servers = group.cluster.bootstrap_servers
    with GroupConsumer(servers, "a", "g", auto_commit_interval_ms=600_000) as consumer:
        for offset in (1, 2):
            record = consumer.fetch_record(WITHIN_S)
            assert record is not None
            assert record.offset == offset
        consumer.seek(A0, sought)
    assert group.committed == {A0: 1}


def test_what_is_read_after_a_seek_is_committed(group: ScriptedGroup) -> None:
    servers = group.cluster.bootstrap_servers
    with GroupConsumer(servers, "a", "g", auto_commit_interval_ms=600_000) as consumer:
        assert consumer.fetch_record(WITHIN_S) is not None
        consumer.seek(A0, 2)
        record = consumer.fetch_record(WITHIN_S)
        assert record is not None
        assert record.offset == 2
    assert group.committed == {A0: 3}
