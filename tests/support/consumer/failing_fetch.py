"""A fetch that fails for one partition, as each error does that a task would raise for it alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafka_native.kafka.consumer.fetcher import Fetcher
from spark_kafka_native.kafka.errors import (
    CorruptRecordError,
    EndOfLogError,
    KafkaError,
    LogTruncatedError,
    OffsetOutOfRangeError,
)
from spark_kafka_native.kafka.model import TopicPartition


def errors_of(topic_partition: TopicPartition, offset: int, end: int) -> list[KafkaError]:
    """At ``offset`` of a log that ends at ``end``."""
    return [
        CorruptRecordError("damaged", offset, topic_partition),
        EndOfLogError(topic_partition, offset, offset + 2, end),
        LogTruncatedError(topic_partition, offset, end),
        OffsetOutOfRangeError(topic_partition, offset),
    ]


def fail_in(monkeypatch: pytest.MonkeyPatch, topic_partition: TopicPartition, error: KafkaError) -> None:
    """Each fetch with this partition raises ``error``."""
    fetch: Any = Fetcher.fetch

    def fail(self: Fetcher, ranges: Any, *given: Any) -> Iterator[Any]:
        if topic_partition in ranges:
            raise error
        yield from fetch(self, ranges, *given)

    monkeypatch.setattr(Fetcher, "fetch", fail)
