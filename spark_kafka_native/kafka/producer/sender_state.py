"""`SenderState`: what the parts of the sender share. The sender's thread owns it; nobody else writes to
it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from ..cluster.router import Router
from ..config import ProducerConfig
from ..errors import KafkaError
from ..network.retry import Backoff
from .encoder import BatchEncoder
from .idempotence import Idempotence, PartitionSequence
from .lane import Lane, LaneKey
from .partition_queue import PartitionQueue
from .settlement import Settlement
from .stats import StatsRecorder
from .topic_buffer import TopicBuffer


@dataclass(kw_only=True, eq=False)
class SenderState:
    """The sender's world."""

    router: Router
    config: ProducerConfig
    topics: Mapping[str, TopicBuffer]
    """The topics that were written to so far; their owner adds to it."""
    encoder: BatchEncoder
    settlement: Settlement
    stats: StatsRecorder
    clock: Callable[[], float] = time.monotonic
    active: dict[PartitionQueue, None] = field(default_factory=dict)
    """Queues with batches waiting or in flight, in the order in which they got some."""
    lanes: dict[LaneKey, Lane] = field(default_factory=dict)
    next_at: float = 0.0
    """Monotonic seconds: when something is to be done at the latest."""
    fatal: KafkaError | None = None

    def __post_init__(self) -> None:
        client = self.router.config
        self.idempotence = Idempotence() if self.config.idempotent else None
        self.request_timeout_s = client.request_timeout_ms / 1000
        self._backoff = Backoff(first_ms=client.retry_backoff_ms, most_ms=client.retry_backoff_max_ms)

    def by(self, moment: float) -> None:
        """Something is to be done at ``moment`` at the latest."""
        self.next_at = min(self.next_at, moment)

    def delay_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        return self._backoff.delay_ms(failures) / 1000

    def buffers(self) -> list[TopicBuffer]:
        """All of them, as of now: a caller may add one at any moment."""
        return list(self.topics.values())

    def buffer(self, queue: PartitionQueue) -> TopicBuffer | None:
        """The topic's buffer."""
        return self.topics.get(queue.topic_partition.topic)

    def most_bytes(self, queue: PartitionQueue) -> int:
        """The largest batch that the topic takes; 0 when nobody knows."""
        buffer = self.buffer(queue)
        return 0 if buffer is None else buffer.most_bytes

    def topic_id(self, queue: PartitionQueue) -> UUID | None:
        """The topic's id as it was last described.

        Not from the metadata of the moment: a restarting broker may deny the topic, and its numbering must
        go on.
        """
        buffer = self.buffer(queue)
        return None if buffer is None else buffer.topic_id

    def sequence(self, queue: PartitionQueue) -> PartitionSequence | None:
        """The partition's numbering; None without idempotence, or before there is a producer id."""
        if self.idempotence is None:
            return None
        topic, partition = queue.topic_partition
        return self.idempotence.sequence(topic, self.topic_id(queue), partition)
