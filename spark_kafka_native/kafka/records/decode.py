"""Fetched record sets become columns: `decode_record_set` for one set, `decode_record_sets` for many small
ones in one pass.

Decoding does no I/O and knows no topic; the caller adds the topic-partition to an error
(`CorruptRecordError.at`). A broker's bytes are untrusted: every bound is checked, memory is bounded by the
size of the record set and ``max_batch_bytes``. Keys, values and headers are copied here and nowhere else
(`assemble_columns`). An error that explains the fault of a record comes from a second reader, slow and
simple, which reads a single record that a kernel refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import CorruptRecordError
from ..model import AbortedTransaction, HeaderKeys
from .batch import (
    CONTROL,
    LOG_APPEND_TIME,
    BatchHeaders,
    BatchWalk,
    check_batches,
    find_aborted_batches,
    pass_checks,
    read_batch_headers,
    read_headers,
    walk_batches,
)
from .columns import HEADERS_AS_BYTES_TYPE, HEADERS_TYPE, HeaderKeyError, RecordColumns, read_header_keys
from .compression import MAX_DECOMPRESSED_BYTES
from .kernel import chosen as kernel
from .scan import SAME_TIMESTAMP, BadRecord, Bodies, Scan, ScannedRecords, Source, load_bodies, read_body
from .varint import VARINT_BYTES, VARLONG_BYTES, read_varint

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Batches = npt.NDArray[np.void]

_INT64_MAX = 2**63 - 1
_INT64_MIN = -(2**63)

ALL_COLUMNS = frozenset(field.name for field in fields(RecordColumns)) - {"length"}
"""The names that ``columns`` may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRecordSet:
    """The visible records of a record set, and where to continue."""

    columns: RecordColumns
    next_offset: int
    """The next offset to fetch: behind everything that was read, hidden records and gaps included."""
    consumed_bytes: int
    """The size of the part of the record set that is finished. To continue in a set that is too large for one
    call (see ``max_batch_bytes``) or cut by ``max_records``, decode ``data[consumed_bytes:]`` with
    ``fetch_offset=next_offset`` and these ``aborted_transactions``."""
    incomplete_batch_bytes: int | None
    """The size of the batch that is cut off at the end of the set (brokers do that), None if there is none.
    If the set holds nothing else, a fetch must allow this many bytes to make progress."""
    aborted_transactions: tuple[AbortedTransaction, ...] | None
    """The aborted transactions that can still hide records behind ``consumed_bytes``, for continuing in the
    same record set; None if the call gave None."""


def decode_record_set(  # noqa: PLR0913 - one call for a whole record set
    data: bytes | bytearray | memoryview,
    *,
    fetch_offset: int,
    until_offset: int | None = None,
    columns: frozenset[str] | None = None,
    header_keys: HeaderKeys = HeaderKeys.STRICT,
    check_crcs: bool = True,
    max_batch_bytes: int = MAX_DECOMPRESSED_BYTES,
    aborted_transactions: Sequence[AbortedTransaction] | None = None,
    max_records: int | None = None,
    max_bytes: int | None = None,
) -> DecodedRecordSet:
    """Decode the record batches (v2) in ``data`` into one `RecordColumns`.

    Records before ``fetch_offset`` and from ``until_offset`` on are dropped, a batch cut off at the end is
    ignored, control batches are never shown. ``columns`` names the fields of RecordColumns to build (None:
    all); if only offsets are wanted, most records are not even read. ``header_keys`` decides how a header key
    that is not UTF-8 is returned. ``aborted_transactions`` is the fetch response's list for a read_committed
    reader (also if it is empty), None for read_uncommitted. No batch may decompress to more than
    ``max_batch_bytes``. A call stops at the end of a batch once it has read ``max_bytes`` (default:
    ``max_batch_bytes``), or after ``max_records`` records.

    Raises `CorruptRecordError` with the offset for anything that breaks the format, and ValueError for
    misuse.
    """
    wanted = _check_arguments(fetch_offset, columns, max_batch_bytes, max_records)
    data = memoryview(data).cast("B")
    headers = read_batch_headers(data, until_offset)
    check_batches(data, headers, check_crcs=check_crcs)
    read = partial(read_body, data, headers, max_batch_bytes=max_batch_bytes)
    asked, left = _find_shown(headers, fetch_offset, aborted_transactions, read)
    chosen = _cut_to_records(headers, asked, max_records)
    bodies = load_bodies(data, headers, chosen, wanted, max_batch_bytes, max_bytes or max_batch_bytes)
    scan = _scan(bodies, wanted, fetch_offset, until_offset, max_records)
    types = headers.has(LOG_APPEND_TIME)[bodies.chosen].astype(np.int8)
    if scan.cut or len(bodies.chosen) < len(asked):
        # Reading stops within or behind the last batch that was scanned, so later batches do not count.
        headers = headers.first(int(bodies.chosen[-1]) + 1)
        if aborted_transactions is not None:
            left = find_aborted_batches(headers, aborted_transactions, read)[1]
    next_offset, consumed_bytes = _find_end(headers, scan, fetch_offset, until_offset)
    return DecodedRecordSet(
        columns=assemble_columns(scan, wanted, types, header_keys),
        next_offset=next_offset,
        consumed_bytes=consumed_bytes,
        incomplete_batch_bytes=headers.incomplete_batch_bytes,
        aborted_transactions=left,
    )


