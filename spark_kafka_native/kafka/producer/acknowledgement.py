"""`Acknowledgement`: how a record batch of a producer ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..model import TopicPartition
from .errors import DeliveryStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """One for each batch, before the deliveries of its records have ended."""

    topic_partition: TopicPartition
    status: DeliveryStatus
    records: int
    bytes: int
    """Of the batch as it went over the wire; 0 where it lay in the spill folder."""
    base_offset: int | None
    """Of its first record; None where no broker told one."""
    error: str | None
    """Why it was not delivered; None where it was."""
    seconds: float
    """From its first record until now."""
    at: float
    """Seconds since the epoch."""

    @property
    def last_offset(self) -> int | None:
        """Of its last record."""
        return None if self.base_offset is None else self.base_offset + self.records - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "event": "acknowledgement",
            "at": self.at,
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "status": self.status.name.lower(),
            "records": self.records,
            "bytes": self.bytes,
            "base_offset": self.base_offset,
            "last_offset": self.last_offset,
            "seconds": self.seconds,
            "error": self.error,
        }
