"""`KafkaInputPartition` and `read_partition`: where the driver's plan meets the worker.

What crosses is plain data. The clients live in the worker process and outlive the task, so that the next one
starts connected.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ..kafka.cluster.router import Router, router_for
from ..kafka.config import ClientConfig, ConsumerConfig
from ..kafka.consumer.fetcher import Fetcher
from ..kafka.errors import (
    BrokerError,
    DeadlineExceededError,
    EndOfLogError,
    NetworkError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from ..kafka.model import TopicPartition
from .data_loss import DataLossPolicy
from .late_bounds import BoundRange, bind_ranges
from .ranges import OffsetRange
from .schema import RecordSchema

_MAY_BE_LOSS = (BrokerError, DeadlineExceededError, EndOfLogError, OffsetOutOfRangeError, TopicRecreatedError)


@dataclass(frozen=True)
class KafkaInputPartition(InputPartition):  # type: ignore[misc]
    """A task: one offset range, or many of different partitions (and of the same)."""

    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, kw_only=True)
class ReadTask:
    """What all tasks of a read share."""

    client: ClientConfig
    consumer: ConsumerConfig
    schema: RecordSchema
    fail_on_data_loss: bool
    group_id: str
    ends_are_known: bool = False
    """Whether every fixed end has been in the log before (a stream's), so that it need not be looked up."""


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
    loss = DataLossPolicy(
        fail=task.fail_on_data_loss, group_id=task.group_id, isolation_level=task.consumer.isolation_level
    )
    try:
        bound = bind_ranges(router, partition.ranges, loss, ends_are_known=task.ends_are_known)
    except (DeadlineExceededError, NetworkError) as error:
        raise DeadlineExceededError(f"cannot begin to read {_names(partition.ranges)}: {error}") from error
    while bound:
        yield from _read_round(router, task, _take_round(bound), loss)


def _names(ranges: Sequence[OffsetRange]) -> str:
    """The first of ``ranges`` with its offsets, and how many more there are."""
    more = len(ranges) - 1
    return f"{ranges[0]}" + (f" and {more:,} more ranges" if more else "")


_settled = False


def settle_worker() -> None:
    """Take what is loaded by now out of the garbage collector's sight, once in a process.

    PySpark's daemon runs a full collection after every task: 25 - 40 ms with numpy, pyarrow and pandas
    loaded, about 1 ms once those are frozen. They would live as long as the process anyway, so it costs
    nothing.
    """
    global _settled
    if not _settled:
        _settled = True
        gc.collect()
        gc.freeze()


def _take_round(bound: list[BoundRange]) -> list[BoundRange]:
    """The next range of each topic-partition, taken out of ``bound``: those of the same are read in turn."""
    taken: dict[TopicPartition, BoundRange] = {}
    bound[:] = [one for one in bound if taken.setdefault(one.topic_partition, one) is not one]
    return list(taken.values())


def _read_round(
    router: Router, task: ReadTask, ranges: list[BoundRange], loss: DataLossPolicy
) -> Iterator[pa.RecordBatch]:
    """Read ranges of different partitions together; what breaks one of them does not disturb the others."""
    left = {one.topic_partition: one for one in ranges}
    while left:
        try:
            yield from _fetch(router, task, left)
            return
        except _MAY_BE_LOSS as error:
            left = {one.topic_partition: one for one in loss.go_on(router, list(left.values()), error)}


def _fetch(
    router: Router, task: ReadTask, left: dict[TopicPartition, BoundRange]
) -> Iterator[pa.RecordBatch]:
    """Yield batches and note in ``left`` how far each range has come."""
    fetcher = Fetcher(router, task.consumer)
    bounds = {one.topic_partition: (one.position, one.until_offset) for one in left.values()}
    topic_ids = {one.topic_partition.topic: one.topic_id for one in left.values() if one.topic_id is not None}
    for fetched in fetcher.fetch(bounds, columns=task.schema.record_fields, topic_ids=topic_ids):
        yield from task.schema.to_record_batches(fetched.columns, fetched.topic_partition)
        # Only now: what an error kept from Spark has not been read.
        left[fetched.topic_partition] = left[fetched.topic_partition].advanced(fetched.next_offset)
