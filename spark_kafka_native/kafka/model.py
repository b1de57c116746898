"""The client's value types: small, frozen, picklable, and without any behaviour that needs a network.

Words are those of Kafka's message specs, snake-cased. No wire sentinel (-1 for latest, -2 for earliest)
leaves ``protocol/``: above it, "where in the log" is an `OffsetAt`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final, NamedTuple

NO_TIMESTAMP_MS = -1
"""What Kafka stores for a record without a timestamp."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN: Final = 40
"""Bytes of a key or value that a `Record` shows."""


class TopicPartition(NamedTuple):
    """A partition of a topic; prints as Kafka does: ``orders-3``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMembership:
    """For whom offsets are committed: a group, and the member that does it. Nobody of an earlier generation
    may (KIP-447). Without a member, the group has to have none.

    The coordinator asks only whether the member is one, in this generation: not which partitions it has.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    def check(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises where ``offsets`` can't be this member's to commit, as far as is known here: by its
        `GroupConsumer`, if it comes from there (``group_metadata``).
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """The offset of the next record to read, and what is kept with it; as it was committed, where a group is
    asked for it."""

    offset: int
    leader_epoch: int = -1
    """Of the last record that was read; -1 where it is not known."""
    metadata: str = ""


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


class HeaderKeys(enum.Enum):
    """How header keys are given to a reader: Kafka's spec says that they are UTF-8, and no broker looks."""

    STRICT = "strict"
    """As strings; one that is not UTF-8 is an error that names its record's offset."""
    REPLACE = "replace"
    """As strings, with U+FFFD for what is not UTF-8: to the character what Java's consumer shows."""
    BYTES = "bytes"
    """As they are on the wire, in a binary column."""


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


class Record(NamedTuple):
    """One record as it was read.

    A tuple, as it is made per record: a third faster than an object with slots, and the garbage collector
    does not have to follow it. Use the names: fields may be added.
    """

    topic: str
    """Empty where the columns that it comes from know no topic."""
    partition: int
    """-1 where ``topic`` is empty."""
    offset: int
    """-1 where the columns have no offsets."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """In their order; a key may occur more than once. Keys are bytes with `HeaderKeys.BYTES`."""
    timestamp_ms: int = NO_TIMESTAMP_MS
    """Milliseconds since the epoch; -1 is "no timestamp"."""
    timestamp_type: int = TimestampType.CREATE_TIME
    """As in `TimestampType`."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Where the record is."""
        return TopicPartition(self.topic, self.partition)

    @property
    def timestamp(self) -> datetime | None:
        """``timestamp_ms`` as a time of UTC; None for "no timestamp".

        ValueError after the year 9999, which a record's timestamp may be.
        """
        if self.timestamp_ms < 0:
            return None
        try:
            return _EPOCH + timedelta(milliseconds=self.timestamp_ms)
        except OverflowError:
            raise ValueError(
                f"{self.topic_partition} offset {self.offset}: timestamp_ms={self.timestamp_ms} is after the "
                "year 9999, where datetime ends; use timestamp_ms"
            ) from None

    def __repr__(self) -> str:
        return (
            f"<Record {self.topic_partition} offset {self.offset}: key {_short(self.key)}, "
            f"value {_short(self.value)}>"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """An aborted transaction in a fetched range: its records lie between ``first_offset`` and its marker."""

    producer_id: int
    first_offset: int


def _short(content: bytes | None) -> str:
    if content is None or len(content) <= _SHOWN:
        return repr(content)
    return f"{content[:_SHOWN]!r}... ({len(content)} bytes)"
