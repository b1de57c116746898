"""`Consumer(stop_at_end=True)`: iteration that ends."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.record_batches import control

from spark_kafka_native.kafka.consumer.async_consumer import AsyncConsumer
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.errors import ConsumerClosedError, OffsetOutOfRangeError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.list_offsets import ListOffsetsRequest
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.testing import MockBroker

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    """The first partition ends with a marker, the second is empty."""
    with ScriptedCluster(1) as cluster:
        cluster.create("a", partitions=2)
        log = cluster.logs[A0]
        log.append([b"0", b"1", b"2"])
        log.batches.append(control(3, 7, 1))
        log.end_offset = 4
        yield cluster


def test_it_ends_behind_what_was_there_and_asks_no_more_for_it(cluster: ScriptedCluster) -> None:
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", stop_at_end=True) as consumer:
        asked = len(cluster[1].requests(ListOffsetsRequest))
        assert not consumer.at_end
        assert [record.value for record in consumer] == [b"0", b"1", b"2"]
        assert consumer.at_end
        assert list(consumer) == []
        cluster.logs[A1].append([b"new"])
        assert [record.value for record in consumer.poll(60)] == [b"new"]
        consumer.seek(1, partition=0)
        assert [record.value for record in consumer] == [b"1", b"2"]
        assert len(cluster[1].requests(ListOffsetsRequest)) == asked


def test_nothing_is_at_the_end_at_once(cluster: ScriptedCluster) -> None:
    for start in ("latest", {0: 4, 1: 0}):
        with Consumer(cluster.bootstrap_servers, "a", start=start, stop_at_end=True) as consumer:
            assert list(consumer) == []
    with Consumer(cluster.bootstrap_servers, "a", start="latest") as consumer:
        assert not consumer.at_end


@pytest.mark.timeout(60)
def test_with_read_committed_the_end_is_before_an_open_transaction(cluster: ScriptedCluster) -> None:
    log = cluster.logs[A1]
    for value in (b"3", b"open"):
        log.append([value])
    log.last_stable_offset = 1
    for level, expected in (("read_committed", [b"3"]), ("read_uncommitted", [b"3", b"open"])):
        with Consumer(
            cluster.bootstrap_servers, "a", partitions=[1], stop_at_end=True, isolation_level=level
        ) as consumer:
            assert [record.value for record in consumer] == expected
            assert consumer.at_end
            assert consumer.lag() == {A1: 0}


def test_in_asyncio_too(cluster: ScriptedCluster) -> None:
    async def read() -> list[bytes | None]:
        async with AsyncConsumer(
            cluster.bootstrap_servers, "a", start="earliest", stop_at_end=True
        ) as consumer:
            return [record.value async for record in consumer]

    assert asyncio.run(read()) == [b"0", b"1", b"2"]


def test_a_failure_is_no_end(cluster: ScriptedCluster) -> None:
    with Consumer(cluster.bootstrap_servers, "a", start="earliest") as consumer:
        consumer.reader.buffer.fail(AssertionError("a bug"))
        with pytest.raises(ConsumerClosedError, match="the thread that fetches failed: AssertionError"):
            list(consumer)


def test_in_asyncio_a_failure_is_no_end(cluster: ScriptedCluster) -> None:
    async def read() -> list[bytes | None]:
        async with AsyncConsumer(cluster.bootstrap_servers, "a", start="earliest") as consumer:
            consumer._consumer.reader.buffer.fail(AssertionError("a bug"))
            return [record.value async for record in consumer]

    with pytest.raises(ConsumerClosedError, match="the thread that fetches failed: AssertionError"):
        asyncio.run(read())


@pytest.mark.parametrize("start", [50, {1: 50}, "seek"])
def test_a_start_beyond_the_end_is_refused_or_reset(cluster: ScriptedCluster, start: Any) -> None:
    """As without ``stop_at_end``: such an offset is of a log that was lost, not of one that was read."""
    servers, place = cluster.bootstrap_servers, "earliest" if start == "seek" else start
    with Consumer(servers, "a", start=place, stop_at_end=True) as consumer:
        if start == "seek":
            consumer.seek(50)
        assert not consumer.at_end
        with pytest.raises(OffsetOutOfRangeError, match="at offset 50"):
            list(consumer)
        assert not consumer.at_end
    with Consumer(servers, "a", start=place, stop_at_end=True, auto_offset_reset="earliest") as consumer:
        if start == "seek":
            consumer.seek(50)
        assert [record.value for record in consumer] == [b"0", b"1", b"2"]
        assert consumer.at_end


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fetched", [1_000, 1_000_000])
@pytest.mark.parametrize("policy", ["earliest", "latest"])
@pytest.mark.parametrize("is_sought", [False, True])
def test_where_the_log_was_lost_it_ends_at_the_end_of_the_new_one(
    cluster: ScriptedCluster, fetched: int, policy: str, is_sought: bool
) -> None:
    """It waited for the end of the log that was lost. Records of that which were fetched come first."""
    servers, log = cluster.bootstrap_servers, cluster.logs[A1]
    for offset in range(8):
        log.append([b"%d" % offset + b"x" * 1_000])
    limits = {"prefetch_max_bytes": fetched, "max_partition_fetch_bytes": 1_000}
    with Consumer(
        servers, "a", partitions=[1], stop_at_end=True, auto_offset_reset=policy, **limits
    ) as consumer:
        found = [record.offset for record in itertools.islice(consumer, 5)]
        buffered, until = consumer.reader.buffer.partition(A1), Deadline.after_ms(50_000)
        while not buffered.waiting or (fetched > 8_000 and buffered.waiting[-1].next_offset < 8):
            assert not until.expired
            time.sleep(0.005)
        log.batches.clear()
        log.end_offset = 0
        while fetched > 8_000 and consumer.reader.reset_of(A1) is None:
            assert not until.expired
            time.sleep(0.005)
        log.append([b"new", b"new"])
        found += [record.offset for record in consumer]
        assert consumer.at_end
        if is_sought:
            consumer.seek(0)
            assert [record.offset for record in consumer] in ([], [0, 1])
            assert consumer.at_end
        old = 8 if fetched > 8_000 else len([one for one in found if one > 1]) + 2
        assert found[:old] == list(range(old))
        assert found[old:] in ([], [0, 1])
        assert consumer.position() in (0, 2)


def test_a_start_that_the_log_has_reached_meanwhile_is_at_the_end(cluster: ScriptedCluster) -> None:
    log = cluster.logs[A1]
    log.append([b"3"])
    with Consumer(cluster.bootstrap_servers, "a", partitions=[1], stop_at_end=True) as consumer:
        log.append([b"new"])
        log.append([b"newer"])
        consumer.seek(2)
        assert [record.value for record in consumer] in ([], [b"newer"])
        consumer.seek("latest")
        assert list(consumer) == []
        assert consumer.position() == 3


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["columns", "typed", "poll", "columns in asyncio", "poll in asyncio"])
def test_a_read_without_a_limit_ends_once_a_start_beyond_the_end_is_confirmed(
    cluster: ScriptedCluster, how: str
) -> None:
    """No record came to wake it. With a limit it waits for new ones."""
    log, servers = cluster.logs[A1], cluster.bootstrap_servers
    log.append([b"3"])

    async def read() -> None:
        async with AsyncConsumer(servers, "a", partitions=[1], start="latest", stop_at_end=True) as consumer:
            log.append([b"4"])
            await consumer.seek(2)
            if how == "columns in asyncio":
                assert await consumer.read_columns() is None
            else:
                assert await consumer.poll() == []
            assert consumer._consumer.at_end

    if "asyncio" in how:
        asyncio.run(read())
        return
    with Consumer(servers, "a", partitions=[1], start="latest", stop_at_end=True) as consumer:
        log.append([b"4"])
        consumer.seek(2)
        if how == "columns":
            assert consumer.read_columns() is None
        elif how == "typed":
            assert consumer.read_columns(value_format="string") is None
        else:
            assert consumer.poll(max_records=0) == []
            assert consumer.poll() == []
        assert consumer.at_end
        log.append([b"5"])
        assert [record.value for record in consumer.poll(60)] == [b"5"]


def test_a_poll_without_a_limit_goes_on_until_records_come() -> None:
    """It looks for the end meanwhile. With a limit it returns before that."""
    answer = threading.Event()

    class Looking(Consumer):
        @property
        def at_end(self) -> bool:
            answer.set()
            return super().at_end

    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", ["x"])
        broker.on("Fetch").hold(answer)
        with Looking(broker.bootstrap_servers, "a", stop_at_end=True) as consumer:
            assert consumer.poll(0.01) == []
            assert consumer.read_columns(0.01) is None
            assert not answer.is_set()
            assert [record.value for record in consumer.poll()] == [b"x"]
            assert answer.is_set()


def test_a_start_within_an_open_transaction_is_at_the_end(cluster: ScriptedCluster) -> None:
    """read_committed: an offset above the last stable one is none that the log lacks."""
    log = cluster.logs[A1]
    for value in (b"3", b"open", b"open too"):
        log.append([value])
    log.last_stable_offset = 1
    with Consumer(
        cluster.bootstrap_servers,
        "a",
        partitions=[1],
        start=2,
        stop_at_end=True,
        isolation_level="read_committed",
    ) as consumer:
        assert list(consumer) == []
        assert consumer.at_end


def test_a_start_beyond_the_end_in_asyncio(cluster: ScriptedCluster) -> None:
    async def read() -> list[bytes | None]:
        async with AsyncConsumer(
            cluster.bootstrap_servers, "a", start=50, stop_at_end=True, auto_offset_reset="earliest"
        ) as consumer:
            return [record.value async for record in consumer]

    assert asyncio.run(read()) == [b"0", b"1", b"2"]


@pytest.mark.timeout(60)
def test_a_poll_for_no_records_does_not_wait_for_the_end(cluster: ScriptedCluster) -> None:
    """It would never come: nothing is handed out."""
    with Consumer(cluster.bootstrap_servers, "a", start="earliest", stop_at_end=True) as consumer:
        assert [consumer.poll(None, 0), consumer.poll(60, 0)] == [[], []]
        assert [record.value for record in consumer] == [b"0", b"1", b"2"]
