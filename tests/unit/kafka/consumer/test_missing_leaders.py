"""A partition without a leader, or with one that can't be reached, holds up no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from support.brokers.scripted_broker import HangUp, Log, ScriptedCluster, Silence
from support.consumer.reading import wait_until

from spark_kafka_native.kafka import ClientConfig, IsolationLevel, OffsetAt, Router
from spark_kafka_native.kafka.cluster import offsets
from spark_kafka_native.kafka.consumer import consumer as consumer_module
from spark_kafka_native.kafka.consumer import prefetch_thread
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.consumer.partition_reader import PartitionReader
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import AuthenticationError, BrokerError, DeadlineExceededError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
WITHIN_S = 120
NOBODY = -1
QUICK = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "fetch_max_wait_ms": 50}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedCluster]:
    monkeypatch.setattr(offsets, "MISSING_MS", 100)
    monkeypatch.setattr(prefetch_thread, "SOON_S", 0.05)
    monkeypatch.setattr(prefetch_thread, "IDLE_MS", 20)  # it looks between two waits
    with ScriptedCluster(2) as cluster:
        cluster.create("a", partitions=2)
        cluster.logs[A0].append([b"0", b"1"])
        cluster.logs[A1].append([b"2", b"3"])
        yield cluster


def values(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        records = consumer.poll(WITHIN_S, max_records=count - len(found))
        assert records
        found += [record.value for record in records]
    return found


def refused(request: ListOffsetsRequest, _: int) -> ListOffsetsResponse:
    """No permission for any of the partitions."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=one.partition_index,
                        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@pytest.fixture
def alone(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumer]:
    """It has read a-0, and asks about a-1, which has no leader, only when a call does."""
    monkeypatch.setattr(prefetch_thread, "SOON_S", 3_600.0)
    cluster.logs[A1].leader = NOBODY
    with Consumer(
        cluster.bootstrap_servers, "a", start="earliest", default_api_timeout_ms=1_500, **QUICK
    ) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
        yield consumer


def test_the_lag_is_that_of_all_partitions(cluster: ScriptedCluster, alone: Consumer) -> None:
    """A caller that reads until there is none would miss the rest."""
    with pytest.raises(DeadlineExceededError, match="a-1: LEADER_NOT_AVAILABLE"):
        alone.lag()
    cluster.logs[A1].leader = 1
    assert alone.lag() == {A0: 0, A1: 2}
    assert alone.lag(0) == {A0: 0}


