"""`WorkUnit`: what happened to a range of offsets of one partition, on its way through a consumer."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from typing import Any, Self

from ..model import TopicPartition
from .fetched_records import FetchedRecords


class WorkStatus(enum.Enum):
    """How far it has come."""

    FETCHED = "fetched"
    """It waits to be handed out."""
    HANDED_OUT = "handed_out"
    """The caller has it, or gets it record by record now."""
    GIVEN_BACK = "given_back"
    """The caller did not get it, or the rest of it, after all: it waits again."""
    DROPPED = "dropped"
    """It will not be handed out: the partition was moved, paused or removed. It may be fetched again."""
    COMMITTED = "committed"
    """The group has it: reading goes on behind it, whoever does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkUnit:
    """One for each step. A range may be cut differently from step to step."""

    topic_partition: TopicPartition
    status: WorkStatus
    from_offset: int
    until_offset: int
    """Exclusive."""
    records: int | None
    """Fewer than offsets, where some are hidden; None where that is not known."""
    at: float = field(default_factory=time.time)
    """Seconds since the epoch."""

    @classmethod
    def of(cls, fetched: FetchedRecords, status: WorkStatus) -> Self:
        """A step of ``fetched``."""
        return cls(
            topic_partition=fetched.topic_partition,
            status=status,
            from_offset=fetched.from_offset,
            until_offset=fetched.next_offset,
            records=fetched.columns.length,
        )

    @property
    def length(self) -> int:
        """How many offsets it spans."""
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
