"""`FailedBatches`: ends batches as undelivered, in order, with whatever must not overtake them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import groupby

from ...error_code import ErrorCode
from ...errors import BrokerError, KafkaError
from ..accumulating.batch import Batch, split_batch
from ..errors import RecordTooLargeError
from ..sending.sender_state import SenderState
from ..spill_folder import SpillError

_LOG = logging.getLogger("spark_kafka_native")
OVERTAKING = "an earlier batch of the partition is in the spill folder and must not be overtaken"


class FailedBatches:
    """Called by the sender's thread."""

    def __init__(self, state: SenderState, fail: Callable[[BaseException], None]) -> None:
        self._state = state
        self._fail = fail

    def fail(
        self, batches: list[Batch], reason: str, cause: BaseException | None, *, retriable: bool = True
    ) -> None:
        """Give up ``batches`` of one partition, in order; what is spilled takes along all of its partition
        that has not ended."""
        if not batches:
            return
        partition = self._state.partition(batches[0].topic_partition)
        completion, topic_id = self._state.completion, self._state.topic_id(partition.topic_partition.topic)

        def settle(some: list[Batch], why: str) -> None:
            if some:
                partition.given_up(some)
                self._fail_transaction(some, why, cause)
                if completion.failed(some, why, cause, retriable=retriable, topic_id=topic_id):
                    partition.spilled()

        taken_along: list[Batch] = []
        if completion.keeps(cause):
            # One may be given up before those in front of it, or between them: the folder has an order too.
            # What comes from there has its place in it.
            ahead = (b for b in partition.spillable(batches) if b.order < batches[-1].order)
            taken_along = [b for b in ahead if b.spilled is None]
        given_up = set(batches)
        in_order = sorted([*batches, *taken_along], key=lambda batch: batch.order)
        for is_given_up, run in groupby(in_order, key=given_up.__contains__):
            settle(list(run), reason if is_given_up else OVERTAKING)
        if partition.spilling:
            first = batches[0].order
            settle([b for b in partition.spillable(batches) if b.order > first], OVERTAKING)
        # What has lingered behind them is due, and nothing else may wake the sender for it.
        self._state.by(self._state.clock())

    def _fail_transaction(self, batches: list[Batch], why: str, cause: BaseException | None) -> None:
        """Before anybody hears of their end: whoever waits for that must not commit."""
        transaction = self._state.transaction
        if transaction is not None:
            error = KafkaError(f"{batches[0].topic_partition}: {why}")
            error.__cause__ = cause
            transaction.failed(error, uncertain=any(batch.indefinite for batch in batches))

    def discard(self) -> None:
        """Give up whatever waits, as its transaction is aborted; what is in flight is waited for."""
        transaction = self._state.transaction
        assert transaction is not None
        why = f"its transaction is aborted: {transaction.failure or 'abort() was called'}"
        for partition in list(self._state.active):
            self.fail(list(partition.waiting), why, transaction.failure)
        self._state.completion.waiters.notify_all()

    def fail_all(self, reason: str, cause: BaseException | None) -> None:
        """Give up everything that has not ended, batches that an error left without an owner included."""
        self._fail_partitions(reason, cause)
        for batch in list(self._state.completion.incomplete):
            self.fail([batch], reason, cause)

    def fail_for_good(self, cause: KafkaError) -> None:
        """Nothing can be sent any more, now or later."""
        _LOG.error("the producer can't go on: %s", cause)
        self._state.fatal = cause
        if self._state.transaction is not None:
            self._state.transaction.fatal(cause)
        self._fail(cause)
        # Not what else is incomplete: a record whose dead letter is on its way to the sender ends with that,
        # when the sender does. Both would go to the spill folder.
        self._fail_partitions(f"the producer can't go on: {cause}", cause)

    def _fail_partitions(self, reason: str, cause: BaseException | None) -> None:
        for partition in list(self._state.active):
            batches = partition.unended()
            last = self._state.last_failure(batches[0]) if batches and cause is None else None
            self.fail(batches, f"{reason}; the last failure: {last}" if last else reason, cause)

    def too_large(self, batch: Batch, cause: KafkaError) -> None:
        """``batch`` is a single record over a limit: it fails, is skipped, or leaves a dead letter."""
        over = self._state.over_limit
        if over is None or not over.applies(batch.topic_partition.topic):
            self.fail([batch], str(cause), cause, retriable=False)
            return
        partition = self._state.partition(batch.topic_partition)
        if over.skips:
            partition.given_up([batch])
            over.skip_batch(batch, cause)
            return
        try:
            over.write_letter_of(batch, cause)
        except SpillError as error:  # the folder still has the record
            self.fail([batch], f"{cause}; its dead letter can't be kept: {error}", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this record's trouble, not the sender's
            why = f"{cause}; it has no dead letter either: {error}"
            self.fail([batch], why, cause, retriable=False)
        else:
            partition.given_up([batch])

    def split(self, batch: Batch) -> None:
        """Put two halves in the place of ``batch``, which waits in its partition and was never accepted.

        A single record is given up, or set apart: the error has its size, the limit and where it came from.
        """
        topic = batch.topic_partition.topic
        partition, limit = self._state.partition(batch.topic_partition), self._state.max_bytes(topic)
        if batch.records == 1:
            name = "the topic's max.message.bytes"
            single = RecordTooLargeError.of(topic, _row(batch), len(batch.data), limit, name)
            self.too_large(batch, single)
            return
        try:
            halves = split_batch(batch, self._state.encoder)
            partition.take_over(batch, halves)
            self._state.completion.respill(batch, halves)
        except SpillError as error:  # the folder still has it unchanged
            self.fail([batch], f"it is too large, and its halves can't be kept: {error}", error)
            return
        except Exception as error:  # noqa: BLE001 - records that can't be read again are this batch's trouble, not the sender's
            hint = f"its records can't be read to split it: {error}"
            cause = BrokerError(ErrorCode.MESSAGE_TOO_LARGE, f"Produce to {batch.topic_partition}", hint)
            self.fail([batch], str(cause), cause, retriable=False)
            return
        partition.replace(batch, halves)
        self._state.completion.replace(batch, halves)
        for half in halves:
            if 0 < limit < len(half.data):
                self.split(half)


def _row(batch: Batch) -> int | None:
    """The row of its first record in what its caller handed over; None for a replayed batch."""
    if not batch.parts:
        return None
    return int(batch.parts[0].rows[0]) + batch.parts[0].first_row
