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
from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig
from spark_kafka_native.kafka.consumer.fetch_requests import build_fetch
from spark_kafka_native.kafka.consumer.fetch_responses import (
    FRAME_OVERHEAD,
    FetchRules,
    ResponseFacts,
    apply_failure,
    apply_leader,
    apply_missing,
    apply_newer_leader,
    apply_response,
)
from spark_kafka_native.kafka.consumer.partition_state import ENDLESS, PartitionState
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    DeadlineExceededError,
    EndOfLogError,
    KafkaError,
    LogTruncatedError,
    NetworkError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import DivergingEpoch, PartitionData
from spark_kafka_native.kafka.protocol.api.metadata import LeaderIdAndEpoch
from spark_kafka_native.kafka.records.batch import RecordSetEnd
from spark_kafka_native.kafka.records.columns import RecordColumns
from spark_kafka_native.kafka.records.encode import encode_record_batch
from spark_kafka_native.kafka.runtime.retry import Backoff

TP = TopicPartition("orders", 0)
BACKOFF = Backoff(first_ms=100, max_ms=1_000)
RULES = FetchRules(
    read_committed=False,
    max_bytes=1_000,
    end_of_log_wait_s=5.0,
    replica_s=300.0,
    late_after_ms=3_000,
    backoff=BACKOFF,
)
COMMITTED = replace(RULES, read_committed=True)
ANSWER = ResponseFacts(
    now=50.0,
    turn=7,
    served=False,
    passed_over=frozenset(),
    early=False,
    throttled=False,
    brokers=frozenset({1, 2, 3}),
)


def state(position: int = 10, until: int = 100, **changed: Any) -> PartitionState:
    """Asked of leader 1 at time 49.0."""
    made = PartitionState(TP, position, until, 400, **changed)
    made.broker.led_by(Leader(1, 5, None), 49.0)
    made.requested(49.0)
    made.answered()
    return made


def deliver(one: PartitionState, offset: int) -> None:
    """Hand out everything before ``offset``."""
    moved = offset > one.position.offset
    one.position.advance(offset)
    one.progress.deliver(moved=moved)


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
    assert apply_response(one, data(records=batch(10, 5)), ANSWER, RULES)
    assert (
        one.position.offset,
        one.position.fetch_offset,
        one.position.last_fetched_epoch,
        one.position.received_until,
        one.turn,
    ) == (10, 15, 4, 15, 7)
    assert one.progress.waited_s(99.0) == 1.0
    deliver(one, 15)
    assert (one.position.offset, one.position.fetch_offset, one.progress.waited_s(99.0)) == (15, 15, 0.0)


@pytest.mark.parametrize(("version", "epoch"), [(11, -1), (12, 4), (13, 4)])
def test_the_epoch_of_the_last_batch_goes_to_brokers_that_compare_it(version: int, epoch: int) -> None:
    one = state()
    apply_response(one, data(records=batch(10, 5)), ANSWER, RULES)
    (topic,) = build_fetch([one], ConsumerConfig(), "", 1_000, version).topics
    assert [part.last_fetched_epoch for part in topic.partitions] == [epoch]


def test_the_order_of_a_request_is_that_of_the_partitions_also_among_topics() -> None:
    """The broker fills the response from the front: one topic's partitions must not go before another's."""
    wanted = [TopicPartition("a", 1), TopicPartition("b", 0), TopicPartition("b", 1), TopicPartition("a", 0)]
    states = [PartitionState(tp, 10, 100, 400) for tp in wanted]
    for one in states:
        one.broker.led_by(Leader(1, 5, None), 49.0)
    request = build_fetch(states, ConsumerConfig(), "", 1_000, 12)
    asked = [(topic.topic, part.partition) for topic in request.topics for part in topic.partitions]
    assert asked == [tuple(tp) for tp in wanted]
    assert [topic.topic for topic in request.topics] == ["a", "b", "a"]


def test_each_id_of_a_topic_is_asked_for_by_itself() -> None:
    """The leaders of a topic that was created again may differ: each refuses the id of the other one."""
    ids = [UUID(int=1), UUID(int=2)]
    states = [PartitionState(TopicPartition("a", index), 10, 100, 400) for index in range(2)]
    for one, topic_id in zip(states, ids, strict=True):
        one.broker.led_by(Leader(1, 5, topic_id), 49.0)
    request = build_fetch(states, ConsumerConfig(), "", 1_000, 13)
    assert [(topic.topic_id, len(topic.partitions)) for topic in request.topics] == [(ids[0], 1), (ids[1], 1)]


@pytest.mark.parametrize(
    ("untils", "min_bytes"),
    [((ENDLESS, ENDLESS), 500), ((ENDLESS, 100), 1), ((100, ENDLESS), 1), ((100, 100), 1)],
)
def test_a_range_waits_for_no_more_bytes_than_one(untils: tuple[int, int], min_bytes: int) -> None:
    """Beside partitions that are read without an end, too: its last records may be fewer than that."""
    states = [
        PartitionState(TopicPartition("a", index), 10, until, 400) for index, until in enumerate(untils)
    ]
    for one in states:
        one.broker.led_by(Leader(1, 5, None), 49.0)
    assert build_fetch(states, ConsumerConfig(fetch_min_bytes=500), "", 1_000, 12).min_bytes == min_bytes


