"""`bind_ranges`: from planned ranges to offsets, when a task runs. What is not there any more comes back with
them, as losses: the task decides about those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from ...kafka.cluster.metadata import ClusterMetadata
from ...kafka.cluster.router import Router
from ...kafka.cluster.topic_ids import find_recreated
from ...kafka.error_code import ErrorCode
from ...kafka.errors import BrokerError, DeadlineExceededError, KafkaError
from ...kafka.model import IsolationLevel, OffsetAt, TopicPartition
from .bound_range import Binding, BoundRange, cut_to_log, first_offset, move_to_successor
from .bounds import Earliest, FirstAtOrAfter, fixed_offset, is_open
from .data_loss import LogShrunk, Loss, PartitionsDeleted
from .ranges import OffsetRange
from .resolve import list_offsets_at

_GONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsNow:
    """What the leaders say of the partitions of some ranges, as far as the ranges depend on it."""

    earliest: Mapping[TopicPartition, int]
    """Where a start is open."""
    latest: Mapping[TopicPartition, int]
    """Where the end is: the end of the log that readers may see, or the first record of the end's time."""
    log_end: Mapping[TopicPartition, int]
    """Where the end is fixed and has to be there, committed or not: an open transaction is no loss."""


def bind_ranges(
    router: Router,
    ranges: Sequence[OffsetRange],
    isolation_level: IsolationLevel,
    *,
    ends_are_known: bool = False,
) -> Binding:
    """Look up what of ``ranges`` is to be read now. Ranges without any offset are left out.

    A fixed end beyond the end of the log is a loss at once, unless ``ends_are_known``: the leader tells where
    its log ends, and a wait would not bring back what is gone. So are offsets of topics that are gone or are
    others by now. Raises the client's errors.
    """
    left = list(ranges)
    losses: list[Loss] = []
    refresh = False
    while True:
        left, moved = _follow_topics(router, left, refresh=refresh)
        losses += moved
        try:
            now = _ask(router, left, isolation_level, ends_are_known)
        except (BrokerError, DeadlineExceededError) as error:
            left, deleted = drop_deleted(router, left, error)
            losses.append(deleted)
            continue
        if refresh or all(_is_expected(planned, now) for planned in left):
            return Binding.of([Binding(losses=tuple(losses)), *(bind(planned, now) for planned in left)])
        # The ids that are known may be old, and these the offsets of another topic.
        refresh = True


def drop_deleted(
    router: Router, ranges: Sequence[OffsetRange], error: KafkaError
) -> tuple[list[OffsetRange], Loss]:
    """Those of ``ranges`` whose partition still exists, and the loss of the others. Raises ``error`` if it is
    about something else.
    """
    if not is_about_missing(error):
        raise error
    now = router.metadata({one.topic for one in ranges}, refresh=True)
    gone = frozenset(one.topic_partition for one in ranges if _is_missing(now, one.topic_partition))
    there = [one for one in ranges if one.topic_partition not in gone]
    if not gone:
        raise error
    return there, PartitionsDeleted(topic_partitions=gone, cause=error)


def is_about_missing(error: BaseException) -> bool:
    """Whether a topic or partition was not there, at once or until a deadline."""
    found = error.__cause__ if isinstance(error, DeadlineExceededError) else error
    return isinstance(found, BrokerError) and found.error_code in _GONE


def bind(planned: OffsetRange, now: LogsNow) -> Binding:
    """``planned`` with its offsets; no range if it is empty."""
    tp = planned.topic_partition
    losses: list[Loss] = []
    first, until_offset = first_offset(planned, now.earliest.get(tp, 0)), _end_offset(planned, now)
    start = fixed_offset(planned.start)
    if start is not None and start > until_offset:
        # The log ended behind it when the range was planned, and is shorter now.
        losses.append(LogShrunk(topic_partition=tp, from_offset=first, until_offset=until_offset))
    position = max(first, planned.floor)
    end = until_offset if planned.ceiling is None else min(until_offset, planned.ceiling)
    bound = BoundRange(planned=planned, position=position, until_offset=max(position, end))
    log_end = now.log_end.get(tp)
    if fixed_offset(planned.end) is not None and log_end is not None and log_end < bound.until_offset:
        bound, loss = cut_to_log(bound, min(bound.position, log_end), log_end)
        losses += [] if loss is None else [loss]
    return Binding(
        ranges=(bound,) if bound.position < bound.until_offset else (),
        losses=tuple(losses),
    )


