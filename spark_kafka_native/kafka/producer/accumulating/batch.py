"""`Batch`: one encoded record batch on its way to one partition; how columns become its bytes, how large they
will be, and how its bytes become columns again (to split it, or to hand its records back).

It knows nothing of sending: no thread, socket or broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...config.client_config import ProducerConfig
from ...errors import ConfigError
from ...model import TopicPartition
from ...records.columns import RecordColumns, build_index
from ...records.compression import Codec, compress
from ...records.decode import decode_record_set
from ...records.encode import encode_record_batch, record_sizes
from ..delivery import DeliveryBlock, Outcome, Rows
from ..errors import DeliveryStatus, RecordError
from ..spill_folder import SpilledBatch

_MAX_FRAME_BYTES = 22
"""Bytes of a record beyond key and value when each of its lengths and deltas is as long as it can be, the
timestamp's delta (up to 5 of them for 12 days) included; records without headers only."""


class ProducerIdentity(NamedTuple):
    """What InitProducerId answered, with an epoch that this client may have raised since."""

    producer_id: int
    producer_epoch: int


class Part(NamedTuple):
    """Records of a batch that were handed over together: ``rows`` of ``block``, counted from
    ``first_row``."""

    block: DeliveryBlock
    rows: npt.NDArray[np.int64]
    first_row: int


class Origin(NamedTuple):
    """Where the rows of some columns come from: row i is row ``first_row + i`` of ``block``, or ``rows[i]``
    where that is given."""

    block: DeliveryBlock
    first_row: int = 0
    rows: npt.NDArray[np.int64] | None = None

    def part(self, rows: npt.NDArray[np.int64]) -> Part:
        """``rows`` of the columns, as those of a batch."""
        if self.rows is None:
            return Part(self.block, rows, self.first_row)
        return Part(self.block, self.rows[rows], 0)


@dataclass(slots=True)
class SendingState:
    """How far a batch has come on its way into the log. Only `PartitionQueue` writes it."""

    since: float
    """Monotonic seconds from which the delivery timeout counts: those of the batch's first record, or of its
    turn if it comes from the spill folder."""
    attempts: int = 0
    identity: ProducerIdentity | None = None
    base_sequence: int = -1
    indefinite: bool = False
    """True if an attempt with an unknown outcome was made, of it or of one that it is a half of."""
    unheard: bool = False
    """True if it was one of its own."""
    last_error: Exception | None = None
    again: bool = False
    """True for a half of one that was sent: it goes alone, as one that is sent again."""
    of_indefinite: bool = False
    """True for a half of one that may be in the log as a whole: as brokers don't recognise halves, it may be
    there where it is out of order. That one of the halves is in the log shows that the whole is not."""

    def note_unheard(self) -> None:
        """An attempt has an unknown outcome."""
        self.indefinite = self.unheard = True


