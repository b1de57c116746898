"""`AsyncConsumer`: a read that waits, and what it passes on to its `Consumer`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from support.brokers.scripted_broker import ScriptedCluster
from support.consumer.partition_reading import offsets_in

from spark_kafka_native.kafka.consumer.async_consumer import AsyncConsumer
from spark_kafka_native.kafka.errors import ConsumerClosedError, KafkaError, OffsetOutOfRangeError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.testing import MockBroker

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


@pytest.mark.timeout(60)
@pytest.mark.parametrize("read", list(READS))
def test_records_that_come_later_end_a_wait(cluster: ScriptedCluster, read: str) -> None:
    """Also a second one: the news of the first one was heard."""

    async def wait_for_records() -> list[int]:
        found = []
        async with AsyncConsumer(cluster.bootstrap_servers, "a", fetch_max_wait_ms=20) as consumer:
            for value in (b"0", b"1"):
                reading = asyncio.ensure_future(READS[read](consumer))
                for _ in range(3):  # now it waits
                    await asyncio.sleep(0)
                cluster.logs[A1].append([value])
                async with asyncio.timeout(WITHIN_S):
                    found += offsets_in(await reading)
        return found

    assert asyncio.run(wait_for_records()) == [0, 1]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("read", list(READS))
def test_other_tasks_get_their_turn_while_the_end_is_waited_for(read: str) -> None:
    """Also one that makes the records come. A limit counts before the end does."""
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", ["x"])
        answer = threading.Event()
        broker.on("Fetch").hold(answer)

        async def wait_for_records() -> Any:
            async with AsyncConsumer(broker.bootstrap_servers, "a", stop_at_end=True) as consumer:
                async with asyncio.timeout(WITHIN_S):
                    assert await consumer.poll(0.01) == []
                    assert await consumer.read_columns(0.01) is None
                reading = asyncio.ensure_future(READS[read](consumer))
                for _ in range(3):  # now it waits
                    await asyncio.sleep(0)
                assert not reading.done()
                answer.set()
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
                assert await consumer.poll(0.1) == []
                assert await consumer.read_columns(0) is None
        assert [record async for record in consumer] == []
        for call in (consumer.poll, consumer.read_columns):
            with pytest.raises(ConsumerClosedError, match="the consumer is closed"):
                await call(WITHIN_S)

    asyncio.run(read())


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("read", "error"),
    [
        ("anext", StopAsyncIteration),
        ("poll", ConsumerClosedError),
        ("read_columns", ConsumerClosedError),
    ],
)
def test_a_read_that_waits_ends_when_another_task_closes_the_consumer(
    cluster: ScriptedCluster, read: str, error: type[Exception]
) -> None:
    async def close() -> None:
        async with AsyncConsumer(cluster.bootstrap_servers, "a") as consumer:
            reading = asyncio.ensure_future(READS[read](consumer))
            for _ in range(3):  # now it waits
                await asyncio.sleep(0)
            await consumer.close()
            async with asyncio.timeout(WITHIN_S):
                with pytest.raises(error):
                    await reading

    asyncio.run(close())


def test_a_consumer_that_is_made_after_its_start_was_cancelled_is_closed() -> None:
    """Its threads and connections would stay."""
    asked, allowed, closed = threading.Event(), threading.Event(), threading.Event()

    def build(_: object) -> Any:
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


def test_a_consumer_that_has_started_starts_no_other_one(cluster: ScriptedCluster) -> None:
    """The first one was left open, and the second read all again."""
    cluster.logs[A0].append([b"0", b"1"])

    async def start() -> None:
        async with await AsyncConsumer(cluster.bootstrap_servers, "a", start="earliest").start() as consumer:
            assert (await anext(consumer)).offset == 0
            async with consumer:
                assert (await anext(consumer)).offset == 1

    asyncio.run(start())


def test_a_consumer_that_was_closed_can_be_started_anew(cluster: ScriptedCluster) -> None:
    cluster.logs[A0].append([b"0"])

    async def start() -> None:
        consumer = AsyncConsumer(cluster.bootstrap_servers, "a", start="earliest")
        for _ in range(2):
            async with consumer:
                assert (await anext(consumer)).offset == 0

    asyncio.run(start())


def test_a_consumer_that_is_made_as_its_start_is_cancelled_is_closed() -> None:
    """The thread that has made it has looked for the last time, and the caller does not get it."""
    closed: list[bool] = []

    async def cancel() -> None:
        with ThreadPoolExecutor(1) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            consumer = AsyncConsumer("localhost:1", "a")
            consumer._build = lambda _: SimpleNamespace(close=lambda: closed.append(True))  # type: ignore[assignment,return-value]
            starting = asyncio.create_task(consumer.start())
            await asyncio.sleep(0)  # the thread has it
            pool.submit(lambda: None).result(WITHIN_S)  # behind it; the loop has not heard of that yet
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting

    asyncio.run(cancel())
    assert closed == [True]


def test_a_start_that_failed_can_be_tried_again(cluster: ScriptedCluster) -> None:
    async def start() -> None:
        consumer = AsyncConsumer(
            cluster.bootstrap_servers, "b", start="earliest", default_api_timeout_ms=1_000
        )
        with pytest.raises(KafkaError):
            await consumer.start()
        cluster.create("b")
        async with consumer:
            assert consumer.partitions == (TopicPartition("b", 0),)

    asyncio.run(start())


@pytest.mark.parametrize("ends", ["close", "cancel"])
def test_a_start_that_is_given_up_leaves_nothing_open(ends: str) -> None:
    """`asyncio.run` ends meanwhile, and takes the loop with it."""
    asked, allowed, closed = threading.Event(), threading.Event(), threading.Event()

    def build(_: object) -> Any:
        asked.set()
        assert allowed.wait(WITHIN_S)
        return SimpleNamespace(close=closed.set)

    async def start() -> None:
        consumer = AsyncConsumer("localhost:1", "a")
        consumer._build = build  # type: ignore[assignment]
        starting = asyncio.create_task(consumer.start())
        assert await asyncio.to_thread(asked.wait, WITHIN_S)
        with pytest.raises(RuntimeError, match="another task is starting this consumer"):
            await consumer.start()
        if ends == "close":
            await consumer.close()
            allowed.set()
            with pytest.raises(ConsumerClosedError, match="was closed while it started"):
                await starting
        else:
            starting.cancel()
            asyncio.get_running_loop().call_later(0.01, allowed.set)

    asyncio.run(start())
    assert closed.is_set()


@pytest.mark.parametrize("ends", ["close", "cancel"])
def test_a_start_that_is_given_up_does_not_wait_for_a_silent_broker(
    cluster: ScriptedCluster, ends: str
) -> None:
    """`asyncio.run` waits for the thread: for a minute after Ctrl-C."""
    silent, asked = threading.Event(), threading.Event()

    def answer(request: MetadataRequest, version: int) -> MetadataResponse:
        asked.set()
        silent.wait()
        return cluster.metadata(request, version)

    async def start() -> None:
        limit_ms = 10_000 * WITHIN_S
        consumer = AsyncConsumer(
            cluster.bootstrap_servers, "a", default_api_timeout_ms=limit_ms, request_timeout_ms=limit_ms
        )
        starting = asyncio.create_task(consumer.start())
        assert await asyncio.to_thread(asked.wait, WITHIN_S)
        await consumer.close() if ends == "close" else starting.cancel()
        with pytest.raises(ConsumerClosedError if ends == "close" else asyncio.CancelledError):
            await starting

    cluster[1].on(MetadataRequest, answer)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(asyncio.run, start())
        try:
            ended.result(WITHIN_S)
        finally:
            silent.set()


def test_a_seek_that_is_cancelled_moves_nothing_later() -> None:
    """It undid one that had returned: records were skipped."""
    with MockBroker() as broker:
        broker.create_topic("a")
        broker.append("a", ["x"] * 10)
        answer = threading.Event()

        async def seek() -> list[int]:
            async with AsyncConsumer(broker.bootstrap_servers, "a", start="earliest") as consumer:
                await anext(consumer)
                broker.on("ListOffsets").hold(answer)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(consumer.seek("latest"), 0.1)
                await consumer.seek(3)
                answer.set()
                await consumer.lag()  # behind the answer that was held
                return [(await anext(consumer)).offset for _ in range(7)]

        assert asyncio.run(seek()) == list(range(3, 10))


@pytest.mark.parametrize("read", list(READS))
def test_other_tasks_get_their_turn_however_fast_errors_come(cluster: ScriptedCluster, read: str) -> None:
    """One that would have ended the error by a seek never ran."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def look() -> None:
        settings = {"partitions": [0], "start": 7, "auto_offset_reset": "none"}
        async with AsyncConsumer(cluster.bootstrap_servers, "a", **settings) as consumer:
            with pytest.raises(OffsetOutOfRangeError):
                await READS[read](consumer)
            other, before = asyncio.create_task(take_turns()), turns
            for _ in range(5):
                with pytest.raises(OffsetOutOfRangeError):
                    await READS[read](consumer)
            assert turns >= before + 5
            other.cancel()

    asyncio.run(look())


