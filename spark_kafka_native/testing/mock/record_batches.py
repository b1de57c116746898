"""Record batches by the book (KIP-98): the header's fields, the checksum, the records one at a time.

The third look at the format, beside the columns' decoder and Kafka's own: nothing of ``kafka.records`` is
used here.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fastcrc

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
