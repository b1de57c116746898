"""The thread of a member: the settings that it starts with, and its end."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup
from support.consumer.reading import wait_until
from support.waiting import eventually

from spark_kafka_native.kafka import GroupConsumer
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    AuthenticationError,
    BrokerError,
    ConfigError,
    KafkaError,
    SecurityError,
)
from spark_kafka_native.kafka.group import rebalance
from spark_kafka_native.kafka.group.group_config import GroupConfig, GroupProtocol, Subscription
from spark_kafka_native.kafka.group.membership import Ask, MembershipRules
from spark_kafka_native.kafka.group.membership_thread import CHANNEL, _readable, new_member
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.group_membership import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
)
from spark_kafka_native.kafka.protocol.consumer_protocol import ConsumerProtocolSubscription, read_versioned
from spark_kafka_native.kafka.runtime.retry import Backoff
from spark_kafka_native.testing import MockBroker

A0 = TopicPartition("a", 0)
WITHIN_S = 120


@pytest.mark.parametrize("protocol", GroupProtocol)
def test_a_member_has_the_settings_of_its_consumer(protocol: GroupProtocol) -> None:
    servers = ("127.0.0.1:1",)
    client = ClientConfig(
        bootstrap_servers=servers, client_rack="r1", retry_backoff_ms=7, retry_backoff_max_ms=70
    )
    config = GroupConfig(
        group_id="g",
        group_instance_id="i",
        group_protocol=protocol,
        partition_assignment_strategy=("sticky", "range"),
        group_remote_assignor="range",
        session_timeout_ms=9_000,
        heartbeat_interval_ms=2_000,
        max_poll_interval_ms=50_000,
    )
    with closing(Router(client)) as router:
        member = new_member(router, config, Subscription())
        member.thread.start()
        member.abandon()
        member.thread.join(WITHIN_S)
    assert member.membership.rules == MembershipRules(
        group_id="g",
        group_instance_id="i",
        session_timeout_s=9.0,
        heartbeat_interval_s=2.0,
        max_poll_interval_s=50.0,
        backoff=Backoff(first_ms=7, max_ms=70),
        rack="r1",
    )
    step = member.membership.next(time.monotonic())
    assert isinstance(step, Ask)
    asked = step.request
    if protocol is GroupProtocol.CONSUMER:
        assert isinstance(asked, ConsumerGroupHeartbeatRequest)
        assert (asked.server_assignor, asked.rack_id) == ("range", "r1")
        assert (asked.instance_id, asked.rebalance_timeout_ms) == ("i", 50_000)
    else:
        assert isinstance(asked, JoinGroupRequest)
        assert [one.name for one in asked.protocols] == ["sticky", "range"]
        racks = [
            read_versioned(ConsumerProtocolSubscription, one.metadata).rack_id for one in asked.protocols
        ]
        assert racks == ["r1", "r1"]
        assert (asked.group_instance_id, asked.session_timeout_ms) == ("i", 9_000)
        assert asked.rebalance_timeout_ms == 50_000


def test_a_member_that_ends_while_it_connects_does_not_join() -> None:
    """Nothing would take it out of the group before its session times out."""
    connected, gate = threading.Event(), threading.Event()
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        ScriptedGroup(cluster, [])
        router = Router(ClientConfig(bootstrap_servers=(cluster[1].address,)))
        connect = router.connection

        def connection(node_id: int, deadline: Any = None, channel: str = "") -> Any:
            made = connect(node_id, deadline, channel)
            if channel == CHANNEL:
                connected.set()
                assert gate.wait(WITHIN_S)
            return made

        router.connection = connection  # type: ignore[method-assign]
        member = new_member(router, GroupConfig(group_id="g"), Subscription("a"))
        member.thread.start()
        assert connected.wait(WITHIN_S)
        member.abandon()
        gate.set()
        member.thread.join(WITHIN_S)
        router.close()
        assert cluster[1].requests(JoinGroupRequest) == []


def test_the_failure_of_a_thread_that_has_ended_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would look again: a read would wait for ever."""
    router = Router(ClientConfig(bootstrap_servers=("127.0.0.1:1",), default_api_timeout_ms=50))
    member = new_member(router, GroupConfig(group_id="g"), Subscription("a"))

    def broken(*_: Any, **__: Any) -> None:  # as a filter of the log is
        raise ZeroDivisionError

    monkeypatch.setattr(member, "_failed", broken)
    member.thread.start()
    member.thread.join(WITHIN_S)
    for _ in range(2):
        assert "the member's thread failed" in str(member.membership.failure)
        member.failure_raised()
    router.close()


