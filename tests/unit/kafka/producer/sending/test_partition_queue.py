"""The state of sending to one partition, event by event, with literals: no thread, clock, socket or
broker."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from support.producer.sending_batches import TP, batch, encode, numbers, spilled

from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, NetworkError
from spark_kafka_native.kafka.producer.accumulating.batch import Batch, ProducerIdentity, SendingState
from spark_kafka_native.kafka.producer.sending.idempotence import MAX_EPOCH, ProducerId
from spark_kafka_native.kafka.producer.sending.partition_queue import (
    TRANSITIONS,
    Load,
    NeedProducerId,
    PartitionQueue,
    Phase,
    QueueEvent,
    Send,
    SendingRules,
)
from spark_kafka_native.kafka.producer.sending.verdict import (
    DELIVERED,
    DUPLICATE,
    EXHAUSTED,
    FAIL,
    FATAL,
    GONE,
    REFRESH,
    RENUMBER,
    RETRY,
    SPLIT,
    Verdict,
)

E = ErrorCode
ID = UUID(int=1)
LOST = NetworkError("the connection was lost")


def rules(retries: int = 10, *, pipelined: bool = False) -> SendingRules:
    return SendingRules(
        retries=retries,
        pipelined=pipelined,
        delay_s=lambda failures: 0.5 * 2**failures,
        topic_propagation_s=30.0,
    )


class Partition(PartitionQueue):
    """With the words of a test: leader 1, topic id `ID`, and time that only the test moves."""

    def ask(self, now: float = 0.0, leader: int = 1, topic_id: UUID | None = ID) -> Batch | None:
        """The batch that is sent now."""
        step = self.next(now, leader, topic_id)
        if not isinstance(step, Send):
            assert step is None
            return None
        self.sent(step.batch, leader)
        return step.batch

    def ask_all(self, **how: float) -> list[Batch]:
        sent = []
        while (one := self.ask(**how)) is not None:
            sent.append(one)
        return sent

    def answer(
        self, one: Batch, code: ErrorCode = E.NONE, now: float = 0.0, *, by_id: bool = False
    ) -> Verdict | None:
        return self.answered(one, code, BrokerError(code, "Produce"), now, by_id=by_id)

    @property
    def phase(self) -> Phase:
        return self._phase


@pytest.fixture
def producer_id() -> ProducerId:
    known = ProducerId()
    known.received(ProducerIdentity(7, 0))
    return known


@pytest.fixture
def partition(producer_id: ProducerId) -> Partition:
    return Partition(TP, rules(), producer_id)


def fill(partition: Partition, *orders: int, records: int = 1) -> list[Batch]:
    added = [batch(order, records) for order in orders]
    for one in added:
        partition.add(one)
    return added


def split(partition: Partition, whole: Batch, now: float = 9) -> list[Batch]:
    """Its halves, after it was sent and refused for its size."""
    assert partition.ask(now=now) is whole
    assert partition.answer(whole, E.MESSAGE_TOO_LARGE) == SPLIT
    return halves_of(partition, whole)


def halves_of(partition: Partition, whole: Batch) -> list[Batch]:
    size = whole.records // 2
    halves = [
        Batch(TP, encode([b"a"] * size), size, 0, [], 0, (*whole.order, place), SendingState(0.0))
        for place in (0, 1)
    ]
    partition.take_over(whole, halves)
    partition.replace(whole, halves)
    return halves


def behind_a_refused(partition: Partition, count: int) -> list[Batch]:
    """``count`` batches in flight behind one that was refused for good; the first has come back, to get new
    numbers."""
    confirmed(partition)
    refused, first, *others = fill(partition, *range(1, count + 2))
    partition.ask_all()
    assert partition.answer(refused, E.INVALID_RECORD) == FAIL
    partition.given_up([refused])
    assert partition.answer(first, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == RENUMBER
    return [first, *others]


def two_loaded(partition: Partition) -> list[Batch]:
    """Batches of the folder that may be in the log, with the numbers of their former producer."""
    loaded = []
    for order in (1, 2):
        old, data = spilled(order, (99, 5, 42 + order), possibly_persisted=True)
        partition.add(old)
        partition.loaded(old, data)
        loaded.append(old)
    return loaded


def confirmed(partition: Partition) -> Partition:
    """A partition on a broker that knows the producer: batch 0 was delivered."""
    (first,) = fill(partition, 0)
    assert partition.ask() is first
    assert partition.answer(first) == DELIVERED
    return partition


def recreated(partition: Partition) -> Batch | None:
    """The batch that is sent to the topic that has the name now."""
    return partition.ask(now=99, topic_id=UUID(int=2))


class TestOrder:
    def test_the_first_batch_goes_alone(self, partition: Partition) -> None:
        first, second = fill(partition, 1, 2)
        assert partition.ask_all() == [first]
        partition.answer(first)
        assert partition.ask_all() == [second]

    def test_after_a_long_rest_the_first_batch_goes_alone_again(self, partition: Partition) -> None:
        confirmed(partition)
        first, second, third = fill(partition, 1, 2, 3)
        assert partition.ask_all(now=301) == [first]
        partition.answer(first, now=302)
        assert partition.ask_all(now=302) == [second, third]
        for one in (second, third):
            partition.answer(one, now=302)
        later = fill(partition, 4, 5)
        assert partition.ask_all(now=602) == later

    def test_a_known_producer_is_pipelined_with_running_numbers(self, partition: Partition) -> None:
        confirmed(partition)
        sent = fill(partition, 1, 2, 3, records=10)
        assert partition.ask_all() == sent
        assert [numbers(one) for one in sent] == [(7, 0, 1), (7, 0, 11), (7, 0, 21)]

    def test_what_comes_back_goes_first_alone_and_with_the_same_bytes(self, partition: Partition) -> None:
        confirmed(partition)
        first, second, third = fill(partition, 1, 2, 3)
        assert partition.ask_all() == [first, second, third]
        before = [bytes(one.data) for one in (first, second, third)]
        assert partition.answer(second, E.NOT_ENOUGH_REPLICAS) == RETRY
        assert partition.ask_all(now=9) == []
        assert partition.answer(first, E.NOT_ENOUGH_REPLICAS) == RETRY
        assert partition.ask_all(now=9) == []
        assert partition.answer(third) == DELIVERED
        assert partition.ask_all(now=9) == [first]
        assert partition.answer(first) == DELIVERED
        assert partition.ask_all(now=9) == [second]
        assert [bytes(one.data) for one in (first, second, third)] == before

    def test_nothing_follows_one_that_is_sent_again(self, partition: Partition) -> None:
        confirmed(partition)
        first, second = fill(partition, 1, 2)
        assert partition.ask() is first
        assert partition.lost(first, LOST, 0) == REFRESH
        assert partition.ask_all(now=9) == [first]
        partition.answer(first)
        assert partition.ask_all(now=9) == [second]

    def test_one_that_comes_back_waits_for_all_in_flight_also_for_those_that_are_delivered(
        self, partition: Partition
    ) -> None:
        confirmed(partition)
        first, second, third = fill(partition, 1, 2, 3)
        partition.ask_all()
        assert partition.answer(first, E.NOT_ENOUGH_REPLICAS) == RETRY
        assert partition.answer(second) == DELIVERED
        assert partition.phase is Phase.DRAINING
        assert partition.ask(now=9) is None
        assert partition.answer(third) == DELIVERED
        assert partition.phase is Phase.OPEN
        assert partition.ask(now=9) is first

    def test_a_new_leader_gets_nothing_before_the_old_one_is_drained(self, partition: Partition) -> None:
        confirmed(partition)
        first, second, third = fill(partition, 1, 2, 3)
        assert [partition.ask(leader=1), partition.ask(leader=1)] == [first, second]
        assert partition.ask(leader=2) is None
        partition.answer(first)
        assert partition.ask(leader=2) is None
        partition.answer(second)
        assert partition.ask(leader=2) is third

    def test_only_the_first_waiting_batch_delays_its_partition(self, partition: Partition) -> None:
        confirmed(partition)
        first, second = fill(partition, 1, 2)
        partition.ask_all()
        partition.answer(first, E.NOT_LEADER_OR_FOLLOWER, now=10)
        partition.answer(second, E.NOT_LEADER_OR_FOLLOWER, now=10)
        assert partition.ready_at() == 10.5
        assert partition.ask(now=10.4) is None
        assert partition.ask(now=10.5) is first
        partition.answer(first, E.NOT_LEADER_OR_FOLLOWER, now=20)
        assert partition.ready_at() == 21
        partition.ask(now=21)
        partition.answer(first)
        assert partition.ready_at() == 0

    def test_each_failure_in_a_row_doubles_the_wait(self, partition: Partition) -> None:
        (one,) = fill(partition, 1)
        until = []
        for _ in range(4):
            assert partition.ask(now=200) is one
            partition.answer(one, E.NOT_ENOUGH_REPLICAS, now=100)
            until.append(partition.ready_at())
        assert until == [100.5, 101, 102, 104]

    def test_the_failures_before_a_delivery_do_not_count(self, partition: Partition) -> None:
        confirmed(partition)
        first, second = fill(partition, 1, 2)
        for now, again_at in ((0, 0.5), (10, 11)):
            assert partition.ask(now=now) is first
            partition.answer(first, E.NOT_ENOUGH_REPLICAS, now=now)
            assert partition.ready_at() == again_at
        assert partition.ask(now=20) is first
        partition.answer(first, now=20)
        assert partition.ask(now=20) is second
        partition.answer(second, E.NOT_ENOUGH_REPLICAS, now=20)
        assert partition.ready_at() == 20.5

    def test_what_was_not_written_after_all_is_as_if_never_tried(self, partition: Partition) -> None:
        first, second = fill(partition, 1, 2)
        assert partition.ask() is first
        partition.not_sent(first)
        assert (list(partition.waiting), first.sending.attempts, partition.ready_at()) == (
            [first, second],
            0,
            0,
        )
        partition.given_up([first])
        assert not first.sending.indefinite

    def test_a_batch_out_of_its_turn_is_a_bug(self, partition: Partition) -> None:
        _, second = fill(partition, 1, 2)
        with pytest.raises(AssertionError):
            partition.sent(second, 1)


class TestAnswers:
    def test_a_duplicate_is_a_delivery(self, partition: Partition) -> None:
        confirmed(partition)
        (one,) = fill(partition, 1)
        partition.ask()
        partition.lost(one, LOST, 0)
        partition.ask(now=9)
        assert partition.answer(one, E.DUPLICATE_SEQUENCE_NUMBER) == DUPLICATE
        assert partition.idle

    @pytest.mark.parametrize(
        ("code", "indefinite"),
        [
            (E.REQUEST_TIMED_OUT, True),
            (E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True),
            (E.KAFKA_STORAGE_ERROR, True),
            (E.NOT_LEADER_OR_FOLLOWER, True),
            (E.NOT_ENOUGH_REPLICAS, False),
            (E.LEADER_NOT_AVAILABLE, False),
        ],
    )
    def test_what_may_be_in_the_log_stays_so(
        self, partition: Partition, code: ErrorCode, indefinite: bool
    ) -> None:
        (one,) = fill(partition, 1)
        partition.ask()
        partition.answer(one, code)
        partition.ask(now=9)
        partition.answer(one, E.NOT_ENOUGH_REPLICAS)
        assert one.sending.indefinite is indefinite

    def test_a_lost_answer_makes_it_indefinite(self, partition: Partition) -> None:
        (one,) = fill(partition, 1)
        partition.ask()
        partition.lost(one, LOST, 0)
        assert one.sending.indefinite
        assert one.sending.last_error is LOST

    def test_retries_are_counted(self, producer_id: ProducerId) -> None:
        partition = Partition(TP, rules(retries=1), producer_id)
        (one,) = fill(partition, 1)
        partition.ask()
        assert partition.answer(one, E.NOT_ENOUGH_REPLICAS) == RETRY
        partition.ask(now=9)
        assert partition.answer(one, E.NOT_ENOUGH_REPLICAS) == EXHAUSTED
        assert list(partition.waiting) == [one]  # still owned, until it is given up
        partition.given_up([one])
        assert partition.idle

    def test_an_answer_after_the_end_changes_nothing_but_the_numbering(self, partition: Partition) -> None:
        first, second = fill(partition, 1, 2)
        partition.ask()
        partition.given_up([first])
        first.ended = True
        assert partition.answer(first) == DELIVERED  # its caller finds it ended
        assert partition.ask() is second
        assert numbers(second) == (7, 0, 1)

    def test_a_refusal_after_the_end_is_late(self, partition: Partition) -> None:
        (one,) = fill(partition, 1)
        partition.ask()
        partition.given_up([one])
        one.ended = True
        assert partition.answer(one, E.NOT_ENOUGH_REPLICAS) is None
        assert partition.idle

    def test_a_lost_answer_after_the_end_is_late(self, partition: Partition) -> None:
        (one,) = fill(partition, 1)
        partition.ask()
        partition.given_up([one])
        one.ended = True
        assert partition.lost(one, LOST, 0) is None
        assert partition.idle

    @pytest.mark.parametrize("code", [E.INVALID_RECORD, E.TOPIC_AUTHORIZATION_FAILED, E.UNKNOWN_SERVER_ERROR])
    def test_a_final_refusal_holds_nothing_up(self, partition: Partition, code: ErrorCode) -> None:
        confirmed(partition)
        first, second, third = fill(partition, 1, 2, 3)
        assert [partition.ask(), partition.ask()] == [first, second]
        assert partition.answer(first, code) == FAIL
        assert partition.phase is Phase.OPEN
        partition.given_up([first])
        assert first.sending.indefinite is (code is E.UNKNOWN_SERVER_ERROR)
        assert partition.ask() is third


class TestGaps:
    def test_in_flight_it_may_be_in_the_log_and_waiting_it_is_not(self, partition: Partition) -> None:
        first, second = fill(partition, 1, 2)
        partition.ask()
        partition.given_up([first, second])
        assert (first.sending.indefinite, second.sending.indefinite) == (True, False)
        assert (list(partition.in_flight), list(partition.waiting)) == ([first], [])

    def test_one_that_never_came_to_its_partition_is_not_in_the_log(self, partition: Partition) -> None:
        ownerless = batch(1)
        partition.given_up([ownerless])
        assert not ownerless.sending.indefinite

    def test_once_nothing_is_in_flight_numbers_start_anew_behind_a_gap(self, partition: Partition) -> None:
        confirmed(partition)
        lost, follows, later = fill(partition, 1, 2, 3)
        assert [partition.ask(), partition.ask()] == [lost, follows]
        partition.given_up([lost])
        lost.ended = True
        partition.lost(lost, LOST, 0)
        partition.given_up([follows])
        follows.ended = True
        partition.lost(follows, LOST, 0)
        assert partition.ask(now=9) is later
        assert numbers(later) == (7, 1, 0)

    def test_what_was_numbered_behind_a_gap_is_tried_as_it_is(self, partition: Partition) -> None:
        confirmed(partition)
        lost, follows = fill(partition, 1, 2)
        partition.ask_all()
        partition.given_up([lost])
        lost.ended = True
        partition.lost(lost, LOST, 0)
        partition.lost(follows, LOST, 0)
        assert partition.ask(now=9) is follows
        assert numbers(follows) == (7, 0, 2)
        assert partition.answer(follows, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == RENUMBER
        assert partition.ask(now=9) is follows
        assert numbers(follows) == (7, 1, 0)

    def test_one_that_fits_closes_the_gap(self, partition: Partition) -> None:
        confirmed(partition)
        lost, follows = fill(partition, 1, 2)
        partition.ask_all()
        partition.given_up([lost])
        lost.ended = True
        partition.lost(lost, LOST, 0)
        assert partition.answer(follows) == DELIVERED
        (later,) = fill(partition, 3)
        assert partition.ask() is later
        assert numbers(later) == (7, 0, 3)
        assert partition.answer(later, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == FATAL

    def test_numbers_do_not_start_anew_while_something_is_in_flight(self, partition: Partition) -> None:
        confirmed(partition)
        _, lost = fill(partition, 1, 2)
        partition.ask_all()
        partition.given_up([lost])
        (new,) = fill(partition, 3)
        assert partition.ask() is new
        assert numbers(new) == (7, 0, 3)

    def test_one_before_the_gap_does_not_close_it(self, partition: Partition) -> None:
        confirmed(partition)
        before, lost, follows = fill(partition, 1, 2, 3)
        partition.ask_all()
        partition.given_up([lost])
        lost.ended = True
        partition.answer(before)
        partition.lost(lost, LOST, 0)
        assert partition.answer(follows, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == RENUMBER

    def test_all_that_waits_gets_new_numbers_once_nothing_is_in_flight(self, partition: Partition) -> None:
        confirmed(partition)
        lost, *others = fill(partition, 1, 2, 3, 4)
        partition.ask_all()
        partition.given_up([lost])
        lost.ended = True
        assert partition.answer(lost, E.NOT_ENOUGH_REPLICAS) is None
        assert partition.answer(others[0], E.OUT_OF_ORDER_SEQUENCE_NUMBER) == RENUMBER
        assert partition.phase is Phase.RENUMBERING
        assert partition.ask_all(now=9) == []
        assert partition.answer(others[1], E.OUT_OF_ORDER_SEQUENCE_NUMBER) == RETRY
        partition.lost(others[2], LOST, 0)
        sent = []
        while (one := partition.ask(now=99)) is not None:
            sent.append((one, numbers(one)))
            partition.answer(one)
        assert sent == [(others[0], (7, 1, 0)), (others[1], (7, 1, 1)), (others[2], (7, 1, 2))]

    def test_out_of_order_without_a_gap_is_fatal(self, partition: Partition) -> None:
        confirmed(partition)
        (one,) = fill(partition, 1)
        partition.ask()
        assert partition.answer(one, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == FATAL
        assert list(partition.waiting) == [one]

    def test_only_the_head_of_the_line_says_that_something_is_missing(self, partition: Partition) -> None:
        confirmed(partition)
        first, second = fill(partition, 1, 2)
        partition.ask_all()
        assert partition.answer(second, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == RETRY
        assert partition.answer(first) == DELIVERED
        assert partition.ask(now=9) is second

    def test_a_forgotten_producer_goes_on_only_if_the_batch_is_not_in_the_log(
        self, partition: Partition
    ) -> None:
        confirmed(partition)
        first, second = fill(partition, 1, 2)
        partition.ask()
        assert partition.answer(first, E.UNKNOWN_PRODUCER_ID) == RENUMBER
        assert partition.ask(now=9) is first
        assert numbers(first) == (7, 1, 0)
        partition.answer(first)
        partition.ask(now=9)
        partition.lost(second, LOST, 9)
        partition.ask(now=99)
        assert partition.answer(second, E.UNKNOWN_PRODUCER_ID) == FATAL


class TestProducerId:
    def test_nothing_is_numbered_without_one(self) -> None:
        producer_id = ProducerId()
        partition = Partition(TP, rules(), producer_id)
        (one,) = fill(partition, 1)
        assert partition.next(0, 1, ID) == NeedProducerId()
        producer_id.received(ProducerIdentity(9, 4))
        assert partition.ask() is one
        assert numbers(one) == (9, 4, 0)

    def test_used_up_epochs_ask_for_another(self, partition: Partition, producer_id: ProducerId) -> None:
        confirmed(partition)
        producer_id.received(ProducerIdentity(7, MAX_EPOCH))
        (one,) = fill(partition, 1)
        partition.ask()
        partition.answer(one, E.UNKNOWN_PRODUCER_ID)
        assert partition.next(9, 1, ID) == NeedProducerId()
        assert partition.next(9, 1, ID) == NeedProducerId()
        producer_id.received(ProducerIdentity(8, 0))
        assert partition.ask(now=9) is one
        assert numbers(one)[0] == 8

    def test_a_transactional_producer_never_raises_its_epoch_by_itself(self) -> None:
        producer_id = ProducerId("orders")
        producer_id.received(ProducerIdentity(7, 3))
        partition = confirmed(Partition(TP, rules(), producer_id))
        (one,) = fill(partition, 1)
        partition.ask()
        assert partition.answer(one, E.UNKNOWN_PRODUCER_ID) == FAIL  # its transaction aborts
        assert producer_id.current == (7, 3)

    def test_another_topic_id_starts_at_0_under_a_raised_epoch(self, partition: Partition) -> None:
        confirmed(partition)
        (recreated,) = fill(partition, 1)
        assert partition.ask(topic_id=UUID(int=2)) is recreated
        assert numbers(recreated) == (7, 1, 0)

    def test_what_waits_is_numbered_anew_in_a_recreated_topic(self, partition: Partition) -> None:
        """Behind the former numbers, one that is refused for good would be missed for ever."""
        confirmed(partition)
        first, refused, last = fill(partition, 1, 2, 3)
        assert partition.ask_all() == [first, refused, last]
        (new,) = fill(partition, 4)
        for one in (first, refused, last):
            assert partition.answer(one, E.UNKNOWN_TOPIC_ID) == REFRESH
        sent = []
        while (one := recreated(partition)) is not None:
            sent.append((one, numbers(one)))
            if one is refused:
                assert partition.answer(one, E.INVALID_RECORD) == FAIL
                partition.given_up([one])
            else:
                partition.answer(one)
        assert sent == [(first, (7, 1, 0)), (refused, (7, 1, 1)), (last, (7, 2, 0)), (new, (7, 2, 1))]

    def test_numbers_of_a_recreated_topic_wait_for_the_answers_of_the_former(
        self, partition: Partition
    ) -> None:
        confirmed(partition)
        refused, last, new = fill(partition, 1, 2, 3)
        assert [partition.ask(), partition.ask()] == [refused, last]
        assert recreated(partition) is None
        assert partition.answer(refused, E.INVALID_RECORD) == FAIL
        partition.given_up([refused])
        assert partition.answer(last, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == RENUMBER
        assert recreated(partition) is last
        partition.answer(last)
        assert recreated(partition) is new
        assert (numbers(last), numbers(new)) == ((7, 2, 0), (7, 2, 1))

    def test_none_is_numbered_anew_where_one_may_be_in_a_recreated_topic(self, partition: Partition) -> None:
        """It takes the first number that comes; once it has one, a gap behind that is certain."""
        confirmed(partition)
        first, refused, last = fill(partition, 1, 2, 3)
        partition.ask_all()
        (new,) = fill(partition, 4)
        partition.answer(first, E.UNKNOWN_TOPIC_OR_PARTITION)
        partition.answer(refused, E.UNKNOWN_TOPIC_OR_PARTITION)
        partition.lost(last, LOST, 0)
        assert recreated(partition) is first
        assert numbers(first) == (7, 0, 1)
        partition.answer(first)
        assert recreated(partition) is refused
        assert partition.answer(refused, E.INVALID_RECORD) == FAIL
        partition.given_up([refused])
        assert recreated(partition) is last
        assert numbers(last) == (7, 0, 3)
        assert partition.answer(last, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == RENUMBER
        assert recreated(partition) is last
        partition.answer(last)
        assert recreated(partition) is new
        assert (numbers(last), numbers(new)) == ((7, 2, 0), (7, 2, 1))

    def test_out_of_order_is_fatal_where_a_recreated_topic_may_have_one_from_behind(
        self, partition: Partition
    ) -> None:
        confirmed(partition)
        refused, first, lost = fill(partition, 1, 2, 3)
        partition.ask_all()
        partition.answer(refused, E.UNKNOWN_TOPIC_OR_PARTITION)
        partition.answer(first, E.UNKNOWN_TOPIC_OR_PARTITION)
        partition.lost(lost, LOST, 0)
        assert recreated(partition) is refused
        assert partition.answer(refused, E.INVALID_RECORD) == FAIL
        partition.given_up([refused])
        assert recreated(partition) is first
        assert numbers(first) == (7, 0, 2)
        assert partition.answer(first, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == FATAL

    @pytest.mark.parametrize("end", ["delivered", "lost"])
    @pytest.mark.parametrize("code", [E.UNKNOWN_TOPIC_OR_PARTITION, E.NOT_ENOUGH_REPLICAS])
    def test_out_of_order_is_fatal_where_a_topic_without_an_id_may_have_one_from_behind(
        self, partition: Partition, end: str, code: ErrorCode
    ) -> None:
        """With new numbers the last one would be there twice, or the one before it behind it."""
        confirmed(partition)
        refused, first, last = fill(partition, 1, 2, 3)
        partition.ask_all()
        partition.answer(refused, code)
        partition.answer(first, code)
        if end == "delivered":
            assert partition.answer(last) == DELIVERED
        else:
            partition.lost(last, LOST, 0)
        assert partition.ask(now=9, topic_id=None) is refused
        assert partition.answer(refused, E.INVALID_RECORD) == FAIL
        partition.given_up([refused])
        assert partition.ask(now=9, topic_id=None) is first
        certain = code is E.NOT_ENOUGH_REPLICAS and end == "lost"  # a log has none behind one that is missing
        assert partition.answer(first, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == (RENUMBER if certain else FATAL)

    @pytest.mark.parametrize("end", ["delivered", "lost"])
    def test_a_topic_that_is_asked_by_its_id_is_no_other(self, partition: Partition, end: str) -> None:
        """If it had been created again, the broker would not know that id."""
        confirmed(partition)
        refused, first, second, *behind = fill(partition, 1, 2, 3, 4, 5)
        partition.ask_all()
        partition.answer(refused, E.UNKNOWN_TOPIC_OR_PARTITION, by_id=True)
        partition.lost(first, LOST, 0)
        if end == "delivered":  # its log has the one before it, too
            assert partition.answer(second, by_id=True) == DELIVERED
        else:
            partition.lost(second, LOST, 0)
        for one in behind:
            partition.lost(one, LOST, 0)
        given_up = [refused, first, second] if end == "lost" else [refused, first]
        partition.given_up(given_up)
        assert partition.ask(now=9) is behind[0]
        assert partition.answer(behind[0], E.OUT_OF_ORDER_SEQUENCE_NUMBER, by_id=True) == RENUMBER

    @pytest.mark.parametrize(
        ("topic_id", "end"), [(None, "delivered"), (UUID(int=2), "delivered"), (UUID(int=2), "lost")]
    )
    def test_none_is_numbered_anew_that_one_from_behind_may_overtake_after_it_was_refused(
        self, partition: Partition, topic_id: UUID | None, end: str
    ) -> None:
        """The topic was created again between the two."""
        first, last = behind_a_refused(partition, 2)
        if end == "delivered":
            assert partition.answer(last) == DELIVERED
        else:
            partition.lost(last, LOST, 0)
        assert partition.ask(now=9, topic_id=topic_id) is first
        assert numbers(first) == (7, 0, 2)
        assert partition.answer(first, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == FATAL

    def test_what_is_refused_again_where_one_from_behind_may_be_in_a_recreated_topic_is_fatal(
        self, partition: Partition
    ) -> None:
        """With new numbers the last one would be there twice, or the first one behind it."""
        first, denied, last = behind_a_refused(partition, 3)
        partition.answer(denied, E.UNKNOWN_TOPIC_OR_PARTITION)
        partition.lost(last, LOST, 0)
        assert partition.ask(now=9) is first
        assert numbers(first) == (7, 0, 2)
        assert partition.answer(first, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == FATAL

    @pytest.mark.parametrize("given_up", ["in flight", "waiting"])
    def test_the_next_is_not_numbered_anew_either_where_one_from_behind_may_be_in_a_recreated_topic(
        self, partition: Partition, given_up: str
    ) -> None:
        """The first one was sent with its former numbers for this reason, and then given up."""
        first, second, last = behind_a_refused(partition, 3)
        assert partition.answer(second, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == RETRY
        assert partition.answer(last) == DELIVERED
        assert partition.ask(now=9) is first
        if given_up == "waiting":
            assert partition.answer(first, E.NOT_ENOUGH_REPLICAS) == RETRY
        partition.given_up([first])
        first.ended = True
        if given_up == "in flight":
            assert partition.answer(first, E.OUT_OF_ORDER_SEQUENCE_NUMBER) is None
        assert partition.ask(now=99) is second
        assert numbers(second) == (7, 0, 3)
        assert partition.answer(second, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == FATAL

    @pytest.mark.parametrize("denied", [True, False])
    def test_an_unknown_producer_is_fatal_where_one_from_behind_may_be_in_a_recreated_topic(
        self, partition: Partition, denied: bool
    ) -> None:
        confirmed(partition)
        first, last = fill(partition, 1, 2)
        partition.ask_all()
        code = E.UNKNOWN_TOPIC_OR_PARTITION if denied else E.NOT_ENOUGH_REPLICAS
        partition.answer(first, code)
        partition.lost(last, LOST, 0)
        assert partition.ask(now=9) is first
        assert partition.answer(first, E.UNKNOWN_PRODUCER_ID) == (FATAL if denied else RENUMBER)

    def test_a_topic_that_was_denied_is_the_same_once_it_has_the_next_in_line(
        self, partition: Partition
    ) -> None:
        confirmed(partition)
        denied = fill(partition, 1, 2)
        partition.ask_all()
        for one in denied:
            partition.answer(one, E.UNKNOWN_TOPIC_OR_PARTITION)
        for one in denied:
            assert partition.ask(now=9) is one
            assert partition.answer(one) == DELIVERED
        refused, first, last = fill(partition, 3, 4, 5)
        partition.ask_all()
        assert partition.answer(refused, E.INVALID_RECORD) == FAIL
        partition.given_up([refused])
        partition.lost(first, LOST, 0)
        partition.lost(last, LOST, 0)
        assert partition.ask(now=9) is first
        assert partition.answer(first, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == RENUMBER

    def test_a_refused_one_is_not_from_behind_itself(self, partition: Partition) -> None:
        """It is not in the log, however its first attempt ended, and no other stands behind it."""
        confirmed(partition)
        given_up, refused = fill(partition, 1, 2)
        partition.ask_all()
        partition.answer(given_up, E.UNKNOWN_TOPIC_OR_PARTITION)
        partition.lost(refused, LOST, 0)
        assert partition.ask(now=9) is given_up
        assert partition.answer(given_up, E.INVALID_RECORD) == FAIL
        partition.given_up([given_up])
        assert partition.ask(now=9) is refused
        assert partition.answer(refused, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == RENUMBER
        assert partition.ask(now=9) is refused
        assert numbers(refused) == (7, 1, 0)
        assert partition.answer(refused) == DELIVERED

    def test_the_next_counts_where_a_refused_one_is_given_up(self, partition: Partition) -> None:
        """A topic that was created again after the refusal may have begun with it."""
        refused, denied, following, last = behind_a_refused(partition, 4)
        partition.answer(denied, E.UNKNOWN_TOPIC_OR_PARTITION)
        partition.lost(following, LOST, 0)
        partition.answer(last, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
        partition.given_up([refused, denied])
        assert partition.ask(now=9) is following
        assert numbers(following) == (7, 0, 4)

    def test_a_topic_that_was_denied_with_none_in_flight_has_none_from_behind(
        self, partition: Partition
    ) -> None:
        """As a broker does that has just started, or got the partition."""
        confirmed(partition)
        refused, first, last = fill(partition, 1, 2, 3)
        partition.ask_all()
        for one in (refused, first, last):
            partition.answer(one, E.NOT_LEADER_OR_FOLLOWER)
        assert partition.ask(now=9) is refused
        partition.answer(refused, E.UNKNOWN_TOPIC_OR_PARTITION)
        assert partition.ask(now=99) is refused
        assert partition.answer(refused, E.INVALID_RECORD) == FAIL
        partition.given_up([refused])
        assert partition.ask(now=99) is first
        assert partition.answer(first, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == RENUMBER
        for one, sequence in ((first, 0), (last, 1)):
            assert partition.ask(now=99) is one
            assert numbers(one) == (7, 1, sequence)
            assert partition.answer(one) == DELIVERED

    @pytest.mark.parametrize("epoch", [0, MAX_EPOCH])
    def test_the_last_with_former_numbers_is_numbered_anew_behind_one_that_was_given_up(
        self, partition: Partition, producer_id: ProducerId, epoch: int
    ) -> None:
        """It is certain that none from behind is in the topic, also if the other id was that of a broker that
        lagged behind."""
        producer_id.received(ProducerIdentity(7, epoch))
        confirmed(partition)
        given_up, last = fill(partition, 1, 2)
        partition.ask_all()
        partition.lost(given_up, LOST, 0)
        partition.lost(last, LOST, 0)
        if epoch == MAX_EPOCH:
            assert partition.next(99, 1, UUID(int=2)) == NeedProducerId()
            producer_id.received(ProducerIdentity(8, 0))
        assert recreated(partition) is given_up
        assert numbers(given_up) == (7, epoch, 1)
        assert partition.answer(given_up, E.INVALID_RECORD) == FAIL
        partition.given_up([given_up])
        assert recreated(partition) is last
        assert partition.answer(last, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == RENUMBER
        assert recreated(partition) is last
        assert numbers(last)[2] == 0
        assert partition.answer(last) == DELIVERED

    @pytest.mark.parametrize("end", ["delivered", "given up, and may be there"])
    def test_none_is_numbered_anew_that_one_from_behind_has_overtaken(
        self, partition: Partition, end: str
    ) -> None:
        confirmed(partition)
        first, overtaking = fill(partition, 1, 2)
        partition.ask_all()
        partition.answer(first, E.UNKNOWN_TOPIC_OR_PARTITION)
        if end == "delivered":
            assert partition.answer(overtaking) == DELIVERED
        else:
            partition.given_up([overtaking])
            overtaking.ended = True
            partition.lost(overtaking, LOST, 0)
        assert recreated(partition) is first
        assert numbers(first) == (7, 0, 1)
        assert partition.answer(first, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == FATAL

    def test_a_broker_that_knows_no_id_changes_no_numbers(
        self, partition: Partition, producer_id: ProducerId
    ) -> None:
        confirmed(partition)
        for order, topic_id, wanted in [(1, UUID(int=2), 0), (2, None, 1), (3, UUID(int=2), 2)]:
            (batch,) = fill(partition, order)
            assert partition.ask(topic_id=topic_id) is batch
            assert numbers(batch) == (7, 1, wanted)
            partition.answer(batch)
        assert producer_id.current == (7, 1)

    def test_no_number_comes_twice_where_the_former_topic_is_that_of_now_after_all(
        self, partition: Partition
    ) -> None:
        """The broker that gave the other id was the one that lagged behind."""
        confirmed(partition)
        for order, (topic_id, epoch) in enumerate([(UUID(int=2), 1), (ID, 2), (ID, 2)]):
            (batch,) = fill(partition, order + 1)
            assert partition.ask(topic_id=topic_id) is batch
            assert numbers(batch) == (7, epoch, 1 if order == 2 else 0)
            partition.answer(batch)

    def test_an_id_that_is_learnt_late_changes_no_numbers(self, partition: Partition) -> None:
        """Brokers of the same cluster before and after Kafka 2.8."""
        for order, topic_id in enumerate([None, ID, None, ID]):
            (batch,) = fill(partition, order)
            assert partition.ask(topic_id=topic_id) is batch
            assert numbers(batch) == (7, 0, order)
            partition.answer(batch)

    def test_a_topic_that_is_recreated_while_brokers_name_no_id_starts_at_0(
        self, partition: Partition
    ) -> None:
        confirmed(partition)
        (before,) = fill(partition, 1)
        assert partition.ask(topic_id=None) is before
        partition.answer(before)
        (recreated,) = fill(partition, 2)
        assert partition.ask(topic_id=UUID(int=2)) is recreated
        assert (numbers(before), numbers(recreated)) == ((7, 0, 1), (7, 1, 0))

    def test_a_transaction_writes_nothing_while_the_last_one_is_not_answered(self) -> None:
        producer_id = ProducerId("tx")
        producer_id.received(ProducerIdentity(7, 0))
        partition = confirmed(Partition(TP, rules(), producer_id))
        former, own = fill(partition, 1, 2)
        assert partition.ask() is former
        producer_id.received(ProducerIdentity(7, 1))
        assert partition.ask() is None
        partition.answer(former)
        assert partition.ask() is own
        assert numbers(own) == (7, 1, 0)

    def test_each_transaction_starts_at_0_also_in_a_recreated_topic(self) -> None:
        producer_id = ProducerId("tx")
        partition = Partition(TP, rules(), producer_id)
        for epoch, topic_id in enumerate([ID, UUID(int=2)]):
            producer_id.received(ProducerIdentity(7, epoch))
            (batch,) = fill(partition, epoch)
            assert partition.ask(topic_id=topic_id) is batch
            assert numbers(batch) == (7, epoch, 0)
            partition.answer(batch)
        (late,) = fill(partition, 2)
        assert partition.ask(topic_id=ID) is late  # a broker lags behind
        assert numbers(late) == (7, 1, 1)


class TestSpilledBatches:
    def test_one_is_read_first_and_goes_alone_with_its_numbers(self, partition: Partition) -> None:
        confirmed(partition)
        old, data = spilled(1, (99, 5, 42), possibly_persisted=True)
        partition.add(old)
        (new,) = fill(partition, 1)
        assert partition.next(0, 1, ID) == Load(old)
        partition.loaded(old, data)
        assert partition.ask_all() == [old]
        assert numbers(old) == (99, 5, 42)
        assert old.sending.indefinite
        partition.answer(old)
        assert partition.ask() is new
        assert numbers(new) == (7, 0, 1)

    @pytest.mark.parametrize(
        "code", [E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.INVALID_PRODUCER_EPOCH, E.UNKNOWN_PRODUCER_ID]
    )
    def test_stale_numbers_are_replaced_and_those_of_the_next_one_kept(
        self, partition: Partition, code: ErrorCode
    ) -> None:
        first, second = two_loaded(partition)
        (new,) = fill(partition, 1)
        assert partition.ask() is first
        assert partition.answer(first, code) == RENUMBER
        assert partition.next(9, 1, ID) == Send(first, numbered=True)
        partition.sent(first, 1)
        assert numbers(first) == (7, 1, 0)
        partition.answer(first)
        assert partition.ask(now=9) is second
        assert numbers(second) == (99, 5, 44)
        partition.answer(second)
        assert partition.ask(now=9) is new
        assert numbers(new) == (7, 1, 1)

    @pytest.mark.parametrize(
        "code", [E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.INVALID_PRODUCER_EPOCH, E.UNKNOWN_PRODUCER_ID]
    )
    def test_stale_numbers_are_replaced_also_after_a_lost_answer(
        self, partition: Partition, code: ErrorCode
    ) -> None:
        first, _ = two_loaded(partition)
        assert partition.ask() is first
        assert partition.lost(first, LOST, 0) == REFRESH
        assert partition.ask(now=9) is first
        assert numbers(first) == (99, 5, 43)
        assert partition.answer(first, code) == RENUMBER
        assert partition.ask(now=99) is first
        assert numbers(first) == (7, 1, 0)

    def test_one_follows_nothing(self, partition: Partition) -> None:
        confirmed(partition)
        (own,) = fill(partition, 1)
        partition.ask()
        old, _ = spilled(1, (99, 5, 42))
        partition.add(old)
        assert partition.next(0, 1, ID) is None
        partition.answer(own)
        assert partition.next(0, 1, ID) == Load(old)

    def test_without_idempotence_stale_numbers_are_removed(self) -> None:
        partition = Partition(TP, rules(), None)
        old, data = spilled(1, (99, 5, 42))
        partition.add(old)
        partition.loaded(old, data)
        partition.ask()
        assert partition.answer(old, E.INVALID_PRODUCER_EPOCH) == RENUMBER
        assert partition.ask(now=9) is old
        assert numbers(old) == (-1, -1, -1)

    def test_without_idempotence_the_next_one_keeps_the_numbers_by_which_it_is_recognised(self) -> None:
        partition = Partition(TP, rules(), None)
        first, second = two_loaded(partition)
        assert partition.ask() is first
        assert partition.answer(first, E.INVALID_PRODUCER_EPOCH) == RENUMBER
        assert partition.ask(now=9) is first
        assert partition.answer(first) == DELIVERED
        assert partition.ask(now=9) is second
        assert [numbers(first), numbers(second)] == [(-1, -1, -1), (99, 5, 44)]

    def test_where_no_broker_answers_one_follows_nothing_either(self) -> None:
        partition = Partition(TP, rules(pipelined=True), None)
        (own,) = fill(partition, 1)
        old, data = spilled(2, (99, 5, 42))
        partition.add(old)
        partition.loaded(old, data)
        (later,) = fill(partition, 3)
        assert partition.ask_all() == [own]
        partition.written(own, 0)
        assert partition.ask_all() == [old]
        partition.written(old, 0)
        assert partition.ask_all() == [later]

    def test_without_idempotence_it_is_read_first_too(self) -> None:
        partition = Partition(TP, rules(), None)
        old, data = spilled(1, (99, 5, 42))
        partition.add(old)
        assert partition.next(0, 1, ID) == Load(old)
        partition.loaded(old, data)
        assert partition.next(0, 1, ID) == Send(old, numbered=False)

    @pytest.mark.parametrize("end", ["answered", "refused", "lost", "written"])
    def test_its_time_begins_when_the_one_in_front_has_ended(self, end: str) -> None:
        """It expired at once if that was long after the last look at all batches."""
        partition = Partition(TP, rules(retries=1, pipelined=True), None)
        first, second = two_loaded(partition)
        assert partition.ask() is first
        partition.lost(first, LOST, 1.0)
        began, first_began = second.sending.since, first.sending.since
        assert partition.ask(now=9.0) is first
        match end:
            case "answered":
                partition.answer(first, now=100.0)
            case "refused":
                partition.answer(first, E.INVALID_RECORD, now=100.0)
                partition.given_up([first])
            case "lost":
                partition.lost(first, LOST, 100.0)
                partition.given_up([first])
            case "written":
                partition.written(first, 100.0)
        assert (began, second.sending.since) == (1.0, 100.0)
        assert first.sending.since == first_began
        assert partition.ask(now=101.0) is second
        partition.lost(second, LOST, 102.0)
        assert second.sending.since == 100.0

    def test_the_time_of_one_that_was_never_spilled_goes_on(self, partition: Partition) -> None:
        """Or records behind others would outlive delivery.timeout.ms with each answer."""
        confirmed(partition)
        first, second = fill(partition, 1, 2)
        began = second.sending.since
        assert partition.ask() is first
        partition.answer(first, now=100.0)
        assert second.sending.since == began != 100.0

    def test_after_a_spill_what_is_in_flight_goes_along_unless_nothing_would_recognise_it(
        self, partition: Partition
    ) -> None:
        confirmed(partition)
        first, second, third, fourth = fill(partition, 1, 2, 3, 4)
        assert [partition.ask(), partition.ask()] == [first, second]
        assert partition.spillable([third]) == [first, second, fourth]
        partition.given_up([third])
        partition.spilled()
        assert partition.spilling
        second.ended = True
        assert partition.spillable([third]) == [first, fourth]
        unnumbered = Partition(TP, rules(pipelined=True), None)
        first, second = fill(unnumbered, 1, 2)
        assert unnumbered.ask() is first
        assert unnumbered.spillable([second]) == []
        unnumbered.given_up([second])
        unnumbered.spilled()
        unnumbered.lost(first, LOST, 0)
        assert unnumbered.ask(now=9) is first  # it stands before the spilled batches
        assert unnumbered.spilling

    def test_after_a_spill_each_batch_that_stands_before_goes_alone(self) -> None:
        """Also where no broker answers: if it is spilled in its turn, no later one may be in the log."""
        partition = Partition(TP, rules(pipelined=True), None)
        first, second, third = fill(partition, 1, 2, 3)
        assert [partition.ask(), partition.ask()] == [first, second]
        partition.given_up([third])
        partition.spilled()
        partition.lost(first, LOST, 0)
        partition.lost(second, LOST, 0)
        assert partition.ask_all(now=9) == [first]
        assert partition.ready_at() is None
        partition.written(first, 0)
        assert partition.ask_all(now=9) == [second]


class TestWithoutNumbers:
    def test_one_at_a_time(self) -> None:
        partition = Partition(TP, rules(), None)
        first, second = fill(partition, 1, 2)
        assert partition.ask_all() == [first]
        assert numbers(first) == (-1, -1, -1)
        partition.answer(first)
        assert partition.ask_all() == [second]

    def test_nothing_new_is_in_their_bytes(self) -> None:
        partition = Partition(TP, rules(), None)
        (one,) = fill(partition, 1)
        assert partition.next(0, 1, ID) == Send(one, numbered=False)

    def test_all_at_once_where_nothing_is_sent_again(self) -> None:
        partition = Partition(TP, rules(pipelined=True), None)
        sent = fill(partition, 1, 2, 3)
        assert partition.ask_all() == sent
        for one in sent:
            partition.written(one, 0)
        assert partition.idle

    def test_what_comes_back_is_sent_again_when_the_others_have_come_back_too(self) -> None:
        partition = Partition(TP, rules(pipelined=True), None)
        first, second, third = fill(partition, 1, 2, 3)
        assert [partition.ask(), partition.ask()] == [first, second]
        partition.lost(first, LOST, 0)
        assert partition.ask_all(now=9) == []
        partition.lost(second, LOST, 0)
        assert partition.ask_all(now=9) == [first, second, third]


class TestTopics:
    def test_one_that_is_denied_for_long_is_gone(self, partition: Partition) -> None:
        (one,) = fill(partition, 1)
        for now, verdict in (
            (0, REFRESH),
            (20, REFRESH),
            (30, REFRESH),
            (31, GONE),
        ):
            assert partition.ask(now=now + 100) is one
            partition._not_before = 0
            assert partition.answer(one, E.UNKNOWN_TOPIC_OR_PARTITION, now=now) == verdict
        assert list(partition.waiting) == [one]  # to be given up

    def test_one_that_is_denied_at_both_ends_of_a_long_time_is_gone(self, partition: Partition) -> None:
        """A moment of 0 is one like any other."""
        assert not partition.denied(E.UNKNOWN_TOPIC_ID, 0)
        assert partition.denied(E.UNKNOWN_TOPIC_ID, 31)

    @pytest.mark.parametrize("between", [E.NOT_LEADER_OR_FOLLOWER, E.NOT_ENOUGH_REPLICAS])
    def test_any_other_word_starts_the_clock_again(self, partition: Partition, between: ErrorCode) -> None:
        assert not partition.denied(E.UNKNOWN_TOPIC_ID, 0)
        assert not partition.denied(between, 20)
        assert not partition.denied(E.UNKNOWN_TOPIC_ID, 31)
        assert partition.denied(E.UNKNOWN_TOPIC_ID, 62)

    def test_a_delivery_starts_the_clock_again(self, partition: Partition) -> None:
        first, second = fill(partition, 1, 2)
        assert partition.ask() is first
        assert partition.answer(first, E.UNKNOWN_TOPIC_OR_PARTITION, now=0) == REFRESH
        assert partition.ask(now=10) is first
        assert partition.answer(first, now=10) == DELIVERED
        assert partition.ask(now=20) is second
        assert partition.answer(second, E.UNKNOWN_TOPIC_OR_PARTITION, now=40) == REFRESH

    def test_one_that_comes_when_nothing_waits_starts_the_clock_again(self, partition: Partition) -> None:
        """Hours may lie between: the topic was there again, or another one has its name."""
        (expired,) = fill(partition, 1)
        assert partition.ask() is expired
        assert partition.answer(expired, E.UNKNOWN_TOPIC_OR_PARTITION, now=0) == REFRESH
        partition.given_up([expired])
        later, behind = fill(partition, 2, 3)
        for now, verdict in ((3_600, REFRESH), (3_631, GONE)):
            assert partition.ask(now=now) is later
            assert partition.answer(later, E.UNKNOWN_TOPIC_OR_PARTITION, now=now) == verdict
        assert list(partition.waiting) == [later, behind]

    def test_metadata_that_know_it_count_unless_its_leader_denied_it_since(
        self, partition: Partition
    ) -> None:
        (one,) = fill(partition, 1)
        partition.denied(E.UNKNOWN_TOPIC_OR_PARTITION, 0)
        partition.refreshed()
        assert not partition.denied(E.UNKNOWN_TOPIC_OR_PARTITION, 31)
        partition.ask()
        partition.answer(one, E.UNKNOWN_TOPIC_OR_PARTITION, now=31)
        partition.refreshed()
        assert partition.denied(E.UNKNOWN_TOPIC_OR_PARTITION, 62)

    def test_metadata_do_not_count_while_the_batch_that_its_leader_denied_is_sent_again(
        self, partition: Partition
    ) -> None:
        first, _ = fill(partition, 1, 2)
        partition.ask()
        partition.answer(first, E.UNKNOWN_TOPIC_OR_PARTITION, now=0)
        assert partition.ask(now=9) is first
        partition.refreshed()
        assert partition.denied(E.UNKNOWN_TOPIC_OR_PARTITION, 31)

    def test_metadata_that_know_it_count_also_while_it_has_no_leader(self, partition: Partition) -> None:
        fill(partition, 1)
        partition.denied(E.UNKNOWN_TOPIC_OR_PARTITION, 0)
        partition.held_up(BrokerError(E.LEADER_NOT_AVAILABLE, str(TP)))
        partition.refreshed()
        assert not partition.denied(E.UNKNOWN_TOPIC_OR_PARTITION, 31)

    def test_metadata_that_know_it_count_also_where_nothing_waits(self, partition: Partition) -> None:
        partition.denied(E.UNKNOWN_TOPIC_OR_PARTITION, 0)
        partition.refreshed()
        assert not partition.denied(E.UNKNOWN_TOPIC_OR_PARTITION, 31)

    def test_without_a_leader_it_waits_longer_and_longer(self, partition: Partition) -> None:
        fill(partition, 1)
        assert [partition.without_leader(100), partition.without_leader(200)] == [100.5, 201]
        assert partition.ready_at() == 201

    def test_what_it_waits_for_is_noted_on_the_first_batch(self, partition: Partition) -> None:
        partition.held_up(LOST)
        first, second = fill(partition, 1, 2)
        partition.held_up(LOST)
        assert (first.sending.last_error, second.sending.last_error) == (LOST, None)


class TestSplits:
    def test_halves_take_the_place_and_the_numbers(self, partition: Partition) -> None:
        confirmed(partition)
        large, after = fill(partition, 1, 2, records=5)
        assert partition.ask_all() == [large, after]
        partition.answer(large, E.MESSAGE_TOO_LARGE)
        assert partition.phase is Phase.DRAINING
        halves = []
        for place, values in enumerate(([b"a", b"b"], [b"c", b"d", b"e"])):
            halves.append(Batch(TP, encode(values), len(values), 0, [], 0, (1, place), SendingState(0.0)))
        partition.take_over(large, halves)
        partition.replace(large, halves)
        assert [numbers(half) for half in halves] == [(7, 0, 1), (7, 0, 3)]
        assert [half.sending.indefinite for half in halves] == [False, False]
        assert partition.ask(now=9) is None
        assert partition.answer(after, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == RETRY
        assert list(partition.waiting) == [*halves, after]
        assert partition.ask_all(now=9) == halves[:1]
        assert partition.unended() == [*halves, after]

    def test_a_refusal_for_the_size_is_no_retry(self, producer_id: ProducerId) -> None:
        partition = Partition(TP, rules(retries=1), producer_id)
        (large,) = fill(partition, 1, records=2)
        for order in ((1, 0), (1, 0, 0)):
            assert partition.ask() is large
            assert partition.answer(large, E.MESSAGE_TOO_LARGE) == SPLIT
            half = Batch(TP, encode([b"a", b"b"]), 2, 0, [], 0, order, SendingState(0.0))
            partition.take_over(large, [half])
            partition.replace(large, [half])
            large = half
        for now, verdict in ((0, RETRY), (9, EXHAUSTED)):
            assert partition.ask(now=now) is large
            assert partition.answer(large, E.NOT_ENOUGH_REPLICAS) == verdict

    def test_halves_of_what_may_be_in_the_log_may_be_there(self, partition: Partition) -> None:
        (large,) = fill(partition, 1, records=2)
        partition.ask()
        partition.lost(large, LOST, 0)
        half = batch(1)
        partition.take_over(large, [half])
        assert half.sending.indefinite
        assert half.sending.of_indefinite

    @pytest.mark.parametrize("first", [LOST, E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS])
    def test_halves_of_what_may_be_in_the_log_get_no_new_numbers(
        self, partition: Partition, first: Any
    ) -> None:
        """Behind a gap they would be there twice."""
        confirmed(partition)
        given_up, large = fill(partition, 1, 2, records=2)
        partition.ask_all()
        partition.lost(given_up, LOST, 0)
        if first is LOST:
            partition.lost(large, LOST, 0)
        else:
            partition.answer(large, first)
        partition.given_up([given_up])
        assert partition.ask(now=9) is large
        assert partition.answer(large, E.MESSAGE_TOO_LARGE) == SPLIT
        half = batch(2)
        partition.take_over(large, [half])
        partition.replace(large, [half])
        assert partition.ask(now=99) is half
        is_certain = first is E.NOT_ENOUGH_REPLICAS
        assert partition.answer(half, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == (RENUMBER if is_certain else FATAL)

    @pytest.mark.parametrize("end", ["delivered", "a duplicate", "delivered late", "given up"])
    def test_a_half_in_the_log_shows_that_the_whole_is_not_there(
        self, partition: Partition, end: str
    ) -> None:
        confirmed(partition)
        (whole,) = fill(partition, 1, records=4)
        partition.ask()
        partition.lost(whole, LOST, 0)
        first, second = split(partition, whole)
        assert partition.ask(now=9) is first
        if end == "a duplicate":
            partition.lost(first, LOST, 9)
            assert partition.ask(now=99) is first
        if end in ("delivered late", "given up"):
            partition.given_up([first])
            first.ended = True
        code = {"a duplicate": E.DUPLICATE_SEQUENCE_NUMBER, "given up": E.INVALID_RECORD}.get(end, E.NONE)
        partition.answer(first, code)
        refused, last = split(partition, second, now=999)
        assert last.sending.indefinite  # in a topic that was deleted, perhaps
        assert partition.ask(now=9999) is refused
        assert partition.answer(refused, E.INVALID_RECORD) == FAIL
        partition.given_up([refused])
        assert partition.ask(now=9999) is last
        verdict = partition.answer(last, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
        assert verdict == (FATAL if end == "given up" else RENUMBER)

    @pytest.mark.parametrize("lost", ["the half", "the whole behind it"])
    def test_a_half_in_the_log_says_nothing_of_what_was_sent_later(
        self, partition: Partition, lost: str
    ) -> None:
        confirmed(partition)
        (whole,) = fill(partition, 1, records=4)
        partition.ask()
        partition.lost(whole, LOST, 0)
        first, second = split(partition, whole)
        if lost == "the whole behind it":
            (other,) = fill(partition, 2, records=4)
        assert partition.ask(now=9) is first
        assert partition.answer(first) == DELIVERED
        assert partition.ask(now=9) is second
        if lost == "the whole behind it":
            assert partition.answer(second) == DELIVERED
            assert partition.ask(now=9) is other
            second = other
        partition.lost(second, LOST, 9)
        refused, last = split(partition, second, now=99)
        assert partition.ask(now=999) is refused
        assert partition.answer(refused, E.INVALID_RECORD) == FAIL
        partition.given_up([refused])
        assert partition.ask(now=999) is last
        assert partition.answer(last, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == FATAL

    def test_the_half_of_another_says_nothing(self, partition: Partition) -> None:
        confirmed(partition)
        wholes = fill(partition, 1, 2, records=4)
        partition.ask_all()
        for one in wholes:
            partition.lost(one, LOST, 0)
        halves = split(partition, wholes[0])
        refused, last = halves_of(partition, wholes[1])
        for half in halves:
            assert partition.ask(now=9) is half
            assert partition.answer(half) == DELIVERED
        assert partition.ask(now=9) is refused
        assert partition.answer(refused, E.INVALID_RECORD) == FAIL
        partition.given_up([refused])
        assert partition.ask(now=9) is last
        assert partition.answer(last, E.OUT_OF_ORDER_SEQUENCE_NUMBER) == FATAL

    def test_halves_of_what_is_not_in_the_log_are_like_any_others(self, partition: Partition) -> None:
        (large,) = fill(partition, 1, records=2)
        partition.ask()
        assert partition.answer(large, E.MESSAGE_TOO_LARGE) == SPLIT
        half = batch(1)
        partition.take_over(large, [half])
        assert not half.sending.of_indefinite


class TestRules:
    @pytest.mark.parametrize(
        ("settings", "sets_apart", "pipelined"),
        [
            ({}, False, False),
            ({"over_limit": "skip"}, True, False),
            ({"over_limit": "dead_letter", "dead_letter_topic": "d"}, True, False),
            ({"acks": 1, "enable_idempotence": False}, False, False),
            ({"acks": 0, "enable_idempotence": False}, False, True),
        ],
    )
    def test_what_the_configuration_sets(
        self, settings: dict[str, Any], sets_apart: bool, pipelined: bool
    ) -> None:
        client = ClientConfig(bootstrap_servers=("b:1",), retry_backoff_ms=200, retry_backoff_max_ms=200)
        found = SendingRules.of(ProducerConfig(retries=3, **settings), client)
        assert (found.sets_apart, found.pipelined, found.retries) == (sets_apart, pipelined, 3)
        assert 0.1 < found.delay_s(0) < 0.3


class TestTransitions:
    def test_every_phase_has_a_next_one_for_every_event_that_can_come(self) -> None:
        missing = {(phase, event) for phase in Phase for event in QueueEvent} - set(TRANSITIONS)
        assert missing == {
            # Numbers start anew only where nothing is in flight, and a draining partition opens then.
            (Phase.DRAINING, QueueEvent.NUMBERED_ANEW),
        }

    def test_only_new_numbers_and_the_spill_folder_end_renumbering(self) -> None:
        leaving = {key: to for key, to in TRANSITIONS.items() if key[0] is not to}
        assert leaving == {
            (Phase.OPEN, QueueEvent.PUT_BACK): Phase.DRAINING,
            (Phase.OPEN, QueueEvent.NUMBERS_REFUSED): Phase.RENUMBERING,
            (Phase.DRAINING, QueueEvent.NUMBERS_REFUSED): Phase.RENUMBERING,
            (Phase.DRAINING, QueueEvent.DRAINED): Phase.OPEN,
            (Phase.DRAINING, QueueEvent.SPILLED): Phase.OPEN,
            (Phase.RENUMBERING, QueueEvent.NUMBERED_ANEW): Phase.OPEN,
            (Phase.RENUMBERING, QueueEvent.SPILLED): Phase.OPEN,
        }
