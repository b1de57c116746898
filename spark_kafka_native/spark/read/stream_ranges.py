"""`BatchSpan`: from two offsets of a stream to the ranges of the batch between them, and its losses. Pure.

The same two offsets give the same ranges, whenever and in whichever process: a batch that is run again reads
what it has read before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...kafka.model import TopicPartition
from ..conditions import KafkaConditionError
from .bounds import At
from .offsets import format_topic_partitions
from .ranges import OffsetRange, PlannedRange
from .stream_offsets import Positions, StreamOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpan:
    """A micro-batch before anybody asked where its new partitions begin."""

    begin: Positions
    """Where partitions that were there before are read on; of the topics that ``end`` is of."""
    former: Positions
    """Where partitions of topics stood that are others by now: gone, with what was not read of them."""
    end: StreamOffset

    @classmethod
    def between(cls, start: StreamOffset, end: StreamOffset) -> BatchSpan:
        """The batch from ``start`` to ``end``. The first one starts where its end says: after a crash,
        ``start`` may be a later one, looked up anew."""
        known = start.positions
        begun: set[str] = set()
        if start.is_initial and end.start is not None:
            known, begun = end.start, {tp.topic for tp in end.start}
        former = {
            tp: offset
            for tp, offset in start.positions.items()
            if tp.topic not in begun and start.is_other_topic(tp.topic, end.topic_ids.get(tp.topic))
        }
        begin = {tp: offset for tp, offset in known.items() if tp not in former}
        return cls(begin=begin, former=former, end=end)

    @property
    def added(self) -> list[TopicPartition]:
        """The partitions that start at their beginning: new ones, and all of a topic that is another now."""
        return sorted(tp for tp in self.end.positions if tp not in self.begin)

    def losses(self, *, has_group_id: bool = False) -> Iterator[KafkaConditionError]:
        """What is lost of the partitions that were there before."""
        if deleted := sorted((self.begin.keys() | self.former.keys()) - self.end.positions.keys()):
            condition = "KAFKA_DATA_LOSS.PARTITIONS_DELETED"
            yield KafkaConditionError(
                f"{condition}_AND_GROUP_ID_CONFIG_PRESENT" if has_group_id else condition,
                {"partitions": format_topic_partitions(deleted)},
            )
        for tp in sorted(self.former.keys() & self.end.positions.keys()):
            now = self.end.topic_ids[tp.topic]
            yield offset_changed(
                tp,
                self.former[tp],
                self.end.positions[tp],
                f"The topic was deleted and created again: its id is now {now}. What was not read of the "
                "former topic is lost; with failOnDataLoss=false, the new one is read from its beginning.",
            )
        for tp in sorted(self.begin.keys() & self.end.positions.keys()):
            if self.end.positions[tp] < self.begin[tp]:
                yield offset_changed(tp, self.begin[tp], self.end.positions[tp])

    def losses_of_added(self, earliest: Positions) -> Iterator[KafkaConditionError]:
        """What is lost of the partitions that are new, which ``earliest`` has the beginnings of."""
        if missing := [tp for tp in self.added if tp not in earliest]:
            yield KafkaConditionError(
                "KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS",
                {"partitions": format_topic_partitions(missing)},
            )
        for tp in self.added:
            if earliest.get(tp, 0) > 0:
                yield KafkaConditionError(
                    "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
                    {"topicPartition": tp, "startOffset": earliest[tp]},
                )

    def ranges(self, earliest: Positions) -> list[PlannedRange]:
        """What is read, partitions in order; none that is empty."""
        starts: Mapping[TopicPartition, int] = {
            **self.begin,
            **{tp: earliest[tp] for tp in self.added if tp in earliest},
        }
        return [
            _plan(tp, starts[tp], until, self.end.topic_ids.get(tp.topic))
            for tp, until in sorted(self.end.positions.items())
            if tp in starts and starts[tp] < until
        ]


def offset_changed(
    topic_partition: TopicPartition, before: int, now: int, note: str = ""
) -> KafkaConditionError:
    """The loss of a partition that was read up to ``before``, and whose log ends at ``now``."""
    return KafkaConditionError(
        "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED",
        {"topicPartition": topic_partition, "prevOffset": before, "newOffset": now},
        note,
    )


def _plan(
    topic_partition: TopicPartition, from_offset: int, until_offset: int, topic_id: str | None
) -> PlannedRange:
    shipped = OffsetRange(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        start=At(from_offset),
        end=At(until_offset),
        topic_id=topic_id,
    )
    return PlannedRange(shipped=shipped, from_offset=from_offset, until_offset=until_offset)


def check_available_now(end: Positions, target: Positions, latest: Positions) -> None:
    """Whether a batch of Trigger.AvailableNow stays within what there was at its start, and the log still
    has that. Raises `KafkaConditionError`, whatever failOnDataLoss says: as Spark's connector does."""
    if end.keys() != target.keys():
        raise _mismatch(
            "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED", end, "tpsForPrefetched", target
        )
    if any(offset > target[tp] for tp, offset in end.items()):
        raise KafkaConditionError(
            "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED",
            {"prefetchedOffset": _show(target), "endOffset": _show(end)},
        )
    if not end.keys() <= latest.keys():
        raise _mismatch(
            "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW", end, "tpsForLatestOffset", latest
        )
    if any(offset > latest[tp] for tp, offset in end.items()):
        raise KafkaConditionError(
            "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW",
            {"latestOffset": _show(latest), "endOffset": _show(end)},
        )


def _mismatch(
    condition: str, end: Positions, name: str, other: Iterable[TopicPartition]
) -> KafkaConditionError:
    return KafkaConditionError(
        condition,
        {name: format_topic_partitions(other), "tpsForEndOffset": format_topic_partitions(end)},
    )


def _show(positions: Positions) -> str:
    shown = [f"{tp} -> {positions[tp]}" for tp in sorted(positions)]
    return ", ".join(shown[:50]) + (f", ... {len(shown) - 50} more" if len(shown) > 50 else "")
