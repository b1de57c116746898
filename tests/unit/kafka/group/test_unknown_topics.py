"""What a consumer says of topics that no broker knows, and which of their offsets it commits."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup, joined
from support.group.parts import parts_of

from spark_kafka_native.kafka.cluster import retry_policy
from spark_kafka_native.kafka.cluster.metadata import ClusterMetadata, Topic
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, ConfigError
from spark_kafka_native.kafka.group import membership_thread
from spark_kafka_native.kafka.group.group_config import Subscription, Topics
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.group_membership import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupRequest,
)
from spark_kafka_native.kafka.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    read_versioned,
    write_versioned,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
WITHIN_S = 120


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def test_a_group_says_once_which_topic_nobody_knows(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"one"])
        ScriptedGroup(cluster, [A0])
        with GroupConsumer(
            cluster.bootstrap_servers, ["a", "ordres"], "g", metadata_max_age_ms=20
        ) as consumer:
            assert consumer.fetch_record(WITHIN_S) is not None
            looks = len(cluster[1].asked)
            until = Deadline.after_ms(WITHIN_S * 1000)
            while len(cluster[1].asked) < looks + 5 and not until.expired:
                time.sleep(0.01)
    assert warnings(caplog) == [
        "No broker knows the topic ordres (is the name right?): "
        "group g reads nothing of it until it is created"
    ]


def test_a_group_says_once_that_no_topic_matches(caplog: pytest.LogCaptureFixture) -> None:
    """Other clients take a pattern for the beginning of a name."""
    with ScriptedCluster(1) as cluster:
        cluster.create("orders-eu")
        ScriptedGroup(cluster, [TopicPartition("orders-eu", 0)])
        with GroupConsumer(
            cluster.bootstrap_servers, re.compile("^orders-"), "g", metadata_max_age_ms=20
        ) as consumer:
            until = Deadline.after_ms(WITHIN_S * 1000)
            while len(cluster[1].asked) < 5 and not until.expired:
                assert consumer.fetch_record(0.01) is None
            consumer.subscribe(re.compile("^orders-.*"))
            while not consumer.assignment and not until.expired:
                assert consumer.fetch_record(0.01) is None
    assert warnings(caplog) == [
        "No topic of the cluster matches (a whole name has to): "
        "group g reads no topics like '^orders-' until one is created"
    ]


def test_a_leader_looks_for_a_topic_of_another_member_until_it_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looked after five minutes, or where a broker lacked the topic for a moment in a rebalance."""
    monkeypatch.setattr(membership_thread, "UNKNOWN_LOOK_S", 0.05)
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        ScriptedGroup(cluster, [A0])
        members = [
            JoinGroupResponseMember(
                member_id=name, metadata=write_versioned(ConsumerProtocolSubscription(topics=[topic]))
            )
            for name, topic in (("me", "a"), ("you", "b"))
        ]

        def leads(request: JoinGroupRequest, version: int) -> JoinGroupResponse:
            return replace(joined(request, version), leader="me", member_id="me", members=members)

        cluster[1].on(JoinGroupRequest, leads)
        with GroupConsumer(cluster.bootstrap_servers, "a", "g") as consumer:
            until = Deadline.after_ms(WITHIN_S * 1000)
            while not consumer.assignment:
                assert consumer.fetch_record(0.01) is None
            cluster.create("b")
            while len(cluster[1].requests(SyncGroupRequest)) < 2:
                assert not until.expired
                assert consumer.fetch_record(0.01) is None
    given = [
        {
            one.member_id: read_versioned(ConsumerProtocolAssignment, one.assignment)
            for one in sync.assignments
        }
        for sync in cluster[1].requests(SyncGroupRequest)
    ]
    assert [len(one["you"].assigned_partitions) for one in given] == [0, 1]


@pytest.mark.parametrize("by_pattern", [True, False])
def test_a_pattern_does_not_look_at_all_topics_each_second_for_one_that_is_never_there(
    by_pattern: bool,
) -> None:
    """Another member may be subscribed to a topic that this one may not describe."""
    topic = Topic(name="orders-1", topic_id=None, partitions={}, error_code=ErrorCode.NONE, internal=False)
    router = SimpleNamespace(
        config=SimpleNamespace(metadata_max_age_ms=10_000), snapshot=ClusterMetadata(), coordinators=None
    )
    member = SimpleNamespace(
        watched=frozenset({"orders-1", "secret"}),
        topics=frozenset({"orders-1"}),
        found=lambda *_: None,
        subscribe=lambda _: None,
        rules=SimpleNamespace(group_id="g"),
        failure=None,
        change=lambda: None,
        owned=frozenset(),
    )
    wanted = re.compile("orders-.*") if by_pattern else ("orders-1",)
    thread = membership_thread.MembershipThread(router, member, Subscription(wanted))  # type: ignore[arg-type]
    intervals = []
    for _ in range(6):
        thread._take_in(ClusterMetadata(topics={"orders-1": topic}))
        intervals.append(round(thread._look_at - time.monotonic()))
    assert intervals == ([1, 2, 4, 8, 10, 10] if by_pattern else [1] * 6)


