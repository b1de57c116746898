"""`KafkaInputPartition` and `read_partition`: where the driver's plan meets the worker.

What crosses is plain data. The clients live in the worker process and outlive the task, so that the next one
starts connected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from ...kafka.cluster.router import Router, router_for
from ...kafka.config.client_config import ClientConfig, ConsumerConfig
from ...kafka.consumer.fetcher import Fetcher
from ...kafka.errors import (
    BrokerError,
    DeadlineExceededError,
    EndOfLogError,
    LogTruncatedError,
    NetworkError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from ...kafka.model import TopicPartition
from ..worker import settle_worker
from .bound_range import Binding, BoundRange
from .data_loss import DataLossPolicy
from .late_bounds import bind_ranges
from .ranges import OffsetRange
from .read_options import ReadOptions
from .recovery import look_again
from .row_layout import RowLayout
from .small_batches import SmallBatches

_MAY_BE_LOSS = (
    BrokerError,
    DeadlineExceededError,
    EndOfLogError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
MAX_REFUSALS: Final = 5
"""How often a leader may refuse what it says it has: for a moment it may lag behind itself."""


@dataclass(frozen=True)
class KafkaInputPartition(InputPartition):  # type: ignore[misc]
    """A task: one offset range, or many of different partitions (and of the same)."""

    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, kw_only=True)
class ReadTask:
    """What all tasks of a read share."""

    client: ClientConfig
    consumer: ConsumerConfig
    schema: RowLayout
    fail_on_data_loss: bool
    group_id: str
    ends_are_known: bool = False
    """Whether every fixed end has been in the log before (a stream's), so that it need not be looked up."""

    @classmethod
    def of(cls, options: ReadOptions, schema: StructType, *, ends_are_known: bool = False) -> ReadTask:
        """The tasks of a read of ``schema``'s columns. Raises `ConfigError` for columns that can't be."""
        # Nothing that a task waits for may take longer than its poll timeout.
        timeout_ms = min(options.client.default_api_timeout_ms, options.consumer.poll_timeout_ms)
        return cls(
            client=replace(options.client, default_api_timeout_ms=timeout_ms),
            consumer=options.consumer,
            schema=RowLayout.from_schema(schema),
            fail_on_data_loss=options.fail_on_data_loss,
            group_id=options.group_id,
            ends_are_known=ends_are_known,
        )


def read_partition(partition: KafkaInputPartition | None, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the records of ``partition`` in batches of ``task.schema``, in order within each topic-partition.

    Raises `KafkaConditionError` for records that are gone (unless ``fail_on_data_loss`` is off) and the
    client's errors.
    """
    # Spark calls read(None) where there is no partition.
    if partition is None or not partition.ranges:
        return
    settle_worker()
    router = router_for(task.client)
    policy = DataLossPolicy(fail=task.fail_on_data_loss, group_id=task.group_id)
    bound = list(_accept(_bind(router, partition.ranges, task), policy))
    while bound:
        yield from _read_round(router, task, _take_round(bound), policy)


def _bind(router: Router, ranges: Sequence[OffsetRange], task: ReadTask) -> Binding:
    try:
        return bind_ranges(router, ranges, task.consumer.isolation_level, ends_are_known=task.ends_are_known)
    except (DeadlineExceededError, NetworkError) as error:
        raise DeadlineExceededError(f"cannot start reading {_names(ranges)}: {error}") from error


def _accept(binding: Binding, policy: DataLossPolicy) -> tuple[BoundRange, ...]:
    """What is left to read, if its losses do not fail the query."""
    for loss in binding.losses:
        policy.report(loss)
    return binding.ranges


def _names(ranges: Sequence[OffsetRange]) -> str:
    """The first of ``ranges`` with its offsets, and how many more there are."""
    more = len(ranges) - 1
    return f"{ranges[0]}" + (f" and {more:,} more ranges" if more else "")


def _take_round(bound: list[BoundRange]) -> list[BoundRange]:
    """The next range of each topic-partition, taken out of ``bound``: those of the same are read in turn."""
    taken: dict[TopicPartition, BoundRange] = {}
    bound[:] = [one for one in bound if taken.setdefault(one.topic_partition, one) is not one]
    return list(taken.values())


def _read_round(
    router: Router, task: ReadTask, ranges: list[BoundRange], policy: DataLossPolicy
) -> Iterator[pa.RecordBatch]:
    """Read ranges of different partitions together; what breaks one of them does not disturb the others."""
    left = {one.topic_partition: one for one in ranges}
    refusals = 0
    while left:
        try:
            yield from _fetch(router, task, left)
            return
        except _MAY_BE_LOSS as error:
            still = tuple(one for one in left.values() if one.position < one.until_offset)
            found = look_again(router, still, error, task.consumer.isolation_level)
            refusals += found == Binding(ranges=still)
            if refusals > MAX_REFUSALS:
                raise
            left = {one.topic_partition: one for one in _accept(found, policy)}


def _fetch(
    router: Router, task: ReadTask, left: dict[TopicPartition, BoundRange]
) -> Iterator[pa.RecordBatch]:
    """Yield batches and note in ``left`` how far each range has come."""
    fetcher = Fetcher(router, task.consumer)
    bounds = {one.topic_partition: (one.position, one.until_offset) for one in left.values()}
    topic_ids = {one.topic_partition.topic: one.topic_id for one in left.values() if one.topic_id is not None}
    small = SmallBatches(task.schema)
    try:
        for fetched in fetcher.fetch(bounds, columns=task.schema.record_fields, topic_ids=topic_ids):
            tp = fetched.topic_partition
            if not small.add(fetched):
                yield from _hand_over(small, left)
                yield from task.schema.to_record_batches(fetched.columns, tp)
                # Only now: what an error kept from Spark has not been read.
                left[tp] = left[tp].advanced(fetched.next_offset)
            elif small.full:
                yield from _hand_over(small, left)
    except _MAY_BE_LOSS:
        yield from _hand_over(small, left)
        raise
    yield from _hand_over(small, left)


def _hand_over(small: SmallBatches, left: dict[TopicPartition, BoundRange]) -> Iterator[pa.RecordBatch]:
    yield from small.take()
    for tp, next_offset in small.next_offsets.items():
        left[tp] = left[tp].advanced(next_offset)
    small.next_offsets.clear()