@pytest.mark.parametrize(
    ("fetch_bytes", "response_bytes", "asked"),
    [
        (1_000_000, 2_000_000, 1_000_000),
        (1_000_000, 1_000_000, 1_000_000 - FRAME_OVERHEAD),
        (1_000_000, 1_000, 1),
    ],
)
def test_a_response_with_all_that_is_asked_for_is_no_larger_than_is_taken(
    fetch_bytes: int, response_bytes: int, asked: int
) -> None:
    """It has more than the records: one over the limit would come again and again."""
    client = ClientConfig(bootstrap_servers=("a:1",), max_response_bytes=response_bytes)
    assert FetchRules.of(ConsumerConfig(fetch_max_bytes=fetch_bytes), client).max_bytes == asked


@pytest.mark.parametrize(("max_wait_ms", "asked_ms"), [(400, 400), (5_000, 500)])
def test_a_broker_answers_well_before_the_poll_timeout(max_wait_ms: int, asked_ms: int) -> None:
    """A wait for new records must not count as a broker that does not answer."""
    config = ConsumerConfig(fetch_max_wait_ms=max_wait_ms, poll_timeout_ms=1_000)
    assert build_fetch([state()], config, "", 1_000, 12).max_wait_ms == asked_ms


def test_half_a_batch_asks_for_twice_as_much_until_there_is_no_more() -> None:
    one = state()
    half = batch(10, 5)[:50]
    assert not apply_response(one, data(records=half), ANSWER, RULES)
    assert (one.max_bytes, one.turn, one.error, one.progress.retry_at) == (800, 0, None, 0.0)
    apply_response(one, data(records=half), ANSWER, RULES)
    assert (one.max_bytes, one.error) == (1_000, None)
    apply_response(one, data(records=half), ANSWER, RULES)
    assert "orders-0 at offset 10: no complete record batch in 1000 bytes" in str(one.error)
    assert "raise fetch.max.bytes and receive.message.max.bytes" in str(one.error)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", [17, 60, 400])
def test_messages_of_an_old_format_are_refused_at_once(magic: int, size: int) -> None:
    """Their bytes at the place of a batch's last offset went for one: they were asked for until the time, or
    the limit of bytes, was over."""
    one = state()
    old = struct.pack(">qi4xb", 10, size - 12, magic) + b"\xff" * (size - 17)
    apply_response(one, data(records=old), ANSWER, RULES)
    assert f"orders-0 at offset 10: a message of the old format v{magic}" in str(one.error)


@pytest.mark.parametrize(("base", "useful"), [(5, False), (6, True)])
def test_a_batch_that_ends_at_the_position_is_old(base: int, useful: bool) -> None:
    one = state()
    assert apply_response(one, data(records=batch(base, 5)), ANSWER, RULES) is useful
    assert one.progress.failures == (0 if useful else 1)
    assert one.broker.leader is not None
    if not useful:
        assert 50.08 <= one.progress.retry_at <= 50.12
        assert "only records before it" in str(one.progress.last_failure)


@pytest.mark.parametrize("served", [False, True], ids=["alone", "before one with records"])
def test_nothing_below_the_end_is_a_failure_unless_others_filled_the_response_or_it_is_throttled(
    served: bool,
) -> None:
    one = state()
    apply_response(one, data(), replace(ANSWER, served=served), RULES)
    assert one.progress.failures == 1
    assert "no records, although the log goes on to 60" in str(one.progress.last_failure)
    assert one.progress.waited_s(52.0) == 3.0

    turn = state()
    apply_response(turn, data(), replace(ANSWER, served=True, passed_over={TP}), RULES)
    assert (turn.progress.failures, turn.progress.waited_s(99.0)) == (0, 0.0)

    throttled = state()
    apply_response(throttled, data(), replace(ANSWER, throttled=True), RULES)
    assert (throttled.progress.failures, throttled.progress.waited_s(99.0)) == (0, 1.0)


def test_left_out_is_a_failure_unless_throttled() -> None:
    one = state()
    apply_missing(one, ANSWER, RULES)
    assert (one.progress.failures, one.broker.leader is None) == (1, False)
    assert str(one.progress.last_failure) == "orders-0 at offset 10: the response of broker 1 lacks it"
    throttled = state()
    apply_missing(throttled, replace(ANSWER, throttled=True), RULES)
    assert (throttled.progress.failures, throttled.progress.waited_s(99.0)) == (0, 1.0)


@pytest.mark.parametrize(
    ("position", "rules", "at_end"),
    [
        (59, RULES, False),
        (60, RULES, True),
        (20, RULES, False),  # the last stable offset is no end for a reader of uncommitted records
        (19, COMMITTED, False),
        (20, COMMITTED, True),
        (25, COMMITTED, True),
    ],
)
def test_where_the_log_ends(position: int, rules: FetchRules, at_end: bool) -> None:
    one = state(position)
    apply_response(one, data(), ANSWER, rules)
    assert (one.progress.failures == 0 and one.position.probe_until is None) is at_end
    assert (
        one.progress.at_end_since is not None or isinstance(one.progress.last_failure, EndOfLogError)
    ) is at_end


