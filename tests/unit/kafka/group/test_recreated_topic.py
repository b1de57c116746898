"""A topic that is deleted and created again at once, under a group that reads it."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.brokers.scripted_group import ScriptedGroup
from support.consumer.reading import wait_until
from support.group.parts import parts_of

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.consumer.partition_reader import PartitionReader
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import CommitFailedError, DeadlineExceededError, TopicRecreatedError
from spark_kafka_native.kafka.group import commits, start_offsets
from spark_kafka_native.kafka.group.commits import FRESH_LIMIT_S, FRESH_S
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.runtime.deadline import Deadline

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)
WITHIN_S = 120
PATIENT_MS = 20_000


@pytest.fixture(autouse=True)
def ids_of_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that took long to ask for count longer, and a slow machine is given more time for a verdict."""
    monkeypatch.setattr(commits, "FRESH_LIMIT_S", FRESH_S)
    monkeypatch.setattr(commits, "METADATA_MS", PATIENT_MS)


@pytest.mark.parametrize("explicit", [False, True])
def test_offsets_of_a_topic_are_not_committed_for_the_one_that_has_replaced_it(explicit: bool) -> None:
    """The next member with the partition would skip as many records of the new topic."""
    with ScriptedCluster(1) as cluster:
        for name, tp in (("a", A0), ("b", B0)):
            cluster.create(name)
            cluster.logs[tp].append([b"one"])
        group = ScriptedGroup(cluster, [A0, B0])
        settings: dict[str, Any] = {
            "enable_auto_commit": not explicit,
            "auto_commit_interval_ms": 3_600_000,
        }
        with GroupConsumer(cluster.bootstrap_servers, ["a", "b"], "g", **settings) as consumer:
            read = {record.topic_partition: record for record in (next(consumer), next(consumer))}
            assert read.keys() == {A0, B0}
            cluster.topic_ids["a"] = uuid.uuid4()
            with pytest.raises(TopicRecreatedError, match="a was deleted and created again"):
                consumer.fetch_record(WITHIN_S)
            if explicit:
                with pytest.raises(CommitFailedError, match="a-0: the topic was deleted and created again"):
                    consumer.commit(read[A0])
                consumer.commit()
                assert group.committed == {B0: 1}
                consumer.seek(A0, 0)
                again = consumer.fetch_record(WITHIN_S)
                assert again is not None
                consumer.commit(again)
    assert group.committed == ({A0: 1, B0: 1} if explicit else {B0: 1})


@pytest.mark.parametrize("noticed", ["by the caller", "while records wait", "later"])
@pytest.mark.parametrize("committed", ["nothing", "forgotten", "still there"])
def test_going_back_to_the_committed_offsets_does_not_hide_a_recreated_topic(
    noticed: str, committed: str
) -> None:
    """The records of the new one before the former offsets were skipped after an aborted transaction. A
    coordinator forgets the offsets of a deleted topic a little later."""
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"0", b"1", b"2", b"3"])
        group = ScriptedGroup(cluster, [A0])
        if committed != "nothing":
            group.committed[A0] = 2
        with GroupConsumer(cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
            assert len(consumer.poll(WITHIN_S, 1)) == 1
            cluster.topic_ids["a"] = uuid.uuid4()
            if committed != "still there":
                group.committed.clear()
            if noticed == "by the caller":
                while consumer.position(A0) != 4:
                    assert consumer.poll(WITHIN_S)
                with pytest.raises(TopicRecreatedError):
                    consumer.poll(WITHIN_S)
            elif noticed == "while records wait":
                wait_until("noticed", lambda: parts_of(consumer).reader.recreated)
                assert consumer.position(A0) != 4
            for _ in range(2):
                consumer.seek_to_committed()
                with pytest.raises(TopicRecreatedError):
                    consumer.fetch_record(WITHIN_S)
            consumer.seek(A0, 0)
            again = consumer.fetch_record(WITHIN_S)
            assert again is not None
            assert again.offset == 0
            consumer.commit(again)
            consumer.seek_to_committed()
            assert consumer.poll(WITHIN_S, 1)[0].offset == 1


def test_a_committed_offset_belongs_to_the_topic_of_that_time() -> None:
    """The partition was paused as soon as it was assigned: no fetch has seen its topic before."""
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"0", b"1", b"2", b"3"])
        group = ScriptedGroup(cluster, [A0])
        group.committed[A0] = 2

        def pause(paused: GroupConsumer, partitions: list[TopicPartition]) -> None:
            for tp in partitions:
                paused.pause(tp)

        with GroupConsumer(cluster.bootstrap_servers, "a", "g", on_assigned=pause) as consumer:
            until = Deadline.after_ms(WITHIN_S * 1_000)
            while A0 not in consumer.assignment or consumer.position(A0) is None:
                assert not until.expired
                assert consumer.fetch_record(0.05) is None
            cluster.topic_ids["a"] = uuid.uuid4()
            consumer.resume(A0)
            with pytest.raises(TopicRecreatedError):
                consumer.fetch_record(WITHIN_S)
    assert group.committed == {A0: 2}


