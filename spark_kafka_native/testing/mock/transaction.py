"""`Transaction`: what a coordinator keeps of one transactional id, by KIP-98 and without KIP-890."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ...kafka.error_code import ErrorCode

LAST_EPOCH: Final = (1 << 15) - 2
"""The one above belongs to coordinators, which fence with it."""


@dataclass
class Transaction:
    """A producer id with its epoch, and the transaction that is open, if one is."""

    producer_id: int
    epoch: int = 0
    partitions: set[tuple[str, int]] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    offsets: dict[str, dict[tuple[str, int], dict[str, Any]]] = field(default_factory=dict)
    """To be committed with it: by group, by topic and partition."""
    committed: bool | None = None
    """How the last one ended."""

    @property
    def is_open(self) -> bool:
        """True if a partition or a group belongs to it."""
        return bool(self.partitions or self.groups)

    def check(self, producer_id: int, epoch: int) -> ErrorCode:
        """Check that this producer may write in it."""
        if producer_id != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE if epoch == self.epoch else ErrorCode.PRODUCER_FENCED

    def clear(self, *, committed: bool | None) -> None:
        """End it. None: a new producer has ended it; a retried end of the old producer does not count as its
        own."""
        self.partitions, self.groups, self.offsets, self.committed = set(), set(), {}, committed
