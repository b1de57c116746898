"""`ProducerStats`: what a producer has done so far, as one frozen snapshot. Counted per batch, never per
record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..model import TopicPartition
from ..observe import catalogue as metric
from ..observe.metrics import NOTHING, Distribution, MetricsRegistry, Observed, error_tag
from .errors import DeliveryError


@dataclass(frozen=True, kw_only=True)
class PartitionStats:
    """The records delivered to one topic-partition."""

    records: int = 0
    bytes: int = 0
    """Of the record batches as they went over the wire."""
    first_offset: int | None = None
    """Of the first record that was delivered; None when no broker reported one (acks=0, or only
    duplicates)."""
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
    skipped_records: int = 0
    """Over a limit, and left out as ``over_limit`` says. They count neither as delivered nor as failed."""
    dead_lettered_records: int = 0
    """Over a limit; ``records`` counts their dead letters."""
    last_error: str | None = None
    """The last batch that could not be delivered, and why."""
    buffered_records: int = 0
    """Accepted and not yet delivered or failed, at the moment of the snapshot."""
    buffered_bytes: int = 0
    queue_ms: Distribution = NOTHING
    """From a batch's first record to its first sending."""
    latency_ms: Distribution = NOTHING
    """From sending a request to its answer."""
    batch_records: Distribution = NOTHING
    batch_bytes: Distribution = NOTHING
    partitions: Mapping[TopicPartition, PartitionStats] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AcknowledgedOffsets:
    """How far the brokers have acknowledged what a producer sent."""

    sum: int
    """Of all partitions."""
    partitions: Mapping[TopicPartition, int]
    """The offset behind the last acknowledged record of each."""


class StatsRecorder:
    """Counts what `ProducerStats` and a producer's metrics show. Any thread."""

    def __init__(self) -> None:
        self.metrics = MetricsRegistry()
        self._partitions: dict[TopicPartition, list[int]] = {}
        self._last_error: str | None = None
        self.delivered_records = 0
        """`ProducerStats.records`, without the rest."""

    def sent(self, retries: int) -> None:
        """A request was sent, with ``retries`` batches that were sent before."""
        self.metrics.count(metric.PRODUCE_REQUESTS)
        if retries:
            self.metrics.count(metric.PRODUCE_RETRIES, retries)

    def failed(self, error: DeliveryError) -> None:
        """A batch could not be delivered."""
        with self.metrics.lock:
            self.metrics.count(metric.FAILED_BATCHES, 1, error_tag(error.__cause__))
            self.metrics.count(metric.FAILED_RECORDS, error.records)
            self._last_error = str(error)

    def delivered(
        self, topic_partition: TopicPartition, records: int, size: int, base_offset: int | None
    ) -> None:
        """A batch of ``records`` is in the log, from ``base_offset`` on where that is known."""
        metrics = self.metrics
        with metrics.lock:
            metrics.measure(metric.PRODUCE_BATCH_RECORDS, records)
            metrics.measure(metric.PRODUCE_BATCH_SIZE, size)
            self.delivered_records += records
            row = self._partitions.setdefault(topic_partition, [0, 0, -1, -1, 0])
            row[0] += records
            row[1] += size
            row[4] += 1
            if base_offset is not None:
                row[2] = base_offset if row[2] < 0 else min(row[2], base_offset)
                row[3] = max(row[3], base_offset + records - 1)

    def offsets(self) -> AcknowledgedOffsets:
        """As far as brokers have reported offsets."""
        with self.metrics.lock:
            behind = {where: row[3] + 1 for where, row in list(self._partitions.items()) if row[3] >= 0}
        return AcknowledgedOffsets(sum=sum(behind.values()), partitions=behind)

    def observed(self) -> list[Observed]:
        """The delivered records by topic, from the counts by partition."""
        by_topic: dict[str, list[int]] = {}
        with self.metrics.lock:
            for where, (records, size, _, _, batches) in list(self._partitions.items()):
                row = by_topic.setdefault(where.topic, [0, 0, 0])
                row[0] += records
                row[1] += size
                row[2] += batches
        counted = (metric.PRODUCED_RECORDS, metric.PRODUCED_BYTES, metric.PRODUCED_BATCHES)
        return [
            Observed(one, amount, (topic,))
            for topic, row in by_topic.items()
            for one, amount in zip(counted, row, strict=True)
        ]

    def snapshot(self, buffered_records: int, buffered_bytes: int) -> ProducerStats:
        """Everything so far."""
        metrics = self.metrics
        with metrics.lock:
            # A signal handler of this thread may deliver meanwhile: all figures are of one copy.
            rows = {where: tuple(row) for where, row in list(self._partitions.items())}
            partitions = {
                where: PartitionStats(
                    records=records,
                    bytes=size,
                    first_offset=first if first >= 0 else None,
                    last_offset=last if last >= 0 else None,
                )
                for where, (records, size, first, last, _) in rows.items()
            }
            return ProducerStats(
                records=sum(row[0] for row in rows.values()),
                bytes=sum(row[1] for row in rows.values()),
                batches=sum(row[4] for row in rows.values()),
                requests=metrics.total(metric.PRODUCE_REQUESTS),
                retries=metrics.total(metric.PRODUCE_RETRIES),
                splits=metrics.total(metric.SPLITS),
                errors=metrics.total(metric.FAILED_BATCHES),
                failed_records=metrics.total(metric.FAILED_RECORDS),
                spilled_records=metrics.total(metric.SPILLED_RECORDS),
                skipped_records=metrics.total(metric.SKIPPED_RECORDS),
                dead_lettered_records=metrics.total(metric.DEAD_LETTERED_RECORDS),
                queue_ms=metrics.distribution(metric.QUEUE_DURATION).scaled(1000),
                latency_ms=metrics.distribution(metric.PRODUCE_DURATION).scaled(1000),
                batch_records=metrics.distribution(metric.PRODUCE_BATCH_RECORDS),
                batch_bytes=metrics.distribution(metric.PRODUCE_BATCH_SIZE),
                buffered_records=buffered_records,
                buffered_bytes=buffered_bytes,
                partitions=partitions,
                last_error=self._last_error,
            )