def test_a_topic_that_a_broker_lacks_for_a_moment_matches_its_pattern_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was given up, and read again after five minutes."""
    monkeypatch.setattr(membership_thread, "UNKNOWN_LOOK_S", 0.05)
    with ScriptedCluster(1) as cluster:
        for topic in "ab":
            cluster.create(topic)
        with GroupConsumer(cluster.bootstrap_servers, re.compile("[ab]"), "g") as consumer:
            until = Deadline.after_ms(WITHIN_S * 1000)

            def assigned(topics: str) -> bool:
                assert not until.expired
                assert consumer.fetch_record(0.01) is None
                return {tp.topic for tp in consumer.assignment} == set(topics)

            while not assigned("ab"):
                pass
            topic_id = cluster.topic_ids["b"]
            del cluster.topic_ids["b"]
            parts_of(consumer).member.look()  # the periodic look-up
            while not assigned("a"):
                pass
            cluster.topic_ids["b"] = topic_id
            while not assigned("ab"):
                pass


@pytest.mark.parametrize("topics", [["a", "b"], re.compile("[ab]")], ids=["names", "pattern"])
def test_a_classic_group_goes_on_without_a_topic_that_was_deleted(topics: Topics) -> None:
    """Reads raised UNKNOWN_TOPIC_OR_PARTITION every 31 s, until the periodic look-up after five minutes."""
    with ScriptedCluster(1) as cluster:
        for topic in "ab":
            cluster.create(topic)
        with GroupConsumer(cluster.bootstrap_servers, topics, "g", heartbeat_interval_ms=50) as consumer:
            until = Deadline.after_ms(WITHIN_S * 1000)
            while len(consumer.assignment) < 2:
                assert consumer.fetch_record(0.01) is None
            del cluster.topic_ids["b"]
            while consumer.assignment != {A0}:
                assert not until.expired
                assert consumer.fetch_record(0.01) is None


def test_a_consumer_without_topics_asks_nothing_until_it_subscribes() -> None:
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"one"])
        ScriptedGroup(cluster, [A0])
        with GroupConsumer(
            cluster.bootstrap_servers,
            group="g",
            session_timeout_ms=300,
            heartbeat_interval_ms=100,
            max_poll_interval_ms=300,
        ) as consumer:
            with pytest.raises(
                ConfigError, match=r"no topics in g.* has nothing to read: call subscribe\(\)"
            ):
                consumer.fetch_record(0)
            with pytest.raises(ConfigError, match="at least one topic"):
                consumer.subscribe(())
            time.sleep(0.5)  # longer than a member may stay away
            assert cluster[1].asked == []
            assert consumer.assignment == consumer.topics == frozenset()
            consumer.add_topics("a")
            assert consumer.fetch_record(WITHIN_S) is not None
            assert consumer.assignment == {A0}


@pytest.mark.parametrize("topics", [[], "", frozenset(), [""], ["a", ""], [b"a"], ["a", None]])
def test_topics_that_are_given_empty_are_a_mistake(topics: object) -> None:
    with pytest.raises(ConfigError, match="at least one topic"):
        GroupConsumer("127.0.0.1:1", topics, "g")  # type: ignore[arg-type]


def test_a_consumer_without_topics_closes_without_a_word() -> None:
    with ScriptedCluster(1) as cluster:
        GroupConsumer(cluster.bootstrap_servers, group="g").close()
        assert cluster[1].asked == []


def test_a_consumer_says_which_topic_nobody_knows_while_it_tries(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry_policy, "SAY_UNKNOWN_MS", 100)
    monkeypatch.setattr(retry_policy, "NEW_TOPIC_WAIT_MS", 1_000)
    with ScriptedCluster(1) as cluster, pytest.raises(BrokerError, match="ordres"):
        Consumer(cluster.bootstrap_servers, "ordres", retry_backoff_ms=10, retry_backoff_max_ms=50)
    [said] = warnings(caplog)
    assert said.startswith("No broker knows the topic ordres (is the name right?); trying for ")


def test_committed_offsets_of_the_members_partitions_or_of_those_that_are_named() -> None:
    with ScriptedCluster(1) as cluster:
        cluster.create("a", 2)
        cluster.logs[A0].append([b"one"])
        group = ScriptedGroup(cluster, [A0])
        group.committed[A1] = 7
        with GroupConsumer(cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
            assert consumer.committed() == {}
            record = consumer.fetch_record(WITHIN_S)
            assert record is not None
            assert consumer.committed() == {A0: None}
            consumer.commit(record)
            assert consumer.committed(timeout=60) == {A0: 1}
            assert consumer.committed(A0, A1) == {A0: 1, A1: 7}
