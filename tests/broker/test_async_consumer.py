"""`AsyncConsumer` on a real broker: nothing is lost by a cancelled await, and no other task is held up."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from spark_kafka_native.kafka import (
    AsyncConsumer,
    ConsumerClosedError,
    Producer,
    TopicPartition,
)

pytestmark = pytest.mark.broker
SECONDS = 240


def write(kafka: Any, topic: str, first: int, count: int) -> None:
    with Producer(kafka.bootstrap_servers) as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, partition=0)


def test_records_come_as_with_a_consumer(kafka: Any, topic: str) -> None:
    kafka.create_topic(topic, 1)
    write(kafka, topic, 0, 3_000)

    async def read() -> None:
        async with AsyncConsumer(kafka.bootstrap_servers, topic, start=0) as consumer:
            turns = 0

            async def others() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            other = asyncio.create_task(others())
            offsets = []
            async for record in consumer:
                offsets.append(record.offset)
                if len(offsets) == 2_500:
                    break
            assert offsets == list(range(2_500))
            assert turns > 2
            other.cancel()
            assert (consumer.position(), consumer.partitions) == (2_500, (TopicPartition(topic, 0),))
            assert await consumer.lag() == {TopicPartition(topic, 0): 500}
            assert [record.offset for record in await consumer.poll(SECONDS, 10)] == list(range(2_500, 2_510))
            fetched = await consumer.read_columns(SECONDS)
            assert fetched is not None
            assert fetched.from_offset == 2_510
            await consumer.seek(-1, whence="end")
            assert [record.offset for record in await consumer.poll(SECONDS)] == [2_999]
            assert await consumer.poll(0.05) == []
            assert await consumer.read_columns(0) is None
            consumer.pause()
            assert len(consumer.paused) == 1
            consumer.resume()
            assert repr(consumer).startswith("<AsyncConsumer over <Consumer of ")

    asyncio.run(asyncio.wait_for(read(), SECONDS))


def test_a_cancelled_read_loses_no_record(kafka: Any, topic: str) -> None:
    """Reads are cancelled at every stage while records come; each record is seen once, in order."""
    kafka.create_topic(topic, 1)
    count = 400

    def write_slowly() -> None:
        for first in range(0, count, 20):
            write(kafka, topic, first, 20)

    async def read() -> list[int]:
        found: list[int] = []
        async with AsyncConsumer(kafka.bootstrap_servers, topic, start=0, fetch_max_wait_ms=5) as consumer:
            writing = asyncio.create_task(asyncio.to_thread(write_slowly))
            for attempt in range(1_000_000):
                if len(found) >= count:
                    break
                task = asyncio.create_task(consumer.poll(SECONDS, 7) if attempt % 2 else _next(consumer))
                for _ in range(attempt % 5):
                    await asyncio.sleep(0.001 if attempt % 3 else 0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    found += [int(record.value or b"") for record in await task]
            await writing
        return found

    assert asyncio.run(asyncio.wait_for(read(), SECONDS)) == list(range(count))


async def _next(consumer: AsyncConsumer) -> list[Any]:
    return [await anext(consumer)]


def test_closing_ends_what_waits(kafka: Any, topic: str) -> None:
    kafka.create_topic(topic, 1)

    async def read() -> None:
        consumer = AsyncConsumer(kafka.bootstrap_servers, topic)
        with pytest.raises(ConsumerClosedError, match="not started"):
            await consumer.poll(1)
        await consumer.close()
        await consumer.start()
        iterating = asyncio.create_task(_all(consumer))
        polling = asyncio.create_task(consumer.poll())
        await asyncio.sleep(0.05)
        await consumer.close()
        assert await iterating == []
        with pytest.raises(ConsumerClosedError):
            await polling

    asyncio.run(asyncio.wait_for(read(), SECONDS))


async def _all(consumer: AsyncConsumer) -> list[Any]:
    return [record async for record in consumer]


def test_a_start_that_fails_or_is_cancelled(kafka: Any, topic: str) -> None:
    kafka.create_topic(topic, 1)

    async def read() -> None:
        with pytest.raises(ValueError, match="must not be negative"):
            await AsyncConsumer(kafka.bootstrap_servers, topic, start=-1).start()
        starting = asyncio.create_task(AsyncConsumer(kafka.bootstrap_servers, topic).start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(asyncio.wait_for(read(), SECONDS))
