"""Percentiles are within the stated error; a snapshot has all counts, from any thread and within bounds."""

from __future__ import annotations

import json
import math
import random
import re
import threading

import pytest
from support.forked_child import holds_in_forked_child
from support.interrupts.held_lock import held_by_another_thread

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, NetworkError
from spark_kafka_native.kafka.observe import catalogue
from spark_kafka_native.kafka.observe import metrics as metrics_module
from spark_kafka_native.kafka.observe.catalogue import Kind
from spark_kafka_native.kafka.observe.metrics import (
    NOTHING,
    STEPS,
    Distribution,
    Histogram,
    MetricKey,
    MetricsRegistry,
    Observed,
    error_tag,
)

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


@pytest.mark.parametrize("value", [1.01, 1.18, 0.0, 1e-9, 3e12])
def test_a_percentile_is_between_the_least_and_the_greatest_value(value: float):
    """The middle of a bucket may be below the only value in it, or above."""
    found = of(value, value)
    assert (found.min, found.p50, found.p95, found.p99, found.max) == (value,) * 5


def test_nothing_measured_is_zero():
    assert Histogram().distribution() == NOTHING == Distribution()
    assert set(NOTHING.to_dict().values()) == {0}


def test_tiny_huge_and_negative_values_are_counted():
    told = of(-1.0, 0.0, 1e-9, 1e12, 1e30, math.inf)
    assert (told.count, told.min, told.max, told.p50) == (6, 0.0, math.inf, 0.0)
    assert len(told.buckets) == 3
    assert of(math.nan).max == 0.0


def test_a_sum_never_falls():
    """Not even by a last digit: a reader of counters would take that for a restart, and add
    everything again.
    """
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


def test_the_values_before_and_since_add_up_to_all():
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
    assert of(1.0, 2.0).plus(of(100.0)) == of(100.0).plus(of(1.0, 2.0)) == of(1.0, 2.0, 100.0)
    assert of(1.0).plus(NOTHING) == NOTHING.plus(of(1.0)) == of(1.0)


def test_another_unit():
    told = of(0.001, 0.25).scaled(1000)
    assert (told.count, told.min, told.max, told.mean) == (2, 1.0, 250.0, 125.5)
    assert told.to_dict()["sum"] == 251.0


def test_each_value_is_written_under_its_name():
    told = of(*[float(number) for number in range(1, 101)] + [float(10**power) for power in range(3, 7)])
    values = told.to_dict()
    assert list(values.values()) == [getattr(told, name) for name in values]
    assert values["p50"] < values["p95"] < values["p99"] < values["max"]


REQUESTS, DURATION, CONNECTIONS = catalogue.REQUESTS, catalogue.REQUEST_DURATION, catalogue.CONNECTIONS


def test_counts_are_available_by_tag_and_in_total():
    metrics = MetricsRegistry()
    metrics.count(REQUESTS, 1, "Fetch")
    metrics.count(REQUESTS, 2, "Fetch")
    metrics.count(REQUESTS, 4, "Produce")
    metrics.measure(DURATION, 0.5, "Fetch")
    metrics.measure(DURATION, 1.5, "Produce")
    told = metrics.snapshot([Observed(CONNECTIONS, 2), Observed(CONNECTIONS, 3)])
    assert told.values[MetricKey(REQUESTS.name, (("api", "Fetch"),))] == 3
    assert told.value(REQUESTS.name) == metrics.total(REQUESTS) == 7
    assert told.value(REQUESTS.name, api="Produce") == 4
    assert told.value(REQUESTS.name, api="Heartbeat") == 0
    assert told.value(CONNECTIONS.name) == 5
    assert told.distribution(DURATION.name).count == metrics.distribution(DURATION).count == 2
    assert told.distribution(DURATION.name, api="Fetch").max == 0.5
    assert told.value(DURATION.name) == 2.0
    assert str(next(iter(told))[0]) == "kafka.client.connections"
    assert str(MetricKey(REQUESTS.name, (("api", "Fetch"),))) == "kafka.client.requests{api=Fetch}"


def test_since_has_the_changes_in_between():
    metrics = MetricsRegistry()
    metrics.count(REQUESTS, 5, "Fetch")
    metrics.measure(DURATION, 9.0, "Fetch")
    before = metrics.snapshot([Observed(CONNECTIONS, 3)])
    metrics.count(REQUESTS, 2, "Fetch")
    metrics.count(REQUESTS, 1, "Produce")
    metrics.measure(DURATION, 1.0, "Fetch")
    now = metrics.snapshot([Observed(CONNECTIONS, 1)])
    between = now.since(before)
    assert before.since(now).value(CONNECTIONS.name) == 3, "a gauge that rises is no difference either"
    assert between.value(REQUESTS.name, api="Fetch") == 2
    assert between.value(REQUESTS.name, api="Produce") == 1
    assert between.value(CONNECTIONS.name) == 1
    assert between.distribution(DURATION.name).count == 1
    assert between.distribution(DURATION.name).p50 == pytest.approx(1.0, rel=0.1)
    assert between.seconds == pytest.approx(now.seconds - before.seconds)
    assert before.since(now).value(REQUESTS.name) == 5  # counted anew, as in a forked child


def test_parts_of_a_client_add_up():
    one, other = MetricsRegistry(), MetricsRegistry()
    for metrics in (one, other):
        metrics.count(REQUESTS, 1, "Fetch")
        metrics.measure(DURATION, 1.0, "Fetch")
    told = one.snapshot(others=[other, one])
    assert told.value(REQUESTS.name) == 2
    assert told.distribution(DURATION.name).count == 2


