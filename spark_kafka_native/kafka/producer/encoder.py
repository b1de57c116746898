"""`BatchEncoder`: columns -> one record batch, with the codec that the producer was configured with."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..config import ProducerConfig
from ..records.columns import RecordColumns
from ..records.compression import Codec
from ..records.encode import encode_record_batch
from .gather import Rows

BATCH_OVERHEAD = 61
"""Bytes of a record batch before its first record."""


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

    def encode(self, columns: RecordColumns, rows: Rows | None, now_ms: int) -> bytearray | memoryview:
        """``rows`` of ``columns`` (None: all) as a record batch; without timestamps they get ``now_ms``."""
        return encode_record_batch(columns, rows=rows, codec=self.codec, level=self._level, now_ms=now_ms)