@dataclass(slots=True, eq=False, repr=False)
class Batch:
    """Encoded once; from its first sending on its bytes never change, as the broker recognises a retry by
    them.

    The sender's thread owns it once it was handed over. Only `PartitionQueue` writes ``sending``, and
    ``data`` when it is read from the spill folder; only `Spilling` writes ``spilled`` and
    ``has_older_entry``; only `BatchCompletion` writes the state of its end. The rest never changes.
    """

    topic_partition: TopicPartition
    data: bytes | bytearray | memoryview
    """Empty until it is read from the spill folder, and once the batch has ended."""
    records: int
    reserved: int
    """Bytes of buffer memory that its end gives back."""
    parts: list[Part]
    encoded_at_ms: int
    order: tuple[int, ...]
    """Place among the batches of its partition; a retried batch goes back to it, and halves lie within
    it."""
    sending: SendingState
    failure: RecordError | None = None
    """Why its records could not be encoded: they alone are given up, in their turn."""
    spilled: SpilledBatch | None = None
    has_older_entry: bool = False
    """True if ``spilled`` lacks the numbers under which the batch was sent: the folder could not take
    them."""
    reported_before: bool = False
    """True if the end of its records was reported before, as kept in the spill folder: it is reported
    once."""
    ended: bool = False
    reported: bool = False
    """True once the end of its records was reported: only then may a flush return."""
    children: list[Batch] = field(default_factory=list)
    """What it was split into."""

    @classmethod
    def from_folder(cls, entry: SpilledBatch, order: tuple[int, ...]) -> Batch:
        """A batch of the spill folder, which holds its bytes until it is sent."""
        sending = SendingState(time.monotonic())
        return cls(entry.topic_partition, b"", entry.records, 0, [], -1, order, sending, spilled=entry)

    def sent_again_from(self, entry: SpilledBatch) -> Batch:
        """The batch as it will be sent again from the spill folder: with its place, its numbers and what its
        attempts have shown.

        The numbers in ``entry`` itself may be older, where the folder could not take the new ones.
        """
        again = Batch.from_folder(entry, self.order)
        again.reported_before = True
        again.has_older_entry = self.has_older_entry
        again.sending = replace(self.sending, since=again.sending.since, attempts=0, last_error=None)
        return again

    @property
    def undelivered_status(self) -> DeliveryStatus:
        """The delivery status of the batch if it is given up now."""
        return DeliveryStatus.POSSIBLY_PERSISTED if self.sending.indefinite else DeliveryStatus.NOT_PERSISTED

    @property
    def complete(self) -> bool:
        """True if all of its records have ended, those of its splits included."""
        if self.children:
            return all(child.complete for child in self.children)
        return self.reported

    def report(self, outcome: Outcome) -> None:
        """Report the end to the calls that handed the records over."""
        first = 0
        for part in self.parts:
            part.block.report(part.rows + part.first_row if part.first_row else part.rows, first, outcome)
            first += len(part.rows)
        self.reported = True

    def divide_parts(self, records: int) -> tuple[list[Part], list[Part]]:
        """Its parts, cut after the first ``records`` records."""
        head: list[Part] = []
        tail: list[Part] = []
        for part in self.parts:
            cut = min(records, len(part.rows))
            if cut:
                head.append(Part(part.block, part.rows[:cut], part.first_row))
            if cut < len(part.rows):
                tail.append(Part(part.block, part.rows[cut:], part.first_row))
            records -= cut
        return head, tail

    def __repr__(self) -> str:
        return f"<Batch {self.topic_partition} {self.records} records, {self.sending.attempts} attempts>"


def read_records(batch: Batch) -> RecordColumns:
    """The records of ``batch``, from its own bytes or from the spill folder; offsets count from 0."""
    data = batch.spilled.read() if batch.spilled is not None and not batch.data else batch.data
    return decode_record_set(memoryview(data), fetch_offset=0).columns


def split_batch(batch: Batch, encoder: BatchEncoder) -> tuple[Batch, Batch]:
    """Two halves in order, of a batch that is known not to be in the log and has at least two records.

    They have no sequence numbers yet: `PartitionQueue.take_over` gives them those of ``batch``.
    """
    columns = read_records(batch)
    middle = columns.length // 2
    head, tail = batch.divide_parts(middle)
    halves: list[Batch] = []
    for start, stop, parts in ((0, middle, head), (middle, columns.length, tail)):
        data = encoder.encode(columns.slice(start, stop), None, batch.encoded_at_ms)
        share = batch.reserved * stop // columns.length - batch.reserved * start // columns.length
        half = Batch(
            batch.topic_partition,
            data,
            stop - start,
            share,
            parts,
            batch.encoded_at_ms,
            (*batch.order, len(halves)),
            SendingState(batch.sending.since),
        )
        halves.append(half)
    return halves[0], halves[1]


