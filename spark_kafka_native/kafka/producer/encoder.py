"""`BatchEncoder`: columns -> one record batch, with the codec that the producer was configured with; and what
records take in it, before they are encoded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..config import ProducerConfig
from ..records.columns import RecordColumns
from ..records.compression import Codec
from ..records.encode import encode_record_batch, record_sizes
from .gather import Rows

BATCH_OVERHEAD = 61
"""Bytes of a record batch before its first record."""


_MOST_FRAME = 22
"""Bytes of a record beyond key and value when each of its lengths and deltas is as long as it can be, the
timestamp's delta (up to 5 of them for 12 days) included; records without headers only."""


def reckon_sizes(columns: RecordColumns) -> Rows:
    """Bytes that each record takes in a batch, at most; int64[n]. Half the truth of `record_sizes` for a
    fifth of its time: a few bytes too many, which only makes batches that much smaller."""
    if columns.headers is not None or columns.timestamp_ms is not None:
        return record_sizes(columns)
    sizes = np.full(columns.length, _MOST_FRAME, np.int64)
    for column in (columns.key, columns.value):
        if column is None or not columns.length:
            continue
        offsets = column.buffers()[1]
        wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
        kind = np.dtype(np.int64 if wide else np.int32)
        edges: npt.NDArray[Any] = np.frombuffer(
            offsets, kind, columns.length + 1, column.offset * kind.itemsize
        )
        sizes += edges[1:]
        sizes -= edges[:-1]
    return sizes


class BatchEncoder:
    """Encodes in the caller's thread. Stateless but for its configuration."""

    def __init__(self, config: ProducerConfig, clock_ms: Callable[[], int] | None = None) -> None:
        self.codec = Codec[config.compression_type.upper()]
        self._level = config.compression_level
        self.clock_ms = clock_ms or (lambda: time.time_ns() // 1_000_000)

    @property
    def compresses(self) -> bool:
        """Whether a batch can come out smaller than its records."""
        return self.codec is not Codec.NONE

    def encode(
        self, columns: RecordColumns, rows: Rows | None, now_ms: int, at_most: int | None = None
    ) -> bytearray | memoryview:
        """``rows`` of ``columns`` (None: all) as a record batch; without timestamps they get ``now_ms``.

        ``at_most`` is the sum of their sizes as `reckon_sizes` has them for these very columns.
        """
        return encode_record_batch(
            columns, rows=rows, at_most=at_most, codec=self.codec, level=self._level, now_ms=now_ms
        )
