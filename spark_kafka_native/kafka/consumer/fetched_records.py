"""`FetchedRecords`: records of one partition as columns, and how they are decoded from a fetch response."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from ..config.client_config import ConsumerConfig
from ..errors import CorruptRecordError
from ..model import AbortedTransaction, IsolationLevel, TopicPartition
from ..protocol.api.fetch import PartitionData
from ..records.batch import read_batch_headers
from ..records.columns import RecordColumns
from ..records.decode import DecodedSlice, RecordSetSlice, decode_record_set, decode_record_sets
from .partition_state import PartitionState

DECODED_BYTES = 4 * 1024 * 1024
"""Decompressed records in one `FetchedRecords` (a larger batch comes alone): what fits into a CPU cache is
copied fast, and a reader's memory does not depend on how well a topic compresses.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecords:
    """Records of one partition, in offset order: all that there are in ``[from_offset, next_offset)``.

    There may be fewer than offsets, or none (compaction, control batches, aborted transactions).
    """

    topic_partition: TopicPartition
    columns: RecordColumns
    from_offset: int
    next_offset: int
    """Where the next `FetchedRecords` of this partition starts; at most the range's until_offset."""
    log_start_offset: int
    """-1 where the broker does not say."""
    high_watermark: int
    last_stable_offset: int

    @property
    def nbytes(self) -> int:
        """Bytes that the columns take in memory."""
        columns = self.columns
        parts = (columns.offset, columns.timestamp_ms, columns.timestamp_type, columns.headers)
        binary = sum(_binary_bytes(array) for array in (columns.key, columns.value) if array is not None)
        return binary + sum(part.nbytes for part in parts if part is not None)


class Taken(NamedTuple):
    """Records of a partition that are to be decoded, unless it was moved meanwhile; none where it was proved
    that there are none up to where the state has taken them.
    """

    state: PartitionState
    data: PartitionData
    moves: int


def _binary_bytes(array: pa.BinaryArray) -> int:
    # Arrow's own `nbytes` takes 15 us, which a small piece of a quiet partition is not worth.
    rows = len(array)
    return int(array.total_values_length) + 4 * rows + (rows + 7) // 8 * bool(array.null_count)


def decode_fetched(
    state: PartitionState,
    data: PartitionData,
    config: ConsumerConfig,
    columns: frozenset[str] | None,
    decoded: DecodedSlice | None = None,
) -> Iterator[FetchedRecords]:
    """The records in ``data`` from the partition's position on: mostly one `FetchedRecords`, more where they
    unpack to a lot. Moves the position; stops where the caller has moved or paused the partition meanwhile.
    What is ``decoded`` already is not decoded again.

    Raises `CorruptRecordError` with the partition and the offset, once the batches before that one are handed
    out: whoever skips it by its offset must not skip them unread.
    """
    if not data.records:
        yield _nothing(state, data, config, columns)
        return
    if decoded is not None and decoded.from_offset == state.position and _is_all(decoded, state):
        state.advance(decoded.next_offset)
        yield _fetched(state, data, decoded.from_offset, decoded.columns)
        return
    moves = state.moves
    try:
        yield from _decode(state, data, data.records, config, columns)
    except CorruptRecordError as error:
        yield from _decode(state, data, _before(data.records, error.offset), config, columns)
        if state.moves == moves:
            raise error.at(state.topic_partition) from None


def _is_all(decoded: DecodedSlice, state: PartitionState) -> bool:
    return decoded.next_offset >= _expected(state)


def _expected(state: PartitionState) -> int:
    """Where the position is once all that came is decoded; the next request begins there."""
    return min(state.taken_until, state.until_offset)


