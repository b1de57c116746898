"""`BatchCompletion`: the end of a batch, good or bad, exactly once: reported, counted and kept.

The sender's thread calls it; flush and the callers of `Producer.undelivered` look at it from outside.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from ...model import TopicPartition
from ...observe import catalogue as metric
from ...observe.events import EventSource
from ...records.columns import RecordColumns
from ..accumulating.batch import Batch, read_records
from ..accumulating.memory import BufferMemory
from ..delivery import DeliveryBlock, Outcome, Rows, Waiters
from ..errors import DeliveryError, DeliveryStatus
from ..stats import StatsRecorder
from .spilling import Spilling

_LOG = logging.getLogger("spark_kafka_native")

OnError = Callable[[TopicPartition, RecordColumns, DeliveryError, bool], None]
"""``on_error(topic_partition, records, error, retriable)``, in the sender's thread."""


class Undelivered(NamedTuple):
    """Undelivered records, handed back to the caller."""

    topic_partition: TopicPartition
    records: RecordColumns
    error: DeliveryError


class BatchCompletion:
    """The ends of all batches of one producer."""

    def __init__(
        self,
        memory: BufferMemory,
        stats: StatsRecorder,
        spilling: Spilling,
        on_error: OnError | None,
        keep_undelivered: bool,
        waiters: Waiters,
    ) -> None:
        self.waiters = waiters
        self.incomplete: dict[Batch, None] = {}
        """Batches that have not ended, in the order in which they came. Only the sender's thread writes to
        it; others copy it, which is one step."""
        self.undelivered: deque[Undelivered] = deque()
        self.acknowledgements: EventSource[Acknowledgement] = EventSource()
        self._memory = memory
        self._stats = stats
        self._spilling = spilling
        self._on_error = on_error
        self._keep = keep_undelivered

    def disown(self) -> None:
        """In a forked child: the parent's events and its spill folder are not its own."""
        self.acknowledgements = EventSource()
        self._spilling.disown()

    def close(self) -> None:
        """No batch ends any more."""
        self._spilling.close()
        self.acknowledgements.close()

    def expect(self, batches: Iterable[Batch]) -> None:
        """These will end."""
        self.incomplete.update(dict.fromkeys(batches))

    def replace(self, batch: Batch, halves: Iterable[Batch]) -> None:
        """``batch`` was split: its halves end in its place."""
        batch.children = list(halves)
        for half in batch.children:
            half.reported_before = batch.reported_before
        self.expect(batch.children)
        self.incomplete.pop(batch, None)
        self._stats.metrics.count(metric.SPLITS)

    def replace_by_letter(self, batch: Batch, letter: Batch, topic_id: UUID | None) -> None:
        """``letter`` is sent instead of ``batch``, a single record in the spill folder, and takes its place
        there. Raises `SpillError`: nothing has changed then.
        """
        self._spilling.replace_by_letter(batch, letter, topic_id)
        letter.reported_before = batch.reported_before
        batch.children = [letter]
        self.expect(batch.children)
        self.incomplete.pop(batch, None)

    def ended_by_choice(self, batch: Batch, error: DeliveryError) -> None:
        """The only record of ``batch`` was skipped, or its dead letter has ended: a failure of the dead
        letter is counted and handed back as its own."""
        self._spilling.ended(batch)
        self._end(batch, Outcome(topic_partition=error.topic_partition, status=error.status, error=error))

    def delivered(
        self, batch: Batch, status: DeliveryStatus, base_offset: int | None, log_append_time_ms: int | None
    ) -> None:
        """``batch`` is in the log (with acks=0: on its way there)."""
        where = batch.topic_partition
        if batch.ended:
            self._delivered_late(batch, base_offset)
            return
        self._stats.delivered(where, batch.records, len(batch.data), base_offset)
        self._spilling.ended(batch)
        self._end(
            batch,
            Outcome(
                topic_partition=where,
                status=status,
                base_offset=base_offset,
                log_append_time_ms=log_append_time_ms,
            ),
        )

    def failed(
        self,
        batches: list[Batch],
        reason: str,
        cause: BaseException | None,
        *,
        retriable: bool,
        topic_id: UUID | None,
    ) -> bool:
        """``batches`` of one partition, in order, were not delivered. Returns whether any is in the spill
        folder."""
        batches = [batch for batch in batches if not batch.ended]
        spilled = self._spilling.keep(batches, reason, cause, topic_id)
        if spilled:
            records = sum(entry.records for entry in spilled.values())
            self._stats.metrics.count(metric.SPILLED_RECORDS, records)
        keeps, in_folder = self._spilling.keeps(cause), False
        for batch in batches:
            entry = spilled.get(batch, batch.spilled)
            if entry is not None and keeps:
                self._spilling.add(batch, entry)
                in_folder = True
            error = DeliveryError(
                batch.topic_partition,
                batch.records,
                batch.undelivered_status,
                reason,
                retriable,
                entry is not None,
            )
            error.__cause__ = cause
            # Its owner has heard that it will be sent again: that it will not is no detail.
            refused = batch.reported_before and not keeps
            _LOG.log(logging.ERROR if refused else logging.DEBUG, "%s", error)
            if not batch.reported_before:
                self._stats.failed(error)
                self._hand_back(batch, error)
            self._end(
                batch,
                Outcome(topic_partition=error.topic_partition, status=batch.undelivered_status, error=error),
            )
        return in_folder

    def refuse(self, topic: str, block: DeliveryBlock, rows: Rows, cause: Exception) -> None:
        """``rows`` of ``block`` never got into a batch. Called by the thread that hands them over."""
        nowhere = TopicPartition(topic, -1)
        status = DeliveryStatus.NOT_PERSISTED
        error = DeliveryError(nowhere, len(rows), status, str(cause), True)
        error.__cause__ = cause
        self._stats.failed(error)
        block.report(rows, 0, Outcome(topic_partition=nowhere, status=status, error=error))

    def _delivered_late(self, batch: Batch, base_offset: int | None) -> None:
        """``batch`` was given up while it was under way, and is in the log: the folder need not keep it."""
        entry = self._spilling.delivered_late(batch)
        if entry is not None:
            self._stats.delivered(batch.topic_partition, batch.records, entry.length, base_offset)
            status = DeliveryStatus.PERSISTED
            self._emit(
                batch,
                Outcome(topic_partition=batch.topic_partition, status=status, base_offset=base_offset),
            )

    def _hand_back(self, batch: Batch, error: DeliveryError) -> None:
        if self._on_error is None and not self._keep:
            return
        try:
            records = read_records(batch)
        except Exception as failure:  # noqa: BLE001 - the sender must not end for what it can't read
            _LOG.error("%s; the records can't be handed back: %s", error, failure)
            return
        if self._keep:
            self.undelivered.append(Undelivered(error.topic_partition, records, error))
        if self._on_error is not None:
            try:
                self._on_error(error.topic_partition, records, error, error.retriable)
            except BaseException:  # noqa: BLE001 - a callback's bug, or its sys.exit(), must not end the thread that delivers everybody's records
                _LOG.exception("on_error failed")

    def _end(self, batch: Batch, outcome: Outcome) -> None:
        batch.ended = True
        self._memory.release(batch.reserved, batch.records if batch.spilled is None else 0)
        self._emit(batch, outcome)
        batch.report(outcome)
        batch.data = b""  # an ended batch that is still in flight must not keep its memory
        self.incomplete.pop(batch, None)
        self.waiters.notify_all()

    def _emit(self, batch: Batch, outcome: Outcome) -> None:
        source = self.acknowledgements
        if source.listening:
            source.emit(
                Acknowledgement(
                    topic_partition=batch.topic_partition,
                    status=outcome.status,
                    records=batch.records,
                    bytes=len(batch.data),
                    base_offset=outcome.base_offset,
                    error=None if outcome.error is None else str(outcome.error),
                    seconds=max(0.0, time.monotonic() - batch.sending.since),
                    at=time.time(),
                )
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """One for each batch, before the deliveries of its records have ended."""

    topic_partition: TopicPartition
    status: DeliveryStatus
    records: int
    bytes: int
    """Of the batch as it went over the wire; 0 where it lay in the spill folder."""
    base_offset: int | None
    """Of its first record; None where no broker reported one."""
    error: str | None
    """Why it was not delivered; None where it was."""
    seconds: float
    """From its first record until now."""
    at: float
    """Seconds since the epoch."""

    @property
    def last_offset(self) -> int | None:
        """Of its last record."""
        return None if self.base_offset is None else self.base_offset + self.records - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "event": "acknowledgement",
            "at": self.at,
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "status": self.status.name.lower(),
            "records": self.records,
            "bytes": self.bytes,
            "base_offset": self.base_offset,
            "last_offset": self.last_offset,
            "seconds": self.seconds,
            "error": self.error,
        }