@pytest.mark.parametrize("partitions", [None, [0, 1]])
def test_a_consumer_begins_with_those_that_have_a_leader(
    cluster: ScriptedCluster, partitions: list[int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.logs[A1].leader = NOBODY
    with Consumer(
        cluster.bootstrap_servers, "a", start="earliest", partitions=partitions, **QUICK
    ) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
        assert consumer.partitions == (A0,)
        assert "a-1 is not read yet" in caplog.text
        cluster.logs[A1].leader = 1
        assert values(consumer, 2) == [b"2", b"3"]
        assert consumer.partitions == (A0, A1)


def test_a_start_by_time_begins_with_those_that_have_a_leader(cluster: ScriptedCluster) -> None:
    cluster.logs[A1].leader = NOBODY
    long_ago = datetime(1970, 1, 1, tzinfo=UTC)
    with Consumer(cluster.bootstrap_servers, "a", start=long_ago, **QUICK) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
        cluster.logs[A1].leader = 1
        assert values(consumer, 2) == [b"2", b"3"]


def test_where_the_end_is_refused_the_time_is_not_asked_for(cluster: ScriptedCluster) -> None:
    """It would have no offset where no record is that late."""
    config = ClientConfig(bootstrap_servers=(cluster.bootstrap_servers,), retry_backoff_ms=5)
    router, level = Router(config), IsolationLevel.READ_UNCOMMITTED
    try:
        places = dict.fromkeys((A0, A1), OffsetAt.timestamp(10**15))
        cluster[cluster.logs[A1].leader].push(ListOffsetsRequest, refused)
        found, failed = offsets.try_resolve_offsets(router, places, level, router.deadline())
        assert found == {A0: 2}
        assert "TOPIC_AUTHORIZATION_FAILED" in str(failed[A1])
        assert offsets.resolve_offsets(router, places, level) == {A0: 2, A1: 2}
    finally:
        router.close()


def test_no_others_are_read_than_those_that_are_named(cluster: ScriptedCluster) -> None:
    """Also while the topic is looked at for those that are missing."""
    cluster.logs[TopicPartition("a", 2)] = Log(1)
    cluster.logs[TopicPartition("a", 2)].append([b"another"])
    cluster.logs[A1].leader = NOBODY
    with Consumer(
        cluster.bootstrap_servers, "a", start="earliest", partitions=[0, 1], metadata_max_age_ms=50, **QUICK
    ) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
        assert consumer.poll(0.3) == []
        cluster.logs[A1].leader = 1
        assert values(consumer, 2) == [b"2", b"3"]
        assert consumer.partitions == (A0, A1)


def test_a_read_to_the_end_needs_the_end_of_each_partition(cluster: ScriptedCluster) -> None:
    """Without one it would end early, and nothing would say so."""
    cluster.logs[A1].leader = NOBODY
    with pytest.raises(DeadlineExceededError, match="a-1: LEADER_NOT_AVAILABLE"):
        Consumer(cluster.bootstrap_servers, "a", stop_at_end=True, default_api_timeout_ms=300, **QUICK)


def test_a_consumer_begins_while_a_leader_is_down(cluster: ScriptedCluster) -> None:
    cluster[2].stop()
    with Consumer(cluster[1].address, "a", start={0: "earliest", 1: 1}, **QUICK) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
    with Consumer(cluster[1].address, "a", start="earliest", **QUICK) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
        cluster[2].start()
        assert values(consumer, 2) == [b"2", b"3"]


def test_what_is_sought_is_begun_there(cluster: ScriptedCluster) -> None:
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        consumer.seek(1, partition=1)
        cluster.logs[A1].leader = 2
        assert sorted(filter(None, values(consumer, 3))) == [b"0", b"1", b"3"]
        wait_until("no other comes", lambda: consumer.poll(0.1) == [])


@pytest.mark.parametrize(("place", "first"), [("latest", b"4"), (1, b"3")])
def test_all_that_is_sought_includes_what_has_no_leader(
    cluster: ScriptedCluster, place: str | int, first: bytes
) -> None:
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
        consumer.seek(place)
        assert consumer.partitions == (A0,)
        cluster.logs[A1].leader = 1
        wait_until("it is read", lambda: consumer.partitions == (A0, A1))
        cluster.logs[A1].append([b"4"])
        found = [value for value in values(consumer, 1 if place == "latest" else 3) if value != b"1"]
        assert found[0] == first


def test_a_seek_of_another_partition_leaves_what_has_no_leader_where_it_is(cluster: ScriptedCluster) -> None:
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
        consumer.seek("latest", partition=0)
        cluster.logs[A1].leader = 1
        assert values(consumer, 2) == [b"2", b"3"]


def test_a_relative_seek_of_all_needs_all(cluster: ScriptedCluster, alone: Consumer) -> None:
    with pytest.raises(DeadlineExceededError, match="a-1: LEADER_NOT_AVAILABLE"):
        alone.seek(-1, whence="end")
    cluster.logs[A1].leader = 1
    alone.seek(-1, whence="end")
    assert alone.partitions == (A0, A1)
    assert sorted(filter(None, values(alone, 2))) == [b"1", b"3"]


def test_a_pause_of_all_includes_what_has_no_leader(cluster: ScriptedCluster) -> None:
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
        consumer.pause()
        assert consumer.paused == (A0, A1)
        cluster.logs[A1].leader = 1
        wait_until("it is read", lambda: consumer.partitions == (A0, A1))
        assert consumer.paused == (A0, A1)
        assert consumer.poll(0.2) == []
        consumer.resume()
        assert values(consumer, 2) == [b"2", b"3"]


def test_a_seek_of_all_leaves_what_has_no_leader_paused(cluster: ScriptedCluster) -> None:
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        consumer.pause()
        consumer.seek(1)
        cluster.logs[A1].leader = 1
        wait_until("it is read", lambda: consumer.partitions == (A0, A1))
        assert consumer.paused == (A0, A1)
        consumer.resume()
        assert sorted(filter(None, values(consumer, 2))) == [b"1", b"3"]


def test_what_has_no_leader_is_resumed_before_it_has_one(cluster: ScriptedCluster) -> None:
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        consumer.pause(1)
        assert consumer.paused == (A1,)
        consumer.resume()
        assert consumer.paused == ()
        cluster.logs[A1].leader = 1
        assert sorted(filter(None, values(consumer, 4))) == [b"0", b"1", b"2", b"3"]


@pytest.fixture
def interrupted(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumer]:
    """A consumer: a seek of a paused partition was interrupted after the partition was added."""
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        consumer.pause(1)
        add = consumer.reader.add

        def interrupt(*added: Any, **settings: Any) -> None:
            add(*added, **settings)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(consumer.reader, "add", interrupt)
            with pytest.raises(KeyboardInterrupt):
                consumer.seek(0, partition=1)
        yield consumer


def test_a_partition_whose_beginning_was_interrupted_is_paused(
    cluster: ScriptedCluster, interrupted: Consumer
) -> None:
    cluster.logs[A1].leader = 1
    assert values(interrupted, 2) == [b"0", b"1"]
    assert interrupted.poll(0.2) == []
    interrupted.resume()
    assert values(interrupted, 2) == [b"2", b"3"]


def test_a_partition_whose_beginning_was_interrupted_is_paused_once(interrupted: Consumer) -> None:
    """It is among those that are read, and among those that are not yet."""
    assert interrupted.paused == (A1,)


def test_a_partition_whose_beginning_was_interrupted_can_be_resumed(
    cluster: ScriptedCluster, interrupted: Consumer
) -> None:
    interrupted.resume()
    cluster.logs[A1].leader = 1
    assert sorted(filter(None, values(interrupted, 4))) == [b"0", b"1", b"2", b"3"]


def test_a_partition_whose_beginning_was_interrupted_can_be_moved(
    cluster: ScriptedCluster, interrupted: Consumer
) -> None:
    interrupted.seek(1, partition=1)
    interrupted.resume()
    cluster.logs[A1].leader = 1
    assert sorted(filter(None, values(interrupted, 3))) == [b"0", b"1", b"3"]


def test_a_paused_partition_is_paused_from_the_start(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused after it was added, it would hand out records before."""
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        consumer.pause(1)
        add, paused = consumer.reader.add, []

        def look(*added: Any, **settings: Any) -> None:
            add(*added, **settings)
            paused.append(consumer.reader.partitions[A1])

        monkeypatch.setattr(consumer.reader, "add", look)
        cluster.logs[A1].leader = 1
        wait_until("it is read", lambda: paused)
        assert paused == [True]


def test_where_none_has_a_leader_nothing_is_begun(cluster: ScriptedCluster) -> None:
    for log in cluster.logs.values():
        log.leader = NOBODY
    with pytest.raises(DeadlineExceededError, match="LEADER_NOT_AVAILABLE"):
        Consumer(cluster.bootstrap_servers, "a", default_api_timeout_ms=300, **QUICK)


def test_each_partition_has_an_answer(cluster: ScriptedCluster) -> None:
    cluster.logs[A1].leader = NOBODY
    router = Router(ClientConfig(bootstrap_servers=(cluster.bootstrap_servers,), retry_backoff_ms=5))
    try:
        places = dict.fromkeys((A1, A0), OffsetAt.LATEST)
        found, failed = offsets.list_offsets_of_each(router, places)
        assert ({tp: one.offset for tp, one in found.items()}, list(failed)) == ({A0: 2}, [A1])
        assert "LEADER_NOT_AVAILABLE" in str(failed[A1])
        cluster.logs[A1].leader = 2
        found, failed = offsets.list_offsets_of_each(router, places)
        assert ({tp: one.offset for tp, one in found.items()}, failed) == ({A0: 2, A1: 2}, {})
    finally:
        router.close()


def test_a_start_at_offsets_and_at_words_begins_with_those_that_have_a_leader(
    cluster: ScriptedCluster,
) -> None:
    """An offset asks no leader: it is one of those that were found."""
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start={0: 0, 1: "earliest"}, **QUICK) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
        cluster.logs[A1].leader = 1
        assert values(consumer, 2) == [b"2", b"3"]


def test_a_failed_look_is_repeated_soon(cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        for broker in cluster.brokers.values():
            broker.on(MetadataRequest, HangUp)
        before = len(cluster.mock.asked("Metadata"))
        wait_until("it looks again", lambda: len(cluster.mock.asked("Metadata")) > before + 10)
        cluster.logs[A1].leader = 1
        for broker in cluster.brokers.values():
            broker.on(MetadataRequest, cluster.metadata)
        assert sorted(filter(None, values(consumer, 4))) == [b"0", b"1", b"2", b"3"]
    assert caplog.text.count("looking for new partitions failed") == 1


def test_a_new_partition_without_a_leader_holds_up_no_other(cluster: ScriptedCluster) -> None:
    with Consumer(
        cluster.bootstrap_servers, "a", start="latest", metadata_max_age_ms=100, **QUICK
    ) as consumer:
        for index, leader in ((2, NOBODY), (3, 1)):
            cluster.logs[TopicPartition("a", index)] = Log(leader)
            cluster.logs[TopicPartition("a", index)].append([b"new %d" % index])
        assert values(consumer, 1) == [b"new 3"]
        assert consumer.partitions == (A0, A1, TopicPartition("a", 3))
        cluster.logs[TopicPartition("a", 2)].leader = 2
        assert values(consumer, 1) == [b"new 2"]


def test_a_leader_that_does_not_answer_leaves_the_others_time(cluster: ScriptedCluster) -> None:
    """A start by time asks twice: its end of the log would take all of the time."""
    cluster.logs[A1].leader = NOBODY
    cluster[2].on(ListOffsetsRequest, Silence)
    with Consumer(
        cluster.bootstrap_servers,
        "a",
        start=datetime(1970, 1, 1, tzinfo=UTC),
        metadata_max_age_ms=300,
        request_timeout_ms=1_000,
        **QUICK,
    ) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
        cluster.logs[A1].leader = 2
        wait_until("it is asked", lambda: cluster[2].requests(ListOffsetsRequest))
        cluster.logs[TopicPartition("a", 2)] = Log(1)
        cluster.logs[TopicPartition("a", 2)].append([b"new"])
        wait_until("it is read", lambda: TopicPartition("a", 2) in consumer.partitions, 20)
        assert values(consumer, 1) == [b"new"]


def test_a_seek_that_fails_moves_nothing(cluster: ScriptedCluster) -> None:
    cluster.logs[A1].leader = NOBODY
    with Consumer(
        cluster.bootstrap_servers, "a", start="earliest", default_api_timeout_ms=1_500, **QUICK
    ) as consumer:
        cluster.logs[A0].leader = NOBODY
        with pytest.raises(DeadlineExceededError, match="a-0: "):
            consumer.seek("latest")
        cluster.logs[A0].leader = cluster.logs[A1].leader = 1
        assert sorted(filter(None, values(consumer, 4))) == [b"0", b"1", b"2", b"3"]


def test_a_partition_that_begins_during_a_seek_is_moved_too(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:

        def resolve(*asked: Any) -> dict[TopicPartition, int]:
            cluster.logs[A1].leader = 1
            wait_until("it is read", lambda: A1 in consumer.partitions)
            return offsets.resolve_offsets(*asked)

        monkeypatch.setattr(consumer_module, "resolve_offsets", resolve)
        consumer.seek("latest")
        cluster.logs[A1].append([b"4"])
        assert values(consumer, 1) == [b"4"]


def test_a_seek_outdates_a_look_under_way(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has found the end of before."""
    cluster.logs[A1].leader = NOBODY
    sought = threading.Event()
    with Consumer(cluster.bootstrap_servers, "a", start="latest", **QUICK) as consumer:
        looked = threading.Event()

        def look(*asked: Any) -> Any:
            found = offsets.try_resolve_offsets(*asked)
            if A1 in found[0] and not looked.is_set():
                looked.set()
                assert sought.wait(WITHIN_S)
            return found

        monkeypatch.setattr(consumer_module, "try_resolve_offsets", look)
        cluster.logs[A1].leader = 1
        assert looked.wait(WITHIN_S)
        cluster.logs[A1].append([b"4"])
        consumer.seek("latest")
        sought.set()
        wait_until("it is read", lambda: A1 in consumer.partitions)
        cluster.logs[A1].append([b"5"])
        assert values(consumer, 1) == [b"5"]


def test_the_lag_of_one_and_a_relative_seek_take_where_it_is_to_begin(
    cluster: ScriptedCluster, alone: Consumer
) -> None:
    with pytest.raises(DeadlineExceededError, match="a-1: LEADER_NOT_AVAILABLE"):
        alone.lag(1)
    cluster.logs[A1].leader = 1
    assert alone.lag(1) == {A1: 2}
    alone.seek(1, whence="current")
    assert values(alone, 1) == [b"3"]


def test_the_lag_of_a_partition_that_is_read_meanwhile_is_that_of_its_position(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]

        def resolve(*asked: Any) -> dict[TopicPartition, int]:
            if cluster.logs[A1].leader == NOBODY:
                cluster.logs[A1].leader = 1
                assert values(consumer, 2) == [b"2", b"3"]
            return offsets.resolve_offsets(*asked)

        monkeypatch.setattr(consumer_module, "resolve_offsets", resolve)
        assert consumer.lag() == {A0: 0, A1: 0}


def test_a_read_to_the_end_waits_for_a_partition_that_lost_its_leader(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*asked: Any) -> Any:
        cluster.logs[A1].leader = NOBODY
        return offsets.resolve_offsets_of_each(*asked)

    monkeypatch.setattr(consumer_module, "resolve_offsets_of_each", begin)
    found = []
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", stop_at_end=True, **QUICK) as consumer:
        for record in consumer:
            found.append(record.value)
            if len(found) == 2:
                assert not consumer.at_end
                cluster.logs[A1].leader = 1
    assert found == [b"0", b"1", b"2", b"3"]


def test_a_read_to_the_end_raises_why_the_rest_is_refused(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would wait for ever; once the permission is there, it is read on."""

    def begin(*asked: Any) -> Any:
        cluster.logs[A1].leader = NOBODY
        return offsets.resolve_offsets_of_each(*asked)

    monkeypatch.setattr(consumer_module, "resolve_offsets_of_each", begin)
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", stop_at_end=True, **QUICK) as consumer:
        cluster[2].on(ListOffsetsRequest, refused)
        cluster.logs[A1].leader = 2
        wait_until("the refusal", lambda: "a-1: TOPIC_AUTHORIZATION_FAILED" in caplog.text)
        assert not consumer.at_end
        assert [next(consumer).value, next(consumer).value] == [b"0", b"1"]
        with pytest.raises(BrokerError, match="a-1: TOPIC_AUTHORIZATION_FAILED"):
            next(consumer)
        cluster[2].on(ListOffsetsRequest, cluster.list_offsets)
        wait_until("the beginning", lambda: A1 in consumer.partitions)
        assert [record.value for record in consumer] == [b"2", b"3"]


def refuse_logins(monkeypatch: pytest.MonkeyPatch) -> list[set[TopicPartition]]:
    """By each leader that is asked where to begin. Returns the partitions of each look, as they come."""
    asked: list[set[TopicPartition]] = []

    def look(_: Router, places: Any, *__: object) -> Any:
        asked.append(set(places))
        return {}, {tp: AuthenticationError("the password is refused") for tp in places}

    monkeypatch.setattr(consumer_module, "try_resolve_offsets", look)
    return asked


@pytest.mark.parametrize("sought", [True, False])
def test_a_refused_login_is_raised_and_not_repeated_soon(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, sought: bool
) -> None:
    """Others are looked up on; the account would be locked."""
    cluster.logs[A1].leader = NOBODY
    asked = refuse_logins(monkeypatch)
    age_ms = 3_600_000 if sought else 400
    with Consumer(
        cluster.bootstrap_servers, "a", start="earliest", metadata_max_age_ms=age_ms, **QUICK
    ) as consumer:
        wait_until("it looks on", lambda: set() in asked)
        with pytest.raises(AuthenticationError, match="the password is refused"):
            consumer.poll(WITHIN_S)
        if sought:
            assert (values(consumer, 2), asked.count({A1})) == ([b"0", b"1"], 1)
        cluster.logs[A1].leader = 1
        monkeypatch.setattr(consumer_module, "try_resolve_offsets", offsets.try_resolve_offsets)
        if sought:
            consumer.seek("earliest")
        assert sorted(filter(None, values(consumer, 4))) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("partition", [A1, None])
def test_a_refused_login_is_not_raised_after_a_seek(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, partition: TopicPartition | None
) -> None:
    """The partition is read by then, or looked up again."""
    cluster.logs[A1].leader = NOBODY
    asked = refuse_logins(monkeypatch)
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        consumer.pause()
        wait_until("it looks on", lambda: set() in asked)
        monkeypatch.setattr(consumer_module, "try_resolve_offsets", offsets.try_resolve_offsets)
        cluster.logs[A1].leader = 1
        consumer.seek("earliest", partition)
        assert consumer.poll(0) == []
        consumer.resume()
        assert sorted(filter(None, values(consumer, 4))) == [b"0", b"1", b"2", b"3"]


def test_a_login_that_is_refused_as_metadata_are_asked_for_is_not_repeated_soon(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        refused: list[object] = []
        refresh = consumer._router.refresh

        def refuse(*given: object) -> None:
            refused.append(given)
            raise AuthenticationError("the password is refused")

        monkeypatch.setattr(consumer._router, "refresh", refuse)
        wait_until("it is refused", lambda: bool(refused))
        with pytest.raises(AuthenticationError, match="the password is refused"):
            values(consumer, 3)  # there are two
        until = time.monotonic() + 0.3
        while (left := until - time.monotonic()) > 0:  # records that are left end a poll at once
            consumer.poll(left)
        assert len(refused) == 1
        monkeypatch.setattr(consumer._router, "refresh", refresh)
        cluster.logs[A1].leader = 1
        consumer.seek("earliest")
        assert sorted(filter(None, values(consumer, 4))) == [b"0", b"1", b"2", b"3"]


def test_a_partition_is_not_lost_where_the_cluster_stops_to_answer_meanwhile(
    cluster: ScriptedCluster,
) -> None:
    """The attempt that ends the look-up says nothing of the partition; the one before has."""
    cluster.logs[A1].leader = NOBODY

    def metadata(request: MetadataRequest, version: int) -> Any:
        return HangUp if cluster.mock.asked("ListOffsets") else cluster.metadata(request, version)

    for broker in cluster.brokers.values():
        broker.on(MetadataRequest, metadata)
    with Consumer(
        cluster.bootstrap_servers,
        "a",
        start="earliest",
        partitions=[0, 1],
        default_api_timeout_ms=1_000,
        metadata_max_age_ms=50,
        **QUICK,
    ) as consumer:
        for broker in cluster.brokers.values():
            broker.on(MetadataRequest, cluster.metadata)
        cluster.logs[A1].leader = 1
        assert sorted(filter(None, values(consumer, 4))) == [b"0", b"1", b"2", b"3"]


def test_a_refusal_that_no_retry_resolves_is_raised(cluster: ScriptedCluster) -> None:
    cluster.logs[A1].leader = 2
    cluster[2].on(ListOffsetsRequest, refused)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK)


def test_each_reason_why_a_partition_is_not_read_is_logged_once(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.logs[A1].leader = NOBODY
    cluster[2].on(ListOffsetsRequest, refused)
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        cluster.logs[A1].leader = 2
        wait_until("it is refused", lambda: len(cluster[2].requests(ListOffsetsRequest)) > 3)
        assert values(consumer, 2) == [b"0", b"1"]
    logged = [record.getMessage() for record in caplog.records if "a-1 is not read yet" in record.message]
    assert ["LEADER_NOT_AVAILABLE" in logged[0], "TOPIC_AUTHORIZATION_FAILED" in logged[1]] == [True, True]
    assert len(logged) == 2


def test_a_partition_that_does_not_exist_and_a_wrong_base_are_refused_at_once(
    cluster: ScriptedCluster,
) -> None:
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        before = len(cluster.mock.asked("ListOffsets"))
        for wrong in (
            lambda: consumer.seek("latest", 7),
            lambda: consumer.seek(-1, 7, whence="end"),
            lambda: consumer.lag(7),
            lambda: consumer.pause(7),
        ):
            with pytest.raises(ValueError, match="a-7 is not being read"):
                wrong()
        with pytest.raises(ValueError, match="whence is offset, start, end or current, not 'begin'"):
            consumer.seek(1, whence="begin")  # type: ignore[arg-type]
        for distance in (True, "1", 1.0, OffsetAt.LATEST):
            with pytest.raises(TypeError, match="with whence='end' a number of offsets is wanted, not"):
                consumer.seek(distance, whence="end")  # type: ignore[arg-type]
        assert len(cluster.mock.asked("ListOffsets")) == before


def test_chosen_partitions_are_not_joined_by_others_as_they_are_looked_up(cluster: ScriptedCluster) -> None:
    cluster.logs[TopicPartition("a", 2)] = Log(1)
    cluster.logs[A1].leader = NOBODY
    with Consumer(
        cluster.bootstrap_servers, "a", start="earliest", partitions=[0, 1], metadata_max_age_ms=50, **QUICK
    ) as consumer:
        cluster.logs[A1].leader = 1
        assert sorted(filter(None, values(consumer, 4))) == [b"0", b"1", b"2", b"3"]
        before = len(cluster.mock.asked("Metadata"))
        wait_until("it looks again", lambda: len(cluster.mock.asked("Metadata")) > before + 3)
        assert consumer.partitions == (A0, A1)


@pytest.mark.parametrize("index", [1, 2])
def test_a_partition_that_is_read_is_not_looked_up_again(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture, index: int
) -> None:
    """One that was missing, and one that is new."""
    begun = TopicPartition("a", index)
    cluster.logs[A1].leader = NOBODY if index == 1 else 2
    with Consumer(
        cluster.bootstrap_servers, "a", start="earliest", metadata_max_age_ms=50, **QUICK
    ) as consumer:
        if index == 1:
            cluster.logs[A1].leader = 2
        else:
            cluster.logs[begun] = Log(1)
        wait_until("it is read", lambda: begun in consumer.partitions)
        caplog.clear()
        cluster.logs[begun].leader = NOBODY
        before = len(cluster.mock.asked("Metadata"))
        wait_until("it looks again", lambda: len(cluster.mock.asked("Metadata")) > before + 10)
    assert "is not read yet" not in caplog.text


def test_a_second_outage_is_logged_again(cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK):
        for count in (1, 2):
            for broker in cluster.brokers.values():
                broker.on(MetadataRequest, HangUp)
            wait_until(
                "it is logged", lambda count=count: caplog.text.count("looking for new partitions") == count
            )
            for broker in cluster.brokers.values():
                broker.on(MetadataRequest, cluster.metadata)
            before = len(cluster.mock.asked("Metadata"))
            wait_until("it looks", lambda before=before: len(cluster.mock.asked("Metadata")) > before + 3)


def test_a_start_at_the_end_is_that_of_the_committed_records(cluster: ScriptedCluster) -> None:
    """Also where the leader is found later: the records of an open transaction may be committed."""
    for log in (cluster.logs[A0], cluster.logs[A1]):
        log.last_stable_offset = 1
    cluster.logs[A1].leader = NOBODY
    with Consumer(
        cluster.bootstrap_servers, "a", start="latest", isolation_level="read_committed", **QUICK
    ) as consumer:
        cluster.logs[A1].leader = 2
        wait_until("it is read", lambda: A1 in consumer.partitions)
        assert [consumer.position(0), consumer.position(1)] == [1, 1]


def test_a_record_that_is_written_between_the_two_questions_about_a_time_is_not_skipped(
    cluster: ScriptedCluster,
) -> None:
    def answer(request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        found = cluster.own(request, version, 1)
        cluster.logs[A0].append([b"between"])
        return found

    cluster[1].on(ListOffsetsRequest, answer)
    with Consumer(
        cluster.bootstrap_servers, "a", start=datetime(2900, 1, 1, tzinfo=UTC), partitions=[0], **QUICK
    ) as consumer:
        assert consumer.position() == 2


def test_an_empty_partition_begins_at_its_end_where_no_record_has_the_highest_time(
    cluster: ScriptedCluster,
) -> None:
    cluster.create("empty")
    with Consumer(cluster.bootstrap_servers, "empty", start="max_timestamp", **QUICK) as consumer:
        assert consumer.position() == 0


def test_a_relative_seek_stays_within_the_log(cluster: ScriptedCluster) -> None:
    cluster.logs[A0].log_start_offset = 1
    with Consumer(cluster.bootstrap_servers, "a", partitions=[0], **QUICK) as consumer:
        consumer.seek(-10, whence="end")
        assert consumer.position() == 1
        consumer.seek(10, whence="start")
        assert consumer.position() == 2


def test_a_look_waits_for_a_consumer_that_is_being_made(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*args: Any, **settings: Any) -> PartitionReader:
        reader = PartitionReader(*args, **settings)
        time.sleep(0.2)  # a look is due after 0.05 s
        reader.buffer.wakeup.set()
        time.sleep(0.3)
        return reader

    monkeypatch.setattr(consumer_module, "PartitionReader", slow)
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        cluster.logs[A1].leader = 1
        assert sorted(filter(None, values(consumer, 4))) == [b"0", b"1", b"2", b"3"]
