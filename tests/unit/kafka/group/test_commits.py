"""Commits of a member: for partitions that it still has, under its present id; the effect of a refusal."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup
from support.consumer.reading import wait_until
from support.group.committing import Committing
from support.group.parts import lose, parts_of
from support.record_batches import batch, control

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import CommitFailedError, ConsumerClosedError, DeadlineExceededError
from spark_kafka_native.kafka.group.commits import CommitQueue
from spark_kafka_native.kafka.group.group_config import GroupConfig
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.group.membership import Identity
from spark_kafka_native.kafka.group.pending_commit import PendingCommit
from spark_kafka_native.kafka.group.progress import Progress
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.group_membership import HeartbeatRequest, HeartbeatResponse
from spark_kafka_native.kafka.protocol.api.group_offsets import OffsetCommitRequest
from spark_kafka_native.kafka.runtime.deadline import Deadline

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
WITHIN_S = 120


@pytest.fixture
def group() -> Iterator[ScriptedGroup]:
    with ScriptedCluster(1) as cluster:
        cluster.create("a", partitions=2)
        cluster.logs[A0].append([b"one", b"two", b"three"])
        yield ScriptedGroup(cluster, [A0, A1])


def test_who_commits_is_known_before_what_is_checked(group: ScriptedGroup) -> None:
    """The partition goes to another member between the two: as a member of the next generation, this one
    would commit it nevertheless."""
    progress = Progress()
    progress.begin(A0, 0, None)
    progress.handed_out(A0, 0, 3)

    def identity() -> Identity:
        progress.drop([A0])
        return Identity("me", 2, None)

    router = Router(ClientConfig.from_properties({"bootstrap.servers": group.cluster.bootstrap_servers}))
    queue = CommitQueue(router, GroupConfig(group_id="g"), identity, progress, lambda _identity: None)
    with pytest.raises(CommitFailedError, match="not assigned"):
        queue.submit({A0: 3}).result(WITHIN_S)
    queue.stop()
    router.close()
    assert group.committed == {}


def test_a_commit_that_is_submitted_just_after_the_last_look_of_the_thread_that_sends_fails(
    group: ScriptedGroup,
) -> None:
    """And just before the thread says that it has ended."""
    member, late = Committing(group), list[PendingCommit]()

    class Waiting(deque[Any]):
        def __bool__(self) -> bool:
            found = len(self) > 0
            if not late and sys._getframe(1).f_code.co_name == "_work":
                late.append(member.queue.submit({A0: 2}))
            return found

    member.queue._waiting = Waiting()
    member.queue.start()
    member.queue.abandon()
    wait_until("it has looked", lambda: late)
    with pytest.raises(ConsumerClosedError, match="nothing was committed"):
        late[0].result(WITHIN_S)
    member.router.close()
    assert group.committed == {}


def test_a_commit_that_is_submitted_as_the_thread_that_sends_ends_fails(group: ScriptedGroup) -> None:
    """Another thread closes the consumer just then: nothing would send it."""
    member = Committing(group)
    member.commit({A0: 1})

    def close(_: object) -> dict[TopicPartition, int]:
        member.queue.stop()
        assert member.queue.thread is not None
        member.queue.thread.join(WITHIN_S)
        return {}

    member.queue.leader_epochs = close
    with pytest.raises(ConsumerClosedError, match="nothing was committed"):
        member.queue.submit({A0: 2}).result(WITHIN_S)
    member.router.close()
    assert group.committed == {A0: 1}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ],
)
def test_a_commit_that_is_refused_for_an_old_generation_is_made_again_in_the_new_one(
    group: ScriptedGroup, code: ErrorCode
) -> None:
    """The member has joined again while the commit was under way, and has the partition still."""
    progress, doubted = Progress(), list[Identity]()
    progress.begin(A0, 0, None)
    progress.handed_out(A0, 0, 3)
    current = [Identity("me", 1, None)]

    def rejoined(request: OffsetCommitRequest, version: int) -> Any:
        current[0] = Identity("me", 2, None)
        return group.commit(request, version)

    group.commit_refusals.append(code)
    group.cluster[1].push(OffsetCommitRequest, rejoined)
    servers = {"bootstrap.servers": group.cluster.bootstrap_servers, "retry.backoff.ms": "5"}
    router = Router(ClientConfig.from_properties(servers))
    queue = CommitQueue(router, GroupConfig(group_id="g"), lambda: current[0], progress, doubted.append)
    queue.submit({A0: 3}).result(WITHIN_S)
    queue.stop()
    router.close()
    assert group.committed == {A0: 3}
    generations = [
        one.generation_id_or_member_epoch for one in group.cluster[1].requests(OffsetCommitRequest)
    ]
    assert generations == [1, 2]
    assert doubted == []


@pytest.mark.parametrize("learns", [Identity("me", 2, None), None], ids=["in the next", "lost"])
def test_a_commit_in_a_generation_that_has_just_ended_waits_for_what_the_member_learns(
    member: Committing, learns: Identity | None
) -> None:
    """It may cross the answer to JoinGroup: the partition may stay, and so may the consumer."""

    def doubt(identity: Identity) -> None:
        member.doubted.append(identity)
        member.identity = learns

    member.queue._doubt = doubt
    member.group.commit_refusals.append(ErrorCode.ILLEGAL_GENERATION)
    if learns:
        member.commit({A0: 3})
    else:
        with pytest.raises(CommitFailedError, match="this consumer is not in group g just now"):
            member.commit({A0: 3})
    assert member.doubted == [Identity("me", 1, None)]
    assert [generation for generation, _, _ in member.sent] == ([1, 2] if learns else [1])
    assert member.group.committed == ({A0: 3} if learns else {})


def test_a_refused_commit_makes_the_member_ask_at_once_whether_it_is_one(group: ScriptedGroup) -> None:
    lost = threading.Event()
    with GroupConsumer(
        group.cluster.bootstrap_servers,
        "a",
        "g",
        enable_auto_commit=False,
        session_timeout_ms=7_200_000,
        heartbeat_interval_ms=3_600_000,  # so late it would hear of it
        on_lost=lambda _consumer, _partitions: lost.set(),
    ) as consumer:
        record = consumer.fetch_record(WITHIN_S)
        assert record is not None
        group.commit_refusals.append(ErrorCode.UNKNOWN_MEMBER_ID)
        group.cluster[1].push(HeartbeatRequest, HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        with pytest.raises(CommitFailedError):
            consumer.commit(record)
        offsets = [consumer.fetch_record(WITHIN_S)]
        while not lost.is_set():
            offsets.append(consumer.fetch_record(WITHIN_S))
        assert offsets[-1] == record  # as a member again, from the beginning


def test_a_commit_before_each_record_that_fails_for_good_does_not_end_reading(group: ScriptedGroup) -> None:
    """With ``auto_commit_interval_ms=0`` the read that comes after a loss raised, and each one after it."""
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", auto_commit_interval_ms=0) as consumer:
        assert next(consumer).offset == 0
        lose(consumer)
        assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
    assert group.committed == {A0: 3}


@pytest.mark.parametrize("closed", [False, True])
def test_a_read_does_not_outlast_its_timeout_for_a_commit_before_each_record(
    group: ScriptedGroup, closed: bool
) -> None:
    """Reads wait for the commit, one after the other, and hand out nothing before its end."""
    gate = threading.Event()

    def commit(request: OffsetCommitRequest, version: int) -> Any:
        gate.wait(5)
        return group.commit(request, version)

    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", auto_commit_interval_ms=0) as consumer:
        first = consumer.fetch_record(WITHIN_S)
        assert first is not None
        group.cluster[1].push(OffsetCommitRequest, commit)
        assert consumer.fetch_record(0.01) is None
        assert consumer.poll(0.0) == []
        assert consumer.position(A0) == 1
        assert group.committed == {}
        gate.set()
        if not closed:
            assert next(consumer).offset == 1
            assert group.committed == {A0: 1}
    assert group.committed == {A0: 1 if closed else 2}


def test_a_position_may_be_committed_by_hand(group: ScriptedGroup) -> None:
    """It is behind batches that are hidden after the last record, such as a transaction's marker."""
    log = group.cluster.logs[A0]
    log.batches.append(control(3, 7, 1))
    log.end_offset = 4
    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False, isolation_level="read_committed"
    ) as consumer:
        for _ in range(3):
            assert consumer.fetch_record(WITHIN_S) is not None
        position = consumer.position(A0)
        assert position == 4
        consumer.commit(offsets={A0: position})
        with pytest.raises(CommitFailedError, match="only offsets 0 to 4 were read"):
            consumer.commit(offsets={A0: 5})
    assert group.committed == {A0: 4}


