"""Where each record ended, over batches that took them in any order."""

import asyncio
import sys

import numpy as np
import pytest
from support.forked_child import holds_in_forked_child

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.delivery import (
    ColumnsDelivery,
    Delivery,
    DeliveryBlock,
    Outcome,
    SenderThread,
    Waiters,
    fails_records_only,
)
from spark_kafka_native.kafka.producer.errors import (
    DeliveryError,
    DeliveryStatus,
    ProducerClosedError,
    RecordSkippedError,
    RecordsRefusedError,
)

A, B = TopicPartition("t", 0), TopicPartition("u", 1)


def block(length, hurried=None):
    return DeliveryBlock(
        length, Waiters(), (lambda: None) if hurried is None else (lambda: hurried.append(1))
    )


def rows(*numbers):
    return np.array(numbers, np.int64)


def written(where, offset, **more):
    return Outcome(topic_partition=where, status=DeliveryStatus.PERSISTED, base_offset=offset, **more)


def refused(where, records, reason, status=DeliveryStatus.NOT_PERSISTED):
    error = DeliveryError(where, records, status, reason, True)
    return Outcome(topic_partition=where, status=status, error=error)


def test_each_row_is_found_in_its_batch():
    own = block(5)
    own.report(rows(1, 4), 10, written(A, 100))
    assert not own.done
    own.report(rows(0, 2, 3), 0, written(B, 7))
    assert own.done
    told = ColumnsDelivery(own).result(0)
    assert told.topics == ("t", "u")
    assert told.topic.tolist() == [1, 0, 1, 1, 0]
    assert told.partition.tolist() == [1, 0, 1, 1, 0]
    assert told.offset.tolist() == [7, 110, 8, 9, 111]
    assert [Delivery(own, row).result(0).offset for row in range(5)] == told.offset.tolist()


def test_a_callback_is_called_once_also_where_the_record_ends_while_it_is_added():
    """In a signal's handler, which waits for the sender and has the lock of the thread that it interrupts."""

    class Interrupted(DeliveryBlock):
        def find(self, row):
            if not self.done:
                self.report(rows(row), 0, written(A, 0))
            return super().find(row)

    own, called = Interrupted(1, Waiters(), lambda: None), []
    own.call_back(0, called.append)
    assert len(called) == 1


def test_metadata_have_topic_and_partition():
    own = block(1)
    own.report(rows(0), 0, written(B, 7))
    found = Delivery(own, 0).result(0)
    assert (
        (found.topic, found.partition) == (found.topic_partition.topic, found.topic_partition.partition) == B
    )


def test_the_rows_of_one_refused_batch_are_not_named_for_another():
    own, outcomes = block(6), []
    for first_row, place in ((0, 1), (2, 0), (4, 9)):
        outcome = refused(A, 2, "refused")
        cause = RecordsRefusedError(ErrorCode.INVALID_RECORD, "Produce to a-0")
        cause.places = (place,)
        outcome.error.__cause__ = cause
        own.report(rows(first_row, first_row + 1), 0, outcome)
        outcomes.append(outcome)
    delivery = ColumnsDelivery(own)
    assert [delivery.refused_row(outcome.error) for outcome in outcomes] == [1, 2, None]


@pytest.mark.parametrize("ask", [lambda own: Delivery(own, 0), ColumnsDelivery], ids=["one", "columns"])
def test_each_caller_gets_an_error_of_its_own(ask):
    """Threads that raise one and the same add to its traceback, which keeps their frames alive."""
    own, outcome = block(2), refused(A, 2, "refused")
    outcome.error.__cause__ = cause = ValueError("why")
    own.report(rows(0, 1), 0, outcome)
    raised = []
    for _ in range(2):
        with pytest.raises(DeliveryError, match="refused") as told:
            ask(own).result(0)
        raised.append(told.value)
    assert len({id(error) for error in (*raised, outcome.error)}) == 3
    assert outcome.error.__traceback__ is None
    assert [error.__cause__ for error in raised] == [cause, cause]


