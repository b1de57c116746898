"""Dead letters: what goes to the dead-letter topic in the place of a record over a limit, and who hears of
its end. No I/O.

The headers are named in the manner of Kafka Connect and of Kafka Streams (KIP-1034).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ...config.client_config import ProducerConfig
from ...errors import ProtocolError
from ...model import NO_TIMESTAMP_MS, Record
from ...records.columns import RecordColumns
from ...records.encode import BATCH_OVERHEAD_BYTES, record_sizes
from ..accumulating.batch import BatchEncoder
from ..accumulating.partitioner import Partitions
from ..accumulating.records_in import RecordHeaders, one_row
from ..accumulating.topic_buffer import TopicBuffer
from ..delivery import DeliveryBlock, Outcome, Rows
from ..errors import RecordTooLargeError
from ..waiters import Waiters

PREFIX = "__producer.errors."
MAX_REASON_CHARACTERS = 1_000
LENGTH_BYTES = 10
"""What the lengths of a value, and of the record with it, take at most."""


class DeadLetterBlock(DeliveryBlock):
    """Dead letters handed over together: ``settle(row, place in its batch, outcome)`` is called for each."""

    __slots__ = ("_settle",)

    def __init__(self, length: int, waiters: Waiters, settle: Callable[[int, int, Outcome], None]) -> None:
        super().__init__(length, waiters, lambda: None)
        self._settle = settle

    def report(self, rows: Rows, first: int, outcome: Outcome) -> None:
        """As `DeliveryBlock.report`."""
        super().report(rows, first, outcome)
        for place, row in enumerate(rows.tolist(), first):
            self._settle(row, place, outcome)


class DeadLetterWriter:
    """Makes the dead letters of one producer: as large as its dead-letter topic allows, and no larger."""

    def __init__(
        self, topic: str, config: ProducerConfig, encoder: BatchEncoder, buffers: Mapping[str, TopicBuffer]
    ) -> None:
        self._topic = topic
        self._config = config
        self._encoder = encoder
        self._buffers = buffers

    def write(self, record: Record, cause: Exception) -> RecordColumns:
        """The dead letter of ``record``, which has the topic and partition that it was meant for (-1: none
        yet). Its value is truncated where it does not fit; raises `RecordTooLargeError` where that is not
        enough.
        """
        letter = self._with_headers(record, record.value, cause)
        if self._fits(letter):
            return letter
        empty = self._with_headers(record, b"", cause)
        room = self._limit() - _size(empty) - LENGTH_BYTES
        if self._encoder.compresses:  # what can't be compressed grows a little
            room -= self._limit() // 100 + 64
        if not record.value or room < 0:
            raise RecordTooLargeError.of(
                self._topic, None, _size(letter), self._limit(), "the dead-letter topic"
            )
        return self._with_headers(record, record.value[:room], cause)

    def _with_headers(self, record: Record, value: bytes | None, cause: Exception) -> RecordColumns:
        told = _headers(record, value, cause)
        timestamp_ms = record.timestamp_ms
        if timestamp_ms == NO_TIMESTAMP_MS:
            timestamp_ms = self._encoder.clock_ms()
        return one_row(record.key, value, [*record.headers, *told], timestamp_ms)

    def _fits(self, letter: RecordColumns) -> bool:
        size = _size(letter)
        if size <= self._limit():
            return True
        if size > self._own_limit() or not self._encoder.compresses:
            return False
        return len(self._encoder.encode(letter, None, 0)) <= self._buffers[self._topic].max_bytes

    def _limit(self) -> int:
        return min(self._own_limit(), self._buffers[self._topic].max_bytes)

    def _own_limit(self) -> int:
        """Before compression."""
        memory = self._config.buffer_memory
        return min(memory, self._config.max_request_size or memory)


def single_record(columns: RecordColumns, topic: str, partition: int) -> Record:
    """The only one of ``columns``. Raises `ProtocolError` where there are others."""
    if columns.length != 1:
        raise ProtocolError(f"a batch of one record has {columns.length}")
    return next(columns.records(topic, partition))


def partition_of(partition: int, partitions: int) -> int:
    """The partition of the dead letters of ``partition``: the same, where the topic has as many."""
    return partition % partitions


def partitions_of(given: Partitions, partitions: int) -> Partitions:
    """As `partition_of`; -1 stays, for the partitioner to choose."""
    return np.where(given < 0, given, given % partitions).astype(np.int32)


def _headers(record: Record, value: bytes | None, cause: Exception) -> RecordHeaders:
    told: dict[str, object] = {"topic": record.topic}
    if record.partition >= 0:
        told["partition"] = record.partition
    told["exception"] = type(cause).__name__
    told["message"] = str(cause)[:MAX_REASON_CHARACTERS]
    if isinstance(cause, RecordTooLargeError):
        told |= {"record.size": cause.size, "limit": cause.limit, "limit.name": cause.limit_name}
    if record.value is not None:
        told["value.size"] = len(record.value)
        told["value.truncated"] = "false" if value is None or len(value) == len(record.value) else "true"
    return [(PREFIX + name, str(content).encode()) for name, content in told.items()]


def _size(letter: RecordColumns) -> int:
    return int(record_sizes(letter)[0]) + BATCH_OVERHEAD_BYTES
