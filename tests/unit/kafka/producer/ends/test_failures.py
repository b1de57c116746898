"""Giving batches up, with literals: which go to the spill folder together, and in which order."""

from __future__ import annotations

from collections import deque
from contextlib import closing
from types import SimpleNamespace

import pytest
from support.producer.sending_batches import TP, SendingHalf, batch, spilled

from spark_kafka_native.kafka.config.client_config import ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, NetworkError, SecurityError
from spark_kafka_native.kafka.producer.accumulating.batch import ProducerIdentity
from spark_kafka_native.kafka.producer.completion import OVERTAKING
from spark_kafka_native.kafka.producer.errors import ProducerClosedError
from spark_kafka_native.kafka.producer.sending.partition_queue import PartitionQueue
from spark_kafka_native.kafka.producer.sending.sender import SenderLoop
from spark_kafka_native.kafka.producer.sending.transaction import Transaction, TransactionEvent
from spark_kafka_native.kafka.producer.spill_folder import NewEntry, SpillFolder

LOST = NetworkError("the connection was lost")
REFUSED = BrokerError(ErrorCode.INVALID_RECORD, "Produce")


class Failing:
    """`Failures` over a real completion and a real folder; nothing runs by itself."""

    def __init__(self, folder):
        self.folder, self.ends = folder, []
        self.half = SendingHalf(folder)
        self.partition = self.half.queues.of(TP)
        self.failures = self.half.failures

    @property
    def told(self):
        """The order of each batch that was reported as undelivered, and why."""
        return [(one.order[-1], outcome.error.reason) for one, outcome in self.ends]

    def add(self, *batches):
        return [self.half.wait_in(one, self.ends) for one in batches]

    def send(self, one):
        """``one`` is in flight, with a number."""
        one.sending.identity = ProducerIdentity(7, 0)
        self.partition.sent(one, 1)

    def kept(self, tmp_path):
        """What the next producer would find, by its bytes."""
        self.folder.close()
        again = SpillFolder(str(tmp_path))
        found = [bytes(entry.read()) for entry in again.entries]
        again.close()
        return found


@pytest.fixture
def failing(tmp_path):
    folder = SpillFolder(str(tmp_path))
    yield Failing(folder)
    folder.close()


def test_what_stands_before_a_spilled_batch_is_spilled_before_it(failing, tmp_path):
    batches = failing.add(*(batch(order) for order in (1, 2, 3, 4)))
    data = [bytes(one.data) for one in batches]
    failing.failures.fail([batches[2]], "too late", LOST)
    assert failing.told == [(1, OVERTAKING), (2, OVERTAKING), (3, "too late"), (4, OVERTAKING)]
    assert failing.kept(tmp_path) == data
    assert failing.partition.spilling
    assert failing.partition.idle
    assert not failing.half.completion.incomplete


def test_a_batch_in_flight_before_a_spilled_one_keeps_its_place(failing, tmp_path):
    batches = failing.add(*(batch(order) for order in (1, 2, 3)))
    data = [bytes(one.data) for one in batches]
    failing.send(batches[0])
    failing.failures.fail([batches[1]], "too late", LOST)
    assert failing.kept(tmp_path) == data
    assert [order for order, _ in failing.told] == [1, 2, 3]
    assert [one.sending.indefinite for one in batches] == [True, False, False]


def test_the_folder_keeps_which_batches_may_be_in_the_log(failing, tmp_path):
    batches = failing.add(*(batch(order) for order in (1, 2)))
    failing.send(batches[0])
    failing.failures.fail(batches, "gone", LOST)
    failing.folder.close()
    with closing(SpillFolder(str(tmp_path))) as again:
        assert [entry.possibly_persisted for entry in again.entries] == [True, False]


def test_several_are_kept_between_those_before_and_those_behind(failing, tmp_path):
    batches = failing.add(*(batch(order) for order in (1, 2, 3, 4, 5)))
    data = [bytes(one.data) for one in batches]
    failing.failures.fail(batches[2:4], "too late", LOST)
    why = ["too late" if order in (3, 4) else OVERTAKING for order in (1, 2, 3, 4, 5)]
    assert failing.told == list(enumerate(why, 1))
    assert failing.kept(tmp_path) == data


def test_one_in_flight_between_those_given_up_keeps_its_place(failing, tmp_path):
    batches = failing.add(*(batch(order) for order in (1, 2, 3)))
    data = [bytes(one.data) for one in batches]
    failing.send(batches[0])
    failing.send(batches[1])
    failing.failures.fail([batches[0], batches[2]], "gone", LOST, retriable=False)
    assert failing.told == [(1, "gone"), (2, OVERTAKING), (3, "gone")]
    assert failing.kept(tmp_path) == data


def test_what_lies_in_the_folder_already_is_not_kept_twice(failing, tmp_path):
    early, _ = spilled(1, (7, 0, 0))
    late = batch(2)
    data = bytes(late.data)
    failing.add(early, late)
    failing.failures.fail([late], "too late", LOST)
    assert failing.told == [(2, "too late")]
    assert list(failing.partition.waiting) == [early]  # it has its place in front, and may still be sent
    assert failing.partition.spilling
    assert failing.kept(tmp_path) == [data]


