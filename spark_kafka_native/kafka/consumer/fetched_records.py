"""`FetchedRecords`: records of one partition as columns, and how they are decoded from a fetch response;
`WorkUnit`: an event about such a range of offsets on its way through a consumer.

Decoding advances the `FetchPosition` of the partition; it does no I/O.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import pyarrow as pa

from ..config.client_config import ConsumerConfig
from ..errors import CorruptRecordError
from ..model import AbortedTransaction, IsolationLevel, TopicPartition
from ..protocol.api.fetch import PartitionData
from ..records.batch import EpochRanges, read_batch_headers
from ..records.columns import RecordColumns
from ..records.decode import DecodedSlice, RecordSetSlice, decode_record_set, decode_record_sets
from .partition_state import FetchPosition, PartitionState

DECODED_BYTES = 4 * 1024 * 1024
"""Limit of decompressed records in one `FetchedRecords` (a larger batch comes alone): what fits into a CPU
cache is copied fast, and a reader's memory does not depend on how well a topic compresses.
"""
SMALL_BYTES = 32 * 1024
"""Limit of a record set that is decoded together with others: for a larger one it saves nothing."""
GROUP_BYTES = 1024 * 1024
"""Limit of the record sets decoded together, as received and decompressed: their records share memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecords:
    """Records of one partition, in offset order: all records in ``[from_offset, next_offset)``.

    There may be fewer records than offsets, or none (compaction, control batches, aborted transactions).
    """

    topic_partition: TopicPartition
    columns: RecordColumns
    from_offset: int
    next_offset: int
    """Where the next `FetchedRecords` of this partition starts; at most the range's until_offset."""
    log_start_offset: int
    """-1 if the broker does not report it."""
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int = -1
    """That of the last batch before ``next_offset``; -1 if it is not known."""
    epoch_ranges: EpochRanges = field(default=(), repr=False)
    """Of the batches in which these records came, and perhaps of later ones."""
    resets: int = field(default=0, repr=False)
    """How often ``auto.offset.reset`` had moved a reader's position before they were fetched."""

    @property
    def nbytes(self) -> int:
        """Bytes that the columns take in memory."""
        columns = self.columns
        parts = (columns.offset, columns.timestamp_ms, columns.timestamp_type, columns.headers)
        binary = sum(_binary_bytes(array) for array in (columns.key, columns.value) if array is not None)
        return binary + sum(part.nbytes for part in parts if part is not None)


class ReceivedRecords(NamedTuple):
    """The part of a response with records to decode. Without records, it was proved that there are none
    before ``position.received_until``.
    """

    state: PartitionState
    data: PartitionData
    moves: int
    """Of the position, when they were received: once it was moved, they are dropped."""


def group_small_sets(received: Iterable[ReceivedRecords]) -> Iterator[list[ReceivedRecords]]:
    """All of ``received`` in order: small neighbours in one group, each of the others alone."""
    group: list[ReceivedRecords] = []
    group_bytes = 0
    for one in received:
        size = _size_if_small(one)
        if group and (size is None or group_bytes + size > GROUP_BYTES):
            yield group
            group, group_bytes = [], 0
        if size is None:
            yield [one]
        else:
            group.append(one)
            group_bytes += size
    if group:
        yield group


def decode_group(
    group: Sequence[ReceivedRecords], config: ConsumerConfig, columns: frozenset[str] | None
) -> Sequence[DecodedSlice | None]:
    """Decode a group from the positions of its partitions; None for each record set to decode alone."""
    decoded = None
    if len(group) > 1:
        decoded = decode_record_sets(
            [
                RecordSetSlice(
                    data.records or memoryview(b""), state.position.offset, state.position.until_offset
                )
                for state, data, _ in group
            ],
            columns=columns,
            header_keys=config.header_keys,
            check_crcs=config.check_crcs,
            max_bytes=min(GROUP_BYTES, config.max_batch_bytes),
        )
    return [None] * len(group) if decoded is None else decoded


def decode_fetched(
    position: FetchPosition,
    data: PartitionData,
    config: ConsumerConfig,
    columns: frozenset[str] | None,
    decoded: DecodedSlice | None = None,
) -> Iterator[FetchedRecords]:
    """Decode ``data`` from the position: mostly one `FetchedRecords`, more if the records decompress to
    more than `DECODED_BYTES`. Advances the position; stops if the caller has moved or paused the partition
    meanwhile. ``decoded`` are the records if `decode_group` has decoded them already.

    Raises `CorruptRecordError` with the partition and the offset after the batches before that offset were
    yielded: a caller that skips the offset must not skip them unread.
    """
    if not data.records:
        yield _nothing(position, data, config, columns)
        return
    if (
        decoded is not None
        and decoded.from_offset == position.offset
        and decoded.next_offset >= position.received
    ):
        position.advance(decoded.next_offset)
        yield _fetched(position, data, decoded.from_offset, decoded.columns)
        return
    moves = position.moves
    try:
        yield from _decode(position, data, data.records, config, columns)
    except CorruptRecordError as error:
        yield from _decode(position, data, _before(data.records, error.offset), config, columns)
        if position.moves == moves:
            raise error.at(position.topic_partition) from None


