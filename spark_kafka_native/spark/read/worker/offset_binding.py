"""From planned ranges to the offsets that a task reads: `bind_ranges` when it starts, `rebind_ranges` after
an error. Offsets that the log no longer has are returned as losses: the task decides about those.

Never guesses: it goes by what the leader says about its log. Never goes back in a log, so that nothing is
read twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never
from uuid import UUID

from ....kafka.cluster import retry_policy
from ....kafka.cluster.fan_out import metadata_of_each_broker
from ....kafka.cluster.metadata import ClusterMetadata, topics_named
from ....kafka.cluster.offsets import list_bounds, list_offsets
from ....kafka.cluster.recreated_topics import find_recreated
from ....kafka.cluster.router import Router
from ....kafka.error_code import ErrorCode
from ....kafka.errors import (
    BrokerError,
    DeadlineExceededError,
    EndOfLogError,
    KafkaError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
    is_about_missing_partition,
)
from ....kafka.model import IsolationLevel, OffsetAt, TopicPartition
from ....kafka.runtime.deadline import Deadline
from ..data_loss import OTHER_CLUSTER, LogShrunk, Loss, OffsetsLost, PartitionsDeleted
from ..offset_range import At, Earliest, FirstAtOrAfter, Inner, OffsetRange, fixed_offset, is_open

OUTAGES_MS: Final = 60_000
"""The time that outages may add to a wait for missing partitions."""
SILENT_PART: Final = 0.5
"""The part of request.timeout.ms for which a broker that does not answer is asked for a partition that the
others do not know. Brokers under load take some seconds.
"""


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

    A fixed end beyond the end of the log is a loss at once, unless ``ends_are_known``: the leader says where
    its log ends, and waiting would not bring deleted records back. So are offsets of topics that were
    deleted, or deleted and created again. Raises the client's errors.
    """
    router.expect({one.topic for one in ranges})
    left, losses = _drop_noted(router, ranges)
    refresh = came_back = False
    while True:
        left, moved = _follow_topics(router, left, refresh=refresh)
        losses += moved
        try:
            now = _ask(router, left, isolation_level, ends_are_known=ends_are_known)
        except (BrokerError, DeadlineExceededError) as error:
            left, deleted = drop_deleted(router, left, error)
            losses += deleted
            if not deleted and came_back:
                raise
            came_back = came_back or not deleted  # it was missing until a moment ago: ask once more
            continue
        if refresh or all(_is_expected(planned, now) for planned in left):
            return Binding.of([Binding(losses=tuple(losses)), *(bind(planned, now) for planned in left)])
        # The ids that are known may be old, and these the offsets of another topic.
        refresh = True


def drop_deleted(
    router: Router, ranges: Sequence[OffsetRange], error: KafkaError
) -> tuple[list[OffsetRange], list[Loss]]:
    """The ``ranges`` of partitions that still exist, and the loss of the others, if any. Raises ``error`` if
    it is not about missing partitions.
    """
    if not is_about_missing_partition(error):
        raise error
    gone = _wait_for(router, ranges)
    there = [one for one in ranges if one.topic_partition not in gone]
    return there, [PartitionsDeleted(topic_partitions=gone, cause=error)] if gone else []


def _drop_noted(router: Router, ranges: Sequence[OffsetRange]) -> tuple[list[OffsetRange], list[Loss]]:
    """As `drop_deleted`, if a task of this process has waited for any of the topics in vain."""
    noted = {one.topic for one in ranges if router.was_deleted(one.topic, one.topic_uuid)}
    if not noted:
        return list(ranges), []
    return drop_deleted(
        router, ranges, BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topics_named(noted))
    )


