"""The state of a partition in a fetch, step by step, in literals."""

from __future__ import annotations

from uuid import UUID

import pytest

from spark_kafka_native.kafka.cluster.router import Leader
from spark_kafka_native.kafka.consumer.partition_state import ENDLESS, MIN_FETCH_BYTES, PartitionState
from spark_kafka_native.kafka.errors import (
    IncompleteResponseError,
    KafkaError,
    LogTruncatedError,
    NetworkError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.records.batch import RecordSetEnd

LOST = NetworkError("lost")
TP = TopicPartition("orders", 0)


def state(position: int = 10, until: int = 100) -> PartitionState:
    made = PartitionState(TP, position, until, 1 << 20, topic_id=UUID(int=1))
    made.broker.led_by(Leader(1, 5, UUID(int=1)), 0.0)
    return made


def deliver(one: PartitionState, offset: int) -> None:
    """Hand out everything before ``offset``."""
    moved = offset > one.position.offset
    one.position.advance(offset)
    one.progress.deliver(moved=moved)


def test_it_is_open_until_everything_is_asked_for_and_finished_once_all_is_given() -> None:
    one = state(98)
    assert (one.open, one.position.finished) == (True, False)
    one.receive(RecordSetEnd(100, 4), 10, 1, 0.0)
    assert (one.open, one.position.finished) == (False, False)
    deliver(one, 99)
    assert not one.position.finished
    deliver(one, 100)
    assert one.position.finished
    assert (state(100).open, state(100).position.finished, state(101).position.finished) == (
        False,
        True,
        True,
    )
    assert state(5, ENDLESS).position.endless
    assert not state(5, ENDLESS - 1).position.endless


def test_time_counts_while_it_is_asked_for_or_failing_only() -> None:
    one = state()
    assert one.progress.waited_s(500.0) == 0.0
    one.requested(10.0)
    assert one.progress.waited_s(13.0) == 3.0
    one.requested(12.0)  # the first counts
    assert one.progress.waited_s(13.0) == 3.0
    one.hold(14.0)
    assert one.progress.waited_s(100.0) == 4.0
    one.requested(100.0)
    assert one.progress.waited_s(101.0) == 5.0
    one.receive(RecordSetEnd(15, 4), 10, 1, 102.0)
    assert one.progress.waited_s(200.0) == 6.0
    deliver(one, 10)  # no step forward
    assert one.progress.waited_s(200.0) == 6.0
    deliver(one, 11)
    assert one.progress.waited_s(200.0) == 0.0
    one.lose_leader(LOST, 200.0, 1.0)
    assert one.progress.waited_s(203.0) == 3.0
    one.stall(LOST, 204.0, 1.0)
    assert one.progress.waited_s(205.0) == 5.0
    one.progress.pass_over()
    assert (one.progress.waited_s(300.0), one.progress.failures) == (0.0, 0)


def test_a_failure_asks_again_from_what_the_caller_has_with_the_epoch_before_it() -> None:
    one = state()
    one.receive(RecordSetEnd(15, 4), 10, 1, 0.0)
    deliver(one, 15)
    one.receive(RecordSetEnd(20, 6), 10, 2, 0.0)
    assert (one.position.fetch_offset, one.position.last_fetched_epoch) == (20, 6)
    one.lose_leader(LOST, 7.0, 2.0)
    assert (one.position.fetch_offset, one.position.last_fetched_epoch, one.position.offset) == (15, 4, 15)
    assert (
        one.broker.leader,
        one.broker.leader_is_stale,
        one.progress.retry_at,
        one.progress.seconds_like(LOST, 8.5),
    ) == (None, True, 9.0, 1.5)
    one.lose_leader(LOST, 8.0, 4.0)
    assert (one.progress.failures, one.progress.seconds_like(LOST, 8.5), one.progress.retry_at) == (
        2,
        1.5,
        12.0,
    )
    one.broker.led_by(Leader(2, 6, UUID(int=1)), 9.0)
    assert (one.broker.node_id, one.broker.leader_is_stale, one.progress.last_failure) == (2, False, LOST)


@pytest.mark.parametrize("answer", ["records", "those of others"])
def test_failures_before_and_after_an_answer_are_not_in_a_row(answer: str) -> None:
    progress = state().progress
    progress.fail(LOST, 1.0, 0.0)
    if answer == "records":
        progress.receive(2.0)
    else:
        progress.pass_over()
    assert progress.seconds_like(LOST, 5.0) == 0.0
    progress.fail(LOST, 5.0, 0.0)
    assert progress.seconds_like(LOST, 6.0) == 1.0


def test_records_given_out_after_the_next_request_failed_lift_what_is_asked_for() -> None:
    one = state()
    one.receive(RecordSetEnd(15, 4), 10, 1, 0.0)
    one.lose_leader(LOST, 1.0, 1.0)
    assert (one.position.fetch_offset, one.position.last_fetched_epoch) == (10, -1)
    deliver(one, 12)
    assert (one.position.fetch_offset, one.position.last_fetched_epoch) == (
        12,
        -1,
    )  # in the middle: the epoch there is not known
    deliver(one, 15)
    assert (one.position.fetch_offset, one.position.last_fetched_epoch) == (15, 4)
    assert (one.progress.failures, one.progress.last_failure) == (0, None)


def test_giving_out_a_part_leaves_the_request_ahead_alone() -> None:
    one = state()
    one.receive(RecordSetEnd(15, 4), 10, 1, 0.0)
    deliver(one, 12)
    assert (one.position.offset, one.position.fetch_offset, one.position.last_fetched_epoch) == (12, 15, 4)


def test_what_was_received_ends_a_probe() -> None:
    one = state()
    one.position.probe(60)
    one.receive(RecordSetEnd(60, -1), 0, 1, 0.0)
    assert (one.position.probe_until, one.position.fetch_offset) == (None, 60)


def test_what_was_received_counts_up_to_the_end_of_the_range() -> None:
    """A batch, or a gap that a probe has found, may go on behind it: that is no part of this range."""
    for next_offset, received in ((20, 20), (30, 30), (60, 30)):
        one = state(10, 30)
        one.receive(RecordSetEnd(next_offset, 4), 1_000, 1, 0.0)
        assert one.position.received == received


def test_no_more_is_asked_for_than_is_left() -> None:
    one = state(10, 30)
    assert one.wanted_bytes() == 1 << 20
    one.receive(RecordSetEnd(20, 4), 1_000, 1, 0.0)  # 100 bytes an offset
    assert one.wanted_bytes() == 1_100 + MIN_FETCH_BYTES
    assert one.grow(1 << 22)
    assert (one.wanted_bytes(), one.max_bytes) == (1 << 21, 1 << 21)
    large = state(10, 10_000_000)
    large.receive(RecordSetEnd(20, 4), 1_000, 1, 0.0)
    assert large.wanted_bytes() == 1 << 20
    endless = state(10, ENDLESS)
    endless.receive(RecordSetEnd(20, 4), 1, 1, 0.0)
    assert endless.wanted_bytes() == 1 << 20


def test_a_batch_that_came_in_part_is_asked_for_first_and_with_more_room_up_to_the_limit() -> None:
    """Of the first partition in a request alone, brokers send a whole batch that is larger than the room."""
    one = state()
    one.receive(RecordSetEnd(20, 4), 1_000, 7, 0.0)
    assert one.turn == 7
    assert [one.grow(3 << 20) for _ in range(3)] == [True, True, False]
    assert (one.turn, one.max_bytes) == (0, 3 << 20)


def test_corruption_is_asked_for_once_more_from_the_leader() -> None:
    one = state()
    one.prefer(2, 100.0)
    corrupt = KafkaError("corrupt")
    one.receive(RecordSetEnd(15, 4), 10, 1, 0.0)
    one.find_corrupt(corrupt, 5.0, 300.0)
    assert (one.error, one.position.fetch_offset, one.broker.node_id, one.broker.leader_only(5.5)) == (
        None,
        10,
        1,
        True,
    )
    one.find_corrupt(corrupt, 6.0, 300.0)
    assert one.error is corrupt
    served = state()
    served.find_corrupt(corrupt, 5.0, 300.0)
    assert not served.broker.leader_only(5.5)  # it was the leader's
    deliver(served, 12)
    served.find_corrupt(corrupt, 6.0, 300.0)
    assert served.error is None


def test_seek_starts_anew() -> None:
    one = state()
    one.receive(RecordSetEnd(15, 4), 10, 1, 0.0)
    deliver(one, 15)
    one.requested(1.0)
    one.find_corrupt(LOST, 1.0, 1.0)
    one.reach_end(2.0, None)
    one.lose_leader(LOST, 3.0, 1.0)
    one.break_off(LOST)
    assert not one.open
    one.seek(50, 60)
    assert (
        one.position.offset,
        one.position.fetch_offset,
        one.position.until_offset,
        one.position.last_fetched_epoch,
    ) == (50, 50, 60, -1)
    assert (one.error, one.progress.last_failure, one.progress.at_end_since, one.progress.failures) == (
        None,
        None,
        None,
        0,
    )
    assert (one.progress.refetched, one.progress.waited_s(99.0), one.position.moves, one.open) == (
        False,
        0.0,
        1,
        True,
    )


def test_an_error_is_explained_unless_the_partition_was_moved_meanwhile() -> None:
    """The look-up of the bounds may end later than the caller has sought elsewhere."""
    one, refused, bounded = state(), KafkaError("refused"), KafkaError("refused, with bounds")
    one.break_off(refused)
    one.explain(refused, bounded)
    assert one.error is bounded
    one.break_off(refused)
    one.seek(50, 60)
    one.explain(refused, bounded)
    assert (one.error, one.open) == (None, True)
    one.break_off(LOST)
    one.explain(refused, bounded)
    assert one.error is LOST


def test_a_pause_drops_what_was_fetched_and_stops_the_clock() -> None:
    one = state()
    one.requested(1.0)
    one.receive(RecordSetEnd(15, 4), 10, 1, 2.0)
    one.requested(3.0)
    one.pause(4.0)
    assert (one.open, one.position.fetch_offset, one.position.moves, one.progress.waited_s(90.0)) == (
        False,
        10,
        1,
        2.0,
    )
    one.stall(IncompleteResponseError("what was asked before the pause"), 5.0, 0.1)
    one.resume()
    assert (one.open, one.progress.waited_s(90.0)) == (True, 0.0)


def test_the_end_of_the_log_counts_from_when_it_was_reached() -> None:
    one = state()
    one.lose_leader(LOST, 1.0, 1.0)
    assert one.reach_end(5.0, None) == 0.0
    assert one.progress.failures == 0
    assert one.reach_end(8.0, None) == 3.0
    assert one.reach_end(9.0, LOST) == 0.0  # why it will go on
    assert one.progress.last_failure is LOST
    assert one.reach_end(20.0, None) == 0.0
    endless = state(5, ENDLESS)
    endless.requested(1.0)
    assert (endless.reach_end(9.0, LOST), endless.progress.waited_s(9.0), endless.progress.last_failure) == (
        0.0,
        0.0,
        None,
    )


@pytest.mark.parametrize(("cut_at", "stays"), [(9, True), (10, False), (12, False)])
def test_a_pause_drops_the_truncation_of_records_that_it_drops(cut_at: int, stays: bool) -> None:
    """They were received and not handed out; records before them may be cut off nevertheless."""
    one = state()
    one.receive(RecordSetEnd(15, 4), 10, 1, 0.0)
    one.break_off(error := LogTruncatedError(TP, 15, cut_at))
    one.pause(1.0)
    assert one.error is (error if stays else None)
    other = state()
    other.break_off(LOST)
    other.pause(1.0)
    assert other.error is LOST


def test_an_epoch_is_checked_under_the_leader_of_the_time() -> None:
    one = state()
    assert one.broker.epoch_checked == -1
    one.receive(RecordSetEnd(15, 4), 10, 1, 0.0)
    assert one.broker.epoch_checked == 5
    one.lose_leader(LOST, 1.0, 1.0)
    one.broker.pass_epoch_check()
    assert one.broker.epoch_checked == 5
    one.broker.led_by(Leader(2, 6, None), 1.0)
    one.broker.pass_epoch_check()
    assert one.broker.epoch_checked == 6


@pytest.mark.parametrize("ends", ["served", "held", "led", "failed", "refused"])
def test_a_follower_serves_until_its_time_is_over_or_it_fails(ends: str) -> None:
    """Else a follower that is down would be asked again and again, and a nearer one never."""
    one = state()
    one.prefer(2, 100.0)
    one.receive(RecordSetEnd(15, 4), 10, 1, 100.0)
    one.hold(100.0)
    assert one.broker.node_id == 2
    if ends == "served":
        one.receive(RecordSetEnd(20, 4), 10, 1, 100.5)
    elif ends == "held":
        one.hold(100.5)
    elif ends == "led":
        one.broker.led_by(Leader(1, 5, UUID(int=1)), 100.5)
    elif ends == "failed":
        one.lose_leader(LOST, 50.0, 1.0)
        assert one.broker.node_id is None
        one.broker.led_by(Leader(1, 5, UUID(int=1)), 51.0)
    else:
        one.leave_replica(50.0, 300.0)
    assert one.broker.node_id == 1
