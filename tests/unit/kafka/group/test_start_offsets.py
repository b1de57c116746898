"""Where to begin in the assigned partitions: each by itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup
from support.consumer.reading import wait_until
from support.group.parts import heartbeat_refused, lose, parts_of

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    AuthenticationError,
    BrokerError,
    DeadlineExceededError,
    NetworkError,
    NoCommittedOffsetError,
)
from spark_kafka_native.kafka.group import start_offsets
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.model import IsolationLevel, OffsetAt, TopicPartition
from spark_kafka_native.kafka.protocol.api.group_offsets import OffsetCommitRequest, OffsetFetchRequest
from spark_kafka_native.kafka.protocol.api.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.runtime.log_throttle import LogThrottle

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
WITHIN_S = 120
NOBODY = -1
QUICK = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20}


@pytest.fixture
def group() -> Iterator[ScriptedGroup]:
    with ScriptedCluster(2) as cluster:
        cluster.create("a", partitions=2)
        cluster.logs[A0].append([b"0", b"1"])
        cluster.logs[A1].append([b"2", b"3"])
        yield ScriptedGroup(cluster, [A0, A1])


def values(consumer: GroupConsumer, count: int) -> list[bytes | None]:
    found = [consumer.fetch_record(WITHIN_S) for _ in range(count)]
    return [None if record is None else record.value for record in found]


def begun(consumer: GroupConsumer) -> dict[TopicPartition, int | None]:
    assert consumer.fetch_record(0.0) is None
    return {tp: consumer.position(tp) for tp in consumer.assignment}


@pytest.mark.parametrize("policy", ["earliest", "by_duration:PT1H"])
def test_a_partition_without_a_leader_holds_up_no_other(
    group: ScriptedGroup, policy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It raised for all of them after ``default.api.timeout.ms``, and nothing was read."""
    monkeypatch.setattr(start_offsets, "SAY_AFTER_S", 0.2)
    monkeypatch.setattr(start_offsets, "_THROTTLED_LOG", LogThrottle(start_offsets._THROTTLED_LOG._log))
    cluster = group.cluster
    cluster.logs[A1].leader = NOBODY
    with GroupConsumer(
        cluster.bootstrap_servers, "a", "g", default_api_timeout_ms=3_000, auto_offset_reset=policy, **QUICK
    ) as consumer:
        if policy == "earliest":
            assert values(consumer, 2) == [b"0", b"1"]
        else:  # the scripted logs have no record that late
            wait_until("begun", lambda: begun(consumer) == {A0: 2, A1: None})
            cluster.logs[A0].append([b"late"])
            assert values(consumer, 1) == [b"late"]
        assert consumer.position(A1) is None
        wait_until(
            "said",
            lambda: consumer.fetch_record(0.05) is None and "Nothing is read yet of a-1" in caplog.text,
        )
        consumer.commit()
        consumer._starts._failures = 2_000  # an outage of half an hour: a double takes no such power of two
        cluster.logs[A1].leader = 1
        cluster.logs[A1].append([b"4"])
        if policy == "earliest":
            assert values(consumer, 3) == [b"2", b"3", b"4"]


@pytest.mark.parametrize("policy", ["latest", "by_duration:PT1H"])
def test_a_start_that_is_later_for_the_next_member_is_committed(group: ScriptedGroup, policy: str) -> None:
    """Else that one skips the records written until it comes. The scripted logs have no record so late."""
    servers = group.cluster.bootstrap_servers
    with GroupConsumer(servers, "a", "g", auto_offset_reset=policy, **QUICK) as consumer:
        wait_until("begun", lambda: begun(consumer) == {A0: 2, A1: 2})
    assert group.committed == {A0: 2, A1: 2}


@pytest.mark.parametrize("silent", [True, False])
def test_a_leader_that_does_not_answer_holds_up_no_other(
    group: ScriptedGroup, silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_offsets, "FIRST_LOOK_MS", 200)
    cluster = group.cluster
    gate = threading.Event()

    def answer(request: ListOffsetsRequest, version: int) -> Any:
        assert gate.wait(WITHIN_S)
        return cluster.list_offsets(request, version)

    cluster[2].on(ListOffsetsRequest, answer)
    if not silent:
        cluster[2].stop()
    with GroupConsumer(cluster[1].address, "a", "g", **QUICK) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
        gate.set()
        if not silent:
            cluster[2].start()
        assert values(consumer, 2) == [b"2", b"3"]


def test_what_is_committed_waits_for_no_leader(group: ScriptedGroup) -> None:
    group.committed[A0] = 1
    group.cluster.logs[A1].leader = NOBODY
    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", auto_offset_reset="earliest", **QUICK
    ) as consumer:
        assert values(consumer, 1) == [b"1"]


