"""Sending spilled batches again, step by step, with literals; nothing runs by itself."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace

import pytest
from support.producer.sending_batches import TP, SendingHalf, batch, numbers

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, NetworkError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.accumulating.batch import ProducerIdentity
from spark_kafka_native.kafka.producer.completion import OVERTAKING
from spark_kafka_native.kafka.producer.delivery import Waiters
from spark_kafka_native.kafka.producer.errors import DeliveryStatus, RecordError
from spark_kafka_native.kafka.producer.spill_folder import NewEntry, SpillError, SpillFolder
from spark_kafka_native.kafka.producer.spilling import Healing, Replay

LOST = NetworkError("the connection was lost")


class World:
    def __init__(self, folder):
        self.folder, self.ends, self.replays = folder, [], 0
        self.half = half = SendingHalf(folder)
        self.partition = half.queues.of(TP)
        nothing_left = SimpleNamespace(retry=lambda: False)
        self.healing = Healing(
            half.queues, half.completion.expect, half.spilling, half.timer, nothing_left, first_ms=1_000
        )

    def add(self, *orders):
        return [self.half.wait_in(batch(order), self.ends) for order in orders]

    def fail(self, *batches):
        self.half.failures.fail(list(batches), "too late", LOST)

    def turn(self, now):
        self.healing.turn(now)
        return [one.order for one in self.partition.waiting]

    def deliver(self, one):
        self.partition.given_up([one])
        self.half.completion.delivered(one, DeliveryStatus.PERSISTED, 0, None)

    @property
    def left(self):
        return [one.order for b in self.half.spilling.backlogs.values() for one in b.batches]


@pytest.fixture
def world(tmp_path):
    folder = SpillFolder(str(tmp_path))
    yield World(folder)
    folder.close()


def test_batches_of_partitions_that_a_topic_has_are_handed_over_and_others_once_it_has_them(tmp_path):
    folder, posted = SpillFolder(str(tmp_path)), []
    kept = [NewEntry(TopicPartition("t", p), None, 1, False, "why", batch(p).data) for p in (2, 0, 1, 0)]
    replay = Replay(folder.keep(kept), posted.extend, Waiters())
    steps = []
    for partitions in (1, 2, 3):
        replay.post(SimpleNamespace(topic="t", partitions=partitions))
        steps.append([(one.topic_partition.partition, one.order) for one in posted])
        posted.clear()
    assert steps == [[(0, (0, 1)), (0, (0, 3))], [(1, (0, 2))], [(2, (0, 0))]]
    assert not replay.left
    folder.close()


def test_nothing_is_tried_before_all_that_stands_in_front_has_ended(world):
    world.fail(*world.add(2))
    (earlier,) = world.add(1)
    assert [world.turn(now) for now in (0, 10, 100)] == [[(1,)]] * 3
    world.deliver(earlier)
    world.half.queues.retire_idle()
    assert world.turn(101) == []
    assert world.turn(103) == [(2,)]


def test_the_first_is_tried_and_then_all_others_follow_in_order(world):
    world.fail(*world.add(1, 2, 3))
    assert world.partition.spilling
    assert world.turn(0) == []
    assert world.turn(0.7) == []  # the interval has begun, with its jitter
    assert world.turn(1.3) == [(1,)]
    assert world.partition.spilling
    late = world.add(4)
    world.half.failures.fail(late, OVERTAKING, None)
    assert world.turn(2) == [(1,)]  # a later one does not end the try
    world.deliver(world.partition.waiting[0])
    assert world.turn(3) == [(2,), (3,), (4,)]
    assert [one.order for one in world.half.completion.incomplete] == [(2,), (3,), (4,)]  # a flush waits
    assert not world.partition.spilling
    assert world.half.spilling.backlogs == {}
    assert [one.sending.since for one in world.partition.waiting] == [3, 3, 3]


@pytest.mark.parametrize(
    ("cause", "kept", "stays"),
    [
        (None, True, True),
        (LOST, True, True),
        (BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS, "t-0"), True, True),
        (BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t-0"), True, True),
        (BrokerError(ErrorCode.CORRUPT_MESSAGE, "t-0"), True, False),
        (BrokerError(ErrorCode.MESSAGE_TOO_LARGE, "t-0"), False, False),
        (BrokerError(ErrorCode.INVALID_TIMESTAMP, "t-0"), False, False),
        (BrokerError(ErrorCode.INVALID_RECORD, "t-0"), False, False),
        (BrokerError(ErrorCode.RECORD_LIST_TOO_LARGE, "t-0"), False, False),
        (BrokerError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "t-0"), False, False),
        (BrokerError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "t-0"), False, False),
        (RecordError("it can't be encoded"), False, False),
    ],
)
def test_for_which_causes_a_batch_is_kept_and_stays_to_be_tried_again(world, cause, kept, stays):
    keeps = world.half.spilling.keeps
    assert (keeps(cause), keeps(cause, once_more=True)) == (kept, stays)
    (one,) = world.add(1)
    world.half.failures.fail([one], "why", cause)
    assert (len(world.left), world.ends[0][1].error.spilled) == (int(kept), kept)


def test_a_try_keeps_the_numbers_and_has_all_attempts_before_it(world):
    (one,) = world.add(1)
    sending = one.sending
    sending.identity, sending.base_sequence = ProducerIdentity(7, 3), 40
    sending.attempts, sending.indefinite, sending.last_error = 9, True, LOST
    world.fail(one)
    world.turn(0)
    assert world.turn(1.3) == [(1,)]
    again = world.partition.waiting[0].sending
    assert (again.identity, again.base_sequence, again.indefinite) == ((7, 3), 40, True)
    assert (again.attempts, again.last_error) == (0, None)


def test_a_try_with_a_lost_answer_is_remembered_though_the_folder_does_not_know_of_it(world):
    """Without sequence numbers nothing is written to the folder before a try."""
    world.fail(*world.add(1))
    world.turn(0)
    world.turn(1.3)
    (once,) = world.partition.waiting
    once.sending.indefinite = True
    again = once.sent_again_from(once.spilled)
    assert not again.spilled.possibly_persisted
    world.partition.loaded(again, again.spilled.read())
    assert again.undelivered_status is DeliveryStatus.POSSIBLY_PERSISTED


def test_what_is_sent_under_other_numbers_is_kept_as_possibly_persisted(world, tmp_path):
    """It is written to the folder before it is sent: from then on it may be in the log."""
    world.fail(*world.add(1))
    world.turn(0)
    world.turn(1.3)
    again = world.partition.waiting[0]
    assert (again.sending.indefinite, again.spilled.possibly_persisted) == (False, False)
    world.half.spilling.replace(again, [again])
    assert again.spilled.possibly_persisted
    world.folder.close()
    with closing(SpillFolder(str(tmp_path))) as reopened:
        assert [entry.possibly_persisted for entry in reopened.entries] == [True]


def test_what_is_refused_again_is_tried_at_growing_intervals(world):
    world.fail(*world.add(1, 2))
    world.turn(0)
    now = 1.3
    for interval in (2, 4, 8, 16, 30, 30):
        assert world.turn(now) == [(1,)]
        world.fail(world.partition.waiting[0])
        world.turn(now)  # sees it
        world.turn(now)  # counts from here
        assert world.turn(now + interval * 0.79) == []
        assert world.left == [(1,), (2,)]
        now += interval * 1.21
    assert len(world.ends) == 2  # each was reported once


def test_all_others_follow_also_after_a_try_that_was_refused(world):
    world.fail(*world.add(1, 2, 3))
    world.turn(0)
    assert world.turn(1.3) == [(1,)]
    world.fail(world.partition.waiting[0])
    for now in (1.3, 1.3):
        world.turn(now)
    assert world.turn(4) == [(1,)]
    world.deliver(world.partition.waiting[0])
    assert world.turn(5) == [(2,), (3,)]
    assert not world.partition.spilling


def test_a_batch_from_the_folder_gives_no_room_back(world):
    """It took none: else the buffer would hold more and more records than it may."""
    world.fail(*world.add(1))
    before = world.half.completion._memory.used
    world.turn(0)
    world.turn(1.3)
    world.deliver(world.partition.waiting[0])
    assert world.half.completion._memory.used == before


def test_the_first_interval_may_be_longer_than_the_longest_usual_one(world):
    half = world.half
    nothing_left = SimpleNamespace(retry=lambda: False)
    world.healing = Healing(
        half.queues, half.completion.expect, half.spilling, half.timer, nothing_left, first_ms=100_000
    )
    world.fail(*world.add(1))
    for now in (0, 79):
        assert world.turn(now) == []
    assert world.turn(121) == [(1,)]


def test_a_try_has_failed_though_new_records_are_given_up_behind_it_before_that_is_seen(world):
    world.fail(*world.add(1, 2))
    world.turn(0)
    assert world.turn(1.3) == [(1,)]
    world.fail(world.partition.waiting[0])
    world.half.failures.fail(world.add(3), OVERTAKING, None)
    world.turn(1.3)  # sees it
    assert world.turn(1.3) == []
    assert world.left == [(1,), (2,), (3,)]
    assert world.partition.spilling
    assert world.turn(1.3 + 2 * 1.21) == [(1,)]


def test_nothing_is_tried_before_the_answer_to_what_is_in_flight(world):
    first, second = world.add(1, 2)
    first.sending.identity = ProducerIdentity(7, 0)
    world.partition.sent(first, 1)
    world.fail(first, second)
    for now in (0, 10, 100):
        assert world.turn(now) == []
        assert world.left == [(1,), (2,)]
    # It says that the batch is in the log: the folder lets go of it.
    world.partition.written(first, 0)
    world.half.completion.delivered(first, DeliveryStatus.PERSISTED, 5, None)
    assert world.left == [(2,)]
    world.turn(200)
    assert world.turn(202) == [(2,)]
    assert world.half.stats.offsets().partitions == {TP: 6}


def test_a_try_is_in_flight_from_its_sending_to_its_answer(world):
    """A producer that ends waits for its answer, and not for a leader that takes nothing."""
    world.fail(*world.add(1, 2))
    assert not world.healing.in_flight
    world.turn(0)
    assert world.turn(1.3) == [(1,)]
    assert not world.healing.in_flight
    tried = world.partition.waiting[0]
    world.partition.sent(tried, 1)
    assert world.healing.in_flight
    world.partition.lost(tried, LOST, 1.4)
    assert list(world.partition.waiting) == [tried]
    assert not world.healing.in_flight


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_late_answer_takes_its_own_batch_out_of_the_folder(world, tmp_path, late):
    batches = world.add(1, 2, 3)
    for one in batches:
        one.sending.identity = ProducerIdentity(7, 0)
        world.partition.sent(one, 1)
    world.fail(*batches)
    world.partition.written(batches[late], 0)
    world.half.completion.delivered(batches[late], DeliveryStatus.PERSISTED, 5, None)
    numbers_left = [number for number in range(3) if number != late]
    assert world.left == [batches[number].order for number in numbers_left]
    world.folder.close()
    with closing(SpillFolder(str(tmp_path))) as reopened:
        assert [entry.number for entry in reopened.entries] == numbers_left


def test_a_late_answer_about_a_batch_that_found_no_room_in_the_folder_changes_nothing(world, monkeypatch):
    (first,) = world.add(1)
    first.sending.identity = ProducerIdentity(7, 0)
    world.partition.sent(first, 1)

    def full(_entries):
        raise SpillError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(world.folder, "keep", full)
        world.fail(first)
    world.fail(*world.add(2))
    assert world.left == [(2,)]
    world.partition.written(first, 0)
    world.half.completion.delivered(first, DeliveryStatus.PERSISTED, 5, None)
    assert world.left == [(2,)]


def test_batches_of_an_earlier_producer_are_tried_again_though_others_wake_the_sender_meanwhile(world):
    tried = []
    replay = SimpleNamespace(retry=lambda: tried.append(1) is None)
    half = world.half
    healing = Healing(half.queues, half.completion.expect, half.spilling, half.timer, replay, first_ms=1_000)
    half.timer.start_turn()
    healing.turn(2.0)
    next_at = half.timer.next_at
    assert 2.0 < next_at < 5.0
    half.timer.start_turn()
    healing.turn(2.1)
    assert (len(tried), half.timer.next_at) == (1, next_at)
    healing.turn(next_at)
    assert len(tried) == 2


def test_a_partition_whose_late_answers_confirm_everything_goes_on_at_once(world):
    (only,) = world.add(1)
    only.sending.identity = ProducerIdentity(7, 0)
    world.partition.sent(only, 1)
    world.fail(only)
    world.partition.written(only, 0)
    world.half.completion.delivered(only, DeliveryStatus.PERSISTED, 5, None)
    assert world.turn(0) == []
    assert not world.partition.spilling


def test_a_partition_with_nothing_left_in_the_folder_goes_on_once_nothing_is_in_flight(world):
    """A batch in flight without numbers goes to the folder if it fails: later ones must not be before it."""
    unnumbered, kept = world.add(1, 2)
    kept.sending.identity = ProducerIdentity(7, 0)
    for one in (unnumbered, kept):
        world.partition.sent(one, 1)
    world.fail(kept)
    world.partition.written(kept, 0)
    world.half.completion.delivered(kept, DeliveryStatus.PERSISTED, 5, None)
    assert world.left == []
    for expected in (True, False):
        assert world.turn(0) == []
        assert world.partition.spilling is expected
        if expected:
            world.partition.written(unnumbered, 0)
            world.half.completion.delivered(unnumbered, DeliveryStatus.PERSISTED, 4, None)


def test_it_is_sent_again_with_what_is_known_about_it(world):
    (only,) = world.add(1)
    only.sending.identity, only.sending.base_sequence, only.sending.indefinite = (
        ProducerIdentity(7, 2),
        5,
        True,
    )
    world.fail(only)
    world.turn(0)
    world.turn(2)
    (again,) = world.partition.waiting
    assert (again.sending.identity, again.sending.base_sequence, again.sending.indefinite) == (
        ProducerIdentity(7, 2),
        5,
        True,
    )
    # Its bytes in the folder may be older, where that could not take the new numbers.
    world.partition.loaded(again, bytearray(again.spilled.read()))
    assert numbers(again) == (7, 2, 5)
