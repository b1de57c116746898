"""`fetch_once`, without a socket."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.brokers.scripted_broker import offsets_of
from support.consumer.simulated_fetch import ID, ONE, records, told

from spark_kafka_native.kafka.cluster.router import Leader
from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig
from spark_kafka_native.kafka.consumer.fetch_once import fetch_once
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError
from spark_kafka_native.kafka.runtime.deadline import Deadline


def answering(result: Callable[[float], Any]) -> Any:
    """A router to a leader that responds with this ``result``."""
    connection = SimpleNamespace(version_of=lambda *_: 13, submit=lambda *_: SimpleNamespace(result=result))
    return SimpleNamespace(
        config=ClientConfig(bootstrap_servers=("a:1",), request_timeout_ms=3_000),
        leader=lambda *_: Leader(1, 5, ID),
        connection=lambda *_: connection,
        retry=lambda attempt, **_: attempt(),
    )


@pytest.mark.parametrize(
    ("left_ms", "least", "most"), [(60_000, 12_000, 12_000), (5_000, 1_000, 5_000)], ids=["long", "short"]
)
def test_the_time_for_which_the_broker_waits_for_records_is_no_delay(
    left_ms: float, least: float, most: float
) -> None:
    limits: list[float] = []

    def result(limit_ms: float) -> Any:
        limits.append(limit_ms)
        return told(p0=records(10))

    config = ConsumerConfig(fetch_max_wait_ms=9_000)
    fetched = fetch_once(answering(result), ONE, 10, config, Deadline.after_ms(left_ms))
    assert (offsets_of(fetched.columns), fetched.next_offset) == ([10, 11], 12)
    [limit] = limits
    assert least <= limit <= most


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_an_error_of_the_partition_is_not_taken_for_an_empty_response(code: ErrorCode) -> None:
    router = answering(lambda _: told(p0=code))
    with pytest.raises(BrokerError, match=rf"at offset 10: {code.name}"):
        fetch_once(router, ONE, 10, ConsumerConfig(), Deadline.after_ms(60_000))
