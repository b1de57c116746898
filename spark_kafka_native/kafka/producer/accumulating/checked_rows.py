"""`RecordChecks` refuses records that can't be sent before anything is taken, while the caller can still act.

`slice_rows` cuts checked rows into slices that the buffer memory can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ...config.client_config import ProducerConfig
from ...records.columns import RecordColumns
from ..delivery import DeliveryBlock, Rows
from ..errors import RecordError, RecordTooLargeError
from .batch import Origin, max_record_sizes
from .open_batches import SingleRecord
from .partitioner import Partitions
from .records_in import TopicColumns, check_partition, first_wrong_partition, one_row
from .topic_buffer import TopicBuffer
from .topics import Topics

SLICE_BYTES = 8 * 1024 * 1024
"""Columns are taken in slices of about this size, so that sending starts before the last row is encoded."""
SLICES_IN_MEMORY = 4
"""A slice is at most this part of the buffer: while one is sent, the next must find room."""


class Apart(NamedTuple):
    """Records over a limit that are not to fail."""

    part: TopicColumns
    errors: list[RecordTooLargeError]
    """Of each of them, in order; the row is that of the columns that were handed over."""


class CheckedColumns(NamedTuple):
    """What may be sent of some columns."""

    part: TopicColumns
    sizes: Rows
    """Bytes of each record, at most."""
    apart: Apart | None = None
    """What may not."""


class RecordChecks:
    """Checks of the sizes and partitions of records. With an ``explicit`` partitioner, each record must name
    its partition. Records over a limit are refused, but for topics that ``sets_apart`` says; before that the
    limits are read again, that of the ``dead_letter_topic`` too.
    """

    def __init__(
        self,
        topics: Topics,
        buffer_memory: int,
        *,
        explicit: bool,
        sets_apart: Callable[[str], bool] = lambda _topic: False,
        dead_letter_topic: str | None = None,
    ) -> None:
        self._topics = topics
        self._buffer_memory = buffer_memory
        self._explicit = explicit
        self._sets_apart = sets_apart
        self._dead_letter_topic = dead_letter_topic

    def columns(self, buffer: TopicBuffer, part: TopicColumns) -> CheckedColumns:
        """What may be sent of ``part``. Raises `RecordError` with the row."""
        sizes = max_record_sizes(part.columns)
        try:
            errors = self._too_large(buffer, part, sizes)
            self._check_partitions(buffer, part)
        except RecordError as error:
            raise part.located(error) from None
        return self._without(part, sizes, errors) if errors else CheckedColumns(part, sizes)

    def single(self, buffer: TopicBuffer, record: SingleRecord) -> Apart | None:
        """``record`` set apart if it fits no batch of its topic; where such records fail,
        `RecordTooLargeError`."""
        key, value, partition, timestamp_ms, headers = record
        columns = one_row(key, value, headers or (), int(timestamp_ms))
        chosen = None if partition is None else np.array([partition], np.int32)
        part = TopicColumns(topic=buffer.topic, columns=columns, partition=chosen)
        try:
            errors = self._too_large(buffer, part, max_record_sizes(columns))
        except RecordTooLargeError as error:
            raise error.at(None) from None
        return Apart(part, [one.at(None) for one in errors]) if errors else None

    def partition(self, buffer: TopicBuffer, partition: Any) -> int | None:
        """``partition`` as an int; None is the partitioner's choice. Raises `RecordError` for one that the
        topic does not have, TypeError if it is no whole number.
        """
        chosen = None if partition is None else check_partition(partition)
        if chosen is None or not 0 <= chosen < buffer.targets.count:
            self._topics.check_partition(buffer, chosen)
        return chosen

    def _too_large(self, buffer: TopicBuffer, part: TopicColumns, sizes: Rows) -> list[RecordTooLargeError]:
        if buffer.limits.may_exceed(sizes):
            letters = [self._dead_letter_topic] if self._dead_letter_topic else []
            self._topics.read_limits([buffer.topic, *letters])
        found = buffer.limits.too_large(part.columns, sizes)
        if not self._sets_apart(buffer.topic):
            for error in (*islice(found, 1), *self._beyond_memory(buffer, sizes)):
                raise error
            return []
        errors = {error.row: error for error in (*self._beyond_memory(buffer, sizes), *found)}
        return sorted(errors.values(), key=lambda error: error.row or 0)

    def _beyond_memory(self, buffer: TopicBuffer, sizes: Rows) -> Iterator[RecordTooLargeError]:
        limit = self._buffer_memory
        for row in np.flatnonzero(sizes > limit).tolist():
            yield RecordTooLargeError.of(buffer.topic, row, int(sizes[row]), limit, "buffer.memory")

    def _without(self, part: TopicColumns, sizes: Rows, errors: list[RecordTooLargeError]) -> CheckedColumns:
        over = np.array([error.row for error in errors], np.int64)
        left = np.delete(np.arange(len(sizes)), over)
        apart = Apart(part.take(over), [part.located(error) for error in errors])
        return CheckedColumns(part.take(left), sizes[left], apart)

    def _check_partitions(self, buffer: TopicBuffer, part: TopicColumns) -> None:
        row = first_wrong_partition(part, buffer.targets.count, explicit=self._explicit)
        if row is None:
            return
        partition = None if part.partition is None else int(part.partition[row])
        try:
            self._topics.check_partition(buffer, None if partition is None or partition < 0 else partition)
        except RecordError as error:
            raise error.at(row) from None
        # The topic has got more partitions; there may be others that are still too many.
        self._check_partitions(buffer, part)


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
        """Their numbers in the columns that were handed over."""
        numbers = np.arange(self.start, self.start + len(self.sizes))
        return numbers if self.part.rows is None else self.part.rows[numbers]

    def located(self, error: RecordError) -> RecordError:
        """``error`` with the row's number in the columns that were handed over."""
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
