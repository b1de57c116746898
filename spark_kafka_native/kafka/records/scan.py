"""The input and the output of a scan: batches, decompressed within a budget, and the positions of the parts
of their records.

`load_bodies` prepares the batches, a kernel's `scan_records` fills `ScannedRecords`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import CorruptRecordError
from .batch import HEADER_BYTES, LOG_APPEND_TIME, MIN_RECORD_BYTES, BatchHeaders
from .compression import Codec, CompressionError, decompress

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Source = bytes | bytearray | memoryview

BATCH = np.dtype(
    [
        (name, np.int64)
        for name in (
            "source",
            "start",
            "end",
            "count",
            "base_offset",
            "last_offset_delta",
            "timestamp",
            "flags",
        )
    ]
)
"""A batch to scan: its records are bytes [start, end) of sources[source]; ``timestamp`` is the base
timestamp."""

SAME_TIMESTAMP = 1
"""Flag: ``timestamp`` is the timestamp of every record (LOG_APPEND_TIME)."""
DENSE = 2
"""Flag: only offsets and timestamps are wanted and the header determines them; the records are not read."""

MAX_COLUMN_BYTES = 2**31 - 1
"""The int32 offsets of an Arrow binary column reach no further; the bodies of one record set stay below it
together."""

_PLAUSIBLE_RATIO = 16
"""A compressed batch may claim this many times the records that its bytes would hold uncompressed, and be
believed without being decompressed."""


class BadRecord(NamedTuple):
    """The first record that breaks the format; ``record`` equals the batch's count if bytes are left over."""

    batch: int
    record: int
    position: int
    """The start of the record in its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedRecords:
    """``n`` records as positions in their sources. Lengths are -1 for null. None: was not requested."""

    offset: I64
    timestamp_ms: I64 | None = None
    key_start: I64 | None = None
    key_length: I32 | None = None
    value_start: I64 | None = None
    value_length: I32 | None = None
    headers_start: I64 | None = None
    headers_end: I64 | None = None
    headers_count: I32 | None = None

    @classmethod
    def allocate(cls, n: int, columns: frozenset[str]) -> ScannedRecords:
        """Allocate arrays for ``n`` records, those that ``columns`` (names of RecordColumns) need."""
        arrays: dict[str, Any] = {"offset": np.empty(n, np.int64)}
        for column in columns:
            for name, kind in _SCANNED.get(column, {}).items():
                arrays[name] = np.empty(n, kind)
        return cls(**arrays)

    def rows(self, low: int, high: int) -> ScannedRecords:
        """Return rows [low, high), sharing memory."""
        return self if high - low == len(self.offset) else self.where(slice(low, high))

    def where(self, which: slice | npt.NDArray[np.bool_]) -> ScannedRecords:
        """Return the rows that ``which`` selects, in order."""
        picked: dict[str, Any] = {}
        for field in fields(self):
            array = getattr(self, field.name)
            picked[field.name] = None if array is None else array[which]
        return type(self)(**picked)


class Scan(NamedTuple):
    """Scanned records, and the range of rows that the reader requested."""

    sources: Sequence[Source]
    batches: npt.NDArray[np.void]
    """dtype `BATCH`."""
    records: ScannedRecords
    low: int
    high: int
    """Rows [low, high)."""
    cut: bool
    """True if ``max_records`` left out records of the last batch."""


_SCANNED: dict[str, dict[str, type[np.signedinteger[Any]]]] = {
    "timestamp_ms": {"timestamp_ms": np.int64},
    "key": {"key_start": np.int64, "key_length": np.int32},
    "value": {"value_start": np.int64, "value_length": np.int32},
    "headers": {"headers_start": np.int64, "headers_end": np.int64, "headers_count": np.int32},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bodies:
    """The batches of a record set that are to be scanned."""

    sources: list[Source]
    """The record set itself, then the decompressed records of each compressed batch."""
    batches: npt.NDArray[np.void]
    """dtype `BATCH`."""
    chosen: I64
    """The indexes of these batches in the record set (fewer than requested if the budget ran out)."""


def load_bodies(
    data: memoryview,
    headers: BatchHeaders,
    chosen: I64,
    columns: frozenset[str],
    max_batch_bytes: int,
    max_bytes: int,
) -> Bodies:
    """Decompress those of the ``chosen`` batches (indexes, increasing) that reading ``columns`` requires.

    Stops before the bodies exceed ``max_bytes`` in total (a compressed batch may exceed it, but only one),
    though never before the first batch. No body may exceed ``max_batch_bytes``.
    """
    dense = _needs_no_body(headers, chosen, columns)
    batches = _build_table(headers, chosen, dense)
    packed = (headers.codec[chosen] != Codec.NONE) & ~dense
    budget = min(max_bytes, MAX_COLUMN_BYTES)
    if not packed.any() and len(data) <= budget:
        return Bodies(sources=[data], batches=batches, chosen=chosen)
    sources: list[Source] = [data]
    # The total size of the batches up to each one that need no decompressing.
    plain = np.where(packed | dense, 0, batches["end"] - batches["start"]).cumsum()
    fits = int(np.searchsorted(plain, budget, side="right"))
    unpacked = 0
    # A loop over compressed batches only; decompressing one costs far more than the step.
    for place in packed.nonzero()[0].tolist():
        before = unpacked + int(plain[place])
        start, end = int(batches["start"][place]), int(batches["end"][place])
        if place >= fits or (place and before + end - start > budget):
            fits = min(fits, place)
            break
        body = read_body(data, headers, int(chosen[place]), max_batch_bytes)
        if before + len(body) > MAX_COLUMN_BYTES and place:
            fits = place
            break
        batches["source"][place], batches["start"][place], batches["end"][place] = len(sources), 0, len(body)
        sources.append(body)
        unpacked += len(body)
        fits = min(fits, max(place + 1, int(np.searchsorted(plain, budget - unpacked, side="right"))))
    fits = max(fits, min(1, len(chosen)))
    return Bodies(sources=sources, batches=batches[:fits], chosen=chosen[:fits])


def read_body(data: memoryview, headers: BatchHeaders, index: int, max_batch_bytes: int) -> memoryview:
    """Return the decompressed records of one batch; `CorruptRecordError` if they are damaged or too large."""
    packed = data[int(headers.start[index]) + HEADER_BYTES : int(headers.end[index])]
    codec = Codec(int(headers.codec[index]))
    base_offset = int(headers.base_offset[index])
    try:
        body = memoryview(decompress(codec, packed, min(max_batch_bytes, MAX_COLUMN_BYTES)))
    except CompressionError as error:
        raise CorruptRecordError(
            f"a batch compressed with {codec.name.lower()}: {error}", base_offset
        ) from error
    count = int(headers.count[index])
    if count * MIN_RECORD_BYTES > len(body):
        raise CorruptRecordError(f"a batch of {count} records in {len(body)} decompressed bytes", base_offset)
    return body


def _build_table(headers: BatchHeaders, chosen: I64, dense: Flags) -> npt.NDArray[np.void]:
    """Return the table of the ``chosen`` batches for a kernel, all of them in source 0."""
    all_chosen = len(chosen) == len(headers.start)
    which: I64 | slice = slice(None) if all_chosen else chosen
    batches = np.zeros(len(chosen), BATCH)
    batches["start"] = headers.start[which] + HEADER_BYTES
    batches["end"] = headers.end[which]
    batches["count"] = headers.count[which]
    batches["base_offset"] = headers.base_offset[which]
    batches["last_offset_delta"] = headers.last_offset_delta[which]
    batches["timestamp"] = headers.base_timestamp[which]
    log_append_time = headers.has(LOG_APPEND_TIME)[which]
    if log_append_time.any():
        batches["timestamp"][log_append_time] = headers.max_timestamp[which][log_append_time]
    batches["flags"] = log_append_time * SAME_TIMESTAMP + dense * DENSE
    return batches


def _needs_no_body(headers: BatchHeaders, chosen: I64, columns: frozenset[str]) -> Flags:
    """Return which batches are fully described by their header: no gap among the offsets, and only offsets
    and timestamps are wanted.
    """
    if columns & {"key", "value", "headers"}:
        return np.zeros(len(chosen), np.bool_)
    count = headers.count[chosen]
    dense: Flags = count == headers.last_offset_delta[chosen] + 1
    if "timestamp_ms" in columns:
        dense &= headers.has(LOG_APPEND_TIME)[chosen]
    dense &= count * MIN_RECORD_BYTES <= (headers.end - headers.start)[chosen] * _PLAUSIBLE_RATIO
    return dense
