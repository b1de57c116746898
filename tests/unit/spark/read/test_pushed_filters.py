import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.read.driver.pushed_filters import PushedFilters

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOON_MS = 1_777_636_800_000


def allowed(*filters):
    pushed = PushedFilters.from_filters(filters)
    places = [TopicPartition(topic, partition) for topic in ("a", "ab") for partition in range(3)]
    return [str(place) for place in places if pushed.allows(place)]


def test_places_are_pruned_exactly():
    assert allowed(EqualTo(("topic",), "a"), GreaterThan(("partition",), 0)) == ["a-1", "a-2"]
    assert allowed(In(("Partition",), (0, 2)), StringStartsWith(("topic",), "ab")) == ["ab-0", "ab-2"]
    assert allowed(Not(EqualTo(("partition",), 1)), EqualNullSafe(("topic",), "a")) == ["a-0", "a-2"]
    assert allowed(Not(In(("partition",), (0, 1)))) == ["a-2", "ab-2"]
    assert allowed(EqualTo(("partition",), 7)) == []


def test_offsets_become_bounds():
    pushed = PushedFilters.from_filters(
        [
            GreaterThan(("offset",), 4),
            LessThan(("offset",), 20),
            LessThanOrEqual(("offset",), 17),
            IsNotNull(("offset",)),
        ]
    )
    assert (pushed.from_offset, pushed.until_offset) == (5, 18)
    pushed = PushedFilters.from_filters([In(("offset",), (3, 9, 5))])
    assert (pushed.from_offset, pushed.until_offset) == (3, 10)
    assert PushedFilters.from_filters([EqualTo(("offset",), 3)]).until_offset == 4


@pytest.mark.parametrize(
    ("filter_", "since"),
    [
        (GreaterThanOrEqual(("timestamp",), NOON), NOON_MS),
        (GreaterThan(("timestamp",), NOON), NOON_MS),
        (GreaterThan(("timestamp",), NOON + timedelta(microseconds=1)), NOON_MS),
        (In(("timestamp",), (NOON + timedelta(hours=1), NOON)), NOON_MS),
        (LessThan(("timestamp",), NOON), None),
        (EqualTo(("timestamp",), NOON), NOON_MS),
        (EqualTo(("timestamp",), NOON.astimezone(timezone(timedelta(hours=5)))), NOON_MS),
        (EqualTo(("timestamp",), NOON.replace(tzinfo=None)), NOON_MS),
    ],
)
def test_a_time_becomes_a_lower_bound_that_is_never_too_tight(filter_, since):
    assert PushedFilters.from_filters([filter_]) == PushedFilters(from_timestamp_ms=since)


def test_a_time_without_a_zone_is_utc_wherever_the_driver_runs(monkeypatch):
    monkeypatch.setenv("TZ", "Pacific/Honolulu")
    time.tzset()
    try:
        pushed = PushedFilters.from_filters([GreaterThan(("timestamp",), NOON.replace(tzinfo=None))])
    finally:
        monkeypatch.undo()
        time.tzset()
    assert pushed.from_timestamp_ms == NOON_MS


def test_what_is_not_understood_is_left_to_spark():
    pushed = PushedFilters.from_filters(
        [
            EqualTo(("value",), b"x"),
            Not(LessThan(("offset",), 4)),
            Not(EqualTo(("offset",), 4)),
            Not(EqualTo(("timestamp",), NOON)),
            Not(In(("timestamp",), (NOON,))),
            EqualTo(("offset",), "4"),
            EqualTo(("partition",), None),
            EqualTo(("partition",), True),
            EqualTo(("headers", "key"), "k"),
            EqualTo(("value", "topic"), "k"),
            EqualTo(("value", "offset"), 4),
            IsNotNull(("topic",)),
        ]
    )
    assert pushed == PushedFilters()