def test_a_last_stable_offset_that_is_not_told_is_no_end() -> None:
    one = state(59)
    apply_response(one, data(last_stable_offset=-1), ANSWER, COMMITTED)
    assert (one.position.probe_until, one.progress.at_end_since) == (60, None)
    two = state(60)
    apply_response(two, data(last_stable_offset=-1), ANSWER, COMMITTED)
    assert (two.progress.failures, two.progress.at_end_since) == (0, 50.0)


def test_the_end_of_the_log_is_waited_at_for_as_long_as_the_rules_say() -> None:
    one = state(60)
    apply_response(one, data(), ANSWER, RULES)
    apply_response(one, data(), replace(ANSWER, now=54.99), RULES)
    assert one.error is None
    apply_response(one, data(), replace(ANSWER, now=55.0), RULES)
    assert isinstance(one.error, EndOfLogError)
    assert (one.error.position, one.error.until_offset, one.error.high_watermark) == (60, 100, 60)
    moved = state(60)
    apply_response(moved, data(), ANSWER, RULES)
    deliver(moved, 61)
    apply_response(moved, data(high_watermark=61), replace(ANSWER, now=55.0), RULES)
    assert moved.error is None


def test_an_open_transaction_is_no_end_however_long() -> None:
    one = state(20, until=60)
    for now in (50.0, 90.0):
        apply_response(one, data(), replace(ANSWER, now=now), COMMITTED)
    assert one.error is None
    assert isinstance(one.progress.last_failure, EndOfLogError)
    assert one.progress.last_failure.in_open_transaction
    assert one.progress.waited_s(90.0) == 41.0


@pytest.mark.parametrize("wait_s", [5.0, 0.0])
def test_an_open_transaction_that_begins_the_log_is_waited_for(wait_s: float) -> None:
    """Offset 0 is one that the broker reports, unlike -1."""
    one = state(0, until=60)
    rules = replace(COMMITTED, end_of_log_wait_s=wait_s)
    assert not apply_response(one, data(last_stable_offset=0), ANSWER, rules)
    assert (one.error, one.position.probe_until, one.progress.failures) == (None, None, 0)
    assert isinstance(one.progress.last_failure, EndOfLogError)
    assert one.progress.last_failure.in_open_transaction


@pytest.mark.parametrize("wait_s", [5.0, 0.0])  # end.of.log.wait.ms is about ranges alone
def test_an_endless_partition_waits_at_the_end_without_a_failure(wait_s: float) -> None:
    one = state(60, until=ENDLESS)
    for now in (50.0, 900.0):
        apply_response(one, data(), replace(ANSWER, now=now), replace(RULES, end_of_log_wait_s=wait_s))
    assert (one.error, one.progress.last_failure, one.progress.waited_s(900.0)) == (None, None, 0.0)


@pytest.mark.parametrize(
    ("early", "served", "paced"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_broker_that_does_not_wait_at_the_end_is_not_asked_at_once(
    early: bool, served: bool, paced: bool
) -> None:
    one = state(60, until=ENDLESS)
    apply_response(one, data(), replace(ANSWER, early=early, served=served), RULES)
    assert (one.progress.retry_at > 50.0) is paced
    assert one.progress.failures == 0


def test_a_diverging_epoch_ends_it() -> None:
    one = state()
    assert not apply_response(
        one, data(records=batch(10, 5), diverging_epoch=DivergingEpoch(epoch=3, end_offset=0)), ANSWER, RULES
    )
    assert isinstance(one.error, LogTruncatedError)
    assert (one.error.position, one.error.end_offset) == (10, 0)


@pytest.mark.parametrize("end_offset", [10, 50])
def test_a_log_that_lacks_the_last_record_was_cut_before_it_however_far_it_reaches(end_offset: int) -> None:
    """With records of an earlier epoch: a group commits up to where it was cut."""
    one = state()
    diverging = DivergingEpoch(epoch=3, end_offset=end_offset)
    assert not apply_response(one, data(diverging_epoch=diverging), ANSWER, RULES)
    assert isinstance(one.error, LogTruncatedError)
    assert (one.error.position, one.error.end_offset) == (10, 9)


def test_a_follower_whose_log_diverges_is_left_for_the_leader() -> None:
    one = follower()
    told = data(diverging_epoch=DivergingEpoch(epoch=3, end_offset=0))
    assert not apply_response(one, told, ANSWER, RULES)
    assert (one.error, one.broker.node_id) == (None, 1)
    assert one.broker.leader_only(50.5)
    apply_response(one, told, ANSWER, RULES)
    assert isinstance(one.error, LogTruncatedError)


def test_out_of_range_asks_without_the_epoch_before_it_is_believed() -> None:
    one = state()
    one.receive(RecordSetEnd(15, 4), 100, 1, 50.0)
    deliver(one, 15)
    assert one.position.last_fetched_epoch == 4
    apply_response(one, data(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), ANSWER, RULES)
    assert (one.error, one.position.last_fetched_epoch) == (None, -1)
    apply_response(one, data(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), ANSWER, RULES)
    assert isinstance(one.error, OffsetOutOfRangeError)
    assert one.error.offset == 15
    one.try_again()  # another broker may know it, and that its log was cut
    assert one.position.last_fetched_epoch == one.position.offset_epoch == 4


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE])
def test_the_word_of_a_follower_is_not_final(code: ErrorCode) -> None:
    """Nor does it keep the leader from comparing its log with the records that were read."""
    one = follower()
    one.receive(RecordSetEnd(15, 4), 100, 1, 49.5)
    deliver(one, 15)
    apply_response(one, data(error_code=code), ANSWER, RULES)
    assert one.position.last_fetched_epoch == 4
    assert (one.error, one.broker.node_id, one.progress.failures) == (None, 1, 0)
    assert one.broker.leader_only(50.9)
    assert not one.broker.leader_only(51.0)
    leader = state()
    apply_response(leader, data(error_code=code), ANSWER, RULES)
    assert isinstance(leader.error, BrokerError)
    assert leader.error.error_code is code