class BatchEncoder:
    """Encodes in the caller's thread. Has no state but its configuration."""

    def __init__(
        self,
        config: ProducerConfig,
        clock_ms: Callable[[], int] | None = None,
        *,
        transactional: bool = False,
    ) -> None:
        self._transactional = transactional
        self.codec = Codec[config.compression_type.upper()]
        self._level = config.compression_level
        try:
            # Once now: a level that the codec does not have fails here, and a codec that is imported on first
            # use is still there when the interpreter ends.
            compress(self.codec, b"", self._level)
        except ValueError as error:
            raise ConfigError(f"compression.level={self._level} can't be used: {error}") from error
        self.clock_ms = clock_ms or (lambda: time.time_ns() // 1_000_000)

    @property
    def compresses(self) -> bool:
        """True if a batch can come out smaller than its records."""
        return self.codec is not Codec.NONE

    def encode(
        self, columns: RecordColumns, rows: Rows | None, now_ms: int, at_most: int | None = None
    ) -> bytearray | memoryview:
        """``rows`` of ``columns`` (None: all) as a record batch; without timestamps they get ``now_ms``.

        ``at_most`` is the sum of what `max_record_sizes` returns for these very columns.
        """
        return encode_record_batch(
            columns,
            rows=rows,
            at_most=at_most,
            codec=self.codec,
            level=self._level,
            now_ms=now_ms,
            transactional=self._transactional,
        )


def max_record_sizes(columns: RecordColumns) -> Rows:
    """An upper bound on the bytes that each record takes in a batch; int64[n]. Cheaper than `record_sizes` (a
    fifth of its time) and a few bytes too high, which only makes batches that much smaller."""
    if columns.headers is not None or _is_spread(columns.timestamp_ms):
        return record_sizes(columns)
    sizes = np.full(columns.length, _MAX_FRAME_BYTES, np.int64)
    for column in (columns.key, columns.value):
        if column is None or not columns.length:
            continue
        offsets = column.buffers()[1]
        wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
        kind = np.dtype(np.int64 if wide else np.int32)
        edges: npt.NDArray[Any] = np.frombuffer(
            offsets, kind, columns.length + 1, column.offset * kind.itemsize
        )
        sizes += edges[1:]
        sizes -= edges[:-1]
    return sizes


def _is_spread(timestamps: npt.NDArray[np.int64] | None) -> bool:
    """True if a delta may take more than 4 bytes."""
    if timestamps is None or not len(timestamps):
        return False
    return int(timestamps.max()) - int(timestamps.min()) >= 1 << 27


def take_columns(columns: RecordColumns, rows: Rows) -> RecordColumns:
    """``rows`` in their order, copied: the result keeps nothing of ``columns`` alive."""
    index = build_index(rows)
    return RecordColumns(
        length=len(rows),
        timestamp_ms=None if columns.timestamp_ms is None else columns.timestamp_ms[rows],
        key=None if columns.key is None else columns.key.take(index),
        value=None if columns.value is None else columns.value.take(index),
        headers=None if columns.headers is None else columns.headers.take(index),
    )


def concat_columns(parts: Sequence[RecordColumns], now_ms: int) -> RecordColumns:
    """All ``parts`` one after the other.

    A column that only some parts have is filled in the others: null, or ``now_ms`` for the timestamp.
    """
    if len(parts) == 1:
        return parts[0]
    timestamps = None
    if any(part.timestamp_ms is not None for part in parts):
        timestamps = np.concatenate(
            [np.full(p.length, now_ms, np.int64) if p.timestamp_ms is None else p.timestamp_ms for p in parts]
        )
    return RecordColumns(
        length=sum(part.length for part in parts),
        timestamp_ms=timestamps,
        key=_concat([part.key for part in parts], parts),
        value=_concat([part.value for part in parts], parts),
        headers=_concat([part.headers for part in parts], parts),
    )


def _concat(arrays: list[pa.Array | None], parts: Sequence[RecordColumns]) -> pa.Array | None:
    types = [array.type for array in arrays if array is not None]
    if not types:
        return None
    given = pa.large_binary() if pa.large_binary() in types else types[0]
    filled = []
    for array, part in zip(arrays, parts, strict=True):
        column = pa.nulls(part.length, given) if array is None else array
        filled.append(column if column.type == given else column.cast(given))
    return pa.concat_arrays(filled)