def test_an_offset_that_nobody_told_is_none():
    own = block(2)
    own.report(rows(0, 1), 3, written(A, None))
    assert ColumnsDelivery(own).result(0).offset.tolist() == [-1, -1]
    assert Delivery(own, 1).result(0).offset is None


def test_the_brokers_time_counts_before_ones_own_and_that_of_the_call_last():
    own = block(2)
    own.timestamps = rows(70, 80)
    own.report(rows(0), 0, written(A, 0))
    own.report(rows(1), 0, written(A, 1, log_append_time_ms=9))
    assert [Delivery(own, row).result(0).timestamp_ms for row in (0, 1)] == [70, 9]
    other = block(1)
    other.stamped_ms = 5
    other.report(rows(0), 0, written(A, 0))
    assert Delivery(other, 0).result(0).timestamp_ms == 5


def test_the_first_row_that_failed_is_told_and_each_error_once():
    own = block(6)
    late, early = refused(A, 2, "late"), refused(B, 2, "early", DeliveryStatus.POSSIBLY_PERSISTED)
    own.report(rows(4, 5), 0, late)
    own.report(rows(0), 0, written(A, 3))
    own.report(rows(1), 0, early)
    own.report(rows(3), 1, early)
    delivery = ColumnsDelivery(own)
    assert delivery.first_failure() == (1, early.error)
    assert delivery.status().tolist() == [2, 1, -1, 1, 0, 0]
    assert not delivery.done()
    own.report(rows(2), 1, written(A, 3))
    assert delivery.exceptions(0) == [late.error, early.error]
    with pytest.raises(DeliveryError, match="late"):
        delivery.result(0)


@pytest.mark.parametrize(
    ("places", "row"),
    [((4,), 5), ((4, 3), 2), ((), 1), ((1, 5, -1, 2**31 - 1), 1)],
    ids=["one", "two", "none", "others'"],
)
def test_the_first_row_that_failed_is_the_one_that_the_broker_names(places: tuple[int, ...], row: int):
    """Of all rows of its batch the first one was named."""
    own = block(6)
    outcome = refused(A, 3, "refused")
    cause = RecordsRefusedError(ErrorCode.INVALID_RECORD, "Produce to a-0")
    cause.places = places
    outcome.error.__cause__ = cause
    own.report(rows(1, 2, 5), 2, outcome)
    delivery = ColumnsDelivery(own)
    assert delivery.first_failure() == (row, outcome.error)
    assert delivery.refused_row(outcome.error) == (None if row == 1 else row)
    assert delivery.refused_row(refused(A, 3, "another batch").error) is None


def test_the_error_of_a_result_is_that_of_a_failure_before_that_of_a_choice():
    own = block(3)
    skipped = RecordSkippedError(A, 1, DeliveryStatus.NOT_PERSISTED, "skipped", retriable=False)
    own.report(rows(0), 0, Outcome(topic_partition=A, status=skipped.status, error=skipped))
    own.report(rows(2), 0, refused(B, 1, "refused"))
    own.report(rows(1), 0, refused(A, 1, "refused later"))
    with pytest.raises(DeliveryError, match=r"refused$") as caught:
        ColumnsDelivery(own).result(0)
    assert not caught.value.by_choice
    assert len(ColumnsDelivery(own).exceptions(0)) == 3


def test_errors_of_the_same_words_are_those_of_several_batches():
    own = block(2)
    for row in range(2):
        own.report(rows(row), 0, refused(A, 1, "no"))
    assert len(ColumnsDelivery(own).exceptions(0)) == 2


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_no_error_of_records_ends_the_senders_thread_and_an_interrupt_ends_a_callers(kind):
    error, found = kind(), []
    thread = SenderThread(target=lambda: found.append(fails_records_only(error)))
    thread.start()
    thread.join()
    assert found == [True]
    assert fails_records_only(error) is isinstance(error, Exception)