def test_what_comes_behind_one_of_the_folder_does_not_overtake_it(failing, tmp_path):
    (first, _), (second, _) = spilled(1, (7, 0, 0)), spilled(2, (7, 0, 1))
    late = batch(3)
    data = bytes(late.data)
    failing.add(first, second, late)
    failing.failures.fail([first], "refused", LOST)
    assert failing.told == [(1, "refused"), (2, OVERTAKING), (3, OVERTAKING)]
    assert failing.partition.idle
    again = failing.half.spilling.backlogs[TP].batches
    assert [(one.order, one.reported_before, one.records) for one in again] == [
        (one.order, True, one.records) for one in (first, second, late)
    ]
    assert failing.kept(tmp_path) == [data]


def test_what_goes_along_with_a_batch_that_is_refused_or_gone_is_sent_again(failing):
    """The reason is that of the first one alone: the others were left behind with it, or taken for gone."""
    for cause in (REFUSED, FileNotFoundError(2, "deleted")):
        (first, _), (second, _) = spilled(1, (7, 0, 0)), spilled(2, (7, 0, 1))
        late = batch(3)
        for one in (first, second):  # in the folder, so that they can be taken out of it
            (one.spilled,) = failing.folder.keep([NewEntry(TP, None, 1, False, "why", batch(1).data)])
        failing.add(first, second, late)
        failing.partition.spilled()
        failing.failures.fail([first], "its own reason", cause)
        assert [order for order, _ in failing.told] == [1, 2, 3]
        backlog = failing.half.spilling.backlogs.pop(TP)
        assert [one.order for one in backlog.batches] == [second.order, late.order]
        failing.ends.clear()
        failing.partition.resumed()


def test_the_first_batch_of_the_folder_expires_and_the_time_of_the_others_begins_with_their_turn(failing):
    (first, _), (second, _) = spilled(1, (7, 0, 0)), spilled(2, (7, 0, 1))
    for one in failing.add(first, second):
        one.sending.since = 0.0
    timeout_s = ProducerConfig().delivery_timeout_ms / 1000
    failing.failures.expire(timeout_s - 1)
    assert (failing.told, first.sending.since, second.sending.since) == ([], 0, timeout_s - 1)
    failing.failures.expire(timeout_s)
    assert [order for order, _ in failing.told] == [1, 2]
    assert failing.told[0][1].startswith("not delivered within delivery.timeout.ms=")
    assert failing.told[1][1] == OVERTAKING


def test_the_time_of_each_batch_that_was_never_spilled_begins_with_its_first_record():
    failing, timeout_s = Failing(None), ProducerConfig().delivery_timeout_ms / 1000
    failing.add(batch(1), batch(2))
    failing.failures.expire(timeout_s - 1)
    assert failing.told == []
    failing.failures.expire(timeout_s)
    why = f"not delivered within delivery.timeout.ms={ProducerConfig().delivery_timeout_ms}"
    assert failing.told == [(1, why), (2, why)]


def test_a_batch_that_comes_late_expires_by_its_first_record_all_the_same():
    """Records that wait behind others stay in an open batch: after these had expired, they had the whole
    timeout once more."""
    failing, timeout_s = Failing(None), ProducerConfig().delivery_timeout_ms / 1000
    failing.failures.expire(timeout_s)
    late, later = batch(1), batch(2)
    late.sending.since, later.sending.since = 5.0, 6.0
    half, idle = failing.half, SimpleNamespace(max_bytes=lambda _topic: 0)
    loop = SimpleNamespace(
        inbox=deque([late, later]),
        queues=half.queues,
        failures=failing.failures,
        _completion=half.completion,
        _topics=idle,
    )
    SenderLoop._take_in(loop)
    failing.failures.expire(timeout_s + 4.9)
    assert not late.ended
    failing.failures.expire(timeout_s + 5)
    assert (late.ended, later.ended) == (True, False)


def test_the_sender_wakes_when_a_batch_expires_and_looks_at_what_lingers_behind_it():
    failing, timeout_s = Failing(None), ProducerConfig().delivery_timeout_ms / 1000
    failing.add(batch(1))
    timer = failing.half.timer
    for now in (0.0, 1.0):
        timer.start_turn()
        failing.failures.expire(now)
        assert timer.next_at == timeout_s
    timer.start_turn()
    failing.failures.expire(timeout_s)
    assert [order for order, _ in failing.told] == [1]
    assert timer.next_at == timer.clock()


def test_a_batch_refused_for_its_content_takes_nobody_along(failing, tmp_path):
    first, second, third = failing.add(*(batch(order) for order in (1, 2, 3)))
    failing.failures.fail([second], "refused", REFUSED, retriable=False)
    assert failing.told == [(2, "refused")]
    assert list(failing.partition.waiting) == [first, third]
    assert not failing.partition.spilling
    assert failing.kept(tmp_path) == []


