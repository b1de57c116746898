"""`ProducerStats`: what a producer has done so far, as one frozen snapshot. Counted per batch, never per
record."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..model import TopicPartition

_STEPS = 4
"""Histogram buckets per doubling: a quantile is off by at most 9 %."""
_BUCKETS = 40 * _STEPS
_COUNTERS = (
    "records",
    "bytes",
    "batches",
    "requests",
    "retries",
    "splits",
    "errors",
    "failed_records",
    "spilled_records",
)
_HISTOGRAMS = ("queue_ms", "latency_ms", "batch_records", "batch_bytes")


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Quantiles of something measured; all zero when it never was. Off by at most 9 %, ``most`` and
    ``mean`` exact."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    most: float = 0.0


class Histogram:
    """Counts in buckets that grow geometrically. Not thread-safe: its owner holds a lock."""

    __slots__ = ("_count", "_counts", "_most", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._count = 0
        self._sum = 0.0
        self._most = 0.0

    def add(self, value: float) -> None:
        """Count one value (>= 0; the smallest bucket holds everything below 0.001)."""
        bucket = int(math.log2(value * 1000) * _STEPS) + 1 if value > 0.001 else 0
        self._counts[min(bucket, _BUCKETS - 1)] += 1
        self._count += 1
        self._sum += value
        self._most = max(self._most, value)

    def distribution(self) -> Distribution:
        """What was counted so far."""
        if not self._count:
            return Distribution()
        return Distribution(
            count=self._count,
            mean=self._sum / self._count,
            p50=self._quantile(0.50),
            p95=self._quantile(0.95),
            p99=self._quantile(0.99),
            most=self._most,
        )

    def _quantile(self, share: float) -> float:
        rank, seen = share * self._count, 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if seen >= rank:
                # The geometric middle of the bucket.
                return min(self._most, 2.0 ** ((bucket - 0.5) / _STEPS) / 1000 if bucket else 0.0)
        return self._most


@dataclass(frozen=True, kw_only=True)
class PartitionStats:
    """What was delivered to one topic-partition."""

    records: int = 0
    bytes: int = 0
    """Of the record batches as they went over the wire."""
    first_offset: int | None = None
    """Of the first record that was delivered; None when no broker told one (acks=0, or only duplicates)."""
    last_offset: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProducerStats:
    """A snapshot. Times are milliseconds, sizes bytes."""

    records: int = 0
    """Delivered. With acks=0: handed to the network."""
    bytes: int = 0
    """Delivered, as record batches on the wire (after compression)."""
    batches: int = 0
    requests: int = 0
    retries: int = 0
    """Batches that were sent again."""
    splits: int = 0
    """Batches cut in two because they were too large."""
    errors: int = 0
    """Batches that could not be delivered."""
    failed_records: int = 0
    spilled_records: int = 0
    buffered_records: int = 0
    """Accepted and not yet delivered or failed, at the moment of the snapshot."""
    buffered_bytes: int = 0
    queue_ms: Distribution = Distribution()
    """From a batch's first record to its first sending."""
    latency_ms: Distribution = Distribution()
    """From sending a request to its answer."""
    batch_records: Distribution = Distribution()
    batch_bytes: Distribution = Distribution()
    partitions: Mapping[TopicPartition, PartitionStats] = field(default_factory=dict)


class StatsRecorder:
    """Collects what `ProducerStats` shows. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._histograms = {name: Histogram() for name in _HISTOGRAMS}
        self._partitions: dict[TopicPartition, list[int]] = {}

    def count(self, **amounts: int) -> None:
        """Add to counters, by the names of `ProducerStats`."""
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount

    def measure(self, **values: float) -> None:
        """Add to histograms, by the names of `ProducerStats`."""
        with self._lock:
            for name, value in values.items():
                self._histograms[name].add(value)

    def delivered(
        self, topic_partition: TopicPartition, records: int, size: int, base_offset: int | None
    ) -> None:
        """A batch of ``records`` is in the log, from ``base_offset`` on where that is known."""
        with self._lock:
            self._counts["records"] += records
            self._counts["bytes"] += size
            self._counts["batches"] += 1
            self._histograms["batch_records"].add(records)
            self._histograms["batch_bytes"].add(size)
            row = self._partitions.setdefault(topic_partition, [0, 0, -1, -1])
            row[0] += records
            row[1] += size
            if base_offset is not None:
                row[2] = base_offset if row[2] < 0 else min(row[2], base_offset)
                row[3] = max(row[3], base_offset + records - 1)

    def snapshot(self, buffered_records: int, buffered_bytes: int) -> ProducerStats:
        """Everything so far."""
        with self._lock:
            partitions = {
                where: PartitionStats(
                    records=records,
                    bytes=size,
                    first_offset=first if first >= 0 else None,
                    last_offset=last if last >= 0 else None,
                )
                for where, (records, size, first, last) in self._partitions.items()
            }
            measured: dict[str, Any] = {name: h.distribution() for name, h in self._histograms.items()}
            counted: dict[str, Any] = dict(self._counts)
            return ProducerStats(
                **counted,
                **measured,
                buffered_records=buffered_records,
                buffered_bytes=buffered_bytes,
                partitions=partitions,
            )
