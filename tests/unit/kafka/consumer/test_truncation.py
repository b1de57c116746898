"""Where the epoch ends that was read last, asked of brokers that don't compare it in Fetch: in literals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from spark_kafka_native.kafka.cluster.router import Leader
from spark_kafka_native.kafka.consumer.fetch_requests import (
    build_offset_for_leader_epoch,
    find_truncated,
    read_offset_for_leader_epoch,
)
from spark_kafka_native.kafka.consumer.partition_state import PartitionState
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    IncompleteResponseError,
    KafkaError,
    LogTruncatedError,
    UnsupportedVersionError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from spark_kafka_native.kafka.records.batch import RecordSetEnd


def state(topic: str = "t", partition: int = 0, read_until: int = 20, last_epoch: int = 4) -> PartitionState:
    """Read up to 10 and asked for up to ``read_until`` under leader 1 (epoch 5); now led by broker 2 in
    epoch 6."""
    made = PartitionState(TopicPartition(topic, partition), 10, 100, 1 << 20)
    made.broker.led_by(Leader(1, 5, UUID(int=1)), 0.0)
    made.receive(RecordSetEnd(read_until, last_epoch), 10, 1, 0.0)
    made.broker.led_by(Leader(2, 6, UUID(int=1)), 0.0)
    return made


def answer(*told: tuple[str, int, int], error: ErrorCode = ErrorCode.NONE) -> OffsetForLeaderEpochResponse:
    """(topic, partition, where the epoch ends), each topic by itself."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic,
                partitions=[
                    EpochEndOffset(error_code=error, partition=partition, leader_epoch=4, end_offset=end)
                ],
            )
            for topic, partition, end in told
        ]
    )


class Leads:
    """A connection to a leader that answers ``response``."""

    def __init__(self, response: OffsetForLeaderEpochResponse, known: bool = True) -> None:
        self.response, self.known, self.asked = response, known, list[Any]()

    def version_of(self, request: Any) -> int:
        assert request is OffsetForLeaderEpochRequest
        if not self.known:
            raise UnsupportedVersionError("no")
        return 3

    def send(self, request: Any, timeout_ms: float) -> OffsetForLeaderEpochResponse:
        self.asked.append((request, timeout_ms))
        return self.response


def find(leads: Leads, *states: PartitionState) -> list[tuple[PartitionState, KafkaError | None]]:
    connection: Any = leads
    return find_truncated(connection, states, 1234)


def test_the_request_has_the_epoch_that_was_read_and_the_leaders() -> None:
    request = build_offset_for_leader_epoch([state("t", 3), state("u", 1, last_epoch=2), state("t", 0)])
    assert request.replica_id == -1
    assert [
        (topic.topic, [(p.partition, p.leader_epoch, p.current_leader_epoch) for p in topic.partitions])
        for topic in request.topics
    ] == [("t", [(3, 4, 6), (0, 4, 6)]), ("u", [(1, 2, 6)])]


@pytest.mark.parametrize(
    ("end", "cut"), [(-1, False), (0, True), (10, True), (19, True), (20, False), (21, False)]
)
def test_an_epoch_that_ends_before_what_was_fetched_was_cut_back(end: int, cut: bool) -> None:
    """-1: the leader does not know where the epoch ends, which is no truncation. The records received are
    handed out before the error is raised."""
    one = state(read_until=20)
    [(checked, error)] = read_offset_for_leader_epoch(answer(("t", 0, end)), {one.topic_partition: one})
    assert checked is one
    if not cut:
        assert error is None
        return
    assert isinstance(error, LogTruncatedError)
    assert error.args == (TopicPartition("t", 0), 20, end)


@pytest.mark.parametrize(
    ("epoch", "end", "cut_at"), [(3, 12, 12), (3, 20, 19), (0, 50, 19), (4, 50, None), (-1, 50, None)]
)
def test_a_log_that_lacks_the_epoch_was_cut_back_however_far_it_reaches(
    epoch: int, end: int, cut_at: int | None
) -> None:
    """Its leader had records of an earlier epoch that no other broker had, and more of them."""
    one = state(read_until=20, last_epoch=4)
    [topic] = answer(("t", 0, end)).topics
    told = EpochEndOffset(partition=0, error_code=ErrorCode.NONE, leader_epoch=epoch, end_offset=end)
    response = OffsetForLeaderEpochResponse(topics=[replace(topic, partitions=[told])])
    [(_, error)] = read_offset_for_leader_epoch(response, {one.topic_partition: one})
    if cut_at is None:
        assert error is None
    else:
        assert isinstance(error, LogTruncatedError)
        assert (error.position, error.end_offset) == (20, cut_at)


def test_each_partition_hears_its_own_answer() -> None:
    cut, fine, missing = state("t", 0), state("u", 0), state("u", 1)
    states = {one.topic_partition: one for one in (cut, fine, missing)}
    told = answer(("x", 0, 3), ("t", 7, 3), ("u", 0, 20), ("t", 0, 12), ("t", 0, 20))
    checked = dict(read_offset_for_leader_epoch(told, states))
    assert {one: type(error) for one, error in checked.items()} == {
        cut: LogTruncatedError,
        fine: type(None),
        missing: IncompleteResponseError,
    }
    assert str(checked[missing]) == "epoch 4 of u-1: the leader's response lacks it"
    assert len(states) == 3  # the caller's own


def test_a_refusal_is_no_check() -> None:
    one = state()
    told = answer(("t", 0, 50), error=ErrorCode.FENCED_LEADER_EPOCH)
    [(failed, error)] = read_offset_for_leader_epoch(told, {one.topic_partition: one})
    assert failed is one
    assert isinstance(error, BrokerError)
    assert (error.error_code, error.where) == (ErrorCode.FENCED_LEADER_EPOCH, "epoch 4 of t-0")


def test_only_those_under_another_epoch_than_they_were_read_are_asked_about_and_once() -> None:
    doubtful, epoch_zero = state("t", 0), state("t", 1, last_epoch=0)
    same, unread, unled = state("t", 2), state("t", 3), state("t", 4)
    same.broker.led_by(Leader(1, 5, UUID(int=1)), 0.0)
    unread.position.forget_epoch()
    unled.broker.lose_leader()
    leads = Leads(answer(("t", 0, 20), ("t", 1, 20)))
    checked = find(leads, doubtful, epoch_zero, same, unread, unled)
    assert checked == [(doubtful, None), (epoch_zero, None)]
    for one, _ in checked:
        one.broker.pass_epoch_check()
    [(request, timeout_ms)] = leads.asked
    assert [p.partition for p in request.topics[0].partitions] == [0, 1]
    assert timeout_ms == 1234
    assert find(leads, doubtful, epoch_zero, same, unread, unled) == []
    assert len(leads.asked) == 1


def test_what_the_leader_says_is_found() -> None:
    one = state()
    [(failed, error)] = find(Leads(answer(("t", 0, 12))), one)
    assert failed is one
    assert isinstance(error, LogTruncatedError)


def test_a_broker_that_cannot_say_is_not_asked() -> None:
    leads = Leads(answer(), known=False)
    assert find(leads, state()) == []
    assert leads.asked == []