def test_calls_that_do_not_wait_are_those_of_its_consumer(cluster: ScriptedCluster) -> None:
    cluster.logs[A0].append([b"0", b"1"])

    async def call() -> None:
        async with AsyncConsumer(cluster.bootstrap_servers, "a", start={0: 1, 1: 0}) as consumer:
            assert (consumer.partitions, consumer.topics) == ((A0, A1), ("a",))
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


def test_in_another_process_an_iteration_does_not_end_as_if_there_were_no_more(
    cluster: ScriptedCluster,
) -> None:
    """The process that was forked has no thread that fetches."""

    async def read() -> None:
        async with AsyncConsumer(cluster.bootstrap_servers, "a", start="earliest") as consumer:
            reader = consumer._consumer.reader
            reader.inherited = True
            try:
                with pytest.raises(ConsumerClosedError, match="in another process"):
                    await anext(consumer)
            finally:
                reader.inherited = False

    asyncio.run(read())


def test_records_that_came_before_the_wait_end_it(cluster: ScriptedCluster) -> None:
    """The news of them was heard, and there may be no other."""
    cluster.logs[A0].append([b"0"])

    async def wait() -> bool:
        async with AsyncConsumer(cluster.bootstrap_servers, "a", start="earliest") as consumer:
            while not (consumer._news.is_set() and consumer._consumer.reader.has_news):
                await asyncio.sleep(0.01)
            return await consumer._wait(Deadline.after_ms(1_000))

    assert asyncio.run(wait())