def stalled(reader: PartitionReader) -> None:
    """As if its buffer were full: nothing is fetched any more, so that it does not learn of another topic."""
    reader.buffer._max_bytes = 0


@pytest.mark.parametrize("automatic", [False, True])
def test_a_commit_learns_by_itself_that_the_topic_is_another_one(automatic: bool) -> None:
    """The next owner would skip the records of the new one before that offset. Others are committed."""
    with ScriptedCluster(1) as cluster:
        for name, tp in (("a", A0), ("b", B0)):
            cluster.create(name)
            cluster.logs[tp].append([b"0", b"1"])
        group = ScriptedGroup(cluster, [A0, B0])
        settings: dict[str, Any] = {
            "enable_auto_commit": automatic,
            "auto_commit_interval_ms": 3_600_000,
            "retry_backoff_ms": 5,
        }
        servers = cluster.bootstrap_servers
        with GroupConsumer(servers, ["a", "b"], "g", **settings) as consumer:
            found = consumer.poll(WITHIN_S, 4)
            while len(found) < 4:
                found += consumer.poll(WITHIN_S, 4)
            stalled(parts_of(consumer).reader)
            cluster.topic_ids["a"] = uuid.uuid4()
            time.sleep(2 * FRESH_S)
            if not automatic:
                for _ in range(2):
                    with pytest.raises(
                        CommitFailedError, match="a-0: the topic was deleted and created again"
                    ):
                        consumer.commit(*found)
                with pytest.raises(CommitFailedError, match="a-0: the topic was deleted and created again"):
                    consumer.offsets_to_commit(*found)
                consumer.commit()
                consumer.seek(A0, 0)
                parts_of(consumer).reader.buffer._max_bytes = 1_000_000
                again = consumer.fetch_record(WITHIN_S)
                assert again is not None
                consumer.commit(again)
    assert group.committed == ({B0: 2} if automatic else {A0: 1, B0: 2})


