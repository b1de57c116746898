"""`read_partition`: the loop of a task: bind its ranges, fetch, yield rows, and bind again after an error.

The clients live in the worker process and outlive the task, so that the next one starts connected.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ....kafka.cluster.router import Router, router_for
from ....kafka.consumer.fetcher import FetchRun
from ....kafka.errors import (
    BrokerError,
    DeadlineExceededError,
    EndOfLogError,
    KafkaError,
    LogTruncatedError,
    NetworkError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from ....kafka.model import TopicPartition
from ....kafka.runtime.retry import Backoff
from ...worker_tuning import settle_worker
from ..data_loss import DataLossPolicy
from ..offset_range import KafkaInputPartition, OffsetRange
from ..read_options import ReadTask
from .arrow_rows import BatchCoalescer, RowLayout
from .offset_binding import Binding, BoundRange, bind_ranges, rebind_ranges

if TYPE_CHECKING:
    from .bad_record_handler import BadRecordHandler

_MAY_BE_LOSS = (
    BrokerError,
    DeadlineExceededError,
    EndOfLogError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
_OF_ONE_LOG = (EndOfLogError, LogTruncatedError, OffsetOutOfRangeError)

MAX_REFUSALS: Final = 5
"""How often a leader may refuse, at one position, what it says it has: for a moment it may lag behind
itself.
"""


def read_partition(partition: KafkaInputPartition | None, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the records of ``partition`` in batches of ``task.schema``, in order within each topic-partition.

    Raises `KafkaConditionError` for records that are gone (unless ``fail_on_data_loss`` is off) and the
    client's errors.
    """
    # Spark calls read(None) where there is no partition.
    if partition is None or not partition.ranges:
        return
    settle_worker()
    router = router_for(task.client_for(partition))
    policy = DataLossPolicy(fail=task.fail_on_data_loss, group_id=task.group_id)
    handler = _handler(router, partition, task)
    bound = list(_accept(_bind(router, partition.ranges, task), policy))
    try:
        while bound:
            yield from read_round(router, task, take_round(bound), policy, handler)
    finally:
        if handler is not None:
            handler.log(task.schema.mode)


def _handler(router: Router, partition: KafkaInputPartition, task: ReadTask) -> BadRecordHandler | None:
    """None where nothing is decoded: most reads do without the import."""
    if not task.schema.decoded:
        return None
    from .bad_record_handler import BadRecordHandler

    if task.schema.letters is None:
        return BadRecordHandler()
    from .dead_letters import DeadLetters

    return BadRecordHandler(DeadLetters.of(router, task.client_for(partition), task.schema, partition.ranges))


def _bind(router: Router, ranges: Sequence[OffsetRange], task: ReadTask) -> Binding:
    try:
        return bind_ranges(router, ranges, task.consumer.isolation_level, ends_are_known=task.ends_are_known)
    except (DeadlineExceededError, NetworkError) as error:
        raise DeadlineExceededError(f"cannot start reading {_names(ranges)}: {error}") from error


def _accept(binding: Binding, policy: DataLossPolicy) -> tuple[BoundRange, ...]:
    """The ranges to read, if the losses do not fail the query."""
    for loss in binding.losses:
        policy.report(loss)
    return binding.ranges


def _names(ranges: Sequence[OffsetRange]) -> str:
    """The first of ``ranges`` with its offsets, and how many more there are."""
    more = len(ranges) - 1
    return f"{ranges[0]}" + (f" and {more:,} more ranges" if more else "")


def take_round(bound: list[BoundRange]) -> list[BoundRange]:
    """The next range of each topic-partition, taken out of ``bound``: those of the same are read in turn."""
    taken: dict[TopicPartition, BoundRange] = {}
    bound[:] = [one for one in bound if taken.setdefault(one.topic_partition, one) is not one]
    return list(taken.values())