def _follow_topics(
    router: Router, ranges: Sequence[OffsetRange], *, refresh: bool
) -> tuple[list[OffsetRange], list[Loss]]:
    """``ranges`` for the topics that there are now: by topic id, as the same name may be another topic."""
    expected = {one.topic: UUID(hex=one.topic_id) for one in ranges if one.topic_id is not None}
    at = {one.topic_partition for one in ranges}
    recreated = find_recreated(router, expected, refresh=refresh, at=at)
    kept: list[OffsetRange] = []
    losses: list[Loss] = []
    for one in ranges:
        topic_id = None if one.topic_id is None else recreated.get(one.topic)
        if topic_id is None:
            kept.append(one)
            continue
        moved, loss = move_to_successor(one, topic_id.hex)
        kept += [] if moved is None else [moved]
        losses += [] if loss is None else [loss]
    return kept, losses


def _ask(
    router: Router, ranges: Sequence[OffsetRange], isolation_level: IsolationLevel, ends_are_known: bool
) -> LogsNow:
    open_starts = {one.topic_partition for one in ranges if is_open(one.start)}
    open_ends = {one.topic_partition for one in ranges if fixed_offset(one.end) is None}
    fixed_ends = {one.topic_partition for one in ranges if fixed_offset(one.end) is not None}
    earliest = _list(router, open_starts, OffsetAt.EARLIEST, isolation_level)
    latest = _list(router, open_ends, OffsetAt.LATEST, isolation_level)
    # After latest, not before: a record that is too late for the end and arrives in between is found.
    latest |= _find_ends(router, ranges, isolation_level)
    checked = () if ends_are_known else fixed_ends
    log_end = _list(router, checked, OffsetAt.LATEST, IsolationLevel.READ_UNCOMMITTED)
    return LogsNow(earliest=earliest, latest=latest, log_end=log_end)


def _find_ends(
    router: Router, ranges: Sequence[OffsetRange], isolation_level: IsolationLevel
) -> dict[TopicPartition, int]:
    """Where the open ends that a time was given for are, as far as there is a record that late by now."""
    places = {
        one.topic_partition: OffsetAt.timestamp(one.end.timestamp_ms)
        for one in ranges
        if isinstance(one.end, FirstAtOrAfter)
    }
    found = list_offsets_at(router, places, isolation_level)
    return {topic_partition: offset for topic_partition, offset in found.items() if offset is not None}


def _list(
    router: Router, topic_partitions: Iterable[TopicPartition], at: OffsetAt, isolation_level: IsolationLevel
) -> dict[TopicPartition, int]:
    found = list_offsets_at(router, dict.fromkeys(topic_partitions, at), isolation_level)
    return {topic_partition: offset or 0 for topic_partition, offset in found.items()}


def _is_expected(planned: OffsetRange, now: LogsNow) -> bool:
    """Whether the log looks as it did when the range was planned: its end is there, and offsets before it."""
    if isinstance(planned.start, Earliest) and fixed_offset(planned.end) is None:
        return True  # whatever there is
    tp = planned.topic_partition
    until_offset = _end_offset(planned, now)
    first = first_offset(planned, now.earliest.get(tp, 0))
    return first < until_offset <= now.log_end.get(tp, until_offset)


def _end_offset(planned: OffsetRange, now: LogsNow) -> int:
    fixed = fixed_offset(planned.end)
    return now.latest[planned.topic_partition] if fixed is None else fixed


def _is_missing(metadata: ClusterMetadata, topic_partition: TopicPartition) -> bool:
    """Whether ``metadata`` say that there is no such partition; a topic that may not be described, or has no
    leaders yet, may have it.
    """
    try:
        metadata.partition(topic_partition)
    except BrokerError as error:
        return error.error_code in _GONE
    return False
