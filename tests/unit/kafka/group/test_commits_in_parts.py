"""A commit of a member that takes several requests, and what happens between two of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.brokers.scripted_broker import HangUp, ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup
from support.group.committing import PARTITIONS, WITHIN_S, Committing

from spark_kafka_native.kafka.cluster import split_commit
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, CommitFailedError, DeadlineExceededError
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.group.membership import Identity
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.group_offsets import OffsetCommitRequest
from spark_kafka_native.testing import MockBroker

A0, A1, A2 = ALL = PARTITIONS


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedGroup]:
    """Each offset that is committed takes a request of its own."""
    monkeypatch.setattr(split_commit, "MAX_COMMIT_BYTES", 1)
    with ScriptedCluster(1) as cluster:
        cluster.create("a", partitions=3)
        for tp in ALL:
            cluster.logs[tp].append([b"one"])
        yield ScriptedGroup(cluster, ALL)


def test_parts_are_sent_one_after_the_other_and_what_is_committed_already_is_not(member: Committing) -> None:
    units = member.queue.work_units.subscribe(10)
    member.commit({A0: 1, A1: 1, A2: 1})
    member.commit({A0: 2, A1: 1, A2: 2})
    assert member.sent == [(1, A0, 1), (1, A1, 1), (1, A2, 1), (1, A0, 2), (1, A2, 2)]
    assert member.group.committed == {A0: 2, A1: 1, A2: 2}
    assert [(one.topic_partition, one.from_offset, one.until_offset) for one in units.drain()] == [
        (A0, 0, 1),
        (A1, 0, 1),
        (A2, 0, 1),
        (A0, 1, 2),
        (A2, 1, 2),
    ]


@pytest.mark.parametrize(
    "fault", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS, None]
)
def test_a_part_that_is_tried_again_is_tried_alone(member: Committing, fault: ErrorCode | None) -> None:
    """``None``: its answer is lost."""

    def answer(request: OffsetCommitRequest, version: int) -> Any:
        if fault is not None:
            member.group.commit_refusals.append(fault)
        answer = member.group.commit(request, version)
        return HangUp if fault is None else answer

    member.group.cluster[1].push(OffsetCommitRequest, member.group.commit, answer)
    member.commit({A0: 1, A1: 2, A2: 3})
    assert member.sent == [(1, A0, 1), (1, A1, 2), (1, A1, 2), (1, A2, 3)]
    assert member.group.committed == {A0: 1, A1: 2, A2: 3}


def test_a_newer_commit_waits_for_all_parts_of_the_older_one(member: Committing) -> None:
    gate = threading.Event()
    member.during(2, lambda: gate.wait(WITHIN_S))
    older = member.queue.submit({A0: 1, A1: 1, A2: 1})
    newer = member.queue.submit({A0: 2, A1: 2, A2: 2})
    gate.set()
    older.result(WITHIN_S)
    newer.result(WITHIN_S)
    assert [(tp, offset) for _, tp, offset in member.sent] == [(tp, at) for at in (1, 2) for tp in ALL]


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH])
def test_a_generation_between_two_parts_is_followed_without_what_is_committed(
    member: Committing, code: ErrorCode
) -> None:
    """The partition of the first part went to another member, which may have committed more by now."""

    def rejoined() -> None:
        member.progress.drop([A0])
        member.identity = Identity("me", 2, None)
        member.group.commit_refusals.append(code)

    member.during(2, rejoined)
    member.commit({A0: 1, A1: 2, A2: 3})
    assert member.sent == [(1, A0, 1), (1, A1, 2), (2, A1, 2), (2, A2, 3)]
    assert member.doubted == []


@pytest.mark.parametrize(
    "leave",
    [
        lambda member: member.progress.drop([A1]),
        lambda member: member.progress.go_back(A1, 0, 1),
        lambda member: member.progress.restart([A1]),
    ],
    ids=["given away", "goes back", "begins anew"],
)
def test_what_may_not_be_committed_any_more_is_not_sent_with_a_later_part(
    member: Committing, leave: Callable[[Committing], None]
) -> None:
    member.during(1, lambda: leave(member))
    with pytest.raises(CommitFailedError, match=r"a-1.* offset 2 was not committed"):
        member.commit({A0: 1, A1: 2, A2: 3})
    assert member.group.committed == {A0: 1}
    assert len(member.sent) == 1


def test_a_seek_does_not_keep_a_later_part_from_being_sent(member: Committing) -> None:
    member.during(1, lambda: member.progress.sought(A1, 5))
    member.commit({A0: 1, A1: 2, A2: 3})
    assert member.group.committed == {A0: 1, A1: 2, A2: 3}


def test_what_may_not_be_committed_at_the_beginning_keeps_all_parts_from_being_sent(
    member: Committing,
) -> None:
    member.progress.drop([A2])
    with pytest.raises(CommitFailedError, match=r"a-2 is not assigned"):
        member.commit({A0: 1, A1: 2, A2: 3})
    assert member.sent == []


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "left"])
def test_a_member_that_is_none_any_more_sends_no_later_part(member: Committing, refused: bool) -> None:
    """The error names the offsets that are not committed, and no others."""

    def lost() -> None:
        if refused:
            member.group.commit_refusals.append(ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            member.identity = None

    member.during(2 if refused else 1, lost)
    with pytest.raises(CommitFailedError, match=r"the offsets a-1: 2, a-2: 3 were not committed"):
        member.commit({A0: 1, A1: 2, A2: 3})
    assert member.group.committed == {A0: 1}
    assert len(member.sent) == (2 if refused else 1)
    assert len(member.doubted) == refused


def test_a_part_that_is_refused_does_not_hold_up_the_others(member: Committing) -> None:
    """As of a deleted topic: its partitions stay assigned until the group rebalances, and a commit that
    stopped there would never reach those behind them."""
    member.during(2, lambda: member.group.commit_refusals.append(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="the offset of a-1 in group g: TOPIC_AUTHORIZATION_FAILED"):
        member.commit({A0: 1, A1: 2, A2: 3})
    assert member.group.committed == {A0: 1, A2: 3}
    member.commit({A0: 1, A1: 2, A2: 3})
    assert member.sent[3:] == [(1, A1, 2)]


@pytest.mark.parametrize("again", [False, True])
def test_what_one_request_stored_beside_a_refusal_is_committed(
    member: Committing, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """A coordinator refuses partitions, not requests; what it has stored is not stored anew, nor gone back
    behind."""
    monkeypatch.setattr(split_commit, "MAX_COMMIT_BYTES", 1_000_000)
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if again else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def without_one(request: OffsetCommitRequest, version: int) -> Any:
        answer = member.group.commit(request, version)
        answer.topics[0].partitions[1] = replace(answer.topics[0].partitions[1], error_code=code)
        return answer

    units = member.queue.work_units.subscribe(10)
    member.group.cluster[1].push(OffsetCommitRequest, without_one)
    if again:
        member.commit({A0: 5, A1: 6, A2: 7})
    else:
        with pytest.raises(BrokerError, match="the offset of a-1 in group g: TOPIC_AUTHORIZATION_FAILED"):
            member.commit({A0: 5, A1: 6, A2: 7})
    assert member.sent[3:] == [(1, A1, 6)] * again
    assert [one.topic_partition for one in units.drain()] == [A0, A2, *[A1] * again]
    member.commit({A0: 3, A2: 8})
    assert member.sent[-1] == (1, A2, 8)
    assert member.group.committed == {A0: 5, A1: 6, A2: 8}


def test_of_several_parts_that_are_refused_the_first_is_named(member: Committing) -> None:
    member.group.commit_refusals += [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ]
    with pytest.raises(BrokerError, match="the offset of a-0 in group g: TOPIC_AUTHORIZATION_FAILED"):
        member.commit({A0: 1, A1: 2, A2: 3})
    assert member.group.committed == {A2: 3}


def test_all_parts_share_the_time_of_the_commit(member: Committing, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [member.router.deadline(1_500)]
    monkeypatch.setattr(member.router, "deadline", lambda *_: limits.pop())
    member.during(
        2, lambda: member.group.commit_refusals.extend([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 999)
    )
    with pytest.raises(DeadlineExceededError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        member.commit({A0: 1, A1: 2, A2: 3})
    assert {tp for _, tp, _ in member.sent} == {A0, A1}


@pytest.mark.parametrize("automatic", [True, False])
def test_close_commits_all_parts(group: ScriptedGroup, automatic: bool) -> None:
    def revoked(consumer: GroupConsumer, _partitions: list[TopicPartition]) -> None:
        if not automatic:
            consumer.commit()

    with GroupConsumer(
        group.cluster.bootstrap_servers,
        "a",
        "g",
        enable_auto_commit=automatic,
        auto_commit_interval_ms=3_600_000,
        on_revoked=revoked,
    ) as consumer:
        assert len([next(consumer) for _ in range(3)]) == 3
    assert group.committed == {A0: 1, A1: 1, A2: 1}
    assert len(group.cluster[1].requests(OffsetCommitRequest)) == 3


def test_a_refused_partition_among_many() -> None:
    """By size: the records have the group's name in them."""
    name = "g" * 4_000
    with MockBroker() as broker:
        broker.create_topic("a", 300)
        with GroupConsumer(broker.bootstrap_servers, "a", name, enable_auto_commit=False) as consumer:
            while len(consumer.assignment) < 300 or any(
                consumer.position(tp) is None for tp in consumer.assignment
            ):
                consumer.read(0.05)
            broker.on("OffsetCommit", partition=7).fail("TOPIC_AUTHORIZATION_FAILED")
            with pytest.raises(BrokerError, match=r"the offset of a-7 .*TOPIC_AUTHORIZATION_FAILED"):
                consumer.commit()
            assert len(broker.asked("OffsetCommit")) == 3
            assert broker.committed(name) == {TopicPartition("a", at): 0 for at in range(300) if at != 7}
            consumer.commit()
        assert len(broker.committed(name)) == 300
        assert len(broker.asked("OffsetCommit")) == 4
