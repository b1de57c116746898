"""`GroupConsumer.seek` and automatic commits: a position that was sought is no work that was done."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup

from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.runtime.deadline import Deadline

A0 = TopicPartition("a", 0)
WITHIN_S = 120


@pytest.fixture
def group() -> Iterator[ScriptedGroup]:
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"0", b"1", b"2", b"3"])
        yield ScriptedGroup(cluster, [A0])


@pytest.mark.parametrize(("sought", "committed"), [(0, 1), (1, 1), (2, 2), (3, 3), (4, 3)])
def test_what_was_sought_is_committed_only_once_something_was_read_there(
    group: ScriptedGroup, sought: int, committed: int
) -> None:
    """Until then the end of the records before it that were handed out, as their outcome counts."""
    group.committed[A0] = 1
    servers = group.cluster.bootstrap_servers
    with GroupConsumer(servers, "a", "g", auto_commit_interval_ms=600_000) as consumer:
        for offset in (1, 2):
            record = consumer.fetch_record(WITHIN_S)
            assert record is not None
            assert record.offset == offset
        consumer.seek(A0, sought)
    assert group.committed == {A0: committed}


def test_what_is_read_after_a_seek_is_committed(group: ScriptedGroup) -> None:
    servers = group.cluster.bootstrap_servers
    with GroupConsumer(servers, "a", "g", auto_commit_interval_ms=600_000) as consumer:
        assert consumer.fetch_record(WITHIN_S) is not None
        consumer.seek(A0, 2)
        record = consumer.fetch_record(WITHIN_S)
        assert record is not None
        assert record.offset == 2
    assert group.committed == {A0: 3}


def test_a_seek_keeps_what_was_done_while_reading_goes_on(group: ScriptedGroup) -> None:
    """The last record cannot be read, say, and the caller passes it."""
    servers = group.cluster.bootstrap_servers
    with GroupConsumer(servers, "a", "g", auto_commit_interval_ms=0) as consumer:
        assert len(consumer.poll(WITHIN_S, 3)) == 3
        consumer.seek(A0, 4)
        until = Deadline.after_ms(WITHIN_S * 1_000)
        while not group.committed:
            assert not until.expired
            assert consumer.poll(0.01) == []
        assert group.committed == {A0: 3}


@pytest.mark.parametrize(("read", "sought", "committed"), [(2, 5, 5), (2, 4, 4), (0, 2, 2), (0, 6, 4)])
def test_a_seek_does_not_let_the_next_member_begin_at_a_later_end(
    group: ScriptedGroup, read: int, sought: int, committed: int
) -> None:
    """With `latest`, the start at offset 4 was not committed yet, and was forgotten with the seek."""
    servers = group.cluster.bootstrap_servers
    settings = {"auto_offset_reset": "latest", "auto_commit_interval_ms": 600_000}
    with GroupConsumer(servers, "a", "g", **settings) as consumer:
        until = Deadline.after_ms(WITHIN_S * 1_000)
        while A0 not in consumer.assignment or consumer.position(A0) is None:
            assert not until.expired
            assert consumer.poll(0.05) == []
        group.cluster.logs[A0].append([b"4", b"5", b"6"])
        for _ in range(read):
            assert consumer.fetch_record(WITHIN_S) is not None
        consumer.seek(A0, sought)
    assert group.committed == {A0: committed}
