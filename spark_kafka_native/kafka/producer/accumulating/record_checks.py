"""`RecordChecks`: what can't be sent is refused before anything is taken, while its caller can still act."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RecordError, RecordTooLargeError
from .column_input import TopicColumns, first_wrong_partition
from .encoder import max_record_sizes
from .record_input import check_partition, one_row
from .single_records import RecordHeaders
from .topic_buffer import TopicBuffer
from .topics import Topics


class RecordChecks:
    """Checks of the sizes and partitions of records. With an ``explicit`` partitioner, each record must name
    its partition.
    """

    def __init__(self, topics: Topics, buffer_memory: int, *, explicit: bool) -> None:
        self._topics = topics
        self._buffer_memory = buffer_memory
        self._explicit = explicit

    def columns(self, buffer: TopicBuffer, part: TopicColumns) -> npt.NDArray[np.int64]:
        """Upper bounds of the records' sizes in bytes, int64[n]. Raises `RecordError` with the row."""
        sizes = max_record_sizes(part.columns)
        try:
            self._check_sizes(buffer, part, sizes)
            self._check_partitions(buffer, part)
        except RecordError as error:
            raise part.located(error) from None
        return sizes

    def single(
        self, buffer: TopicBuffer, key: Any, value: Any, headers: RecordHeaders, timestamp_ms: int | None
    ) -> None:
        """Raise `RecordTooLargeError` for a record that fits no batch of its topic."""
        columns = one_row(key, value, headers, timestamp_ms)
        try:
            buffer.check_sizes(columns, max_record_sizes(columns))
        except RecordTooLargeError as error:
            raise RecordTooLargeError.of(
                buffer.topic, None, error.size, error.limit, error.limit_name
            ) from None

    def partition(self, buffer: TopicBuffer, partition: Any) -> int | None:
        """``partition`` as an int; None is the partitioner's choice. Raises `RecordError` for one that the
        topic does not have, TypeError for what is no whole number.
        """
        chosen = None if partition is None else check_partition(partition)
        if chosen is None or not 0 <= chosen < buffer.targets.count:
            self._topics.check_partition(buffer, chosen)
        return chosen

    def _check_sizes(self, buffer: TopicBuffer, part: TopicColumns, sizes: npt.NDArray[np.int64]) -> None:
        buffer.check_sizes(part.columns, sizes)
        if len(sizes) and (size := int(sizes.max())) > self._buffer_memory:
            row = int(sizes.argmax())
            raise RecordTooLargeError.of(buffer.topic, row, size, self._buffer_memory, "buffer.memory")

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
