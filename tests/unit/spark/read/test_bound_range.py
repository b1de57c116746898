"""The rest of a range, in literals."""

import pytest

from spark_kafka_native.kafka.errors import TopicRecreatedError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.read.data_loss import OTHER_CLUSTER, OffsetsLost
from spark_kafka_native.spark.read.offset_range import (
    At,
    Earliest,
    FirstAtOrAfter,
    Inner,
    Latest,
    OffsetRange,
)
from spark_kafka_native.spark.read.worker.offset_binding import (
    Binding,
    BoundRange,
    cut_to_log,
    first_offset,
    move_to_successor,
)

TP = TopicPartition("t", 3)
OLD, NEW = "0" * 31 + "1", "0" * 31 + "2"
NOTE = f"The topic was deleted and created again: topic id {OLD} is now {NEW}. {OTHER_CLUSTER}"
BEGINNING = "The new one is read from its beginning."


def planned(start, end, **changes):
    return OffsetRange(topic="t", partition=3, start=start, end=end, topic_id=OLD, **changes)


@pytest.mark.parametrize(
    ("start", "earliest", "expected"),
    [
        (At(5), 20, 5),  # offsets before 20 are asked for, and lost
        (Inner(5), 20, 20),
        (Inner(30), 20, 30),
        (Earliest(), 20, 20),
    ],
)
def test_a_start_of_earliest_is_never_before_it(start, earliest, expected):
    assert first_offset(planned(start, Latest()), earliest) == expected


@pytest.mark.parametrize(
    ("log", "left", "lost"),
    [
        ((0, 100), (10, 50), 0),
        ((10, 50), (10, 50), 0),
        ((20, 100), (20, 50), 10),
        ((0, 30), (10, 30), 20),
        ((20, 30), (20, 30), 30),
        ((60, 100), (50, 50), 40),
        ((0, 5), (10, 10), 40),
    ],
)
def test_a_range_is_cut_to_what_its_log_has(log, left, lost):
    bound = BoundRange(planned=planned(At(0), At(50)), position=10, until_offset=50, is_untouched=False)
    kept, loss = cut_to_log(bound, *log)
    assert (kept.position, kept.until_offset, kept.is_untouched) == (*left, False)
    note = f"The log has [{log[0]}, {log[1]})."
    expected = OffsetsLost(topic_partition=TP, from_offset=10, until_offset=50, lost=lost, note=note)
    assert loss == (expected if lost else None)


@pytest.mark.parametrize(
    ("start", "end", "moves", "first", "until"),
    [
        (At(10), At(90), False, 10, 90),
        (At(10), Inner(90), False, 10, 90),
        (At(10), Latest(), True, 10, None),
        (At(10), FirstAtOrAfter(7), True, 10, None),
        (Earliest(), At(90), False, 0, 90),
        (Inner(10), At(90), False, 10, 90),
        # Other tasks may have read the other pieces of the former topic.
        (Earliest(), Inner(90), False, 0, 90),
        (Inner(10), Inner(90), False, 10, 90),
        (Inner(10), Latest(), True, 10, None),
        (Inner(10), FirstAtOrAfter(7), True, 10, None),
    ],
)
def test_offsets_of_a_former_topic_are_lost_and_only_an_open_end_reads_the_new_one(
    start, end, moves, first, until
):
    moved, loss = move_to_successor(planned(start, end, floor=5, ceiling=70), NEW)
    successor = OffsetRange(topic="t", partition=3, start=Earliest(), end=end, topic_id=NEW)
    assert moved == (successor if moves else None)
    assert loss == OffsetsLost(
        topic_partition=TP,
        from_offset=first,
        until_offset=until,
        lost=None if until is None else until - first,
        note=NOTE,
        then=BEGINNING if moves else "",
    )


@pytest.mark.parametrize("end", [Latest(), FirstAtOrAfter(7)])
def test_a_read_of_a_whole_partition_loses_nothing_with_its_topic(end):
    moved, loss = move_to_successor(planned(Earliest(), end), NEW)
    assert moved is not None
    assert loss is None


@pytest.mark.parametrize(("end", "moves"), [(Latest(), True), (Inner(90), False), (At(90), False)])
def test_a_range_that_was_begun_loses_its_rest_whatever_its_bounds_were(end, moves):
    error = TopicRecreatedError("t", OLD, NEW)
    begun = BoundRange(planned=planned(Earliest(), end), position=20, until_offset=90).advanced(30)
    moved, loss = move_to_successor(begun.planned, NEW, begun=begun, cause=error)
    assert (moved is not None) == moves
    assert (loss.from_offset, loss.until_offset, loss.lost, loss.cause) == (30, 90, 60, error)


def test_bindings_are_joined_in_order():
    bound = [BoundRange(planned=planned(At(0), At(9)), position=i, until_offset=9) for i in range(3)]
    losses = [
        OffsetsLost(topic_partition=TP, from_offset=i, until_offset=9, lost=1, note="n") for i in range(2)
    ]
    parts = [Binding(ranges=(bound[0],), losses=(losses[0],)), Binding(), Binding(ranges=tuple(bound[1:]))]
    joined = Binding.of([*parts, Binding(losses=(losses[1],))])
    assert joined == Binding(ranges=tuple(bound), losses=tuple(losses))
