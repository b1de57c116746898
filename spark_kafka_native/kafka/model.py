"""The client's value types: small, frozen, picklable, and without any behaviour that needs a network.

Words are those of Kafka's message specs, snake-cased. No wire sentinel (-1 for latest, -2 for earliest)
leaves ``protocol/``: above it, "where in the log" is an `OffsetAt`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

NO_TIMESTAMP_MS = -1
"""What Kafka stores for a record without a timestamp."""


class TopicPartition(NamedTuple):
    """A partition of a topic; prints as Kafka does: ``orders-3``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker as the cluster advertises it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port} (broker {self.node_id})"


class IsolationLevel(enum.IntEnum):
    """What a reader sees of transactions (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class TimestampType(enum.IntEnum):
    """Who set a record's timestamp; numbered as Java's ``TimestampType`` and Spark's column."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Acks(enum.IntEnum):
    """How many in-sync replicas must have a batch before the leader answers."""

    NONE = 0
    LEADER = 1
    ALL = -1


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """A place in a partition that the broker is asked to turn into an offset.

    Use the constants, or `OffsetAt.timestamp` for the first record at or after ``timestamp_ms``.
    """

    name: str
    timestamp_ms: int | None = None

    EARLIEST: ClassVar[OffsetAt]
    LATEST: ClassVar[OffsetAt]
    MAX_TIMESTAMP: ClassVar[OffsetAt]

    @classmethod
    def timestamp(cls, timestamp_ms: int) -> OffsetAt:
        """The first record at or after ``timestamp_ms`` (milliseconds since the epoch, >= 0)."""
        if timestamp_ms < 0:
            raise ValueError(f"a timestamp must not be negative: {timestamp_ms}")
        return cls("timestamp", timestamp_ms)

    def __str__(self) -> str:
        return self.name if self.timestamp_ms is None else f"timestamp {self.timestamp_ms}"


OffsetAt.EARLIEST = OffsetAt("earliest")
OffsetAt.LATEST = OffsetAt("latest")
OffsetAt.MAX_TIMESTAMP = OffsetAt("max_timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """An aborted transaction in a fetched range: its records lie between ``first_offset`` and its marker."""

    producer_id: int
    first_offset: int