@pytest.mark.parametrize("api", ["FindCoordinator", "JoinGroup", "SyncGroup"])
@pytest.mark.parametrize(
    ("code", "is_final"),
    [
        ("GROUP_AUTHORIZATION_FAILED", False),
        ("TOPIC_AUTHORIZATION_FAILED", False),
        ("INVALID_GROUP_ID", True),
    ],
)
def test_a_member_without_an_acl_tries_again_with_the_next_read(api: str, code: str, is_final: bool) -> None:
    """The ACL may have been added: it was refused for ever, with a stale error."""
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", ["1"])
        broker.on(api, times=1).fail(code)
        with GroupConsumer(broker.bootstrap_servers, "a", "g", auto_offset_reset="earliest") as consumer:
            with pytest.raises(BrokerError, match=code):
                consumer.fetch_record(timeout=WITHIN_S)
            if is_final:
                with pytest.raises(BrokerError, match=code):
                    consumer.fetch_record(timeout=WITHIN_S)
            else:
                assert consumer.fetch_record(timeout=WITHIN_S).value == b"1"  # type: ignore[union-attr]


@pytest.mark.parametrize(("last_line", "code"), [("", 0), ("1 / 0", 1)], ids=["ends", "fails"])
def test_a_program_ends_though_its_consumer_is_not_closed(last_line: str, code: int) -> None:
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", ["1"])
        script = (
            "from spark_kafka_native.kafka import GroupConsumer\n"
            f"consumer = GroupConsumer({broker.bootstrap_servers!r}, 'a', group='g')\n"
            "print(consumer.fetch_record().value)\n"
            f"{last_line}\n"
        )
        command = [sys.executable, "-c", script]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S)
    assert (ended.stdout, ended.returncode) == ("b'1'\n", code), ended.stderr


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        (SecurityError("an old certificate"), True),
        (ConfigError("ssl.ca.location is no file"), True),
        (AuthenticationError("the password has changed"), False),
    ],
    ids=["certificate", "file", "password"],
)
@pytest.mark.parametrize("question", ["connection", "metadata"])
def test_a_member_that_has_connected_waits_for_what_may_pass(
    monkeypatch: pytest.MonkeyPatch, error: KafkaError, goes_on: bool, question: str
) -> None:
    """A file that was missing for a moment, while it was replaced, ended it for good."""
    with MockBroker() as broker:
        broker.create_topic("a")
        settings: dict[str, Any] = {
            "heartbeat_interval_ms": 100,
            "retry_backoff_ms": 1,
            "metadata_max_age_ms": 100,
        }
        with GroupConsumer(broker.bootstrap_servers, "a", group="g", **settings) as consumer:
            broker.append("a", [b"x"])
            assert consumer.fetch_record(WITHIN_S) is not None
            member, failed = consumer._member, []
            ask = getattr(member._router, question)

            def fails(*args: Any, **kwargs: Any) -> Any:
                if len(failed) < 3 and threading.current_thread() is member.thread:
                    failed.append(1)
                    raise error
                return ask(*args, **kwargs)

            error.may_pass = goes_on
            monkeypatch.setattr(member._router, question, fails)
            eventually(lambda: len(failed) == 3 or member.membership.failure is not None)
            if goes_on:
                broker.append("a", [b"y"])
                assert consumer.fetch_record(WITHIN_S) is not None
                assert member.membership.failure is None
            else:
                assert len(failed) == 1
                with pytest.raises(AuthenticationError, match="the password has changed"):
                    consumer.fetch_record(WITHIN_S)