def _decode(
    state: PartitionState,
    data: PartitionData,
    records: memoryview,
    config: ConsumerConfig,
    columns: frozenset[str] | None,
) -> Iterator[FetchedRecords]:
    aborted = _aborted(data, config)
    expected = _expected(state)
    check_crcs, moves = config.check_crcs, state.moves
    while records:
        decoded = decode_record_set(
            records,
            fetch_offset=state.position,
            until_offset=state.until_offset,
            columns=columns,
            check_crcs=check_crcs,
            max_batch_bytes=config.max_batch_bytes,
            aborted_transactions=aborted,
            max_bytes=DECODED_BYTES,
            header_keys=config.header_keys,
        )
        from_offset = state.position
        state.advance(min(decoded.next_offset, state.until_offset))
        yield _fetched(state, data, from_offset, decoded.columns)
        if state.moves != moves:
            return
        # What is left at the end is usually a part of a batch, and not worth a look.
        if decoded.consumed_bytes == 0 or state.position >= expected:
            break
        records, aborted = records[decoded.consumed_bytes :], decoded.aborted_transactions
        check_crcs = False  # the first call checked all batches
    if state.position < expected:
        state.rewind()  # what was asked for meanwhile does not fit any more


def _before(records: memoryview, offset: int) -> memoryview:
    """The batches in front of the first one that says to reach ``offset``: by place, as an offset that is
    corrupt itself must not let any be skipped.
    """
    headers = read_batch_headers(records)
    before = (headers.base_offset < offset) & (headers.last_offset < offset)
    count = len(before) if before.all() else int(before.argmin())
    return records[: int(headers.end[count - 1])] if count else records[:0]


def _nothing(
    state: PartitionState, data: PartitionData, config: ConsumerConfig, columns: frozenset[str] | None
) -> FetchedRecords:
    """No records up to where the state has taken them, and the position moves there."""
    from_offset = state.position
    none = decode_record_set(b"", fetch_offset=from_offset, columns=columns, header_keys=config.header_keys)
    state.advance(min(state.taken_until, state.until_offset))
    return _fetched(state, data, from_offset, none.columns)


def _aborted(data: PartitionData, config: ConsumerConfig) -> Sequence[AbortedTransaction] | None:
    if config.isolation_level is not IsolationLevel.READ_COMMITTED:
        return None
    return [
        AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
        for one in data.aborted_transactions or ()
    ]


def _fetched(
    state: PartitionState, data: PartitionData, from_offset: int, columns: RecordColumns
) -> FetchedRecords:
    return FetchedRecords(
        topic_partition=state.topic_partition,
        columns=columns,
        from_offset=from_offset,
        next_offset=state.position,
        log_start_offset=data.log_start_offset,
        high_watermark=data.high_watermark,
        last_stable_offset=data.last_stable_offset,
    )


SMALL_BYTES = 32 * 1024
"""Of a record set: to decode a larger one costs more than what is saved by not doing it alone."""
GROUP_BYTES = 1024 * 1024
"""Of the record sets of a group, and of what they decompress to: the memory that its records share."""


def in_groups(found: Iterable[Taken]) -> Iterator[list[Taken]]:
    """All of ``found`` in its order: small neighbours together, everything else alone."""
    group: list[Taken] = []
    group_bytes = 0
    for taken in found:
        size = _size_if_small(taken)
        if group and (size is None or group_bytes + size > GROUP_BYTES):
            yield group
            group, group_bytes = [], 0
        if size is None:
            yield [taken]
        else:
            group.append(taken)
            group_bytes += size
    if group:
        yield group


def decode_group(
    group: Sequence[Taken], config: ConsumerConfig, columns: frozenset[str] | None
) -> Sequence[DecodedSlice | None]:
    """The records of each of ``group`` from its position on; None for what is to be decoded alone."""
    decoded = None
    if len(group) > 1:
        decoded = decode_record_sets(
            [
                RecordSetSlice(data.records or memoryview(b""), state.position, state.until_offset)
                for state, data, _ in group
            ],
            columns=columns,
            header_keys=config.header_keys,
            check_crcs=config.check_crcs,
            max_bytes=min(GROUP_BYTES, config.max_batch_bytes),
        )
    return [None] * len(group) if decoded is None else decoded


def _size_if_small(taken: Taken) -> int | None:
    records = taken.data.records
    if not records or len(records) > SMALL_BYTES or taken.data.aborted_transactions:
        return None
    return len(records)