@pytest.mark.parametrize(
    "hidden",
    [
        pytest.param(control(3, 7, 1), id="marker"),
        pytest.param(batch(base_offset=3, last_offset_delta=0), id="compacted"),
    ],
)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_what_is_hidden_behind_the_last_record_stops_no_automatic_commit(
    group: ScriptedGroup, hidden: bytes, later: bool
) -> None:
    """No partition was committed then, and everybody's records were read again."""
    log, other = (group.cluster.logs[tp] for tp in (A0, A1))
    other.append([b"four", b"five"])

    def hide() -> None:
        log.batches.append(hidden)
        log.end_offset = 4

    if not later:
        hide()
    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", isolation_level="read_committed"
    ) as consumer:
        assert len([next(consumer) for _ in range(5)]) == 5
        if later:
            hide()
            wait_until("behind it", lambda: consumer.position(A0) == 4)
    assert group.committed == {A0: 4, A1: 2}


def columns_of(consumer: GroupConsumer) -> list[int]:
    fetched = consumer.read(WITHIN_S)
    assert fetched is not None
    return [record.offset for record in fetched.columns]


def record_of(consumer: GroupConsumer) -> list[int]:
    record = consumer.fetch_record(WITHIN_S)
    return [] if record is None else [record.offset]


WAYS: dict[str, Callable[[GroupConsumer], list[int]]] = {
    "read": columns_of,
    "iteration": lambda consumer: [next(consumer).offset],
    "fetch_record": record_of,
    "poll": lambda consumer: [record.offset for record in consumer.poll(WITHIN_S)],
    "poll one": lambda consumer: [record.offset for record in consumer.poll(WITHIN_S, max_records=1)],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("automatic", [True, False])
def test_what_is_committed_does_not_depend_on_how_it_was_read(
    group: ScriptedGroup, way: str, automatic: bool
) -> None:
    with GroupConsumer(
        group.cluster.bootstrap_servers,
        "a",
        "g",
        auto_commit_interval_ms=0,
        enable_auto_commit=automatic,
    ) as consumer:
        found: list[int] = []
        while len(found) < 3:
            found += WAYS[way](consumer)
            assert max(group.committed.values(), default=0) < len(found)  # the caller works on them
        assert consumer.fetch_record(0.0) is None
        wait_until("committed", lambda: group.committed == ({A0: 3} if automatic else {}))
        assert consumer.poll(0.0) == []
        assert found == [0, 1, 2]
        consumer.commit()
        assert group.committed == {A0: 3, A1: 0}


@pytest.mark.parametrize("way", WAYS)
def test_what_raised_is_read_again_however_it_was_read(group: ScriptedGroup, way: str) -> None:
    def work() -> None:
        with GroupConsumer(group.cluster.bootstrap_servers, "a", "g") as consumer:
            found = WAYS[way](consumer)
            last.append(found[0])
            raise ZeroDivisionError

    last: list[int] = []
    with pytest.raises(ZeroDivisionError):
        work()
    assert last == [0]
    assert group.committed.get(A0, 0) == 0


def test_a_commit_does_not_go_back_behind_the_last_one(group: ScriptedGroup) -> None:
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
        records = [consumer.fetch_record(WITHIN_S) for _ in range(3)]
        first, last = records[0], records[-1]
        assert first is not None
        assert last is not None
        consumer.commit(last)
        consumer.commit(first)
        assert len(group.cluster[1].requests(OffsetCommitRequest)) == 1
        consumer.commit(offsets={A0: 1, A1: 0})
        assert group.committed == {A0: 3, A1: 0}
        consumer.seek(A0, 0)
        consumer.commit(offsets={A0: 0})
    assert group.committed == {A0: 0, A1: 0}


def test_the_furthest_of_the_records_is_committed_in_any_order(group: ScriptedGroup) -> None:
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
        found = [consumer.fetch_record(WITHIN_S) for _ in range(3)]
        first, second, last = [record for record in found if record is not None]
        consumer.commit(second, first)
        assert group.committed == {A0: 2}
        consumer.commit(last, first, offsets={A0: 2, A1: 0})
        assert group.committed == {A0: 3, A1: 0}
        consumer.seek(A0, 3)
        consumer.commit(first, offsets={A0: 3})
    assert group.committed == {A0: 3, A1: 0}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the coordinator has not heard of it yet
    ],
)
def test_what_is_refused_for_the_time_being_is_committed_later(group: ScriptedGroup, code: ErrorCode) -> None:
    group.commit_refusals += [code, code]
    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False, retry_backoff_ms=5
    ) as consumer:
        assert consumer.fetch_record(WITHIN_S) is not None
        consumer.commit()
    assert group.committed == {A0: 1, A1: 0}


