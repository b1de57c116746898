"""How ranges become tasks. The first tests are the published examples of Spark's
KafkaOffsetRangeCalculatorSuite.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.read.driver.range_calculator import (
    PlannedRange,
    describe_small_tasks,
    pack_ranges,
    split_ranges,
)
from spark_kafka_native.spark.read.offset_range import (
    At,
    Earliest,
    Inner,
    Latest,
    OffsetRange,
    fixed_offset,
    is_open,
)


def fixed(topic, first, until, partition=1):
    shipped = OffsetRange(topic=topic, partition=partition, start=At(first), end=At(until))
    return PlannedRange(shipped=shipped, from_offset=first, until_offset=until)


def late(topic, first, until, partition=1):
    shipped = OffsetRange(topic=topic, partition=partition, start=Earliest(), end=Latest())
    return PlannedRange(shipped=shipped, from_offset=first, until_offset=until)


def triples(ranges):
    return [(r.shipped.topic, fixed_offset(r.shipped.start), fixed_offset(r.shipped.end)) for r in ranges]


@pytest.mark.parametrize(
    ("min_partitions", "given_ranges", "expected"),
    [
        (None, [("t1", 1, 2)], None),
        (None, [("t1", 1, 2), ("t2", 1, 1)], [("t1", 1, 2)]),
        (3, [("t1", 1, 2), ("t2", 1, 2), ("t3", 1, 2)], None),
        (4, [("t1", 1, 5)], [("t1", 1, 2), ("t1", 2, 3), ("t1", 3, 4), ("t1", 4, 5)]),
        (
            4,
            [("t1", 1, 5), ("t2", 1, 21)],
            [("t1", 1, 5), ("t2", 1, 7), ("t2", 7, 14), ("t2", 14, 21)],
        ),
        (
            4,
            [("t1", 1, 1), ("t2", 1, 21)],
            [("t2", 1, 6), ("t2", 6, 11), ("t2", 11, 16), ("t2", 16, 21)],
        ),
        (
            4,
            [("t1", 1, 2), ("t2", 1, 1001)],
            [("t1", 1, 2), ("t2", 1, 334), ("t2", 334, 667), ("t2", 667, 1001)],
        ),
        (1, [("t1", 1, 5), ("t2", 1, 21)], None),
        (3, [("t1", 1, 11)], [("t1", 1, 4), ("t1", 4, 7), ("t1", 7, 11)]),
        (
            4,
            [("t1", 1, 5), ("t2", 1, 21), ("t3", 1, 1)],
            [("t1", 1, 5), ("t2", 1, 7), ("t2", 7, 14), ("t2", 14, 21)],
        ),
        (
            6,
            [("t1", 0, 10), ("t2", 0, 10), ("t3", 0, 1)],
            [
                ("t1", 0, 3), ("t1", 3, 6), ("t1", 6, 10),
                ("t2", 0, 3), ("t2", 3, 6), ("t2", 6, 10),
                ("t3", 0, 1),
            ],
        ),
        (
            9,
            [("t1", 0, 10000), ("t2", 0, 15000), ("t3", 0, 20000)],
            [("t1", i, i + 5000) for i in (0, 5000)]
            + [("t2", i, i + 5000) for i in (0, 5000, 10000)]
            + [("t3", i, i + 5000) for i in (0, 5000, 10000, 15000)],
        ),
        (
            6,
            [("t1", 0, 500), ("t2", 0, 12000), ("t3", 0, 15001)],
            [
                ("t1", 0, 500), ("t2", 0, 6000), ("t2", 6000, 12000),
                ("t3", 0, 5000), ("t3", 5000, 10000), ("t3", 10000, 15001),
            ],
        ),
        (
            6,
            [("t1", 0, 1), ("t2", 0, 1), ("t3", 0, 10000)],
            [("t1", 0, 1), ("t2", 0, 1)] + [("t3", i, i + 2500) for i in (0, 2500, 5000, 7500)],
        ),
        (
            4,
            [("t1", 0, 1), ("t2", 0, 1), ("t3", 0, 2)],
            [("t1", 0, 1), ("t2", 0, 1), ("t3", 0, 1), ("t3", 1, 2)],
        ),
    ],
)  # fmt: skip
def test_min_partitions_as_in_sparks_suite(min_partitions, given_ranges, expected):
    pieces = split_ranges([fixed(*r) for r in given_ranges], min_partitions=min_partitions)
    assert triples(pieces) == (given_ranges if expected is None else expected)


def test_a_range_has_no_more_pieces_than_offsets():
    assert triples(split_ranges([fixed("t", 4, 7)], min_partitions=10)) == [
        ("t", 4, 5), ("t", 5, 6), ("t", 6, 7),
    ]  # fmt: skip


def test_max_records_splits_evenly_on_default_offsets_too():
    pieces = split_ranges([late("t", 0, 10)], max_records=4)
    assert triples(pieces) == [("t", None, 3), ("t", 3, 6), ("t", 6, None)]
    assert [piece.size for piece in pieces] == [3, 3, 4]


@pytest.mark.parametrize("start", [At(0), Earliest()])
@pytest.mark.parametrize("end", [At(12), Latest()])
def test_a_range_that_is_split_twice_stays_open_where_it_was(start, end):
    shipped = OffsetRange(topic="t", partition=1, start=start, end=end)
    whole = PlannedRange(shipped=shipped, from_offset=0, until_offset=12)
    pieces = split_ranges([whole], max_records=6, min_partitions=4)
    inner_start = Inner if start == Earliest() else At
    inner_end = Inner if end == Latest() else At
    assert [(piece.shipped.start, piece.shipped.end) for piece in pieces] == [
        (start, inner_end(3)),
        (inner_start(3), inner_end(6)),
        (inner_start(6), inner_end(9)),
        (inner_start(9), end),
    ]


def test_an_empty_range_stays_only_where_more_may_come():
    assert triples(split_ranges([late("a", 5, 5), fixed("b", 5, 5)])) == [("a", None, None)]
    assert triples(split_ranges([late("a", 5, 5), fixed("b", 0, 9)], min_partitions=2)) == [
        ("a", None, None),
        ("b", 0, 4),
        ("b", 4, 9),
    ]


def test_packing_goes_by_leader_then_size():
    ranges = [fixed("t", 0, 1000, p) for p in range(4)] + [fixed("t", 0, 10, p) for p in range(4, 8)]
    leaders = {TopicPartition("t", p): p % 2 for p in range(8)}
    tasks = pack_ranges(ranges, 4, leaders)
    assert len(tasks) == 4
    for task in tasks:
        assert len({leaders[r.shipped.topic_partition] for r in task}) == 1
        assert sum(r.size for r in task) == 1010
    assert len(pack_ranges(ranges, 1, leaders)) == 1
    assert len(pack_ranges(ranges, None, leaders)) == 8


def test_no_leader_gets_more_tasks_than_it_has_ranges():
    ranges = [fixed("big", 0, 10_000, 0), *(fixed("t", 0, 10, p) for p in range(1, 6))]
    leaders = {r.shipped.topic_partition: 1 if r.shipped.topic == "big" else 2 for r in ranges}
    tasks = pack_ranges(ranges, 4, leaders)
    assert sorted(len(task) for task in tasks) == [1, 1, 2, 2]
    assert [r.size for task in tasks for r in task if len(task) == 1 and r.size > 10] == [10_000]


def test_ranges_of_different_leaders_share_no_task_where_there_are_enough():
    ranges = [fixed("t", 0, size, p) for p, size in enumerate((4_000, 3_000, 2_000, 1_000))]
    leaders = {r.shipped.topic_partition: r.shipped.partition // 2 for r in ranges}
    tasks = pack_ranges(ranges, 2, leaders)
    assert sorted([r.shipped.partition for r in task] for task in tasks) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("ceiling", "kept"), [(None, 1), (6, 1), (5, 0)])
def test_an_empty_range_that_filters_end_where_it_starts_is_dropped(ceiling, kept):
    shipped = OffsetRange(topic="t", partition=1, start=Earliest(), end=Latest(), ceiling=ceiling)
    empty = PlannedRange(shipped=shipped, from_offset=5, until_offset=5)
    assert len(split_ranges([empty])) == kept


def test_the_largest_range_is_placed_first():
    ranges = [fixed("t", 0, size, p) for p, size in enumerate((1_000, 2_000, 3_000, 6_000))]
    tasks = pack_ranges(ranges, 2, {})
    assert sorted(sorted(r.size for r in task) for task in tasks) == [[1_000, 2_000, 3_000], [6_000]]


class CountedInt(int):
    """An int that counts in how many comparisons it takes part."""

    comparisons = 0

    def __add__(self, other):
        return CountedInt(int(self) + int(other))

    __radd__ = __add__

    def __sub__(self, other):
        return CountedInt(int(self) - int(other))

    def __lt__(self, other):
        CountedInt.comparisons += 1
        return int(self) < int(other)

    def __gt__(self, other):
        CountedInt.comparisons += 1
        return int(self) > int(other)

    def __eq__(self, other):
        CountedInt.comparisons += 1
        return int(self) == int(other)

    def __hash__(self):
        return hash(int(self))


def comparisons_to_pack(count, max_partitions):
    before = CountedInt.comparisons
    ranges = [fixed("t", CountedInt(0), CountedInt(1_000 + p * 7_919 % 5_003), p) for p in range(count)]
    assert len(pack_ranges(ranges, max_partitions, {})) == max_partitions
    return CountedInt.comparisons - before


def test_packing_does_not_look_at_every_task_for_every_range():
    small, large = comparisons_to_pack(1_000, 250), comparisons_to_pack(4_000, 1_000)
    assert large < 6 * small


def test_pieces_that_meet_in_a_task_are_one_range_again():
    pieces = split_ranges([late("t", 0, 100)], min_partitions=4)
    (task,) = pack_ranges(pieces, 1, {})
    assert triples(task) == [("t", None, None)]
    assert task[0].size == 100


def test_pieces_of_unequal_size_that_meet_in_a_task_are_in_order():
    pieces = split_ranges([fixed("t", 0, 10)], min_partitions=3)
    assert [piece.size for piece in pieces] == [3, 3, 4]  # packed with the largest first
    (task,) = pack_ranges(pieces, 1, {})
    assert triples(task) == [("t", 0, 10)]
    (task,) = pack_ranges([pieces[0], pieces[2]], 1, {})
    assert triples(task) == [("t", 0, 3), ("t", 6, 10)]


def test_ranges_of_different_partitions_that_meet_stay_apart():
    ranges = [fixed("t", 0, 100, 0), fixed("t", 100, 200, 1), fixed("u", 200, 300, 1)]
    (task,) = pack_ranges(ranges, 1, {})
    assert [(r.shipped.topic_partition, r.from_offset, r.until_offset) for r in task] == [
        (TopicPartition("t", 0), 0, 100),
        (TopicPartition("t", 1), 100, 200),
        (TopicPartition("u", 1), 200, 300),
    ]


def test_many_small_tasks_name_the_option():
    small = [(fixed("t", 0, 999, p),) for p in range(101)]
    assert "maxPartitions" in describe_small_tasks(small)
    assert "101 tasks were planned for 100899 offsets in all" in describe_small_tasks(small)
    assert describe_small_tasks(small[:100]) is None
    assert describe_small_tasks([*small, (fixed("u", 0, 1000),)]) is None


@st.composite
def planned(draw):
    ranges, before = [], 0
    for partition in range(draw(st.integers(0, 8))):
        first = draw(
            st.one_of(st.just(before), st.integers(0, 10**12))
        )  # it may begin where the last one ends
        before = until = first + draw(st.one_of(st.integers(0, 50), st.integers(0, 10**6)))
        ranges.append((late if draw(st.booleans()) else fixed)("t", first, until, partition))
    return ranges


@given(
    ranges=planned(),
    min_partitions=st.one_of(st.none(), st.integers(1, 60)),
    max_records=st.one_of(st.none(), st.integers(5_000, 10**7)),
    max_partitions=st.one_of(st.none(), st.integers(1, 12)),
)
def test_no_offset_is_ever_lost_or_repeated(ranges, min_partitions, max_records, max_partitions):
    pieces = split_ranges(ranges, min_partitions=min_partitions, max_records=max_records)
    leaders = {r.shipped.topic_partition: r.shipped.partition % 3 for r in ranges}
    tasks = pack_ranges(pieces, max_partitions, leaders)
    if max_partitions is not None:
        assert len(tasks) <= max_partitions
    for task in tasks:
        places = [(piece.shipped.topic_partition, piece.from_offset) for piece in task]
        assert places == sorted(places)
    if max_records is not None:
        assert all(piece.size <= max_records for piece in pieces)
    found = sorted(
        (
            (piece.shipped.topic_partition, piece.from_offset, piece.until_offset, piece.shipped)
            for task in tasks
            for piece in task
            if piece.size
        ),
        key=lambda entry: entry[:3],
    )
    for whole in ranges:
        mine = [entry for entry in found if entry[0] == whole.shipped.topic_partition]
        if whole.size == 0:
            assert mine == []
            continue
        # The pieces lie end to end, and the outer bounds are what they were: late ones stay late.
        assert mine[0][1] == whole.from_offset
        assert mine[-1][2] == whole.until_offset
        assert all(a[2] == b[1] for a, b in itertools.pairwise(mine))
        assert mine[0][3].start == whole.shipped.start
        assert mine[-1][3].end == whole.shipped.end
        # An open range stays open, however often it is split: each piece knows.
        assert {is_open(entry[3].start) for entry in mine} == {is_open(whole.shipped.start)}
        assert {is_open(entry[3].end) for entry in mine} == {is_open(whole.shipped.end)}
        assert all(
            fixed_offset(a[3].end) == a[2] == fixed_offset(b[3].start) for a, b in itertools.pairwise(mine)
        )
