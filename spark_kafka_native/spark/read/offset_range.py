"""`OffsetRange`: the offsets of one partition that a task reads; `KafkaInputPartition`: those of a task.
Plain data that Spark pickles.

A bound that is no offset yet (`Earliest`, `Latest`, `FirstAtOrAfter`) is looked up when the task runs, so
that a DataFrame that is read twice sees what arrived in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from ...kafka.model import TopicPartition


@dataclass(frozen=True, slots=True)
class At:
    """This offset (of an end: exclusive)."""

    offset: int

    def __str__(self) -> str:
        return str(self.offset)


@dataclass(frozen=True, slots=True)
class Inner:
    """An offset at which a range was split; the range's own start (or end) is still to be looked up.

    Offsets before the earliest one when the task runs are not wanted, and no loss.
    """

    offset: int

    def __str__(self) -> str:
        return str(self.offset)


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first offset that is there when the job runs."""

    def __str__(self) -> str:
        return "earliest"


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the log when the job runs."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True, slots=True)
class FirstAtOrAfter:
    """The first record at or after a time, or the end of the log while there is none, when the job runs."""

    timestamp_ms: int

    def __str__(self) -> str:
        return f"the first record at or after {self.timestamp_ms} ms"


StartBound = At | Inner | Earliest

EndBound = At | Inner | Latest | FirstAtOrAfter


def fixed_offset(bound: StartBound | EndBound) -> int | None:
    """The offset of a bound that is one; None if the task looks it up."""
    return bound.offset if isinstance(bound, At | Inner) else None


def is_open(bound: StartBound | EndBound) -> bool:
    """True if the range, or the one it is a piece of, has no fixed offset on that side."""
    return not isinstance(bound, At)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The offsets ``[start, end)`` of one partition. Plain data: Spark pickles it.

    ``floor`` and ``ceiling`` come from pushed filters, and cut the bounds once they are looked up.
    """

    topic: str
    partition: int
    start: StartBound
    end: EndBound
    floor: int = 0
    ceiling: int | None = None
    topic_id: str | None = None
    """The topic this was planned for, as hex; None where brokers give no topic ids."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the range is of."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True)
class KafkaInputPartition(InputPartition):  # type: ignore[misc]
    """A task: one offset range, or many of different partitions (and of the same)."""

    ranges: tuple[OffsetRange, ...]
