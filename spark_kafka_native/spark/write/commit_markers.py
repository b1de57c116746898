"""`CommitMarker` and `BatchIntent`: the state that an exactly-once write keeps in Kafka, so that a replay
knows which rows are committed. Pure values; which one of several counts is decided here, too.

A marker is committed by a task together with its rows: the transaction has both or neither. An intent is
written by the driver before it commits a micro-batch: which rows are in which tasks. The intent of a
`ResumableWrite` is a marker, too: that of all its tasks together.

Where both are kept is in ``marker_store.py``. In a consumer group, the batch id is the offset, and the rest
the metadata of that offset.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from ...kafka.errors import KafkaError
from ...kafka.model import OffsetToCommit, TopicPartition

M = TypeVar("M")

UNREADABLE: Final = (ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""What reading any JSON as a marker may raise."""


class ReplayError(KafkaError):
    """A micro-batch, or a write with a ``writeId``, can't be written exactly once: other rows are
    committed. Says why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class CommitMarker:
    """Of one task: the last micro-batch that was committed, and what it wrote in it."""

    batch_id: int
    """0 in a `ResumableWrite`; in its intent, the revision, which grows with each run."""
    rows: int
    hash: int
    tasks: int = 0
    """In the intent of a `ResumableWrite`: how many there are."""
    topic: str = ""
    """In the same: the topic of all rows, if the option ``topic`` names it."""
    is_complete: bool = False
    """In the same: true if all tasks are committed."""

    def to_json(self) -> dict[str, Any]:
        """All but the batch id."""
        found: dict[str, Any] = {"rows": self.rows, "hash": f"{self.hash:016x}"}
        intent = {"tasks": self.tasks, "topic": self.topic, "complete": self.is_complete}
        return found | (intent if self.tasks else {})

    @classmethod
    def from_json(cls, batch_id: int, found: dict[str, Any]) -> CommitMarker:
        """The marker of `to_json`. Raises one of `UNREADABLE` for anything else."""
        return cls(
            batch_id=batch_id,
            rows=int(found["rows"]),
            hash=int(found["hash"], 16),
            tasks=int(found.get("tasks", 0)),
            topic=str(found.get("topic", "")),
            is_complete=bool(found.get("complete", False)),
        )

    def offset(self) -> OffsetToCommit:
        """For a commit in a consumer group: the batch id as the offset, the rest as its metadata."""
        return OffsetToCommit(offset=self.batch_id, metadata=json.dumps(self.to_json()))

    @classmethod
    def newest(cls, found: Mapping[TopicPartition, OffsetToCommit], group_id: str) -> CommitMarker | None:
        """The one of the last micro-batch among all offsets of the group: each hangs on a partition that was
        written to then. Raises `ReplayError` for an offset that is none."""
        return max(read_all(found, group_id, cls.from_json), key=lambda one: one.batch_id, default=None)


def is_marker(offset: OffsetToCommit) -> bool:
    """True for the offset of a marker, an intent, or a marker of dead letters: the position of no reader."""
    if not offset.metadata.startswith("{"):
        return False
    try:
        found = json.loads(offset.metadata)
    except UNREADABLE:
        return False
    return any(keys <= found.keys() for keys in ({"rows", "hash"}, {"tasks", "hash"}, {"range", "topic_id"}))


def read_all(
    found: Mapping[TopicPartition, OffsetToCommit], group_id: str, of: Callable[[int, dict[str, Any]], M]
) -> list[M]:
    """``of`` all that the group has: the topic that one hangs on is one that was written to then."""
    made = []
    for one in found.values():
        try:
            made.append(of(one.offset, json.loads(one.metadata)))
        except UNREADABLE as error:
            raise ReplayError(
                f"group {group_id} has an offset that is no commit marker ({one.metadata[:100]!r}): "
                "somebody else uses this group; choose another transactionalIdPrefix"
            ) from error
    return made


@dataclass(frozen=True, kw_only=True)
class BatchIntent:
    """Of the driver: it is about to commit the transactions of ``tasks`` tasks of a micro-batch."""

    batch_id: int
    tasks: int
    hash: int = 0
    """Of which rows are in which task (`hash_of_tasks`); 0 where an earlier version has not said it."""
    topic: str = ""
    """That of all rows, if the option ``topic`` names it; an earlier version has not said it."""
    change: int = 0
    """Counts the intents of a micro-batch: two of them may hang on different topics."""

    def follows(self, before: BatchIntent | None) -> BatchIntent:
        """The same, as the one after ``before``."""
        same = before is not None and before.batch_id == self.batch_id
        change = before.change + 1 if before is not None and same else 0
        return replace(self, change=change)

    def is_like(self, other: BatchIntent) -> bool:
        """True if both have the same rows in the same tasks, for one topic: then it does not matter which is
        committed."""
        return (self.tasks, self.hash, self.topic) == (other.tasks, other.hash, other.topic)

    def to_json(self) -> dict[str, Any]:
        """All but the batch id."""
        found = {"tasks": self.tasks, "hash": f"{self.hash:016x}", "change": self.change}
        return found | ({"topic": self.topic} if self.topic else {})

    def offset(self) -> OffsetToCommit:
        """For a commit in a consumer group: the batch id as the offset, the rest as its metadata."""
        return OffsetToCommit(offset=self.batch_id, metadata=json.dumps(self.to_json()))

    @classmethod
    def from_json(cls, batch_id: int, found: dict[str, Any]) -> BatchIntent:
        """The intent of `to_json`. Raises one of `UNREADABLE` for anything else."""
        return cls(
            batch_id=batch_id,
            tasks=int(found["tasks"]),
            hash=int(found.get("hash", "0"), 16),
            topic=str(found.get("topic", "")),
            change=int(found.get("change", 0)),
        )

    @classmethod
    def newest(cls, offsets: Mapping[TopicPartition, OffsetToCommit], group_id: str) -> BatchIntent | None:
        """The last one among all offsets of the group. Raises `ReplayError` for an offset that is none."""
        found = read_all(offsets, group_id, cls.from_json)
        return max(found, key=lambda one: (one.batch_id, one.change, one.tasks), default=None)


def drivers_name(job: str) -> str:
    """The transactional id of a query's drivers."""
    return f"{job}-driver"