def _check_arguments(
    fetch_offset: int, columns: frozenset[str] | None, max_batch_bytes: int, max_records: int | None
) -> frozenset[str]:
    unknown = (columns or frozenset()) - ALL_COLUMNS
    if unknown:
        raise ValueError(f"no such columns: {sorted(unknown)}; there are {sorted(ALL_COLUMNS)}")
    if fetch_offset < 0:
        raise ValueError(f"fetch_offset must not be negative: {fetch_offset}")
    if max_batch_bytes < 1 or (max_records is not None and max_records < 1):
        raise ValueError(
            f"max_batch_bytes ({max_batch_bytes}) and max_records ({max_records}) must be positive"
        )
    return ALL_COLUMNS if columns is None else columns


def _find_shown(
    headers: BatchHeaders,
    fetch_offset: int,
    aborted_transactions: Sequence[AbortedTransaction] | None,
    read: Callable[[int], memoryview],
) -> tuple[I64, tuple[AbortedTransaction, ...] | None]:
    """Return the batches that have records for the reader, and the aborted transactions that remain."""
    shown = (headers.last_offset >= fetch_offset) & (headers.count > 0) & ~headers.has(CONTROL)
    left = None
    if aborted_transactions is not None:
        hidden, left = find_aborted_batches(headers, aborted_transactions, read)
        shown &= ~hidden
    return shown.nonzero()[0], left


def _cut_to_records(headers: BatchHeaders, asked: I64, max_records: int | None) -> I64:
    """Return the first of the ``asked`` batches that together have at least ``max_records`` records."""
    if max_records is None:
        return asked
    return asked[: int(np.searchsorted(np.cumsum(headers.count[asked]), max_records)) + 1]


def _scan(
    bodies: Bodies,
    wanted: frozenset[str],
    fetch_offset: int,
    until_offset: int | None,
    max_records: int | None,
) -> Scan:
    sources, batches = kernel.join_sources(bodies.sources, bodies.batches)
    records = ScannedRecords.allocate(int(batches["count"].sum()), wanted)
    bad = kernel.scan_records(sources, batches, records)
    if bad is not None:
        raise_bad_record(sources, batches, records, bad)
    low = int(np.searchsorted(records.offset, fetch_offset))
    high = len(records.offset) if until_offset is None else int(np.searchsorted(records.offset, until_offset))
    high = max(low, high)
    cut = max_records is not None and high - low > max_records
    if max_records is not None and cut:
        high = low + max_records
    return Scan(sources, batches, records, low, high, cut)


def _find_end(
    headers: BatchHeaders, scan: Scan, fetch_offset: int, until_offset: int | None
) -> tuple[int, int]:
    """Return the next offset to fetch and the number of finished bytes."""
    if scan.cut:
        return int(scan.records.offset[scan.high - 1]) + 1, int(headers.start[-1])
    next_offset, consumed_bytes = fetch_offset, 0
    if len(headers.start):
        next_offset, consumed_bytes = int(headers.last_offset[-1]) + 1, int(headers.end[-1])
    if until_offset is not None:
        if next_offset > until_offset:
            consumed_bytes = int(headers.start[-1]) if len(headers.start) else 0
        if headers.reached_until or next_offset > until_offset:
            next_offset = until_offset
    return max(next_offset, fetch_offset), consumed_bytes