def test_a_follower_is_avoided_for_longer_each_time_until_it_serves() -> None:
    one = follower()
    for now, until in ((50.0, 51.0), (60.0, 62.0), (70.0, 74.0)):
        one.prefer(2, 1_000.0)
        apply_response(one, data(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), replace(ANSWER, now=now), RULES)
        assert (one.broker.leader_only(until - 0.01), one.broker.leader_only(until)) == (True, False)
    one.prefer(2, 1_000.0)
    apply_response(one, data(records=batch(10, 5)), replace(ANSWER, now=80.0), RULES)
    deliver(one, 15)
    one.leave_replica(90.0, 300.0)
    assert (one.broker.leader_only(90.99), one.broker.leader_only(91.0)) == (True, False)
    for _ in range(1_100):  # in days of a stream: a double takes no power of two beyond 1 023
        one.leave_replica(100.0, 300.0)
    assert (one.broker.leader_only(399.9), one.broker.leader_only(400.0)) == (True, False)


def test_the_end_of_a_followers_log_is_not_the_end() -> None:
    one = follower(60)
    apply_response(one, data(), ANSWER, RULES)
    assert (one.broker.node_id, one.progress.at_end_since, one.error) == (1, None, None)
    assert one.broker.leader_only(50.5)
    endless = follower(60, until=ENDLESS)
    apply_response(endless, data(), ANSWER, RULES)
    assert endless.broker.node_id == 2  # it waits there for new records


def test_a_follower_that_keeps_records_back_is_left() -> None:
    one = follower()
    apply_response(one, data(), ANSWER, RULES)
    assert (one.broker.node_id, one.progress.failures) == (1, 1)
    assert one.broker.leader_only(50.5)


def test_a_follower_that_keeps_committed_records_back_is_left_before_the_leader_is_probed() -> None:
    """It may lag behind: only the leader can prove that a gap has no records."""
    one = follower()
    apply_response(one, data(), ANSWER, COMMITTED)
    assert (one.broker.node_id, one.position.probe_until, one.progress.failures) == (1, None, 1)


def test_a_preferred_replica_is_asked_until_the_leader_is_asked_again() -> None:
    one = state()
    assert not apply_response(one, data(preferred_read_replica=2), ANSWER, RULES)
    assert (one.broker.node_id, one.progress.failures) == (2, 0)
    one.hold(350.0)
    assert one.broker.node_id == 2
    one.hold(350.1)
    assert one.broker.node_id == 1


def test_a_preferred_replica_without_anything_new_is_left_when_its_time_is_over() -> None:
    """Its replication may stand still, and it answered for ever without records."""
    one = follower(60, ENDLESS)
    for now, node_id in ((1_000.0, 2), (1_000.1, 1)):
        assert not apply_response(one, data(), replace(ANSWER, now=now), RULES)
        assert (one.error, one.broker.node_id) == (None, node_id)


def test_a_preferred_replica_that_nobody_knows_or_that_was_left_is_a_failure() -> None:
    unknown = state()
    apply_response(unknown, data(preferred_read_replica=9), ANSWER, RULES)
    assert (unknown.broker.leader, unknown.progress.failures, unknown.broker.leader_is_stale) == (
        None,
        1,
        True,
    )
    assert unknown.broker.leader_only(50.9)
    left = follower()
    left.leave_replica(49.5, 300.0)
    apply_response(left, data(preferred_read_replica=2), ANSWER, RULES)
    assert (left.broker.replica, left.progress.failures) == (None, 1)


def test_the_leader_tells_the_end_although_it_prefers_a_follower() -> None:
    one = state(60)
    apply_response(one, data(preferred_read_replica=2), ANSWER, RULES)
    assert (one.broker.node_id, one.progress.at_end_since) == (2, 50.0)
    one.leave_replica(51.0, 300.0)
    apply_response(one, data(preferred_read_replica=2), replace(ANSWER, now=55.0), RULES)
    assert isinstance(one.error, EndOfLogError)
    unknown = state(60)
    apply_response(unknown, data(preferred_read_replica=2, high_watermark=-1), ANSWER, RULES)
    assert unknown.progress.at_end_since is None
    empty = state(0)
    apply_response(empty, data(preferred_read_replica=2, high_watermark=0), ANSWER, RULES)
    assert empty.progress.at_end_since == 50.0


def test_a_partition_below_the_end_goes_to_a_preferred_follower_without_any_wait() -> None:
    one = state(59)
    apply_response(one, data(preferred_read_replica=2), ANSWER, replace(RULES, end_of_log_wait_s=0.0))
    assert (one.error, one.broker.node_id, one.progress.at_end_since) == (None, 2, None)


