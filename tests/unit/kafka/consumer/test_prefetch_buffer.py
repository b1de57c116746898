"""What lies between the thread that fetches and the one that reads, without either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.kafka.consumer.fetched_records import FetchedRecords, WorkStatus, WorkUnit
from spark_kafka_native.kafka.consumer.prefetch_buffer import (
    AppliedReset,
    Begun,
    BufferedPartition,
    PrefetchBuffer,
)
from spark_kafka_native.kafka.errors import (
    DeadlineExceededError,
    KafkaError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.records.columns import RecordColumns

TP = TopicPartition("orders", 0)


def records(first: int, until: int) -> FetchedRecords:
    return FetchedRecords(
        topic_partition=TP,
        columns=RecordColumns(length=until - first, offset=np.arange(first, until, dtype=np.int64)),
        from_offset=first,
        next_offset=until,
        log_start_offset=0,
        high_watermark=100,
        last_stable_offset=100,
    )


@pytest.mark.parametrize("values", [[], [b"ab", b""], [b"ab", None, b"cd"] * 10])
def test_the_bytes_of_records_are_those_that_arrow_counts(values: list[bytes | None]) -> None:
    array = pa.array(values, pa.binary())
    columns = RecordColumns(length=len(array), offset=np.arange(len(array)), key=array, value=array)
    assert replace(records(0, 0), columns=columns).nbytes == 8 * len(array) + 2 * array.nbytes


def test_a_unit_of_work_counts_records_and_not_offsets() -> None:
    """Of a compacted topic, or in transactions, there are fewer."""
    unit = WorkUnit.of(replace(records(3, 5), next_offset=9), WorkStatus.FETCHED)
    assert (unit.records, unit.length, unit.from_offset, unit.until_offset) == (2, 6, 3, 9)


@pytest.fixture
def shared() -> PrefetchBuffer:
    made = PrefetchBuffer(max_bytes=1_000)
    made.add(TP, 0, None)
    return made


def wanted(shared: PrefetchBuffer) -> BufferedPartition:
    return shared.partition(TP)


def ends(shared: PrefetchBuffer, *, read_committed: bool) -> dict[TopicPartition, int]:
    return {tp: end for tp, _, end in shared.progress(read_committed=read_committed)}


def test_what_comes_during_a_pause_waits_for_its_end(shared: PrefetchBuffer) -> None:
    shared.pause(TP)
    shared.put(wanted(shared), 0, records(0, 5))
    assert shared.take() is None
    shared.resume(TP)
    taken = shared.take()
    assert taken is not None
    assert (taken.next_offset, shared.position(TP)) == (5, 5)


def test_each_step_of_a_range_is_told_in_order(shared: PrefetchBuffer) -> None:
    units = shared.work_units.subscribe(10)
    shared.put(wanted(shared), 0, records(0, 5))
    taken = shared.take()
    assert taken is not None
    shared.give_back(replace(taken, from_offset=2))
    shared.seek(TP, 50)
    shared.put(wanted(shared), 0, records(5, 9))  # fetched before the move: no reader gets them
    assert [(one.status.name, one.from_offset, one.until_offset) for one in units.drain()] == [
        ("FETCHED", 0, 5),
        ("HANDED_OUT", 0, 5),
        ("GIVEN_BACK", 2, 5),
        ("DROPPED", 2, 5),
    ]


@pytest.mark.parametrize(
    ("read_committed", "stable", "end"), [(False, 7, 100), (True, 7, 7), (True, -1, 100)]
)
def test_the_end_is_that_of_what_can_be_read(read_committed: bool, stable: int, end: int) -> None:
    shared = PrefetchBuffer(max_bytes=1_000)
    shared.add(TP, 0, None)
    shared.put(wanted(shared), 0, replace(records(0, 3), high_watermark=3, last_stable_offset=3))
    shared.put(wanted(shared), 0, replace(records(3, 5), last_stable_offset=stable))
    assert ends(shared, read_committed=read_committed) == {TP: end}


def test_what_was_fetched_before_a_move_is_dropped_when_it_comes_after(shared: PrefetchBuffer) -> None:
    shared.seek(TP, 50)
    shared.put(wanted(shared), 0, records(0, 5))
    assert (shared.take(), shared.position(TP)) == (None, 50)
    before = wanted(shared)
    shared.remove(TP)
    shared.add(TP, 7, None)
    shared.put(before, 1, records(50, 55))
    assert (shared.take(), shared.position(TP)) == (None, 7)


def test_an_error_comes_behind_what_was_fetched_and_not_during_a_pause(shared: PrefetchBuffer) -> None:
    shared.put(wanted(shared), 0, records(0, 5))
    shared.broke(wanted(shared), 0, DeadlineExceededError("too late"))
    shared.check(again=True)
    assert shared.take() is not None
    shared.pause(TP)
    shared.check(again=True)
    assert not shared.has_news
    shared.resume(TP)
    with pytest.raises(DeadlineExceededError):
        shared.check(again=False)
    shared.check(again=True)
    assert shared.wish(wanted(shared)) == (0, -1, 0, 1, True)


def test_the_error_of_a_partition_goes_with_it(shared: PrefetchBuffer) -> None:
    """Else a member of a group would raise it forever, after another one has got the partition."""
    shared.broke(wanted(shared), 0, TopicRecreatedError("orders", "former", "present"))
    with pytest.raises(TopicRecreatedError):
        shared.check(again=False)
    shared.remove(TP)
    shared.check(again=True)
    assert (shared.has_news, shared.broken, shared.recreated()) == (False, [], frozenset())


@pytest.mark.parametrize("paused", [False, True])
def test_the_error_that_a_partition_is_added_with_is_raised_unless_it_is_paused(
    shared: PrefetchBuffer, paused: bool
) -> None:
    """Nothing is fetched before: if it were not raised after the pause, reading would wait without an end."""
    shared.remove(TP)
    shared.add(TP, 7, None, paused=paused, error=LogTruncatedError(TP, 7, 3))
    assert (shared.broken, list(shared.truncated())) == ([TP], [TP])
    if paused:
        shared.check(again=True)
        shared.resume(TP)
    assert not shared.wish(wanted(shared))[-1]
    with pytest.raises(LogTruncatedError):
        shared.check(again=False)


def test_room_that_is_made_wakes_the_one_who_fetches(shared: PrefetchBuffer) -> None:
    shared.put(wanted(shared), 0, records(0, 200))
    shared.wakeup.clear()
    assert shared.full
    shared.take()
    assert shared.wakeup.is_set
    assert not shared.full


LATE = DeadlineExceededError("too late")


def put(shared: PrefetchBuffer) -> None:
    shared.put(wanted(shared), 0, records(0, 5))


def broke(shared: PrefetchBuffer) -> None:
    shared.broke(wanted(shared), 0, LATE)


def resumed(shared: PrefetchBuffer) -> None:
    shared.resume(TP)


@pytest.mark.parametrize(
    ("before", "call"),
    [
        pytest.param((), put, id="records"),
        pytest.param((), broke, id="an error"),
        pytest.param((put, lambda shared: shared.pause(TP)), resumed, id="the end of a pause"),
        pytest.param((lambda shared: shared.pause(TP), put), resumed, id="the end of a pause with records"),
        pytest.param(
            (lambda shared: shared.pause(TP), broke), resumed, id="the end of a pause with an error"
        ),
        pytest.param(
            (put, lambda shared: shared.take()),
            lambda shared: shared.give_back(records(0, 5)),
            id="records that are given back",
        ),
        pytest.param((), lambda shared: shared.close(), id="a close"),
        pytest.param((), lambda shared: shared.fail(ZeroDivisionError()), id="a failure"),
    ],
)
def test_a_reader_that_waits_hears_of_news(
    shared: PrefetchBuffer,
    before: tuple[Callable[[PrefetchBuffer], object], ...],
    call: Callable[[PrefetchBuffer], object],
) -> None:
    """A task of asyncio that waits looks at nothing before."""
    for step in before:
        step(shared)
    assert not shared.has_news
    heard: list[bool] = []
    shared.listener = lambda: heard.append(shared.has_news)
    call(shared)
    assert True in heard


def test_hidden_offsets_count_as_handed_out_with_the_records_before_them(shared: PrefetchBuffer) -> None:
    shared.put(wanted(shared), 0, records(0, 5))
    shared.put(wanted(shared), 0, records(5, 7))
    shared.skip(wanted(shared), 0, 9)
    reached = [shared.position(TP)]
    while shared.take() is not None:
        reached.append(shared.position(TP))
    shared.skip(wanted(shared), 0, 12)  # nothing waits before them
    assert [*reached, shared.position(TP)] == [0, 5, 9, 12]


def epochs_at(shared: PrefetchBuffer, *offsets: int) -> list[int]:
    return [shared.leader_epochs({TP: offset}).get(TP, -1) for offset in offsets]


def test_the_epoch_before_an_offset_is_that_of_the_batch_before_it(shared: PrefetchBuffer) -> None:
    """A wrong one would have a reader see its log as cut back."""
    for first, until, ranges in [
        (2, 5, ((2, 5, 3),)),
        (5, 12, ((4, 7, 3), (9, 12, 5))),
        (12, 15, ()),
    ]:
        epoch = ranges[-1][2] if ranges else 5
        shared.put(wanted(shared), 0, replace(records(first, until), leader_epoch=epoch, epoch_ranges=ranges))
    shared.take()
    assert epochs_at(shared, 1, 2, 3, 5, 6) == [-1, -1, 3, 3, -1]
    shared.take()
    assert epochs_at(shared, 2, 4, 5, 6, 7) == [-1, 3, 3, 3, 3]
    assert epochs_at(shared, 8, 9) == [-1, -1], "records of epoch 4 may have been there"
    assert epochs_at(shared, 10, 11, 12, 13) == [5, 5, 5, -1]
    shared.take()
    assert epochs_at(shared, 3, 9, 11, 12, 13, 15, 16) == [3, -1, 5, 5, -1, 5, -1]


def test_a_read_from_the_middle_of_a_batch_knows_the_epoch_before_it(shared: PrefetchBuffer) -> None:
    shared.put(wanted(shared), 0, replace(records(2, 5), leader_epoch=3, epoch_ranges=((0, 5, 3),)))
    shared.take()
    assert epochs_at(shared, 0, 1, 2, 5) == [-1, 3, 3, 3]


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("epoch", [4, -1])
def test_hidden_offsets_behind_records_have_an_epoch_of_their_own(
    shared: PrefetchBuffer, epoch: int, is_first: bool
) -> None:
    """``is_first``: they come before the records are taken. A commit has the epoch in both cases."""
    shared.put(wanted(shared), 0, replace(records(0, 5), leader_epoch=3))
    if not is_first:
        shared.take()
    shared.skip(wanted(shared), 0, 9, epoch)
    shared.take()
    assert epochs_at(shared, 9) == [epoch]


def test_hidden_offsets_behind_records_in_hand_leave_these_their_epochs(shared: PrefetchBuffer) -> None:
    """A reader is row by row within them: its commit without an epoch would let a cut log go unnoticed."""
    shared.put(wanted(shared), 0, replace(records(0, 5), leader_epoch=3, epoch_ranges=((0, 5, 3),)))
    shared.take()
    shared.put(wanted(shared), 0, replace(records(5, 5), next_offset=6, leader_epoch=4))
    assert epochs_at(shared, 2, 5, 6, 7) == [3, 3, 4, -1]
    shared.skip(wanted(shared), 0, 9, -1)
    assert epochs_at(shared, 2, 5, 6, 9) == [3, 3, 4, -1]


def test_epochs_of_before_a_reset_say_nothing_about_records_after_it(shared: PrefetchBuffer) -> None:
    def put(first: int, until: int, epoch: int) -> None:
        ranges = ((first, until, epoch),)
        shared.put(wanted(shared), 0, replace(records(first, until), leader_epoch=epoch, epoch_ranges=ranges))

    put(0, 5, 3)
    put(5, 8, 3)
    shared.take()
    shared.reset(wanted(shared), 0, AppliedReset(8, 2, 0, 2))  # records wait
    put(2, 9, 1)
    shared.take()
    assert epochs_at(shared, 1, 2) == [3, -1]
    shared.take()
    assert epochs_at(shared, 2, 3, 9) == [-1, 1, 1]
    shared.reset(wanted(shared), 0, AppliedReset(9, 4, 0, 4))  # none wait
    assert epochs_at(shared, 3, 4) == [-1, -1]
    put(4, 100, 2)
    shared.reset(wanted(shared), 0, AppliedReset(100, 50, 0, 50))
    shared.take()
    shared.skip(wanted(shared), 0, 60, 6)  # offsets of the new log, hidden
    shared.skip(wanted(shared), 0, 70, 6)
    assert epochs_at(shared, 50, 60, 70) == [-1, 6, 6]


@pytest.mark.parametrize("given_back", [False, True])
def test_epochs_of_records_that_are_fetched_again_are_those_of_the_log_now(
    given_back: bool,
) -> None:
    """It was cut at 70 meanwhile. An epoch of before would have the next owner see a cut log."""
    shared = PrefetchBuffer(max_bytes=1)
    shared.add(TP, 0, None)
    before = ((0, 100, 5),)
    shared.put(wanted(shared), 0, replace(records(0, 50), leader_epoch=5, epoch_ranges=before))
    shared.put(wanted(shared), 0, replace(records(50, 100), leader_epoch=5, epoch_ranges=before))
    shared.take()
    if given_back:
        rest = shared.take()
        assert rest is not None
        shared.give_back(rest)
    shared.pause(TP)
    assert not wanted(shared).waiting
    shared.resume(TP)
    moves = wanted(shared).moves
    now = ((50, 70, 5), (70, 120, 6))
    shared.put(wanted(shared), moves, replace(records(50, 120), leader_epoch=6, epoch_ranges=now))
    shared.take()
    assert epochs_at(shared, 10, 50, 70, 71, 80, 120) == [5, 5, 5, 6, 6, 6]


def test_the_epochs_that_a_reader_remembers_are_bounded(shared: PrefetchBuffer) -> None:
    for first in range(0, 1000, 5):
        ranges = ((first, first + 5, first),)
        shared.put(
            wanted(shared), 0, replace(records(first, first + 5), leader_epoch=first, epoch_ranges=ranges)
        )
        shared.take()
    assert epochs_at(shared, 1, 600, 703, 1000) == [-1, -1, 700, 995]
    assert len(wanted(shared).epoch_ranges) == 64


def test_epochs_of_before_a_move_say_nothing_about_offsets_after_it(shared: PrefetchBuffer) -> None:
    """The log may have been cut back, or its topic recreated."""
    shared.remove(TP)
    shared.add(TP, 0, None, leader_epoch=2)
    assert shared.wish(wanted(shared)) == (0, 2, 0, 0, True)
    shared.put(wanted(shared), 0, replace(records(0, 5), leader_epoch=3))
    shared.take()
    shared.seek(TP, 5)
    assert epochs_at(shared, 5) == [-1]
    assert shared.wish(wanted(shared)) == (5, -1, 1, 0, True)


def test_offsets_that_were_hidden_before_a_move_say_nothing_about_the_new_place(
    shared: PrefetchBuffer,
) -> None:
    before = wanted(shared)
    shared.seek(TP, 50)
    shared.skip(before, 0, 9)
    assert shared.position(TP) == 50
    shared.remove(TP)
    shared.skip(before, 1, 60)
    shared.add(TP, 7, None)
    shared.skip(before, 1, 60)
    assert shared.position(TP) == 7


def test_what_is_given_back_ends_where_the_partition_had_been_moved_behind_it(shared: PrefetchBuffer) -> None:
    shared.put(wanted(shared), 0, records(0, 5))
    taken = shared.take()
    assert taken is not None
    shared.skip(wanted(shared), 0, 9)
    shared.give_back(taken)
    assert shared.position(TP) == 0
    shared.take()
    assert shared.position(TP) == 9


def test_what_comes_behind_a_reset_to_lower_offsets_stays_where_records_are_given_back(
    shared: PrefetchBuffer,
) -> None:
    shared.put(wanted(shared), 0, records(40, 50))
    taken = shared.take()
    assert taken is not None
    shared.put(wanted(shared), 0, records(5, 9))
    rest = replace(taken, columns=taken.columns.slice(3, 10), from_offset=43)
    for given_back, first in ((rest, 43), (rest, 43), (taken, 40)):  # an interrupt makes it repeat
        shared.give_back(given_back)
        assert [one.from_offset for one in wanted(shared).waiting] == [first, 5]
    assert [one.from_offset for one in (shared.take(), shared.take()) if one] == [40, 5]
    assert shared.nbytes == 0


def observed(shared: PrefetchBuffer) -> dict[str, float]:
    return {"/".join([one.metric.name, *one.tags]): one.value for one in shared.observed()}


def test_how_much_waits_is_told(shared: PrefetchBuffer) -> None:
    for first in (0, 5):
        shared.put(wanted(shared), 0, records(first, first + 5))
    told = observed(shared)
    assert (told["kafka.consumer.queue.batches"], told["kafka.consumer.queue.bytes"]) == (2, 80)
    assert (told["kafka.consumer.partitions/reading"], told["kafka.consumer.partitions/paused"]) == (1, 0)
    shared.take()
    assert observed(shared)["kafka.consumer.queue.batches"] == 1
    shared.pause(TP)
    told = observed(shared)
    assert (told["kafka.consumer.partitions/reading"], told["kafka.consumer.partitions/paused"]) == (0, 1)
    assert told["kafka.consumer.queue.batches"] == 1


def test_a_closed_consumer_has_no_lag_and_reads_no_partition(shared: PrefetchBuffer) -> None:
    """The lag was there twice once another one read the same partitions."""
    shared.put(wanted(shared), 0, records(0, 5))
    assert ends(shared, read_committed=False) == {TP: 100}
    shared.close()
    assert ends(shared, read_committed=False) == {}
    assert set(observed(shared).values()) == {0}


def test_giving_back_drops_nothing_that_waits_behind(shared: PrefetchBuffer) -> None:
    first = records(0, 1)
    shared.put(wanted(shared), 0, first)
    shared.put(wanted(shared), 0, records(1, 2))
    taken = shared.take()
    assert taken is first
    shared.give_back(first)
    assert [one.from_offset for one in wanted(shared).waiting] == [0, 1]


def test_what_is_paused_takes_no_room_where_others_are_given_back(shared: PrefetchBuffer) -> None:
    """Fetching would end: a full buffer waits for a read, and reads find nothing."""
    other = TopicPartition("orders", 1)
    shared.add(other, 0, None)
    shared.put(shared.partition(other), 0, replace(records(0, 100), topic_partition=other))
    shared.pause(other)
    shared.put(wanted(shared), 0, records(0, 60))
    taken = shared.take()
    assert taken is not None
    shared.give_back(taken)
    assert (shared.nbytes, shared.full) == (taken.nbytes, False)
    assert shared.take() is not None
    assert (shared.nbytes, shared.full) == (0, False)


@pytest.mark.parametrize(("read_committed", "end"), [(False, 100), (True, 60)])
def test_the_end_is_that_of_what_may_be_read(read_committed: bool, end: int) -> None:
    shared = PrefetchBuffer(1_000)
    shared.add(TP, 0, None)
    assert ends(shared, read_committed=read_committed) == {}
    shared.put(wanted(shared), 0, replace(records(0, 5), last_stable_offset=60))
    assert ends(shared, read_committed=read_committed) == {TP: end}
    shared.remove(TP)
    assert ends(shared, read_committed=read_committed) == {}


def test_nothing_is_put_into_a_buffer_that_is_closed(shared: PrefetchBuffer) -> None:
    """A close in a signal handler gives away the lock of the call that it interrupts, such as a seek."""
    shared.put(wanted(shared), 0, records(0, 5))
    shared.close()
    shared.put(wanted(shared), 0, records(5, 9))
    shared.skip(wanted(shared), 0, 12)
    shared.broke(wanted(shared), 0, DeadlineExceededError("late"))
    assert [one.next_offset for one in wanted(shared).waiting] == [5]
    assert not shared.broken


@pytest.mark.parametrize("moved", ["pause", "close"])
def test_what_a_pause_that_frees_memory_or_a_close_overtakes_is_given_back(
    shared: PrefetchBuffer, moved: str
) -> None:
    """In another thread, while the records that were taken are decoded."""
    for first in (0, 100, 200):
        shared.put(wanted(shared), 0, records(first, first + 100))
    taken = shared.take()
    assert taken is not None
    place = shared.place(TP)
    if moved == "pause":
        shared.pause(TP)
        assert not wanted(shared).waiting  # too many to keep
    else:
        shared.close()
    shared.give_back(replace(taken, from_offset=5), place)
    assert shared.position(TP) == 5
    assert [one.from_offset for one in wanted(shared).waiting][:1] == [5]


def test_what_the_caller_has_moved_or_removed_is_not_given_back(shared: PrefetchBuffer) -> None:
    shared.put(wanted(shared), 0, records(0, 5))
    taken = shared.take()
    assert taken is not None
    place = shared.place(TP)
    shared.seek(TP, 50)
    shared.give_back(taken, place)
    assert (shared.position(TP), len(wanted(shared).waiting)) == (50, 0)
    place = shared.place(TP)
    shared.remove(TP)
    shared.give_back(taken, place)
    shared.add(TP, 70, None)
    shared.give_back(taken, place)
    assert (shared.position(TP), len(wanted(shared).waiting)) == (70, 0)


def test_all_that_waits_comes_in_order_after_a_pause(shared: PrefetchBuffer) -> None:
    for first in (0, 5, 10):
        shared.put(wanted(shared), 0, records(first, first + 5))
    waits = shared.nbytes
    shared.pause(TP)
    assert (shared.take(), shared.nbytes) == (None, 0)
    for _ in range(2):
        shared.resume(TP)
        assert shared.nbytes == waits
    assert [taken.from_offset for taken in iter(shared.take, None)] == [0, 5, 10]
    assert shared.nbytes == 0


def test_a_pause_that_would_free_memory_leaves_an_error_and_what_comes_before_it(
    shared: PrefetchBuffer,
) -> None:
    """Else offsets of the former topic could be committed until it is found to be gone once more."""
    for first in (0, 100, 200):
        shared.put(wanted(shared), 0, records(first, first + 100))
    shared.broke(wanted(shared), 0, TopicRecreatedError("orders", "former", "present"))
    shared.pause(TP)
    assert shared.recreated() == {TP}
    shared.resume(TP)
    assert [taken.from_offset for taken in iter(shared.take, None)] == [0, 100, 200]
    with pytest.raises(TopicRecreatedError):
        shared.check(again=False)


def test_after_a_pause_that_freed_memory_it_goes_on_behind_what_was_handed_out(
    shared: PrefetchBuffer,
) -> None:
    for first in (0, 100, 200):
        shared.put(wanted(shared), 0, records(first, first + 100))
    shared.take()
    shared.pause(TP)
    assert not wanted(shared).waiting
    shared.resume(TP)
    assert shared.wish(wanted(shared)) == (100, -1, 1, 0, True)
    assert shared.position(TP) == 100


def test_a_pause_that_frees_memory_keeps_the_epoch_of_what_was_handed_out(shared: PrefetchBuffer) -> None:
    """Else a log that is cut back meanwhile goes unnoticed, and a commit says nothing about its epoch."""
    for first in (0, 100, 200):
        shared.put(wanted(shared), 0, replace(records(first, first + 100), leader_epoch=3))
    shared.take()
    shared.pause(TP)
    assert not wanted(shared).waiting
    assert shared.wish(wanted(shared)) == (100, 3, 1, 0, False)
    assert epochs_at(shared, 100) == [3]


def test_a_pause_with_nothing_to_free_is_no_move(shared: PrefetchBuffer) -> None:
    other = TopicPartition("orders", 1)
    shared.add(other, 0, None)
    shared.pause(other)
    shared.put(shared.partition(other), 0, replace(records(0, 200), topic_partition=other))
    shared.pause(TP)
    assert wanted(shared).moves == 0


@pytest.mark.parametrize("hidden", [0, 70])
def test_a_pause_frees_no_records_of_before_a_reset(shared: PrefetchBuffer, hidden: int) -> None:
    """The log has others at their offsets: it would go on in the midst of these. ``hidden`` offsets come
    first in the new log."""
    units = shared.work_units.subscribe(10)
    shared.put(wanted(shared), 0, records(40, 50))
    shared.put(wanted(shared), 0, records(50, 60))
    shared.reset(wanted(shared), 0, AppliedReset(60, 0, 0, 100))
    if hidden:
        shared.skip(wanted(shared), 0, hidden)
    for first in (hidden, hidden + 150):
        shared.put(wanted(shared), 0, records(first, first + 150))
    shared.take()
    shared.pause(TP)
    assert [one.from_offset for one in wanted(shared).waiting] == [50]
    assert wanted(shared).nbytes == 80
    assert [one.until_offset for one in units.drain() if one.status is WorkStatus.DROPPED] == [
        hidden + 150,
        hidden + 300,
    ]
    assert shared.wish(wanted(shared)) == (hidden, -1, 1, 0, False)
    shared.put(wanted(shared), 1, records(hidden, hidden + 5))
    shared.resume(TP)
    assert shared.nbytes == wanted(shared).nbytes == 120
    assert [taken.from_offset for taken in iter(shared.take, None)] == [50, hidden]
    assert shared.position(TP) == hidden + 5


def test_a_pause_frees_records_of_after_a_reset(shared: PrefetchBuffer) -> None:
    shared.put(wanted(shared), 0, records(50, 60))
    shared.reset(wanted(shared), 0, AppliedReset(60, 0, 0, 100))
    for first in (0, 150):
        shared.put(wanted(shared), 0, replace(records(first, first + 150), leader_epoch=3))
    assert shared.take() is not None
    assert shared.take() is not None
    shared.put(wanted(shared), 0, records(300, 450))
    shared.pause(TP)
    assert not wanted(shared).waiting
    assert shared.wish(wanted(shared)) == (150, 3, 1, 0, False)


def test_what_was_taken_before_a_reset_stays_when_it_is_given_back(shared: PrefetchBuffer) -> None:
    shared.put(wanted(shared), 0, replace(records(50, 60), leader_epoch=3))
    taken = shared.take()
    assert taken is not None
    shared.reset(wanted(shared), 0, AppliedReset(60, 0, 0, 100))
    shared.put(wanted(shared), 0, records(0, 200))
    shared.give_back(replace(taken, columns=taken.columns.slice(4, 10), from_offset=54))
    shared.pause(TP)
    assert [(one.from_offset, one.next_offset) for one in wanted(shared).waiting] == [(54, 0)]
    assert shared.wish(wanted(shared)) == (0, -1, 1, 0, False)
    shared.resume(TP)
    again = shared.take()
    assert again is not None
    assert again.columns.offset is not None
    assert again.columns.offset.tolist() == [*range(54, 60)]
    assert shared.position(TP) == 0
    assert epochs_at(shared, 0) == [-1]


def test_each_error_is_raised_while_others_have_records(shared: PrefetchBuffer) -> None:
    """The first one was raised already; the second says something else."""
    other = TopicPartition("orders", 1)
    shared.add(other, 0, None)
    shared.put(shared.partition(other), 0, replace(records(0, 5), topic_partition=other))
    for reason in ("first", "second"):
        shared.broke(wanted(shared), 0, DeadlineExceededError(reason))
        with pytest.raises(DeadlineExceededError, match=reason):
            shared.check(again=False)
        shared.check(again=False)
    assert shared.partition(other).waiting


def position_and_waiting(shared: PrefetchBuffer) -> tuple[int, list[tuple[int, int]]]:
    waiting = [(one.from_offset, one.next_offset) for one in wanted(shared).waiting]
    return shared.position(TP), waiting


def begun(offset: int, epoch: int = -1, resets: int = 0) -> Begun:
    return Begun(offset, epoch, resets)


@pytest.mark.parametrize(("at", "epoch"), [(3, 4), (2, -1), (0, 2)])
def test_what_is_fetched_again_keeps_the_epoch_of_the_record_before(
    shared: PrefetchBuffer, at: int, epoch: int
) -> None:
    """That of the begin of the read, or of the last records."""
    for first, last_epoch in ((0, 3), (3, 4), (6, 5)):
        shared.put(wanted(shared), 0, replace(records(first, first + 3), leader_epoch=last_epoch))
    for _ in range(2):
        assert shared.take() is not None
    shared.fetch_again(TP, at, begun(0, epoch=2) if at == 0 else begun(at, epoch=4 if at == 3 else -1))
    assert position_and_waiting(shared) == (at, [])
    assert shared.wish(wanted(shared)) == (at, epoch, 1, 0, True)
    assert shared.leader_epochs({TP: at}) == ({} if epoch < 0 else {TP: epoch})
    shared.put(wanted(shared), 0, records(9, 12))  # fetched before
    assert shared.take() is None


def test_what_is_fetched_again_after_a_reset_behind_records_that_wait_leaves_no_epochs(
    shared: PrefetchBuffer,
) -> None:
    """The log may have others at their offsets since."""
    for first, until, epoch in ((0, 5, 1), (5, 8, 2), (8, 9, 2)):
        given = replace(records(first, until), leader_epoch=epoch, epoch_ranges=((first, until, epoch),))
        shared.put(wanted(shared), wanted(shared).moves, given)
    shared.take()
    taken = shared.take()
    assert taken is not None
    shared.reset(wanted(shared), wanted(shared).moves, AppliedReset(9, 5, 0, 5))
    shared.fetch_again(TP, 5, begun(5, epoch=1, resets=taken.resets))
    assert epochs_at(shared, 3, 5) == [-1, -1]


@pytest.mark.parametrize("is_reset", [False, True])
def test_what_is_fetched_again_leaves_earlier_records_their_epochs(
    shared: PrefetchBuffer, is_reset: bool
) -> None:
    """They may be committed later; the log may have others at their offsets only after a reset."""

    def read(first: int, until: int, epoch: int) -> FetchedRecords:
        ranges = ((first, until, epoch),)
        given = replace(records(first, until), leader_epoch=epoch, epoch_ranges=ranges)
        shared.put(wanted(shared), wanted(shared).moves, given)
        taken = shared.take()
        assert taken is not None
        return taken

    shared.reset(wanted(shared), 0, AppliedReset(9, 0, 0, 9))  # before all of them: it does not count
    read(0, 5, 1)
    resets = read(5, 8, 2).resets
    if is_reset:
        shared.reset(wanted(shared), 0, AppliedReset(8, 5, 0, 5))
    shared.fetch_again(TP, 5, begun(5, epoch=1, resets=resets))
    expected = [-1, -1] if is_reset else [1, 1]
    assert epochs_at(shared, 3, 5, 6) == [*expected, -1]
    read(5, 9, 2)
    assert epochs_at(shared, 3, 5, 6) == [*expected, 2]
    shared.seek(TP, 5)
    assert epochs_at(shared, 3, 5, 6) == [-1, -1, -1]


@pytest.mark.parametrize(
    "error",
    [
        LogTruncatedError(TP, 9, 2),
        OffsetOutOfRangeError(TP, 9),
        TopicRecreatedError("orders", "former", "present"),
    ],
)
def test_an_error_stays_when_records_that_the_log_has_lost_would_be_fetched_again(
    shared: PrefetchBuffer, error: KafkaError
) -> None:
    wanted(shared).topic_id = topic_id = UUID(int=5)
    for first in (0, 3, 6):
        shared.put(wanted(shared), 0, records(first, first + 3))
    for _ in range(2):
        assert shared.take() is not None
    shared.broke(wanted(shared), 0, error)
    shared.fetch_again(TP, 3, begun(3))
    assert position_and_waiting(shared) == (3, [])
    assert (shared.topic_ids(), shared.nbytes) == ({TP: topic_id}, 0)
    assert not shared.wish(wanted(shared))[-1]
    for _ in range(2):
        with pytest.raises(type(error)):
            shared.check(again=True)


def test_what_a_log_still_has_that_was_cut_behind_it_is_fetched_again(shared: PrefetchBuffer) -> None:
    shared.put(wanted(shared), 0, records(0, 9))
    assert shared.take() is not None
    shared.broke(wanted(shared), 0, LogTruncatedError(TP, 9, 7))
    shared.fetch_again(TP, 7, begun(0))
    assert shared.wish(wanted(shared)) == (7, -1, 1, 0, True)
    shared.check(again=True)


@pytest.mark.parametrize(
    ("to", "start", "at"),
    [
        pytest.param(0, 0, 0, id="the log was lost"),
        pytest.param(6, 0, 5, id="it was cut"),
        pytest.param(40, 0, 5, id="it was cut and has grown"),
        pytest.param(40, 30, 40, id="it begins later"),
    ],
)
@pytest.mark.parametrize("is_read_on", [False, True])
@pytest.mark.parametrize("waiting", [False, True])
def test_after_a_reset_what_the_log_has_is_fetched_again(
    shared: PrefetchBuffer, waiting: bool, is_read_on: bool, to: int, start: int, at: int
) -> None:
    shared.put(wanted(shared), 0, records(5, 7))
    if waiting:
        shared.put(wanted(shared), 0, records(7, 9))
    assert shared.take() is not None
    shared.reset(wanted(shared), 0, AppliedReset(9, to, start, 100))
    shared.put(wanted(shared), 0, records(to, to + 3))
    if is_read_on:  # by the same call
        assert shared.take() is not None
    place = shared.place(TP)
    shared.fetch_again(TP, 5, begun(5, epoch=3))
    assert position_and_waiting(shared) == (at, [])
    assert shared.wish(wanted(shared)) == (at, -1, 1, 0, True)
    assert not shared.is_at(TP, place)
    shared.put(wanted(shared), 1, records(to, to + 3))
    taken = shared.take()
    assert taken is not None
    shared.fetch_again(TP, to + 1, begun(to + 1, resets=taken.resets))  # read after it
    assert shared.wish(wanted(shared)) == (to + 1, -1, 2, 0, True)


def test_records_that_a_pause_has_freed_are_not_given_back_beside_those_fetched_again(
    shared: PrefetchBuffer,
) -> None:
    """A thread pauses between two steps of a read that gives back all that it has taken."""
    shared.put(wanted(shared), 0, records(0, 200))
    taken = shared.take()
    assert taken is not None
    shared.give_back(replace(taken, columns=taken.columns.slice(4, 200), from_offset=4))
    shared.pause(TP)
    assert shared.wish(wanted(shared))[:3] == (4, -1, 1)
    shared.give_back(taken)
    shared.resume(TP)
    shared.put(wanted(shared), 1, records(4, 200))
    found = [one.columns.offset.tolist() for one in iter(shared.take, None) if one.columns.offset is not None]
    assert found == [[0, 1, 2, 3], list(range(4, 200))]


def test_a_reset_is_reached_once_no_records_of_before_wait(shared: PrefetchBuffer) -> None:
    shared.put(wanted(shared), 0, records(5, 7))
    assert shared.reset_of(TP) is None
    shared.reset(wanted(shared), 0, AppliedReset(7, 0, 0, 100))
    shared.put(wanted(shared), 0, records(0, 3))
    assert shared.reset_of(TP) == AppliedReset(7, 0, 0, 100, lacked=True, reached=False)
    taken = shared.take()
    assert taken is not None
    assert shared.reset_of(TP) == AppliedReset(7, 0, 0, 100, lacked=True, reached=True)
    for _ in range(2):
        shared.give_back(replace(taken, from_offset=6))
        assert shared.reset_of(TP) == AppliedReset(7, 0, 0, 100, lacked=True, reached=False)
        assert position_and_waiting(shared) == (6, [(6, 0), (0, 3)])


def test_what_waits_since_the_first_of_two_resets_is_fetched_again(shared: PrefetchBuffer) -> None:
    shared.put(wanted(shared), 0, records(0, 9))
    assert shared.take() is not None
    shared.reset(wanted(shared), 0, AppliedReset(9, 0, 0, 0))
    shared.put(wanted(shared), 0, records(0, 7))
    shared.reset(wanted(shared), 0, AppliedReset(7, 4, 0, 4))
    shared.fetch_again(TP, 6, begun(6))
    assert position_and_waiting(shared) == (0, [])


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_reset_says_if_the_log_never_reached_to_where_the_caller_moved(
    shared: PrefetchBuffer, confirmed: bool
) -> None:
    shared.confirm(wanted(shared), 0)  # this is about another offset
    shared.seek(TP, 50)
    if confirmed:
        shared.confirm(wanted(shared), 1)
    shared.reset(wanted(shared), 1, AppliedReset(50, 0, 0, 9))
    assert shared.reset_of(TP) == AppliedReset(50, 0, 0, 9, lacked=not confirmed)
    shared.reset(wanted(shared), 1, AppliedReset(9, 0, 0, 3))
    assert shared.reset_of(TP) == AppliedReset(9, 0, 0, 3)
    assert shared.reset_of(TopicPartition("orders", 1)) is None


@pytest.mark.parametrize("paused", [True, False])
@pytest.mark.parametrize(
    ("reset", "left"),
    [
        (AppliedReset(9, 0, 0, 0), (0, [])),
        (AppliedReset(9, 6, 0, 6), (5, [(5, 7), (7, 6), (6, 8)])),
        (AppliedReset(9, 40, 30, 40), (40, [])),
        (AppliedReset(9, 40, 0, 40), (5, [(5, 7), (7, 40), (40, 42)])),
    ],
    ids=["lost", "cut", "skipped", "cut and grown"],
)
def test_records_of_a_log_that_was_lost_are_dropped_when_their_partition_is_given_up(
    shared: PrefetchBuffer, paused: bool, reset: AppliedReset, left: tuple[int, list[tuple[int, int]]]
) -> None:
    shared.put(wanted(shared), 0, records(0, 5))
    assert shared.take() is not None
    shared.drop_lost(TP)
    shared.put(wanted(shared), 0, records(5, 7))
    shared.put(wanted(shared), 0, records(7, 9))
    shared.drop_lost(TP)
    shared.reset(wanted(shared), 0, reset)
    shared.put(wanted(shared), 0, records(reset.offset, reset.offset + 2))
    if paused:
        shared.pause(TP)
    shared.drop_lost(TP)
    assert position_and_waiting(shared) == left


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (TopicRecreatedError("orders", "former", "present"), True),
        (LogTruncatedError(TP, 5, 3), True),
        (KafkaError("not authorized"), False),
    ],
)
def test_an_error_behind_a_reset_stays_if_it_is_of_another_log_when_the_partition_is_given_up(
    shared: PrefetchBuffer, error: KafkaError, stays: bool
) -> None:
    shared.put(wanted(shared), 0, records(0, 5))
    shared.take()
    shared.put(wanted(shared), 0, records(5, 9))
    shared.reset(wanted(shared), 0, AppliedReset(9, 0, 0, 0))
    shared.broke(wanted(shared), 0, error)
    shared.drop_lost(TP)
    assert shared.broken == ([TP] if stays else [])
    assert shared.position(TP) == (5 if stays else 0)
