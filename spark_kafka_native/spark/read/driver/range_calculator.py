"""How ranges become tasks: split, then packed.

``minPartitions`` and ``maxRecordsPerPartition`` split, ``maxPartitions`` packs. Pure functions; the
arithmetic of splitting is that of Spark's ``KafkaOffsetRangeCalculator``.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ....kafka.model import TopicPartition
from ..offset_range import At, Inner, OffsetRange, fixed_offset, is_open
from ..read_options import TaskLimits


def form_tasks(
    planned: Sequence[PlannedRange], limits: TaskLimits, leaders: Mapping[TopicPartition, int]
) -> list[tuple[PlannedRange, ...]]:
    """Split and pack, as the options say."""
    pieces = split_ranges(
        planned, min_partitions=limits.min_partitions, max_records=limits.max_records_per_partition
    )
    return pack_ranges(pieces, limits.max_partitions, leaders)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRange:
    """A range as planned: what to ship, and its bounds *now* (``from_offset`` <= ``until_offset``)."""

    shipped: OffsetRange
    from_offset: int
    until_offset: int

    @property
    def size(self) -> int:
        """Offsets, not records: compaction and transaction markers leave gaps."""
        return self.until_offset - self.from_offset


def split_ranges(
    ranges: Sequence[PlannedRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[PlannedRange]:
    """Split so that there are about ``min_partitions`` ranges and none is larger than ``max_records``.

    Empty ranges are dropped, unless an end that is looked up later may still give them something. The outer
    bounds of a split range stay as they were shipped; inner ones are fixed offsets: `At`, or `Inner`
    where the whole is open on that side.
    """
    empty = [planned for planned in ranges if planned.size <= 0 and _may_grow(planned)]
    full = [planned for planned in ranges if planned.size > 0]
    if max_records is not None:
        full = [piece for planned in full for piece in _divide(planned, -(-planned.size // max_records))]
    if min_partitions is not None and min_partitions > len(full):
        full = _split_to_count(full, min_partitions)
    return sorted(
        full + empty,
        key=lambda planned: (planned.shipped.topic, planned.shipped.partition, planned.from_offset),
    )


def pack_ranges(
    ranges: Sequence[PlannedRange], max_partitions: int | None, leaders: Mapping[TopicPartition, int]
) -> list[tuple[PlannedRange, ...]]:
    """Put ranges together into at most ``max_partitions`` tasks: by leader first, where ``leaders`` names
    them, then evenly by size.

    Pieces of one partition in the same task are put back together, in order. None for ``max_partitions``: a
    task each.
    """
    if max_partitions is None or len(ranges) <= max_partitions:
        return [(planned,) for planned in ranges]
    by_leader: dict[int, list[PlannedRange]] = {}
    for planned in ranges:
        by_leader.setdefault(leaders.get(planned.shipped.topic_partition, -1), []).append(planned)
    groups = list(by_leader.values())
    while len(groups) > max_partitions:
        # Fewer tasks than leaders: the two smallest groups share one.
        groups.sort(key=_weight)
        groups = [groups[0] + groups[1], *groups[2:]]
    tasks = [
        task
        for group, count in zip(groups, _share_out(groups, max_partitions), strict=True)
        for task in _fill(group, count)
    ]
    return [_join_pieces(task) for task in tasks]


def describe_small_tasks(tasks: Sequence[Sequence[PlannedRange]]) -> str | None:
    """The hint for a plan of many tasks with next to nothing to do each, or None."""
    if len(tasks) <= 100 or any(sum(planned.size for planned in task) >= 1000 for task in tasks):
        return None
    total = sum(planned.size for task in tasks for planned in task)
    return (
        f"{len(tasks)} tasks were planned for {total} offsets in all, fewer than 1000 each: set "
        "maxPartitions to pack small ranges together; a read with few tasks is much faster"
    )


def _may_grow(planned: PlannedRange) -> bool:
    shipped = planned.shipped
    is_fixed = fixed_offset(shipped.end) is not None
    return not is_fixed and (shipped.ceiling is None or shipped.ceiling > planned.until_offset)


def _split_to_count(ranges: list[PlannedRange], min_partitions: int) -> list[PlannedRange]:
    total = sum(planned.size for planned in ranges)
    unsplit = [planned for planned in ranges if _part_count(planned.size, total, min_partitions) == 1]
    # What stays whole takes a task each and is left out of the proportions (SPARK-36576).
    whole = {planned.shipped.topic_partition for planned in unsplit}
    rest = total - sum(planned.size for planned in unsplit)
    budget = max(min_partitions - len(unsplit), 1)
    pieces: list[PlannedRange] = []
    for planned in ranges:
        is_whole = planned.shipped.topic_partition in whole
        pieces += _divide(planned, 1 if is_whole else _part_count(planned.size, rest, budget))
    return pieces


def _part_count(size: int, total: int, min_partitions: int) -> int:
    # Java's Math.round: half up, where Python's rounds half to even.
    return max(math.floor(size / total * min_partitions + 0.5), 1)


def _divide(planned: PlannedRange, count: int) -> list[PlannedRange]:
    """Even pieces by integer division, as Spark cuts them: each takes its share of what remains."""
    count = min(count, planned.size)
    start, remaining, bounds = planned.from_offset, planned.size, [planned.from_offset]
    for part in range(count):
        share = remaining // (count - part)
        remaining -= share
        start += share
        bounds.append(start)
    whole = planned.shipped
    inner_start = Inner if is_open(whole.start) else At
    inner_end = Inner if is_open(whole.end) else At
    return [
        PlannedRange(
            shipped=replace(
                whole,
                start=whole.start if part == 0 else inner_start(bounds[part]),
                end=whole.end if part == count - 1 else inner_end(bounds[part + 1]),
            ),
            from_offset=bounds[part],
            until_offset=bounds[part + 1],
        )
        for part in range(count)
    ]


def _weight(ranges: Iterable[PlannedRange]) -> int:
    """Offsets, plus what asking for a range costs even if it is empty."""
    return sum(planned.size + 100 for planned in ranges)


def _share_out(groups: list[list[PlannedRange]], count: int) -> list[int]:
    """Tasks for each group, at least one: always to the group that has the largest tasks now. There are more
    ranges than tasks, so that no task stays empty."""
    shares = [1] * len(groups)
    weights = [_weight(group) for group in groups]
    for _ in range(count - len(groups)):
        most = max(
            range(len(groups)), key=lambda i: weights[i] / shares[i] if shares[i] < len(groups[i]) else -1.0
        )
        shares[most] += 1
    return shares


def _fill(group: list[PlannedRange], count: int) -> list[list[PlannedRange]]:
    """Largest first into the emptiest task; of equally empty ones, into the first."""
    tasks: list[list[PlannedRange]] = [[] for _ in range(count)]
    emptiest = [(0, index) for index in range(count)]
    for planned in sorted(group, key=lambda planned: planned.size, reverse=True):
        weight, index = emptiest[0]
        tasks[index].append(planned)
        heapq.heapreplace(emptiest, (weight + _weight([planned]), index))
    return tasks


def _join_pieces(task: list[PlannedRange]) -> tuple[PlannedRange, ...]:
    joined: list[PlannedRange] = []
    for planned in sorted(task, key=lambda planned: (planned.shipped.topic_partition, planned.from_offset)):
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.shipped.topic_partition == planned.shipped.topic_partition
            and fixed_offset(last.shipped.end) == fixed_offset(planned.shipped.start) is not None
        ):
            joined[-1] = PlannedRange(
                shipped=replace(last.shipped, end=planned.shipped.end),
                from_offset=last.from_offset,
                until_offset=planned.until_offset,
            )
        else:
            joined.append(planned)
    return tuple(joined)