# --- many small record sets in one pass ---------------------------------------------------------------------


class RecordSetSlice(NamedTuple):
    """A record set and the range of offsets to read. No aborted transaction may hide any of its records."""

    data: memoryview
    fetch_offset: int
    until_offset: int


class DecodedSlice(NamedTuple):
    """The visible records of a `RecordSetSlice`."""

    columns: RecordColumns
    """Views: the sets of one call share their memory."""
    from_offset: int
    """The ``fetch_offset`` of the slice."""
    next_offset: int
    """As in `DecodedRecordSet`."""


class _DecodeSeparatelyError(Exception):
    """The sets have to be decoded one by one."""


def decode_record_sets(
    sets: Sequence[RecordSetSlice],
    *,
    columns: frozenset[str] | None,
    header_keys: HeaderKeys,
    check_crcs: bool,
    max_bytes: int,
) -> list[DecodedSlice] | None:
    """Decode each of ``sets`` as `decode_record_set` does, all in one pass.

    A pass over columns costs the same for one record as for thousands, and a task over many quiet partitions
    gets a few records of each. Returns None if the sets have to be decoded one by one, so that each reports
    its own error: one of them is corrupt or has no complete batch, or together they decompress to more than
    ``max_bytes`` plus one batch.
    """
    wanted = ALL_COLUMNS if columns is None else columns
    walks = [walk_batches(one.data, one.until_offset) for one in sets]
    try:
        joined = _join(sets, walks, check_crcs=check_crcs)
        whole, edges = _decode(joined, sets, wanted, header_keys, max_bytes)
    except (_DecodeSeparatelyError, CorruptRecordError):
        return None
    last = np.searchsorted(joined.owner, np.arange(len(sets)), "right") - 1
    last_offsets = joined.headers.last_offset[last].tolist()
    return [
        DecodedSlice(whole.slice(low, high), one.fetch_offset, _next_offset(one, walk, last_offset))
        for one, walk, last_offset, (low, high) in zip(
            sets, walks, last_offsets, pairwise(edges), strict=True
        )
    ]


class _Joined(NamedTuple):
    """The sets one after the other."""

    data: memoryview
    headers: BatchHeaders
    owner: I64
    """The index of each batch's set."""


def _join(sets: Sequence[RecordSetSlice], walks: Sequence[BatchWalk], *, check_crcs: bool) -> _Joined:
    if not all(walk.starts and walk.fault is None for walk in walks):
        raise _DecodeSeparatelyError
    data = memoryview(b"".join([one.data for one in sets]))
    bases = accumulate((len(one.data) for one in sets), initial=0)
    starts = [base + start for base, walk in zip(bases, walks, strict=False) for start in walk.starts]
    headers = read_headers(data, BatchWalk(starts))
    counts = np.array([len(walk.starts) for walk in walks])
    if not pass_checks(data, headers, counts.cumsum() - counts, check_crcs=check_crcs):
        raise _DecodeSeparatelyError
    return _Joined(data, headers, np.arange(len(sets)).repeat(counts))