def test_what_the_node_prefers_itself_is_no_detour() -> None:
    one = follower()
    assert apply_response(one, data(records=batch(10, 5), preferred_read_replica=2), ANSWER, RULES)
    assert one.broker.node_id == 2


passing_failures = pytest.mark.parametrize(
    "error",
    [
        BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "x"),
        BrokerError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, "x"),
        BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, "x"),
        BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "x"),
        NetworkError("lost"),
    ],
)


@passing_failures
def test_a_follower_that_fails_is_left_for_the_leader(error: KafkaError) -> None:
    """The leader, which is well, named it again and again."""
    one = follower()
    apply_failure(one, error, 50.0, RULES)
    assert (one.broker.leader, one.broker.replica, one.broker.leader_only(50.9)) == (None, None, True)


@pytest.mark.parametrize(
    ("found", "is_followed"),
    [
        (Leader(3, 6, UUID(int=1)), True),
        (Leader(1, 6, UUID(int=1)), True),
        (Leader(3, 5, UUID(int=1)), False),
        (Leader(3, 4, UUID(int=1)), False),
        (Leader(3, 6, UUID(int=2)), False),
        (Leader(3, 6, None), False),
        (BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "x"), False),
    ],
)
def test_a_leader_of_a_newer_epoch_is_followed_though_the_former_one_answers(
    found: Leader | KafkaError, is_followed: bool
) -> None:
    """One that is cut off from the controller answers for ever without records."""
    one, former = follower(), Leader(1, 5, UUID(int=1))
    one.broker.led_by(former, 49.0)
    one.progress.at_end_since = 40.0
    one.receive(RecordSetEnd(15, 5), 100, 1, 50.0)
    apply_newer_leader(one, found, 50.0)
    assert one.broker.leader == (found if is_followed else former)
    assert (one.broker.replica is None, one.progress.at_end_since is None) == (is_followed, is_followed)
    assert one.position.fetch_offset == 15  # the epochs of the records received go along
    lost = state()
    lost.broker.lose_leader()
    apply_newer_leader(lost, found, 50.0)
    assert lost.broker.leader is None


def test_a_newer_leader_is_asked_with_the_epoch_that_the_former_one_did_not_know() -> None:
    """It may know that the log was cut."""
    one = state(60)
    one.receive(RecordSetEnd(15, 4), 100, 1, 50.0)
    deliver(one, 15)
    apply_response(one, data(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), ANSWER, RULES)
    apply_response(one, data(high_watermark=15), ANSWER, RULES)
    assert one.position.last_fetched_epoch == -1
    one.broker.led_by(Leader(1, 5, None), 50.0)
    apply_newer_leader(one, Leader(2, 6, None), 50.0)
    assert (one.broker.node_id, one.position.last_fetched_epoch) == (2, 4)


def test_a_newer_leader_is_asked_with_the_epoch_of_records_that_are_not_handed_out_yet() -> None:
    """That of the last one that was handed out would make a whole log look cut."""
    one = state(60)
    one.receive(RecordSetEnd(15, 3), 100, 1, 50.0)
    deliver(one, 15)
    one.receive(RecordSetEnd(20, 5), 100, 1, 50.0)
    one.broker.led_by(Leader(1, 5, None), 50.0)
    apply_newer_leader(one, Leader(2, 6, None), 50.0)
    assert (one.position.fetch_offset, one.position.last_fetched_epoch) == (20, 5)


@pytest.mark.parametrize(
    ("epoch", "topic_id", "known", "is_believed"),
    [
        (5, UUID(int=1), 5, True),
        (6, UUID(int=1), 5, True),
        (4, UUID(int=1), 5, False),
        (0, UUID(int=1), 5, False),
        (-1, UUID(int=1), 5, True),  # of a broker without epochs
        (4, None, 5, True),
        (4, UUID(int=1), -1, True),
    ],
)
@pytest.mark.parametrize("by", ["records", "a leader"])
def test_a_leader_before_that_of_the_records_that_were_read_is_looked_up_again(
    epoch: int, topic_id: UUID | None, known: int, is_believed: bool, by: str
) -> None:
    """A broker that lags behind names it, and it has less than was read: that was read again."""
    one = PartitionState(TP, 10, ENDLESS, 400, leader_epoch=known if by == "records" else -1)
    if by == "a leader":
        one.broker.led_by(Leader(2, known, topic_id), 49.0)
        one.broker.lose_leader()
    found = Leader(1, epoch, topic_id)
    apply_leader(one, found, 50.0, RULES)
    assert (one.broker.leader == found, one.error, one.progress.failures) == (
        is_believed, None, int(not is_believed),
    )  # fmt: skip
    if not is_believed:
        for now in (60.0, 80.0):
            apply_leader(one, found, now, RULES)
            assert one.broker.leader is None
        apply_leader(one, found, 80.1, RULES)  # no other one is named: the epoch may be wrong
        assert one.broker.leader == found