@pytest.mark.parametrize("seconds", [0, 0.01])
def test_who_waits_for_what_has_not_ended_wants_it_sent(seconds):
    hurried = []
    own = block(1, hurried)
    for ask in (Delivery(own, 0).result, Delivery(own, 0).exception, ColumnsDelivery(own).result):
        with pytest.raises(TimeoutError, match="under way"):
            ask(seconds)
    assert hurried
    hurried.clear()
    own.report(rows(0), 0, written(A, 0))
    assert Delivery(own, 0).exception(0) is None
    assert not hurried


def test_a_task_that_awaits_what_has_not_ended_wants_it_sent():
    hurried = []
    own = block(1, hurried)

    async def ended_meanwhile():
        asyncio.get_running_loop().call_soon(own.report, rows(0), 0, written(A, 5))
        return await Delivery(own, 0)

    async def ended_before():
        return await Delivery(own, 0)

    assert asyncio.run(ended_meanwhile()).offset == 5
    assert hurried == [1]
    assert asyncio.run(ended_before()).offset == 5
    assert hurried == [1]


def test_the_end_of_a_record_whose_task_was_cancelled_is_no_error_of_the_event_loop():
    own, errors = block(1), []

    async def cancelled():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: errors.append(context))

        async def wait():
            await Delivery(own, 0)

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        own.report(rows(0), 0, written(A, 5))
        await asyncio.sleep(0)
        return await Delivery(own, 0)

    assert asyncio.run(cancelled()).offset == 5
    assert errors == []


def test_callbacks_are_called_once_now_or_later_and_their_errors_are_theirs():
    own, called = block(3), []
    Delivery(own, 1).add_done_callback(lambda delivery: called.append(delivery.result(0).offset))
    Delivery(own, 1).add_done_callback(lambda _delivery: 1 / 0)
    Delivery(own, 1).add_done_callback(lambda _delivery: sys.exit(1))
    Delivery(own, 1).add_done_callback(lambda delivery: called.append(delivery.done()))
    Delivery(own, 2).add_done_callback(lambda _delivery: called.append("other"))
    own.report(rows(0, 1), 0, written(A, 50))
    assert called == [51, True]
    Delivery(own, 0).add_done_callback(lambda delivery: called.append(delivery.result(0).offset))
    assert called == [51, True, 50]


def test_a_record_is_found_without_a_look_at_each_partitions_records():
    """Each record of as many partitions as there were was looked for in the records of all of them."""
    partitions, length = 100, 5_000
    looked = []

    class Looked(np.ndarray):
        def __array_function__(self, func, types, args, kwargs):
            looked.append(func)
            return super().__array_function__(func, types, args, kwargs)

    own = block(length)
    callbacks = []
    for row in range(0, length, 2):
        Delivery(own, row).add_done_callback(lambda delivery: callbacks.append(delivery.result(0)))
    for partition in range(partitions):
        mine = np.arange(partition, length, partitions).view(Looked)
        own.report(mine, 7, written(TopicPartition("t", partition), 1_000))
    looked.clear()
    found = [Delivery(own, row).result(0) for row in range(length)]
    assert [one.offset for one in found] == [1_007 + row // partitions for row in range(length)]
    assert [one.topic_partition.partition for one in found] == [row % partitions for row in range(length)]
    assert len(callbacks) == length // 2
    assert len(looked) <= partitions


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_what_ends_in_its_parent():
    own = block(1)

    def is_refused():
        for ask in (Delivery(own, 0).result, ColumnsDelivery(own).result):
            with pytest.raises(ProducerClosedError, match="another process"):
                ask(0)
        return True

    assert holds_in_forked_child(is_refused)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_can_register_no_callback():
    """Nothing ends there any more: one that awaits a delivery would hang."""
    own = block(1)

    def is_refused():
        with pytest.raises(ProducerClosedError, match="another process"):
            Delivery(own, 0).add_done_callback(lambda _: None)
        return True

    assert holds_in_forked_child(is_refused)
