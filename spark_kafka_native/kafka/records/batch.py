"""Record batches on the wire: the 61-byte header (format v2, KIP-98), the walk over a record set, the checks;
control batches (commit and abort markers), and the batches that an aborted transaction hides (KIP-98).

This module reads no records but markers, which are never shown to a reader: their offsets count, and their
contents matter to read_committed readers only. A fault of the framing is kept and raised only after the
batches before it have passed their checksums, because one flipped bit in a length makes the *next* batch look
malformed.
"""

from __future__ import annotations

import enum
import heapq
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import CorruptRecordError
from ..model import AbortedTransaction
from .compression import Codec
from .crc32c import crc32c
from .varint import VARLONG_BYTES, read_varint

HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("partition_leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("records_count", ">i4"),
    ]
)
"""The header of a record batch v2, packed: 61 bytes."""


def place_of(field: str) -> int:
    """Return the position of ``field`` in the header (bytes)."""
    assert HEADER.fields is not None
    return HEADER.fields[field][1]


HEADER_BYTES = HEADER.itemsize
CRC_AT = place_of("crc")
CHECKED_FROM = place_of("attributes")
"""The checksum covers everything from the attributes to the end of the batch."""
MAGIC = 2

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

MIN_RECORD_BYTES = 7
"""Length, attributes, timestamp delta, offset delta, key length, value length, headers count: a byte each at
least."""

_FEW_BATCHES = 8
_PREFIX = struct.Struct(">qi4xb")
_LAST_OFFSET = struct.Struct(">q4xi7xi")
"""Base offset, leader epoch, last offset delta."""
LENGTH_COUNTS_FROM = place_of("partition_leader_epoch")
"""``batch_length`` counts the bytes after itself."""
_MIN_BATCH_LENGTH = HEADER_BYTES - LENGTH_COUNTS_FROM

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeaders:
    """The headers of ``n`` complete batches of a record set, as columns (int64, length n), in log order."""

    start: I64
    """The start of each batch in the record set (bytes)."""
    end: I64
    """The end of each batch."""
    base_offset: I64
    last_offset: I64
    last_offset_delta: I64
    count: I64
    attributes: I64
    base_timestamp: I64
    max_timestamp: I64
    producer_id: I64
    crc: I64
    fault: CorruptRecordError | None
    """The fault behind the last complete batch; raised by `check_batches`."""
    incomplete_batch_bytes: int | None
    """The size of the batch that is cut off at the end; None if the set ends with a complete batch."""
    reached_until: bool
    """True if the walk ended because a batch begins at or behind the until_offset."""

    @property
    def codec(self) -> I64:
        """The codec number of each batch, not checked yet."""
        return self.attributes & CODEC_MASK

    def has(self, attribute: int) -> Flags:
        """Return which batches carry ``attribute`` (`LOG_APPEND_TIME`, `TRANSACTIONAL`, `CONTROL`)."""
        carried: Flags = (self.attributes & attribute) != 0
        return carried

    def first(self, count: int) -> BatchHeaders:
        """Return the first ``count`` of these headers, as if the record set ended with them."""
        columns = {
            field.name: getattr(self, field.name)[:count]
            for field in fields(self)
            if field.name not in ("fault", "incomplete_batch_bytes", "reached_until")
        }
        return BatchHeaders(**columns, fault=None, incomplete_batch_bytes=None, reached_until=False)


def read_batch_headers(data: memoryview, until_offset: int | None = None) -> BatchHeaders:
    """Walk a record set and read the headers of its complete batches that begin before ``until_offset``."""
    walk = walk_batches(data, until_offset)
    return read_headers(data, walk)


def read_headers(data: memoryview, walk: BatchWalk) -> BatchHeaders:
    """Read the headers of the batches that a walk has found."""
    start = np.array(walk.starts, np.int64)
    if walk.starts:
        # A view with a header at every byte; indexing it copies only the real ones.
        everywhere: npt.NDArray[np.void] = np.ndarray(
            (len(data) - HEADER_BYTES + 1,), HEADER, data, strides=(1,)
        )
        header = everywhere[start]
    else:
        header = np.empty(0, HEADER)

    def column(name: str) -> I64:
        return header[name].astype(np.int64)

    base_offset, last_offset_delta = column("base_offset"), column("last_offset_delta")
    return BatchHeaders(
        start=start,
        end=start + column("batch_length") + LENGTH_COUNTS_FROM,
        base_offset=base_offset,
        last_offset=base_offset + last_offset_delta,
        last_offset_delta=last_offset_delta,
        count=column("records_count"),
        attributes=column("attributes"),
        base_timestamp=column("base_timestamp"),
        max_timestamp=column("max_timestamp"),
        producer_id=column("producer_id"),
        crc=column("crc"),
        fault=walk.fault,
        incomplete_batch_bytes=walk.incomplete_batch_bytes,
        reached_until=walk.reached_until,
    )


