"""Sequence numbers of one partition, and the producer id behind them."""

from __future__ import annotations

import pytest
from support.producer.sending_batches import batch, encode, numbers

from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.accumulating.batch import Batch, ProducerIdentity, SendingState
from spark_kafka_native.kafka.producer.sending.idempotence import (
    MAX_SEQUENCE,
    PartitionSequence,
    ProducerId,
    advance,
    clear_numbers,
    forget_numbers,
    read_numbers,
    share_numbers,
)

ME = ProducerIdentity(7, 2)


@pytest.mark.parametrize(
    ("sequence", "records", "expected"),
    [(0, 1, 1), (MAX_SEQUENCE - 1, 1, MAX_SEQUENCE), (MAX_SEQUENCE, 1, 0), (MAX_SEQUENCE - 4, 30, 25)],
)
def test_behind_the_last_number_comes_0(sequence: int, records: int, expected: int) -> None:
    assert advance(sequence, records) == expected


def test_numbers_are_written_into_the_bytes_and_read_back() -> None:
    sequence, one, two = PartitionSequence(ME), batch(1, 3), batch(2, 2)
    sequence.number(one)
    sequence.number(two)
    assert (numbers(one), numbers(two)) == ((7, 2, 0), (7, 2, 3))
    again = Batch(one.topic_partition, two.data, 2, 0, [], 0, (2,), SendingState(0.0))
    read_numbers(again)
    assert (again.sending.identity, again.sending.base_sequence) == (ME, 3)
    clear_numbers(again)
    assert (again.sending.identity, numbers(again)) == (None, (-1, -1, -1))
    read_numbers(again)
    assert again.sending.identity is None


def test_0_is_a_producer_id() -> None:
    sequence, one = PartitionSequence(ProducerIdentity(0, 0)), batch(1)
    sequence.number(one)
    again = Batch(one.topic_partition, one.data, 1, 0, [], 0, (1,), SendingState(0.0))
    read_numbers(again)
    assert (again.sending.identity, again.sending.base_sequence) == (ProducerIdentity(0, 0), 0)


def test_a_batch_keeps_its_own_numbers_where_the_folder_has_older_bytes() -> None:
    one = batch(1)
    PartitionSequence(ProducerIdentity(7, 1)).number(one)
    older = bytearray(one.data)
    again = Batch(one.topic_partition, older, 1, 0, [], 0, (1,), SendingState(0.0, 0, ME, 5))
    read_numbers(again)
    assert (again.sending.identity, again.sending.base_sequence, numbers(again)) == (ME, 5, (7, 2, 5))


def test_forgotten_numbers_stay_in_the_bytes_until_there_are_new_ones() -> None:
    sequence, one = PartitionSequence(ME), batch(1, 3)
    sequence.number(one)
    forget_numbers(one)
    assert (one.sending.identity, numbers(one)) == (None, (7, 2, 0))


def test_halves_share_the_numbers_also_over_the_end() -> None:
    large = batch(1, 6)
    sequence = PartitionSequence(ME)
    sequence.next_sequence = MAX_SEQUENCE - 1
    sequence.number(large)
    halves = [
        Batch(TopicPartition("t", 0), encode([b"x"] * n), n, 0, [], 0, (1, n), SendingState(0.0))
        for n in (2, 3, 1)
    ]
    share_numbers(large, halves)
    assert [numbers(half) for half in halves] == [(7, 2, MAX_SEQUENCE - 1), (7, 2, 0), (7, 2, 3)]
    assert [half.sending.identity for half in halves] == [ME, ME, ME]


def test_halves_of_a_batch_without_numbers_have_none() -> None:
    half = batch(1)
    share_numbers(batch(1, 2), [half])
    assert half.sending.identity is None


