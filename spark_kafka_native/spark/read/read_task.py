"""`KafkaInputPartition` and `ReadTask`: what the driver sends to the workers. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from ...kafka.config.client_config import ClientConfig, ConsumerConfig
from .offset_range import OffsetRange
from .read_options import ReadOptions
from .schema import RowSchema


@dataclass(frozen=True)
class KafkaInputPartition(InputPartition):  # type: ignore[misc]
    """A task: one offset range, or many of different partitions (and of the same)."""

    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, kw_only=True)
class ReadTask:
    """What all tasks of a read share."""

    client: ClientConfig
    consumer: ConsumerConfig
    schema: RowSchema
    fail_on_data_loss: bool
    group_id: str
    ends_are_known: bool = False
    """True if every fixed end was in the log at planning (a stream's), so that it need not be looked up."""

    @classmethod
    def of(cls, options: ReadOptions, schema: StructType, *, ends_are_known: bool = False) -> ReadTask:
        """The tasks of a read of ``schema``'s columns. Raises `ConfigError` for columns that can't be."""
        # Nothing that a task waits for may take longer than its poll timeout.
        timeout_ms = min(options.client.default_api_timeout_ms, options.consumer.poll_timeout_ms)
        return cls(
            client=replace(options.client, default_api_timeout_ms=timeout_ms),
            consumer=options.consumer,
            schema=RowSchema.from_schema(schema),
            fail_on_data_loss=options.fail_on_data_loss,
            group_id=options.group_id,
            ends_are_known=ends_are_known,
        )
