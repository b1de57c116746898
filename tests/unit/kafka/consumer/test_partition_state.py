"""What is known of a partition in a fetch, step by step, in literals."""

from __future__ import annotations

from uuid import UUID

from spark_kafka_native.kafka.cluster.router import Leader
from spark_kafka_native.kafka.consumer.partition_state import ENDLESS, MIN_FETCH_BYTES, PartitionState
from spark_kafka_native.kafka.errors import IncompleteResponseError, KafkaError, NetworkError
from spark_kafka_native.kafka.model import TopicPartition

LOST = NetworkError("lost")


def state(position: int = 10, until: int = 100) -> PartitionState:
    made = PartitionState(
        topic_partition=TopicPartition("orders", 0),
        position=position,
        until_offset=until,
        max_bytes=1 << 20,
        topic_id=UUID(int=1),
    )
    made.led_by(Leader(1, 5, UUID(int=1)), 0.0)
    return made


def test_it_is_open_until_everything_is_asked_for_and_finished_once_all_is_given() -> None:
    one = state(98)
    assert (one.open, one.finished) == (True, False)
    one.took(100, 4, 10, 1, 0.0)
    assert (one.open, one.finished) == (False, False)
    one.advance(99)
    assert not one.finished
    one.advance(100)
    assert one.finished
    assert (state(100).open, state(100).finished, state(101).finished) == (False, True, True)
    assert state(5, ENDLESS).endless
    assert not state(5, ENDLESS - 1).endless


def test_time_counts_while_it_is_asked_for_or_failing_only() -> None:
    one = state()
    assert one.waited_s(500.0) == 0.0
    one.asked(10.0)
    assert one.waited_s(13.0) == 3.0
    one.asked(12.0)  # the first counts
    assert one.waited_s(13.0) == 3.0
    one.hold(14.0)
    assert one.waited_s(100.0) == 4.0
    one.asked(100.0)
    assert one.waited_s(101.0) == 5.0
    one.took(15, 4, 10, 1, 102.0)
    assert one.waited_s(200.0) == 6.0
    one.advance(10)  # no step forward
    assert one.waited_s(200.0) == 6.0
    one.advance(11)
    assert one.waited_s(200.0) == 0.0
    one.lose_leader(LOST, 200.0, 1.0)
    assert one.waited_s(203.0) == 3.0
    one.stall(LOST, 204.0, 1.0)
    assert one.waited_s(205.0) == 5.0
    one.passed_over()
    assert (one.waited_s(300.0), one.failures) == (0.0, 0)


def test_a_failure_asks_again_from_what_the_caller_has_with_the_epoch_before_it() -> None:
    one = state()
    one.took(15, 4, 10, 1, 0.0)
    one.advance(15)
    one.took(20, 6, 10, 2, 0.0)
    assert (one.ask_from, one.last_epoch) == (20, 6)
    one.lose_leader(LOST, 7.0, 2.0)
    assert (one.ask_from, one.last_epoch, one.position) == (15, 4, 15)
    assert (one.leader, one.leader_is_stale, one.retry_at, one.failing_since) == (None, True, 9.0, 7.0)
    one.lose_leader(LOST, 8.0, 4.0)
    assert (one.failures, one.failing_since, one.retry_at) == (2, 7.0, 12.0)
    one.led_by(Leader(2, 6, UUID(int=1)), 9.0)
    assert (one.node_id, one.leader_is_stale, one.last_failure) == (2, False, LOST)


def test_records_given_out_after_the_next_request_failed_lift_what_is_asked_for() -> None:
    one = state()
    one.took(15, 4, 10, 1, 0.0)
    one.lose_leader(LOST, 1.0, 1.0)
    assert (one.ask_from, one.last_epoch) == (10, -1)
    one.advance(12)
    assert (one.ask_from, one.last_epoch) == (12, -1)  # in the middle: the epoch there is not known
    one.advance(15)
    assert (one.ask_from, one.last_epoch) == (15, 4)
    assert (one.failures, one.last_failure) == (0, None)


