"""`BoundRange`: a range with the offsets that a task looked up when it ran, and how far the task has come;
and what becomes of it when its log, or its topic, is not what it was. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import assert_never
from uuid import UUID

from ...kafka.errors import KafkaError
from ...kafka.model import TopicPartition
from .bounds import At, Earliest, Inner, fixed_offset, is_open
from .data_loss import Loss, OffsetsLost
from .ranges import OffsetRange


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
            # The fixed start of a piece is no wish for what is before earliest by now.
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
    topic (the rest of them, if the range has been ``begun``) are lost. Only a read from whatever is earliest
    to whatever is latest that has not begun loses nothing: it is about the topic that there is.
    """
    is_fixed = fixed_offset(planned.end) is not None
    # What filters said in offsets may have been a time's in the former topic; Spark applies them again.
    successor = replace(planned, start=Earliest(), floor=0, ceiling=None, topic_id=topic_id)
    moved = None if is_fixed else successor
    if begun is None and is_open(planned.start) and is_open(planned.end):
        return moved, None
    note = f"The topic was deleted and created again: topic id {planned.topic_id} is now {topic_id}."
    first = (fixed_offset(planned.start) or 0) if begun is None else begun.position
    end = fixed_offset(planned.end) if begun is None else begun.until_offset
    lost = None if end is None else end - first
    return moved, OffsetsLost(
        topic_partition=planned.topic_partition,
        from_offset=first,
        until_offset=end,
        lost=lost,
        note=note,
        then="" if moved is None else "The new one is read from its beginning.",
        cause=cause,
    )