def _decode(
    joined: _Joined,
    sets: Sequence[RecordSetSlice],
    wanted: frozenset[str],
    header_keys: HeaderKeys,
    max_bytes: int,
) -> tuple[RecordColumns, list[int]]:
    """Return the records of all sets, and the rows between which those of each set lie."""
    data, headers, owner = joined
    fetch = np.array([one.fetch_offset for one in sets])
    until = np.array([one.until_offset for one in sets])
    shown = (headers.last_offset >= fetch[owner]) & (headers.count > 0) & ~headers.has(CONTROL)
    asked = shown.nonzero()[0]
    bodies = load_bodies(data, headers, asked, wanted, max_bytes, max_bytes)
    if len(bodies.chosen) < len(asked):
        raise _DecodeSeparatelyError
    sources, batches = kernel.join_sources(bodies.sources, bodies.batches)
    records = ScannedRecords.allocate(int(batches["count"].sum()), wanted)
    if kernel.scan_records(sources, batches, records) is not None:
        raise _DecodeSeparatelyError
    in_batch = np.arange(len(batches)).repeat(batches["count"])
    in_set = owner[asked][in_batch]
    keep = (records.offset >= fetch[in_set]) & (records.offset < until[in_set])
    if not keep.all():
        records, in_set = records.where(keep), in_set[keep]
        batches["count"] = np.bincount(in_batch[keep], minlength=len(batches))
    scan = Scan(sources, batches, records, 0, len(in_set), cut=False)
    types = headers.has(LOG_APPEND_TIME)[asked].astype(np.int8)
    whole = assemble_columns(scan, wanted, types, header_keys)
    return whole, np.searchsorted(in_set, np.arange(len(sets) + 1)).tolist()


def _next_offset(one: RecordSetSlice, walk: BatchWalk, last_offset: int) -> int:
    behind = one.until_offset if walk.reached_until else min(last_offset + 1, one.until_offset)
    return max(behind, one.fetch_offset)


def assemble_columns(
    scan: Scan, wanted: frozenset[str], timestamp_types: npt.NDArray[np.int8], header_keys: HeaderKeys
) -> RecordColumns:
    """Build the ``wanted`` columns of the rows that the reader requested.

    ``timestamp_types`` has one entry per batch. `CorruptRecordError` if headers break the format.
    """
    sources, batches, scanned, low, high, _ = scan
    ends = (batches["count"].cumsum() - low).clip(0, high - low)
    owners = np.ascontiguousarray(batches["source"])
    picked = scanned.rows(low, high)
    key = value = headers = types = None
    if picked.key_start is not None and picked.key_length is not None:
        key = kernel.gather_binary(sources, ends, owners, picked.key_start, picked.key_length)
    if picked.value_start is not None and picked.value_length is not None:
        value = kernel.gather_binary(sources, ends, owners, picked.value_start, picked.value_length)
    if picked.headers_start is not None:
        headers = _build_headers(sources, ends, owners, picked, header_keys)
    if "timestamp_type" in wanted:
        types = np.repeat(timestamp_types, batches["count"])[low:high]
    return RecordColumns(
        length=high - low,
        offset=picked.offset if "offset" in wanted else None,
        timestamp_ms=picked.timestamp_ms,
        timestamp_type=types,
        key=key,
        value=value,
        headers=headers,
    )


def raise_bad_record(
    sources: Sequence[Source], batches: Batches, scanned: ScannedRecords, bad: BadRecord
) -> NoReturn:
    """Raise a `CorruptRecordError` that explains the fault of the record that a kernel refused."""
    batch = batches[bad.batch]
    base_offset, count, end = (int(batch[name]) for name in ("base_offset", "count", "end"))
    if bad.record == count:
        message = f"{end - bad.position} bytes are left over behind the {count} records of the batch"
        raise CorruptRecordError(message, base_offset)
    previous_delta = -1
    if bad.record:
        row = int(batches["count"][: bad.batch].sum()) + bad.record - 1
        previous_delta = int(scanned.offset[row]) - base_offset
    reason = _explain_record(
        memoryview(sources[int(batch["source"])]),
        bad.position,
        end,
        timestamp=None if int(batch["flags"]) & SAME_TIMESTAMP else int(batch["timestamp"]),
        previous_delta=previous_delta,
        last_offset_delta=int(batch["last_offset_delta"]),
    )
    raise CorruptRecordError(f"record {bad.record} of the batch is malformed: {reason}", base_offset)


