"""Records over a limit. `OversizedBatches` splits batches down to a single record; that record fails, or is
skipped or handed to the dead-letter topic, as `OverLimit` says.

A dead letter is a record like any other of its topic: it is batched, retried, spilled and counted. The
sender's thread takes room for it beyond the caps of the buffer memory, so that it never waits for what only
itself can free; a caller's thread waits for room as for any record. Records of the dead-letter topic itself
fail: nothing goes in circles.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import numpy as np

from ..config.client_config import ProducerConfig
from ..error_code import ErrorCode
from ..errors import BrokerError, KafkaError, ProtocolError
from ..model import NO_TIMESTAMP_MS, Record, TopicPartition
from ..observe import catalogue as metric
from ..records.columns import RecordColumns
from ..records.encode import BATCH_OVERHEAD_BYTES, record_sizes
from ..runtime.log_throttle import LogThrottle
from .accumulating.batch import (
    Batch,
    BatchEncoder,
    Origin,
    concat_columns,
    max_record_sizes,
    read_records,
    split_batch,
)
from .accumulating.memory import BufferMemory, Room
from .accumulating.partitioner import Partitions
from .accumulating.records_in import RecordHeaders, TopicColumns, one_row
from .accumulating.topic_buffer import TopicBuffer
from .accumulating.topics import Apart, CheckedColumns, Topics, TopicSlice, slice_rows
from .completion import BatchCompletion, Failures
from .delivery import DeliveryBlock, Outcome, Rows, Waiters
from .errors import DeadLetteredError, DeliveryError, DeliveryStatus, RecordSkippedError, RecordTooLargeError
from .sending.partition_queue import PartitionQueues
from .spill_folder import SpillError
from .spilling import Spilling
from .stats import StatsRecorder

_LOG = logging.getLogger("spark_kafka_native.producer")
PREFIX = "__producer.errors."
MAX_REASON_CHARACTERS = 1_000
LENGTH_BYTES = 10
"""What the lengths of a value, and of the record with it, take at most."""


class OverLimit:
    """Of one producer. What callers hand over is theirs; batches are the sender's thread's."""

    def __init__(
        self,
        config: ProducerConfig,
        buffers: Mapping[str, TopicBuffer],
        encoder: BatchEncoder,
        memory: BufferMemory,
        completion: BatchCompletion,
        stats: StatsRecorder,
    ) -> None:
        self._config = config
        self._buffers = buffers
        self._memory = memory
        self._completion = completion
        self._stats = stats
        self._topic = config.dead_letter_topic or ""
        self._writer = DeadLetterWriter(self._topic, config, encoder, buffers)
        self.encoder = encoder
        self._throttled_log = LogThrottle(_LOG)

    @property
    def skips(self) -> bool:
        """True if such records are left out."""
        return self._config.over_limit == "skip"

    def applies(self, topic: str) -> bool:
        """True if a record of ``topic`` that is over a limit does not fail."""
        return self._config.over_limit != "fail" and topic != self._topic

    # In a caller's thread.

    def write_letters(self, checked: list[CheckedColumns], block: DeliveryBlock) -> list[TopicSlice]:
        """The dead letters of the records set apart, to be taken in like any rows; ``block`` gets their
        outcomes. Raises `RecordTooLargeError` for a record with a dead letter that does not fit either."""
        return [
            piece
            for one in checked
            if one.apart is not None and not self.skips
            for piece in self._letters(one.apart, block)
        ]

    def skip(self, checked: list[CheckedColumns], block: DeliveryBlock) -> None:
        """Report the skipped records to ``block``."""
        for apart in [one.apart for one in checked if one.apart is not None and self.skips]:
            rows = _rows(apart.part)
            for row, (where, cause) in enumerate(zip(_places(apart.part), apart.errors, strict=True)):
                error = self._skipped(where, DeliveryStatus.NOT_PERSISTED, cause)
                _report(block, rows[row], error)

    def _letters(self, apart: Apart, block: DeliveryBlock) -> list[TopicSlice]:
        part, causes = apart.part, apart.errors
        places, rows = _places(part), _rows(part)
        records = zip(places, part.columns.records(part.topic), causes, strict=True)
        columns = concat_columns(
            [self._writer.write(_meant_for(where, record), cause) for where, record, cause in records],
            self.encoder.clock_ms(),
        )

        def settle(row: int, place: int, outcome: Outcome) -> None:
            # Without `part`: the memory of the records themselves is not counted.
            error = self._error_of(places[row], DeliveryStatus.NOT_PERSISTED, causes[row], outcome, place)
            _report(block, rows[row], error)

        buffer = self._buffers[self._topic]
        letters = TopicColumns(
            topic=self._topic,
            columns=columns,
            partition=None if part.partition is None else partitions_of(part.partition, buffer.targets.count),
        )
        sizes = max_record_sizes(columns)
        own = DeadLetterBlock(columns.length, self._completion.waiters, settle)
        return list(slice_rows(buffer, letters, sizes, own, self._config))

    # In the sender's thread.

    def skip_batch(self, batch: Batch, cause: Exception) -> None:
        """The only record of ``batch``, which is not sent any more, is left out."""
        error = self._skipped(batch.topic_partition, batch.undelivered_status, cause)
        self._completion.ended_by_choice(batch, error)

    def write_letter_of(self, batch: Batch, cause: Exception) -> None:
        """Hand a dead letter over for the only record of ``batch``, which ends when that does.

        Raises the error that keeps it from being made; then nothing has changed.
        """
        where = batch.topic_partition
        letter = self._writer.write(single_record(read_records(batch), *where), cause)
        buffer = self._buffers[self._topic]
        partition = partition_of(where.partition, buffer.targets.count)
        if batch.spilled is None:
            self._append(buffer, letter, partition, batch, cause)
        else:
            self._replace(buffer, letter, partition, batch, cause)

    def _append(
        self, buffer: TopicBuffer, letter: RecordColumns, partition: int, batch: Batch, cause: Exception
    ) -> None:
        def settle(_row: int, place: int, outcome: Outcome) -> None:
            if batch.ended:
                return
            error = self._error_of(batch.topic_partition, batch.undelivered_status, cause, outcome, place)
            self._completion.ended_by_choice(batch, error)

        block = DeadLetterBlock(1, self._completion.waiters, settle)
        sizes, room = max_record_sizes(letter), Room()
        try:
            self._memory.overdraw(room, int(sizes[0]), 1)
            buffer.append_columns(
                letter, sizes, np.array([partition], np.int32), Origin(block), room, by_sender=True
            )
        finally:
            self._memory.give_back(room)

    def _replace(
        self, buffer: TopicBuffer, letter: RecordColumns, partition: int, batch: Batch, cause: Exception
    ) -> None:
        """As for halves: the dead letter takes the place of ``batch`` in the spill folder before it is sent,
        so that a replay sends the same. The end of the record was reported long ago."""

        def settle(_row: int, place: int, outcome: Outcome) -> None:
            self._error_of(batch.topic_partition, batch.undelivered_status, cause, outcome, place)

        block = DeadLetterBlock(1, self._completion.waiters, settle)
        buffer.append_alone(
            letter,
            partition,
            Origin(block),
            lambda own: self._completion.replace_by_letter(batch, own, buffer.topic_id),
        )

    # The errors, and their metrics.

    def _skipped(self, where: TopicPartition, status: DeliveryStatus, cause: Exception) -> RecordSkippedError:
        error = RecordSkippedError(where, 1, status, f"it was skipped: {cause}", retriable=False)
        error.__cause__ = cause
        self._stats.metrics.count(metric.SKIPPED_RECORDS)
        self._throttled_log.warning(("skipped", where.topic), "a record over a limit is skipped: %s", error)
        return error

    def _error_of(
        self,
        where: TopicPartition,
        status: DeliveryStatus,
        cause: Exception,
        outcome: Outcome,
        place: int,
    ) -> DeliveryError:
        """The error of a record after the ``outcome`` of its dead letter."""
        letter = outcome.topic_partition
        if outcome.error is not None:
            failed = outcome.error
            reason = f"{cause}; its dead letter failed, too: {failed}"
            error = DeliveryError(where, 1, status, reason, failed.retriable, failed.spilled)
        else:
            offset = None if outcome.base_offset is None else outcome.base_offset + place
            reason = f"it went to the dead-letter topic, as {cause}"
            error = DeadLetteredError(where, 1, status, reason, letter, offset)
            self._stats.metrics.count(metric.DEAD_LETTERED_RECORDS)
            self._throttled_log.warning(("dead letter", where.topic), "a record over a limit: %s", error)
        error.__cause__ = cause
        return error


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
        added = _headers(record, value, cause)
        timestamp_ms = record.timestamp_ms
        if timestamp_ms == NO_TIMESTAMP_MS:
            timestamp_ms = self._encoder.clock_ms()
        return one_row(record.key, value, [*record.headers, *added], timestamp_ms)

    def _fits(self, letter: RecordColumns) -> bool:
        size = _size(letter)
        if size <= self._limit():
            return True
        if size > self._own_limit() or not self._encoder.compresses:
            return False
        return len(self._encoder.encode(letter, None, 0)) <= self._buffers[self._topic].limits.max_bytes

    def _limit(self) -> int:
        return min(self._own_limit(), self._buffers[self._topic].limits.max_bytes)

    def _own_limit(self) -> int:
        """Before compression."""
        memory = self._config.buffer_memory
        return min(memory, self._config.max_request_size or memory)


class OversizedBatches:
    """Batches over a limit of their topic: split, or, down to a single record, failed or set apart. Called by
    the sender's thread."""

    def __init__(
        self,
        topics: Topics,
        queues: PartitionQueues,
        completion: BatchCompletion,
        spilling: Spilling,
        failures: Failures,
        over_limit: OverLimit,
    ) -> None:
        self._topics = topics
        self._queues = queues
        self._completion = completion
        self._spilling = spilling
        self._failures = failures
        self._over_limit = over_limit

    def split(self, batch: Batch) -> None:
        """Put two halves in the place of ``batch``, which waits in its queue and was never accepted.

        A single record is given up, or set apart: the error has its size, the limit and where it came from.
        """
        topic = batch.topic_partition.topic
        queue, limit = self._queues.of(batch.topic_partition), self._topics.max_bytes(topic)
        if batch.records == 1:
            name = "the topic's max.message.bytes"
            self.too_large(batch, RecordTooLargeError.of(topic, _row(batch), len(batch.data), limit, name))
            return
        if batch.sending.indefinite:
            _LOG.warning(
                "%s: a batch is too large now that may have been written already (the answer to an earlier "
                "attempt was lost): its halves may be duplicates; was max.message.bytes lowered?",
                batch.topic_partition,
            )
        try:
            halves = split_batch(batch, self._over_limit.encoder)
            queue.take_over(batch, halves)
            self._spilling.replace(batch, halves)
        except SpillError as error:  # the folder still has it unchanged
            why = f"it is too large, and its halves can't be kept: {error}"
            self._failures.fail([batch], why, error)
            return
        except BaseException as error:  # noqa: BLE001 - records that can't be read again are this batch's trouble, not the sender's
            hint = f"its records can't be read to split it: {error}"
            cause = BrokerError(ErrorCode.MESSAGE_TOO_LARGE, f"Produce to {batch.topic_partition}", hint)
            self._failures.fail([batch], str(cause), cause, retriable=False)
            return
        queue.replace(batch, halves)
        self._completion.replace(batch, halves)
        for half in halves:
            if 0 < limit < len(half.data):
                self.split(half)

    def too_large(self, batch: Batch, cause: KafkaError) -> None:
        """``batch`` is a single record over a limit: it fails, is skipped, or leaves a dead letter."""
        over = self._over_limit
        if not over.applies(batch.topic_partition.topic):
            self._failures.fail([batch], str(cause), cause, retriable=False)
            return
        queue = self._queues.of(batch.topic_partition)
        if over.skips:
            queue.given_up([batch])
            over.skip_batch(batch, cause)
            return
        try:
            over.write_letter_of(batch, cause)
        except SpillError as error:  # the folder still has the record
            self._failures.fail([batch], f"{cause}; its dead letter can't be kept: {error}", error)
        except BaseException as error:  # noqa: BLE001 - any error fails this record, not the sender
            why = f"{cause}; it has no dead letter either: {error}"
            self._failures.fail([batch], why, cause, retriable=False)
        else:
            queue.given_up([batch])


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
    fields: dict[str, object] = {"topic": record.topic}
    if record.partition >= 0:
        fields["partition"] = record.partition
    fields["exception"] = type(cause).__name__
    fields["message"] = str(cause)[:MAX_REASON_CHARACTERS]
    if isinstance(cause, RecordTooLargeError):
        fields |= {"record.size": cause.size, "limit": cause.limit, "limit.name": cause.limit_name}
    if record.value is not None:
        fields["value.size"] = len(record.value)
        fields["value.truncated"] = "false" if value is None or len(value) == len(record.value) else "true"
    return [(PREFIX + name, str(content).encode()) for name, content in fields.items()]


def _size(letter: RecordColumns) -> int:
    return int(record_sizes(letter)[0]) + BATCH_OVERHEAD_BYTES


def _row(batch: Batch) -> int | None:
    """The row of its first record in what its caller handed over; None for a replayed batch."""
    if not batch.parts:
        return None
    return int(batch.parts[0].rows[0]) + batch.parts[0].first_row


def _places(part: TopicColumns) -> list[TopicPartition]:
    given = [-1] * part.columns.length if part.partition is None else part.partition.tolist()
    return [TopicPartition(part.topic, partition) for partition in given]


def _meant_for(where: TopicPartition, record: Record) -> Record:
    return record._replace(partition=where.partition)


def _rows(part: TopicColumns) -> list[int]:
    """Their numbers in the columns that were handed over."""
    return list(range(part.columns.length)) if part.rows is None else part.rows.tolist()


def _report(block: DeliveryBlock, row: int, error: DeliveryError) -> None:
    outcome = Outcome(topic_partition=error.topic_partition, status=error.status, error=error)
    block.report(np.array([row]), 0, outcome)
