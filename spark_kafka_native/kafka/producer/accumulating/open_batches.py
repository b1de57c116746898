"""Records that wait for their batch to fill: `SingleRecords` of a topic (they came one by one, and become
columns together), and `OpenBatches`, which places columns: for each partition `WaitingRows` (chunks of
columns, which become batches together).

The topic's lock guards all of it. Nothing here knows of sending.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...model import NO_TIMESTAMP_MS, TopicPartition
from ...records.columns import RecordColumns, build_binary, build_headers, build_index
from ...records.encode import BATCH_OVERHEAD_BYTES
from ...records.hashing import group_rows
from ..delivery import DeliveryBlock, Rows, fails_records_only
from ..errors import RecordError
from .batch import Batch, BatchEncoder, Origin, Part, SendingState, concat_columns, take_columns
from .partitioner import Partitioner, Partitions, Targets
from .records_in import RecordHeaders

SingleRecord = tuple[bytes | None, bytes | None, int | None, float, RecordHeaders | None]
"""Key, value, partition, timestamp in ms (a given one is an int, the clock's has a fraction), headers."""
FIELDS = 5
_EXACT = 2.0**53
"""Whole numbers from here on are not all floats."""

MAX_CHUNKS = 64
"""Chunks are joined beyond this: each may keep the memory of its neighbours in other partitions alive."""


class SingleRecords:
    """The records of one topic, in the order of the calls. The topic's lock guards them."""

    __slots__ = ("block", "count", "fields", "full_bytes", "opened_at", "size")

    def __init__(self, block: DeliveryBlock, opened_at: float, full_bytes: int) -> None:
        self.block = block
        self.opened_at = opened_at
        self.full_bytes = full_bytes
        """They become columns once they have this size."""
        self.size = 0
        self.count = 0
        """How many records there are."""
        self.fields: list[Any] = []
        """A `SingleRecord` is added with one ``extend``: an interrupt leaves all of it in, or nothing.

        No tuple per record, as the garbage collector would go through all of them."""

    def columns(self) -> tuple[RecordColumns, Partitions | None]:
        """The records as columns, and their partitions: int32[n], -1 where none was given; None where none
        was at all."""
        keys, values, partitions, timestamps, headers = (self.fields[i::FIELDS] for i in range(FIELDS))
        n = len(values)
        columns = RecordColumns(
            length=n,
            timestamp_ms=_milliseconds(timestamps),
            key=None if _all_none(keys) else build_binary(keys),
            value=None if _all_none(values) else build_binary(values),
            headers=build_headers(headers) if any(headers) else None,
        )
        return columns, _partitions(partitions)


class Chunk(NamedTuple):
    """Rows that wait for more: ``columns`` holds exactly these rows, the part says where they came from."""

    columns: RecordColumns
    parts: list[Part]
    size: int

    @property
    def stamped_ms(self) -> int:
        """The timestamp of rows that came without one: those of a chunk have the same, or a column."""
        return self.parts[0].block.stamped_ms


class _Rows(NamedTuple):
    """Rows of ``columns`` that complete a batch."""

    columns: RecordColumns
    rows: Rows
    origin: Origin
    size: int


class SavedRows(NamedTuple):
    """The rows that waited at some moment."""

    chunks: list[Chunk]
    size: int
    records: int
    opened_at: float


class BatchLimits(NamedTuple):
    """When rows make a batch."""

    size: int
    """Bytes of records, before compression, at most."""
    records: int
    direct: int
    """Rows of one call with this many bytes are not held back for more: joining them later would cost a
    copy."""

    @classmethod
    def of(cls, batch_size: int, batch_records: int, max_bytes: int | None) -> BatchLimits:
        """From the configured sizes and the max bytes of a whole batch (None: unknown, as it is
        compressed)."""
        size = batch_size if max_bytes is None else min(batch_size, max_bytes - BATCH_OVERHEAD_BYTES)
        return cls(size=max(1, size), records=batch_records, direct=max(1, min(size, batch_size // 8)))

    def full(self, queue: WaitingRows, more: int) -> bool:
        """True if ``more`` rows fill the batch by their number."""
        return queue.chunk_records + more >= self.records


class WaitingRows:
    """Of one topic-partition."""

    def __init__(self, topic_partition: TopicPartition, encoder: BatchEncoder) -> None:
        self.topic_partition = topic_partition
        self._encoder = encoder
        self._orders = 0
        self.chunks: list[Chunk] = []
        self.chunk_size = 0
        self.chunk_records = 0
        self.opened_at = 0.0

    def cut(
        self,
        columns: RecordColumns,
        rows: Rows,
        sizes: Rows,
        origin: Origin,
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
            more = _Rows(columns, rows[start:stop], origin, size) if stop > start else None
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
        if len(self.chunks) > MAX_CHUNKS:
            try:
                self._join_chunks()
            except MemoryError:
                return  # they stay as they are, and are joined when they are encoded

    def close_chunks(self, now: float) -> Batch | None:
        """Make a batch of all waiting rows, however few; None if there are none."""
        return self._close(None, now) if self.chunks else None

    def close_alone(self, columns: RecordColumns, origin: Origin, now: float) -> Batch:
        """Make a batch of ``columns``, for which no room was reserved, beside the waiting rows."""
        parts = [origin.part(np.arange(columns.length))]
        return self._batch(columns, None, 0, parts, now, self._encoder.clock_ms())

    def saved(self) -> SavedRows:
        """The rows that wait, for `restore` after an interrupt."""
        return SavedRows(list(self.chunks), self.chunk_size, self.chunk_records, self.opened_at)

    def restore(self, saved: SavedRows) -> None:
        """Bring back the rows that waited then; harmless when repeated."""
        self.chunks = list(saved.chunks)
        self.chunk_size, self.chunk_records, self.opened_at = saved[1:]

    def _close(self, more: _Rows | None, now: float) -> Batch:
        chunks, reserved = self.chunks, self.chunk_size
        created_at = self.opened_at if chunks else now
        self.chunks, self.chunk_size, self.chunk_records = [], 0, 0
        parts = [part for chunk in chunks for part in chunk.parts]
        if more is not None:
            reserved += more.size
            parts.append(more.origin.part(more.rows))
        try:
            if more is not None and not chunks:
                stamped_ms = more.origin.block.stamped_ms
                return self._batch(more.columns, more.rows, reserved, parts, created_at, stamped_ms)
            pieces = [(chunk.columns, chunk.stamped_ms) for chunk in chunks]
            if more is not None:
                pieces.append((take_columns(more.columns, more.rows), more.origin.block.stamped_ms))
            columns, stamped_ms = _join(pieces)
            return self._batch(columns, None, reserved, parts, created_at, stamped_ms)
        except BaseException as error:  # the records' owners must hear of any exception
            if not fails_records_only(error):
                raise
            return self.failed(parts, reserved, created_at, error)

    def failed(self, parts: list[Part], reserved: int, created_at: float, cause: BaseException) -> Batch:
        """A batch that stands for records which could not be encoded: `Batch.failure` says why."""
        failure = cause
        if not isinstance(failure, RecordError):
            failure = RecordError(f"the records could not be encoded: {cause!r}", self.topic_partition.topic)
            failure.__cause__ = cause
        self._orders += 1
        records = sum(len(part.rows) for part in parts)
        sending = SendingState(created_at)
        order = (self._orders,)
        return Batch(self.topic_partition, b"", records, reserved, parts, -1, order, sending, failure)

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
        # Rows of their own columns take the room that was reserved for them; joined ones may take more.
        at_most = None if rows is None else reserved
        data = self._encoder.encode(columns, rows, now_ms, at_most)
        self._orders += 1
        sending = SendingState(created_at)
        return Batch(self.topic_partition, data, records, reserved, parts, now_ms, (self._orders,), sending)

    def _join_chunks(self) -> None:
        parts = [part for chunk in self.chunks for part in chunk.parts]
        joined, _ = _join([(chunk.columns, chunk.stamped_ms) for chunk in self.chunks])
        self.chunks = [Chunk(joined, parts, self.chunk_size)]


class Incoming(NamedTuple):
    """Records on their way into batches."""

    columns: RecordColumns
    sizes: Rows
    """Bytes of each, at most."""
    partition: Partitions | None
    """Of each, -1 where it is the partitioner's choice; None where it is for all."""
    origin: Origin


class Move:
    """Rows that are being moved: the batches that they have made, and the partitions' rows before."""

    __slots__ = ("_touched", "closed")

    def __init__(self) -> None:
        self.closed: list[Batch] = []
        self._touched: dict[WaitingRows, SavedRows] = {}

    def touch(self, rows: WaitingRows) -> None:
        """To be called before ``rows`` is changed."""
        if rows not in self._touched:
            self._touched[rows] = rows.saved()

    def put_back(self) -> None:
        """Let the partitions have the rows that they had."""
        for rows, saved in self._touched.items():
            rows.restore(saved)


class OpenBatches:
    """The open batches of one topic, one for each partition, and the partitioner that chooses among them."""

    def __init__(self, topic: str, encoder: BatchEncoder, partitioner: Partitioner) -> None:
        self.partitions: list[WaitingRows] = []
        self._topic = topic
        self._encoder = encoder
        self._partitioner = partitioner
        self._nowhere = WaitingRows(TopicPartition(topic, -1), encoder)
        """Of records for which no partition could be found."""

    def grow(self, count: int) -> None:
        """There are ``count`` partitions; none goes away."""
        for partition in range(len(self.partitions), count):
            self.partitions.append(WaitingRows(TopicPartition(self._topic, partition), self._encoder))

    @property
    def oldest(self) -> float | None:
        """When the oldest open batch was begun; None if there is none."""
        return min((rows.opened_at for rows in self.partitions if rows.chunks), default=None)

    def append(
        self, move: Move, incoming: Incoming, targets: Targets, limits: BatchLimits, since: float
    ) -> bool:
        """Make full batches of the records, and hold the rest back; False if nothing is left to be held.

        Raises `RecordError`, or any error of the partitioner; then nothing has changed.
        """
        columns, sizes, _, origin = incoming
        order, bounds = self._group(incoming, targets)
        held: list[tuple[WaitingRows, Rows, int]] = []
        for p in np.flatnonzero(np.diff(bounds)).tolist():
            waiting, rows = self.partitions[p], order[bounds[p] : bounds[p + 1]]
            row_sizes = sizes[rows]
            move.touch(waiting)
            closed, taken = waiting.cut(columns, rows, row_sizes, origin, limits, since)
            move.closed += closed
            if taken < len(rows):
                held.append((waiting, rows[taken:], int(row_sizes[taken:].sum())))
        if held:
            _hold(columns, held, origin, since)
        return bool(held)

    def close(self, move: Move, due: Callable[[WaitingRows], bool], now: float) -> None:
        """Make batches of the rows of the partitions that are ``due``, however few they are."""
        for rows in self.partitions:
            if rows.chunks and due(rows):
                move.touch(rows)
                batch = rows.close_chunks(now)
                self._partitioner.batch_closed(rows.topic_partition.partition)
                move.closed += [] if batch is None else [batch]

    def failed(self, parts: list[Part], reserved: int, created_at: float, cause: BaseException) -> Batch:
        """A batch that stands for records for which no partition was found."""
        return self._nowhere.failed(parts, reserved, created_at, cause)

    def _group(self, incoming: Incoming, targets: Targets) -> tuple[Rows, Rows]:
        """The rows by partition, and where each partition's begin among them."""
        chosen = self._choose(incoming, targets)
        try:
            return group_rows(chosen, len(self.partitions))
        except ValueError:
            raise self._outside(chosen) from None

    def _choose(self, incoming: Incoming, targets: Targets) -> Partitions:
        """The partition of each record: the one given, else the partitioner's."""
        columns, sizes, partition, _ = incoming
        if partition is None:
            return self._partitioner.assign(columns.key, sizes, targets)
        missing = np.flatnonzero(partition < 0)
        if not len(missing):
            return partition
        keys = None if columns.key is None else columns.key.take(build_index(missing))
        chosen = partition.copy()
        try:
            chosen[missing] = self._partitioner.assign(keys, sizes[missing], targets)
        except RecordError as error:
            raise RecordError(error.reason, self._topic, int(missing[error.row or 0])) from None
        return chosen

    def _outside(self, chosen: Partitions) -> RecordError:
        count = len(self.partitions)
        row = int(np.flatnonzero((chosen < 0) | (chosen >= count))[0])
        return PartitionOutsideError.of(self._topic, int(chosen[row]), count, row)


class PartitionOutsideError(RecordError):
    """A partition that the topic does not have (as far as the producer knows)."""

    @classmethod
    def of(cls, topic: str, partition: int, count: int, row: int | None) -> PartitionOutsideError:
        """The error for a record for ``partition`` of ``count``."""
        has = f"the topic has {count} partitions, 0 to {count - 1}"
        return cls(f"there is no partition {partition}: {has}", topic, row)


def _hold(
    columns: RecordColumns, held: list[tuple[WaitingRows, Rows, int]], origin: Origin, since: float
) -> None:
    """Copy the rows that are left over out of ``columns``, for all partitions at once: nothing keeps the
    rest alive."""
    kept = take_columns(columns, np.concatenate([rows for _, rows, _ in held]))
    start = 0
    for waiting, rows, size in held:
        own = kept.slice(start, start + len(rows))
        waiting.hold(Chunk(own, [origin.part(rows)], size), since)
        start += len(rows)


def _join(pieces: list[tuple[RecordColumns, int]]) -> tuple[RecordColumns, int]:
    """All of them one after the other, and the timestamp of those that have none: records keep the time at
    which they were handed over, however long they wait."""
    stamps = {stamp for columns, stamp in pieces if columns.timestamp_ms is None}
    if len(stamps) > 1:
        pieces = [
            (columns if columns.timestamp_ms is not None else _stamped(columns, stamp), stamp)
            for columns, stamp in pieces
        ]
    now_ms = max(stamps, default=NO_TIMESTAMP_MS)
    return concat_columns([columns for columns, _ in pieces], now_ms), now_ms


def _stamped(columns: RecordColumns, stamp: int) -> RecordColumns:
    return dataclasses.replace(columns, timestamp_ms=np.full(columns.length, stamp, np.int64))


def _all_none(values: list[Any]) -> bool:
    # To compare bytes with None takes 15 ns: only where it can be so.
    return values[0] is None and values.count(None) == len(values)


def _milliseconds(given: list[float]) -> npt.NDArray[np.int64]:
    times = np.fromiter(given, np.float64, len(given))
    if times.max() >= _EXACT:
        return np.fromiter(map(int, given), np.int64, len(given))
    return times.astype(np.int64)


def _partitions(given: list[int | None]) -> Partitions | None:
    """None where all are."""
    missing = given.count(None)
    if missing == len(given):
        return None
    if not missing:
        return np.fromiter(given, np.int32, len(given))
    return np.fromiter((-1 if one is None else one for one in given), np.int32, len(given))
