"""`Producer`: records in, one by one or as columns; record batches out, buffered, pipelined and retried.

Encoding happens in the caller's thread, the network in one background thread; both let go of the GIL where
it counts.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..cluster.metadata import Topic
from ..cluster.router import Router
from ..config import ClientConfig, ProducerConfig
from ..errors import DeadlineExceededError, KafkaError
from ..network.deadline import Deadline
from ..records.columns import RecordColumns
from .column_input import TopicColumns, read_columns
from .delivery import ColumnsDelivery, Delivery, DeliveryBlock
from .encoder import BatchEncoder, reckon_sizes
from .errors import PartlyTakenError, ProducerClosedError, RecordError, RecordTooLargeError
from .memory import BufferMemory
from .partitioner import ExplicitPartitioner, PartitionFunction, Targets, build_partitioner
from .record_input import (
    as_bytes,
    check_timestamp,
    check_topic,
    one_row,
    read_headers,
)
from .replay import Replay
from .sender import Sender
from .sender_state import SenderState
from .settlement import OnError, Settlement, Undelivered
from .spill import SpillFolder
from .stats import ProducerStats, StatsRecorder
from .topic_buffer import PartitionOutsideError, RecordHeaders, TopicBuffer
from .topic_limits import read_max_message_bytes
from .topic_slice import TopicSlice, slice_rows

RECORD_OVERHEAD = 24
"""Bytes that a single record is reckoned with beyond its key, value and headers; the rest is settled in
its batch."""
GRANT_BYTES = 64 * 1024
GRANT_RECORDS = 1024
"""Room for single records is reserved in such portions, as a lock per record would cost more than the
record."""


class Producer:
    """A buffered producer. Thread-safe; a context manager that delivers everything on the way out.

    ``config`` says how to reach the cluster, ``producer`` how to produce. ``partitioner`` may be a
    function over whole key columns instead of the configured one; ``on_error(topic_partition, records,
    error, retriable)`` is told of every batch that could not be delivered, in the sender's thread. A
    ``router`` that is given is shared and stays open.
    """

    def __init__(
        self,
        config: ClientConfig,
        producer: ProducerConfig | None = None,
        *,
        partitioner: PartitionFunction | None = None,
        on_error: OnError | None = None,
        router: Router | None = None,
    ) -> None:
        self._config = producer or ProducerConfig()
        self._owns_router = router is None
        self._router = router or Router(config)
        self._partitioner: str | PartitionFunction = partitioner or self._config.partitioner
        self._encoder = BatchEncoder(self._config)
        # A wrong name fails here, not at the first record.
        self._explicit = isinstance(build_partitioner(self._partitioner, 1), ExplicitPartitioner)
        self._memory = BufferMemory(self._config.buffer_memory, self._config.max_buffered_records)
        self._stats = StatsRecorder()
        self._spill = SpillFolder(self._config.spill_dir) if self._config.spill_dir else None
        self._replay = Replay([] if self._spill is None else self._spill.entries)
        self._settlement = Settlement(
            self._memory, self._stats, self._spill, on_error, self._config.keep_undelivered
        )
        self._topics: dict[str, TopicBuffer] = {}
        self._topics_lock = threading.Lock()
        self._closed: BaseException | None = None
        self._process_id = os.getpid()
        state = SenderState(
            router=self._router,
            config=self._config,
            topics=self._topics,
            encoder=self._encoder,
            settlement=self._settlement,
            stats=self._stats,
        )
        self._sender = Sender(state, self._describe, lambda: self._memory.waiting, self._fail)
        self._sender.start()
        _live.add(self)
        self._replay.start(self._topic)

    def send(
        self,
        topic: str,
        key: bytes | str | None = None,
        value: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: RecordHeaders | None = (),
    ) -> Delivery:
        """Take one record; `Delivery.result` says where it ended. Strings are sent as UTF-8.

        Records of one partition are written in the order of the calls. Raises `RecordError` (too large, no
        such partition), `BufferFullError`, `BrokerError` for a topic that can't be written,
        `ProducerClosedError`.
        """
        buffer = self._topics.get(topic) or self._topic(topic)
        if key is not None and key.__class__ is not bytes:
            key = as_bytes(key, "key")
        if value is not None and value.__class__ is not bytes:
            value = as_bytes(value, "value")
        size = RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
        if headers:
            headers = read_headers(headers)
            size += sum(10 + len(name) * 4 + len(content or b"") for name, content in headers)
        # What is wrong with one record is said here: later it would be in the way of others.
        if timestamp_ms is not None:
            timestamp_ms = check_timestamp(timestamp_ms)
        if self._explicit if partition is None else not 0 <= partition < buffer.targets.count:
            self._check_partition(buffer, partition)
        if size > buffer.small_bytes:
            self._check_single(buffer, key, value, headers or (), timestamp_ms)
        while True:
            delivery = buffer.append_record(key, value, partition, timestamp_ms, headers or (), size)
            if delivery is not None:
                if delivery.is_first:
                    self._sender.wake()  # it has to notice when the batch has lingered long enough
                return delivery
            self._grant(buffer, size)

    def send_columns(
        self,
        columns: RecordColumns | pa.RecordBatch | pa.Table,
        topic: str | None = None,
        partition: int | npt.NDArray[Any] | pa.Array | None = None,
    ) -> ColumnsDelivery:
        """Take ``n`` records as columns; far faster than one by one.

        A RecordBatch or Table has columns ``value`` and ``key`` (binary or string) and, if wanted,
        ``headers``, ``timestamp`` (a timestamp, or int64 milliseconds), ``partition`` (whole numbers;
        null: the partitioner's choice) and ``topic``; the arguments ``topic`` and ``partition`` go before
        those. Others are ignored.

        Rows of one partition are written in their order. Raises as `send`, a `RecordError` with the row, and
        then nothing of these columns was taken; `PartlyTakenError` where something was.
        """
        parts = read_columns(columns, topic, partition)
        block = self._new_block(sum(part.columns.length for part in parts))
        prepared = []
        for part in parts:
            buffer = self._topics.get(part.topic) or self._topic(part.topic)
            sizes = reckon_sizes(part.columns)
            try:
                self._check_columns(buffer, part, sizes)
            except RecordError as error:
                raise part.located(error) from None
            prepared.append((buffer, part, sizes))
        if len(parts) == 1:
            block.timestamps = parts[0].columns.timestamp_ms
        self._take(
            [
                piece
                for buffer, part, sizes in prepared
                for piece in slice_rows(buffer, part, sizes, part.block(block), self._config)
            ],
            block,
        )
        return ColumnsDelivery(block)

    def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until everything sent before has ended, well or not (its `Delivery` and ``on_error`` say
        which).

        Raises `DeadlineExceededError` when ``timeout_ms`` runs out first, `ProducerClosedError` in a process
        forked from the producer's.
        """
        if self._process_id != os.getpid():
            self._raise_if_closed()
        self._raise_if_callback("flush()")
        deadline = None if timeout_ms is None else Deadline.after_ms(timeout_ms)
        self._replay.join(None if deadline is None else deadline.remaining_ms / 1000)
        self._close_buffers()
        if not self._settlement.wait(deadline):
            records = self.stats().buffered_records
            raise DeadlineExceededError(
                f"flush: {records} records are still under way after {timeout_ms:.0f} ms"
            )

    def close(self, timeout_ms: float | None = None) -> None:
        """Deliver what there is, for at most ``timeout_ms`` (None: the delivery timeout), and end.

        What is left then is given up: its deliveries fail, and with a spill folder it is kept. Harmless
        when closed.
        """
        limit = self._config.delivery_timeout_ms if timeout_ms is None else timeout_ms
        deadline = Deadline.after_ms(limit)
        with self._topics_lock:
            first = self._closed is None
            self._closed = self._closed or ProducerClosedError("close() was called")
            for buffer in self._topics.values():
                buffer.closed = True
        self._memory.close(self._closed)
        if not first:
            self._sender.stop(deadline)
            return
        self._replay.join(deadline.remaining_ms / 1000)
        self._close_buffers()
        self._sender.stop(deadline)
        if self._spill is not None:
            self._spill.close()
        if self._owns_router:
            self._router.close()
        _live.discard(self)

    def stats(self) -> ProducerStats:
        """What was done so far."""
        size, records = self._memory.used
        granted = [(buffer.granted_size, buffer.granted_records) for buffer in list(self._topics.values())]
        return self._stats.snapshot(
            max(0, records - sum(g[1] for g in granted)), max(0, size - sum(g[0] for g in granted))
        )

    def undelivered(self) -> list[Undelivered]:
        """The records that could not be delivered since the last call, with ``keep_undelivered``; in order by
        partition.
        """
        with self._settlement.changed:
            given, self._settlement.undelivered = self._settlement.undelivered, []
        return given

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Topics.

    def _topic(self, topic: str) -> TopicBuffer:
        """The buffer of ``topic``, made when the topic is first used: what the cluster says about it is
        asked for."""
        self._raise_if_closed()
        check_topic(topic)
        with self._topics_lock:
            if (known := self._topics.get(topic)) is not None:
                return known
        deadline = Deadline.after_ms(self._config.max_block_ms)
        targets, topic_id = self._ask_targets(topic, deadline)
        limit = read_max_message_bytes(self._router, topic, deadline)
        with self._topics_lock:
            if (known := self._topics.get(topic)) is not None:
                return known
            self._raise_if_closed()  # whoever closes looks at the topics there are then
            buffer = TopicBuffer(
                topic,
                self._config,
                build_partitioner(self._partitioner, self._config.batch_size),
                self._encoder,
                self._new_block,
                self._sender.post,
            )
            buffer.describe(topic_id, targets, limit)
            self._replay.post(buffer, self._sender.post)
            self._topics[topic] = buffer
        self._sender.prepare(topic)
        return buffer

    def _ask_targets(self, topic: str, deadline: Deadline) -> tuple[Targets, Any]:
        found = self._router.retry(
            lambda: self._router.metadata((topic,), deadline=deadline).topic(topic),
            what=f"asking for topic {topic}",
            deadline=deadline,
            topics=(topic,),
        )
        return _read_targets(found), found.topic_id

    def _describe(self, buffer: TopicBuffer) -> None:
        """Take newer metadata in; never waits."""
        found = self._router.snapshot.topics.get(buffer.topic)
        if found is None or found.error_code or not found.partitions:
            return
        buffer.describe(found.topic_id, _read_targets(found), buffer.most_bytes)

    def _check_partition(self, buffer: TopicBuffer, partition: int | None) -> None:
        """The partition may be a new one: look again before refusing it."""
        if partition is None:
            raise ExplicitPartitioner.refusal(buffer.topic)
        self._router.refresh((buffer.topic,), Deadline.after_ms(self._config.max_block_ms))
        self._describe(buffer)
        count = buffer.targets.count
        if not 0 <= partition < count:
            has = f"the topic has {count} partitions, 0 to {count - 1}"
            raise PartitionOutsideError(f"there is no partition {partition}: {has}", buffer.topic)

    # Taking records in.

    def _grant(self, buffer: TopicBuffer, size: int) -> None:
        self._raise_if_closed()
        ample = not self._memory.waiting
        large = ample and self._config.buffer_memory >= 64 * GRANT_BYTES
        many = ample and self._config.max_buffered_records >= 64 * GRANT_RECORDS
        portion = records = 0
        if buffer.granted_size < size:
            portion = max(size, GRANT_BYTES) if large else size
        if not buffer.granted_records:
            records = GRANT_RECORDS if many else 1
        if size > self._config.buffer_memory:
            raise RecordTooLargeError.of(
                buffer.topic, None, size, self._config.buffer_memory, "buffer.memory"
            )
        self._reserve(portion, records)
        buffer.grant(portion, records)

    def _reserve(self, size: int, records: int) -> None:
        waits = self._config.block_on_buffer_full and not self._sender.is_current_thread
        wait_ms = self._config.max_block_ms if waits else 0
        if self._memory.full_for(size, records):
            for buffer in list(self._topics.values()):
                self._memory.release(*buffer.reclaim())
            self._sender.hurry()
        self._memory.reserve(size, records, wait_ms)

    def _check_columns(self, buffer: TopicBuffer, part: TopicColumns, sizes: npt.NDArray[np.int64]) -> None:
        buffer.check_sizes(part.columns, sizes)
        if len(sizes) and (largest := int(sizes.max())) > self._config.buffer_memory:
            row = int(sizes.argmax())
            raise RecordTooLargeError.of(
                buffer.topic, row, largest, self._config.buffer_memory, "buffer.memory"
            )
        if part.partition is not None and len(part.partition):
            highest = int(part.partition.argmax())
            if part.partition[highest] >= buffer.targets.count:
                try:
                    self._check_partition(buffer, int(part.partition[highest]))
                except PartitionOutsideError as error:
                    raise PartitionOutsideError(error.reason, buffer.topic, highest) from None

    def _take(self, slices: list[TopicSlice], block: DeliveryBlock) -> None:
        for number, one in enumerate(slices):
            try:
                self._append_slice(one)
            except KafkaError as error:
                if not number:
                    raise
                left = sum(len(refused.sizes) for refused in slices[number:])
                for refused in slices[number:]:
                    self._settlement.refuse(refused.buffer.topic, refused.block, refused.rows, error)
                delivery = ColumnsDelivery(block)
                raise PartlyTakenError(str(error), block.length - left, block.length, delivery) from error

    def _append_slice(self, one: TopicSlice) -> None:
        self._raise_if_closed()
        self._reserve(one.size, len(one.sizes))
        try:
            one.buffer.append_columns(one.columns, one.sizes, one.partition, one.block, one.start)
        except BaseException:
            self._memory.release(one.size, len(one.sizes))
            raise
        self._sender.wake()

    def _check_single(
        self, buffer: TopicBuffer, key: Any, value: Any, headers: RecordHeaders, timestamp_ms: int | None
    ) -> None:
        """A large record is looked at before it is taken: its caller can still do something about it."""
        part = read_columns(one_row(key, value, headers, timestamp_ms), buffer.topic, None)[0]
        try:
            self._check_columns(buffer, part, reckon_sizes(part.columns))
        except RecordTooLargeError as error:
            raise RecordTooLargeError.of(
                buffer.topic, None, error.size, error.limit, error.limit_name
            ) from None

    def _new_block(self, length: int) -> DeliveryBlock:
        return DeliveryBlock(length, self._settlement.changed, self._hurry)

    def _hurry(self) -> None:
        self._raise_if_callback("waiting for a delivery")
        self._sender.hurry()

    def _close_buffers(self) -> None:
        for buffer in list(self._topics.values()):
            while not buffer.close_waiting(lambda _queue: True):
                time.sleep(0)
        self._sender.hurry()

    # Ends.

    def _fail(self, cause: BaseException) -> None:
        with self._topics_lock:
            self._closed = self._closed or cause
            for buffer in self._topics.values():
                buffer.closed = True
        self._memory.close(cause)

    def _raise_if_callback(self, what: str) -> None:
        if self._sender.is_current_thread:
            raise RuntimeError(f"{what} in a callback would wait for the thread that it runs in: for ever")

    def _raise_if_closed(self) -> None:
        if self._closed is not None:
            raise ProducerClosedError(f"the producer takes no more records: {self._closed}") from self._closed


def _read_targets(topic: Topic) -> Targets:
    count = len(topic.partitions)
    led = [p for p in range(count) if p in topic.partitions and topic.partitions[p].leader is not None]
    return Targets(topic=topic.name, count=count, available=np.array(led or range(count), np.int32))


_live: weakref.WeakSet[Producer] = weakref.WeakSet()


def _close_live() -> None:
    """Records that were sent and not flushed must not vanish with the interpreter."""
    for producer in list(_live):
        producer.close()


def _disown_live() -> None:
    """In a forked child the sender's thread does not exist: refuse records instead of keeping them
    forever."""
    for producer in list(_live):
        producer._closed = ProducerClosedError(
            "the producer was made in another process (before a fork); make one in this process"
        )
        producer._memory = BufferMemory(0, 0)
        producer._memory.close(producer._closed)
        producer._topics.clear()
        producer._topics_lock = threading.Lock()
    _live.clear()


atexit.register(_close_live)
os.register_at_fork(after_in_child=_disown_live)
