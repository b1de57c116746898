"""A throttled log writes one line of a kind per interval, and counts the lines that it leaves out."""

from __future__ import annotations

import logging

import pytest

from spark_kafka_native.kafka.runtime import log_throttle
from spark_kafka_native.kafka.runtime.log_throttle import LogThrottle


def test_a_flood_has_a_line_now_and_then_that_counts_the_others(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = LogThrottle(logging.getLogger("spark_kafka_native.test"), clock=lambda: now[0])
    with caplog.at_level(logging.INFO, "spark_kafka_native.test"):
        for number in range(100):
            log.info("a", "a %d of 100%%", number)
        log.info("b", "another")
        now[0] = 10.0
        log.info("a", "a %d of 100%%", 100)
    assert caplog.messages == [
        "a 0 of 100%",
        "another",
        "a 100 of 100% (99 more like it since the last line)",
    ]


def test_a_flood_that_goes_on_has_a_line_in_each_interval(caplog: pytest.LogCaptureFixture) -> None:
    """Each line counts those since the one before, not all."""
    now = [0.0]
    log = LogThrottle(logging.getLogger("spark_kafka_native.test"), clock=lambda: now[0])
    with caplog.at_level(logging.INFO, "spark_kafka_native.test"):
        for second in range(31):
            now[0] = float(second)
            log.info("a", "%d", second)
    left_out = " (9 more like it since the last line)"
    assert caplog.messages == ["0", f"10{left_out}", f"20{left_out}", f"30{left_out}"]


def test_kinds_are_not_collected_without_end(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = LogThrottle(logging.getLogger("spark_kafka_native.test"), clock=lambda: now[0])
    with caplog.at_level(logging.INFO, "spark_kafka_native.test"):
        for number in [*range(1_000)] * 3:  # no kind gets another line because it was forgotten meanwhile
            log.info(number, "%d", number)
        assert caplog.messages == [str(number) for number in range(log_throttle.MAX_KINDS + 1)]
        assert log.kinds == log_throttle.MAX_KINDS
        now[0] = 10.0
        log.info("new", "new")
    assert caplog.messages[-1] == "new"


def test_a_disabled_logger_counts_nothing() -> None:
    log = LogThrottle(logging.getLogger("spark_kafka_native.test"))
    log.info("a", "a")
    assert not log.kinds
