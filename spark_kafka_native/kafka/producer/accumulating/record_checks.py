"""`RecordChecks`: what can't be sent is refused before anything is taken, while its caller can still act."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ..delivery import Rows
from ..errors import RecordError, RecordTooLargeError
from .column_input import TopicColumns, first_wrong_partition
from .encoder import max_record_sizes
from .record_input import check_partition, one_row
from .single_records import SingleRecord
from .topic_buffer import TopicBuffer
from .topics import Topics


class Apart(NamedTuple):
    """Records over a limit that are not to fail."""

    part: TopicColumns
    errors: list[RecordTooLargeError]
    """Of each of them, in order; the row is that in what was handed over."""


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
        topic does not have, TypeError for what is no whole number.
        """
        chosen = None if partition is None else check_partition(partition)
        if chosen is None or not 0 <= chosen < buffer.targets.count:
            self._topics.check_partition(buffer, chosen)
        return chosen

    def _too_large(self, buffer: TopicBuffer, part: TopicColumns, sizes: Rows) -> list[RecordTooLargeError]:
        if buffer.may_exceed(sizes):
            letters = [self._dead_letter_topic] if self._dead_letter_topic else []
            self._topics.read_limits([buffer.topic, *letters])
        found = buffer.too_large(part.columns, sizes)
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