def test_where_nothing_can_be_read_it_is_said_in_the_end(group: ScriptedGroup) -> None:
    for log in group.cluster.logs.values():
        log.leader = NOBODY
    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", default_api_timeout_ms=1_500, **QUICK
    ) as consumer:
        with pytest.raises(
            DeadlineExceededError, match=r"where to begin with a-0, a-1 .*LEADER_NOT_AVAILABLE"
        ):
            consumer.read(WITHIN_S)
        group.cluster.logs[A0].leader = 1
        assert values(consumer, 2) == [b"0", b"1"]


def test_a_failure_to_look_up_may_pass_until_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next look comes after the backoff; its limit is a setting of the client."""
    monkeypatch.setattr(start_offsets, "_THROTTLED_LOG", LogThrottle(start_offsets._THROTTLED_LOG._log))
    hour_ms = 3_600_000
    with GroupConsumer(
        "127.0.0.1:1",
        "a",
        "g",
        default_api_timeout_ms=hour_ms,
        retry_backoff_ms=hour_ms,
        retry_backoff_max_ms=hour_ms,
    ) as consumer:
        starts = parts_of(consumer).starts
        starts.add([A0])
        starts._looked(NetworkError("gone"))
        assert "Nothing is read yet" not in caplog.text
        assert starts._retry_at > time.monotonic() + 600
        starts.find(Deadline.after_ms(0))
        assert "start offsets" not in starts._background
        starts._since -= 3_600
        with pytest.raises(
            DeadlineExceededError, match=r"a-0 was not found in 36.. s; the last failure: gone"
        ):
            starts._looked(NetworkError("gone"))
        starts._looked(NetworkError("gone"))  # the time begins anew
        assert starts.missing == {A0}


def test_what_was_looked_up_before_a_rebalance_does_not_count(group: ScriptedGroup) -> None:
    """The answer of an earlier assignment: others have gone on since, and committed."""
    cluster = group.cluster

    def late(request: OffsetFetchRequest, version: int) -> Any:
        stale = group.fetch_offsets(request, version)
        group.committed[A0] = 2
        parts = parts_of(consumer)
        with parts.member.changing():
            parts.starts.add([A0, A1])  # as if they had been taken away, and had come back
        return stale

    cluster[1].push(OffsetFetchRequest, late)
    with GroupConsumer(cluster.bootstrap_servers, "a", "g", **QUICK) as consumer:
        assert values(consumer, 2) == [b"2", b"3"]
        assert consumer.position(A0) == 2


@pytest.fixture
def gate(group: ScriptedGroup, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The first response with committed offsets comes once it is set; a consumer does not wait for it."""
    monkeypatch.setattr(start_offsets, "WAIT_MS", 10)
    opened = threading.Event()

    def late(request: OffsetFetchRequest, version: int) -> Any:
        assert opened.wait(WITHIN_S)
        return group.fetch_offsets(request, version)

    group.cluster[1].push(OffsetFetchRequest, late)
    return opened


def test_a_seek_counts_while_the_start_is_being_looked_up(
    group: ScriptedGroup, gate: threading.Event
) -> None:
    """The answer, which came later, would begin the partition once more."""
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", **QUICK) as consumer:
        wait_until("assigned", lambda: begun(consumer) == {A0: None, A1: None})
        consumer.seek(A0, 1)
        assert values(consumer, 1) == [b"1"]
        gate.set()
        assert values(consumer, 2) == [b"2", b"3"]
        assert consumer.position(A0) == 2


def test_a_seek_of_an_earlier_assignment_does_not_count(group: ScriptedGroup) -> None:
    """Others may have had the partition since: it begins where the policy says, and skips nothing."""
    cluster = group.cluster
    with GroupConsumer(cluster.bootstrap_servers, "a", "g", enable_auto_commit=False, **QUICK) as consumer:
        assert sorted(values(consumer, 4), key=str) == [b"0", b"1", b"2", b"3"]
        consumer.seek(A0, 2)
        starts = parts_of(consumer).starts
        starts.remove(A0)
        starts.add([A0])
        assert values(consumer, 2) == [b"0", b"1"]


def test_where_the_group_stands_already_is_not_committed_again(group: ScriptedGroup) -> None:
    group.committed |= {A0: 2, A1: 2}
    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False, **QUICK
    ) as consumer:
        wait_until("begun", lambda: begun(consumer) == {A0: 2, A1: 2})
        consumer.commit()
        assert group.cluster[1].requests(OffsetCommitRequest) == []


