"""The value types of the client: small, frozen and picklable; none of them needs a network.

Names are those of Kafka's message specs, in snake case. No wire sentinel (-1 for latest, -2 for earliest)
leaves ``protocol/``: above it, a place in the log is an `OffsetAt`.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final, NamedTuple, SupportsIndex

NO_TIMESTAMP_MS = -1
"""The timestamp that Kafka stores for a record without one."""
MAX_OFFSET: Final = (1 << 63) - 2
"""An int64, and so is the offset after it."""
CORRUPT_COLUMN: Final = "_corrupt_record"
"""The column with the bytes of a value (or else key) that can't be decoded."""
ERROR_COLUMN: Final = "_error"
"""The column that says why it can't."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN: Final = 40
"""The number of bytes of a key or value in the repr of a `Record`."""


def checked_offset(offset: SupportsIndex) -> int:
    """An offset that a caller gave, as an int (NumPy's integers are taken, too). Raises `TypeError`,
    `ValueError`.
    """
    if isinstance(offset, bool) or not hasattr(offset, "__index__"):
        raise TypeError(f"an offset is a whole number, not {offset!r}")
    number = operator.index(offset)
    if number < 0:
        raise ValueError(f"an offset must not be negative: {number}")
    if number > MAX_OFFSET:
        raise ValueError(f"no log has the offset {number}: the last one is {MAX_OFFSET}")
    return number


class TopicPartition(NamedTuple):
    """A partition of a topic; prints as Kafka does: ``orders-3``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMembership:
    """The group and the member that commits offsets. The coordinator refuses members of earlier generations
    (KIP-447). Without a member, the group must have none.

    The coordinator checks only that the member exists in this generation, not which partitions are assigned
    to it.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    def check(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises if this member must not commit ``offsets``. Only the membership of a `GroupConsumer` in this
        process (``group_metadata``) can check that.
        """

    def leader_epochs(
        self,
        offsets: Mapping[TopicPartition, int],  # noqa: ARG002 - a member without a consumer knows none
    ) -> Mapping[TopicPartition, int]:
        """The leader epochs of the records before ``offsets``, where the member knows them (KIP-320): as
        `check`, a `GroupConsumer` alone does.
        """
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """The offset of the next record to read, and the data stored with it; also an offset that a group has
    committed.
    """

    offset: int
    leader_epoch: int = -1
    """The epoch of the last record that was read; -1 if it is not known."""
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
    """Which records of transactions a reader gets (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class BadRecordMode(enum.StrEnum):
    """What becomes of records with a key or a value that can't be decoded."""

    FAILFAST = "failfast"
    """The first one raises `MalformedRecordError`."""
    PERMISSIVE = "permissive"
    """They stay; `CORRUPT_COLUMN` and `ERROR_COLUMN` have the bytes and the reason."""
    DROPMALFORMED = "dropmalformed"
    """They are left out."""
    DLQ = "dlq"
    """They are left out, and go to a topic: in Spark's streams alone."""

    @property
    def leaves_out(self) -> bool:
        """True if they are not among the records that the caller gets."""
        return self in (BadRecordMode.DROPMALFORMED, BadRecordMode.DLQ)


CLIENT_MODES: Final = tuple(one.value for one in BadRecordMode if one is not BadRecordMode.DLQ)
"""The names of those that a consumer has without Spark."""


class HeaderKeys(enum.Enum):
    """The type of header keys: Kafka's spec says that they are UTF-8, but no broker checks it."""

    STRICT = "strict"
    """Strings; a key that is not UTF-8 is an error with the offset of its record."""
    REPLACE = "replace"
    """Strings, with U+FFFD for bytes that are not UTF-8: the same characters as Java's consumer returns."""
    BYTES = "bytes"
    """The bytes on the wire, in a binary column."""


class TimestampType(enum.IntEnum):
    """The source of a record's timestamp; numbered as Java's ``TimestampType`` and Spark's column."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Acks(enum.IntEnum):
    """The number of in-sync replicas that must have a batch before the leader answers."""

    NONE = 0
    LEADER = 1
    ALL = -1


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """A place in a partition, which the broker converts to an offset.

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
    """One record that was read.

    A tuple, because one is made per record: a third faster than an object with slots, and the garbage
    collector does not have to follow it. Use the names: fields may be added.
    """

    topic: str
    """Empty if the columns it was made from have no topic."""
    partition: int
    """-1 if ``topic`` is empty."""
    offset: int
    """-1 if the columns have no offsets."""
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
        """The topic and partition of the record."""
        return TopicPartition(self.topic, self.partition)

    @property
    def timestamp(self) -> datetime | None:
        """``timestamp_ms`` as a time of UTC; None for "no timestamp".

        Raises `ValueError` after the year 9999, which a record's timestamp may be.
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
