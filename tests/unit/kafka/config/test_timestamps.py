import time

import pytest

from spark_kafka_native.kafka.config.timestamps import parse_timestamp_ms
from spark_kafka_native.kafka.errors import ConfigError

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        (" 1700000000123 ", 1_700_000_000_123),
        ("2026-05-01T12:00:00Z", 1_777_636_800_000),
        ("2026-05-01T14:00:00+02:00", 1_777_636_800_000),
        ("2026-05-01T12:00:00.123", 1_777_636_800_123),
        ("2026-05-01 12:00", 1_777_636_800_000),
        ("2026-05-01", 1_777_593_600_000),
        ("-1h", NOW - 3_600_000),
        ("-15 minutes", NOW - 900_000),
        ("- 2 Days", NOW - 172_800_000),
        ("-1w", NOW - 604_800_000),
        ("-250ms", NOW - 250),
        ("-90s", NOW - 90_000),
    ],
)
def test_a_time_is_a_number_iso_or_relative(text, expected):
    assert parse_timestamp_ms(text, now_ms=NOW) == expected


@pytest.mark.parametrize(
    "text", ["", "-5", "1.5", "1h", "-1 fortnight", "yesterday", "1969-01-01", "-99999d", "9" * 19, "٣"]
)
def test_anything_else_is_refused_in_sparks_words(text):
    with pytest.raises(ConfigError, match="Expected a single long value, got"):
        parse_timestamp_ms(text, now_ms=NOW)


@pytest.mark.parametrize("text", ["-99999d", "1969-12-31T23:59:59Z", "1970-01-01T00:30:00+01:00"])
def test_a_time_before_the_epoch_is_called_that(text):
    with pytest.raises(ConfigError, match=r"got .* \(it is before 1970\)"):
        parse_timestamp_ms(text, now_ms=NOW)


def test_a_time_without_an_offset_is_utc_on_a_machine_with_another_zone(monkeypatch):
    try:
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("TZ", "XST-3")
            time.tzset()
            assert parse_timestamp_ms("2026-05-01 12:00", now_ms=NOW) == 1_777_636_800_000
    finally:
        time.tzset()