def test_nothing_is_said_of_an_election(group: ScriptedGroup, caplog: pytest.LogCaptureFixture) -> None:
    cluster = group.cluster
    cluster.logs[A1].leader = NOBODY
    with (
        caplog.at_level(logging.WARNING, "spark_kafka_native"),
        GroupConsumer(cluster.bootstrap_servers, "a", "g", **QUICK) as consumer,
    ):
        assert values(consumer, 2) == [b"0", b"1"]
        cluster.logs[A1].leader = 2
        assert values(consumer, 2) == [b"2", b"3"]
    assert not caplog.records


def test_a_seek_in_a_handler_leaves_the_partition_that_begins_just_then(group: ScriptedGroup) -> None:
    """It was dropped there, and never read: the read failed, and nothing said later that it was missing."""
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
        reader = parts_of(consumer).reader
        add = reader.add

        def added(tp: TopicPartition, *arguments: Any, **named: Any) -> None:
            add(tp, *arguments, **named)
            if tp == A1:
                consumer.seek(A0, 1)

        reader.add = added  # type: ignore[method-assign]
        assert sorted(map(str, values(consumer, 3))) == ["b'1'", "b'2'", "b'3'"]


def test_a_start_is_committed_though_an_interrupt_came_as_it_began(group: ScriptedGroup) -> None:
    """The next member would begin at a later end, and skip the records in between."""
    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", auto_offset_reset="latest", **QUICK
    ) as consumer:
        starts = parts_of(consumer).starts
        hold_or_go_on, interrupted = starts._hold_or_go_on, []

        def interrupt(tp: TopicPartition) -> None:
            hold_or_go_on(tp)
            if not interrupted:
                interrupted.append(tp)
                raise KeyboardInterrupt

        starts._hold_or_go_on = interrupt  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            consumer.read(WITHIN_S)
        wait_until("begun", lambda: begun(consumer) == {A0: 2, A1: 2})
    assert group.committed == {A0: 2, A1: 2}


def test_a_seek_does_not_outlast_the_assignment(group: ScriptedGroup) -> None:
    """Another member had the partition meanwhile. Nothing is committed, so the reset policy applies."""
    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", enable_auto_commit=False, **QUICK
    ) as consumer:
        assert sorted(map(str, values(consumer, 4))) == ["b'0'", "b'1'", "b'2'", "b'3'"]
        for tp in (A0, A1):
            consumer.seek(tp, 1)
        lose(consumer)
        assert values(consumer, 1)[0] in (b"0", b"2")


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.seek(A1, 1),
        lambda consumer: consumer.pause(A1),
        lambda consumer: consumer.resume(A1),
        lambda consumer: consumer.position(A1),
    ],
    ids=["seek", "pause", "resume", "position"],
)
def test_a_call_for_a_partition_of_another_member_changes_nothing_for_its_later_assignment(
    group: ScriptedGroup, call: Callable[[GroupConsumer], object]
) -> None:
    group.assigned = [A0]
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", **QUICK) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
        with pytest.raises(ValueError, match="a-1 is not assigned to this consumer: a-0 are"):
            call(consumer)
        group.assigned = [A0, A1]
        heartbeat_refused(consumer, ErrorCode.REBALANCE_IN_PROGRESS)
        assert values(consumer, 2) == [b"2", b"3"]


def test_the_lag_is_the_distance_to_the_end_and_never_negative(group: ScriptedGroup) -> None:
    group.committed |= {A0: 1, A1: 0}
    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", auto_offset_reset="none", **QUICK
    ) as consumer:
        assert consumer.lag() == {}
        assert sorted(map(str, values(consumer, 3))) == ["b'1'", "b'2'", "b'3'"]
        group.cluster.logs[A1].append([b"4", b"5", b"6"])
        assert consumer.lag() == {A0: 0, A1: 3}
        consumer.seek(A0, 9)  # behind the end
        assert consumer.lag() == {A0: 0, A1: 3}


def offset_lookups(group: ScriptedGroup) -> list[ListOffsetsRequest]:
    return [one for broker in group.cluster.brokers.values() for one in broker.requests(ListOffsetsRequest)]


@pytest.mark.parametrize("level", IsolationLevel)
def test_the_end_of_a_log_depends_on_the_isolation_level(group: ScriptedGroup, level: IsolationLevel) -> None:
    """With read_committed, the records of an open transaction would be skipped otherwise."""
    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", auto_offset_reset="latest", isolation_level=level, **QUICK
    ) as consumer:
        wait_until("begun", lambda: begun(consumer) == {A0: 2, A1: 2})
        consumer.seek(A0, OffsetAt.LATEST)
        assert consumer.lag() == {A0: 0, A1: 0}
    asked = offset_lookups(group)
    assert len(asked) >= 5
    assert {one.isolation_level for one in asked} == {level}