def test_topics_that_are_subscribed_to_during_a_look_up_are_looked_up_after_it() -> None:
    """They waited for the next periodic one, five minutes later."""
    found = threading.Event()
    with MockBroker() as broker:
        for topic in "ab":
            broker.create_topic(topic)
        subscription = Subscription("a")
        router = Router(ClientConfig(bootstrap_servers=(broker.bootstrap_servers,)))
        # A classic leader looks topics up once more.
        config = GroupConfig(group_id="g", group_protocol=GroupProtocol.CONSUMER)
        member = new_member(router, config, subscription)
        look_up, subscribe = router.metadata, member.membership.subscribe

        def metadata(topics: Any, **given: Any) -> Any:
            answer = look_up(topics, **given)
            if not subscription.by_pattern:
                subscription.change(re.compile("[ab]"))
                member.look()
            return answer

        def subscribed(topics: Any) -> None:
            subscribe(topics)
            if set(topics) == {"a", "b"}:
                found.set()

        router.metadata = metadata  # type: ignore[method-assign]
        member.membership.subscribe = subscribed  # type: ignore[method-assign]
        with closing(router):
            member.thread.start()
            assert found.wait(WITHIN_S)
            member.abandon()
            member.thread.join(WITHIN_S)


def test_a_pattern_matches_no_internal_topic_and_none_that_can_not_be_read() -> None:
    topics = {
        name: SimpleNamespace(error_code=code, internal=internal)
        for name, code, internal in (
            ("a", ErrorCode.NONE, False),
            ("__consumer_offsets", ErrorCode.NONE, True),
            ("secret", ErrorCode.TOPIC_AUTHORIZATION_FAILED, False),
        )
    }
    metadata: Any = SimpleNamespace(topics=topics)
    assert list(_readable(metadata)) == ["a"]


@pytest.mark.parametrize("protocol", GroupProtocol)
@pytest.mark.parametrize(
    ("code", "leaves_at"),
    [
        (ErrorCode.NOT_COORDINATOR, [1, 2]),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, [1, 2]),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [1, 1]),
        (ErrorCode.UNKNOWN_MEMBER_ID, [1]),
    ],
)
def test_a_member_leaves_though_its_coordinator_has_moved_or_is_loading(
    monkeypatch: pytest.MonkeyPatch, protocol: GroupProtocol, code: ErrorCode, leaves_at: list[int]
) -> None:
    """Until the session ends, no other member would get its partitions."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 1_000 * WITHIN_S)
    left: list[int] = []

    def answer(node: int, made: LeaveGroupResponse | ConsumerGroupHeartbeatResponse) -> Any:
        group.coordinator = leaves_at[-1]
        left.append(node)
        return replace(made, error_code=code) if len(left) == 1 else made

    with ScriptedCluster(2) as cluster:
        cluster.create("a")
        group = ScriptedGroup(cluster, [A0])
        cluster.logs[A0].append([b"x"])

        def heard(node: int, request: ConsumerGroupHeartbeatRequest, version: int) -> Any:
            made = group._heard(request, version)
            return answer(node, made) if request.member_epoch < 0 else made

        for node in cluster.brokers:
            cluster[node].on(LeaveGroupRequest, lambda *_, node=node: answer(node, LeaveGroupResponse()))
            cluster[node].on(ConsumerGroupHeartbeatRequest, partial(heard, node))
        with GroupConsumer(
            cluster.bootstrap_servers, "a", "g", group_protocol=protocol, enable_auto_commit=False
        ) as consumer:
            assert consumer.fetch_record(WITHIN_S) is not None
        assert left == leaves_at


@pytest.mark.parametrize("protocol", GroupProtocol)
def test_a_member_leaves_though_the_broker_of_its_coordinator_has_shut_down(
    monkeypatch: pytest.MonkeyPatch, protocol: GroupProtocol
) -> None:
    """In a rolling restart: another broker has the group by now."""
    monkeypatch.setattr(rebalance, "LEAVE_MS", 1_000 * WITHIN_S)
    with ScriptedCluster(2) as cluster:
        cluster.create("a", leader=2)
        group = ScriptedGroup(cluster, [A0])
        cluster.logs[A0].append([b"x"])
        with GroupConsumer(
            cluster.bootstrap_servers,
            "a",
            "g",
            group_protocol=protocol,
            enable_auto_commit=False,
            heartbeat_interval_ms=10_000,
        ) as consumer:
            assert consumer.fetch_record(WITHIN_S) is not None
            group.coordinator = 2
            cluster[1].stop_listening()
            cluster[1].hang_up()
            wait_until("its connection has ended", lambda: consumer._router.ready(1) is None)
        leaves = [one for one in cluster[2].requests(ConsumerGroupHeartbeatRequest) if one.member_epoch < 0]
        assert len(leaves) + len(cluster[2].requests(LeaveGroupRequest)) == 1
