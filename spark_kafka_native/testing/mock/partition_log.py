"""`PartitionLog`: what a mock broker keeps of one partition, and the rules by which it takes batches in."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

from ...kafka.error_code import ErrorCode
from .record_batches import BatchHeader, build_marker, place_batch, read_records, split_batches

_SEQUENCES = 1 << 31
"""Sequence numbers start again from 0 after the largest int32."""


@dataclass
class _ProducerState:
    """The state of one idempotent producer: its last five batches, as a broker keeps them."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))
    """First sequence number, last sequence number, base offset."""


@dataclass
class PartitionLog:
    """Batches in order of arrival, and the leader of the partition. The cluster's lock protects it."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int = 0
    log_start_offset: int = 0
    end_offset: int = 0
    batches: list[bytes] = field(default_factory=list)
    open_transactions: dict[int, int] = field(default_factory=dict)
    """Where each begins that has no marker so far, by producer id."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, first offset, offset of the marker."""
    _producers: dict[int, _ProducerState] = field(default_factory=dict)

    @property
    def last_stable_offset(self) -> int:
        """Where the first open transaction begins, or the log's end."""
        return min(self.open_transactions.values(), default=self.end_offset)

    def append(self, record_set: bytes) -> tuple[ErrorCode, int]:
        """Take in what a producer sends: an error code, and the base offset.

        A batch that is here already gets the offset that it has (KIP-98); one that does not follow the
        producer's last one is refused.
        """
        try:
            batches = list(split_batches(record_set))
        except ValueError:
            return ErrorCode.CORRUPT_MESSAGE, -1
        if len(batches) != 1:
            return ErrorCode.INVALID_RECORD, -1
        header = BatchHeader.read(batches[0])
        if header.records_count <= 0 or header.last_offset_delta != header.records_count - 1:
            return ErrorCode.INVALID_RECORD, -1
        code, known = self._check_sequence(header)
        if code or known >= 0:
            return code, known
        base = self._store(batches[0], header.records_count)
        if header.is_transactional:
            self.open_transactions.setdefault(header.producer_id, base)
        if header.producer_id >= 0:
            last = (header.base_sequence + header.last_offset_delta) % _SEQUENCES
            self._producers[header.producer_id].batches.append((header.base_sequence, last, base))
        return ErrorCode.NONE, base

    def _store(self, batch: bytes, records_count: int) -> int:
        base = self.end_offset
        self.batches.append(place_batch(batch, base, self.leader_epoch))
        self.end_offset = base + records_count
        return base

    def end_transaction(self, producer_id: int, epoch: int, now_ms: int, *, committed: bool) -> None:
        """Append a marker; its epoch fences older producers."""
        marker = self._store(build_marker(producer_id, epoch, now_ms, committed=committed), 1)
        begins = self.open_transactions.pop(producer_id, None)
        if begins is not None and not committed:
            self.aborted.append((producer_id, begins, marker))
        state = self._producers.get(producer_id)
        if state is None or state.epoch < epoch:
            self._producers[producer_id] = _ProducerState(epoch)

    def aborted_from(self, offset: int, until: int) -> list[dict[str, int]]:
        """The aborted transactions that have records there, in the form of a Fetch answer."""
        return [
            {"producer_id": producer_id, "first_offset": first}
            for producer_id, first, marker in self.aborted
            if marker >= offset and first < until
        ]

    def is_visible(self, batch: bytes) -> bool:
        """True if a read_committed consumer sees it."""
        header = BatchHeader.read(batch)
        at = header.base_offset
        hidden = any(
            producer_id == header.producer_id and first <= at <= marker
            for producer_id, first, marker in self.aborted
        )
        return at < self.last_stable_offset and not (hidden and header.is_transactional)

    def _check_sequence(self, header: BatchHeader) -> tuple[ErrorCode, int]:
        """An error, or the offset at which the batch is already, or -1."""
        if header.producer_id < 0:
            return ErrorCode.NONE, -1
        state = self._producers.get(header.producer_id)
        if state is not None and header.producer_epoch < state.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if state is None or header.producer_epoch > state.epoch:
            if header.base_sequence != 0 and state is not None:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self._producers[header.producer_id] = _ProducerState(header.producer_epoch)
            return ErrorCode.NONE, -1
        last = (header.base_sequence + header.last_offset_delta) % _SEQUENCES
        for first_known, last_known, offset in state.batches:
            if (first_known, last_known) == (header.base_sequence, last):
                return ErrorCode.NONE, offset
        if state.batches and header.base_sequence != (state.batches[-1][1] + 1) % _SEQUENCES:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        return ErrorCode.NONE, -1

    def read(self, offset: int, max_bytes: int, until: int) -> bytes:
        """Whole batches from the one that holds ``offset``, up to either limit, and at least one if there is
        one before ``until``.
        """
        found: list[bytes] = []
        size = 0
        first = bisect_left(self.batches, offset, key=lambda batch: BatchHeader.read(batch).last_offset)
        for batch in itertools.islice(self.batches, first, None):
            if BatchHeader.read(batch).base_offset >= until:
                break
            if found and size + len(batch) > max_bytes:
                break
            found.append(batch)
            size += len(batch)
        return b"".join(found)

    def offset_at(self, timestamp: int) -> tuple[int, int]:
        """As ListOffsets: an offset and its record's timestamp, each -1 where there is none."""
        if timestamp in (-2, -4):
            return self.log_start_offset, -1
        if timestamp == -1:
            return self.end_offset, -1
        records = [
            record
            for batch in self.batches
            for record in read_records(self.topic, self.partition, batch)
            if record.offset >= self.log_start_offset
        ]
        if timestamp == -3:
            highest = max(records, key=lambda record: record.timestamp_ms, default=None)
            return (-1, -1) if highest is None else (highest.offset, highest.timestamp_ms)
        for record in records:
            if record.timestamp_ms >= timestamp >= 0:
                return record.offset, record.timestamp_ms
        return -1, -1

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The newest epoch up to ``epoch`` that has records, and where it ends (KIP-320); the epoch itself
        if none has, -1 and -1 for one that is still to come.
        """
        if epoch > self.leader_epoch:
            return -1, -1
        if epoch == self.leader_epoch:
            return epoch, self.end_offset
        found = epoch
        for batch in self.batches:
            header = BatchHeader.read(batch)
            if header.partition_leader_epoch > epoch:
                return found, header.base_offset
            found = header.partition_leader_epoch
        return found, self.end_offset

    def delete_before(self, offset: int) -> None:
        """Move the log's start; batches that lie wholly before it are gone."""
        self.log_start_offset = offset
        self.batches = [batch for batch in self.batches if BatchHeader.read(batch).last_offset >= offset]
