"""`admit`: how far a micro-batch goes: ``maxOffsetsPerTrigger`` and its kin. Pure: no cluster, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ...kafka.model import TopicPartition
from .stream_offsets import Positions

UNKNOWN_BYTES_PER_OFFSET: Final = 1_000.0
"""Of a topic of which nothing could be read yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """What the options say about the size of a micro-batch; None for no limit."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 900_000
    """How long ``min_offsets`` may hold a batch back."""

    @property
    def any(self) -> bool:
        """Whether there is anything to admit by."""
        return not (self.max_offsets is self.max_bytes is self.min_offsets is None)


def holds_back(limits: AdmissionLimits, begin: Positions, latest: Positions, waited_ms: float | None) -> bool:
    """Whether there is too little for a batch. ``waited_ms``: since the last one; None before the first,
    which never waits. A partition that ``begin`` doesn't have counts from 0, as in Spark's connector.
    """
    if limits.min_offsets is None or waited_ms is None or waited_ms >= limits.max_delay_ms:
        return False
    return sum(end - begin.get(tp, 0) for tp, end in latest.items()) < limits.min_offsets


def admit(
    limits: AdmissionLimits,
    begin: Positions,
    latest: Positions,
    bytes_per_offset: Mapping[TopicPartition, float] | None = None,
) -> dict[TopicPartition, int]:
    """Where the batch ends in each partition of ``latest``, all of which are in ``begin``.

    A partition whose log is shorter than ``begin`` ends at its latest offset.
    """
    sizes = {tp: end - begin[tp] for tp, end in latest.items() if end > begin[tp]}
    limit = _limit_offsets(limits, sizes, bytes_per_offset or {})
    total = sum(sizes.values())
    if limit is None or total <= limit:
        return dict(latest)
    # At least one offset of each: a small partition beside a large one must not starve.
    return {
        tp: begin[tp] + max(limit * sizes[tp] // total, 1) if tp in sizes else end
        for tp, end in latest.items()
    }


def _limit_offsets(
    limits: AdmissionLimits,
    sizes: Mapping[TopicPartition, int],
    bytes_per_offset: Mapping[TopicPartition, float],
) -> int | None:
    """The stricter of both limits, in offsets: with one share for all partitions, a limit in bytes is one in
    offsets of the average size."""
    limit = limits.max_offsets
    if limits.max_bytes is not None and sizes:
        estimated = sum(
            size * bytes_per_offset.get(tp, UNKNOWN_BYTES_PER_OFFSET) for tp, size in sizes.items()
        )
        if estimated > limits.max_bytes:
            by_bytes = max(int(sum(sizes.values()) * limits.max_bytes / estimated), 1)
            limit = by_bytes if limit is None else min(limit, by_bytes)
    return limit