def test_without_a_folder_nobody_is_taken_along():
    failing = Failing(None)
    first, second, third = failing.add(*(batch(order) for order in (1, 2, 3)))
    failing.failures.fail([second], "too late", LOST)
    assert failing.told == [(2, "too late")]
    assert list(failing.partition.waiting) == [first, third]


@pytest.mark.parametrize("indefinite", [None, 0, 1, 2])
def test_a_transaction_is_uncertain_where_the_outcome_of_any_of_its_batches_is(indefinite):
    failing, transaction = Failing(None), Transaction("id")
    transaction.move(TransactionEvent.INITIALIZED)
    transaction.begin(2)
    failing.failures._transaction = transaction
    batches = failing.add(*(batch(order) for order in (1, 2, 3)))
    if indefinite is not None:
        batches[indefinite].sending.indefinite = True
    failing.failures.discard()
    assert [order for order, _ in failing.told] == [1, 2, 3]
    assert transaction.uncertain is (indefinite is not None)


def test_what_is_given_up_for_good_is_kept_in_order_and_says_why(failing, tmp_path):
    batches = failing.add(*(batch(order) for order in (1, 2, 3)))
    data = [bytes(one.data) for one in batches]
    ownerless = batch(4)
    failing.half.completion.expect([ownerless])
    refusal = SecurityError("the password is wrong")
    failing.failures.fail_for_good(refusal)
    assert failing.failures.fatal is refusal
    with pytest.raises(ProducerClosedError) as closed:
        failing.half.topics.raise_if_closed()
    assert closed.value.__cause__ is refusal
    why = "the producer can't go on: the password is wrong"
    assert failing.told == [(1, why), (2, why), (3, why)]
    # Its dead letter may be on the way to the sender: that decides, when the sender ends.
    assert not ownerless.ended
    failing.failures.fail_all(why, refusal)
    assert ownerless.ended
    assert not failing.half.completion.incomplete
    assert failing.kept(tmp_path)[:3] == data


def test_what_is_in_flight_ends_too_when_nothing_can_be_sent_any_more():
    """A flush would wait for it forever."""
    failing = Failing(None)
    first, second = failing.add(batch(1), batch(2))
    failing.send(first)
    failing.failures.fail_for_good(SecurityError("the password is wrong"))
    assert [order for order, _ in failing.told] == [1, 2]
    assert first.ended
    assert second.ended
    assert not failing.half.completion.incomplete


def test_what_is_not_delivered_in_time_says_what_failed_last():
    half, ends = SendingHalf(), []
    one = half.wait_in(batch(1), ends)
    one.sending.last_error = LOST
    half.failures.expire(1e9)
    ((_, outcome),) = ends
    assert outcome.error.__cause__ is LOST
    assert "the last failure: the connection was lost" in str(outcome.error)


def test_batches_that_expire_for_the_same_reason_are_given_up_together(monkeypatch):
    """One by one, thousands of a partition held up the sender for half a minute."""
    failing, real, runs = Failing(None), PartitionQueue.given_up, []

    def given_up(queue, batches):
        runs.append([one.order[-1] for one in batches])
        real(queue, batches)

    monkeypatch.setattr(PartitionQueue, "given_up", given_up)
    batches = failing.add(*(batch(order) for order in range(1, 8)))
    batches[2].sending.last_error = LOST
    batches[5].sending.since = 1e9
    failing.failures.expire(1e9)
    assert runs == [[1, 2], [3], [4, 5, 7]]
    why = "not delivered within delivery.timeout.ms=120000"
    told = [(order, why) for order in (1, 2, 3, 4, 5, 7)]
    told[2] = (3, f"{why}; the last failure: the connection was lost")
    assert failing.told == told
    assert list(failing.partition.waiting) == [batches[5]]


def test_batches_that_expire_are_kept_in_order_with_those_between(failing, tmp_path):
    batches = failing.add(*(batch(order) for order in (1, 2, 3, 4)))
    data = [bytes(one.data) for one in batches]
    batches[1].sending.since = 1e9
    failing.failures.expire(1e9)
    assert [order for order, why in failing.told if why == OVERTAKING] == [2]
    assert failing.kept(tmp_path) == data


def test_batches_that_expire_around_those_of_the_folder_are_handed_back_in_order(failing):
    """The first one is from the folder, too. The time of those behind it has not begun."""
    batches = failing.add(*(spilled(order, (7, 0, order))[0] for order in range(3)), batch(3), batch(4))
    batches[0].sending.since = 0.0
    failing.failures.expire(120.0)
    assert [one for one, _ in failing.ends] == batches


def test_the_first_reason_for_which_no_records_are_taken_counts():
    """A producer that has failed is closed later: its callers have to hear of the failure."""
    topics = SendingHalf().topics
    for cause in (LOST, ProducerClosedError("close() was called")):
        topics.close(cause)
        with pytest.raises(ProducerClosedError, match="the connection was lost") as refused:
            topics.raise_if_closed()
        assert refused.value.__cause__ is LOST