def check_batches(data: memoryview, headers: BatchHeaders, *, check_crcs: bool) -> None:
    """Raise `CorruptRecordError` for the first batch, in log order, with a wrong checksum or header."""
    first_bad = _find_bad(headers)
    if check_crcs:
        _check_crcs(data, headers, len(headers.start) if first_bad is None else first_bad + 1)
    if first_bad is not None:
        raise CorruptRecordError(
            _explain(headers, first_bad) or "a malformed header", int(headers.base_offset[first_bad])
        )
    if headers.fault is not None:
        raise headers.fault


def pass_checks(data: memoryview, headers: BatchHeaders, firsts: I64, *, check_crcs: bool) -> bool:
    """Return True if `check_batches` would find nothing in any of several record sets, which begin with the
    batches ``firsts``. Ignores ``fault``.
    """
    overlaps = _overlaps(headers)
    overlaps[firsts] = False
    if (_breaks_rules(headers) | overlaps).any():
        return False
    return not check_crcs or bool(has_valid_crc(data, headers).all())


def first_offset(data: memoryview) -> int | None:
    """Return the base offset of the first batch of a record set; None if there is none."""
    return _PREFIX.unpack_from(data)[0] if len(data) >= HEADER_BYTES else None


def refused_format(data: memoryview) -> CorruptRecordError | None:
    """The error for a record set that begins in another format than v2; None if it does not, or is too short
    for that.
    """
    if len(data) < _PREFIX.size:
        return None
    base_offset, _, magic = _PREFIX.unpack_from(data)
    return None if magic == MAGIC else _refuse_magic(magic, base_offset)


_MAX_EPOCHS = 64
"""How many leader epochs a reader remembers at most: one begins with each election."""
EpochRanges = tuple[tuple[int, int, int], ...]
"""Where batches of one leader epoch (KIP-101) begin, where they end, and the epoch. It is not known between
two ranges: an epoch may have begun and ended there, and its records were compacted away.
"""


class RecordSetEnd(NamedTuple):
    """Where the complete batches of a record set end, and their leader epochs."""

    next_offset: int
    leader_epoch: int
    """That of the last batch."""
    epoch_ranges: EpochRanges = ()


def end_of_batches(data: memoryview) -> RecordSetEnd | None:
    """The end of the last complete batch of a record set; None if no batch is complete.

    Reads lengths only, 0.2 us per batch, so that the next request can be sent before these records are
    decoded. Decoding checks everything, and its result counts.
    """
    position, last, size = 0, -1, len(data)
    while size - position >= HEADER_BYTES:
        length = _PREFIX.unpack_from(data, position)[1]
        if length < _MIN_BATCH_LENGTH or length > size - position - LENGTH_COUNTS_FROM:
            break
        last = position
        position += length + LENGTH_COUNTS_FROM
    if last < 0:
        return None
    base_offset, leader_epoch, last_offset_delta = _LAST_OFFSET.unpack_from(data, last)
    end = base_offset + last_offset_delta + 1
    return RecordSetEnd(end, leader_epoch, _epoch_ranges(data, leader_epoch, end))


def _epoch_ranges(data: memoryview, last_epoch: int, end: int) -> EpochRanges:
    """Those of complete batches up to offset ``end``, the last of which has ``last_epoch``. Epochs only grow
    along a log: where the first batch has it, all have."""
    ranges: list[tuple[int, int, int]] = []
    position, epoch = 0, None
    while epoch != last_epoch:
        base_offset, epoch, last_offset_delta = _LAST_OFFSET.unpack_from(data, position)
        start = ranges.pop()[0] if ranges and ranges[-1][2] == epoch else base_offset
        ranges.append((start, base_offset + last_offset_delta + 1, epoch))
        position += _PREFIX.unpack_from(data, position)[1] + LENGTH_COUNTS_FROM
    return (*ranges[:-1], (ranges[-1][0], end, last_epoch))


def epoch_before(offset: int, epoch_ranges: EpochRanges) -> int:
    """The leader epoch of the record before ``offset``; -1 if it is not known."""
    return next((epoch for start, end, epoch in epoch_ranges if start < offset <= end), -1)


def joined_ranges(known: EpochRanges, more: EpochRanges) -> EpochRanges:
    """Both, with one range for each of the latest epochs. Epochs only grow along a log: between two batches
    of the same epoch there is no other."""
    bounds: dict[int, tuple[int, int]] = {}
    for start, end, epoch in (*known, *more):
        if epoch >= 0:
            first, last = bounds.get(epoch, (start, end))
            bounds[epoch] = min(first, start), max(last, end)
    return tuple((*bounds[epoch], epoch) for epoch in sorted(bounds)[-_MAX_EPOCHS:])


