"""`Failures`: ends batches as undelivered, in order, together with all that must not overtake them."""

from __future__ import annotations

import logging
from itertools import groupby

from ...errors import KafkaError
from ..accumulating.batch import Batch
from ..accumulating.topics import Topics
from ..sending.loop_timer import LoopTimer
from ..sending.partition_queue import PartitionQueue, PartitionQueues
from ..sending.transaction import Transaction
from .completion import BatchCompletion
from .spilling import Spilling

_LOG = logging.getLogger("spark_kafka_native")
OVERTAKING = "an earlier batch of the partition is in the spill folder and must not be overtaken"
EXPIRY_S = 0.05
"""Looking at every batch has a cost, and being given up this much later does a batch no harm."""


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
            if some:
                self._settle(queue, some, why, cause, retriable)

        taken_along: list[Batch] = []
        if self._spilling.keeps(cause):
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

    def expire(self, now: float) -> None:
        """Give up the batches that were not delivered in time."""
        if now < self._expire_at:
            self._timer.by(self._expire_at)
            return
        allowed_s = self._timeout_ms / 1000
        soonest = now + allowed_s
        for queue in list(self._queues.active):
            for place, batch in enumerate(queue.unended()):
                if place and batch.spilled is not None:
                    # It takes no memory, and long may stand in front of it: its time begins with its turn.
                    queue.restart_timeout(batch, now)
                if batch.sending.since + allowed_s > now:
                    soonest = min(soonest, batch.sending.since + allowed_s)
                    continue
                last = self._last_failure(batch)
                reason = f"not delivered within delivery.timeout.ms={self._timeout_ms}"
                self.fail([batch], f"{reason}; the last failure: {last}" if last else reason, last)
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
