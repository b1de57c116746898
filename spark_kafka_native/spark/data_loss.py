"""`DataLossPolicy`: what happens when offsets that a task was told to read are not there.

Never guesses: it acts on what the leader says about its log. Never goes back, so that nothing is read twice.
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

    def check_topics(self, router: Router, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """``ranges`` for the topics that there are now: by topic id (KIP-516), the same name may be another
        topic."""
        metadata = router.metadata({one.topic for one in ranges})
        kept: list[OffsetRange] = []
        for one in ranges:
            topic = metadata.topics.get(one.topic)
            topic_id = None if topic is None or topic.topic_id is None else topic.topic_id.hex
            is_same = one.topic_id is None or topic_id is None or topic_id == one.topic_id
            kept.append(one if is_same else self._rebase(one, str(topic_id)))
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
            raise KafkaConditionError(
                "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE",
                {
                    "startOffset": from_offset,
                    "endOffset": until_offset,
                    "topicPartition": topic_partition,
                    "groupId": self.group_id,
                },
                note,
            ) from cause
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
            elif bound.is_untouched:
                # Its bounds may be looked up anew, those that were fixed are lost.
                planned = self._rebase(bound.planned, error.found_topic_id.replace("-", ""))
                found += bind_ranges(router, [planned], self)
            else:
                lost = bound.until_offset - bound.position
                note = _describe_recreated(bound.planned.topic_id, error.found_topic_id)
                self.report(bound.topic_partition, bound.position, bound.until_offset, lost, note, error)
        return found

    def _rebase(self, planned: OffsetRange, topic_id: str) -> OffsetRange:
        """The range for the topic that is there now. What was fixed of it is lost, while a read from whatever
        is earliest to whatever is latest is about the topic that there is."""
        if planned.from_offset is not None or planned.until_offset is not None:
            first = planned.from_offset or 0
            end = first if planned.until_offset is None else planned.until_offset
            note = _describe_recreated(planned.topic_id, topic_id)
            self.report(planned.topic_partition, first, end, end - first, note)
        return replace(planned, topic_id=topic_id)


def _is_about_missing(error: BaseException) -> bool:
    """Whether a topic or partition was not there, at once or until a deadline."""
    found = error.__cause__ if isinstance(error, DeadlineExceededError) else error
    return isinstance(found, BrokerError) and found.error_code in _GONE


def _describe_recreated(planned: str | None, found: str) -> str:
    return f"The topic was deleted and created again: topic id {planned} is now {found.replace('-', '')}."