def aborted_transactions(data: PartitionData, config: ConsumerConfig) -> Sequence[AbortedTransaction] | None:
    """The transactions with records that a committed reader does not see; None for an uncommitted reader."""
    if config.isolation_level is not IsolationLevel.READ_COMMITTED:
        return None
    return [
        AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
        for one in data.aborted_transactions or ()
    ]


def _decode(
    position: FetchPosition,
    data: PartitionData,
    records: memoryview,
    config: ConsumerConfig,
    columns: frozenset[str] | None,
) -> Iterator[FetchedRecords]:
    aborted = aborted_transactions(data, config)
    expected, moves, check_crcs = position.received, position.moves, config.check_crcs
    while records:
        from_offset = position.offset
        decoded = decode_record_set(
            records,
            fetch_offset=from_offset,
            until_offset=position.until_offset,
            columns=columns,
            check_crcs=check_crcs,
            max_batch_bytes=config.max_batch_bytes,
            aborted_transactions=aborted,
            max_bytes=DECODED_BYTES,
            header_keys=config.header_keys,
        )
        position.advance(min(decoded.next_offset, position.until_offset))
        yield _fetched(position, data, from_offset, decoded.columns)
        if position.moves != moves:
            return
        # The rest at the end is usually a part of a batch, and not worth decoding.
        if decoded.consumed_bytes == 0 or position.offset >= expected:
            break
        records, aborted = records[decoded.consumed_bytes :], decoded.aborted_transactions
        check_crcs = False  # the first call checked all batches
    if position.offset < expected:
        position.rewind()  # the request that was sent ahead does not fit any more


def _before(records: memoryview, offset: int) -> memoryview:
    """The batches in front of the first one that claims to reach ``offset``: by place, as an offset that is
    corrupt itself must not cause any to be skipped.
    """
    headers = read_batch_headers(records)
    before = (headers.base_offset < offset) & (headers.last_offset < offset)
    count = len(before) if before.all() else int(before.argmin())
    return records[: int(headers.end[count - 1])] if count else records[:0]


def _nothing(
    position: FetchPosition, data: PartitionData, config: ConsumerConfig, columns: frozenset[str] | None
) -> FetchedRecords:
    """No records before ``received``, and the position moves there."""
    from_offset = position.offset
    none = decode_record_set(b"", fetch_offset=from_offset, columns=columns, header_keys=config.header_keys)
    position.advance(position.received)
    return _fetched(position, data, from_offset, none.columns)


def _fetched(
    position: FetchPosition, data: PartitionData, from_offset: int, columns: RecordColumns
) -> FetchedRecords:
    return FetchedRecords(
        topic_partition=position.topic_partition,
        columns=columns,
        from_offset=from_offset,
        next_offset=position.offset,
        log_start_offset=data.log_start_offset,
        high_watermark=data.high_watermark,
        last_stable_offset=data.last_stable_offset,
        leader_epoch=position.offset_epoch,
        epoch_ranges=position.epoch_ranges,
    )


def _size_if_small(received: ReceivedRecords) -> int | None:
    records = received.data.records
    if not records or len(records) > SMALL_BYTES or received.data.aborted_transactions:
        return None
    return len(records)


def _binary_bytes(array: pa.BinaryArray) -> int:
    # Arrow's own `nbytes` takes 15 us, too much for a small record set of a quiet partition.
    rows = len(array)
    return int(array.total_values_length) + 4 * rows + (rows + 7) // 8 * bool(array.null_count)


class WorkStatus(enum.Enum):
    """The stage that the range has reached."""

    FETCHED = "fetched"
    """The records wait to be handed out."""
    HANDED_OUT = "handed_out"
    """The caller has the records, or is getting them one by one."""
    GIVEN_BACK = "given_back"
    """The caller did not get the records, or the rest of them, after all: they wait again."""
    DROPPED = "dropped"
    """The records will not be handed out: the partition was moved, paused or removed. They may be fetched
    again."""
    COMMITTED = "committed"
    """The group has committed the range: any member continues after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkUnit:
    """One event for each stage. Ranges may be cut differently from stage to stage."""

    topic_partition: TopicPartition
    status: WorkStatus
    from_offset: int
    until_offset: int
    """Exclusive."""
    records: int | None
    """Fewer than offsets if some are hidden; None if unknown."""
    at: float = field(default_factory=time.time)
    """Seconds since the epoch."""

    @classmethod
    def of(cls, fetched: FetchedRecords, status: WorkStatus) -> Self:
        """The event that ``fetched`` has reached ``status``."""
        return cls(
            topic_partition=fetched.topic_partition,
            status=status,
            from_offset=fetched.from_offset,
            until_offset=fetched.next_offset,
            records=fetched.columns.length,
        )

    @property
    def length(self) -> int:
        """The number of offsets in the range."""
        return self.until_offset - self.from_offset

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "event": "work_unit",
            "at": self.at,
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "status": self.status.value,
            "from_offset": self.from_offset,
            "until_offset": self.until_offset,
            "length": self.length,
            "records": self.records,
        }
