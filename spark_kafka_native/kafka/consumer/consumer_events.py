"""`WorkUnit`: an event about a range of offsets of one partition, on its way through a consumer."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from typing import Any, Self

from ..model import TopicPartition
from .fetched_records import FetchedRecords


class WorkStatus(enum.Enum):
    """The stage that the range has reached."""

    FETCHED = "fetched"
    """The records wait to be handed out."""
    HANDED_OUT = "handed_out"
    """The caller has the records, or is getting them one by one."""
    GIVEN_BACK = "given_back"
    """The caller did not get the records, or the rest of them, after all: they wait again."""
    DROPPED = "dropped"
    """The records will not be handed out: the partition was moved, paused or removed. They may be fetched
    again."""
    COMMITTED = "committed"
    """The group has committed the range: any member continues after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkUnit:
    """One event for each stage. Ranges may be cut differently from stage to stage."""

    topic_partition: TopicPartition
    status: WorkStatus
    from_offset: int
    until_offset: int
    """Exclusive."""
    records: int | None
    """Fewer than offsets if some are hidden; None if unknown."""
    at: float = field(default_factory=time.time)
    """Seconds since the epoch."""

    @classmethod
    def of(cls, fetched: FetchedRecords, status: WorkStatus) -> Self:
        """The event that ``fetched`` has reached ``status``."""
        return cls(
            topic_partition=fetched.topic_partition,
            status=status,
            from_offset=fetched.from_offset,
            until_offset=fetched.next_offset,
            records=fetched.columns.length,
        )

    @property
    def length(self) -> int:
        """The number of offsets in the range."""
        return self.until_offset - self.from_offset

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "event": "work_unit",
            "at": self.at,
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "status": self.status.value,
            "from_offset": self.from_offset,
            "until_offset": self.until_offset,
            "length": self.length,
            "records": self.records,
        }
