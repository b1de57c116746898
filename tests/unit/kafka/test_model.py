"""The client's value types."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from spark_kafka_native.kafka.model import Record

LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def at(timestamp_ms: int) -> Record:
    return Record(topic="a", partition=0, offset=7, key=None, value=None, timestamp_ms=timestamp_ms)


def test_a_timestamp_is_a_time_of_utc_as_far_as_datetime_goes() -> None:
    assert at(-1).timestamp is None
    assert at(0).timestamp == datetime(1970, 1, 1, tzinfo=UTC)
    assert at(LAST_MS).timestamp == datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)


@pytest.mark.parametrize("timestamp_ms", [LAST_MS + 1, 2**63 - 1])
def test_a_timestamp_after_that_is_named_in_the_error(timestamp_ms: int) -> None:
    with pytest.raises(ValueError, match=f"a-0 offset 7: timestamp_ms={timestamp_ms} is after the year 9999"):
        _ = at(timestamp_ms).timestamp
