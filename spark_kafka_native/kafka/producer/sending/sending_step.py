"""What `PartitionSending` works with, and its answers to what should be done next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..accumulating.batch import Batch


@dataclass(frozen=True, kw_only=True)
class SendingRules:
    """What all partitions of a producer have in common."""

    retries: int
    pipelined: bool
    """Whether batches without sequence numbers may follow each other: only where no broker answers, as a
    retry, or the halves of one that was refused for its size, could be overtaken."""
    delay_s: Callable[[int], float]
    """How long to wait after this many failures in a row."""
    topic_propagation_s: float
    """How long a topic that was there may be unknown (a broker may be restarting) before it counts as
    deleted."""
    sets_apart: bool = False
    """Whether a single record over a limit does not fail: it is looked for in whatever is refused for its
    size."""


@dataclass(frozen=True)
class Send:
    """Send this batch, and say so with `PartitionSending.sent`."""

    batch: Batch
    numbered: bool
    """It has just been numbered."""


@dataclass(frozen=True)
class Load:
    """Read this spilled batch, pass it to `PartitionSending.loaded`, and ask again."""

    batch: Batch


@dataclass(frozen=True)
class NeedProducerId:
    """Nothing can be numbered before InitProducerId has been answered."""


Step = Send | Load | NeedProducerId | None