class BatchWalk(NamedTuple):
    """The complete batches of a record set, and why the walk over them ended."""

    starts: list[int]
    """The positions of the complete batches (bytes)."""
    fault: CorruptRecordError | None = None
    incomplete_batch_bytes: int | None = None
    reached_until: bool = False


def walk_batches(data: memoryview, until_offset: int | None) -> BatchWalk:
    """Find the complete batches that begin before ``until_offset``; `BatchHeaders` lists the ways the walk
    can end.
    """
    # A loop over batches, 0.3 us each: every batch says where the next begins.
    starts: list[int] = []
    position, size = 0, len(data)
    read_prefix = _PREFIX.unpack_from
    while size - position >= _PREFIX.size:
        base_offset, length, magic = read_prefix(data, position)
        if magic != MAGIC:
            return BatchWalk(starts, _refuse_magic(magic, base_offset))
        if length < _MIN_BATCH_LENGTH:
            message = f"a batch of length {length}, the header alone has {_MIN_BATCH_LENGTH}"
            return BatchWalk(starts, CorruptRecordError(message, base_offset))
        if until_offset is not None and base_offset >= until_offset:
            return BatchWalk(starts, reached_until=True)
        if length > size - position - LENGTH_COUNTS_FROM:
            return BatchWalk(starts, incomplete_batch_bytes=length + LENGTH_COUNTS_FROM)
        starts.append(position)
        position += length + LENGTH_COUNTS_FROM
    # Too few bytes remain to read the batch's length; it has at least a header.
    return BatchWalk(starts, incomplete_batch_bytes=HEADER_BYTES if position < size else None)


def _refuse_magic(magic: int, base_offset: int) -> CorruptRecordError:
    if magic in (0, 1):
        return CorruptRecordError(
            f"a message of the old format v{magic} (magic {magic}, before Kafka 0.11) is not supported; "
            "let a Kafka tool copy the topic, so that it is written as record batches (magic 2)",
            base_offset,
        )
    return CorruptRecordError(
        f"unknown record format (magic {magic}); this client reads record batches v2 (magic 2)", base_offset
    )


def _find_bad(headers: BatchHeaders) -> int | None:
    """Return the first batch with a header that breaks a rule."""
    count = len(headers.start)
    # Few batches are checked one by one: 3 us each, against 30 us for a pass over columns of any length.
    few = count < _FEW_BATCHES
    suspects = range(count) if few else (_breaks_rules(headers) | _overlaps(headers)).nonzero()[0].tolist()
    return next((index for index in suspects if _explain(headers, index) is not None), None)


def _breaks_rules(headers: BatchHeaders) -> Flags:
    body = headers.end - headers.start - HEADER_BYTES
    plain = headers.codec == Codec.NONE
    count = headers.count
    bad: Flags = (headers.base_offset < 0) | (headers.last_offset_delta < 0)
    bad |= headers.last_offset < headers.base_offset
    bad |= (count < 0) | (count > headers.last_offset_delta + 1)
    bad |= headers.codec > max(Codec)
    bad |= plain & ((count * MIN_RECORD_BYTES > body) | ((count == 0) & (body > 0)))
    return bad


def _overlaps(headers: BatchHeaders) -> Flags:
    """Return which batches begin at or before the last offset of the previous batch."""
    overlaps = np.zeros(len(headers.start), np.bool_)
    overlaps[1:] = headers.base_offset[1:] <= headers.last_offset[:-1]
    return overlaps


def _explain(headers: BatchHeaders, index: int) -> str | None:
    """Explain which rule of `_breaks_rules` and `_overlaps` a batch breaks; None if it breaks none."""
    base_offset, last_offset = int(headers.base_offset[index]), int(headers.last_offset[index])
    count, delta = int(headers.count[index]), int(headers.last_offset_delta[index])
    codec = int(headers.codec[index])
    if base_offset < 0 or delta < 0 or last_offset < base_offset:
        return f"a batch from offset {base_offset} with last offset delta {delta}"
    if count < 0 or count > delta + 1:
        return f"a batch of {count} records whose last offset delta is {delta}"
    if codec > max(Codec):
        return (
            f"unknown compression codec {codec}; this client knows {', '.join(c.name.lower() for c in Codec)}"
        )
    if index and base_offset <= int(headers.last_offset[index - 1]):
        return f"a batch from offset {base_offset} after one up to {int(headers.last_offset[index - 1])}"
    body = int(headers.end[index] - headers.start[index]) - HEADER_BYTES
    if codec == Codec.NONE and (count * MIN_RECORD_BYTES > body or (not count and body)):
        return f"a batch of {count} records in {body} bytes"
    return None


