"""`plan_batch`: a `ClusterView` -> the tasks of a batch read. Pure: it asks nothing.

Where a read starts and ends, as the options say it, becomes bounds (`resolve_start`, `resolve_end`); a bound
that is looked up when the task runs stays one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, assert_never

from ....kafka.errors import ConfigError
from ....kafka.model import TopicPartition
from ...error_conditions import KafkaConditionError
from ..offset_range import (
    At,
    AtTimestamp,
    AtTimestamps,
    Committed,
    Earliest,
    EndBound,
    FirstAtOrAfter,
    Latest,
    LatestMinus,
    OffsetRange,
    PartitionOffset,
    Specific,
    StartBound,
    fixed_offset,
    format_topic_partitions,
)
from ..read_options import ReadOptions
from .cluster_view import ClusterView, time_of
from .pushed_filters import PushedFilters
from .range_calculator import PlannedRange, describe_small_tasks, form_tasks

_LOG: Final = logging.getLogger("spark_kafka_native")

_OFFSETS_MISMATCH: Final = "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"

_TIMES_MISMATCH: Final = "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"

Cut = tuple[int, int | None]
"""Offsets that pushed filters leave: from (inclusive) and until (exclusive, None for no bound)."""


def plan_batch(
    view: ClusterView, options: ReadOptions, filters: PushedFilters
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task. Every offset between the limits is in exactly one of them.

    Raises `KafkaConditionError` and `ConfigError` for limits that do not fit the cluster.
    """
    starts, ends = resolve_start(view, options), resolve_end(view, options)
    ends |= _ends_of_unstable(view, starts, ends)
    cuts = _cut(view, filters, starts)
    planned = [_plan_range(view, tp, (starts[tp], ends[tp]), cut) for tp, cut in cuts.items()]
    if options.bind_at_load:
        planned = [_bind(one) for one in planned]
    tasks = form_tasks(planned, options.task_limits, _leaders(view, ends))
    if (hint := describe_small_tasks(tasks)) is not None:
        _LOG.warning("%s", hint)
    return [tuple(piece.shipped for piece in task) for task in tasks]


def resolve_start(view: ClusterView, options: ReadOptions) -> dict[TopicPartition, StartBound]:
    """Where each partition starts; only `Earliest` stays to be looked up when the job runs."""
    limit, latest = options.starting, view.latest_before
    match limit:
        case Earliest():
            return dict.fromkeys(view.partitions, Earliest())
        case Latest():
            return {tp: At(latest[tp]) for tp in view.partitions}
        case LatestMinus(count):
            return {tp: At(max(latest[tp] - count, view.earliest[tp])) for tp in view.partitions}
        case Specific(offsets):
            _check_assigned(offsets, view.partitions, _OFFSETS_MISMATCH, "start")
            return {
                tp: At(latest[tp]) if isinstance(bound, Latest) else bound for tp, bound in offsets.items()
            }
        case Committed():
            return _start_at_committed(view, options)
        case AtTimestamp() | AtTimestamps():
            return _start_at_times(view, options, limit)
        case _:
            assert_never(limit)


def resolve_end(view: ClusterView, options: ReadOptions) -> dict[TopicPartition, EndBound]:
    """Where each partition ends. `Latest` stays to be looked up when the job runs, and so does a time that no
    record has reached yet: one that is too late may arrive after the planning, and must not be read then.
    """
    limit = options.ending
    match limit:
        case Specific(offsets):
            _check_assigned(offsets, view.partitions, _OFFSETS_MISMATCH, "end")
            return {tp: _end_of(bound) for tp, bound in offsets.items()}
        case AtTimestamp() | AtTimestamps():
            _check_times(limit, view.partitions, "end")
            return {
                tp: FirstAtOrAfter(time_of(limit, tp)) if offset is None else At(offset)
                for tp, offset in view.ending.items()
            }
        case Latest() | Earliest() | LatestMinus() | Committed():
            return dict.fromkeys(view.partitions, Latest())
        case _:
            assert_never(limit)


def offset_now(bound: StartBound | EndBound, topic_partition: TopicPartition, view: ClusterView) -> int:
    """The offset of ``bound`` at the time of the view. A time that no record has reached ends there or later,
    so that a range may be cut there."""
    if (offset := fixed_offset(bound)) is not None:
        return offset
    return (view.earliest if isinstance(bound, Earliest) else view.latest)[topic_partition]


def _end_of(bound: PartitionOffset) -> EndBound:
    if isinstance(bound, Earliest):
        raise ConfigError("an ending offset can't be earliest")  # refused with Spark's words before
    return bound


