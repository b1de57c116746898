"""`TopicSlice`: as many rows of a call as are taken at once. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..config import ProducerConfig
from ..records.columns import RecordColumns
from .column_input import Partitions, TopicColumns
from .delivery import DeliveryBlock
from .gather import Rows
from .topic_buffer import TopicBuffer

SLICE_BYTES = 8 * 1024 * 1024
"""Columns are taken in slices of about so much, so that sending starts before the last row is encoded."""


class TopicSlice(NamedTuple):
    """Rows of one topic, which follow each other in ``block`` from ``start`` on."""

    buffer: TopicBuffer
    columns: RecordColumns
    sizes: Rows
    """Bytes of each record, at most."""
    partition: Partitions | None
    block: DeliveryBlock
    start: int
    size: int

    @property
    def rows(self) -> Rows:
        """Their numbers in ``block``."""
        return np.arange(self.start, self.start + len(self.sizes))


def slice_rows(
    buffer: TopicBuffer, part: TopicColumns, sizes: Rows, block: DeliveryBlock, config: ProducerConfig
) -> Iterator[TopicSlice]:
    """All rows of ``part`` in order, in slices that the buffer memory can hold."""
    ends = np.cumsum(sizes)
    most_bytes = min(SLICE_BYTES, config.buffer_memory)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + most_bytes, side="right"))
        stop = min(max(stop, start + 1), start + config.max_buffered_records)
        yield TopicSlice(
            buffer,
            part.columns.slice(start, stop),
            sizes[start:stop],
            None if part.partition is None else part.partition[start:stop],
            block,
            start,
            int(ends[stop - 1]) - before,
        )
        start = stop
