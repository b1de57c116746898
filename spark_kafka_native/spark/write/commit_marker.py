"""`CommitMarker`: what a task commits together with its rows, so that a replay knows whether it has.

It is the offset of a consumer group of the task's own: the batch id as the offset, the rows in its metadata.
The transaction has it or has it not, with the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ...kafka.cluster.router import Router
from ...kafka.errors import KafkaError
from ...kafka.group.committed import all_committed_offsets, committed_offsets
from ...kafka.model import OffsetToCommit, TopicPartition
from ...kafka.network.deadline import Deadline

M = TypeVar("M")


class ReplayError(KafkaError):
    """A micro-batch can't be written exactly once: what is committed does not fit it. Says why, and what to
    do."""


@dataclass(frozen=True, kw_only=True)
class CommitMarker:
    """Of one task: the last micro-batch that was committed, and what it wrote in it."""

    batch_id: int
    rows: int
    hash: int

    def offset(self) -> OffsetToCommit:
        """As it is committed."""
        metadata = json.dumps({"rows": self.rows, "hash": f"{self.hash:016x}"})
        return OffsetToCommit(offset=self.batch_id, metadata=metadata)

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

        def of(batch_id: int, told: dict[str, Any]) -> CommitMarker:
            return cls(batch_id=batch_id, rows=int(told["rows"]), hash=int(told["hash"], 16))

        found = find_offsets(router, group_id, where, deadline)
        return max(read_all(found, group_id, of), key=lambda one: one.batch_id, default=None)


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