def _ends_of_unstable(
    view: ClusterView,
    starts: Mapping[TopicPartition, StartBound],
    ends: Mapping[TopicPartition, EndBound],
) -> dict[TopicPartition, EndBound]:
    """The ends of partitions in which the group is ahead of the last stable offset. It may have read with
    read_uncommitted before: the rest belongs to open transactions, and nothing of it is read."""
    return {
        tp: At(start.offset)
        for tp, start in starts.items()
        if isinstance(start, At) and isinstance(ends[tp], Latest | FirstAtOrAfter) and tp in view.log_ends
        if view.latest[tp] < start.offset <= view.log_ends[tp]
    }


def _start_at_committed(view: ClusterView, options: ReadOptions) -> dict[TopicPartition, StartBound]:
    missing = [topic_partition for topic_partition, offset in view.committed.items() if offset is None]
    if missing and options.fallbacks.not_committed == "error":
        raise ConfigError(
            f"Group {options.group_id} has committed no offset for {format_topic_partitions(missing)}; "
            "set committedOffsetsFallback to earliest or latest to start there instead"
        )
    at_latest, latest = options.fallbacks.not_committed == "latest", view.latest_before
    return {
        tp: At(offset) if offset is not None else At(latest[tp]) if at_latest else Earliest()
        for tp, offset in view.committed.items()
    }


def _start_at_times(
    view: ClusterView, options: ReadOptions, limit: AtTimestamp | AtTimestamps
) -> dict[TopicPartition, StartBound]:
    _check_times(limit, view.partitions, "start")
    for topic_partition, offset in view.starting.items():
        if offset is None and options.fallbacks.after_last_record == "error":
            time_ms = time_of(limit, topic_partition)
            raise ConfigError(
                f"No offset matched from request of topic-partition {topic_partition} and timestamp "
                f"{time_ms}."
            )
    return {
        tp: At(view.latest_before[tp] if offset is None else offset) for tp, offset in view.starting.items()
    }


def _check_times(
    limit: AtTimestamp | AtTimestamps, partitions: Collection[TopicPartition], position: str
) -> None:
    if isinstance(limit, AtTimestamps):
        _check_assigned(limit.timestamps_ms, partitions, _TIMES_MISMATCH, position)


def _check_assigned(
    specified: Mapping[TopicPartition, object],
    assigned: Collection[TopicPartition],
    condition: str,
    position: str,
) -> None:
    if set(specified) != set(assigned):
        raise KafkaConditionError(
            condition,
            {
                "position": position,
                "specifiedPartitions": format_topic_partitions(specified),
                "assignedPartitions": format_topic_partitions(assigned),
            },
        )


def _plan_range(
    view: ClusterView, topic_partition: TopicPartition, limits: tuple[StartBound, EndBound], cut: Cut
) -> PlannedRange:
    start, end = limits
    from_now = offset_now(start, topic_partition, view)
    until_now = offset_now(end, topic_partition, view)
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
        topic_id=view.partitions[topic_partition].topic_id,
    )
    cut_from = max(from_now, floor)
    cut_until = until_now if ceiling is None else min(until_now, ceiling)
    return PlannedRange(shipped=shipped, from_offset=cut_from, until_offset=max(cut_from, cut_until))


def _leaders(view: ClusterView, ends: Mapping[TopicPartition, EndBound]) -> dict[TopicPartition, int]:
    """By which ranges are packed; none without a `Latest`, as leaders move: a write that completes an earlier
    one exactly once needs the same rows in each task."""
    if Latest() not in ends.values():
        return {}
    return {tp: one.leader for tp, one in view.partitions.items()}


def _bind(planned: PlannedRange) -> PlannedRange:
    """``planned`` with the offsets that its bounds are now."""
    shipped = replace(planned.shipped, start=At(planned.from_offset), end=At(planned.until_offset))
    return replace(planned, shipped=shipped)


def _cut(
    view: ClusterView, filters: PushedFilters, starts: Mapping[TopicPartition, StartBound]
) -> dict[TopicPartition, Cut]:
    """The partitions that the filters allow, with the offsets that they leave of each.

    The first record at or after a time has only earlier ones before it, so that a lower bound prunes. After
    it there may be earlier ones again, and no answer of a broker rules that out. Nor is it known how late the
    records were that retention has taken: a start before the log is left to the task, which finds the loss.
    """
    cuts: dict[TopicPartition, Cut] = {
        tp: (filters.from_offset, filters.until_offset) for tp in view.partitions if filters.allows(tp)
    }
    # No record that late: none before `latest` can be, as it was listed *earlier*. Later ones may arrive.
    found = {
        tp: view.latest[tp] if at is None else at
        for tp, at in view.filtered.items()
        if (start := fixed_offset(starts[tp])) is None or start >= view.filtered_from[tp]
    }
    return {tp: (max(cut[0], found.get(tp, 0)), cut[1]) for tp, cut in cuts.items()}
