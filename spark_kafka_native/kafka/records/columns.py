"""`RecordColumns`: the one in-memory shape of records that the read path and the write path share.

It knows no topic and no partition: a `RecordColumns` is records of *some* partition, in order. It owns its
memory (nothing in it points into a network buffer that will be reused).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
"""Kafka's record headers as an Arrow type: ordered, duplicates allowed, a value may be null, a key may
not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """``n`` records as columns.

    A column that was not asked for (read) or not given (write) is None, with the defaults named below.
    """

    length: int
    """n; every column that is present has this length."""
    offset: npt.NDArray[np.int64] | None = None
    """Absolute offsets, strictly increasing. Write: ignored (the broker assigns them)."""
    timestamp_ms: npt.NDArray[np.int64] | None = None
    """Milliseconds since the epoch; -1 is "no timestamp". Write: None means now, at encoding."""
    timestamp_type: npt.NDArray[np.int8] | None = None
    """`TimestampType` of each record. Write: ignored (the topic decides)."""
    key: pa.Array | None = None
    """binary (write: also string and their large_ kinds), nullable. Write: None means all null."""
    value: pa.Array | None = None
    """As ``key``."""
    headers: pa.Array | None = None
    """`HEADERS_TYPE`; null where a record has none (as Spark's connector). Write: null and empty both mean
    none."""

    def slice(self, start: int, stop: int) -> RecordColumns:
        """Rows ``[start, stop)`` as views; itself if that is all of them."""
        if start == 0 and stop == self.length:
            return self

        def cut(column: Any) -> Any:
            return None if column is None else column[start:stop]

        return RecordColumns(
            length=stop - start,
            offset=cut(self.offset),
            timestamp_ms=cut(self.timestamp_ms),
            timestamp_type=cut(self.timestamp_type),
            key=cut(self.key),
            value=cut(self.value),
            headers=cut(self.headers),
        )
