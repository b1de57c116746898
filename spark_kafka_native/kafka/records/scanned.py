"""What the kernels and the decoder hand each other: which batches to scan, and where each record's parts
lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
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
"""Flag: nothing but offsets and timestamps is wanted and the header says it all; the records are not looked
at."""


class BadRecord(NamedTuple):
    """The first record that breaks the format; ``record`` equals the batch's count where bytes are left
    over."""

    batch: int
    record: int
    position: int
    """Where in its source the record begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedRecords:
    """``n`` records as positions in their sources. Lengths are -1 for null. None: was not asked for."""

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
        """Make room for ``n`` records and what scanning ``columns`` (names of RecordColumns) yields."""
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
    """Scanned records, and which of their rows the reader asked for."""

    sources: Sequence[Source]
    batches: npt.NDArray[np.void]
    """dtype `BATCH`."""
    records: ScannedRecords
    low: int
    high: int
    """Rows [low, high)."""
    cut: bool
    """Whether ``max_records`` left out some of the last batch."""


_SCANNED: dict[str, dict[str, type[np.signedinteger[Any]]]] = {
    "timestamp_ms": {"timestamp_ms": np.int64},
    "key": {"key_start": np.int64, "key_length": np.int32},
    "value": {"value_start": np.int64, "value_length": np.int32},
    "headers": {"headers_start": np.int64, "headers_end": np.int64, "headers_count": np.int32},
}
