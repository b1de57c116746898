"""Percentiles of what was measured, within the error that is stated."""

import math
import random

import pytest

from spark_kafka_native.kafka.observe.metrics import NOTHING, STEPS, Distribution, Histogram

ERROR = 2 ** (1 / (2 * STEPS)) - 1


def of(*values: float) -> Distribution:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram.distribution()


def test_the_stated_error_is_that_of_the_buckets():
    assert pytest.approx(0.0905, abs=0.0001) == ERROR


@pytest.mark.parametrize("seed", range(20))
def test_percentiles_are_within_the_stated_error(seed: int):
    draw = random.Random(seed)
    values = sorted(math.exp(draw.uniform(-13, 27)) for _ in range(draw.randint(1, 300)))
    told = of(*draw.sample(values, len(values)))
    assert (told.count, told.min, told.max) == (len(values), values[0], values[-1])
    assert told.mean == pytest.approx(sum(values) / len(values))
    for share, found in ((0.50, told.p50), (0.95, told.p95), (0.99, told.p99)):
        assert found == pytest.approx(values[math.ceil(share * len(values)) - 1], rel=ERROR + 1e-9)


def test_nothing_measured_is_zero():
    assert Histogram().distribution() == NOTHING == Distribution()


def test_what_is_tiny_huge_or_before_zero_is_counted_too():
    told = of(-1.0, 0.0, 1e-9, 1e12, 1e30, math.inf)
    assert (told.count, told.min, told.max, told.p50) == (6, 0.0, math.inf, 0.0)
    assert len(told.buckets) == 3
    assert of(math.nan).max == 0.0


def test_a_sum_never_falls():
    """Not even by a last digit: who reads counters takes that for a new start, and adds it all again."""
    draw, histogram, before = random.Random(1), Histogram(), 0.0
    for _ in range(2_000):
        histogram.add(draw.choice([0.0, draw.random()]))
        told = histogram.distribution().sum
        assert told >= before
        before = told


def test_memory_is_bounded():
    draw = random.Random(1)
    told = of(*(2.0 ** draw.uniform(-40, 60) for _ in range(20_000)))
    assert len(told.buckets) <= 241


def test_what_came_since_and_before_is_the_whole():
    early, late = [0.001 * n for n in range(1, 200)], [5.0, 6.0, 7.0]
    before, whole = of(*early), of(*early, *late)
    since = whole.minus(before)
    assert since.count == 3
    assert since.sum == pytest.approx(18.0)
    assert since.p50 == pytest.approx(6.0, rel=ERROR)
    assert since.min == pytest.approx(5.0, rel=2 * ERROR)
    assert since.max == 7.0
    assert before.plus(since).buckets == whole.buckets
    assert whole.minus(whole) == NOTHING
    assert whole.minus(NOTHING) == whole


def test_since_another_histogram_is_all_of_it():
    assert of(1.0).minus(of(1.0, 1.0)) == of(1.0)
    assert of(1.0).minus(of(100.0)) == of(1.0)


def test_two_together():
    assert of(1.0, 2.0).plus(of(100.0)) == of(1.0, 2.0, 100.0)
    assert of(1.0).plus(NOTHING) == NOTHING.plus(of(1.0)) == of(1.0)


def test_another_unit():
    told = of(0.001, 0.25).scaled(1000)
    assert (told.count, told.min, told.max, told.mean) == (2, 1.0, 250.0, 125.5)
    assert told.to_dict()["sum"] == 251.0