def test_a_topic_that_a_commit_knows_as_another_one_is_so_beside_one_that_the_reader_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit of everything leaves out both, and a seek begins in the new topic."""
    monkeypatch.setattr(commits, "FRESH_S", 0.0)
    monkeypatch.setattr(commits, "FRESH_LIMIT_S", 0.0)
    with ScriptedCluster(1) as cluster:
        for name, tp in (("a", A0), ("b", B0)):
            cluster.create(name)
            cluster.logs[tp].append([b"one"])
        group = ScriptedGroup(cluster, [A0, B0])
        with GroupConsumer(cluster.bootstrap_servers, ["a", "b"], "g", enable_auto_commit=False) as consumer:
            read = {record.topic_partition: record for record in (next(consumer), next(consumer))}
            cluster.topic_ids["a"] = uuid.uuid4()
            with pytest.raises(TopicRecreatedError, match="a was deleted and created again"):
                consumer.fetch_record(WITHIN_S)
            stalled(parts_of(consumer).reader)
            cluster.topic_ids["b"] = uuid.uuid4()
            with pytest.raises(CommitFailedError, match="b-0: the topic was deleted and created again"):
                consumer.commit(read[B0])
            consumer.commit()
            assert group.committed == {}
            for tp in (B0, A0):
                consumer.seek(tp, 0)
            parts_of(consumer).reader.buffer._max_bytes = 1_000_000
            again = [consumer.fetch_record(WITHIN_S) for _ in range(2)]
            assert {record and record.topic_partition for record in again} == {A0, B0}


def test_offsets_for_a_transaction_are_not_of_a_former_topic() -> None:
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"0", b"1"])
        ScriptedGroup(cluster, [A0])
        with GroupConsumer(cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
            assert len(consumer.poll(WITHIN_S, 2)) == 2
            stalled(parts_of(consumer).reader)
            assert consumer.offsets_to_commit() == {A0: 2}
            cluster.topic_ids["a"] = uuid.uuid4()
            time.sleep(2 * FRESH_S)
            with pytest.raises(CommitFailedError, match="a-0: the topic was deleted and created again"):
                consumer.offsets_to_commit()


def test_after_such_a_transaction_a_seek_begins_in_the_new_topic() -> None:
    """The partition was about to begin anew, and the offset counted as one of the former topic."""
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"0", b"1"])
        ScriptedGroup(cluster, [A0])
        with GroupConsumer(cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
            assert len(consumer.poll(WITHIN_S, 2)) == 2
            stalled(parts_of(consumer).reader)
            cluster.topic_ids["a"] = uuid.uuid4()
            time.sleep(2 * FRESH_S)
            with pytest.raises(CommitFailedError, match="seek to where to begin with the new one"):
                consumer.offsets_to_commit()
            consumer.seek_to_committed()
            consumer.seek(A0, 1)
            parts_of(consumer).reader.buffer._max_bytes = 1_000_000
            again = consumer.fetch_record(WITHIN_S)
            assert again is not None
            assert consumer.offsets_to_commit(again) == {A0: 2}


def test_a_commit_that_is_tried_again_meets_no_other_topic() -> None:
    """The coordinator was loading, and the topic was created again meanwhile."""
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"0", b"1"])
        group = ScriptedGroup(cluster, [A0])
        group.commit_refusals = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 100_000
        settings: dict[str, Any] = {"enable_auto_commit": False, "retry_backoff_ms": 20}
        settings["retry_backoff_max_ms"] = 20
        with GroupConsumer(cluster.bootstrap_servers, "a", "g", **settings) as consumer:
            assert len(consumer.poll(WITHIN_S, 2)) == 2
            stalled(parts_of(consumer).reader)
            done = consumer.commit_async()
            until = Deadline.after_ms(WITHIN_S * 1_000)
            while len(group.commit_refusals) > 99_990:
                assert not until.expired
                time.sleep(0.01)
            cluster.topic_ids["a"] = uuid.uuid4()
            with pytest.raises(CommitFailedError, match="a-0: the topic was deleted and created again"):
                done.result(WITHIN_S)
    assert group.committed == {}


def test_one_broker_that_lags_behind_fails_no_commit() -> None:
    with ScriptedCluster(2) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"0", b"1"])
        group = ScriptedGroup(cluster, [A0])
        with GroupConsumer(cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
            assert len(consumer.poll(WITHIN_S, 2)) == 2
            router, refresh = parts_of(consumer).starts._router, Router.refresh
            time.sleep(2 * FRESH_S)
            former, now = uuid.uuid4(), cluster.topic_ids["a"]

            def refreshed(*args: Any, **settings: Any) -> Any:
                cluster.topic_ids["a"] = former
                try:
                    return refresh(router, *args, **settings)
                finally:
                    cluster.topic_ids["a"] = now

            router.refresh = refreshed  # type: ignore[method-assign]
            consumer.commit()
    assert group.committed == {A0: 2}


@pytest.mark.parametrize("failed", [False, True])
def test_topic_ids_that_took_long_or_failed_are_soon_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    """They counted as those of now for ten times as long, and the topic was created again meanwhile."""
    monkeypatch.setattr(commits, "FRESH_LIMIT_S", FRESH_LIMIT_S)
    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"0", b"1"])
        group = ScriptedGroup(cluster, [A0])
        with GroupConsumer(cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
            records = consumer.poll(WITHIN_S, 2)
            assert len(records) == 2
            stalled(parts_of(consumer).reader)
            router, refresh = parts_of(consumer).starts._router, Router.refresh

            def refreshed(*args: Any, **settings: Any) -> Any:
                time.sleep(0.3)
                if failed:
                    raise DeadlineExceededError("no broker has answered in time")
                return refresh(router, *args, **settings)

            time.sleep(2 * FRESH_S)
            router.refresh = refreshed  # type: ignore[method-assign]
            consumer.commit(records[0])
            del router.refresh  # type: ignore[method-assign]
            cluster.topic_ids["a"] = uuid.uuid4()
            time.sleep(2 * FRESH_S if failed else FRESH_LIMIT_S + FRESH_S)
            with pytest.raises(CommitFailedError, match="a-0: the topic was deleted and created again"):
                consumer.commit(records[1])
    assert group.committed == {A0: 1}


@pytest.mark.parametrize("in_transaction", [False, True])
def test_leaders_that_disagree_about_a_topic_hold_up_no_other(
    monkeypatch: pytest.MonkeyPatch, in_transaction: bool
) -> None:
    """The caller commits again later; the records come twice at worst."""

    def disagree(*_arguments: Any, deadline: Deadline, **_named: Any) -> Any:
        assert deadline.remaining_ms <= PATIENT_MS
        raise DeadlineExceededError("the brokers disagree")

    with ScriptedCluster(1) as cluster:
        for name, tp in (("a", A0), ("b", B0)):
            cluster.create(name)
            cluster.logs[tp].append([b"one"])
        group = ScriptedGroup(cluster, [A0, B0])
        with GroupConsumer(cluster.bootstrap_servers, ["a", "b"], "g", enable_auto_commit=False) as consumer:
            assert len(consumer.poll(WITHIN_S, 1) + consumer.poll(WITHIN_S, 1)) == 2
            stalled(parts_of(consumer).reader)
            cluster.topic_ids["a"] = uuid.uuid4()
            monkeypatch.setattr(commits, "find_recreated", disagree)
            with pytest.raises(CommitFailedError, match=r"a-0: a broker says .* commit them again later"):
                consumer.offsets_to_commit() if in_transaction else consumer.commit()
    assert group.committed == ({} if in_transaction else {B0: 1})


def test_a_long_backoff_does_not_keep_a_commit_from_a_verdict() -> None:
    """Three answers with two such waits never came in time. It is the time of all topics together."""
    names = [chr(ord("a") + number) for number in range(8)]
    with ScriptedCluster(1) as cluster:
        for name in names:
            cluster.create(name)
            cluster.logs[TopicPartition(name, 0)].append([b"one"])
        group = ScriptedGroup(cluster, [TopicPartition(name, 0) for name in names])
        settings: dict[str, Any] = {"enable_auto_commit": False, "retry_backoff_ms": PATIENT_MS}
        with GroupConsumer(cluster.bootstrap_servers, names, "g", **settings) as consumer:
            for _ in names:
                assert consumer.fetch_record(WITHIN_S) is not None
            stalled(parts_of(consumer).reader)
            for name in names:
                cluster.topic_ids[name] = uuid.uuid4()
            time.sleep(2 * FRESH_S)
            with pytest.raises(CommitFailedError, match=r"a-0, .*h-0: the topic was deleted and created"):
                consumer.commit()
    assert group.committed == {}


def test_each_topic_is_asked_for_at_most_ten_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedCluster(1) as cluster:
        for name, tp in (("a", A0), ("b", B0)):
            cluster.create(name)
            cluster.logs[tp].append([b"one"])
        ScriptedGroup(cluster, [A0, B0])
        with GroupConsumer(cluster.bootstrap_servers, ["a", "b"], "g", enable_auto_commit=False) as consumer:
            assert len(consumer.poll(WITHIN_S, 1) + consumer.poll(WITHIN_S, 1)) == 2
            monkeypatch.setattr(commits, "FRESH_S", 60)
            consumer.commit(offsets={A0: 1})
            consumer.commit(offsets={B0: 1})
            broker = cluster.brokers[1]
            before = len(broker.requests(MetadataRequest))
            assert before
            for tp in (A0, B0) * 5:
                consumer.commit(offsets={tp: 1})
            assert len(broker.requests(MetadataRequest)) == before


def test_a_broker_that_lags_behind_says_no_former_id_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the present topic is taken for one that has replaced it, until the caller seeks."""
    asked: list[set[str]] = []

    def lags(_router: Any, expected: dict[str, uuid.UUID], **_named: Any) -> dict[str, uuid.UUID]:
        asked.append({*expected})
        return {"a": uuid.uuid4()}

    with ScriptedCluster(1) as cluster:
        cluster.create("a")
        cluster.logs[A0].append([b"0", b"1"])
        group = ScriptedGroup(cluster, [A0])
        group.committed[A0] = 1
        former, present = uuid.uuid4(), cluster.topic_ids["a"]
        cluster.topic_ids["a"] = former

        def look(*arguments: Any, **named: Any) -> Any:
            cluster.topic_ids["a"] = present
            return lags(*arguments, **named)

        monkeypatch.setattr(start_offsets, "find_recreated", look)
        with GroupConsumer(cluster.bootstrap_servers, "a", "g", enable_auto_commit=False) as consumer:
            record = consumer.fetch_record(WITHIN_S)
        assert record is not None
        assert (record.offset, asked[0]) == (1, {"a"})
