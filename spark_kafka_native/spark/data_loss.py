"""`DataLossPolicy`: what happens when offsets that a task was told to read are not there.

Never guesses: it acts on what the leader says about its log. Never goes back in a log, so that nothing is
read twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from ..kafka.cluster.router import Router
from ..kafka.error_code import ErrorCode
from ..kafka.errors import (
    BrokerError,
    DeadlineExceededError,
    EndOfLogError,
    KafkaError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from ..kafka.model import IsolationLevel, TopicPartition
from .conditions import KafkaConditionError
from .late_bounds import BoundRange, bind_ranges
from .offsets import format_topic_partitions
from .ranges import OffsetRange
from .resolve import list_log_bounds

_LOG: Final = logging.getLogger("spark_kafka_native")
_GONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
MAX_REFUSALS: Final = 5
"""So often a leader may refuse an offset that is inside its own bounds: for a moment, it may lag behind
itself."""


class DataLossPolicy:
    """``failOnDataLoss`` for one task. ``lost`` counts the offsets it has gone past."""

    def __init__(self, *, fail: bool, group_id: str, isolation_level: IsolationLevel) -> None:
        self.fail = fail
        self.group_id = group_id
        self.isolation_level = isolation_level
        self.lost = 0
        self._refusals = 0

    def go_on(self, router: Router, left: Sequence[BoundRange], error: KafkaError) -> list[BoundRange]:
        """What of ``left`` can be read after ``error``. Raises `KafkaConditionError` if losses fail the
        query, and ``error`` if it is not about a loss."""
        still = [one for one in left if one.position < one.until_offset]
        match error:
            case TopicRecreatedError():
                return self._go_on_recreated(router, still, error)
            case OffsetOutOfRangeError() | EndOfLogError():
                tp = error.topic_partition
                return [
                    self._go_on_inside(router, one, error) if one.topic_partition == tp else one
                    for one in still
                ]
            case _:
                there = self.drop_deleted(router, [one.planned for one in still], error)
                return [one for one in still if one.planned in there]

    def cut(self, bound: BoundRange, first: int, end: int, error: KafkaError | None = None) -> BoundRange:
        """The part of ``bound`` that lies in ``[first, end)``, which is what the log has; the rest is
        lost."""
        position = min(max(bound.position, first), bound.until_offset)
        until_offset = max(min(bound.until_offset, end), position)
        lost = (bound.until_offset - bound.position) - (until_offset - position)
        if lost:
            self.report(
                bound.topic_partition,
                bound.position,
                bound.until_offset,
                lost,
                f"The log has [{first}, {end}).",
                error,
            )
        return replace(bound, position=position, until_offset=until_offset)

    def drop_deleted(
        self, router: Router, ranges: Sequence[OffsetRange], error: KafkaError
    ) -> list[OffsetRange]:
        """Those of ``ranges`` whose partition still exists. Raises ``error`` if it is about something
        else.
        """
        if not _is_about_missing(error):
            raise error
        topics = router.metadata({one.topic for one in ranges}, refresh=True).topics
        there = [
            one for one in ranges if one.topic in topics and one.partition in topics[one.topic].partitions
        ]
        gone = {one.topic_partition for one in ranges if one not in there}
        if not gone:
            raise error
        names = format_topic_partitions(gone)
        if self.fail:
            raise KafkaConditionError("KAFKA_DATA_LOSS.PARTITIONS_DELETED", {"partitions": names}) from error
        _LOG.warning("Partitions %s have been deleted and are left out, as failOnDataLoss is false", names)
        return there

    def check_topics(
        self, router: Router, ranges: Sequence[OffsetRange], *, refresh: bool = False
    ) -> list[OffsetRange]:
        """``ranges`` for the topics that there are now: by topic id (KIP-516), the same name may be another
        topic. Those that have nothing to read in the new topic are left out."""
        metadata = router.metadata({one.topic for one in ranges}, refresh=refresh)
        kept: list[OffsetRange] = []
        for one in ranges:
            topic = metadata.topics.get(one.topic)
            topic_id = None if topic is None or topic.topic_id is None else topic.topic_id.hex
            if one.topic_id is None or topic_id is None or topic_id == one.topic_id:
                kept.append(one)
            else:
                kept += self._rebase(one, topic_id)
        return kept

    def report(
        self,
        topic_partition: TopicPartition,
        from_offset: int,
        until_offset: int,
        lost: int,
        note: str,
        cause: KafkaError | None = None,
    ) -> None:
        """Fail, or count and warn: ``lost`` offsets of ``[from_offset, until_offset)`` are gone."""
        if self.fail:
            raise self._not_read(topic_partition, from_offset, until_offset, note) from cause
        self.lost += lost
        _LOG.warning(
            "%s: %d offsets of [%d, %d) are lost and left out, as failOnDataLoss is false. %s",
            topic_partition, lost, from_offset, until_offset, note,
        )  # fmt: skip

    def report_shrunk(self, topic_partition: TopicPartition, from_offset: int, until_offset: int) -> None:
        """Fail or warn: a log ends before the offset at which it was to be read on, so there is nothing to
        read.
        """
        error = KafkaConditionError(
            "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            {
                "startOffset": from_offset,
                "endOffset": until_offset,
                "topic": topic_partition.topic,
                "partition": topic_partition.partition,
            },
        )
        if self.fail:
            raise error
        _LOG.warning("Nothing is read of %s, as failOnDataLoss is false. %s", topic_partition, error)

    def _go_on_inside(
        self, router: Router, bound: BoundRange, error: OffsetOutOfRangeError | EndOfLogError
    ) -> BoundRange:
        if isinstance(error, EndOfLogError) and error.high_watermark >= bound.until_offset:
            # An open transaction holds the last stable offset back: the records are there, only not yet to be
            # seen.
            raise error
        tp = bound.topic_partition
        log = list_log_bounds(router, [tp], IsolationLevel.READ_UNCOMMITTED)
        found = self.cut(bound, log.earliest[tp], log.latest[tp], error)
        if (found.position, found.until_offset) == (bound.position, bound.until_offset):
            self._refusals += 1
            if self._refusals > MAX_REFUSALS:
                raise error
        return found

    def _go_on_recreated(
        self, router: Router, left: Iterable[BoundRange], error: TopicRecreatedError
    ) -> list[BoundRange]:
        found: list[BoundRange] = []
        for bound in left:
            if bound.topic_partition.topic != error.topic:
                found.append(bound)
                continue
            begun = None if bound.is_untouched else bound
            rebased = self._rebase(bound.planned, error.found_topic_id, begun=begun, cause=error)
            if rebased:
                found += bind_ranges(router, rebased, self)
        return found

    def _rebase(
        self,
        planned: OffsetRange,
        topic_id: str,
        *,
        begun: BoundRange | None = None,
        cause: KafkaError | None = None,
    ) -> list[OffsetRange]:
        """What of ``planned`` is read of the topic that has its name now: nothing if its end is an offset of
        the former topic, else all. Of a partition that was split one piece has the open end, so that the new
        topic is read once, as it is without a split. The offsets of the former topic (the rest of them, if
        the range has been ``begun``) are lost. Only a read from whatever is earliest to whatever is latest
        that has not begun loses nothing: it is about the topic that there is.
        """
        new_id = topic_id.replace("-", "")
        whole_starts_open = planned.from_offset is None or planned.start_is_open
        whole_ends_open = planned.until_offset is None or planned.end_is_open
        if begun is not None or not (whole_starts_open and whole_ends_open):
            first = (planned.from_offset or 0) if begun is None else begun.position
            end = planned.until_offset if begun is None else begun.until_offset
            note = f"The topic was deleted and created again: topic id {planned.topic_id} is now {new_id}."
            if planned.until_offset is None and not self.fail:
                note += " The new one is read from its beginning."
            if end is None:
                self._report_rest(planned.topic_partition, first, note, cause)
            else:
                self.report(planned.topic_partition, first, end, end - first, note, cause)
        if planned.until_offset is not None:
            return []
        # What filters said in offsets may have been a time's in the former topic; Spark applies them again.
        return [replace(planned, from_offset=None, floor=0, ceiling=None, topic_id=new_id)]

    def _report_rest(
        self, topic_partition: TopicPartition, from_offset: int, note: str, cause: KafkaError | None
    ) -> None:
        """Fail or warn: nobody knows how many offsets a former topic had."""
        if self.fail:
            raise self._not_read(topic_partition, from_offset, "latest", note) from cause
        _LOG.warning(
            "%s: all offsets from %d on are lost and left out, as failOnDataLoss is false. %s",
            topic_partition, from_offset, note,
        )  # fmt: skip

    def _not_read(
        self, topic_partition: TopicPartition, from_offset: int, until_offset: int | str, note: str
    ) -> KafkaConditionError:
        return KafkaConditionError(
            "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE",
            {
                "startOffset": from_offset,
                "endOffset": until_offset,
                "topicPartition": topic_partition,
                "groupId": self.group_id,
            },
            note,
        )


def _is_about_missing(error: BaseException) -> bool:
    """Whether a topic or partition was not there, at once or until a deadline."""
    found = error.__cause__ if isinstance(error, DeadlineExceededError) else error
    return isinstance(found, BrokerError) and found.error_code in _GONE
