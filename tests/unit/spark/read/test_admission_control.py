import pytest

from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.read.driver.admission_control import admit, holds_back
from spark_kafka_native.spark.read.read_options import MicroBatchLimits

TPS = [TopicPartition("t", index) for index in range(4)]


def admitted(limits, *backlogs, begin=None, sizes=None):
    begin = dict(zip(TPS, begin or [0] * len(backlogs), strict=False))
    latest = {tp: begin[tp] + backlog for tp, backlog in zip(TPS, backlogs, strict=False)}
    bytes_per_offset = dict(zip(TPS, sizes or [], strict=False))
    ends = admit(limits, begin, latest, bytes_per_offset)
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
