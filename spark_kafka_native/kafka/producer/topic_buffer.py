"""`TopicBuffer`: records of one topic on their way from the caller into batches, in the order of the calls.

Two ways in: columns, and single records, which wait in lists until they are worth a column. One lock keeps
the order; it is held while batches are encoded, and never while somebody waits for room in the buffer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..config import ProducerConfig
from ..model import TopicPartition
from ..records.columns import HEADERS_TYPE, RecordColumns
from .batch import Batch, Part
from .delivery import Delivery, DeliveryBlock
from .encoder import BATCH_OVERHEAD, BatchEncoder, reckon_sizes
from .errors import ProducerClosedError, RecordError, RecordTooLargeError
from .gather import Rows, take_columns
from .hashing import group_rows
from .partition_queue import BatchLimits, Chunk, PartitionQueue
from .partitioner import Partitioner, Partitions, Targets

RecordHeaders = Sequence[tuple[str, bytes | None]]


class SingleRecords:
    """Records that came one by one and wait to become columns."""

    __slots__ = ("block", "headers", "keys", "opened_at", "partitions", "size", "timestamps", "values")

    def __init__(self, block: DeliveryBlock, opened_at: float) -> None:
        self.block = block
        self.opened_at = opened_at
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        # Mostly nobody gives these: they are kept only for the rows that have them.
        self.partitions: dict[int, int] = {}
        self.timestamps: dict[int, int] = {}
        self.headers: dict[int, RecordHeaders] = {}
        self.size = 0

    def columns(self, now_ms: int) -> RecordColumns:
        """The lists as columns."""
        n = len(self.values)
        timestamps = None
        if self.timestamps:
            timestamps = np.full(n, now_ms, np.int64)
            timestamps[list(self.timestamps)] = list(self.timestamps.values())
        headers = None
        if self.headers:
            headers = pa.array([self.headers.get(i) for i in range(n)], HEADERS_TYPE)
        return RecordColumns(
            length=n,
            timestamp_ms=timestamps,
            key=pa.array(self.keys, pa.binary()),
            value=pa.array(self.values, pa.binary()),
            headers=headers,
        )

    def partition_column(self) -> Partitions | None:
        """int32[n], -1 where none was given."""
        if not self.partitions:
            return None
        partition = np.full(len(self.values), -1, np.int32)
        partition[list(self.partitions)] = list(self.partitions.values())
        return partition


class TopicBuffer:
    """The buffer of one topic."""

    def __init__(
        self,
        topic: str,
        config: ProducerConfig,
        partitioner: Partitioner,
        encoder: BatchEncoder,
        new_block: Callable[[int], DeliveryBlock],
        ready: Callable[[list[Batch]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic = topic
        self.lock = threading.Lock()
        self.topic_id: UUID | None = None
        self.targets = Targets.all(topic, 0)
        self.queues: list[PartitionQueue] = []
        self.described_at = clock()
        self.most_bytes = 0
        self.small_bytes = 0
        """A record up to this size is certain to fit a batch."""
        self.closed = False
        self.granted_size = 0
        self.granted_records = 0
        self.single: SingleRecords | None = None
        self.waiting_since: float | None = None
        """Monotonic seconds since which the oldest record waits for its batch to fill; None when none
        does."""
        self._config = config
        self._partitioner = partitioner
        self._encoder = encoder
        self._new_block = new_block
        # Called under the lock, so that batches reach the sender in the order in which they were closed.
        self._ready = ready
        self._clock = clock
        self._limits = BatchLimits(size=1, records=1, direct=1)
        self._nowhere = PartitionQueue(TopicPartition(topic, -1), encoder)
        """Where records end that no partition could be found for."""

    def describe(self, topic_id: UUID | None, targets: Targets, max_message_bytes: int) -> None:
        """What the cluster says about the topic. Partitions are only ever added: a queue outlives its
        partition."""
        with self.lock:
            self.topic_id = topic_id
            self.described_at = self._clock()
            for partition in range(len(self.queues), targets.count):
                self.queues.append(PartitionQueue(TopicPartition(self.topic, partition), self._encoder))
            self.targets = targets
            self.limit_batches(max_message_bytes)

    def limit_batches(self, max_message_bytes: int) -> None:
        """No batch may be larger, once compressed."""
        self.most_bytes = max_message_bytes
        self.small_bytes = min(max_message_bytes, self._config.max_request_size or max_message_bytes)
        self.small_bytes = min(self.small_bytes // 2, self._config.buffer_memory)
        cap = None if self._encoder.compresses else max_message_bytes
        self._limits = BatchLimits.of(self._config.batch_size, self._config.batch_records, cap)

    def check_sizes(self, columns: RecordColumns, sizes: Rows) -> None:
        """Raise `RecordTooLargeError` for the first record that can't be sent whatever happens."""
        own = self._config.max_request_size
        limit = (
            self.most_bytes if own is None else own if self._encoder.compresses else min(own, self.most_bytes)
        )
        if own is None and self._encoder.compresses:
            return  # only the encoded batch can tell
        for row in np.flatnonzero(sizes > limit - BATCH_OVERHEAD).tolist():
            size = int(sizes[row]) + BATCH_OVERHEAD
            if not self._encoder.compresses:
                # The sizes are upper bounds, by a few bytes: look closer at what is near the limit.
                size = len(self._encoder.encode(columns, np.array([row]), 0))
            if size > limit:
                name = "max.request.size" if limit == own else "the topic's max.message.bytes"
                raise RecordTooLargeError.of(self.topic, row, size, limit, name)

    def append_record(
        self,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: RecordHeaders,
        size: int,
    ) -> Delivery | None:
        """Take one record in; None when there is no room granted for it (then `grant` and call again)."""
        with self.lock:
            if self.granted_size < size or not self.granted_records or self.closed:
                return None
            self.granted_size -= size
            self.granted_records -= 1
            single = self.single
            if single is None:
                single = self.single = SingleRecords(self._new_block(0), self._clock())
                if self.waiting_since is None:
                    self.waiting_since = single.opened_at
            row = len(single.values)
            single.keys.append(key)
            single.values.append(value)
            single.size += size
            if partition is not None:
                single.partitions[row] = partition
            if timestamp_ms is not None:
                single.timestamps[row] = timestamp_ms
            if headers:
                single.headers[row] = headers
            if single.size >= self._config.batch_size:
                self._close_single()
            return Delivery(single.block, row)

    def grant(self, size: int, records: int) -> None:
        """Room in the buffer memory that was reserved for single records to come."""
        with self.lock:
            self.granted_size += size
            self.granted_records += records

    def reclaim(self) -> tuple[int, int]:
        """Take the room back that no single record has used yet: bytes and records."""
        with self.lock:
            size, records = max(0, self.granted_size), self.granted_records
            self.granted_size -= size
            self.granted_records = 0
            return size, records

    def append_columns(
        self,
        columns: RecordColumns,
        sizes: Rows,
        partition: Partitions | None,
        block: DeliveryBlock,
        first_row: int,
    ) -> None:
        """Take columns in. Raises `RecordError` or `ProducerClosedError`, and then has taken none of them."""
        with self.lock:
            if self.closed:
                raise ProducerClosedError("the producer takes no more records")
            self._close_single()
            grouped = self._group(columns, sizes, partition)
            self._append(columns, sizes, grouped, block, first_row, self._clock())

    def shut(self) -> None:
        """Take nothing more in, and close whatever still waits."""
        with self.lock:
            self.closed = True
            self._close_all(lambda _queue: True)

    def close_waiting(self, due: Callable[[PartitionQueue], bool]) -> bool:
        """Close the single records, and the chunks of the queues that are ``due``.

        False, and nothing done, while somebody appends: the sender must not queue up behind a busy caller.
        """
        if not self.lock.acquire(blocking=False):
            return False
        try:
            self._close_all(due)
        finally:
            self.lock.release()
        return True

    def _close_all(self, due: Callable[[PartitionQueue], bool]) -> None:
        self._close_single()
        now = self._clock()
        closed = [queue.close_chunks(now) for queue in self.queues if queue.chunks and due(queue)]
        self._ready([batch for batch in closed if batch is not None])
        self.waiting_since = min((q.opened_at for q in self.queues if q.chunks), default=None)

    def _close_single(self) -> None:
        single, self.single = self.single, None
        if single is None:
            return
        count = len(single.values)
        single.block.start(count, None)
        try:
            columns = single.columns(self._encoder.clock_ms())
            sizes = reckon_sizes(columns)
            grouped = self._group(columns, sizes, single.partition_column())
        except Exception as error:  # noqa: BLE001 - a partitioner may raise anything, and `send` has returned long ago
            parts = [Part(single.block, np.arange(count), 0)]
            self._ready([self._nowhere.failed(parts, single.size, single.opened_at, error)])
            return
        single.block.start(count, columns.timestamp_ms)
        # `send` reckoned each record's size before it knew its neighbours; the grant makes up the difference.
        self.granted_size += single.size - int(sizes.sum())
        self._append(columns, sizes, grouped, single.block, 0, single.opened_at)

    def _group(self, columns: RecordColumns, sizes: Rows, partition: Partitions | None) -> tuple[Rows, Rows]:
        """The rows by partition, and where each partition's begin among them."""
        chosen = self._choose(columns, sizes, partition)
        try:
            return group_rows(chosen, len(self.queues))
        except ValueError:
            raise self._outside(chosen) from None

    def _append(
        self,
        columns: RecordColumns,
        sizes: Rows,
        grouped: tuple[Rows, Rows],
        block: DeliveryBlock,
        first_row: int,
        since: float,
    ) -> None:
        """Take rows in. What goes wrong from here on is reported to their block: some may be under way."""
        order, bounds = grouped
        held: list[tuple[PartitionQueue, Rows, int]] = []
        for p in np.flatnonzero(np.diff(bounds)).tolist():
            queue, rows = self.queues[p], order[bounds[p] : bounds[p + 1]]
            row_sizes = sizes[rows]
            closed, taken = queue.cut(columns, rows, row_sizes, (block, first_row), self._limits, since)
            self._ready(closed)
            if taken < len(rows):
                held.append((queue, rows[taken:], int(row_sizes[taken:].sum())))
        self._hold(columns, held, block, first_row, since)

    def _hold(
        self,
        columns: RecordColumns,
        held: list[tuple[PartitionQueue, Rows, int]],
        block: DeliveryBlock,
        first_row: int,
        since: float,
    ) -> None:
        """Copy what is left over out of ``columns``, in one go for all partitions: nothing keeps the rest
        alive."""
        if not held:
            return
        try:
            kept = take_columns(columns, np.concatenate([rows for _, rows, _ in held]))
        except Exception as error:  # noqa: BLE001 - other rows of the call may be under way
            failed = [q.failed([Part(block, rows, first_row)], size, since, error) for q, rows, size in held]
            self._ready(failed)
            return
        start = 0
        if self.waiting_since is None:
            self.waiting_since = since
        for queue, rows, size in held:
            own = kept.slice(start, start + len(rows))
            queue.hold(Chunk(own, [Part(block, rows, first_row)], size), since)
            start += len(rows)

    def _choose(self, columns: RecordColumns, sizes: Rows, partition: Partitions | None) -> Partitions:
        """The partition of each record: the one given, else the partitioner's."""
        if partition is None:
            return self._partitioner.assign(columns.key, sizes, self.targets)
        missing = np.flatnonzero(partition < 0)
        if not len(missing):
            return partition
        keys = None if columns.key is None else columns.key.take(pa.array(missing))
        chosen = partition.copy()
        try:
            chosen[missing] = self._partitioner.assign(keys, sizes[missing], self.targets)
        except RecordError as error:
            raise RecordError(error.reason, self.topic, int(missing[error.row or 0])) from None
        return chosen

    def _outside(self, chosen: npt.NDArray[Any]) -> RecordError:
        row = int(np.flatnonzero((chosen < 0) | (chosen >= len(self.queues)))[0])
        has = f"the topic has {len(self.queues)} partitions, 0 to {len(self.queues) - 1}"
        return PartitionOutsideError(f"there is no partition {chosen[row]}: {has}", self.topic, row)


class PartitionOutsideError(RecordError):
    """A partition that the topic does not have (as far as the producer knows)."""