def _build_headers(
    sources: Sequence[Source], ends: I64, owners: I64, rows: ScannedRecords, header_keys: HeaderKeys
) -> pa.Array:
    starts, limits, counts = rows.headers_start, rows.headers_end, rows.headers_count
    assert starts is not None
    assert limits is not None
    assert counts is not None
    has_headers = counts > 0
    kind = HEADERS_AS_BYTES_TYPE if header_keys is HeaderKeys.BYTES else HEADERS_TYPE
    # Headers are rare: this is the usual case.
    if not has_headers.any():
        return pa.nulls(len(counts), kind)
    found = kernel.scan_headers(sources, ends, owners, starts, limits, counts)
    if isinstance(found, int):
        source = sources[int(owners[np.searchsorted(ends, found, side="right")])]
        reason = _explain_headers(
            memoryview(source), int(starts[found]), int(limits[found]), int(counts[found])
        )
        raise CorruptRecordError(
            f"the headers of the record are malformed: {reason}", int(rows.offset[found])
        )
    key_start, key_length, value_start, value_length = found
    edges = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=edges[1:])
    header_ends = edges[ends].astype(np.int64)
    key = kernel.gather_binary(sources, header_ends, owners, key_start, key_length)
    value = kernel.gather_binary(sources, header_ends, owners, value_start, value_length)
    try:
        key = read_header_keys(key, header_keys)
    except HeaderKeyError as error:
        row = int(np.searchsorted(edges, error.index, side="right")) - 1
        raise CorruptRecordError(
            f"a header key of the record is {error.reason}", int(rows.offset[row])
        ) from None
    structs = pa.StructArray.from_arrays([key, value], fields=list(kind.value_type))
    validity = None if has_headers.all() else pa.py_buffer(np.packbits(has_headers, bitorder="little"))
    return pa.Array.from_buffers(kind, len(counts), [validity, pa.py_buffer(edges)], children=[structs])


class _Reader:
    def __init__(self, data: memoryview, position: int, end: int) -> None:
        self.data, self.position, self.end = data, position, end

    def varint(self, name: str, max_bytes: int = VARINT_BYTES) -> int:
        try:
            value, self.position = read_varint(self.data[: self.end], self.position, max_bytes)
        except ValueError as error:
            raise ValueError(f"its {name} {error}") from None
        return value

    def span(self, name: str, min_length: int) -> int:
        """Read a length and skip as many bytes; ``min_length`` is -1 where null is allowed."""
        length = self.varint(f"{name} length")
        if length < min_length:
            raise ValueError(f"its {name} length is {length}")
        if length > self.end - self.position:
            raise ValueError(f"its {name} length is {length}, {self.end - self.position} bytes are left")
        self.position += max(length, 0)
        return length


def _explain_record(
    data: memoryview,
    position: int,
    end: int,
    *,
    timestamp: int | None,
    previous_delta: int,
    last_offset_delta: int,
) -> str:
    """Return the fault of the record at ``position`` of a batch with records up to ``end``.

    ``timestamp`` is the batch's base timestamp, None if the timestamps of the records do not count.
    """
    try:
        reader = _Reader(data, position, end)
        length = reader.varint("length")
        if not 0 <= length <= end - reader.position:
            return f"its length is {length}, {end - reader.position} bytes are left in the batch"
        reader.end = reader.position + length
        reader.position += 1
        delta = reader.varint("timestamp delta", VARLONG_BYTES)
        if timestamp is not None and not _INT64_MIN <= timestamp + delta <= _INT64_MAX:
            return f"its timestamp {timestamp} + {delta} does not fit 64 bits"
        delta = reader.varint("offset delta")
        if not previous_delta < delta <= last_offset_delta:
            return f"its offset delta is {delta}, expected {previous_delta + 1} to {last_offset_delta}"
        reader.span("key", -1)
        reader.span("value", -1)
        headers_count = reader.varint("headers count")
        if not 0 <= headers_count <= (reader.end - reader.position) // 2:
            return f"it claims {headers_count} headers, {reader.end - reader.position} bytes are left"
        return _skip_headers(reader, headers_count)
    except ValueError as error:
        return str(error)


def _explain_headers(data: memoryview, position: int, end: int, headers_count: int) -> str:
    """Return the fault of the headers of a record, which begin at ``position`` and end at ``end``."""
    try:
        return _skip_headers(_Reader(data, position, end), headers_count)
    except ValueError as error:
        return str(error)


def _skip_headers(reader: _Reader, headers_count: int) -> str:
    for _ in range(headers_count):
        reader.span("header key", 0)
        reader.span("header value", -1)
    return f"{reader.end - reader.position} bytes are left over behind its {headers_count} headers"
