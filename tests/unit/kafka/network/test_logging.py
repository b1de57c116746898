"""The log lines of connections, retries and throttling."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from support.brokers.scripted_broker import HangUp, ScriptedBroker, properties

from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.errors import DeadlineExceededError, NetworkError
from spark_kafka_native.kafka.network import pipeline
from spark_kafka_native.kafka.network.connection import Connection
from spark_kafka_native.kafka.network.pipeline import Throttle
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.runtime import retry
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.runtime.log_throttle import LogThrottle

NETWORK = "spark_kafka_native.network"


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, str]]:
    return [(record.name, record.levelno, record.getMessage()) for record in caplog.records]


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as one:
        yield one


def test_a_lost_connection_is_logged(broker: ScriptedBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.push(MetadataRequest, HangUp)
    with caplog.at_level(logging.INFO, NETWORK):
        config = ClientConfig.from_properties(properties(broker.address))
        connection = Connection.open(broker.host, broker.port, config)
        with pytest.raises(NetworkError):
            connection.send(MetadataRequest(topics=[]))
        connection.close()
    (told,) = lines(caplog)
    assert told[:2] == (NETWORK, logging.INFO)
    assert told[2].startswith(f"{broker.address}: disconnected, 1 requests in flight: ")


def test_a_retry_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_THROTTLED_LOG", LogThrottle(logging.getLogger(NETWORK)))

    def fail() -> None:
        raise NetworkError("the broker is gone")

    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with caplog.at_level(logging.INFO, NETWORK), pytest.raises(DeadlineExceededError):
        retry.retry(
            fail,
            what="asking",
            deadline=Deadline(5.0, lambda: now[0]),
            backoff=retry.Backoff(first_ms=100, max_ms=1_000),
            sleep=sleep,
            uniform=lambda *_: 1.0,
        )
    assert lines(caplog) == [
        (NETWORK, logging.INFO, "asking: attempt 1 failed, another in 100 ms: the broker is gone")
    ]


def test_throttling_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_THROTTLED_LOG", LogThrottle(logging.getLogger(NETWORK)))
    with caplog.at_level(logging.INFO, NETWORK):
        for throttle_ms in (0, 120, 130):
            throttle = Throttle("b:1")
            throttle.learn(throttle_ms)
            throttle.say()
            throttle.say()
    assert lines(caplog) == [(NETWORK, logging.INFO, "b:1: throttled for 120 ms, as a quota is exceeded")]


def test_a_connection_that_was_throttled_is_also_said_to_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_THROTTLED_LOG", LogThrottle(logging.getLogger(NETWORK)))
    with caplog.at_level(logging.INFO, NETWORK):
        throttle = Throttle("b:1")
        throttle.learn(120)
        throttle.say()
        pipeline.log_end("b:1", 2, NetworkError("reset"), expected=False)
    assert [line for _, _, line in lines(caplog)] == [
        "b:1: throttled for 120 ms, as a quota is exceeded",
        "b:1: disconnected, 2 requests in flight: reset",
    ]
