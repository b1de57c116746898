"""`look_again`: what of the ranges of a task can still be read after an error, and what is lost.

Never guesses: it goes by what the leader says about its log. Never goes back in a log, so that nothing is
read twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ...kafka.cluster.router import Router
from ...kafka.cluster.topic_ids import find_recreated
from ...kafka.errors import (
    EndOfLogError,
    KafkaError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from ...kafka.model import IsolationLevel
from .bound_range import Binding, BoundRange, cut_to_log, move_to_successor
from .data_loss import OffsetsLost
from .late_bounds import bind_ranges, drop_deleted
from .resolve import list_log_bounds


def look_again(
    router: Router, left: Sequence[BoundRange], error: KafkaError, isolation_level: IsolationLevel
) -> Binding:
    """What of ``left`` can be read after ``error``, and what is lost; ``left`` itself and no loss where the
    brokers say by now that nothing is wrong. Raises ``error`` if it is not about a loss, and the client's
    errors.
    """
    match error:
        case TopicRecreatedError():
            return _follow_topic(router, left, error, isolation_level)
        case LogTruncatedError():
            return Binding(ranges=tuple(left), losses=(_truncated(error),))
        case OffsetOutOfRangeError() | EndOfLogError():
            return Binding.of([_look_at_log(router, one, error) for one in left])
        case _:
            there, loss = drop_deleted(router, [one.planned for one in left], error)
            return Binding(ranges=tuple(one for one in left if one.planned in there), losses=(loss,))


def _truncated(error: LogTruncatedError) -> OffsetsLost:
    """What was read is gone, and what has its offsets now is not read: a read never goes back."""
    return OffsetsLost(
        topic_partition=error.topic_partition,
        from_offset=error.end_offset,
        until_offset=error.position,
        lost=max(0, error.position - error.end_offset),
        note=str(error) + ".",
        cause=error,
    )


def _look_at_log(router: Router, bound: BoundRange, error: OffsetOutOfRangeError | EndOfLogError) -> Binding:
    tp = bound.topic_partition
    if tp != error.topic_partition:
        return Binding(ranges=(bound,))
    if isinstance(error, EndOfLogError) and error.high_watermark >= bound.until_offset:
        # An open transaction holds the last stable offset back: the records are there, only not yet to be
        # seen.
        raise error
    log = list_log_bounds(router, [tp], IsolationLevel.READ_UNCOMMITTED)
    kept, loss = cut_to_log(bound, log.earliest[tp], log.latest[tp], error)
    return Binding(
        ranges=(kept,) if kept.position < kept.until_offset else (), losses=() if loss is None else (loss,)
    )


def _follow_topic(
    router: Router, left: Sequence[BoundRange], error: TopicRecreatedError, isolation_level: IsolationLevel
) -> Binding:
    """The ranges of the topic moved to the one that has its name now, if it is another one indeed."""
    expected = {error.topic: UUID(error.expected_topic_id)}
    at = {bound.topic_partition for bound in left}
    topic_id = find_recreated(router, expected, refresh=True, at=at).get(error.topic)
    found: list[Binding] = []
    for bound in left:
        if topic_id is None or bound.topic_partition.topic != error.topic:
            found.append(Binding(ranges=(bound,)))
            continue
        begun = None if bound.is_untouched else bound
        moved, loss = move_to_successor(bound.planned, topic_id.hex, begun=begun, cause=error)
        found.append(Binding(losses=() if loss is None else (loss,)))
        if moved is not None:
            found.append(bind_ranges(router, [moved], isolation_level))
    return Binding.of(found)