@pytest.mark.parametrize("is_same", [True, False])
def test_epochs_of_a_topic_that_was_recreated_before_its_first_answer_begin_anew(is_same: bool) -> None:
    one = PartitionState(TP, 10, ENDLESS, 400)
    apply_leader(one, Leader(2, 5, UUID(int=1)), 49.0, RULES)
    apply_failure(one, BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, "x"), 49.5, RULES)
    found = Leader(1, 0, UUID(int=1 if is_same else 2))
    apply_leader(one, found, 50.0, RULES)
    assert (one.broker.leader == found) is not is_same
    if not is_same:
        one.broker.lose_leader()
        apply_leader(one, Leader(3, 1, found.topic_id), 51.0, RULES)
        one.broker.lose_leader()
        apply_leader(one, found, 52.0, RULES)
        assert one.broker.leader is None, "it has led the new topic in an older epoch"


def test_a_leader_of_a_newer_epoch_may_lag_behind_as_long_as_the_one_before() -> None:
    one = state(60)
    apply_response(one, data(), ANSWER, RULES)
    assert one.progress.at_end_since == 50.0
    one.broker.lose_leader()
    apply_leader(one, Leader(1, 5, None), 53.0, RULES)
    assert one.progress.at_end_since == 50.0
    one.broker.lose_leader()
    apply_leader(one, Leader(2, 6, None), 54.0, RULES)
    assert one.progress.at_end_since is None


@passing_failures
def test_failures_that_pass_lose_the_leader_and_back_off(error: KafkaError) -> None:
    one = state()
    one.receive(RecordSetEnd(15, 4), 100, 1, 50.0)
    for failures, least in ((1, 0.08), (2, 0.16), (3, 0.32)):
        one.broker.led_by(Leader(1, 5, None), 50.0)
        apply_failure(one, error, 50.0, RULES)
        assert (one.progress.failures, one.broker.leader, one.position.fetch_offset, one.error) == (
            failures,
            None,
            10,
            None,
        )
        assert least <= one.progress.retry_at - 50.0 <= least * 1.5 + 0.001
    assert one.progress.last_failure is error


def test_a_failure_for_good_ends_it_and_keeps_the_leader() -> None:
    one = state()
    error = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "x")
    apply_failure(one, error, 50.0, RULES)
    assert (one.error, one.open, one.progress.failures) == (error, False, 0)


def test_a_refusal_that_passes_loses_the_leader_and_one_for_good_names_the_acl() -> None:
    one = state()
    assert not apply_response(one, data(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), ANSWER, RULES)
    assert (one.broker.leader, one.progress.failures) == (None, 1)
    denied = state()
    apply_response(denied, data(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED), ANSWER, RULES)
    assert "fetching orders-0 at offset 10: TOPIC_AUTHORIZATION_FAILED" in str(denied.error)
    assert "Read on the topic" in str(denied.error)


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH])
def test_a_newer_leader_that_a_refusal_names_is_asked_next(code: ErrorCode) -> None:
    one = state()
    topic_id = UUID(int=7)
    one.broker.led_by(Leader(1, 5, topic_id), 50.0)
    named = LeaderIdAndEpoch(leader_id=3, leader_epoch=6)
    assert not apply_response(one, data(error_code=code, current_leader=named), ANSWER, RULES)
    assert one.broker.leader == Leader(3, 6, topic_id)
    assert not one.broker.leader_is_stale
    assert one.progress.failures == 1
    assert one.progress.retry_at > ANSWER.now


@pytest.mark.parametrize(
    ("code", "named"),
    [
        pytest.param(ErrorCode.NOT_LEADER_OR_FOLLOWER, (3, 5), id="no newer epoch"),
        pytest.param(ErrorCode.NOT_LEADER_OR_FOLLOWER, (9, 6), id="a broker that the metadata lack"),
        pytest.param(ErrorCode.NOT_LEADER_OR_FOLLOWER, (-1, 6), id="no leader"),
        pytest.param(ErrorCode.UNKNOWN_LEADER_EPOCH, (3, 6), id="a broker that lags behind"),
    ],
)
def test_any_other_leader_that_a_refusal_names_is_looked_up(code: ErrorCode, named: tuple[int, int]) -> None:
    one = state()
    leader = LeaderIdAndEpoch(leader_id=named[0], leader_epoch=named[1])
    assert not apply_response(one, data(error_code=code, current_leader=leader), ANSWER, RULES)
    assert (one.broker.leader, one.broker.leader_is_stale) == (None, True)


def test_a_leader_is_not_taken_from_a_response_to_a_partition_that_lost_its_own() -> None:
    """Nothing shows that the one that is named is newer."""
    one = state()
    one.broker.lose_leader()
    named = LeaderIdAndEpoch(leader_id=3, leader_epoch=6)
    refused = data(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=named)
    assert not apply_response(one, refused, ANSWER, RULES)
    assert (one.error, one.broker.leader, one.progress.failures) == (None, None, 1)


@pytest.mark.parametrize(
    "found",
    [Leader(2, 4, None), BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "x"), NetworkError("lost")],
    ids=["leader", "final error", "failure"],
)
@pytest.mark.parametrize("waits", ["has a leader", "paused", "broken off"])
def test_a_look_up_changes_nothing_of_a_partition_that_no_longer_waits_for_it(
    found: Leader | KafkaError, waits: str
) -> None:
    one = state()
    before = OffsetOutOfRangeError(TP, 10) if waits == "broken off" else None
    if waits != "has a leader":
        one.broker.lose_leader()
    if waits == "paused":
        one.pause(49.5)
    elif before is not None:
        one.break_off(before)
    leader = one.broker.leader
    apply_leader(one, found, 50.0, RULES)
    assert (one.broker.leader, one.error, one.progress.failures) == (leader, before, 0)