def test_records_that_come_as_news_are_forgotten_end_the_wait() -> None:
    """They come just before the event is cleared: the look at the records has to follow that."""
    reader = SimpleNamespace(has_news=False)
    started: Any = SimpleNamespace(reader=reader)

    class News(asyncio.Event):
        def clear(self) -> None:
            reader.has_news = True
            self.set()
            super().clear()

    async def wait() -> bool:
        consumer = AsyncConsumer("nowhere:1", "a")
        consumer._started, consumer._news = started, News()
        return await consumer._wait(Deadline.after_ms(0))

    assert asyncio.run(wait())


@pytest.mark.parametrize("fails", [False, True])
def test_a_start_that_is_given_up_ends_the_look_ups_that_follow_and_says_why(fails: bool) -> None:
    """Between the two, its thread may have been about to make the router."""
    ended: list[Exception] = []
    closed: list[bool] = []

    def build(start: Any) -> Any:
        start.give_up()
        start.asks_by(SimpleNamespace(end=ended.append))
        if fails:
            raise KafkaError("the look-up was ended")
        return SimpleNamespace(close=lambda: closed.append(True))

    consumer = AsyncConsumer("nowhere:1", "a")
    consumer._build = build  # type: ignore[assignment]
    with pytest.raises(ConsumerClosedError, match="the consumer was closed while it started"):
        asyncio.run(consumer.start())
    assert {type(error) for error in ended} == {ConsumerClosedError}
    assert any(closed) is not fails