def _wait_for(router: Router, ranges: Sequence[OffsetRange]) -> frozenset[TopicPartition]:
    """The partitions that all answers of a full wait lack, and at its end all brokers. An error is about one
    partition, and one broker, which may give all of these answers, may not know the others yet. Nor does a
    deadline of the task say that they are deleted, so it does not end the wait.

    There is none for topics that were waited for before, if the first answer lacks them.
    """
    topics = {one.topic for one in ranges}
    missing = {one.topic_partition for one in ranges}
    deadline = Deadline.after_ms(retry_policy.KNOWN_TOPIC_WAIT_MS + OUTAGES_MS)

    def look() -> None:
        now = router.snapshot
        missing.intersection_update(_missing(now, ranges))
        for one in ranges:
            if one.topic_partition in missing and not router.was_deleted(one.topic, one.topic_uuid):
                now.partition(one.topic_partition)

    router.metadata(topics, refresh=True, deadline=deadline)
    try:
        router.retry(look, what=f"looking for {topics_named(topics)}", deadline=deadline, topics=topics)
    except BrokerError as error:
        if not is_about_missing_partition(error):
            raise
        silent_ms = router.config.request_timeout_ms * SILENT_PART
        answers = metadata_of_each_broker(router, topics, deadline=deadline, give_up_after_ms=silent_ms)
        missing.intersection_update(*(_missing(one, ranges) for one in answers))
        # Each task asks anew: one wait in a process is enough.
        gone = (one for one in ranges if one.topic_partition in missing)
        router.note_deleted({one.topic: one.topic_uuid for one in gone})
    return frozenset(missing)


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
    expected = {one.topic: one.topic_uuid for one in ranges if one.topic_uuid is not None}
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
    router: Router,
    ranges: Sequence[OffsetRange],
    isolation_level: IsolationLevel,
    *,
    ends_are_known: bool,
) -> LogsNow:
    def find(places: Mapping[TopicPartition, OffsetAt], level: IsolationLevel) -> dict[TopicPartition, int]:
        found = list_offsets(router, places, isolation_level=level)
        return {tp: one.offset for tp, one in found.items() if one.offset is not None}

    open_starts = [one.topic_partition for one in ranges if is_open(one.start)]
    open_ends = [one.topic_partition for one in ranges if fixed_offset(one.end) is None]
    fixed_ends = [one.topic_partition for one in ranges if fixed_offset(one.end) is not None]
    times = {
        one.topic_partition: OffsetAt.timestamp(one.end.timestamp_ms)
        for one in ranges
        if isinstance(one.end, FirstAtOrAfter)
    }
    earliest = find(dict.fromkeys(open_starts, OffsetAt.EARLIEST), isolation_level)
    latest = find(dict.fromkeys(open_ends, OffsetAt.LATEST), isolation_level)
    # After latest, not before: a record that is too late for the end and arrives in between is found. There
    # is no answer where no record is that late by now.
    latest |= find(times, isolation_level)
    checked = () if ends_are_known else fixed_ends
    log_end = find(dict.fromkeys(checked, OffsetAt.LATEST), IsolationLevel.READ_UNCOMMITTED)
    return LogsNow(earliest=earliest, latest=latest, log_end=log_end)


def _is_expected(planned: OffsetRange, now: LogsNow) -> bool:
    """True if the log has the end of the range, and offsets before it, as when the range was planned."""
    if isinstance(planned.start, Earliest) and fixed_offset(planned.end) is None:
        return True  # any log will do
    tp = planned.topic_partition
    until_offset = _end_offset(planned, now)
    first = first_offset(planned, now.earliest.get(tp, 0))
    return first < until_offset <= now.log_end.get(tp, until_offset)


def _end_offset(planned: OffsetRange, now: LogsNow) -> int:
    fixed = fixed_offset(planned.end)
    return now.latest[planned.topic_partition] if fixed is None else fixed


def _missing(metadata: ClusterMetadata, ranges: Iterable[OffsetRange]) -> frozenset[TopicPartition]:
    """The partitions of ``ranges`` that are not in ``metadata``. One of a topic that may not be described, or
    that has no leaders yet, may exist.
    """
    missing: set[TopicPartition] = set()
    for one in ranges:
        try:
            metadata.partition(one.topic_partition)
        except BrokerError as error:
            if is_about_missing_partition(error):
                missing.add(one.topic_partition)
    return frozenset(missing)