def test_a_look_up_that_took_too_long_ends_a_range_and_not_a_read_without_an_end() -> None:
    error = DeadlineExceededError("asking for metadata did not succeed in time")
    bounded, endless = state(), state(until=ENDLESS)
    for one in (bounded, endless):
        one.broker.lose_leader()
        apply_leader(one, error, 50.0, RULES)
    assert (bounded.error, endless.error, endless.progress.failures) == (error, None, 1)


@pytest.mark.parametrize(("next_batch", "end"), [(15, 15), (20, 20), (25, 20)])
def test_a_probe_passes_no_offset_that_may_have_a_record(next_batch: int, end: int) -> None:
    """Neither one of the next batch, nor one from the last stable offset on."""
    one = state()
    assert not apply_response(one, data(), ANSWER, COMMITTED)
    assert one.position.probe_until == 20
    assert apply_response(one, data(records=batch(next_batch, 5)), ANSWER, COMMITTED)
    assert (one.position.received_until, one.position.fetch_offset) == (end, end)
    assert (one.position.probe_until, one.position.last_fetched_epoch) == (None, -1)


@pytest.mark.parametrize("sent", [None, b""], ids=["null", "empty"])
def test_a_probe_without_records_proves_nothing(sent: bytes | None) -> None:
    one = state()
    apply_response(one, data(), ANSWER, COMMITTED)
    assert not apply_response(one, data(records=sent), ANSWER, COMMITTED)
    assert (one.error, one.position.fetch_offset, one.progress.failures) == (None, 10, 1)
    assert "no records, although the log goes on to 20" in str(one.progress.last_failure)


def test_a_leader_that_is_named_does_not_mend_an_error_for_good() -> None:
    one = state()
    leader = LeaderIdAndEpoch(leader_id=3, leader_epoch=6)
    refused = data(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, current_leader=leader)
    apply_response(one, refused, ANSWER, RULES)
    assert one.error is not None
    assert one.broker.leader == Leader(1, 5, None)


def test_an_answer_that_breaks_a_partition_off_has_nothing_to_decode() -> None:
    one = state(60)
    assert (
        apply_response(one, data(), replace(ANSWER, now=50.0), replace(RULES, end_of_log_wait_s=0.0)) is False
    )
    assert isinstance(one.error, EndOfLogError)


@pytest.mark.parametrize("known", [None, "by its id", "by a leader"])
def test_a_topic_that_is_gone_is_waited_for_by_whether_it_was_there(known: str | None) -> None:
    limit_s = (retry_policy.KNOWN_TOPIC_WAIT_MS if known else retry_policy.NEW_TOPIC_WAIT_MS) / 1000
    one = PartitionState(TP, 10, 100, 400, topic_id=UUID(int=1) if known == "by its id" else None)
    if known == "by a leader":
        one.broker.led_by(Leader(1, 5, None), 49.0)
    gone = BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, "x")
    for now in (50.0, 51.0, 50.0 + limit_s):
        apply_failure(one, gone, now, RULES)
        assert one.error is None
    apply_failure(one, gone, 50.1 + limit_s, RULES)
    assert one.error is gone


OUTAGES = (NetworkError("refused"), BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "x"))
LAGGING = (
    BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "x"),
    BrokerError(ErrorCode.UNKNOWN_LEADER_EPOCH, "x"),
)


def test_time_without_answers_is_no_part_of_the_wait_for_a_topic() -> None:
    """As it is paused, or the broker is over its quota."""
    limit_s = retry_policy.KNOWN_TOPIC_WAIT_MS / 1000
    one = state(topic_id=UUID(int=1))
    gone = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "x")
    apply_failure(one, gone, 50.0, RULES)
    one.pause(51.0)
    one.resume()
    began = 51.0 + limit_s
    for now in (began, began + 1, began + limit_s):
        apply_failure(one, gone, now, RULES)
        assert one.error is None
    apply_failure(one, gone, began + limit_s + 0.1, RULES)
    assert one.error is gone


def test_a_long_backoff_does_not_hide_that_a_topic_is_gone() -> None:
    rules = replace(RULES, backoff=Backoff(first_ms=60_000, max_ms=60_000))
    one = state(topic_id=UUID(int=1))
    gone = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "x")
    apply_failure(one, gone, 50.0, rules)
    apply_failure(one, gone, one.progress.retry_at + 1, rules)
    assert one.error is gone


def test_short_pauses_do_not_hide_that_a_topic_is_gone() -> None:
    one = state(topic_id=UUID(int=1))
    gone = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "x")
    for now in range(50, 82):
        apply_failure(one, gone, now, RULES)
        one.pause(now)
        one.resume()
    assert one.error is gone