def test_a_snapshot_is_plain_json():
    metrics = MetricsRegistry()
    metrics.count(REQUESTS, 1, "Fetch")
    metrics.measure(catalogue.FETCH_SIZE, 100)
    told = json.loads(metrics.snapshot().to_json())
    assert {"name", "kind", "unit", "tags", "value"} == set(told["metrics"][0])
    by_name = {one["name"]: one for one in told["metrics"]}
    assert by_name[REQUESTS.name]["tags"] == {"api": "Fetch"}
    assert by_name[REQUESTS.name]["value"] == 1
    assert by_name["kafka.consumer.fetch.size"]["value"]["max"] == 100


def test_threads_lose_no_count():
    metrics = MetricsRegistry()

    def work() -> None:
        for _ in range(2_000):
            metrics.count(REQUESTS, 1, "Fetch")
            metrics.measure(DURATION, 0.1, "Fetch")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        metrics.snapshot()
    for thread in threads:
        thread.join(60)
    told = metrics.snapshot()
    assert told.value(REQUESTS.name) == told.distribution(DURATION.name).count == 8_000


def test_topics_without_end_take_no_memory_without_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics_module, "MAX_SERIES", 10)
    metrics = MetricsRegistry()
    for number in range(50):
        metrics.count(catalogue.CONSUMED_RECORDS, 1, f"topic-{number}")
        metrics.measure(DURATION, 1.0, f"api-{number}")
    metrics.count(catalogue.SPLITS)
    told = metrics.snapshot()
    assert len(told.values) == 11 + 11 + 1
    assert told.value("kafka.consumer.records") == told.distribution(DURATION.name).count == 50
    assert told.value("kafka.consumer.records", topic="other") == 40
    assert told.value("kafka.producer.splits") == 1


def test_many_topics_do_not_hide_why_commits_fail():
    metrics = MetricsRegistry()
    for number in range(3_000):
        metrics.count(catalogue.CONSUMED_RECORDS, 1, f"topic-{number}")
        metrics.count(catalogue.CONSUMED_BYTES, 1, f"topic-{number}")
    metrics.count(catalogue.COMMITS, 1, "committed")
    metrics.count(catalogue.COMMITS, 2, "ILLEGAL_GENERATION")
    told = metrics.snapshot()
    assert told.value(catalogue.COMMITS.name, outcome="committed") == 1
    assert told.value(catalogue.COMMITS.name, outcome="ILLEGAL_GENERATION") == 2


def test_a_forked_child_counts_from_zero_even_if_the_lock_was_held():
    metrics = MetricsRegistry()
    metrics.count(REQUESTS, 1, "Fetch")

    def counts_from_zero() -> bool:
        metrics.count(REQUESTS, 1, "Produce")
        return metrics.snapshot().value(REQUESTS.name) == 1

    with held_by_another_thread(metrics.lock):
        assert holds_in_forked_child(counts_from_zero)
    assert metrics.snapshot().value(REQUESTS.name) == 1


def test_counting_within_counting_does_not_wait():
    """As if a signal handler closes the client that was just counting."""
    metrics = MetricsRegistry()
    with metrics.lock, metrics.timed(DURATION, "Fetch"):
        metrics.count(REQUESTS, 1, "Fetch")
    assert metrics.snapshot().distribution(DURATION.name).count == 1


def test_a_failure_has_the_name_of_its_kind():
    assert error_tag(BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "t-0")) == "NOT_LEADER_OR_FOLLOWER"
    assert error_tag(NetworkError("gone")) == "NetworkError"
    assert error_tag(None) == "none"


def test_names_are_unique_and_alike():
    names = [one.name for one in catalogue.ALL_METRICS]
    assert len(names) == len(set(names)) > 30
    for one in catalogue.ALL_METRICS:
        assert re.fullmatch(
            r"kafka\.(client|producer|consumer|group|stream|consumergroup|topic|brokers|exporter)(\.[a-z]+(_[a-z]+)*)*",
            one.name,
        )
        assert one.unit in {"s", "By"} or re.fullmatch(r"\{[a-z]+\}", one.unit)
        assert one.name.endswith((".duration", ".timestamp")) == (one.unit == "s")
        assert one.kind is not Kind.DISTRIBUTION or one.unit in {"s", "By", "{record}"}


def test_what_fails_has_taken_its_time_too():
    metrics = MetricsRegistry()
    with pytest.raises(NetworkError), metrics.timed(DURATION, "Fetch"):
        raise NetworkError("cut")
    assert metrics.distribution(DURATION).count == 1


def test_metrics_that_only_a_part_of_a_client_has_are_among_those_of_the_whole():
    one, other = MetricsRegistry(), MetricsRegistry()
    one.count(REQUESTS, 1, "Fetch")
    other.count(catalogue.SPLITS, 3)
    before = one.snapshot(others=[other])
    other.count(catalogue.SPLITS, 4)
    told = one.snapshot(others=[other])
    assert [one["name"] for one in told.to_dict()["metrics"]] == [REQUESTS.name, catalogue.SPLITS.name]
    assert told.since(before).value(catalogue.SPLITS.name) == 4


def test_what_is_left_of_two_distributions_has_bounds_of_its_own():
    before, whole = of(0.1, 900.0), of(0.1, 900.0, 5.0, 6.0)
    since = whole.minus(before)
    assert (since.count, since.sum) == (2, pytest.approx(11.0))
    assert since.min == pytest.approx(5.0, rel=2 * ERROR)
    assert since.max == pytest.approx(6.0, rel=2.2 * ERROR)
    assert (of(5.0).plus(of(1.0)).min, of(1.0).plus(of(5.0)).max) == (1.0, 5.0)
    low = of(1.1).minus(NOTHING)
    assert (low.min, low.max) == (1.1, 1.1)
    again = of(1.1, 1.1).minus(of(1.1))
    assert (again.min, again.max, again.p50) == (1.1, 1.1, 1.1)
