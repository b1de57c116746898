"""`PartitionState`: how far the fetching of one partition has come. Mutable; owned by the one fetch
that it is part of.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from ..cluster.router import Leader
from ..errors import KafkaError
from ..model import TopicPartition

SMALLEST_FETCH = 64 * 1024
"""No fetch asks for less, however few records are left: an estimate that is too low costs a round trip."""


@dataclass(slots=True, kw_only=True, eq=False)
class PartitionState:
    """One partition between its ``position`` and ``until_offset``."""

    topic_partition: TopicPartition
    position: int
    """Everything before it was given to the caller."""
    until_offset: int
    ask_from: int
    """Where the next request starts: ahead of ``position`` while a response is being decoded."""
    max_bytes: int
    topic_id: UUID | None
    """The id that the offsets belong to; None until one is known."""
    last_epoch: int = -1
    """The leader epoch of the last batch before ``ask_from``: the broker tells if its log has
    another there.
    """
    leader: Leader | None = None
    replica: int | None = None
    """A follower in our rack that the leader sent us to (KIP-392)."""
    replica_until: float = 0.0
    in_flight: bool = False
    turn: int = 0
    """When it was served last: those that waited longest come first in a request."""
    bytes_per_offset: float | None = None
    failures: int = 0
    failing_since: float = 0.0
    retry_at: float = 0.0
    last_failure: KafkaError | None = None
    progress_at: float = 0.0
    at_end_since: float | None = None
    refetched: bool = False
    """Whether corrupt records were asked for once more already."""

    @property
    def open(self) -> bool:
        """Whether something is left to ask for."""
        return self.ask_from < self.until_offset

    @property
    def node_id(self) -> int | None:
        """Whom to ask; None while that is not known."""
        if self.leader is None:
            return None
        return self.leader.node_id if self.replica is None else self.replica

    def wanted_bytes(self) -> int:
        """How much to ask for: no more than what is left probably takes."""
        if self.bytes_per_offset is None:
            return self.max_bytes
        left = int((self.until_offset - self.ask_from) * self.bytes_per_offset * 1.1)
        return min(self.max_bytes, left + SMALLEST_FETCH)

    def rewind(self) -> None:
        """Ask again from what the caller has; an answer that is on its way will not fit and is dropped."""
        self.ask_from = self.position
        self.last_epoch = -1

    def advance(self, next_offset: int, now: float) -> None:
        """The caller has everything before ``next_offset``."""
        self.position = next_offset
        # A failure meanwhile (of the request sent ahead) has set it back to before what is given out now.
        self.ask_from = max(self.ask_from, next_offset)
        self.failures = 0
        self.last_failure = None
        self.refetched = False
        self.progress_at = now
        self.at_end_since = None
