"""A partition without a leader, or with one that can't be reached, holds up no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.consumer.reading import wait_until

from spark_kafka_native.kafka.cluster import offsets
from spark_kafka_native.kafka.consumer import prefetch_thread
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.errors import DeadlineExceededError
from spark_kafka_native.kafka.model import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
WITHIN_S = 120
NOBODY = -1
QUICK = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedCluster]:
    monkeypatch.setattr(offsets, "MISSING_MS", 100)
    monkeypatch.setattr(prefetch_thread, "SOON_S", 0.05)
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


def test_the_lag_is_that_of_all_partitions(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that reads until there is none would miss the rest."""
    monkeypatch.setattr(prefetch_thread, "SOON_S", 3_600.0)
    cluster.logs[A1].leader = NOBODY
    with Consumer(
        cluster.bootstrap_servers, "a", start="earliest", default_api_timeout_ms=300, **QUICK
    ) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
        with pytest.raises(DeadlineExceededError, match="a-1: LEADER_NOT_AVAILABLE"):
            consumer.lag()
        cluster.logs[A1].leader = 1
        assert consumer.lag() == {A0: 0, A1: 2}
        assert consumer.lag(0) == {A0: 0}


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


def test_a_relative_seek_of_all_needs_all(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_thread, "SOON_S", 3_600.0)
    cluster.logs[A1].leader = NOBODY
    with Consumer(
        cluster.bootstrap_servers, "a", start="earliest", default_api_timeout_ms=300, **QUICK
    ) as consumer:
        assert values(consumer, 2) == [b"0", b"1"]
        with pytest.raises(DeadlineExceededError, match="a-1: LEADER_NOT_AVAILABLE"):
            consumer.seek(-1, whence="end")
        cluster.logs[A1].leader = 1
        consumer.seek(-1, whence="end")
        assert consumer.partitions == (A0, A1)
        assert sorted(filter(None, values(consumer, 2))) == [b"1", b"3"]


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


def test_what_has_no_leader_is_resumed_before_it_has_one(cluster: ScriptedCluster) -> None:
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        consumer.pause(1)
        assert consumer.paused == (A1,)
        consumer.resume()
        assert consumer.paused == ()
        cluster.logs[A1].leader = 1
        assert sorted(filter(None, values(consumer, 4))) == [b"0", b"1", b"2", b"3"]


def test_an_interrupt_leaves_a_partition_to_be_begun(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came after the partition was added."""
    cluster.logs[A1].leader = NOBODY
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", **QUICK) as consumer:
        consumer.pause(1)

        def interrupted(_: TopicPartition) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(consumer.reader, "pause", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.seek(0, partition=1)
        cluster.logs[A1].leader = 1
        wait_until("it is paused", lambda: consumer.reader.partitions.get(A1))
        consumer.resume()
        assert sorted(filter(None, values(consumer, 4))) == [b"0", b"1", b"2", b"3"]


def test_where_none_has_a_leader_nothing_is_begun(cluster: ScriptedCluster) -> None:
    for log in cluster.logs.values():
        log.leader = NOBODY
    with pytest.raises(DeadlineExceededError, match="LEADER_NOT_AVAILABLE"):
        Consumer(cluster.bootstrap_servers, "a", default_api_timeout_ms=300, **QUICK)


def test_each_partition_has_an_answer(cluster: ScriptedCluster) -> None:
    from spark_kafka_native.kafka import ClientConfig, OffsetAt, Router

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
