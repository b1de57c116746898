"""`GiveUp`: batches leave their queues undelivered, in order, with whatever must not overtake them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..error_code import ErrorCode
from ..errors import BrokerError, KafkaError
from .batch import Batch
from .column_input import RowsOfBlock
from .errors import RecordTooLargeError
from .partition_queue import PartitionQueue
from .sender_state import SenderState
from .spill import SpillError
from .splitting import split_batch

_LOG = logging.getLogger("spark_kafka_native")
OVERTAKING = "an earlier batch of the partition is in the spill folder and must not be overtaken"


class GiveUp:
    """Called by the sender's thread."""

    def __init__(self, state: SenderState, fail: Callable[[BaseException], None]) -> None:
        self._state = state
        self._fail = fail

    def batches(
        self, batches: list[Batch], reason: str, cause: BaseException | None, *, retriable: bool = True
    ) -> None:
        """Give up ``batches`` of one partition, in order; with what is spilled goes all of the partition that
        has not ended."""
        queue = batches[0].queue
        numbered = [batch.order for batch in batches if batch.identity is not None]
        sequence = self._state.sequence(queue) if numbered else None
        if sequence is not None:
            sequence.gap = True
            sequence.gap_after = max(sequence.gap_after, *numbered)
        settlement, topic_id = self._state.settlement, self._state.topic_id(queue)

        def settle(some: list[Batch], why: str) -> None:
            if not some:
                return
            _remove(queue, some)
            for batch in some:
                batch.indefinite = batch.indefinite or batch in queue.in_flight
            settlement.give_up(some, why, cause, retriable=retriable, topic_id=topic_id)

        if settlement.keeps(cause):
            # One may be given up before those in front of it: the folder has an order too.
            settle([batch for batch in _others(queue, batches) if batch.order < batches[0].order], OVERTAKING)
        settle(batches, reason)
        if queue.spilling:
            settle(_others(queue, batches), OVERTAKING)

    def everything(self, reason: str, cause: BaseException | None) -> None:
        """Give up whatever has not ended."""
        for queue in list(self._state.active):
            for batch in queue.in_flight:
                batch.indefinite = True
            left = [*queue.in_flight, *queue.batches]
            if left:
                self.batches(sorted(left, key=lambda batch: batch.order), reason, cause)

    def for_good(self, cause: KafkaError) -> None:
        """Nothing can be sent any more, now or later."""
        _LOG.error("the producer can't go on: %s", cause)
        self._state.fatal = cause
        self._fail(cause)
        self.everything(f"the producer can't go on: {cause}", cause)

    def too_large(self, batch: Batch) -> None:
        """Put two halves in the place of ``batch``, which stands in its queue and was never accepted.

        A single record is given up: the error has its size, the limit and where it came from.
        """
        queue = batch.queue
        limit = self._state.most_bytes(queue)
        if batch.records == 1:
            topic = queue.topic_partition.topic
            name = "the topic's max.message.bytes"
            single = RecordTooLargeError.of(topic, _row(batch), len(batch.data), limit, name)
            self.batches([batch], str(single), single, retriable=False)
            return
        try:
            halves = split_batch(batch, self._state.encoder)
            self._state.settlement.respill(batch, halves)
        except SpillError as error:  # it lies in the folder as it was
            self.batches([batch], f"it is too large, and its halves can't be kept: {error}", error)
            return
        except Exception as error:  # noqa: BLE001 - records that can't be read again are this batch's trouble, not the sender's
            hint = f"its records can't be read to split it: {error}"
            cause = BrokerError(ErrorCode.MESSAGE_TOO_LARGE, f"Produce to {queue.topic_partition}", hint)
            self.batches([batch], str(cause), cause, retriable=False)
            return
        queue.batches.remove(batch)
        self._state.settlement.replace(batch, halves)
        for half in halves:
            queue.put_back(half)
            if 0 < limit < len(half.data):
                self.too_large(half)


def _row(batch: Batch) -> int | None:
    """The row of its first record in what its caller handed over; None where only the block knows that."""
    if not batch.parts or isinstance(batch.parts[0].block, RowsOfBlock):
        return None
    return int(batch.parts[0].rows[0]) + batch.parts[0].first_row


def _others(queue: PartitionQueue, batches: list[Batch]) -> list[Batch]:
    """What has not ended, in order, but for ``batches``: it is to go to the spill folder with them.

    One that is in flight may be in the log by now; it keeps its numbers, by which the broker recognises it
    when it is replayed. Without numbers nothing would: that one's answer is waited for.
    """
    in_flight = [batch for batch in queue.in_flight if not batch.ended and batch.identity is not None]
    others = {*in_flight, *queue.batches} - set(batches)
    return sorted(others, key=lambda batch: batch.order)


def _remove(queue: PartitionQueue, batches: list[Batch]) -> None:
    gone = set(batches)
    kept = [batch for batch in queue.batches if batch not in gone]
    queue.batches.clear()
    queue.batches.extend(kept)