def test_what_is_asked_for_before_the_end_is_committed(group: ScriptedGroup) -> None:
    gate = threading.Event()

    def commit(request: OffsetCommitRequest, version: int) -> Any:
        assert gate.wait(WITHIN_S)
        return group.commit(request, version)

    group.cluster[1].push(OffsetCommitRequest, commit)
    consumer = GroupConsumer(group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False)
    with consumer:
        records = [consumer.fetch_record(WITHIN_S) for _ in range(2)]
        asked = [consumer.commit_async(record) for record in records if record is not None]
        parts_of(consumer).commits.queue.abandon()
        gate.set()
        for done in asked:
            done.result(WITHIN_S)
    assert group.committed == {A0: 2}


def test_where_no_thread_can_be_started_any_more_the_first_commit_is_sent(
    group: ScriptedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`atexit` calls `close`, or there are too many."""
    begin = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name.startswith("kafka-"):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        begin(self)

    consumer = GroupConsumer(group.cluster.bootstrap_servers, "a", "g")
    assert consumer.fetch_record(WITHIN_S) is not None
    monkeypatch.setattr(threading.Thread, "start", start)
    consumer.close()
    assert group.committed == {A0: 1}


def test_a_commit_is_waited_for_until_its_timeout_and_goes_on(group: ScriptedGroup) -> None:
    gate = threading.Event()

    def commit(request: OffsetCommitRequest, version: int) -> Any:
        gate.wait(10)
        return group.commit(request, version)

    group.cluster[1].push(OffsetCommitRequest, commit)
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
        record = consumer.fetch_record(WITHIN_S)
        assert record is not None
        with pytest.raises(DeadlineExceededError, match="did not end in time; it goes on"):
            consumer.commit(record, timeout=0.02)
        assert group.committed == {}
        gate.set()
        consumer.commit(record)
    assert len(group.cluster[1].requests(OffsetCommitRequest)) == 1
    assert group.committed == {A0: 1}


def test_a_commit_of_nothing_is_done_at_once(group: ScriptedGroup) -> None:
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
        consumer.commit_async(offsets={}).result(WITHIN_S)
    assert group.committed == {}


def test_a_seek_before_reading_begins_moves_the_group_with_the_next_commit(group: ScriptedGroup) -> None:
    group.committed[A0] = 2

    def assigned(consumer: GroupConsumer, _partitions: list[TopicPartition]) -> None:
        consumer.seek(A0, 1)

    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False, on_assigned=assigned
    ) as consumer:
        record = consumer.fetch_record(WITHIN_S)
        assert record is not None
        assert record.offset == 1
        consumer.commit(offsets={A0: 1})
    assert group.committed[A0] == 1


def test_a_committed_offset_of_0_is_one(group: ScriptedGroup) -> None:
    group.committed[A0] = 0
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", auto_offset_reset="latest") as consumer:
        record = consumer.fetch_record(WITHIN_S)
    assert record is not None
    assert record.offset == 0


def test_where_the_log_ended_at_the_start_is_committed(group: ScriptedGroup) -> None:
    """Or the next member with the partition would begin at a later end."""
    until = Deadline.after_ms(WITHIN_S * 1_000)
    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", auto_offset_reset="latest", auto_commit_interval_ms=1
    ) as consumer:
        while not group.committed:
            assert not until.expired
            assert consumer.read(0.05) is None
    assert group.committed == {A0: 3, A1: 0}


def test_a_commit_that_is_tried_again_ends_before_close_takes_back_what_was_read_last(
    group: ScriptedGroup,
) -> None:
    servers, commits = group.cluster.bootstrap_servers, []

    def work() -> None:
        with GroupConsumer(servers, "a", "g", enable_auto_commit=False, retry_backoff_ms=300) as consumer:
            record = consumer.fetch_record(WITHIN_S)
            assert record is not None
            group.commit_refusals.append(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            commits.append(consumer.commit_async(record))
            raise ZeroDivisionError  # the record counts as not done, but was committed explicitly

    with pytest.raises(ZeroDivisionError):
        work()
    commits[0].result(WITHIN_S)
    assert group.committed == {A0: 1}
