import pytest

from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.read.driver.admission_control import (
    Backlog,
    SizeEstimate,
    admit,
    holds_back,
    plan_end,
)
from spark_kafka_native.spark.read.driver.micro_batch import LogEnds, StreamOffset
from spark_kafka_native.spark.read.read_options import MicroBatchLimits

TPS = [TopicPartition("t", index) for index in range(4)]


def admitted(limits, *backlogs, begin=None, sizes=None, first=None):
    begin = dict(zip(TPS, begin or [0] * len(backlogs), strict=False))
    latest = {tp: begin[tp] + backlog for tp, backlog in zip(TPS, backlogs, strict=False)}
    known = SizeEstimate(
        bytes_per_offset=dict(zip(TPS, sizes or [], strict=False)),
        first=dict(zip(TPS, first or [], strict=False)),
    )
    ends = admit(limits, begin, latest, known)
    assert list(ends) == list(latest)
    return [ends[tp] - begin[tp] for tp in ends]


@pytest.mark.parametrize(
    ("limit", "backlogs", "shares"),
    [
        (10, (101, 11, 1), [8, 1, 1]),  # the JVM connector's own example
        (113, (101, 11, 1), [101, 11, 1]),
        (112, (101, 11, 1), [100, 10, 1]),
        (1, (5, 5, 5), [1, 1, 1]),  # none of them starves
        (10, (0, 0, 7), [0, 0, 7]),
        (10, (0, 30), [0, 10]),
        (7, (0, 0), [0, 0]),
        (2**62, (2**61, 2**61, 2**61), [2**62 // 3] * 3),  # no float in between
    ],
)
def test_offsets_are_shared_out_in_proportion(limit, backlogs, shares):
    limits = MicroBatchLimits(max_offsets=limit)
    assert admitted(limits, *backlogs) == shares
    assert admitted(limits, *backlogs, begin=[1000, 7, 3]) == shares


def test_a_log_that_has_become_shorter_ends_where_it_ends_and_has_no_share():
    assert admitted(MicroBatchLimits(max_offsets=10), -90, 100, begin=[100, 0]) == [-90, 10]


def test_bytes_are_offsets_of_the_average_size():
    limits = MicroBatchLimits(max_bytes=10_000)
    # 100 x 50 B and 100 x 150 B are 20 000 B: half of everything.
    assert admitted(limits, 100, 100, sizes=[50, 150]) == [50, 50]
    assert admitted(limits, 100, 100, sizes=[10, 90]) == [100, 100]
    # A record that is larger than the limit comes alone: no limit may stop the stream.
    assert admitted(MicroBatchLimits(max_bytes=1), 100, sizes=[1_000_000]) == [1]


def test_the_stricter_of_two_limits_counts():
    assert admitted(MicroBatchLimits(max_bytes=10_000, max_offsets=30), 100, sizes=[1000]) == [10]
    assert admitted(MicroBatchLimits(max_bytes=10_000, max_offsets=5), 100, sizes=[1000]) == [5]


def test_a_gap_counts_apart_from_what_follows_it():
    """Neither is the whole log next to nothing, nor does a batch end in the gap."""
    limits = MicroBatchLimits(max_bytes=10_000)
    assert admitted(limits, 1000, sizes=[1000], first=[900]) == [910]
    assert admitted(limits, 1000, 100, sizes=[1000, 1000], first=[900]) == [905, 5]
    assert admitted(limits, 1000, 100, sizes=[1000, 1000], first=[1000]) == [1000, 10]
    assert admitted(limits, 1000, sizes=[1000], first=[995]) == [1000]
    assert admitted(limits, 10, sizes=[1000], begin=[50], first=[7]) == [10]
    assert admitted(limits, -90, 100, sizes=[1000, 1000], begin=[100, 0], first=[100]) == [-90, 10]
    # The limit in offsets is one in offsets.
    both = MicroBatchLimits(max_bytes=10_000, max_offsets=30)
    assert admitted(both, 1000, sizes=[1000], first=[900]) == [30]
    assert admitted(both, 1000, sizes=[1000], first=[15]) == [25]


def test_what_could_not_be_sampled_counts_as_a_kilobyte():
    assert admitted(MicroBatchLimits(max_bytes=10_000), 100) == [10]


def test_too_little_waits_but_not_for_ever_and_not_at_first():
    limits = MicroBatchLimits(min_offsets=10, max_delay_ms=60_000)
    begin, latest = {TPS[0]: 5}, {TPS[0]: 14}
    assert holds_back(limits, begin, latest, waited_ms=0)
    assert holds_back(limits, begin, latest, waited_ms=59_999)
    assert not holds_back(limits, begin, latest, waited_ms=60_000)
    assert not holds_back(limits, begin, latest, waited_ms=None)
    assert not holds_back(limits, begin, {TPS[0]: 15}, waited_ms=0)
    # A new partition counts whole.
    assert not holds_back(limits, begin, {TPS[0]: 14, TPS[1]: 1}, waited_ms=0)
    assert not holds_back(MicroBatchLimits(max_offsets=3), begin, begin, waited_ms=0)


# A whole decision: the ends of the logs, what the options make of them, and where the batch ends.

T0, T1, T2, T3 = TPS
OLD, NEW = "a" * 32, "b" * 32
NO_LIMIT, TEN = MicroBatchLimits(), MicroBatchLimits(max_offsets=10)
NO_SIZES = SizeEstimate()


def backlog(positions, latest, ids=OLD, ids_now=OLD):
    start = StreamOffset(positions=positions, topic_ids={"t": ids} if ids else {})
    return Backlog.of(start, LogEnds(latest=latest, topic_ids={"t": ids_now} if ids_now else {}))


@pytest.mark.parametrize(
    ("positions", "latest", "is_empty"),
    [
        ({T0: 5}, {T0: 5}, True),
        ({T0: 5}, {T0: 6}, False),
        ({T0: 5}, {T0: 5, T1: 0}, False),  # a new partition, empty: it is written down
        ({T0: 5, T1: 5}, {T0: 5}, False),  # one that is gone
    ],
)
def test_there_is_nothing_to_read_only_where_all_is_as_it_was(positions, latest, is_empty):
    assert backlog(positions, latest).is_empty is is_empty


def test_a_topic_that_was_created_again_is_never_nothing():
    assert not backlog({T0: 5}, {T0: 5}, ids_now=NEW).is_empty


@pytest.mark.parametrize(("ids", "ids_now"), [(OLD, OLD), (None, OLD), (OLD, None), (None, None), (OLD, NEW)])
def test_a_position_beyond_the_end_is_held_only_in_a_topic_that_is_known_to_be_the_same(ids, ids_now):
    found = backlog({T0: 9, T1: 5}, {T0: 7, T1: 8}, ids, ids_now)
    is_same = ids == ids_now == OLD
    assert found.held == ({T0: 9} if is_same else {})
    assert found.ends.latest == {T0: 9 if is_same else 7, T1: 8}
    assert found.batch.end.positions == found.ends.latest


@pytest.mark.parametrize(
    ("limits", "fail", "asked"),
    [
        (NO_LIMIT, True, [T3]),
        (NO_LIMIT, False, [T3]),
        (TEN, True, [T3]),
        (TEN, False, [T3, T0]),
        (MicroBatchLimits(max_bytes=1), True, [T3]),
        (MicroBatchLimits(min_offsets=1), False, [T3, T0]),
    ],
)
def test_only_beginnings_that_decide_something_are_asked_for(limits, fail, asked):
    # T0 has records to read, T1 none, T2 is gone and T3 new.
    found = backlog({T0: 5, T1: 5, T2: 5}, {T0: 7, T1: 5, T3: 4})
    assert found.unknown_beginnings(limits, fail_on_data_loss=fail) == asked


@pytest.mark.parametrize("limits", [NO_LIMIT, TEN])
@pytest.mark.parametrize("fail", [True, False])
def test_a_quiet_stream_has_nothing_to_ask_for(limits, fail):
    assert backlog({T0: 5}, {T0: 5}).unknown_beginnings(limits, fail_on_data_loss=fail) == []


def test_a_limit_counts_what_can_be_read():
    found = backlog({T0: 5, T1: 5, T2: 5}, {T0: 100, T1: 100, T2: 100, T3: 30})
    assert found.begin({}) == {T0: 5, T1: 5, T2: 5}
    # The next records are there; some are lost; all are lost, and the log begins after its end at planning.
    assert found.begin({T0: 2, T1: 40, T2: 120, T3: 20}) == {T0: 5, T1: 40, T2: 100, T3: 20}
    end = plan_end(found, TEN, {T0: 2, T1: 90, T2: 100, T3: 30}, NO_SIZES, fail_on_data_loss=False)
    assert end.positions == {T0: 5 + 10 * 95 // 105, T1: 90 + 1, T2: 100, T3: 30}


def test_a_batch_without_a_limit_ends_with_the_logs():
    found = backlog({T0: 5}, {T0: 100, T1: 7})
    for fail, added in ((True, {}), (False, {T1: 3})):
        end = plan_end(found, NO_LIMIT, {T1: 3}, NO_SIZES, fail_on_data_loss=fail)
        assert (end.positions, end.added) == ({T0: 100, T1: 7}, added)
        assert end.topic_ids == {"t": OLD}
    # A partition that is gone before it is asked for its beginning: the plan looks it up again.
    assert plan_end(found, TEN, {}, NO_SIZES, fail_on_data_loss=False).positions == {T0: 15, T1: 7}


def test_the_end_of_the_first_batch_says_where_that_begins():
    start = StreamOffset(positions={T0: 5}, topic_ids={"t": OLD}, start={T0: 5})
    found = Backlog.of(start, LogEnds(latest={T0: 100}, topic_ids={"t": OLD}))
    for limits, until in ((NO_LIMIT, 100), (TEN, 15)):
        end = plan_end(found, limits, {}, NO_SIZES, fail_on_data_loss=True)
        assert (end.positions, end.start) == ({T0: until}, {T0: 5})


def test_sizes_decide_where_a_limit_in_bytes_ends():
    found = backlog({T0: 0}, {T0: 100})
    limits = MicroBatchLimits(max_bytes=500)
    for size, until in ((50.0, 10), (5.0, 100)):
        sizes = SizeEstimate(bytes_per_offset={T0: size})
        assert plan_end(found, limits, {}, sizes, fail_on_data_loss=True).positions == {T0: until}
    gap = SizeEstimate(bytes_per_offset={T0: 50.0}, first={T0: 60})
    assert plan_end(found, limits, {}, gap, fail_on_data_loss=True).positions == {T0: 70}