def rebind_ranges(
    router: Router, left: Sequence[BoundRange], error: KafkaError, isolation_level: IsolationLevel
) -> Binding:
    """The part of ``left`` that can be read after ``error``, and the losses; ``left`` itself and no loss
    if the brokers say by now that nothing is wrong. Raises ``error`` if it is not about a loss, and the
    client's errors.
    """
    match error:
        case TopicRecreatedError():
            return _follow_topic(router, left, error, isolation_level)
        case LogTruncatedError():
            return Binding(ranges=tuple(left), losses=(_truncated(error),))
        case OffsetOutOfRangeError() | EndOfLogError():
            try:
                return _look_at_log(router, left, error, isolation_level)
            except (BrokerError, DeadlineExceededError) as later:  # the topic may have been deleted since
                return _without_deleted(router, left, later)
        case _:
            return _without_deleted(router, left, error)


def _without_deleted(router: Router, left: Sequence[BoundRange], error: KafkaError) -> Binding:
    there, losses = drop_deleted(router, [one.planned for one in left], error)
    return Binding(ranges=tuple(one for one in left if one.planned in there), losses=tuple(losses))


def _truncated(error: LogTruncatedError) -> OffsetsLost:
    """Records that were read are gone. Other records that have their offsets now are not read: a read never
    goes back."""
    return OffsetsLost(
        topic_partition=error.topic_partition,
        from_offset=error.end_offset,
        until_offset=error.position,
        lost=max(0, error.position - error.end_offset),
        note=str(error) + ".",
        cause=error,
    )


def _look_at_log(
    router: Router,
    left: Sequence[BoundRange],
    error: OffsetOutOfRangeError | EndOfLogError,
    isolation_level: IsolationLevel,
) -> Binding:
    tp = error.topic_partition
    bound = next((one for one in left if one.topic_partition == tp), None)
    if bound is None:
        return Binding(ranges=tuple(left))
    if isinstance(error, EndOfLogError) and error.high_watermark >= bound.until_offset:
        # An open transaction holds the last stable offset back: the records are there, only not yet to be
        # seen.
        raise error
    # The broker that said so may have been deposed without knowing, and lack records of its successor.
    router.metadata({tp.topic}, refresh=True)
    log = list_bounds(router, [tp], isolation_level=IsolationLevel.READ_UNCOMMITTED)[tp]
    if bound.topic_id is not None:
        # Afterwards, as offsets are listed by name.
        expected = {tp.topic: bound.topic_id}
        topic_id = find_recreated(router, expected, refresh=True, at={tp}).get(tp.topic)
        if topic_id is not None:
            recreated = TopicRecreatedError(tp.topic, str(bound.topic_id), str(topic_id))
            return _follow_topic(router, left, recreated, isolation_level)
    kept, loss = cut_to_log(bound, log.first, log.end, error)
    there = (kept if one is bound else one for one in left)
    return Binding(
        ranges=tuple(one for one in there if one.position < one.until_offset),
        losses=() if loss is None else (loss,),
    )


