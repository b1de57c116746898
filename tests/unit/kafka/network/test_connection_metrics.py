"""The metrics of a connection: its requests, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.brokers.scripted_broker import HangUp, ScriptedBroker, ScriptedCluster, Silence, properties
from support.forked_child import holds_in_forked_child

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, NetworkError, RequestTimedOutError
from spark_kafka_native.kafka.observe.metrics import MetricsSnapshot
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse

METADATA = MetadataRequest(topics=[])


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedCluster() as running:
        yield running[1]


@pytest.fixture
def router(broker: ScriptedBroker) -> Iterator[Router]:
    made = Router(ClientConfig.from_properties(properties(broker.address)))
    made.metadata()
    yield made
    made.close()


def told(router: Router) -> MetricsSnapshot:
    return router.metrics.snapshot(router.observed())


def test_requests_their_bytes_and_their_time(router: Router) -> None:
    first = told(router)
    assert first.value("kafka.client.requests", api="Metadata") == 1
    assert first.value("kafka.client.dials", outcome="connected") == 1
    assert first.value("kafka.client.connections") == 1
    router.send_any(METADATA)
    between = told(router).since(first)
    assert between.value("kafka.client.requests") == 1
    assert between.value("kafka.client.bytes.sent", api="Metadata") > 10
    assert between.value("kafka.client.bytes.received", api="Metadata") > 10
    assert between.distribution("kafka.client.request.duration", api="Metadata").count == 1
    assert between.value("kafka.client.dials") == 0
    router.close()
    ended = told(router)
    assert ended.value("kafka.client.connections") == 0
    assert ended.value("kafka.client.disconnects") == 0  # it was closed here


def test_bytes_are_those_on_the_wire(router: Router, broker: ScriptedBroker) -> None:
    connection = router.connection(1)
    before = told(router)
    connection.send(METADATA)
    between = told(router).since(before)
    # A length of 4 bytes, then the header (API key, version, correlation id, client id, tags) and the body.
    client_id = len(router.config.client_id or "")
    assert between.value("kafka.client.bytes.sent") == 4 + 2 + 2 + 4 + 2 + client_id + 1 + 1 + 3
    assert broker.requests(MetadataRequest)


def test_a_request_that_is_not_answered_is_a_timeout(router: Router, broker: ScriptedBroker) -> None:
    broker.push(MetadataRequest, Silence)
    with pytest.raises(RequestTimedOutError):
        router.connection(1).send(METADATA, timeout_ms=50)
    ended = told(router)
    assert ended.value("kafka.client.timeouts", api="Metadata") == 1
    assert ended.value("kafka.client.disconnects", error="RequestTimedOutError") == 1
    assert ended.distribution("kafka.client.request.duration").count == 1  # of the previous connection


def test_a_broker_that_hangs_up_ends_a_connection(router: Router, broker: ScriptedBroker) -> None:
    broker.push(MetadataRequest, HangUp)
    with pytest.raises(NetworkError):
        router.connection(1).send(METADATA)
    ended = told(router)
    assert ended.value("kafka.client.disconnects") == 1
    assert ended.value("kafka.client.timeouts") == 0
    assert ended.value("kafka.client.connections") == 0


def test_retries_are_counted_by_their_error(router: Router) -> None:
    failures = [BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "orders-0"), NetworkError("gone")]

    def attempt() -> None:
        if failures:
            raise failures.pop()

    router.retry(attempt, what="a test")
    assert told(router).value("kafka.client.retries", error="NOT_LEADER_OR_FOLLOWER") == 1
    assert told(router).value("kafka.client.retries") == 2


def test_a_throttle_time_is_measured(router: Router, broker: ScriptedBroker) -> None:
    broker.push(MetadataRequest, MetadataResponse(throttle_time_ms=40, brokers=[], topics=[]))
    router.connection(1).send(METADATA)
    assert told(router).distribution("kafka.client.throttle.duration").max == pytest.approx(0.04)


def test_a_forked_child_has_no_connection_and_no_count(router: Router) -> None:
    def has_none() -> bool:
        seen = told(router)
        return not seen.value("kafka.client.requests") and not seen.value("kafka.client.connections")

    assert holds_in_forked_child(has_none)
    assert told(router).value("kafka.client.connections") == 1
