"""`Settlement`: the end of a batch, good or bad, exactly once: who is told, what is counted, what is kept.

The sender's thread calls it; flush and the callers of `Producer.undelivered` look at it from outside.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from ..error_code import ErrorCode
from ..errors import BrokerError
from ..model import TopicPartition
from ..network.deadline import Deadline
from ..records.columns import RecordColumns
from .batch import Batch
from .delivery import DeliveryBlock, Outcome, Rows
from .errors import DeliveryError, DeliveryStatus, RecordError
from .memory import BufferMemory
from .spill import NewEntry, SpillError, SpillFolder
from .splitting import read_records
from .stats import StatsRecorder

_LOG = logging.getLogger("spark_kafka_native")

OnError = Callable[[TopicPartition, RecordColumns, DeliveryError, bool], None]
"""``on_error(topic_partition, records, error, retriable)``, in the sender's thread."""

_REFUSED_FOR_CONTENT = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.CORRUPT_MESSAGE,
    }
)
"""The same bytes would be refused again, forever: not worth spilling."""


class Undelivered(NamedTuple):
    """Records handed back."""

    topic_partition: TopicPartition
    records: RecordColumns
    error: DeliveryError


class Settlement:
    """The ends of all batches of one producer."""

    def __init__(
        self,
        memory: BufferMemory,
        stats: StatsRecorder,
        spill: SpillFolder | None,
        on_error: OnError | None,
        keep_undelivered: bool,
    ) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.unsettled: dict[Batch, None] = {}
        """Batches that have not ended, in the order in which they came; guarded by ``changed``."""
        self.undelivered: list[Undelivered] = []
        self._memory = memory
        self._stats = stats
        self._spill = spill
        self._on_error = on_error
        self._keep = keep_undelivered

    def expect(self, batches: Iterable[Batch]) -> None:
        """These will end."""
        with self.changed:
            self.unsettled.update(dict.fromkeys(batches))

    def replace(self, batch: Batch, halves: Iterable[Batch]) -> None:
        """``batch`` was split: its halves end in its place."""
        with self.changed:
            batch.children = list(halves)
            self.unsettled.pop(batch, None)
            self.unsettled.update(dict.fromkeys(batch.children))
        self._stats.count(splits=1)

    def respill(self, batch: Batch, into: Iterable[Batch]) -> None:
        """``into`` (its halves, or itself under new numbers) takes the place of ``batch`` in the spill
        folder, if it lies there. Raises `SpillError`: then it lies there as it was.

        Before any of them is sent: whoever replays them must do so as they were sent.
        """
        old, batches = batch.spilled, list(into)
        if old is None or self._spill is None:
            return
        entries = [NewEntry(old[0], old.topic_id, b.records, True, old.reason, b.data) for b in batches]
        for one, spilled in zip(batches, self._spill.replace(old, entries), strict=True):
            one.spilled = spilled

    def wait(self, deadline: Deadline | None) -> bool:
        """Wait until everything that is expected now has ended; False when ``deadline`` came first."""
        with self.changed:
            awaited = list(self.unsettled)
            while not all(batch.complete for batch in awaited):
                if deadline is None:
                    self.changed.wait()
                elif deadline.expired or not self.changed.wait(deadline.remaining_ms / 1000):
                    return all(batch.complete for batch in awaited)
        return True

    def delivered(
        self, batch: Batch, status: DeliveryStatus, base_offset: int | None, log_append_time_ms: int | None
    ) -> None:
        """``batch`` is in the log (or with acks=0 under way there)."""
        if batch.ended:
            return
        where = batch.queue.topic_partition
        self._stats.delivered(where, batch.records, len(batch.data), base_offset)
        if batch.spilled is not None and self._spill is not None:
            self._spill.delivered(batch.spilled)
        self._end(
            batch,
            Outcome(
                topic_partition=where,
                status=status,
                base_offset=base_offset,
                log_append_time_ms=log_append_time_ms,
                encoded_at_ms=batch.encoded_at_ms,
            ),
        )

    def give_up(
        self,
        batches: list[Batch],
        reason: str,
        cause: BaseException | None,
        *,
        retriable: bool,
        topic_id: UUID | None,
    ) -> None:
        """``batches`` of one partition, in order, were not delivered."""
        batches = [batch for batch in batches if not batch.ended]
        spilled = self._spill_batches(batches, reason, cause, topic_id)
        for batch in batches:
            if spilled or (batch.spilled is not None and self.keeps(cause)):
                batch.queue.spilling = True
        for batch in batches:
            error = DeliveryError(
                batch.queue.topic_partition,
                batch.records,
                batch.undelivered_status,
                reason,
                retriable,
                spilled or batch.spilled is not None,
            )
            error.__cause__ = cause
            self._stats.count(errors=1, failed_records=batch.records)
            _LOG.debug("%s", error)
            self._hand_back(batch, error)
            self._end(
                batch,
                Outcome(topic_partition=error.topic_partition, status=batch.undelivered_status, error=error),
            )

    def refuse(self, topic: str, block: DeliveryBlock, rows: Rows, cause: Exception) -> None:
        """``rows`` of ``block`` never got into a batch. Called by whoever hands them over."""
        nowhere = TopicPartition(topic, -1)
        status = DeliveryStatus.NOT_PERSISTED
        error = DeliveryError(nowhere, len(rows), status, str(cause), True)
        error.__cause__ = cause
        self._stats.count(errors=1, failed_records=len(rows))
        block.report(rows, 0, Outcome(topic_partition=nowhere, status=status, error=error))

    def keeps(self, cause: BaseException | None) -> bool:
        """Whether what is given up for ``cause`` goes to the spill folder."""
        if self._spill is None or isinstance(cause, RecordError):
            return False
        return not (isinstance(cause, BrokerError) and cause.error_code in _REFUSED_FOR_CONTENT)

    def _spill_batches(
        self, batches: list[Batch], reason: str, cause: BaseException | None, topic_id: UUID | None
    ) -> bool:
        if self._spill is None or not self.keeps(cause):
            return False
        entries = [
            NewEntry(b.queue.topic_partition, topic_id, b.records, b.indefinite, reason, b.data)
            for b in batches
            if b.spilled is None  # else it lies there already
        ]
        if not entries:
            return False
        try:
            self._spill.keep(entries)
        except SpillError as error:
            _LOG.error("%s: undelivered records are lost", error)
            return False
        self._stats.count(spilled_records=sum(entry.records for entry in entries))
        return True

    def _hand_back(self, batch: Batch, error: DeliveryError) -> None:
        if self._on_error is None and not self._keep:
            return
        try:
            if not batch.data and batch.spilled is not None:
                batch.data = memoryview(batch.spilled.read())
            records = read_records(batch)
        except Exception as failure:  # noqa: BLE001 - the sender must not end for what it can't read
            _LOG.error("%s; the records can't be handed back: %s", error, failure)
            return
        if self._keep:
            with self.changed:
                self.undelivered.append(Undelivered(error.topic_partition, records, error))
        if self._on_error is not None:
            try:
                self._on_error(error.topic_partition, records, error, error.retriable)
            except Exception:  # noqa: BLE001 - a callback's bug must not end the thread that delivers everybody's records
                _LOG.exception("on_error failed")

    def _end(self, batch: Batch, outcome: Outcome) -> None:
        batch.ended = True
        self._memory.release(batch.reserved, batch.records if batch.spilled is None else 0)
        batch.report(outcome)
        batch.data = b""  # an ended batch that is still in flight must not keep its memory
        with self.changed:
            self.unsettled.pop(batch, None)
            self.changed.notify_all()