def _follow_topic(
    router: Router, left: Sequence[BoundRange], error: TopicRecreatedError, isolation_level: IsolationLevel
) -> Binding:
    """The ranges of the topic moved to the one that has its name now, if it is another one indeed."""
    expected = {error.topic: UUID(error.expected_topic_id)}
    at = {bound.topic_partition for bound in left}
    topic_id = find_recreated(router, expected, refresh=True, at=at).get(error.topic)
    if topic_id is None:
        return Binding(ranges=tuple(left))
    moved: list[OffsetRange] = []
    losses: list[Loss] = []
    for bound in left:
        if bound.topic_partition.topic != error.topic:
            continue
        begun = None if bound.is_untouched else bound
        successor, loss = move_to_successor(bound.planned, topic_id.hex, begun=begun, cause=error)
        moved += [] if successor is None else [successor]
        losses += [] if loss is None else [loss]
    kept = tuple(bound for bound in left if bound.topic_partition.topic != error.topic)
    # All at once: partitions that are missing are waited for together.
    found = bind_ranges(router, moved, isolation_level)
    return Binding.of([Binding(ranges=kept, losses=tuple(losses)), found])


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRange:
    """The offsets ``[position, until_offset)`` are still to be read."""

    planned: OffsetRange
    position: int
    until_offset: int
    is_untouched: bool = True
    """True if nothing of it has been read, so that it may be looked up again."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the range is of."""
        return self.planned.topic_partition

    @property
    def topic_id(self) -> UUID | None:
        """The topic that the offsets belong to; None where brokers give no topic ids."""
        return self.planned.topic_uuid

    def advanced(self, position: int) -> BoundRange:
        """The same with everything before ``position`` read."""
        return replace(self, position=position, is_untouched=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What can be read, and what of the plan is not there any more."""

    ranges: tuple[BoundRange, ...] = ()
    """None of them is empty."""
    losses: tuple[Loss, ...] = ()

    @classmethod
    def of(cls, parts: Iterable[Binding]) -> Binding:
        """All of ``parts``, in order."""
        listed = list(parts)
        return cls(
            ranges=tuple(one for part in listed for one in part.ranges),
            losses=tuple(one for part in listed for one in part.losses),
        )


def first_offset(planned: OffsetRange, earliest: int) -> int:
    """Where ``planned`` starts, its log beginning at ``earliest``."""
    match planned.start:
        case At(offset):
            return offset
        case Earliest():
            return earliest
        case Inner(offset):
            # The fixed start of a piece does not ask for offsets before the earliest one.
            return max(offset, earliest)
        case _:
            assert_never(planned.start)


def cut_to_log(
    bound: BoundRange, first: int, end: int, cause: KafkaError | None = None
) -> tuple[BoundRange, Loss | None]:
    """The part of ``bound`` that lies in ``[first, end)``, which is what its log has; the rest is lost."""
    position = min(max(bound.position, first), bound.until_offset)
    until_offset = max(min(bound.until_offset, end), position)
    lost = (bound.until_offset - bound.position) - (until_offset - position)
    kept = replace(bound, position=position, until_offset=until_offset)
    if not lost:
        return kept, None
    return kept, OffsetsLost(
        topic_partition=bound.topic_partition,
        from_offset=bound.position,
        until_offset=bound.until_offset,
        lost=lost,
        note=f"The log has [{first}, {end}).",
        cause=cause,
    )


def move_to_successor(
    planned: OffsetRange, topic_id: str, *, begun: BoundRange | None = None, cause: KafkaError | None = None
) -> tuple[OffsetRange | None, Loss | None]:
    """What of ``planned`` is read of the topic that has its name now, ``topic_id`` (hex).

    Nothing if its end is an offset of the former topic, else all. Of a partition that was split one piece has
    the open end, so that the new topic is read once, as it is without a split. The offsets of the former
    topic (the rest of them, if the range has been ``begun``) are lost. Only a whole partition, from earliest
    to latest, that has not begun loses nothing: it reads the topic that exists. Other tasks may have read
    their pieces of the former topic.
    """
    is_fixed = fixed_offset(planned.end) is not None
    # What filters said in offsets may have been a time's in the former topic; Spark applies them again.
    successor = replace(planned, start=Earliest(), floor=0, ceiling=None, topic_id=topic_id)
    moved = None if is_fixed else successor
    if begun is None and isinstance(planned.start, Earliest) and not is_fixed:
        return moved, None
    renewed = f"The topic was deleted and created again: topic id {planned.topic_id} is now {topic_id}."
    first = (fixed_offset(planned.start) or 0) if begun is None else begun.position
    end = fixed_offset(planned.end) if begun is None else begun.until_offset
    lost = None if end is None else end - first
    return moved, OffsetsLost(
        topic_partition=planned.topic_partition,
        from_offset=first,
        until_offset=end,
        lost=lost,
        note=f"{renewed} {OTHER_CLUSTER}",
        then="" if moved is None else "The new one is read from its beginning.",
        cause=cause,
    )
