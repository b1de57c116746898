"""When a commit is tried again, and where: at a coordinator that is gone, and after the queue's end."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from support.group.committing import PARTITIONS, WITHIN_S, Committing

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, CommitFailedError
from spark_kafka_native.kafka.group.membership import Identity
from spark_kafka_native.kafka.protocol.api.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from spark_kafka_native.kafka.protocol.api.group_offsets import OffsetCommitRequest

A0, A1, _ = PARTITIONS


def test_a_coordinator_that_cannot_be_reached_is_looked_up_again(member: Committing) -> None:
    member.commit({A0: 1})
    member.group.cluster[1].stop()
    member.group.coordinator = 2
    member.commit({A0: 2})
    assert member.group.committed == {A0: 2}
    assert len(member.group.cluster[2].requests(OffsetCommitRequest)) == 1


def test_a_coordinator_that_moved_is_looked_up_again_beside_a_topic_that_is_not_known(
    member: Committing,
) -> None:
    """It answers for each partition: the first one says nothing about the coordinator."""

    def moved(request: OffsetCommitRequest, version: int) -> Any:
        member.group.commit_refusals.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        answer = member.group.commit(request, version)
        refused = answer.topics[0].partitions
        refused[1] = replace(refused[1], error_code=ErrorCode.NOT_COORDINATOR)
        member.group.coordinator = 2
        return answer

    member.group.cluster[1].push(OffsetCommitRequest, moved)
    member.commit({A0: 1, A1: 2})
    assert member.group.committed == {A0: 1, A1: 2}
    assert [len(member.group.cluster[node].requests(OffsetCommitRequest)) for node in (1, 2)] == [1, 1]


def test_a_partition_that_the_answer_leaves_out_is_committed_again(member: Committing) -> None:
    def shortened(request: OffsetCommitRequest, version: int) -> Any:
        answer = member.group.commit(request, version)
        del answer.topics[0].partitions[1]
        return answer

    member.group.cluster[1].push(OffsetCommitRequest, shortened)
    member.commit({A0: 1, A1: 2})
    assert member.sent == [(1, A0, 1), (1, A1, 2), (1, A1, 2)]


def test_a_member_that_is_not_closed_does_not_keep_the_process_from_ending(member: Committing) -> None:
    member.commit({A0: 1})
    assert member.queue.thread is not None
    assert member.queue.thread.daemon


def test_a_coordinator_that_may_not_be_looked_up_fails_the_commit(member: Committing) -> None:
    refused = Coordinator(
        key="g",
        node_id=-1,
        host="",
        port=-1,
        error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
        error_message=None,
    )
    for broker in member.group.cluster.brokers.values():
        broker.push(FindCoordinatorRequest, FindCoordinatorResponse(coordinators=[refused]))
    failure = member.queue.submit({A0: 1, A1: 1}).exception(WITHIN_S)
    assert isinstance(failure, BrokerError)
    assert failure.error_code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert member.sent == []
    assert member.progress.ahead({A0: 1}) == {A0: 1}


def test_a_new_topic_is_waited_for_even_at_the_end(member: Committing) -> None:
    """The coordinator hears of it late; the records that were read of it last would be read again."""

    def end() -> None:
        member.group.commit_refusals.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        member.queue.abandon()

    member.during(1, end)
    member.commit({A0: 1})
    assert member.group.committed == {A0: 1}


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS])
def test_nothing_else_is_tried_again_at_the_end(member: Committing, code: ErrorCode) -> None:
    """The commits that wait are sent once each."""
    gate = threading.Event()

    def end() -> None:
        assert gate.wait(WITHIN_S)
        member.group.commit_refusals.append(code)
        member.queue.abandon()

    member.during(1, end)
    asked = [member.queue.submit({A0: 1}), member.queue.submit({A1: 1})]
    gate.set()
    failure, none = (one.exception(WITHIN_S) for one in asked)
    assert isinstance(failure, BrokerError)
    assert failure.error_code is code
    assert none is None
    assert member.sent == [(1, A0, 1), (1, A1, 1)]


@pytest.mark.parametrize(
    ("later", "reason"),
    [(Identity("me", 2, None), "ILLEGAL_GENERATION"), (None, "the group has gone on without this consumer")],
    ids=["in the next generation", "lost"],
)
def test_a_commit_of_an_ended_generation_fails_as_such_at_the_end(
    member: Committing, later: Identity | None, reason: str
) -> None:
    def end() -> None:
        member.identity = later
        member.group.commit_refusals.append(ErrorCode.ILLEGAL_GENERATION)
        member.queue.abandon()

    member.during(1, end)
    with pytest.raises(CommitFailedError, match=reason):
        member.commit({A0: 1})
    assert len(member.sent) == 1


def test_a_commit_that_waits_can_not_be_cancelled(member: Committing) -> None:
    """As cancelled, it would end the thread that sends all commits once it has its outcome."""
    gate = threading.Event()
    member.during(1, lambda: gate.wait(WITHIN_S))
    asked = [member.queue.submit({A0: 1}), member.queue.submit({A1: 1})]
    assert [one.cancel() for one in asked] == [False, False]
    gate.set()
    for one in asked:
        one.result(WITHIN_S)
    assert member.group.committed == {A0: 1, A1: 1}
