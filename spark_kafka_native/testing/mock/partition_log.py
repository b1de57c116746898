"""`PartitionLog`: one partition in a mock broker, and its record batches, by the book (KIP-98).

The header's fields, the checksum, the records one at a time: a third look at the format, beside the columns'
decoder and Kafka's own. Nothing of ``kafka.records`` is used here.
"""

from __future__ import annotations

import io
import itertools
import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import fastcrc

from ...kafka.error_code import ErrorCode
from ...kafka.model import Record

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CHECKED_FROM = 21
_BEFORE_LENGTH_ENDS = 12
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_CODECS = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY = 2
_XERIAL = b"\x82SNAPPY\0"
"""How the stream format of snappy-java begins, in which the Java client writes: 8 more bytes, then blocks."""
_crc32c = fastcrc.crc32.iscsi  # CRC-32C by its other name
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
        """Where the first open transaction begins, or the log's end; never before the log's first offset."""
        return max(self.log_start_offset, min(self.open_transactions.values(), default=self.end_offset))

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

    def cut(self, end: int) -> None:
        """Remove the batches that reach to ``end`` or beyond, and all that is known of them."""
        while self.batches and BatchHeader.read(self.batches[-1]).last_offset >= end:
            self.end_offset = BatchHeader.read(self.batches.pop()).base_offset
        end = self.end_offset
        self.open_transactions.clear()
        for header in map(BatchHeader.read, self.batches):  # one is open again that has lost its marker
            if header.attributes & _CONTROL:
                self.open_transactions.pop(header.producer_id, None)
            elif header.is_transactional:
                self.open_transactions.setdefault(header.producer_id, header.base_offset)
        self.aborted = [one for one in self.aborted if one[2] < end]
        for state in self._producers.values():
            kept = [one for one in state.batches if one[2] < end]
            state.batches.clear()
            state.batches.extend(kept)


@dataclass(frozen=True)
class BatchHeader:
    """The 61 bytes before a batch's records."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @classmethod
    def read(cls, batch: bytes) -> BatchHeader:
        """That of ``batch``. Raises `ValueError` if it is cut off."""
        if len(batch) < _HEADER.size:
            raise ValueError(f"a record batch of {len(batch)} bytes has no whole header")
        return cls(*_HEADER.unpack_from(batch))

    @property
    def is_transactional(self) -> bool:
        """True if it belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def last_offset(self) -> int:
        """That of the last record, also if it is compacted away."""
        return self.base_offset + self.last_offset_delta


def split_batches(record_set: bytes) -> Iterator[bytes]:
    """The batches of a record set, each of them checked. Raises `ValueError` for a malformed one."""
    at = 0
    while at < len(record_set):
        header = BatchHeader.read(record_set[at:])
        end = at + _BEFORE_LENGTH_ENDS + header.batch_length
        batch = record_set[at:end]
        if len(batch) < max(_HEADER.size, end - at):
            raise ValueError(f"a record batch is cut off after {len(batch)} of {end - at} bytes")
        if header.magic != 2:
            raise ValueError(f"a record batch has the format {header.magic}, not 2")
        if _crc32c(batch[_CHECKED_FROM:]) != header.crc:
            raise ValueError(f"the checksum of a record batch is not {header.crc:#x}")
        yield batch
        at = end


def place_batch(batch: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """The batch as a leader stores it; its checksum does not cover these two."""
    return struct.pack(">q", base_offset) + batch[8:12] + struct.pack(">i", leader_epoch) + batch[16:]


def build_batch(records: Sequence[Record], now_ms: int) -> bytes:
    """A batch, not compressed; records without a timestamp get ``now_ms``."""
    times = [now_ms if record.timestamp_ms < 0 else record.timestamp_ms for record in records]
    body = bytearray()
    for at, (record, time) in enumerate(zip(records, times, strict=True)):
        inside = b"\0" + _varint(time - times[0]) + _varint(at)
        inside += _sized(record.key) + _sized(record.value) + _varint(len(record.headers))
        for key, value in record.headers:
            inside += _sized(key.encode()) + _sized(value)
        body += _varint(len(inside)) + inside
    last = len(records) - 1
    return _seal(struct.pack(">hiqqqhii", 0, last, times[0], max(times), -1, -1, -1, len(records)) + body)


def build_marker(producer_id: int, epoch: int, now_ms: int, *, committed: bool) -> bytes:
    """The control batch that ends a transaction."""
    key, value = struct.pack(">hh", 0, int(committed)), struct.pack(">hi", 0, 0)
    inside = b"\0" + _varint(0) + _varint(0) + _sized(key) + _sized(value) + _varint(0)
    body = _varint(len(inside)) + inside
    attributes = _TRANSACTIONAL | _CONTROL
    return _seal(struct.pack(">hiqqqhii", attributes, 0, now_ms, now_ms, producer_id, epoch, -1, 1) + body)


def _seal(checked: bytes) -> bytes:
    rest = struct.pack(">ibI", 0, 2, _crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(rest)) + rest


def read_records(topic: str, partition: int, batch: bytes) -> list[Record]:
    """A stored batch's records; none of a control batch. Raises `ValueError` for a codec that is none."""
    header = BatchHeader.read(batch)
    if header.attributes & _CONTROL:
        return []
    body = _Varints(_decompress(header.attributes & 7, batch[_HEADER.size :]))
    is_append_time = bool(header.attributes & 8)
    return [_read_record(body, topic, partition, header, is_append_time) for _ in range(header.records_count)]


def _read_record(
    body: _Varints, topic: str, partition: int, header: BatchHeader, is_append_time: bool
) -> Record:
    body.varint()  # its length
    body.take(1)  # attributes: there are none
    time, delta = body.varint(), body.varint()
    key, value = body.sized(), body.sized()
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(body.varint()):
        name = body.sized() or b""
        headers.append((name.decode(errors="replace"), body.sized()))
    return Record(
        topic,
        partition,
        header.base_offset + delta,
        key,
        value,
        tuple(headers),
        header.max_timestamp if is_append_time else header.base_timestamp + time,
        int(is_append_time),
    )


class _Varints:
    """Reads zigzag varints, and bytes with such a varint as their length."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def varint(self) -> int:
        value = self.unsigned()
        return (value >> 1) ^ -(value & 1)

    def sized(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)


def _decompress(codec: int, data: bytes) -> bytes:
    if codec == 0:
        return data
    import pyarrow as pa  # half of what importing this package takes

    if codec == _SNAPPY:
        decompress = pa.Codec("snappy").decompress
        return b"".join(
            decompress(block, _Varints(block).unsigned(), asbytes=True) for block in _blocks(data)
        )
    if codec not in _CODECS:
        raise ValueError(f"a record batch is compressed by codec {codec}, which Kafka has not")
    read: Any = pa.CompressedInputStream(pa.input_stream(io.BytesIO(data)), _CODECS[codec])
    return bytes(read.read())


def _blocks(data: bytes) -> Iterator[bytes]:
    """The blocks of a snappy stream; the only one where it is none."""
    if not data.startswith(_XERIAL):
        yield data
        return
    at = len(_XERIAL) + 8
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def _varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def _sized(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value