def read_round(
    router: Router,
    task: ReadTask,
    ranges: list[BoundRange],
    policy: DataLossPolicy,
    handler: BadRecordHandler | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read ranges of different partitions together; what breaks one of them does not disturb the others."""
    left = {one.topic_partition: one for one in ranges}
    refusals: Counter[tuple[BoundRange, ...]] = Counter()
    client = router.config
    backoff = Backoff(first_ms=client.retry_backoff_ms, max_ms=client.retry_backoff_max_ms)
    paced: dict[TopicPartition, float] = {}
    with contextlib.closing(RangeFetch(router, task, handler)) as fetch:
        while left:
            try:
                yield from fetch.read(left, paced)
                return
            except _MAY_BE_LOSS as error:
                still = tuple(one for one in left.values() if one.position < one.until_offset)
                found = rebind_ranges(router, still, error, task.consumer.isolation_level)
                paced = {}
                if found == Binding(ranges=still):
                    refused = _named_in(error, still)
                    refusals[refused] += 1
                    if refusals[refused] > MAX_REFUSALS:
                        raise
                    after_ms = backoff.delay_ms(refusals[refused] - 1)
                    paced = {one.topic_partition: after_ms for one in refused}
                left = {one.topic_partition: one for one in _accept(found, policy)}


def _named_in(error: KafkaError, left: Sequence[BoundRange]) -> tuple[BoundRange, ...]:
    """The range of the partition that ``error`` is about; all of ``left`` if it names none."""
    tp = getattr(error, "topic_partition", None)
    return tuple(one for one in left if tp in (None, one.topic_partition))


class RangeFetch:
    """The fetch of one round. After an error it goes on with the ranges that the error does not concern:
    those with a log that ends too early wait for their records at a time.
    """

    def __init__(self, router: Router, task: ReadTask, handler: BadRecordHandler | None = None) -> None:
        self._layout = RowLayout.of(task.schema, handler)
        self._run = FetchRun(router, task.consumer, self._layout.record_fields, shares_memory=True)
        self._ranges: dict[TopicPartition, BoundRange] = {}
        """Those that were to be read last."""

    def read(
        self, left: dict[TopicPartition, BoundRange], paced: Mapping[TopicPartition, float]
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of these ranges, and note in ``left`` how far each has come. Those that are ``paced``
        are asked for after this number of milliseconds; the others do not wait for them.
        """
        self._follow(left, paced)
        small = BatchCoalescer(self._layout)
        try:
            while (fetched := self._run.next()) is not None:
                tp = fetched.topic_partition
                if not small.add(fetched):
                    yield from _hand_over(small, left)
                    yield from self._layout.to_record_batches(fetched.columns, tp)
                    # Only now: what an error kept from Spark has not been read.
                    left[tp] = left[tp].advanced(fetched.next_offset)
                elif small.full:
                    yield from _hand_over(small, left)
        except _MAY_BE_LOSS:
            yield from _hand_over(small, left)
            raise
        yield from _hand_over(small, left)

    def close(self) -> None:
        """End the fetch."""
        self._run.close()

    def _follow(
        self, left: Mapping[TopicPartition, BoundRange], paced: Mapping[TopicPartition, float]
    ) -> None:
        run, former, self._ranges = self._run, self._ranges, {**left}
        broken = list(run.broken().items())
        # The first one was raised, and the brokers have been asked about it. These others follow in turn.
        in_turn = {tp for tp, error in broken[1:] if isinstance(error, _OF_ONE_LOG)}
        stays = {
            tp
            for tp in left.keys() & former.keys() - (run.broken().keys() - in_turn)
            if left[tp].advanced(left[tp].position) == former[tp].advanced(run.position(tp))
        }
        # A log that was cut meanwhile must be found out (KIP-320), unless just that was accepted.
        epochs = {
            tp: run.state(tp).position.offset_epoch
            for tp in left.keys() & former.keys() - stays
            if left[tp].planned == former[tp].planned and left[tp].position == run.position(tp)
            if not isinstance(run.state(tp).error, LogTruncatedError)
        }
        for tp in former.keys() - stays:
            run.remove(tp)
        for tp, one in left.items():
            if tp not in stays:
                run.add(tp, one.position, one.until_offset, one.topic_id, epochs.get(tp, -1))
                if tp in paced:
                    run.try_again(tp, after_ms=paced[tp])


def _hand_over(small: BatchCoalescer, left: dict[TopicPartition, BoundRange]) -> Iterator[pa.RecordBatch]:
    yield from small.take()
    for tp, next_offset in small.next_offsets.items():
        left[tp] = left[tp].advanced(next_offset)
    small.next_offsets.clear()
