"""How far a micro-batch goes: ``maxOffsetsPerTrigger`` and the options beside it.

`admit` and `holds_back` are pure: no cluster, no clock. `SizeSampler` asks the brokers how many bytes an
offset has on average, for ``maxBytesPerTrigger``.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final, cast
from uuid import UUID

from ....kafka.cluster.router import Router
from ....kafka.config.client_config import ConsumerConfig
from ....kafka.consumer.fetched_records import FetchedRecords
from ....kafka.consumer.fetcher import Fetcher
from ....kafka.errors import (
    CorruptRecordError,
    EndOfLogError,
    KafkaError,
    LogTruncatedError,
    OffsetOutOfRangeError,
)
from ....kafka.model import TopicPartition
from ..read_options import MicroBatchLimits
from .micro_batch import Positions

_LOG: Final = logging.getLogger("spark_kafka_native")

UNKNOWN_BYTES_PER_OFFSET: Final = 1_000.0
"""Of a topic of which nothing could be read yet."""


def holds_back(
    limits: MicroBatchLimits, begin: Positions, latest: Positions, waited_ms: float | None
) -> bool:
    """True if there are too few offsets for a batch. ``waited_ms``: since the last batch; None before the
    first, which never waits. A partition that ``begin`` doesn't have counts from 0, as in Spark's connector.
    """
    if limits.min_offsets is None or waited_ms is None or waited_ms >= limits.max_delay_ms:
        return False
    return sum(end - begin.get(tp, 0) for tp, end in latest.items()) < limits.min_offsets


def admit(
    limits: MicroBatchLimits,
    begin: Positions,
    latest: Positions,
    bytes_per_offset: Mapping[TopicPartition, float] | None = None,
) -> dict[TopicPartition, int]:
    """Where the batch ends in each partition of ``latest``, all of which are in ``begin``.

    A partition with a log that ends before ``begin`` ends at its latest offset.
    """
    sizes = {tp: end - begin[tp] for tp, end in latest.items() if end > begin[tp]}
    limit = _limit_offsets(limits, sizes, bytes_per_offset or {})
    total = sum(sizes.values())
    if limit is None or total <= limit:
        return dict(latest)
    # At least one offset of each: a small partition beside a large one must not starve.
    return {
        tp: begin[tp] + max(limit * sizes[tp] // total, 1) if tp in sizes else end
        for tp, end in latest.items()
    }


def _limit_offsets(
    limits: MicroBatchLimits,
    sizes: Mapping[TopicPartition, int],
    bytes_per_offset: Mapping[TopicPartition, float],
) -> int | None:
    """The stricter of both limits, in offsets: with one share for all partitions, a limit in bytes is one in
    offsets of the average size."""
    limit = limits.max_offsets
    if limits.max_bytes is not None and sizes:
        estimated = sum(
            size * bytes_per_offset.get(tp, UNKNOWN_BYTES_PER_OFFSET) for tp, size in sizes.items()
        )
        if estimated > limits.max_bytes:
            by_bytes = max(int(sum(sizes.values()) * limits.max_bytes / estimated), 1)
            limit = by_bytes if limit is None else min(limit, by_bytes)
    return limit


SAMPLED_PARTITIONS: Final = 8
"""Sampled for each batch: one fetch of at most half a megabyte from all of them together."""

SAMPLED_OFFSETS: Final = 500

SAMPLED_BYTES: Final = 64 * 1024

SAMPLE_TIMEOUT_MS: Final = 5_000

_COLUMNS: Final = frozenset(("key", "value", "headers"))

_OF_ONE_PARTITION: Final = (CorruptRecordError, EndOfLogError, LogTruncatedError, OffsetOutOfRangeError)


class SizeSampler:
    """The last known size per offset of each partition. Owned by the one thread of its process."""

    def __init__(self, router: Router, config: ConsumerConfig) -> None:
        small = replace(
            config,
            max_partition_fetch_bytes=SAMPLED_BYTES,
            fetch_max_bytes=SAMPLED_PARTITIONS * SAMPLED_BYTES,
            poll_timeout_ms=SAMPLE_TIMEOUT_MS,
            end_of_log_wait_ms=0,
        )
        self._fetcher = Fetcher(router, small)
        self._known: dict[TopicPartition, float] = {}

    def estimate(
        self, begin: Positions, latest: Positions, topic_ids: Mapping[str, UUID]
    ) -> dict[TopicPartition, float]:
        """Bytes of keys, values and headers for each offset of the partitions that have something to read.

        Those that are not sampled now count as they were last seen, else as the average of their topic; a
        topic of which nothing is known is left out.
        """
        sizes = {tp: latest[tp] - begin[tp] for tp in latest if latest[tp] > begin[tp]}
        longest = sorted(sizes, key=lambda tp: (-sizes[tp], tp))[:SAMPLED_PARTITIONS]
        try:
            self._sample({tp: (begin[tp], latest[tp]) for tp in longest}, topic_ids)
        except KafkaError as error:
            _LOG.warning("The sizes of records could not be sampled; earlier estimates hold. %s", error)
        means = _mean_by_topic(self._known)
        known = {tp: self._known.get(tp, means.get(tp.topic)) for tp in sizes}
        return {tp: size for tp, size in known.items() if size is not None}

    def _sample(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], topic_ids: Mapping[str, UUID]
    ) -> None:
        """One fetch of all; an error of one partition does not stop the others from being sampled."""
        left, moved = dict(ranges), set[TopicPartition]()
        while left:
            try:
                self._fetch(left, topic_ids)
                return
            except _OF_ONE_PARTITION as error:
                tp = error.topic_partition
                if tp not in left:
                    raise
                _, until_offset = left.pop(tp)
                start = error.log_start_offset if isinstance(error, OffsetOutOfRangeError) else None
                if start is not None and start < until_offset and tp not in moved:
                    left[tp] = (start, until_offset)
                    moved.add(tp)

    def _fetch(self, left: dict[TopicPartition, tuple[int, int]], topic_ids: Mapping[str, UUID]) -> None:
        """Sample the ranges in ``left``, and take those out of it that are done."""
        ranges = {tp: (start, min(end, start + SAMPLED_OFFSETS)) for tp, (start, end) in left.items()}
        fetching = cast(
            "Generator[FetchedRecords, None, None]", self._fetcher.fetch(ranges, _COLUMNS, topic_ids)
        )
        with closing(fetching):
            for one in fetching:
                if one.next_offset > one.from_offset:
                    self._known[one.topic_partition] = _bytes_of(one) / (one.next_offset - one.from_offset)
                    left.pop(one.topic_partition, None)
                if not left:
                    return


def _bytes_of(fetched: FetchedRecords) -> int:
    columns = (fetched.columns.key, fetched.columns.value, fetched.columns.headers)
    return sum(column.nbytes for column in columns if column is not None)


def _mean_by_topic(known: Mapping[TopicPartition, float]) -> dict[str, float]:
    by_topic: dict[str, list[float]] = defaultdict(list)
    for tp, size in known.items():
        by_topic[tp.topic].append(size)
    return {topic: sum(sizes) / len(sizes) for topic, sizes in by_topic.items()}
