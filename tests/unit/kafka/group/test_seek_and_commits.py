"""`GroupConsumer.seek` and automatic commits: a position that was sought is no work that was done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
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


def test_a_seek_after_going_back_commits_nothing_of_the_records_before(group: ScriptedGroup) -> None:
    """`seek_to_committed` says that they are not done."""
    servers = group.cluster.bootstrap_servers
    with GroupConsumer(servers, "a", "g", auto_commit_interval_ms=600_000) as consumer:
        assert len(consumer.poll(WITHIN_S, 3)) == 3
        consumer.seek_to_committed()
        consumer.seek(A0, 4)
    assert group.committed == {}


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


@pytest.mark.parametrize(
    ("offset", "error"),
    [(-1, ValueError), (1 << 63, ValueError), (True, TypeError), (3.0, TypeError), ("earliest", TypeError)],
)
def test_an_offset_that_is_none_is_refused_at_once(
    group: ScriptedGroup, offset: Any, error: type[Exception]
) -> None:
    """A negative one was committed, and anything else ended the thread that fetches."""
    servers = group.cluster.bootstrap_servers
    with GroupConsumer(servers, "a", "g", enable_auto_commit=False) as consumer:
        assert consumer.fetch_record(WITHIN_S) is not None
        with pytest.raises(error):
            consumer.seek(A0, offset)
        for commit in (consumer.commit, consumer.commit_async, consumer.offsets_to_commit):
            with pytest.raises(error):
                commit(offsets={A0: offset})
        assert consumer.fetch_record(WITHIN_S) is not None
    assert group.committed == {}


def test_offsets_of_numpy_are_taken(group: ScriptedGroup) -> None:
    """They come from the columns of a read."""
    servers = group.cluster.bootstrap_servers
    with GroupConsumer(servers, "a", "g", enable_auto_commit=False) as consumer:
        fetched = consumer.read(WITHIN_S)
        assert fetched is not None
        assert fetched.columns.offset is not None
        after: Any = fetched.columns.offset[-1] + 1
        consumer.commit(offsets={A0: after})
        assert group.committed == {A0: 4}
        consumer.seek(A0, np.int64(2))  # type: ignore[arg-type]
        assert type(consumer.position(A0)) is int
        record = consumer.fetch_record(WITHIN_S)
        assert record is not None
        assert record.offset == 2
