"""`AsyncConsumer`: a `Consumer` for asyncio.

Calls that may wait for a broker run in a thread; records are taken in the event loop alone, so that a
cancelled ``await`` loses none.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar

from ..cluster.offsets import OffsetLike, Whence
from ..cluster.router import Router
from ..config.client_config import ClientConfig
from ..errors import ConsumerClosedError, KafkaError
from ..model import Record, TopicPartition
from ..observe.events import EventStream
from ..observe.metrics import MetricsSnapshot
from ..runtime.deadline import Deadline
from .consumer import LOOK_MS, Consumer
from .fetched_records import FetchedRecords, WorkUnit

T = TypeVar("T")


class AsyncConsumer:
    """Takes the arguments of `Consumer`; use it in one event loop.

        async with AsyncConsumer("localhost:9092", "orders", start="earliest") as consumer:
            async for record in consumer:
                print(record.offset, record.value)

    Errors are raised as by `Consumer`. A read that is cancelled has taken no records: the next one gets them.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._build: Callable[[_Start], Consumer] = functools.partial(
            _StartingConsumer, args=args, settings=settings
        )
        self._started: Consumer | None = None
        self._start: _Start | None = None
        """The one that is under way."""
        self._news = asyncio.Event()

    async def start(self) -> Self:
        """Ask the cluster for partitions and offsets, as ``async with`` does; again, it does nothing. Raises
        as making a consumer, and `ConsumerClosedError` if it is closed meanwhile. That, and a cancellation,
        end the look-ups under way, except by a router that others use, too.
        """
        if self._started is not None and not self._started.reader.closed:
            return self
        if self._start is not None:
            raise RuntimeError("another task is starting this consumer")
        start = self._start = _Start(self._build)
        try:
            started = await asyncio.to_thread(start.run)
        except BaseException:
            start.give_up()
            raise
        finally:
            self._start = None
        started.reader.tell(functools.partial(_wake, asyncio.get_running_loop(), self._news))
        self._started = started
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncConsumer over {self._started or 'nothing yet'}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next record of any partition; ends as that of `Consumer`."""
        reader = self._consumer.reader
        for record in reader.rows:
            return record
        await asyncio.sleep(0)  # other tasks get their turn, however fast records come
        try:
            while (found := reader.next_record(Deadline.after_ms(0))) is None:
                if not await self._may_go_on(None):
                    raise StopAsyncIteration
        except ConsumerClosedError as error:
            if error.__cause__ is not None or not reader.closed:  # it failed, or this is a forked child
                raise
            raise StopAsyncIteration from None
        return found

    async def poll(self, timeout: float | None = None, max_records: int | None = None) -> list[Record]:
        """As `Consumer.poll`: waits ``timeout`` seconds at most."""
        reader, deadline = self._consumer.reader, _deadline(timeout)
        await asyncio.sleep(0)  # other tasks get their turn, however fast records or errors come
        while True:
            found = reader.poll(max_records, Deadline.after_ms(0))
            none_wanted = max_records is not None and max_records < 1  # waiting records would not change it
            if found or none_wanted or not await self._may_go_on(deadline):
                return found

    async def read_columns(self, timeout: float | None = None) -> FetchedRecords | None:
        """As `Consumer.read_columns`: waits ``timeout`` seconds at most."""
        reader, deadline = self._consumer.reader, _deadline(timeout)
        await asyncio.sleep(0)
        while True:
            found = reader.read_columns(Deadline.after_ms(0))
            if found is not None or not await self._may_go_on(deadline):
                return found

    async def seek(
        self, place: OffsetLike, partition: int | TopicPartition | None = None, *, whence: Whence = "offset"
    ) -> None:
        """As `Consumer.seek`. One that is cancelled, or fails, has moved nothing."""
        for look_up in self._consumer.seeking(place, partition, whence):
            await asyncio.to_thread(look_up)

    async def lag(self, partition: int | TopicPartition | None = None) -> dict[TopicPartition, int]:
        """As `Consumer.lag`."""
        return await asyncio.to_thread(self._consumer.lag, partition)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read."""
        return self._consumer.topics

    @property
    def at_end(self) -> bool:
        """As `Consumer.at_end`."""
        return self._consumer.at_end

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions that are read."""
        return self._consumer.partitions

    @property
    def paused(self) -> tuple[TopicPartition, ...]:
        """The partitions that are paused."""
        return self._consumer.paused

    def position(self, partition: int | TopicPartition | None = None) -> int:
        """As `Consumer.position`; does not wait."""
        return self._consumer.position(partition)

    def pause(self, partition: int | TopicPartition | None = None) -> None:
        """As `Consumer.pause`; does not wait."""
        self._consumer.pause(partition)

    def resume(self, partition: int | TopicPartition | None = None) -> None:
        """As `Consumer.resume`; does not wait."""
        self._consumer.resume(partition)

    def metrics(self) -> MetricsSnapshot:
        """As `Consumer.metrics`; does not wait."""
        return self._consumer.metrics()

    def work_units(self, capacity: int = 1_000) -> EventStream[WorkUnit]:
        """As `Consumer.work_units`. `EventStream.drain` does not wait; its other methods of reading do."""
        return self._consumer.work_units(capacity)

    async def close(self) -> None:
        """Stop reading: an ``async for`` of another task ends, and `poll` raises `ConsumerClosedError`. So
        does a `start` that is under way.
        """
        if self._start is not None:
            self._start.give_up()
        if self._started is not None:
            await asyncio.shield(asyncio.to_thread(self._started.close))

    @property
    def _consumer(self) -> Consumer:
        if self._started is None:
            raise ConsumerClosedError("not started: use it as `async with`, or await start()")
        return self._started

    async def _may_go_on(self, deadline: Deadline | None) -> bool:
        """As `_wait`; without a ``deadline``, False once the consumer is `Consumer.at_end`."""
        if deadline is not None or not self._consumer.stops_at_end:
            return await self._wait(deadline)
        if self._consumer.at_end:
            return False
        await self._wait(Deadline.after_ms(LOOK_MS))
        return True

    async def _wait(self, deadline: Deadline | None) -> bool:
        """Wait until there may be records to take; False when ``deadline`` comes first."""
        self._news.clear()
        if self._consumer.reader.has_news:  # it came before `clear`, which has erased it
            return True
        left_s = None if deadline is None else deadline.remaining_ms / 1000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._news.wait()
                return True
        return False


def _wake(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits
        loop.call_soon_threadsafe(news.set)


class _Start:
    """Makes a consumer in a thread. Once it is `given_up`, its look-ups end, and the thread that comes last
    closes it.
    """

    def __init__(self, build: Callable[[_Start], Consumer]) -> None:
        self._build = build
        self._lock = threading.Lock()
        self._router: Router | None = None
        self._built: Consumer | None = None
        self.given_up = False

    def run(self) -> Consumer:
        try:
            built = self._build(self)
        except KafkaError as error:
            if self.given_up:
                raise self._closed() from error
            raise
        with self._lock:
            self._built = built
        if self.given_up:
            built.close()
            raise self._closed()
        return built

    def asks_by(self, router: Router) -> None:
        """The consumer asks the cluster by ``router`` from now on."""
        with self._lock:
            self._router = router
        if self.given_up:
            router.end(self._closed())

    def give_up(self) -> None:
        with self._lock:
            self.given_up, built, router = True, self._built, self._router
        if built is not None:
            built.close()
        elif router is not None:
            router.end(self._closed())

    @staticmethod
    def _closed() -> ConsumerClosedError:
        return ConsumerClosedError("the consumer was closed while it started")


class _StartingConsumer(Consumer):
    """Its ``start`` can end the look-ups with which it is made."""

    def __init__(self, start: _Start, args: tuple[Any, ...], settings: dict[str, Any]) -> None:
        self._asks_by = start.asks_by
        super().__init__(*args, **settings)
        del self._asks_by  # a cycle: a consumer that the caller has dropped would wait for the collector

    def _new_router(self, client: ClientConfig) -> Router:
        router = super()._new_router(client)
        self._asks_by(router)
        return router


def _deadline(timeout: float | None) -> Deadline | None:
    return None if timeout is None else Deadline.after_ms(timeout * 1000)