def test_giving_out_a_part_leaves_the_request_ahead_alone() -> None:
    one = state()
    one.took(15, 4, 10, 1, 0.0)
    one.advance(12)
    assert (one.position, one.ask_from, one.last_epoch) == (12, 15, 4)


def test_no_more_is_asked_for_than_is_left() -> None:
    one = state(10, 30)
    assert one.wanted_bytes() == 1 << 20
    one.took(20, 4, 1_000, 1, 0.0)  # 100 bytes an offset
    assert one.wanted_bytes() == 1_100 + MIN_FETCH_BYTES
    assert one.grow(1 << 22)
    assert (one.wanted_bytes(), one.max_bytes) == (1 << 21, 1 << 21)
    large = state(10, 10_000_000)
    large.took(20, 4, 1_000, 1, 0.0)
    assert large.wanted_bytes() == 1 << 20
    endless = state(10, ENDLESS)
    endless.took(20, 4, 1, 1, 0.0)
    assert endless.wanted_bytes() == 1 << 20


def test_corruption_is_asked_for_once_more_from_the_leader() -> None:
    one = state()
    one.prefer(2, 100.0)
    corrupt = KafkaError("corrupt")
    one.took(15, 4, 10, 1, 0.0)
    one.found_corrupt(corrupt, 5.0, 300.0)
    assert (one.error, one.ask_from, one.node_id, one.wants_leader(5.5)) == (None, 10, 1, True)
    one.found_corrupt(corrupt, 6.0, 300.0)
    assert one.error is corrupt
    served = state()
    served.found_corrupt(corrupt, 5.0, 300.0)
    assert not served.wants_leader(5.5)  # it was the leader's
    served.advance(12)
    served.found_corrupt(corrupt, 6.0, 300.0)
    assert served.error is None


def test_seek_starts_anew() -> None:
    one = state()
    one.took(15, 4, 10, 1, 0.0)
    one.advance(15)
    one.asked(1.0)
    one.found_corrupt(LOST, 1.0, 1.0)
    one.at_end(2.0, None)
    one.lose_leader(LOST, 3.0, 1.0)
    one.break_off(LOST)
    assert not one.open
    one.seek(50, 60)
    assert (one.position, one.ask_from, one.until_offset, one.last_epoch) == (50, 50, 60, -1)
    assert (one.error, one.last_failure, one.at_end_since, one.failures) == (None, None, None, 0)
    assert (one.refetched, one.waited_s(99.0), one.moves, one.open) == (False, 0.0, 1, True)


def test_a_pause_drops_what_was_fetched_and_stops_the_clock() -> None:
    one = state()
    one.asked(1.0)
    one.took(15, 4, 10, 1, 2.0)
    one.asked(3.0)
    one.pause(4.0)
    assert (one.open, one.ask_from, one.moves, one.waited_s(90.0)) == (False, 10, 1, 2.0)
    one.stall(IncompleteResponseError("what was asked before the pause"), 5.0, 0.1)
    one.resume()
    assert (one.open, one.waited_s(90.0)) == (True, 0.0)


def test_the_end_of_the_log_counts_from_when_it_was_reached() -> None:
    one = state()
    one.lose_leader(LOST, 1.0, 1.0)
    assert one.at_end(5.0, None) == 0.0
    assert one.failures == 0
    assert one.at_end(8.0, None) == 3.0
    assert one.at_end(9.0, LOST) == 0.0  # why it will go on
    assert one.last_failure is LOST
    assert one.at_end(20.0, None) == 0.0
    endless = state(5, ENDLESS)
    endless.asked(1.0)
    assert (endless.at_end(9.0, LOST), endless.waited_s(9.0), endless.last_failure) == (0.0, 0.0, None)


def test_an_epoch_is_checked_under_the_leader_of_the_time() -> None:
    one = state()
    assert one.epoch_checked == -1
    one.took(15, 4, 10, 1, 0.0)
    assert one.epoch_checked == 5
    one.lose_leader(LOST, 1.0, 1.0)
    one.passed_epoch_check()
    assert one.epoch_checked == 5
    one.led_by(Leader(2, 6, None), 1.0)
    one.passed_epoch_check()
    assert one.epoch_checked == 6
