"""`BatchEncoder`: columns -> one record batch, with the codec that the producer was configured with; and how
large records will be in it, before they are encoded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...config.client_config import ProducerConfig
from ...errors import ConfigError
from ...records.columns import RecordColumns
from ...records.compression import Codec, compress
from ...records.encode import encode_record_batch, record_sizes
from ..delivery import Rows

_MAX_FRAME_BYTES = 22
"""Bytes of a record beyond key and value when each of its lengths and deltas is as long as it can be, the
timestamp's delta (up to 5 of them for 12 days) included; records without headers only."""


def max_record_sizes(columns: RecordColumns) -> Rows:
    """An upper bound on the bytes that each record takes in a batch; int64[n]. Cheaper than `record_sizes` (a
    fifth of its time) and a few bytes too high, which only makes batches that much smaller."""
    if columns.headers is not None or _is_spread(columns.timestamp_ms):
        return record_sizes(columns)
    sizes = np.full(columns.length, _MAX_FRAME_BYTES, np.int64)
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


def _is_spread(timestamps: npt.NDArray[np.int64] | None) -> bool:
    """Whether a delta may take more than 4 bytes."""
    if timestamps is None or not len(timestamps):
        return False
    return int(timestamps.max()) - int(timestamps.min()) >= 1 << 27


class BatchEncoder:
    """Encodes in the caller's thread. Has no state but its configuration."""

    def __init__(
        self,
        config: ProducerConfig,
        clock_ms: Callable[[], int] | None = None,
        *,
        transactional: bool = False,
    ) -> None:
        self._transactional = transactional
        self.codec = Codec[config.compression_type.upper()]
        self._level = config.compression_level
        try:
            # Once now: a level that the codec does not have fails here, and a codec that is imported on first
            # use is still there when the interpreter ends.
            compress(self.codec, b"", self._level)
        except ValueError as error:
            raise ConfigError(f"compression.level={self._level} can't be used: {error}") from error
        self.clock_ms = clock_ms or (lambda: time.time_ns() // 1_000_000)

    @property
    def compresses(self) -> bool:
        """Whether a batch can come out smaller than its records."""
        return self.codec is not Codec.NONE

    def encode(
        self, columns: RecordColumns, rows: Rows | None, now_ms: int, at_most: int | None = None
    ) -> bytearray | memoryview:
        """``rows`` of ``columns`` (None: all) as a record batch; without timestamps they get ``now_ms``.

        ``at_most`` is the sum of what `max_record_sizes` returns for these very columns.
        """
        return encode_record_batch(
            columns,
            rows=rows,
            at_most=at_most,
            codec=self.codec,
            level=self._level,
            now_ms=now_ms,
            transactional=self._transactional,
        )