def test_the_last_given_up_decides_where_the_gap_ends() -> None:
    sequence = PartitionSequence(ME)
    batches = [batch(order) for order in range(5)]
    for one in batches:
        sequence.number(one)
    sequence.leave_gap([batches[1], batches[3]])
    sequence.leave_gap([batches[2]])
    sequence.confirm(batches[2], 0.0)
    assert sequence.gap
    sequence.confirm(batches[4], 0.0)
    assert not sequence.gap


def test_a_broker_that_has_heard_nothing_for_long_may_have_forgotten_the_producer() -> None:
    """It takes any batch as the first one then: another one must not be in flight behind it."""
    sequence, one = PartitionSequence(ME), batch(1)
    sequence.number(one)
    sequence.confirm(one, 1_000.0)
    sequence.rest(1_300.0)
    assert sequence.confirmed
    sequence.rest(1_301.0)
    assert not sequence.confirmed


def test_batches_of_others_say_nothing_of_these_numbers() -> None:
    sequence, foreign = PartitionSequence(ME), batch(1)
    PartitionSequence(ProducerIdentity(99, 0)).number(foreign)
    sequence.leave_gap([foreign, batch(2)])
    assert not sequence.gap
    sequence.confirm(foreign, 0.0)
    assert not sequence.confirmed


def test_a_restart_forgets_everything_but_takes_the_new_identity() -> None:
    sequence, one = PartitionSequence(ME), batch(1)
    sequence.number(one)
    sequence.confirm(one, 0.0)
    sequence.leave_gap([one])
    sequence.restart(ProducerIdentity(7, 3))
    assert (sequence.identity, sequence.next_sequence) == (ProducerIdentity(7, 3), 0)
    assert (sequence.confirmed, sequence.gap) == (False, False)
    early, earlier = batch(0), batch(-1)
    for other in (earlier, early):
        sequence.number(other)
    sequence.leave_gap([earlier])
    sequence.confirm(early, 0.0)
    assert sequence.confirmed
    assert not sequence.gap  # the gap of the former numbering is not one of this


def test_former_numbers_leave_a_gap_once_the_recreated_topic_has_one_of_them() -> None:
    sequence, batches = PartitionSequence(ME), [batch(order) for order in range(4)]
    for one in batches:
        sequence.number(one)
    sequence.restart(ProducerIdentity(7, 3))
    sequence.leave_gap(batches[:1])
    assert not sequence.gap
    sequence.confirm(batches[1], 0.0)
    assert not sequence.confirmed
    sequence.leave_gap(batches[2:3])
    assert sequence.gap
    sequence.confirm(batches[3], 0.0)
    assert not sequence.gap


def test_what_ends_in_the_log_may_have_passed_what_stands_before() -> None:
    sequence, foreign = PartitionSequence(ME), batch(2)
    PartitionSequence(ProducerIdentity(99, 0)).number(foreign)
    sequence.leave_gap([batch(9)])
    assert not sequence.may_have_passed(batch(1))
    sequence.confirm(foreign, 0.0)
    assert (sequence.may_have_passed(batch(1)), sequence.may_have_passed(batch(3))) == (True, False)
    unsure = batch(5)
    unsure.sending.indefinite = True
    sequence.leave_gap([unsure])
    sequence.restart(ProducerIdentity(7, 3))
    assert (sequence.may_have_passed(batch(4)), sequence.may_have_passed(batch(6))) == (True, False)


class TestProducerId:
    def test_epochs_are_raised_one_by_one_up_to_the_last(self) -> None:
        producer_id = ProducerId()
        assert producer_id.bump_epoch() is None
        producer_id.received(ProducerIdentity(7, 32_765))
        assert producer_id.bump_epoch() == (7, 32_766)  # to a broker, 32,767 is beyond the last one
        assert producer_id.bump_epoch() is None
        assert producer_id.current is None

    def test_a_transactional_one_is_left_to_its_coordinator(self) -> None:
        producer_id = ProducerId("orders")
        producer_id.received(ME)
        assert not producer_id.may_bump_epoch
        assert producer_id.bump_epoch() is None
        assert producer_id.current == ME
