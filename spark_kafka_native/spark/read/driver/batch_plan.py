"""`plan_batch`: a batch read -> its tasks. Runs on the driver, once for each ``load()``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ....kafka.cluster.router import Router
from ....kafka.model import IsolationLevel, OffsetAt, TopicPartition
from ...conditions import KafkaConditionError
from ..offset_limits import AtTimestamp, AtTimestamps, Committed
from ..offset_range import At, EndBound, FirstAtOrAfter, Latest, OffsetRange, StartBound
from ..read_options import ReadOptions
from .offset_reader import (
    AssignedPartition,
    ListedOffsets,
    find_partitions,
    list_earliest_and_latest,
    list_latest,
    list_offsets_at,
    offset_now,
    resolve_end,
    resolve_start,
)
from .pushed_filters import PushedFilters
from .range_calculator import PlannedRange, describe_small_tasks, form_tasks

_LOG: Final = logging.getLogger("spark_kafka_native")

Cut = tuple[int, int | None]
"""Offsets that pushed filters leave: from (inclusive) and until (exclusive, None for no bound)."""


def plan_batch(router: Router, options: ReadOptions, filters: PushedFilters) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task. Every offset between the limits is in exactly one of them."""
    assigned = find_partitions(router, options)
    bounds = list_earliest_and_latest(router, assigned, options.consumer.isolation_level)
    listed = bounds.latest
    starts = resolve_start(router, options, assigned, bounds)
    ends = resolve_end(router, options, assigned)
    if isinstance(options.starting, Committed | AtTimestamp | AtTimestamps):
        # Looked up after the ends were listed, these may be behind them by now if records arrive.
        bounds = replace(bounds, latest=list_latest(router, assigned, options.consumer.isolation_level))
    if isinstance(options.starting, Committed):
        ends |= _ends_of_unstable(router, options, starts, ends, bounds)
    wanted = {tp: partition for tp, partition in assigned.items() if filters.allows(tp)}
    cuts = _resolve_cuts(router, options, filters, wanted, bounds)
    planned = [
        _plan_range(tp, partition, (starts[tp], ends[tp]), bounds, cuts[tp])
        for tp, partition in wanted.items()
    ]
    if options.bind_at_load:
        planned = [_bind(one, listed) for one in planned]
    tasks = form_tasks(planned, options, {tp: partition.leader for tp, partition in assigned.items()})
    if (hint := describe_small_tasks(tasks)) is not None:
        _LOG.warning("%s", hint)
    return [tuple(piece.shipped for piece in task) for task in tasks]


def _ends_of_unstable(
    router: Router,
    options: ReadOptions,
    starts: Mapping[TopicPartition, StartBound],
    ends: Mapping[TopicPartition, EndBound],
    bounds: ListedOffsets,
) -> dict[TopicPartition, EndBound]:
    """With read_committed: the ends of partitions in which the group is ahead of the last stable offset. It
    may have read with read_uncommitted before; what it has not read belongs to open transactions, and nothing
    is read of it."""
    if options.consumer.isolation_level is not IsolationLevel.READ_COMMITTED:
        return {}
    ahead = {
        tp: start.offset
        for tp, start in starts.items()
        if isinstance(start, At) and start.offset > bounds.latest[tp] and isinstance(ends[tp], Latest)
    }
    log_ends = list_latest(router, ahead, IsolationLevel.READ_UNCOMMITTED)
    return {tp: At(offset) for tp, offset in ahead.items() if offset <= log_ends[tp]}


def _plan_range(
    topic_partition: TopicPartition,
    partition: AssignedPartition,
    limits: tuple[StartBound, EndBound],
    bounds: ListedOffsets,
    cut: Cut,
) -> PlannedRange:
    start, end = limits
    from_now = offset_now(start, topic_partition, bounds)
    until_now = offset_now(end, topic_partition, bounds)
    if from_now > until_now:
        raise KafkaConditionError(
            "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            {
                "startOffset": from_now,
                "endOffset": until_now,
                "topic": topic_partition.topic,
                "partition": topic_partition.partition,
            },
        )
    floor, ceiling = cut
    shipped = OffsetRange(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        start=start,
        end=end,
        floor=floor,
        ceiling=ceiling,
        topic_id=partition.topic_id,
    )
    cut_from = max(from_now, floor)
    cut_until = until_now if ceiling is None else min(until_now, ceiling)
    return PlannedRange(shipped=shipped, from_offset=cut_from, until_offset=max(cut_from, cut_until))


def _bind(planned: PlannedRange, listed: Mapping[TopicPartition, int]) -> PlannedRange:
    """``planned`` with the offsets that its bounds are now."""
    until_offset = planned.until_offset
    if isinstance(planned.shipped.end, FirstAtOrAfter):
        # Looked up after the ends were listed, and no record is that late: so the range ends there. Records
        # that have arrived since may be too late.
        until_offset = max(planned.from_offset, min(until_offset, listed[planned.shipped.topic_partition]))
    shipped = replace(planned.shipped, start=At(planned.from_offset), end=At(until_offset))
    return replace(planned, shipped=shipped, until_offset=until_offset)


def _resolve_cuts(
    router: Router,
    options: ReadOptions,
    filters: PushedFilters,
    wanted: Mapping[TopicPartition, AssignedPartition],
    bounds: ListedOffsets,
) -> dict[TopicPartition, Cut]:
    """Offsets and the earliest time of the filters as offsets of each partition.

    The first record at or after a time has only earlier ones before it, so that a lower bound always prunes.
    After it there may be earlier ones again, and no answer of a broker rules that out.
    """
    cuts: dict[TopicPartition, Cut] = dict.fromkeys(wanted, (filters.from_offset, filters.until_offset))
    if filters.from_timestamp_ms is not None and filters.from_timestamp_ms > 0:
        places = dict.fromkeys(wanted, OffsetAt.timestamp(filters.from_timestamp_ms))
        found = list_offsets_at(router, places, options.consumer.isolation_level)
        # No record that late: none before the end that was listed *earlier* can be, while later ones may
        # arrive.
        cuts = {
            tp: (max(cut[0], bounds.latest[tp] if (at := found[tp]) is None else at), cut[1])
            for tp, cut in cuts.items()
        }
    return cuts