def has_valid_crc(data: memoryview, headers: BatchHeaders) -> Flags:
    """Return for each batch True if its checksum matches its bytes."""
    valid: Flags = _crcs(data, headers, len(headers.start)) == headers.crc
    return valid


def _crcs(data: memoryview, headers: BatchHeaders, count: int) -> I64:
    spans = zip(headers.start[:count].tolist(), headers.end[:count].tolist(), strict=True)
    # One call per batch, 0.2 us and then tens of GB/s.
    return np.array([crc32c(data[start + CHECKED_FROM : end]) for start, end in spans], np.int64)


def _check_crcs(data: memoryview, headers: BatchHeaders, count: int) -> None:
    computed = _crcs(data, headers, count)
    wrong = np.flatnonzero(computed != headers.crc[:count])
    if wrong.size:
        index = int(wrong[0])
        raise CorruptRecordError(
            f"checksum mismatch: the batch says {int(headers.crc[index]):#010x}, "
            f"its {int(headers.end[index] - headers.start[index])} bytes have {int(computed[index]):#010x}",
            int(headers.base_offset[index]),
        )


_CONTROL_KEY = struct.Struct(">hh")
"""The key of a marker: version, type."""


class ControlType(enum.IntEnum):
    """The type of a control record. Readers ignore Kafka's further types (leader change, snapshots)."""

    ABORT = 0
    COMMIT = 1
    UNKNOWN = -1


def find_aborted_batches(
    headers: BatchHeaders,
    aborted_transactions: Sequence[AbortedTransaction],
    read_body: Callable[[int], memoryview],
) -> tuple[npt.NDArray[np.bool_], tuple[AbortedTransaction, ...]]:
    """Return which batches belong to aborted transactions, and the transactions that matter behind them.

    ``aborted_transactions`` is the fetch response's list, in any order. ``read_body(index)`` returns the
    decompressed records of a batch. The second result replaces the list when reading continues behind these
    batches: after its abort marker, a transaction must not hide records that its producer committed later.
    """
    waiting = [(aborted.first_offset, aborted.producer_id) for aborted in aborted_transactions]
    heapq.heapify(waiting)
    open_since: dict[int, int] = {}
    hidden = np.zeros(len(headers.start), np.bool_)
    transactional = headers.has(TRANSACTIONAL)
    control = headers.has(CONTROL)
    # A loop over batches, only if the broker reports aborted transactions.
    for index in np.flatnonzero(transactional).tolist():
        last_offset = int(headers.last_offset[index])
        while waiting and waiting[0][0] <= last_offset:
            first_offset, producer_id = heapq.heappop(waiting)
            open_since.setdefault(producer_id, first_offset)
        producer_id = int(headers.producer_id[index])
        if producer_id not in open_since:
            continue
        if not control[index]:
            hidden[index] = True
        elif read_marker(headers, index, read_body) is ControlType.ABORT:
            del open_since[producer_id]
    left = [AbortedTransaction(producer_id=pid, first_offset=first) for pid, first in open_since.items()]
    left += [AbortedTransaction(producer_id=pid, first_offset=first) for first, pid in sorted(waiting)]
    return hidden, tuple(left)


def read_control_type(body: memoryview) -> ControlType:
    """Return the type of the first record of a control batch; ValueError if its key can't be read.

    An unknown version or type is accepted. Only the first record counts (as in Java).
    """
    position = read_varint(body, 0)[1] + 1
    position = read_varint(body, position, VARLONG_BYTES)[1]
    position = read_varint(body, position)[1]
    key_length, position = read_varint(body, position)
    if not _CONTROL_KEY.size <= key_length <= len(body) - position:
        raise ValueError(f"its key has {key_length} bytes, a marker's has at least {_CONTROL_KEY.size}")
    _, control_type = _CONTROL_KEY.unpack_from(body, position)
    return ControlType(control_type) if control_type in (0, 1) else ControlType.UNKNOWN


def read_marker(headers: BatchHeaders, index: int, read_body: Callable[[int], memoryview]) -> ControlType:
    """Return the type of the control batch ``index``. Raises `CorruptRecordError` if it can't be read."""
    if not headers.count[index]:
        return ControlType.UNKNOWN
    try:
        return read_control_type(read_body(index))
    except ValueError as error:
        # If it were skipped, an aborted transaction might never end and hide committed records.
        raise CorruptRecordError(
            f"an unreadable control record: {error}", int(headers.base_offset[index])
        ) from error