@pytest.mark.parametrize("other", ["has no leader", "is read"])
def test_an_error_that_stays_does_not_hide_behind_another_partition(group: ScriptedGroup, other: str) -> None:
    cluster = group.cluster
    if other == "has no leader":
        cluster.logs[A0].leader = NOBODY
    refusal = ListOffsetsPartitionResponse(partition_index=1, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    cluster[2].on(
        ListOffsetsRequest,
        ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="a", partitions=[refusal])]),
    )
    with (
        GroupConsumer(cluster.bootstrap_servers, "a", "g", default_api_timeout_ms=2_000, **QUICK) as consumer,
        pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"),
    ):
        list(iter(lambda: consumer.read(10), None))  # it may come after the records of the other one


def test_a_refused_login_is_not_repeated_soon(group: ScriptedGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account would be locked. Other partitions are looked up on, and a new assignment looks at once."""
    asked: list[list[TopicPartition]] = []
    resolve = start_offsets.try_resolve_offsets

    def look(router: Router, places: Any, *given: Any) -> Any:
        asked.append(sorted(places))
        found, failed = resolve(router, {tp: at for tp, at in places.items() if tp == A0}, *given)
        return found, failed | ({A1: AuthenticationError("the password is refused")} if A1 in places else {})

    monkeypatch.setattr(start_offsets, "try_resolve_offsets", look)
    group.cluster.logs[A0].leader = NOBODY
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", **QUICK) as consumer:
        with pytest.raises(AuthenticationError, match="the password is refused"):
            consumer.poll(WITHIN_S)
        wait_until("it looks on", lambda: consumer.poll(0.0) == [] and len(asked) > 3)
        group.cluster.logs[A0].leader = 1
        assert values(consumer, 2) == [b"0", b"1"]
        assert consumer.poll(0.2) == []
        assert asked == [[A0, A1], *([[A0]] * (len(asked) - 1))]
        monkeypatch.setattr(start_offsets, "try_resolve_offsets", resolve)
        consumer.seek_to_committed()
        assert sorted(filter(None, values(consumer, 4))) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("age_ms", [3_600_000, 400])
def test_a_login_that_the_coordinator_refuses_is_not_repeated_soon(
    group: ScriptedGroup, monkeypatch: pytest.MonkeyPatch, age_ms: int
) -> None:
    asked: list[object] = []

    def refuse(*given: object) -> None:
        asked.append(given)
        raise AuthenticationError("the password is refused")

    positions = start_offsets.committed_positions
    monkeypatch.setattr(start_offsets, "committed_positions", refuse)
    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", metadata_max_age_ms=age_ms, **QUICK
    ) as consumer:
        with pytest.raises(AuthenticationError, match="the password is refused"):
            consumer.poll(WITHIN_S)
        if age_ms > 400:
            assert (consumer.poll(0.2), len(asked)) == ([], 1)
        else:
            monkeypatch.setattr(start_offsets, "committed_positions", positions)
            assert sorted(filter(None, values(consumer, 4))) == [b"0", b"1", b"2", b"3"]


def test_without_a_reset_policy_the_caller_says_where_to_begin(group: ScriptedGroup) -> None:
    group.committed[A0] = 1
    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", auto_offset_reset="none", enable_auto_commit=False
    ) as consumer:
        with pytest.raises(NoCommittedOffsetError, match="a-1"):
            consumer.fetch_record(WITHIN_S)
        consumer.seek(A1, 1)
        assert sorted(map(str, values(consumer, 2))) == ["b'1'", "b'3'"]


def test_close_cancels_the_lookup_that_is_under_way(group: ScriptedGroup, gate: threading.Event) -> None:
    """Else its thread and its pipes would outlast the consumer."""
    with GroupConsumer(group.cluster.bootstrap_servers, "a", "g", **QUICK) as consumer:
        wait_until("assigned", lambda: begun(consumer) == {A0: None, A1: None})
        limit = parts_of(consumer).starts._background.deadline(WITHIN_S * 1_000)
        assert not limit.cancelled
        gate.set()
    assert limit.cancelled


def test_a_duration_before_now_is_looked_up_in_milliseconds(group: ScriptedGroup) -> None:
    began_ms = int(time.time() * 1_000)
    with GroupConsumer(
        group.cluster.bootstrap_servers, "a", "g", auto_offset_reset="by_duration:PT1H", **QUICK
    ) as consumer:
        wait_until("begun", lambda: len(places := begun(consumer)) == 2 and None not in places.values())
    asked = [
        part.timestamp for one in offset_lookups(group) for topic in one.topics for part in topic.partitions
    ]
    times = [one for one in asked if one != -1]  # the end counts where no record is younger
    assert times
    assert all(began_ms <= one + 3_600_000 <= time.time() * 1_000 + 1 for one in times)
