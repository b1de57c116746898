"""`Backlogs`: what lies in the spill folder and is to be sent again by the very producer that put it there.

Pure: who sends it, and when, is `resending.py`. The sender's thread owns it.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from ...model import TopicPartition
from ..accumulating.batch import Batch
from ..spill_folder import SpilledBatch


@dataclass(eq=False)
class Backlog:
    """Of one partition."""

    batches: list[Batch] = field(default_factory=list)
    """In order, without ``probe``."""
    probe: Batch | None = None
    """The first of them, while it is being tried."""
    refused: bool = False
    """Whether the probe, or a part of it, is in ``batches`` again."""
    failures: int = 0
    not_before: float | None = None
    """Monotonic seconds of the next try; None until somebody has seen it."""


class Backlogs:
    """Of all partitions of one producer."""

    def __init__(self) -> None:
        self.by_partition: dict[TopicPartition, Backlog] = {}

    def add(self, given_up: Batch, entry: SpilledBatch) -> None:
        """``given_up`` is ``entry`` of the folder now."""
        backlog = self.by_partition.setdefault(given_up.topic_partition, Backlog())
        insort(backlog.batches, _again(given_up, entry), key=lambda batch: batch.order)
        backlog.refused = backlog.refused or given_up.told

    def remove(self, given_up: Batch) -> SpilledBatch | None:
        """``given_up`` is in the log after all, as a late answer says: its entry, if it was still here."""
        backlog = self.by_partition.get(given_up.topic_partition)
        again = [] if backlog is None else [b for b in backlog.batches if b.order == given_up.order]
        if backlog is None or not again:
            return None
        backlog.batches.remove(again[0])
        return again[0].spilled


def _again(given_up: Batch, entry: SpilledBatch) -> Batch:
    """The batch as it will be sent again: with its place, its numbers and what is known about it.

    The numbers of ``entry`` itself may be older, where the folder could not take the new ones.
    """
    batch = Batch(given_up.topic_partition, b"", given_up.records, 0, [], 0.0, -1, given_up.order)
    batch.spilled, batch.told = entry, True
    batch.identity, batch.base_sequence = given_up.identity, given_up.base_sequence
    batch.indefinite = given_up.indefinite
    return batch
