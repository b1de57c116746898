"""`Loss`: offsets that a task was to read and its log no longer has; `DataLossPolicy`: ``failOnDataLoss``.

Pure. Losses are found where the leaders are asked (``worker/offset_binding.py``) and are returned as
values.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final, assert_never

from ...kafka.errors import KafkaError
from ...kafka.model import TopicPartition
from ..error_conditions import KafkaConditionError
from .offset_range import format_topic_partitions

_LOG: Final = logging.getLogger("spark_kafka_native")

OTHER_CLUSTER: Final = (
    "If a stream goes on in another cluster with the same offsets (linked, or restored from a backup), "
    'nothing is lost: one run of the whole query, with its sink, with format("kafka") drops the ids from the '
    "checkpoint."
)
"""For a topic with another id: there is nothing else by which the two could be distinguished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsLost:
    """Offsets of ``[from_offset, until_offset)`` are gone."""

    topic_partition: TopicPartition
    from_offset: int
    until_offset: int | None
    """None where the range had no end yet: the number of lost offsets is unknown."""
    lost: int | None
    """How many of the range; None as for ``until_offset``."""
    note: str
    """A sentence: how the loss was noticed."""
    then: str = ""
    """A sentence: where the read continues if losses don't fail the query."""
    cause: KafkaError | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogShrunk:
    """A log ends before the offset at which its range starts: nothing is left to read."""

    topic_partition: TopicPartition
    from_offset: int
    until_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsDeleted:
    """Partitions that were planned are not there."""

    topic_partitions: frozenset[TopicPartition]
    cause: KafkaError | None = field(default=None, compare=False)


Loss = OffsetsLost | LogShrunk | PartitionsDeleted


class DataLossPolicy:
    """``failOnDataLoss`` for one task. ``lost`` counts the offsets it has gone past."""

    def __init__(self, *, fail: bool, group_id: str) -> None:
        self.fail = fail
        self.group_id = group_id
        self.lost = 0

    def report(self, loss: Loss) -> None:
        """Raise `KafkaConditionError`, or count and warn, as ``failOnDataLoss`` says."""
        match loss:
            case OffsetsLost():
                self._report_offsets(loss)
            case LogShrunk():
                self._report_shrunk(loss)
            case PartitionsDeleted():
                self._report_deleted(loss)
            case _:
                assert_never(loss)

    def _report_offsets(self, loss: OffsetsLost) -> None:
        if self.fail:
            raise KafkaConditionError(
                "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE",
                {
                    "startOffset": loss.from_offset,
                    "endOffset": "latest" if loss.until_offset is None else loss.until_offset,
                    "topicPartition": loss.topic_partition,
                    "groupId": self.group_id,
                },
                loss.note,
            ) from loss.cause
        if loss.lost is None:
            what = f"all offsets from {loss.from_offset} on"
        else:
            self.lost += loss.lost
            what = f"{loss.lost} offsets of [{loss.from_offset}, {loss.until_offset})"
        _LOG.warning(
            "%s: %s are lost; the read continues without them because failOnDataLoss is false. %s",
            loss.topic_partition, what, f"{loss.note} {loss.then}".rstrip(),
        )  # fmt: skip

    def _report_shrunk(self, loss: LogShrunk) -> None:
        error = KafkaConditionError(
            "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            {
                "startOffset": loss.from_offset,
                "endOffset": loss.until_offset,
                "topic": loss.topic_partition.topic,
                "partition": loss.topic_partition.partition,
            },
        )
        if self.fail:
            raise error
        _LOG.warning(
            "Nothing is read from %s because failOnDataLoss is false. %s", loss.topic_partition, error
        )

    def _report_deleted(self, loss: PartitionsDeleted) -> None:
        names = format_topic_partitions(loss.topic_partitions)
        if self.fail:
            raise KafkaConditionError(
                "KAFKA_DATA_LOSS.PARTITIONS_DELETED", {"partitions": names}
            ) from loss.cause
        _LOG.warning(
            "Partitions %s have been deleted; the read continues without them because failOnDataLoss is "
            "false",
            names,
        )
