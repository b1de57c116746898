"""A member with brokers that can't be reached: for a while, or from the beginning."""

from __future__ import annotations

import itertools
import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup, joined
from support.consumer.reading import wait_until
from support.group.parts import parts_of

from spark_kafka_native.kafka.cluster import retry_policy
from spark_kafka_native.kafka.cluster.metadata import ClusterMetadata
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, DeadlineExceededError, UnreachableError
from spark_kafka_native.kafka.group import membership_thread
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.group_membership import HeartbeatRequest, JoinGroupRequest
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse
from spark_kafka_native.kafka.runtime.deadline import Deadline

A0 = TopicPartition("a", 0)
WITHIN_S = 120


def test_brokers_that_are_away_for_longer_than_a_look_takes_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A look at the metadata that found no broker ended the membership for good."""
    monkeypatch.setattr(membership_thread, "LOOK_MS", 100)
    monkeypatch.setattr(membership_thread, "UNKNOWN_LOOK_S", 0.05)
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"one"])
        group = ScriptedGroup(cluster, [A0])
        with (
            caplog.at_level(logging.INFO, "spark_kafka_native.group"),
            GroupConsumer(
                cluster.bootstrap_servers,
                "a",
                "g",
                metadata_max_age_ms=50,
                session_timeout_ms=3_600_000,
                retry_backoff_ms=5,
                retry_backoff_max_ms=20,
            ) as consumer,
        ):
            assert consumer.fetch_record(WITHIN_S) is not None
            cluster[1].stop()
            until = Deadline.after_ms(WITHIN_S * 1_000)
            while not any(
                "asking for metadata of topic a did not succeed" in one.getMessage() for one in caplog.records
            ):
                assert not until.expired
                assert consumer.fetch_record(0.05) is None
            cluster[1].start()
            cluster.logs[A0].append([b"two"])
            record = consumer.fetch_record(WITHIN_S)
            assert record is not None
            assert (record.value, consumer.assignment) == (b"two", {A0})
            consumer.commit(record)
    assert group.committed == {A0: 2}


def test_looks_that_fail_do_not_keep_a_member_from_its_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a backoff longer than the pause between two looks, the group evicted it."""
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"one"])
        ScriptedGroup(cluster, [A0])
        with GroupConsumer(
            cluster.bootstrap_servers,
            "a",
            "g",
            metadata_max_age_ms=50,
            heartbeat_interval_ms=50,
            retry_backoff_ms=100_000,
            retry_backoff_max_ms=100_000,
        ) as consumer:
            assert consumer.fetch_record(WITHIN_S) is not None
            looks_at: list[float] = []

            def no_answer(*_: Any, refresh: bool = False, **__: Any) -> ClusterMetadata:
                # No broker is silent: a look may take the member's own connection if no other is there.
                if refresh:
                    looks_at.append(time.monotonic())
                raise DeadlineExceededError("no answer")

            monkeypatch.setattr(parts_of(consumer).member._router, "metadata", no_answer)
            wait_until("it looks", lambda: len(looks_at) >= 2)
            beats = len(cluster[1].requests(HeartbeatRequest))
            wait_until("its heart beats", lambda: len(cluster[1].requests(HeartbeatRequest)) >= beats + 3)
            # At most one look in half a second or so, however often a heartbeat is due.
            assert all(later - earlier > 0.3 for earlier, later in itertools.pairwise(looks_at))


def test_brokers_that_were_never_there_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_policy, "UNREACHABLE_WAIT_MS", 100)
    monkeypatch.setattr(membership_thread, "LOOK_MS", 3_600_000)
    with GroupConsumer("localhost:1", "a", "g") as consumer:
        for _ in range(2):
            with pytest.raises(UnreachableError, match="localhost:1"):
                consumer.read(WITHIN_S)


@pytest.mark.parametrize("reached_before", [False, True])
def test_brokers_that_start_later_are_found_by_a_later_read(
    monkeypatch: pytest.MonkeyPatch, reached_before: bool
) -> None:
    """Each read raised the same error, for as long as the process ran; also where another call had reached
    them when the first read heard of it.
    """
    monkeypatch.setattr(retry_policy, "UNREACHABLE_WAIT_MS", 100)
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"one"])
        ScriptedGroup(cluster, [A0])
        cluster[1].stop()
        with GroupConsumer(cluster.bootstrap_servers, "a", "g", retry_backoff_ms=5) as consumer:
            if reached_before:
                wait_until("it has failed", lambda: consumer._member.membership.failure is not None)
                cluster[1].start()
                assert consumer.committed(A0) == {A0: None}
            with pytest.raises(UnreachableError):
                consumer.read(WITHIN_S)
            if not reached_before:
                cluster[1].start()
            until, record = Deadline.after_ms(WITHIN_S * 1_000), None
            while record is None and not until.expired:
                with suppress(UnreachableError):  # a look that had begun before
                    record = consumer.fetch_record(1)
            assert record is not None


@pytest.mark.parametrize("refuses", ["the topic", "the group"])
def test_a_member_that_has_failed_asks_no_more(refuses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the topics either: the next read raises the error, after one more attempt where an ACL is
    missing.
    """
    monkeypatch.setattr(membership_thread, "UNKNOWN_LOOK_S", 0.0)
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        ScriptedGroup(cluster, [A0])
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED

        def metadata(request: MetadataRequest, version: int) -> MetadataResponse:
            found = cluster.metadata(request, version)
            return replace(found, topics=[replace(one, error_code=refused) for one in found.topics])

        if refuses == "the topic":
            cluster[1].on(MetadataRequest, metadata)
        else:
            refused = ErrorCode.INVALID_GROUP_ID
            cluster[1].on(JoinGroupRequest, lambda *given: replace(joined(*given), error_code=refused))
        with GroupConsumer(cluster.bootstrap_servers, "a", "g", metadata_max_age_ms=20) as consumer:
            with pytest.raises(BrokerError, match=refused.name):
                consumer.read(WITHIN_S)
            asked = len(cluster[1].asked)
            time.sleep(0.2)
            assert len(cluster[1].asked) <= asked + 1  # that of the read


def test_who_stops_does_not_wait_for_brokers_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_policy, "UNREACHABLE_WAIT_MS", 3_600_000)
    consumer = GroupConsumer("localhost:1", "a", "g", default_api_timeout_ms=3_600_000)
    thread = parts_of(consumer).member.thread
    consumer.close()
    thread.join(WITHIN_S)
    assert not thread.is_alive()