@pytest.mark.parametrize("outage", OUTAGES, ids=["no answer", "no leader"])
def test_the_wait_for_a_topic_begins_after_an_outage(outage: KafkaError) -> None:
    """The brokers that come back are those that may not know it yet."""
    limit_s = retry_policy.KNOWN_TOPIC_WAIT_MS / 1000
    one = state(topic_id=UUID(int=1))
    by_name, by_id = (BrokerError(ErrorCode[f"UNKNOWN_TOPIC_{by}"], "x") for by in ("OR_PARTITION", "ID"))
    began = 50.0
    for _ in range(2):
        apply_failure(one, by_id, began, RULES)
        apply_failure(one, outage, began + 1, RULES)
        apply_failure(one, outage, began + limit_s, RULES)
        began += limit_s + 1
        apply_failure(one, by_name, began, RULES)
        assert one.error is None
    apply_failure(one, by_name, began + 2, RULES)
    apply_failure(one, by_id, began + limit_s, RULES)
    assert one.error is None
    apply_failure(one, by_name, began + limit_s + 0.1, RULES)
    assert one.error is by_name


@pytest.mark.parametrize("outage", [*OUTAGES, *LAGGING], ids=str)
def test_another_topic_id_counts_by_the_answers_after_an_outage(outage: KafkaError) -> None:
    one = state(topic_id=UUID(int=1))
    former = Leader(1, 5, UUID(int=2))
    for now in range(50, 60):
        apply_failure(one, outage, now, RULES)
    apply_leader(one, former, 60.0, RULES)
    apply_leader(one, Leader(1, 5, UUID(int=1)), 60.1, RULES)
    apply_failure(one, outage, 60.2, RULES)
    for now in (60.0, 61.0, 62.0):
        apply_leader(one, former, now, RULES)
        assert one.error is None
    apply_leader(one, former, 63.0, RULES)
    assert isinstance(one.error, TopicRecreatedError)


@pytest.mark.parametrize("outage", [*OUTAGES, *LAGGING], ids=str)
def test_a_former_leader_is_refused_for_long_after_an_outage(outage: KafkaError) -> None:
    one = PartitionState(TP, 10, ENDLESS, 400, UUID(int=1), leader_epoch=5)
    former = Leader(1, 4, UUID(int=1))
    apply_failure(one, outage, 50.0, RULES)
    apply_failure(one, outage, 70.0, RULES)
    for now in (90.0, 100.0, 120.0):
        apply_leader(one, former, now, RULES)
        assert one.broker.leader is None
    apply_leader(one, former, 120.1, RULES)
    assert one.broker.leader == former


def test_a_topic_that_is_recreated_as_the_wait_for_it_ends_is_a_recreated_one() -> None:
    one = state(topic_id=UUID(int=1))
    for now in range(50, 80):
        apply_failure(one, BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "x"), now, RULES)
    for now in range(80, 84):
        assert one.error is None
        apply_leader(one, Leader(1, 0, UUID(int=2)), now, RULES)
    assert isinstance(one.error, TopicRecreatedError)


def test_another_topic_id_of_a_broker_that_lags_does_not_count_beside_that_of_the_topic() -> None:
    """An answer without a leader is one of a broker that knows the topic."""
    one = state(topic_id=UUID(int=1))
    apply_failure(one, BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "x"), 50, RULES)
    for now in range(50, 60):
        apply_leader(one, Leader(1, 0, UUID(int=2)), now, RULES)
        apply_leader(one, BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "x"), now, RULES)
    assert one.error is None


def test_another_topic_id_counts_on_after_answers_of_brokers_that_do_not_know_the_topic() -> None:
    one = state(topic_id=UUID(int=1))
    for now in range(50, 54):
        assert one.error is None
        apply_failure(one, BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "x"), now, RULES)
        apply_leader(one, Leader(1, 0, UUID(int=2)), now, RULES)
    assert isinstance(one.error, TopicRecreatedError)


def test_another_topic_id_is_no_wait_for_the_topic_however_late_the_answers_are() -> None:
    one = state(topic_id=UUID(int=1))
    apply_failure(one, BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "x"), 50, RULES)
    for step in range(4):
        assert one.error is None
        now = 50 + 0.9 * step * retry_policy.KNOWN_TOPIC_WAIT_MS / 1000
        apply_leader(one, Leader(1, 0, UUID(int=2)), now, RULES)
    assert isinstance(one.error, TopicRecreatedError)


def test_another_topic_id_is_counted_anew_after_an_error_was_raised() -> None:
    one = state(topic_id=UUID(int=1))
    apply_failure(one, BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "x"), 50, RULES)
    for _ in range(2):
        for now in range(50, 53):
            apply_leader(one, Leader(1, 0, UUID(int=2)), now, RULES)
        assert one.error is None
        one.try_again()


def test_an_answer_tells_which_topic_the_offsets_are_of() -> None:
    one = state()
    one.broker.led_by(Leader(1, 5, UUID(int=7)), 50.0)
    apply_response(one, data(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), ANSWER, RULES)
    assert one.topic_id is None
    one.broker.led_by(Leader(1, 5, UUID(int=7)), 50.0)
    apply_response(one, data(records=batch(10, 5)), ANSWER, RULES)
    assert one.topic_id == UUID(int=7)
    planned = state(topic_id=UUID(int=1))
    planned.broker.led_by(Leader(1, 5, UUID(int=7)), 50.0)
    planned.learn_topic_id()
    assert planned.topic_id == UUID(int=1)
