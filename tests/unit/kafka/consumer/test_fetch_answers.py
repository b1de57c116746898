"""What an answer means for a partition, in literals."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from spark_kafka_native.kafka.cluster import retry_policy
from spark_kafka_native.kafka.cluster.router import Leader
from spark_kafka_native.kafka.consumer.fetch_answers import Answer, FetchRules, fail, left_out, take_in
from spark_kafka_native.kafka.consumer.partition_state import ENDLESS, PartitionState
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    EndOfLogError,
    KafkaError,
    LogTruncatedError,
    NetworkError,
    OffsetOutOfRangeError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import EpochEndOffset, PartitionData
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.encode import encode_record_batch
from spark_kafka_native.kafka.runtime.retry import Backoff

TP = TopicPartition("orders", 0)
BACKOFF = Backoff(first_ms=100, max_ms=1_000)
RULES = FetchRules(
    read_committed=False, max_bytes=1_000, end_of_log_wait_s=5.0, replica_s=300.0, backoff=BACKOFF
)
COMMITTED = replace(RULES, read_committed=True)
ANSWER = Answer(now=50.0, turn=7, served=False, early=False, throttled=False, brokers=frozenset({1, 2, 3}))


def state(position: int = 10, until: int = 100, **changed: Any) -> PartitionState:
    """Asked of leader 1 at time 49.0."""
    made = PartitionState(topic_partition=TP, position=position, until_offset=until, max_bytes=400, **changed)
    made.led_by(Leader(1, 5, None), 49.0)
    made.asked(49.0)
    made.answered()
    return made


def data(**changed: Any) -> PartitionData:
    told = PartitionData(
        partition_index=0,
        error_code=ErrorCode.NONE,
        high_watermark=60,
        last_stable_offset=20,
        aborted_transactions=None,
        records=None,
    )
    return replace(told, **changed)


def batch(base: int, count: int, epoch: int = 4) -> memoryview:
    columns = RecordColumns(length=count, value=pa.array([b"x"] * count, pa.binary()))
    made = bytearray(encode_record_batch(columns, now_ms=1))
    struct.pack_into(">q", made, 0, base)
    struct.pack_into(">i", made, 12, epoch)
    return memoryview(bytes(made))


def follower(position: int = 10, until: int = 100) -> PartitionState:
    made = state(position, until)
    made.prefer(2, 1_000.0)
    return made


def test_records_move_what_is_asked_for_next_not_the_position() -> None:
    one = state()
    assert take_in(one, data(records=batch(10, 5)), ANSWER, RULES)
    assert (one.position, one.ask_from, one.last_epoch, one.taken_until, one.turn) == (10, 15, 4, 15, 7)
    assert one.waited_s(99.0) == 1.0
    one.advance(15)
    assert (one.position, one.ask_from, one.waited_s(99.0)) == (15, 15, 0.0)


def test_half_a_batch_asks_for_twice_as_much_until_there_is_no_more() -> None:
    one = state()
    half = batch(10, 5)[:50]
    assert not take_in(one, data(records=half), ANSWER, RULES)
    assert (one.max_bytes, one.turn, one.error, one.retry_at) == (800, 0, None, 0.0)
    take_in(one, data(records=half), ANSWER, RULES)
    assert (one.max_bytes, one.error) == (1_000, None)
    take_in(one, data(records=half), ANSWER, RULES)
    assert "orders-0 at offset 10: no complete record batch in 1000 bytes" in str(one.error)
    assert "raise fetch.max.bytes and receive.message.max.bytes" in str(one.error)


@pytest.mark.parametrize(("base", "useful"), [(5, False), (6, True)])
def test_a_batch_that_ends_at_the_position_is_old(base: int, useful: bool) -> None:
    one = state()
    assert take_in(one, data(records=batch(base, 5)), ANSWER, RULES) is useful
    assert one.failures == (0 if useful else 1)
    assert one.leader is not None
    if not useful:
        assert 50.08 <= one.retry_at <= 50.12
        assert "only records before it" in str(one.last_failure)


def test_nothing_below_the_end_is_a_failure_unless_others_were_served_or_it_is_throttled() -> None:
    one = state()
    take_in(one, data(), ANSWER, RULES)
    assert one.failures == 1
    assert "no records, although the log goes on to 60" in str(one.last_failure)
    assert one.waited_s(52.0) == 3.0

    turn = state()
    take_in(turn, data(), replace(ANSWER, served=True), RULES)
    assert (turn.failures, turn.waited_s(99.0)) == (0, 0.0)

    throttled = state()
    take_in(throttled, data(), replace(ANSWER, throttled=True), RULES)
    assert (throttled.failures, throttled.waited_s(99.0)) == (0, 1.0)


def test_left_out_is_a_failure_unless_throttled() -> None:
    one = state()
    left_out(one, ANSWER, RULES)
    assert (one.failures, one.leader is None) == (1, False)
    assert str(one.last_failure) == "orders-0 at offset 10: the answer of broker 1 lacks it"
    throttled = state()
    left_out(throttled, replace(ANSWER, throttled=True), RULES)
    assert (throttled.failures, throttled.waited_s(99.0)) == (0, 1.0)


@pytest.mark.parametrize(
    ("position", "rules", "at_end"),
    [
        (59, RULES, False),
        (60, RULES, True),
        (20, RULES, False),  # the last stable offset is no end for who reads uncommitted records
        (19, COMMITTED, False),
        (20, COMMITTED, True),
        (25, COMMITTED, True),
    ],
)
def test_where_the_log_ends(position: int, rules: FetchRules, at_end: bool) -> None:
    one = state(position)
    take_in(one, data(), ANSWER, rules)
    assert (one.failures == 0 and one.probe_until is None) is at_end
    assert (one.at_end_since is not None or isinstance(one.last_failure, EndOfLogError)) is at_end


def test_a_last_stable_offset_that_is_not_told_is_no_end() -> None:
    one = state(59)
    take_in(one, data(last_stable_offset=-1), ANSWER, COMMITTED)
    assert (one.probe_until, one.at_end_since) == (60, None)
    two = state(60)
    take_in(two, data(last_stable_offset=-1), ANSWER, COMMITTED)
    assert (two.failures, two.at_end_since) == (0, 50.0)


def test_the_end_of_the_log_is_waited_at_for_as_long_as_the_rules_say() -> None:
    one = state(60)
    take_in(one, data(), ANSWER, RULES)
    take_in(one, data(), replace(ANSWER, now=54.99), RULES)
    assert one.error is None
    take_in(one, data(), replace(ANSWER, now=55.0), RULES)
    assert isinstance(one.error, EndOfLogError)
    assert (one.error.position, one.error.until_offset, one.error.high_watermark) == (60, 100, 60)
    moved = state(60)
    take_in(moved, data(), ANSWER, RULES)
    moved.advance(61)
    take_in(moved, data(high_watermark=61), replace(ANSWER, now=55.0), RULES)
    assert moved.error is None


def test_an_open_transaction_is_no_end_however_long() -> None:
    one = state(20, until=60)
    for now in (50.0, 90.0):
        take_in(one, data(), replace(ANSWER, now=now), COMMITTED)
    assert one.error is None
    assert isinstance(one.last_failure, EndOfLogError)
    assert one.last_failure.in_open_transaction
    assert one.waited_s(90.0) == 41.0


def test_an_endless_partition_waits_at_the_end_without_a_failure() -> None:
    one = state(60, until=ENDLESS)
    for now in (50.0, 900.0):
        take_in(one, data(), replace(ANSWER, now=now), RULES)
    assert (one.error, one.last_failure, one.waited_s(900.0)) == (None, None, 0.0)


@pytest.mark.parametrize(
    ("early", "served", "paced"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_broker_that_does_not_wait_at_the_end_is_not_asked_at_once(
    early: bool, served: bool, paced: bool
) -> None:
    one = state(60, until=ENDLESS)
    take_in(one, data(), replace(ANSWER, early=early, served=served), RULES)
    assert (one.retry_at > 50.0) is paced
    assert one.failures == 0


def test_a_diverging_epoch_ends_it() -> None:
    one = state()
    assert not take_in(
        one, data(records=batch(10, 5), diverging_epoch=EpochEndOffset(epoch=3, end_offset=0)), ANSWER, RULES
    )
    assert isinstance(one.error, LogTruncatedError)
    assert (one.error.position, one.error.end_offset) == (10, 0)


def test_a_follower_whose_log_diverges_is_left_for_the_leader() -> None:
    one = follower()
    told = data(diverging_epoch=EpochEndOffset(epoch=3, end_offset=0))
    assert not take_in(one, told, ANSWER, RULES)
    assert (one.error, one.node_id) == (None, 1)
    assert one.wants_leader(50.5)
    take_in(one, told, ANSWER, RULES)
    assert isinstance(one.error, LogTruncatedError)


def test_out_of_range_asks_without_the_epoch_before_it_is_believed() -> None:
    one = state()
    one.took(15, 4, 100, 1, 50.0)
    one.advance(15)
    assert one.last_epoch == 4
    take_in(one, data(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), ANSWER, RULES)
    assert (one.error, one.last_epoch) == (None, -1)
    take_in(one, data(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), ANSWER, RULES)
    assert isinstance(one.error, OffsetOutOfRangeError)
    assert one.error.offset == 15


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE])
def test_the_word_of_a_follower_is_not_final(code: ErrorCode) -> None:
    one = follower()
    take_in(one, data(error_code=code), ANSWER, RULES)
    assert (one.error, one.node_id, one.failures) == (None, 1, 0)
    assert one.wants_leader(50.9)
    assert not one.wants_leader(51.0)
    leader = state()
    take_in(leader, data(error_code=code), ANSWER, RULES)
    assert isinstance(leader.error, BrokerError)
    assert leader.error.error_code is code


def test_a_follower_is_avoided_for_longer_each_time_until_it_serves() -> None:
    one = follower()
    for now, until in ((50.0, 51.0), (60.0, 62.0), (70.0, 74.0)):
        one.prefer(2, 1_000.0)
        take_in(one, data(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), replace(ANSWER, now=now), RULES)
        assert (one.wants_leader(until - 0.01), one.wants_leader(until)) == (True, False)
    one.prefer(2, 1_000.0)
    take_in(one, data(records=batch(10, 5)), replace(ANSWER, now=80.0), RULES)
    one.advance(15)
    one.leave_replica(90.0, 300.0)
    assert (one.wants_leader(90.99), one.wants_leader(91.0)) == (True, False)
    for _ in range(40):
        one.leave_replica(100.0, 300.0)
    assert (one.wants_leader(399.9), one.wants_leader(400.0)) == (True, False)


def test_the_end_of_a_followers_log_is_not_the_end() -> None:
    one = follower(60)
    take_in(one, data(), ANSWER, RULES)
    assert (one.node_id, one.at_end_since, one.error) == (1, None, None)
    assert one.wants_leader(50.5)
    endless = follower(60, until=ENDLESS)
    take_in(endless, data(), ANSWER, RULES)
    assert endless.node_id == 2  # it waits there for what comes


def test_a_follower_that_keeps_records_back_is_left() -> None:
    one = follower()
    take_in(one, data(), ANSWER, RULES)
    assert (one.node_id, one.failures) == (1, 1)
    assert one.wants_leader(50.5)


def test_a_preferred_replica_is_asked_until_the_leader_is_asked_again() -> None:
    one = state()
    assert not take_in(one, data(preferred_read_replica=2), ANSWER, RULES)
    assert (one.node_id, one.failures) == (2, 0)
    one.hold(350.0)
    assert one.node_id == 2
    one.hold(350.1)
    assert one.node_id == 1


def test_a_preferred_replica_that_nobody_knows_or_that_was_left_is_a_failure() -> None:
    unknown = state()
    take_in(unknown, data(preferred_read_replica=9), ANSWER, RULES)
    assert (unknown.leader, unknown.failures, unknown.leader_is_stale) == (None, 1, True)
    left = follower()
    left.leave_replica(49.5, 300.0)
    take_in(left, data(preferred_read_replica=2), ANSWER, RULES)
    assert (left.replica, left.failures) == (None, 1)


def test_the_leader_tells_the_end_although_it_prefers_a_follower() -> None:
    one = state(60)
    take_in(one, data(preferred_read_replica=2), ANSWER, RULES)
    assert (one.node_id, one.at_end_since) == (2, 50.0)
    one.leave_replica(51.0, 300.0)
    take_in(one, data(preferred_read_replica=2), replace(ANSWER, now=55.0), RULES)
    assert isinstance(one.error, EndOfLogError)
    unknown = state(60)
    take_in(unknown, data(preferred_read_replica=2, high_watermark=-1), ANSWER, RULES)
    assert unknown.at_end_since is None


def test_what_the_node_prefers_itself_is_no_detour() -> None:
    one = follower()
    assert take_in(one, data(records=batch(10, 5), preferred_read_replica=2), ANSWER, RULES)
    assert one.node_id == 2


@pytest.mark.parametrize(
    "error",
    [
        BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "x"),
        BrokerError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, "x"),
        BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, "x"),
        BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "x"),
        NetworkError("lost"),
    ],
)
def test_failures_that_pass_lose_the_leader_and_back_off(error: KafkaError) -> None:
    one = state()
    one.took(15, 4, 100, 1, 50.0)
    for failures, least in ((1, 0.08), (2, 0.16), (3, 0.32)):
        one.led_by(Leader(1, 5, None), 50.0)
        fail(one, error, 50.0, RULES)
        assert (one.failures, one.leader, one.ask_from, one.error) == (failures, None, 10, None)
        assert least <= one.retry_at - 50.0 <= least * 1.5 + 0.001
    assert one.last_failure is error


def test_a_failure_for_good_ends_it_and_keeps_the_leader() -> None:
    one = state()
    error = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "x")
    fail(one, error, 50.0, RULES)
    assert (one.error, one.open, one.failures) == (error, False, 0)


def test_a_refusal_that_passes_loses_the_leader_and_one_for_good_names_the_acl() -> None:
    one = state()
    assert not take_in(one, data(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), ANSWER, RULES)
    assert (one.leader, one.failures) == (None, 1)
    denied = state()
    take_in(denied, data(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED), ANSWER, RULES)
    assert "fetching orders-0 at offset 10: TOPIC_AUTHORIZATION_FAILED" in str(denied.error)
    assert "Read on the topic" in str(denied.error)


def test_an_answer_that_breaks_a_partition_off_has_nothing_to_decode() -> None:
    one = state(60)
    assert take_in(one, data(), replace(ANSWER, now=50.0), replace(RULES, end_of_log_wait_s=0.0)) is False
    assert isinstance(one.error, EndOfLogError)


@pytest.mark.parametrize("known", [False, True])
def test_a_topic_that_is_gone_is_waited_for_by_whether_it_was_there(known: bool) -> None:
    limit_s = (retry_policy.KNOWN_TOPIC_WAIT_MS if known else retry_policy.NEW_TOPIC_WAIT_MS) / 1000
    one = state(topic_id=UUID(int=1) if known else None)
    gone = BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, "x")
    fail(one, gone, 50.0, RULES)
    fail(one, gone, 50.0 + limit_s, RULES)
    assert one.error is None
    fail(one, gone, 50.1 + limit_s, RULES)
    assert one.error is gone


def test_an_answer_tells_which_topic_the_offsets_are_of() -> None:
    one = state()
    one.led_by(Leader(1, 5, UUID(int=7)), 50.0)
    take_in(one, data(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), ANSWER, RULES)
    assert one.topic_id is None
    one.led_by(Leader(1, 5, UUID(int=7)), 50.0)
    take_in(one, data(records=batch(10, 5)), ANSWER, RULES)
    assert one.topic_id == UUID(int=7)
    planned = state(topic_id=UUID(int=1))
    planned.led_by(Leader(1, 5, UUID(int=7)), 50.0)
    planned.learn_topic_id()
    assert planned.topic_id == UUID(int=1)
