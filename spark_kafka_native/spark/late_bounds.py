"""`BoundRange`: a range with the offsets that a task looked up when it ran, and how far the task has come in
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from ..kafka.cluster.router import Router
from ..kafka.errors import BrokerError, DeadlineExceededError
from ..kafka.model import IsolationLevel, OffsetAt, TopicPartition
from .ranges import OffsetRange
from .resolve import list_offsets_at

if TYPE_CHECKING:
    from .data_loss import DataLossPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRange:
    """The offsets ``[position, until_offset)`` are still to be read."""

    planned: OffsetRange
    position: int
    until_offset: int
    is_untouched: bool = True
    """Whether nothing of it has been read, so that it may be looked up anew."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the range is of."""
        return self.planned.topic_partition

    @property
    def topic_id(self) -> UUID | None:
        """The topic that the offsets belong to; None where brokers give no topic ids."""
        return None if self.planned.topic_id is None else UUID(hex=self.planned.topic_id)

    def advanced(self, position: int) -> BoundRange:
        """The same with everything before ``position`` read."""
        return replace(self, position=position, is_untouched=False)


def bind_ranges(
    router: Router,
    ranges: Sequence[OffsetRange],
    loss: DataLossPolicy,
    *,
    ends_are_known: bool = False,
) -> list[BoundRange]:
    """Look up the bounds of ``ranges`` that were left open; ranges without any offset are left out.

    A fixed end beyond the end of the log is a data loss at once: the leader tells where its log ends, and a
    wait would not bring back what is gone. Topics that are gone or are others by now go to ``loss`` as well.
    """
    try:
        return _bind_all(router, loss.check_topics(router, ranges), loss, ends_are_known)
    except (BrokerError, DeadlineExceededError) as error:
        there = loss.drop_deleted(router, ranges, error)
        return bind_ranges(router, there, loss, ends_are_known=ends_are_known)


def _bind_all(
    router: Router,
    ranges: Sequence[OffsetRange],
    loss: DataLossPolicy,
    ends_are_known: bool,
    *,
    topics_are_fresh: bool = False,
) -> list[BoundRange]:
    open_starts = {one.topic_partition for one in ranges if one.from_offset is None or one.start_is_open}
    open_ends = {one.topic_partition for one in ranges if one.until_offset is None}
    fixed_ends = {
        one.topic_partition for one in ranges if one.until_offset is not None and not ends_are_known
    }
    earliest = _list(router, open_starts, OffsetAt.EARLIEST, loss.isolation_level)
    latest = _list(router, open_ends, OffsetAt.LATEST, loss.isolation_level)
    # After latest, not before: a record that is too late for the end and arrives in between is found.
    latest |= _find_ends(router, ranges, loss.isolation_level)
    # What is there, whether committed or not: an open transaction is no loss.
    there = _list(router, fixed_ends, OffsetAt.LATEST, IsolationLevel.READ_UNCOMMITTED)
    if not topics_are_fresh and not all(_fits(planned, latest, there) for planned in ranges):
        # The client of an earlier task may still know the former topic of that name.
        ranges = loss.check_topics(router, ranges, refresh=True)
        return _bind_all(router, ranges, loss, ends_are_known, topics_are_fresh=True)
    found: list[BoundRange] = []
    for planned in ranges:
        bound = _bind(planned, earliest, latest, loss)
        end = there.get(planned.topic_partition)
        if planned.until_offset is not None and end is not None and end < bound.until_offset:
            bound = loss.cut(bound, min(bound.position, end), end)
        if bound.position < bound.until_offset:
            found.append(bound)
    return found


def _fits(
    planned: OffsetRange, latest: Mapping[TopicPartition, int], there: Mapping[TopicPartition, int]
) -> bool:
    """Whether the log is as long as it was planned to be, and more than that where the end is open."""
    tp = planned.topic_partition
    if planned.until_offset is not None:
        return planned.until_offset <= there.get(tp, planned.until_offset)
    return planned.from_offset is None or planned.from_offset < latest[tp]


def _bind(
    planned: OffsetRange,
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    loss: DataLossPolicy,
) -> BoundRange:
    tp = planned.topic_partition
    from_offset = planned.from_offset or 0
    if planned.from_offset is None or planned.start_is_open:
        # The fixed start of a piece is no wish for what is before earliest by now.
        from_offset = max(from_offset, earliest[tp])
    until_offset = latest[tp] if planned.until_offset is None else planned.until_offset
    if planned.from_offset is not None and planned.from_offset > until_offset:
        # The log ended behind it when the range was planned, and is shorter now.
        loss.report_shrunk(tp, from_offset, until_offset)
    end = until_offset if planned.ceiling is None else min(until_offset, planned.ceiling)
    position = max(from_offset, planned.floor)
    return BoundRange(planned=planned, position=position, until_offset=max(position, end))


def _find_ends(
    router: Router, ranges: Sequence[OffsetRange], isolation_level: IsolationLevel
) -> dict[TopicPartition, int]:
    """Where the open ends that a time was given for are, as far as there is a record that late by now."""
    places = {
        one.topic_partition: OffsetAt.timestamp(one.until_timestamp_ms)
        for one in ranges
        if one.until_offset is None and one.until_timestamp_ms is not None
    }
    found = list_offsets_at(router, places, isolation_level)
    return {topic_partition: offset for topic_partition, offset in found.items() if offset is not None}


def _list(
    router: Router, topic_partitions: Iterable[TopicPartition], at: OffsetAt, isolation_level: IsolationLevel
) -> dict[TopicPartition, int]:
    found = list_offsets_at(router, dict.fromkeys(topic_partitions, at), isolation_level)
    return {topic_partition: offset or 0 for topic_partition, offset in found.items()}
