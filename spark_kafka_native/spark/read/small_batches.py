"""`SmallBatches`: joins what many partitions bring in small pieces, as Spark pays for each batch.

A batch costs the JVM about a millisecond, however few rows it has: a task that reads 64 partitions of a quiet
stream would spend most of its time on that.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from ...kafka.consumer.fetched_records import FetchedRecords
from ...kafka.model import TopicPartition
from ...kafka.records.columns import RecordColumns
from .row_layout import RowLayout

SMALL_ROWS: Final = 1_000
SMALL_BYTES: Final = 64 * 1024
"""What has more rows or bytes goes as it is: joining costs a copy."""
JOINED_ROWS: Final = 10_000
JOINED_BYTES: Final = 1024 * 1024


class SmallBatches:
    """Rows that have been fetched and are not yet given to Spark. A partition's rows stay in their order."""

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self._pieces: list[tuple[RecordColumns, TopicPartition]] = []
        self._rows = 0
        self._bytes = 0
        self.next_offsets: dict[TopicPartition, int] = {}
        """How far each partition has come with them."""

    def add(self, fetched: FetchedRecords) -> bool:
        """Take ``fetched`` if it is small; False if it is not, and then `take` what is here before it."""
        rows = fetched.columns.length
        if rows > SMALL_ROWS or (size := fetched.nbytes) > SMALL_BYTES:
            return False
        if rows:
            self._pieces.append((fetched.columns, fetched.topic_partition))
        self._rows += rows
        self._bytes += size
        self.next_offsets[fetched.topic_partition] = fetched.next_offset
        return True

    @property
    def full(self) -> bool:
        """Whether it is time to `take`."""
        return self._rows >= JOINED_ROWS or self._bytes >= JOINED_BYTES

    def take(self) -> list[pa.RecordBatch]:
        """All rows in one batch; an empty list if there are none. Raises as `RowLayout.to_record_batch`."""
        pieces, self._pieces = self._pieces, []
        self._rows = self._bytes = 0
        return [self._layout.join(pieces)] if pieces else []
