"""A commit of which the coordinator refuses some partitions: each is judged, in any order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.group.committing import PARTITIONS, Committing

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, CommitFailedError, DeadlineExceededError
from spark_kafka_native.kafka.group import commits
from spark_kafka_native.kafka.group.committed_offsets import commit_offsets
from spark_kafka_native.kafka.group.membership import Identity
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api import group_offsets
from spark_kafka_native.kafka.protocol.api.group_offsets import OffsetCommitRequest
from spark_kafka_native.kafka.runtime.retry import Backoff

A0, A1, A2 = PARTITIONS
NONE, FOR_GOOD, MOVED = ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NOT_COORDINATOR
UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def answer_with(member: Committing, codes: dict[TopicPartition, ErrorCode | None]) -> None:
    """To the next commit; None: the response leaves the partition out."""

    def answer(request: OffsetCommitRequest, _version: int) -> Any:
        topics = []
        for topic in request.topics:
            asked = {TopicPartition(topic.name, one.partition_index): one for one in topic.partitions}
            member.group.committed |= {
                tp: one.committed_offset for tp, one in asked.items() if codes[tp] is NONE
            }
            partitions = [
                group_offsets.OffsetCommitResponsePartition(partition_index=tp.partition, error_code=code)
                for tp in asked
                if (code := codes[tp]) is not None
            ]
            topics.append(group_offsets.OffsetCommitResponseTopic(name=topic.name, partitions=partitions))
        return group_offsets.OffsetCommitResponse(topics=topics)

    member.group.cluster[1].push(OffsetCommitRequest, answer)


ORDERS = list(itertools.permutations(PARTITIONS))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("passing", [MOVED, UNKNOWN_TOPIC, ErrorCode.REBALANCE_IN_PROGRESS, None])
def test_what_may_be_stored_later_is_tried_again_beside_a_refusal_for_good(
    member: Committing, order: tuple[TopicPartition, ...], passing: ErrorCode | None
) -> None:
    """As of an unauthorized topic, which a broker refuses before it asks the coordinator."""
    stored, refused, later = order
    answer_with(member, {stored: NONE, refused: FOR_GOOD, later: passing})
    with pytest.raises(BrokerError, match=f"the offset of {refused} in group g: TOPIC_AUTHORIZATION_FAILED"):
        member.commit({A0: 1, A1: 2, A2: 3})
    asked = {A0: 1, A1: 2, A2: 3}
    del asked[refused]
    assert member.group.committed == asked
    assert member.sent[3:] == [(1, later, asked[later])]
    member.commit(asked)  # they are known to be committed
    assert len(member.sent) == 4


@pytest.mark.parametrize("refused", [A0, A1])
def test_a_refusal_for_good_is_named_where_another_partition_ends_the_time(
    member: Committing, monkeypatch: pytest.MonkeyPatch, refused: TopicPartition
) -> None:
    """To try again, as after a time-out, would not help."""
    monkeypatch.setattr(commits, "Backoff", lambda **_: Backoff(first_ms=10**6, max_ms=10**6))
    loading = dict.fromkeys([A0, A1], ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    answer_with(member, loading | {refused: FOR_GOOD})
    answer_with(member, loading)
    with pytest.raises(BrokerError, match=f"the offset of {refused} in group g: TOPIC_AUTH") as raised:
        member.commit({A0: 1, A1: 2})
    assert isinstance(raised.value.__cause__, DeadlineExceededError)
    with pytest.raises(DeadlineExceededError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        member.commit({tp: 3 for tp in (A0, A1) if tp != refused})


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("other", [FOR_GOOD, UNKNOWN_TOPIC, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_coordinator_that_has_moved_is_looked_up_beside_any_other_refusal(
    member: Committing, order: tuple[TopicPartition, ...], other: ErrorCode
) -> None:
    stored, refused, moved = order
    member.commit({A0: 1})
    member.group.coordinator = 2
    answer_with(member, {stored: NONE, refused: other, moved: MOVED})
    asked = member.queue.submit(dict.fromkeys(PARTITIONS, 2))
    failure = asked.exception(120)
    assert isinstance(failure, BrokerError) is (other is FOR_GOOD)
    assert member.group.committed[moved] == 2
    again = member.group.cluster[2].requests(OffsetCommitRequest)
    assert [one.partition_index for one in again[0].topics[0].partitions] == sorted(
        {moved.partition, refused.partition} if other is not FOR_GOOD else {moved.partition}
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("other", [FOR_GOOD, MOVED, UNKNOWN_TOPIC])
def test_a_member_that_is_not_known_counts_beside_any_other_refusal(
    member: Committing, order: tuple[TopicPartition, ...], other: ErrorCode
) -> None:
    stored, refused, unknown = order
    answer_with(member, {stored: NONE, refused: other, unknown: ErrorCode.UNKNOWN_MEMBER_ID})
    with pytest.raises(CommitFailedError, match="the group has gone on without this consumer") as raised:
        member.commit(dict.fromkeys(PARTITIONS, 1))
    assert f"{stored}: 1" not in str(raised.value)
    assert member.doubted == [Identity("me", 1, None)]
    assert len(member.sent) == 3
    assert member.queue.submit({stored: 1}).exception(120) is None
    assert len(member.sent) == 3


def test_offsets_without_a_member_reach_a_coordinator_that_has_moved_beside_a_refusal(
    member: Committing,
) -> None:
    commit_offsets(member.router, "g", {A0: 1})
    member.group.coordinator = 2
    answer_with(member, {A0: FOR_GOOD, A1: MOVED, A2: NONE})
    commit_offsets(member.router, "g", {A0: 2, A1: 2, A2: 2})
    assert member.group.committed == {A0: 2, A1: 2, A2: 2}
    assert len(member.group.cluster[2].requests(OffsetCommitRequest)) == 1
