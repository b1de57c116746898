"""A coordinator that takes requests and never answers: it is looked up again, and a session ends in time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster, Silence
from support.brokers.scripted_group import ScriptedGroup
from support.group.parts import parts_of

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.group import classic_membership
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.group.membership import NEVER, Ask
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.group_membership import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    SyncGroupRequest,
)
from spark_kafka_native.kafka.protocol.message import Request
from spark_kafka_native.kafka.runtime.deadline import Deadline

A0 = TopicPartition("a", 0)
WITHIN_S = 120
PATIENT_MS = 3_600_000
"""A wait of this length fails the test."""


@pytest.fixture
def group() -> Iterator[ScriptedGroup]:
    with ScriptedCluster(2) as cluster:
        cluster.create("a", leader=2)
        cluster.logs[A0].append([b"one"])
        yield ScriptedGroup(cluster, [A0])


def be_silent(group: ScriptedGroup, request: type[Request[Any]]) -> None:
    """Broker 1 says nothing to ``request``; once it was asked, broker 2 is the coordinator."""

    def moved(_request: Any, _version: int) -> Any:
        group.coordinator = 2
        return Silence

    group.cluster[1].on(request, moved)


@pytest.mark.parametrize(
    ("request_class", "protocol"),
    [
        (JoinGroupRequest, "classic"),
        (SyncGroupRequest, "classic"),
        (ConsumerGroupHeartbeatRequest, "consumer"),
    ],
)
def test_the_coordinator_is_looked_up_again(
    group: ScriptedGroup,
    request_class: type[Request[Any]],
    protocol: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(classic_membership, "JOIN_GRACE_MS", 0)
    be_silent(group, request_class)
    # A rebalance may take for ever, but for the one request with an answer that it holds back.
    patience_ms = 300 if request_class is JoinGroupRequest else PATIENT_MS // 10
    with (
        caplog.at_level(logging.WARNING, "spark_kafka_native.group"),
        GroupConsumer(
            group.cluster.bootstrap_servers,
            "a",
            "g",
            group_protocol=protocol,
            request_timeout_ms=300,
            max_poll_interval_ms=patience_ms,
        ) as consumer,
    ):
        fetched = consumer.read(WITHIN_S)
        assert fetched is not None
    assert fetched.columns.length == 1
    assert len(group.cluster[1].requests(request_class)) == 1
    said = [record.getMessage() for record in caplog.records]
    assert any("no answer in 300 ms" in one and "the coordinator is looked up again" in one for one in said)


@pytest.mark.parametrize(
    ("request_class", "refused", "protocol"),
    [
        (HeartbeatRequest, HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR), "classic"),
        (
            ConsumerGroupHeartbeatRequest,
            ConsumerGroupHeartbeatResponse(
                throttle_time_ms=0,
                error_code=ErrorCode.NOT_COORDINATOR,
                error_message=None,
                member_id=None,
                member_epoch=0,
                heartbeat_interval_ms=0,
                assignment=None,
            ),
            "consumer",
        ),
    ],
)
def test_a_coordinator_that_refuses_is_looked_up_again(
    group: ScriptedGroup, request_class: type[Request[Any]], refused: Any, protocol: str
) -> None:
    """Its group has moved to another broker."""
    with GroupConsumer(
        group.cluster.bootstrap_servers,
        "a",
        "g",
        group_protocol=protocol,
        heartbeat_interval_ms=20,
        retry_backoff_ms=5,
        enable_auto_commit=False,
    ) as consumer:
        assert consumer.read(WITHIN_S) is not None
        group.cluster[1].on(request_class, refused)
        group.coordinator = 2
        deadline = Deadline.after_ms(WITHIN_S * 1_000)
        while not (group.cluster[2].requests(request_class) or deadline.expired):
            consumer.read(0.05)
        assert group.cluster[2].requests(request_class)


@pytest.mark.parametrize(
    ("request_class", "protocol"),
    [(HeartbeatRequest, "classic"), (ConsumerGroupHeartbeatRequest, "consumer")],
)
def test_a_session_ends_though_an_answer_is_waited_for(
    group: ScriptedGroup, request_class: type[Request[Any]], protocol: str
) -> None:
    lost = threading.Event()
    with GroupConsumer(
        group.cluster.bootstrap_servers,
        "a",
        "g",
        group_protocol=protocol,
        session_timeout_ms=500,
        heartbeat_interval_ms=50,
        request_timeout_ms=PATIENT_MS,
        on_lost=lambda _consumer, _partitions: lost.set(),
    ) as consumer:
        assert consumer.read(WITHIN_S) is not None
        be_silent(group, request_class)
        deadline = Deadline.after_ms(WITHIN_S * 1_000)
        again = None
        while not (lost.is_set() or deadline.expired):
            again = consumer.read(0.05)
        assert lost.is_set()
        assert again or consumer.read(WITHIN_S)  # it has joined again


def test_how_long_an_answer_is_waited_for(group: ScriptedGroup) -> None:
    """As Java: a JoinGroup for the rebalance timeout and 5 s, at least; all else for the request timeout."""
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", request_timeout_ms=30_000) as consumer:
        response_timeout_ms = parts_of(consumer).member.response_timeout_ms
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id="me")
        assert response_timeout_ms(Ask(request)) == 30_000
        assert response_timeout_ms(Ask(request, held_back_ms=305_000)) == 305_000
        assert response_timeout_ms(Ask(request, held_back_ms=6_000)) == 30_000
        assert response_timeout_ms(Ask(request, until=0.0)) == 0.0
        assert response_timeout_ms(Ask(request, until=NEVER)) == 30_000
