"""`TopicSlice`: the rows of one call that are appended at once. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...config.client_config import ProducerConfig
from ...records.columns import RecordColumns
from ..delivery import DeliveryBlock, Rows
from ..errors import RecordError
from .batch import Origin
from .column_input import TopicColumns
from .partitioner import Partitions
from .topic_buffer import TopicBuffer

SLICE_BYTES = 8 * 1024 * 1024
"""Columns are taken in slices of about so much, so that sending starts before the last row is encoded."""
SLICES_IN_MEMORY = 4
"""A slice is at most this part of the buffer: while one is sent, the next must find room."""


class TopicSlice(NamedTuple):
    """Rows of one topic that follow each other."""

    buffer: TopicBuffer
    part: TopicColumns
    """What they are a slice of."""
    start: int
    columns: RecordColumns
    sizes: Rows
    """Bytes of each record, at most."""
    partition: Partitions | None
    origin: Origin
    size: int

    @property
    def rows(self) -> Rows:
        """Their numbers in what was handed over."""
        numbers = np.arange(self.start, self.start + len(self.sizes))
        return numbers if self.part.rows is None else self.part.rows[numbers]

    def located(self, error: RecordError) -> RecordError:
        """``error`` with the row's number in what was handed over."""
        return self.part.located(error.moved(self.start))


def slice_rows(
    buffer: TopicBuffer, part: TopicColumns, sizes: Rows, block: DeliveryBlock, config: ProducerConfig
) -> Iterator[TopicSlice]:
    """All rows of ``part`` in order, in slices that the buffer memory can hold several of."""
    ends = np.cumsum(sizes)
    max_bytes = min(SLICE_BYTES, config.buffer_memory // SLICES_IN_MEMORY)
    max_rows = max(1, config.max_buffered_records // SLICES_IN_MEMORY)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + max_bytes, side="right"))
        stop = min(max(stop, start + 1), start + max_rows)
        yield TopicSlice(
            buffer,
            part,
            start,
            part.columns.slice(start, stop),
            sizes[start:stop],
            None if part.partition is None else part.partition[start:stop],
            part.origin(block, start, stop),
            int(ends[stop - 1]) - before,
        )
        start = stop
