"""`CommitMarker`: what a task commits together with its rows, so that a replay knows whether it has.

It is the offset of a consumer group of the task's own: the batch id as the offset, the rows in its metadata.
The transaction has it or has it not, with the rows. The intent of a named write (`named_write`) is a marker,
too: that of all its tasks together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ...kafka.cluster.router import Router
from ...kafka.errors import KafkaError
from ...kafka.group.committed_offsets import all_committed_offsets, committed_offsets
from ...kafka.model import OffsetToCommit, TopicPartition
from ...kafka.runtime.deadline import Deadline

M = TypeVar("M")


class ReplayError(KafkaError):
    """A micro-batch, or a write with a ``writeId``, can't be written exactly once: what is committed does not
    fit it. Says why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class CommitMarker:
    """Of one task: the last micro-batch that was committed, and what it wrote in it."""

    batch_id: int
    """Of a named write: 0; of the intent of one: its revision, which grows with each run."""
    rows: int
    hash: int
    tasks: int = 0
    """Of the intent of a named write: how many there are."""
    topic: str = ""
    """Of the same: where all rows go, if the option ``topic`` says it."""
    is_complete: bool = False
    """Of the same: all tasks are committed."""

    def told(self) -> dict[str, Any]:
        """All but the batch id, as JSON has it."""
        told: dict[str, Any] = {"rows": self.rows, "hash": f"{self.hash:016x}"}
        intent = {"tasks": self.tasks, "topic": self.topic, "complete": self.is_complete}
        return told | (intent if self.tasks else {})

    @classmethod
    def from_told(cls, batch_id: int, told: dict[str, Any]) -> CommitMarker:
        """Of `told`. Raises ValueError, KeyError or TypeError for what is no marker."""
        return cls(
            batch_id=batch_id,
            rows=int(told["rows"]),
            hash=int(told["hash"], 16),
            tasks=int(told.get("tasks", 0)),
            topic=str(told.get("topic", "")),
            is_complete=bool(told.get("complete", False)),
        )

    def offset(self) -> OffsetToCommit:
        """As it is committed."""
        return OffsetToCommit(offset=self.batch_id, metadata=json.dumps(self.told()))

    @classmethod
    def read(
        cls,
        router: Router,
        group_id: str,
        where: TopicPartition | None = None,
        deadline: Deadline | None = None,
    ) -> CommitMarker | None:
        """The last one that was committed; None if there is none.

        One that is being committed is waited for at ``where`` and wherever the group has one already: asked
        for everything, a coordinator says nothing of what is pending where nothing was committed before.
        """
        return cls._last(find_offsets(router, group_id, where, deadline), group_id)

    @classmethod
    def read_decided(cls, router: Router, group_id: str) -> CommitMarker | None:
        """The last one, whatever is open now."""
        return cls._last(all_committed_offsets(router, group_id, stable=False), group_id)

    @classmethod
    def _last(cls, found: Mapping[TopicPartition, OffsetToCommit], group_id: str) -> CommitMarker | None:
        return max(read_all(found, group_id, cls.from_told), key=lambda one: one.batch_id, default=None)


def find_offsets(
    router: Router, group_id: str, where: TopicPartition | None, deadline: Deadline | None
) -> dict[TopicPartition, OffsetToCommit]:
    """Everything that the group has committed, and what is being committed at ``where``, once it is."""
    found = all_committed_offsets(router, group_id, deadline)
    if where is not None and where not in found:
        there = committed_offsets(router, group_id, [where], deadline)[where]
        if there is not None:
            found = all_committed_offsets(router, group_id, deadline)
    return found


def read_all(
    found: Mapping[TopicPartition, OffsetToCommit], group_id: str, of: Callable[[int, dict[str, Any]], M]
) -> list[M]:
    """``of`` all that the group has: the topic that one hangs on is one that was written to then."""
    made = []
    for one in found.values():
        try:
            made.append(of(one.offset, json.loads(one.metadata)))
        except (ValueError, KeyError, TypeError) as error:
            raise ReplayError(
                f"group {group_id} has an offset that is no commit marker ({one.metadata[:100]!r}): "
                "somebody else uses this group; choose another transactionalIdPrefix"
            ) from error
    return made
