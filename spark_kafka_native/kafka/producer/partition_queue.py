"""`PartitionQueue`: what waits to be sent to one partition, in order.

Rows wait in chunks until they make a batch; batches wait until the sender takes them. The topic's lock
guards the chunks; the batches are appended by whoever closes one, and everything else is the sender's
thread's own.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from ..model import TopicPartition
from ..records.columns import RecordColumns
from .batch import Batch, Part
from .delivery import DeliveryBlock
from .encoder import BATCH_OVERHEAD, BatchEncoder
from .errors import RecordError
from .gather import Rows, concat_columns, take_columns

MOST_CHUNKS = 64
"""Chunks are joined beyond this: each may keep the memory of its neighbours in other partitions alive."""


class Chunk(NamedTuple):
    """Rows that wait for more: ``columns`` are exactly those rows, the part says where they came from."""

    columns: RecordColumns
    parts: list[Part]
    size: int


class _Rows(NamedTuple):
    """Rows of ``columns`` that complete a batch: the part says which."""

    columns: RecordColumns
    part: Part
    size: int


class PartitionQueue:
    """The queue of one topic-partition."""

    def __init__(self, topic_partition: TopicPartition, encoder: BatchEncoder) -> None:
        self.topic_partition = topic_partition
        self._encoder = encoder
        self._orders = 0
        # Guarded by the topic's lock.
        self.chunks: list[Chunk] = []
        self.chunk_size = 0
        self.chunk_records = 0
        self.opened_at = 0.0
        # The sender's own, but that batches are appended from outside.
        self.batches: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.sent_to: int | None = None
        """The broker that was sent what is in flight: a new leader gets nothing before all of it has come
        back."""
        self.draining = False
        """A batch failed while others were in flight: nothing is sent before they have come back."""
        self.not_before = 0.0
        """Monotonic seconds; backoff."""
        self.failures = 0
        self.renumber = False
        """Its numbers can't be accepted any more: once nothing is in flight, all that waits gets new ones."""
        self.unknown_since: float | None = None
        self.spilling = False
        """An earlier batch went to the spill folder; what comes later must not overtake it."""

    def cut(
        self,
        columns: RecordColumns,
        rows: Rows,
        sizes: Rows,
        part: tuple[DeliveryBlock, int],
        limits: BatchLimits,
        now: float,
    ) -> tuple[list[Batch], int]:
        """Close as many full batches as ``rows`` make; ``sizes`` are those of ``rows``.

        Returns them, and how many of the rows they took: the caller keeps the rest with `hold`.
        """
        ends = np.cumsum(sizes)
        start, closed = 0, []
        while start < len(rows):
            taken = int(ends[start - 1]) if start else 0
            room = limits.size - self.chunk_size
            fit = int(np.searchsorted(ends, taken + room, side="right")) - start
            fit = min(fit, limits.records - self.chunk_records)
            left = len(rows) - start
            if (
                fit >= left
                and self.chunk_size + int(ends[-1]) - taken < limits.direct
                and not limits.full(self, left)
            ):
                break
            if fit <= 0:
                # Nothing more fits to what waits; a record that fits nowhere goes alone and is judged when
                # encoded.
                fit = 0 if self.chunk_records else 1
            stop = start + min(fit, left)
            size = int(ends[stop - 1]) - taken if stop > start else 0
            more = _Rows(columns, Part(part[0], rows[start:stop], part[1]), size) if stop > start else None
            closed.append(self._close(more, now))
            start = stop
        return closed, start

    def hold(self, chunk: Chunk, since: float) -> None:
        """Keep rows that don't make a batch yet; they have waited since then."""
        if not self.chunks:
            self.opened_at = since
        self.chunks.append(chunk)
        self.chunk_size += chunk.size
        self.chunk_records += chunk.columns.length
        if len(self.chunks) > MOST_CHUNKS:
            try:
                self._join_chunks()
            except MemoryError:
                return  # they stay as they are, and are joined when they are encoded

    def close_chunks(self, now: float) -> Batch | None:
        """Make a batch of what waits, however little; None if nothing does."""
        return self._close(None, now) if self.chunks else None

    def put_back(self, batch: Batch) -> None:
        """A batch that must be sent again goes to its old place."""
        place = 0
        while place < len(self.batches) and self.batches[place].order < batch.order:
            place += 1
        self.batches.insert(place, batch)

    def _close(self, more: _Rows | None, now: float) -> Batch:
        chunks, reserved = self.chunks, self.chunk_size
        created_at = self.opened_at if chunks else now
        self.chunks, self.chunk_size, self.chunk_records = [], 0, 0
        parts = [part for chunk in chunks for part in chunk.parts]
        if more is not None:
            reserved += more.size
            parts.append(more.part)
        now_ms = self._encoder.clock_ms()
        try:
            if more is not None and not chunks:
                return self._batch(more.columns, more.part.rows, reserved, parts, created_at, now_ms)
            columns = [chunk.columns for chunk in chunks]
            if more is not None:
                columns.append(take_columns(more.columns, more.part.rows))
            return self._batch(concat_columns(columns, now_ms), None, reserved, parts, created_at, now_ms)
        except Exception as error:  # noqa: BLE001 - whatever it is, the records' owners must hear of it
            return self.failed(parts, reserved, created_at, error)

    def failed(self, parts: list[Part], reserved: int, created_at: float, cause: Exception) -> Batch:
        """A batch that stands for records which could not be encoded: `Batch.failure` says why."""
        failure = cause
        if not isinstance(failure, RecordError):
            failure = RecordError(f"the records could not be encoded: {cause!r}", self.topic_partition.topic)
            failure.__cause__ = cause
        self._orders += 1
        records = sum(len(part.rows) for part in parts)
        batch = Batch(self, b"", records, reserved, parts, created_at, -1, (self._orders,))
        batch.failure = failure
        return batch

    def _batch(
        self,
        columns: RecordColumns,
        rows: Rows | None,
        reserved: int,
        parts: list[Part],
        created_at: float,
        now_ms: int,
    ) -> Batch:
        records = columns.length if rows is None else len(rows)
        # Rows of their own columns take what was reserved for them; joined ones may take more.
        at_most = None if rows is None else reserved
        data = self._encoder.encode(columns, rows, now_ms, at_most)
        self._orders += 1
        return Batch(self, data, records, reserved, parts, created_at, now_ms, (self._orders,))

    def _join_chunks(self) -> None:
        now_ms = self._encoder.clock_ms()
        parts = [part for chunk in self.chunks for part in chunk.parts]
        joined = concat_columns([chunk.columns for chunk in self.chunks], now_ms)
        self.chunks = [Chunk(joined, parts, self.chunk_size)]


class BatchLimits(NamedTuple):
    """When rows make a batch."""

    size: int
    """Bytes of records, before compression, at most."""
    records: int
    direct: int
    """Rows of one call that make so many bytes are not held back for more: joining them later would cost a
    copy."""

    @classmethod
    def of(cls, batch_size: int, batch_records: int, most_bytes: int | None) -> BatchLimits:
        """From the configured sizes and the most bytes that a whole batch may have (None: compressed,
        unknown)."""
        size = batch_size if most_bytes is None else min(batch_size, most_bytes - BATCH_OVERHEAD)
        return cls(size=max(1, size), records=batch_records, direct=max(1, min(size, batch_size // 8)))

    def full(self, queue: PartitionQueue, more: int) -> bool:
        """Whether ``more`` rows fill the batch by their number."""
        return queue.chunk_records + more >= self.records
