"""How far a micro-batch goes, given the ends of the logs: `Backlog` (what there is to read) and `plan_end`
(where the batch ends), with ``maxOffsetsPerTrigger`` and the options beside it. Pure: no cluster, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from ....kafka.model import TopicPartition
from ..read_options import MicroBatchLimits
from .micro_batch import LogEnds, MicroBatch, Positions, StreamOffset, end_of_batch

UNKNOWN_BYTES_PER_OFFSET: Final = 1_000.0
"""Of a topic of which nothing could be read yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeEstimate:
    """What a batch has in bytes, as far as it was sampled."""

    bytes_per_offset: Mapping[TopicPartition, float] = field(default_factory=dict)
    """Of the offsets from ``first`` on."""
    first: Positions = field(default_factory=dict)
    """Before these offsets there is nothing to read: compaction or transactions left no record. A gap counts
    apart, as an average over it says nothing about the records behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What there is to read from ``start`` on. How much of it is read next is not decided yet."""

    start: StreamOffset
    ends: LogEnds
    """None before a position of the same topic."""
    held: Positions
    """Positions beyond the end of their log: the stream goes on there when the log has come that far, and
    reads nothing twice."""
    batch: MicroBatch
    """The batch that reads all of it."""

    @classmethod
    def of(cls, start: StreamOffset, ends: LogEnds) -> Self:
        """Where no topic ids are known, a shorter log may be another topic's: its position is not held. Nor
        is the start of a stream, before which it has read nothing."""
        held = {
            tp: position
            for tp, position in ends.shorter_than(start).items()
            if tp.topic in start.topic_ids and tp.topic in ends.topic_ids and not start.is_initial
        }
        ends = replace(ends, latest={**ends.latest, **held})
        batch = MicroBatch.between(start, end_of_batch(start, ends, ends.latest))
        return cls(start=start, ends=ends, held=held, batch=batch)

    def without(self, unknown: Collection[TopicPartition]) -> Self:
        """This one without new partitions of which nothing shows where they begin: their turn comes."""
        return self.of(self.start, self.ends.without(unknown))

    @property
    def is_empty(self) -> bool:
        """True if nothing can be read, and nothing is lost or there again."""
        return self.batch.end.positions == self.start.positions and not self.batch.former

    def unknown_beginnings(
        self, limits: MicroBatchLimits, *, fail_on_data_loss: bool
    ) -> list[TopicPartition]:
        """The partitions of which the first offsets decide something: new ones, where another one than 0 is
        a loss, or the place to begin; with limits, also those that may have lost their next records.
        """
        added = self.batch.added
        if fail_on_data_loss or not limits.any:
            return added
        begin = self.batch.begin
        return [*added, *(tp for tp, end in self.ends.latest.items() if begin.get(tp, end) < end)]

    def begin(self, beginnings: Positions) -> dict[TopicPartition, int]:
        """Where the batch begins: a limit counts the offsets that can be read, not those that are lost."""
        begin = dict(self.batch.begin)
        for tp, earliest in beginnings.items():
            begin[tp] = max(begin[tp], min(earliest, self.ends.latest[tp])) if tp in begin else earliest
        return begin


def plan_end(
    backlog: Backlog,
    limits: MicroBatchLimits,
    beginnings: Positions,
    sizes: SizeEstimate,
    *,
    fail_on_data_loss: bool,
) -> StreamOffset:
    """Where the next batch ends.

    ``beginnings`` are the first offsets of `Backlog.unknown_beginnings`, as far as they were found.
    """
    end = backlog.batch.end
    if limits.any:
        begin, latest = backlog.begin(beginnings), backlog.ends.latest
        admitted = admit(limits, begin, {tp: until for tp, until in latest.items() if tp in begin}, sizes)
        end = end_of_batch(backlog.start, backlog.ends, {**latest, **admitted})
    if fail_on_data_loss:
        return end
    # Retention may have gone on when this batch runs again: it begins where it began.
    return replace(end, added={tp: beginnings[tp] for tp in backlog.batch.added if tp in beginnings})


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
    limits: MicroBatchLimits, begin: Positions, latest: Positions, sizes: SizeEstimate
) -> dict[TopicPartition, int]:
    """Where the batch ends in each partition of ``latest``, all of which are in ``begin``: the stricter of
    both limits counts.

    A partition with a log that ends before ``begin`` ends at its latest offset.
    """
    ends = dict(latest)
    if limits.max_offsets is not None:
        ends = _share_out(limits.max_offsets, begin, latest)
    if limits.max_bytes is not None:
        first = {tp: max(at, min(sizes.first.get(tp, at), latest.get(tp, at))) for tp, at in begin.items()}
        by_bytes = _share_out(_count_offsets(limits.max_bytes, first, latest, sizes), first, latest)
        ends = {tp: min(end, by_bytes[tp]) for tp, end in ends.items()}
    return ends


def _share_out(limit: int | None, begin: Positions, latest: Positions) -> dict[TopicPartition, int]:
    sizes = {tp: end - begin[tp] for tp, end in latest.items() if end > begin[tp]}
    total = sum(sizes.values())
    if limit is None or total <= limit:
        return dict(latest)
    # At least one offset of each: a small partition beside a large one must not starve.
    return {
        tp: begin[tp] + max(limit * sizes[tp] // total, 1) if tp in sizes else end
        for tp, end in latest.items()
    }


def _count_offsets(max_bytes: int, begin: Positions, latest: Positions, sizes: SizeEstimate) -> int | None:
    """How many offsets have ``max_bytes``; None where there is no more than that. With one share for all
    partitions, a limit in bytes is one in offsets of the average size."""
    offsets = {tp: end - begin[tp] for tp, end in latest.items() if end > begin[tp]}
    estimated = sum(
        count * sizes.bytes_per_offset.get(tp, UNKNOWN_BYTES_PER_OFFSET) for tp, count in offsets.items()
    )
    if estimated <= max_bytes:
        return None
    return max(int(sum(offsets.values()) * max_bytes / estimated), 1)
