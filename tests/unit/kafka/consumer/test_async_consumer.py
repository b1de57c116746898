"""`AsyncConsumer`: a read that waits, and what it passes on to its `Consumer`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.consumer.partition_reading import offsets_in

from spark_kafka_native.kafka.consumer.async_consumer import AsyncConsumer
from spark_kafka_native.kafka.errors import ConsumerClosedError
from spark_kafka_native.kafka.model import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
WITHIN_S = 60

READS: dict[str, Callable[[AsyncConsumer], Awaitable[Any]]] = {
    "poll": lambda consumer: consumer.poll(),
    "anext": lambda consumer: anext(consumer),
    "read_columns": lambda consumer: consumer.read_columns(),
}


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(1) as cluster:
        cluster.create("a", partitions=2)
        yield cluster


@pytest.mark.parametrize("read", list(READS))
def test_records_that_come_later_end_a_wait(cluster: ScriptedCluster, read: str) -> None:
    async def wait_for_records() -> Any:
        async with AsyncConsumer(cluster.bootstrap_servers, "a", fetch_max_wait_ms=20) as consumer:
            reading = asyncio.ensure_future(READS[read](consumer))
            for _ in range(3):  # now it waits
                await asyncio.sleep(0)
            cluster.logs[A1].append([b"0"])
            async with asyncio.timeout(WITHIN_S):
                return await reading

    assert offsets_in(asyncio.run(wait_for_records())) == [0]


def test_a_poll_for_no_records_ends_at_once_although_there_are_some(cluster: ScriptedCluster) -> None:
    cluster.logs[A0].append([b"0"])

    async def poll() -> list[Any]:
        async with AsyncConsumer(cluster.bootstrap_servers, "a", start="earliest") as consumer:
            polls = [await consumer.poll(WITHIN_S, most) for most in (0, 1, 0)]
            return [offsets_in(found) for found in polls]

    assert asyncio.run(poll()) == [[], [0], []]


def test_a_read_ends_with_its_timeout_and_the_consumer_with_its_block(cluster: ScriptedCluster) -> None:
    async def read() -> None:
        async with AsyncConsumer(cluster.bootstrap_servers, "a", start="earliest") as consumer:
            async with asyncio.timeout(WITHIN_S):
                assert await consumer.poll(0.001) == []
                assert await consumer.read_columns(0) is None
        assert [record async for record in consumer] == []
        for call in (consumer.poll, consumer.read_columns):
            with pytest.raises(ConsumerClosedError, match="the consumer is closed"):
                await call(WITHIN_S)

    asyncio.run(read())


def test_a_consumer_that_is_made_after_its_start_was_cancelled_is_closed() -> None:
    """Its threads and connections would stay."""
    asked, allowed, closed = threading.Event(), threading.Event(), threading.Event()

    def build() -> Any:
        asked.set()
        assert allowed.wait(WITHIN_S)
        return SimpleNamespace(close=closed.set)

    async def cancel() -> None:
        consumer = AsyncConsumer("localhost:1", "a")
        consumer._build = build  # type: ignore[assignment]
        starting = asyncio.create_task(consumer.start())
        assert await asyncio.to_thread(asked.wait, WITHIN_S)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        allowed.set()
        assert await asyncio.to_thread(closed.wait, 20)

    asyncio.run(cancel())


def test_calls_that_do_not_wait_are_those_of_its_consumer(cluster: ScriptedCluster) -> None:
    cluster.logs[A0].append([b"0", b"1"])

    async def call() -> None:
        async with AsyncConsumer(cluster.bootstrap_servers, "a", start={0: 1, 1: 0}) as consumer:
            assert consumer.partitions == (A0, A1)
            assert (consumer.position(0), consumer.position(A1)) == (1, 0)
            consumer.pause(0)
            assert consumer.paused == (A0,)
            consumer.pause()
            assert consumer.paused == (A0, A1)
            consumer.resume(A0)
            assert consumer.paused == (A1,)
            assert offsets_in(await consumer.poll(WITHIN_S)) == [1]
            await consumer.seek(0, 0)
            assert consumer.position(0) == 0
            assert await consumer.lag(0) == {A0: 2}

    asyncio.run(call())
