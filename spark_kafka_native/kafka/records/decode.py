"""A fetched record set becomes columns: every record of every batch that the reader is to see, nothing else.

It does no I/O and knows no topic; whoever fetched the bytes adds the topic-partition to an error
(`CorruptRecordError.at`). A broker's bytes are untrusted: every bound is checked, memory is bounded by the
size of the record set and ``max_batch_bytes``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import numpy.typing as npt

from ..model import AbortedTransaction, HeaderKeys
from .assemble import assemble_columns, raise_bad_record
from .batch import CONTROL, LOG_APPEND_TIME, BatchHeaders, check_batches, read_batch_headers
from .bodies import Bodies, load_bodies, read_body
from .columns import RecordColumns
from .compression import MAX_DECOMPRESSED_BYTES
from .control import find_aborted_batches
from .kernel import chosen as kernel
from .scanned import Scan, ScannedRecords

I64 = npt.NDArray[np.int64]

ALL_COLUMNS = frozenset(field.name for field in fields(RecordColumns)) - {"length"}
"""The names that ``columns`` may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRecordSet:
    """The records of a record set that the reader sees, and where to go on."""

    columns: RecordColumns
    next_offset: int
    """Where to fetch from next: behind everything that was read, hidden records and gaps included."""
    consumed_bytes: int
    """How much of the record set is done with. A set too large for one call (see ``max_batch_bytes``) or cut
    by ``max_records`` is read on from here: decode ``data[consumed_bytes:]`` with
    ``fetch_offset=next_offset`` and these ``aborted_transactions``."""
    incomplete_batch_bytes: int | None
    """The size of the batch that is cut off at the end of the set (brokers do that), None where there is
    none. If nothing else is in the set, this is what a fetch must allow to get on."""
    aborted_transactions: tuple[AbortedTransaction, ...] | None
    """What is left of the aborted transactions, for reading on in the same record set; None as in the
    call."""


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
    ignored, control batches are never shown. ``columns`` names the fields of RecordColumns that are wanted
    (None: all); what is not wanted is not built, and where offsets alone are wanted most records are not even
    looked at. ``header_keys`` says what becomes of a header key that is not UTF-8. ``aborted_transactions``
    is the fetch response's list for a read_committed reader (an empty one too), None for read_uncommitted. No
    batch may decompress to more than ``max_batch_bytes``, and a call stops, at a batch, once it has that
    much, or ``max_bytes`` where they are given; ``max_records`` stop it after so many records.

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
        # Reading stops within or behind the last batch that was scanned, whatever lies behind it.
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
    """Return the batches that have records for the reader, and what is left of the aborted transactions."""
    shown = (headers.last_offset >= fetch_offset) & (headers.count > 0) & ~headers.has(CONTROL)
    left = None
    if aborted_transactions is not None:
        hidden, left = find_aborted_batches(headers, aborted_transactions, read)
        shown &= ~hidden
    return shown.nonzero()[0], left


def _cut_to_records(headers: BatchHeaders, asked: I64, max_records: int | None) -> I64:
    """Return as many of the ``asked`` batches as it takes to have ``max_records`` (or more) records."""
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
    """Return the next offset to fetch and how many bytes are done with."""
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
