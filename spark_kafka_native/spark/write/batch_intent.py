"""`BatchIntent`: which rows in which tasks the driver is about to commit of a micro-batch. `Intents`: the
last one, which only one driver at a time can replace.

A driver takes the transactional id of the query's drivers before it reads the last intent, and writes its own
in a transaction of that id. So it replaces the one that it has read, or fails: another driver has come
between.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ...kafka.cluster.router import Router
from ...kafka.group.committed_offsets import all_committed_offsets, committed_offsets
from ...kafka.model import GroupMembership, OffsetToCommit, TopicPartition
from ...kafka.producer.errors import TransactionAbortableError
from ...kafka.producer.sending.transaction_requests import (
    OpenTransaction,
    add_offsets,
    commit_offsets_in,
    end_transaction,
    find_version,
    init_producer_id,
)
from ...kafka.runtime.deadline import Deadline
from .commit_marker import find_offsets, read_all


@dataclass(frozen=True, kw_only=True)
class BatchIntent:
    """Of the driver: it is about to commit the transactions of ``tasks`` tasks of a micro-batch."""

    batch_id: int
    tasks: int
    hash: int = 0
    """Of which rows are in which task (`hash_of_tasks`); 0 where an earlier version has not said it."""
    change: int = 0
    """Counts the intents of a micro-batch: two of them may hang on different topics."""

    def follows(self, before: BatchIntent | None) -> BatchIntent:
        """The same, as the one after ``before``."""
        same = before is not None and before.batch_id == self.batch_id
        change = before.change + 1 if before is not None and same else 0
        return replace(self, change=change)

    def is_like(self, other: BatchIntent) -> bool:
        """Whether both have the same rows in the same tasks: then it does not matter which is committed."""
        return (self.tasks, self.hash) == (other.tasks, other.hash)

    def told(self) -> dict[str, Any]:
        """All but the batch id, as JSON has it."""
        return {"tasks": self.tasks, "hash": f"{self.hash:016x}", "change": self.change}

    def offset(self) -> OffsetToCommit:
        """As it is committed."""
        return OffsetToCommit(offset=self.batch_id, metadata=json.dumps(self.told()))

    @classmethod
    def of(cls, batch_id: int, told: dict[str, Any]) -> BatchIntent:
        """From what was kept of it."""
        return cls(
            batch_id=batch_id,
            tasks=int(told["tasks"]),
            hash=int(told.get("hash", "0"), 16),
            change=int(told.get("change", 0)),
        )

    @classmethod
    def read(
        cls, router: Router, group_id: str, where: TopicPartition | None, deadline: Deadline | None = None
    ) -> BatchIntent | None:
        """The last one; None if there is none. ``where``: as `CommitMarker.read` has it."""
        return cls._last(find_offsets(router, group_id, where, deadline), group_id)

    @classmethod
    def read_decided(cls, router: Router, group_id: str, deadline: Deadline) -> BatchIntent | None:
        """The last one, whatever is open now."""
        return cls._last(all_committed_offsets(router, group_id, deadline, stable=False), group_id)

    @classmethod
    def _last(cls, offsets: Mapping[TopicPartition, OffsetToCommit], group_id: str) -> BatchIntent | None:
        found = read_all(offsets, group_id, cls.of)
        return max(found, key=lambda one: (one.batch_id, one.change, one.tasks), default=None)


class Intents(Protocol):
    """The intents of a query, taken by this driver: who had them before can replace none any more."""

    def last(self, where: TopicPartition | None) -> BatchIntent | None:
        """The last one."""

    def replace(self, before: BatchIntent | None, intent: BatchIntent, where: TopicPartition) -> None:
        """This one is there for good when this returns. Raises `TransactionFatalError` where another driver
        has taken the intents, `TransactionAbortableError` where ``before`` was not the last one: a broker
        that was deposed has said so."""

    def close(self) -> None:
        """Not needed any more."""


def replaced(before: BatchIntent | None, now: BatchIntent | None) -> TransactionAbortableError:
    """The answer to `Intents.last` was too old."""
    return TransactionAbortableError(
        f"the last intent was said to be {before}, and it is {now}: a broker answered that was deposed"
    )


def drivers_name(job: str) -> str:
    """The transactional id of a query's drivers."""
    return f"{job}-driver"


class GroupIntents:
    """`Intents` that are offsets of a group."""

    def __init__(self, router: Router, job: str, timeout_ms: int, deadline: Deadline) -> None:
        self._router = router
        self._job = job
        self._deadline = deadline
        name = drivers_name(job)
        version = find_version(router, name, 2, deadline)
        # A fresh epoch for each intent, as the first protocol needs it; the second doesn't mind.
        identity = init_producer_id(router, name, timeout_ms, None, deadline)
        self._transaction = OpenTransaction(
            transactional_id=name,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            version=version,
        )

    def last(self, where: TopicPartition | None) -> BatchIntent | None:
        """As `Intents.last`."""
        return BatchIntent.read(self._router, self._job, where, self._deadline)

    def replace(self, before: BatchIntent | None, intent: BatchIntent, where: TopicPartition) -> None:
        """As `Intents.replace`."""
        router, deadline = self._router, self._deadline
        if self._transaction.version == 1:
            add_offsets(router, self._transaction, self._job, deadline)
        group = GroupMembership(group_id=self._job)
        commit_offsets_in(router, self._transaction, group, {where: intent.offset()}, deadline)
        # Who has taken it in knows what was committed before.
        if (now := BatchIntent.read_decided(router, self._job, deadline)) != before:
            end_transaction(router, self._transaction, commit=False, deadline=deadline)
            raise replaced(before, now)
        end_transaction(router, self._transaction, commit=True, deadline=deadline)
        # Coordinators up to Kafka 3.x apply it a moment later. Nothing is committed that it speaks of before
        # others can see it.
        committed_offsets(router, self._job, [where], deadline)

    def close(self) -> None:
        """There is nothing to close."""
