"""`BatchCompletion`: the end of a batch, good or bad, exactly once: counted, kept and reported. `Failures`
ends batches as undelivered, in order, together with all that must not overtake them.

The sender's thread calls both; flush and the callers of `Producer.undelivered` look at it from outside.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from ..errors import KafkaError
from ..model import TopicPartition
from ..observe import catalogue as metric
from ..observe.events import EventSource
from ..records.columns import RecordColumns
from ..runtime.deadline import LoopTimer
from ..runtime.log_throttle import LogThrottle
from .accumulating.batch import Batch, read_records
from .accumulating.memory import BufferMemory
from .accumulating.topics import Topics
from .delivery import DeliveryBlock, Outcome, Rows, Waiters
from .errors import DeliveryError, DeliveryStatus
from .sending.partition_queue import PartitionQueue, PartitionQueues
from .sending.transaction import Transaction
from .spilling import Spilling
from .stats import StatsRecorder

_LOG = logging.getLogger("spark_kafka_native")

LEFT_BEHIND = "only the next producer sends it again, behind newer records of the partition"
LEFT_NOWHERE = "its file was deleted, and these records are lost"
LEFT_TWICE = "it may be in the log already, and is there twice then"
OVERTAKING = "an earlier batch of the partition is in the spill folder and must not be overtaken"
EXPIRY_S = 0.05
"""Looking at every batch has a cost, and being given up this much later does a batch no harm."""

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
        self.says_losses = on_error is None and not keep_undelivered
        """True if a program that looks at no delivery would hear nothing of records that are not written."""
        self._throttled_log = LogThrottle(_LOG)
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
        outcome = Outcome(topic_partition=error.topic_partition, status=error.status, error=error)
        self._end(batch, outcome, by_choice=True)

    def delivered(
        self, batch: Batch, status: DeliveryStatus, base_offset: int | None, log_append_time_ms: int | None
    ) -> None:
        """``batch`` is in the log (with acks=0: on its way there)."""
        where = batch.topic_partition
        if batch.ended:
            self._delivered_late(batch, status, base_offset)
            return
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
        in_folder = False
        for batch in batches:
            entry = spilled.get(batch, batch.spilled)
            keeps = self._spilling.keeps(cause, once_more=batch.spilled is not None)
            if entry is not None and keeps:
                self._spilling.add(batch, entry)
                in_folder = True
            # Its owner has heard that it will be sent again, in order: that it will not is no detail.
            refused = entry is not None and not keeps
            status, said = batch.undelivered_status, reason
            is_gone = refused and isinstance(cause, FileNotFoundError)
            if is_gone:
                said = f"{reason}; {LEFT_NOWHERE}"
                self._spilling.ended(batch)
            elif refused:
                twice = status is DeliveryStatus.POSSIBLY_PERSISTED
                said = "; ".join((reason, LEFT_BEHIND, *([LEFT_TWICE] if twice else [])))
            error = DeliveryError(
                batch.topic_partition,
                batch.records,
                status,
                said,
                retriable,
                entry is not None and not is_gone,
            )
            error.__cause__ = cause
            self._say(error, batch, refused=refused)
            self._end(batch, Outcome(topic_partition=error.topic_partition, status=error.status, error=error))
        return in_folder

    def _say(self, error: DeliveryError, batch: Batch, *, refused: bool) -> None:
        if refused:
            _LOG.error("%s", error)
        elif self.says_losses and not error.spilled and not all(part.block.is_heard for part in batch.parts):
            self._throttled_log.warning(error.topic_partition.topic, "%s", error)
        else:
            _LOG.debug("%s", error)

    def refuse(self, topic: str, block: DeliveryBlock, rows: Rows, cause: Exception) -> None:
        """``rows`` of ``block`` never got into a batch. Called by the thread that hands them over."""
        nowhere = TopicPartition(topic, -1)
        status = DeliveryStatus.NOT_PERSISTED
        error = DeliveryError(nowhere, len(rows), status, str(cause), True)
        error.__cause__ = cause
        self._stats.failed(error)
        block.report(rows, 0, Outcome(topic_partition=nowhere, status=status, error=error))

    def _delivered_late(self, batch: Batch, status: DeliveryStatus, base_offset: int | None) -> None:
        """``batch`` was given up while it was under way, and was delivered: the folder need not keep it."""
        entry = self._spilling.delivered_late(batch)
        if entry is not None:
            self._stats.delivered(batch.topic_partition, batch.records, entry.length, base_offset)
            self._emit(
                batch,
                Outcome(topic_partition=batch.topic_partition, status=status, base_offset=base_offset),
            )

    def _hand_back(self, batch: Batch, error: DeliveryError) -> None:
        if self._on_error is None and not self._keep:
            return
        try:
            records = read_records(batch)
        except BaseException as failure:  # noqa: BLE001 - the sender must not end for what it can't read
            _LOG.error("%s; the records can't be handed back: %s", error, failure)
            return
        if self._keep:
            self.undelivered.append(Undelivered(error.topic_partition, records, error))
        if self._on_error is not None:
            try:
                self._on_error(error.topic_partition, records, error, error.retriable)
            except BaseException:  # noqa: BLE001 - a callback's bug, or its sys.exit(), must not end the thread that delivers everybody's records
                _LOG.exception("on_error failed")

    def _end(self, batch: Batch, outcome: Outcome, *, by_choice: bool = False) -> None:
        """The one place in which a batch ends: the counts, the caller's records, the folder, the memory, the
        events and the deliveries follow from its outcome, in this order."""
        error = outcome.error
        if error is None:
            self._stats.delivered(batch.topic_partition, batch.records, len(batch.data), outcome.base_offset)
        elif not by_choice and not batch.reported_before:
            self._stats.failed(error)
            self._hand_back(batch, error)
        if error is None or by_choice:
            self._spilling.ended(batch)
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


class Failures:
    """Called by the sender's thread."""

    def __init__(  # noqa: PLR0913 - all that a batch that is given up concerns
        self,
        topics: Topics,
        queues: PartitionQueues,
        completion: BatchCompletion,
        spilling: Spilling,
        timer: LoopTimer,
        delivery_timeout_ms: int,
        transaction: Transaction | None = None,
    ) -> None:
        self._topics = topics
        self._queues = queues
        self._completion = completion
        self._spilling = spilling
        self._timer = timer
        self._timeout_ms = delivery_timeout_ms
        self._transaction = transaction
        self._expire_at = 0.0
        self.fatal: KafkaError | None = None
        """Why nothing can be sent any more."""

    def fail(
        self, batches: list[Batch], reason: str, cause: BaseException | None, *, retriable: bool = True
    ) -> None:
        """Give up ``batches`` of one partition, in order; with them go all batches of the partition that they
        would overtake in the spill folder, or that would overtake them."""
        if not batches:
            return
        queue = self._queues.of(batches[0].topic_partition)

        def settle(some: list[Batch], why: str) -> None:
            if some:  # those that go along have failed for nothing of their own
                self._settle(queue, some, why, None if why is OVERTAKING else cause, retriable)

        taken_along: list[Batch] = []
        if self._spilling.keeps(cause, once_more=all(one.spilled is not None for one in batches)):
            # One may be given up before those in front of it, or between them: the folder has an order too.
            # Batches from the folder have their place in it.
            ahead = (b for b in queue.spillable(batches) if b.order < batches[-1].order)
            taken_along = [b for b in ahead if b.spilled is None]
        given_up = set(batches)
        in_order = sorted([*batches, *taken_along], key=lambda batch: batch.order)
        for is_given_up, run in groupby(in_order, key=given_up.__contains__):
            settle(list(run), reason if is_given_up else OVERTAKING)
        if queue.spilling:
            first = batches[0].order
            settle([b for b in queue.spillable(batches) if b.order > first], OVERTAKING)
        # Rows that have lingered behind them are due, and nothing else may wake the sender for it.
        self._timer.at_once()

    def _settle(
        self,
        queue: PartitionQueue,
        batches: list[Batch],
        why: str,
        cause: BaseException | None,
        retriable: bool,
    ) -> None:
        queue.given_up(batches)
        # Before the end of any is reported: a caller that waits for that must not commit.
        if self._transaction is not None:
            error = KafkaError(f"{batches[0].topic_partition}: {why}")
            error.__cause__ = cause
            self._transaction.failed(error, uncertain=any(batch.sending.indefinite for batch in batches))
        topic_id = self._topics.topic_id(queue.topic_partition.topic)
        if self._completion.failed(batches, why, cause, retriable=retriable, topic_id=topic_id):
            queue.spilled()

    def taken_in(self, batch: Batch) -> None:
        """A new batch, of records that may have waited for longer than all that were looked at."""
        self._expire_at = min(self._expire_at, batch.sending.since + self._timeout_ms / 1000)

    def expire(self, now: float) -> None:
        """Give up the batches that were not delivered in time."""
        if now < self._expire_at:
            self._timer.by(self._expire_at)
            return
        allowed_s = self._timeout_ms / 1000
        soonest = now + allowed_s
        for queue in list(self._queues.active):
            expired: list[Batch] = []
            for place, batch in enumerate(queue.unended()):
                if place and batch.spilled is not None:
                    # It takes no memory, and long may stand in front of it: its time begins with its turn.
                    queue.restart_timeout(batch, now)
                ends_at = batch.sending.since + allowed_s
                if ends_at > now:
                    soonest = min(soonest, ends_at)
                else:
                    expired.append(batch)
            # Not one by one: each call of `fail` looks at all that waits. But those from the folder apart:
            # the ones behind them, of which the time has not begun, come before new ones.
            reason = f"not delivered within delivery.timeout.ms={self._timeout_ms}"
            for (last, _), run in groupby(
                expired, lambda one: (self._last_failure(one), one.spilled is None)
            ):
                self.fail(list(run), f"{reason}; the last failure: {last}" if last else reason, last)
        self._queues.retire_idle()
        self._expire_at = max(soonest, now + EXPIRY_S)
        self._timer.by(self._expire_at)

    def discard(self) -> None:
        """Give up all batches that wait, as their transaction is aborted; those in flight are waited for."""
        transaction = self._transaction
        assert transaction is not None
        why = f"its transaction is aborted: {transaction.failure or 'abort() was called'}"
        for queue in list(self._queues.active):
            self.fail(list(queue.waiting), why, transaction.failure)
        self._completion.waiters.notify_all()

    def fail_for_good(self, cause: KafkaError) -> None:
        """Nothing can be sent any more, now or later."""
        _LOG.error("the producer can't go on: %s", cause)
        self.fatal = cause
        if self._transaction is not None:
            self._transaction.fatal(cause)
        self._topics.close(cause)
        # Not the other incomplete ones: a record with a dead letter on its way to the sender ends with that,
        # when the sender does. Both would go to the spill folder.
        self._fail_queues(f"the producer can't go on: {cause}", cause)

    def fail_all(self, reason: str, cause: BaseException | None) -> None:
        """Give up everything that has not ended, batches that an error left without an owner included."""
        self._fail_queues(reason, cause)
        for batch in list(self._completion.incomplete):
            self.fail([batch], reason, cause)

    def _fail_queues(self, reason: str, cause: BaseException | None) -> None:
        for queue in list(self._queues.active):
            batches = queue.unended()
            last = self._last_failure(batches[0]) if batches and cause is None else None
            self.fail(batches, f"{reason}; the last failure: {last}" if last else reason, cause)

    def _last_failure(self, batch: Batch) -> Exception | None:
        """What keeps ``batch`` from being delivered, as far as this is known."""
        return batch.sending.last_error or self._topics.outage(batch.topic_partition)
