"""`SenderState`: what the parts of the sender share. Only the sender's thread writes to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from ...cluster.router import Router
from ...config.client_config import ProducerConfig
from ...errors import KafkaError
from ...model import Acks, TopicPartition
from ...runtime.retry import Backoff
from ..accumulating.batch import Batch, BatchEncoder
from ..accumulating.topic_buffer import TopicBuffer
from ..settling.completion import BatchCompletion
from ..settling.oversized import OverLimit
from ..stats import StatsRecorder
from .idempotence import ProducerId
from .partition_queue import PartitionQueue, SendingRules
from .produce_request import BrokerConnection, ConnectionKey
from .transaction import Transaction

TOPIC_PROPAGATION_S = 30.0
"""Java waits as long before it takes a topic that brokers deny for deleted."""


@dataclass(kw_only=True, eq=False)
class SenderState:
    """What the sender's parts work on."""

    router: Router
    config: ProducerConfig
    topics: Mapping[str, TopicBuffer]
    """The topics that were written to so far; their owner adds to it."""
    encoder: BatchEncoder
    completion: BatchCompletion
    stats: StatsRecorder
    transaction: Transaction | None = None
    """Of a transactional producer."""
    over_limit: OverLimit | None = None
    """What becomes of records over a limit; None: they fail."""
    clock: Callable[[], float] = time.monotonic
    partitions: dict[TopicPartition, PartitionQueue] = field(default_factory=dict)
    """Every partition that was ever sent to, for the producer's whole life."""
    active: dict[PartitionQueue, None] = field(default_factory=dict)
    """Those with batches waiting or in flight, in the order in which they got some."""
    connections: dict[ConnectionKey, BrokerConnection] = field(default_factory=dict)
    next_at: float = 0.0
    """Monotonic seconds: the latest time at which something has to be done."""
    fatal: KafkaError | None = None

    def __post_init__(self) -> None:
        client = self.router.config
        transactional_id = None if self.transaction is None else self.transaction.transactional_id
        self.producer_id = ProducerId(transactional_id) if self.config.idempotent else None
        self.request_timeout_s = client.request_timeout_ms / 1000
        self._backoff = Backoff(first_ms=client.retry_backoff_ms, max_ms=client.retry_backoff_max_ms)
        self._rules = SendingRules(
            retries=self.config.retries,
            pipelined=self.config.acks is Acks.NONE,
            delay_s=self.delay_s,
            topic_propagation_s=TOPIC_PROPAGATION_S,
            sets_apart=self.config.over_limit != "fail",
        )

    def by(self, moment: float) -> None:
        """Something has to be done by ``moment``."""
        self.next_at = min(self.next_at, moment)

    def delay_s(self, failures: int) -> float:
        """How long to wait after this many failures in a row."""
        return self._backoff.delay_ms(failures) / 1000

    def buffers(self) -> list[TopicBuffer]:
        """All of them, as of now: a caller may add one at any moment."""
        return list(self.topics.values())

    def partition(self, where: TopicPartition) -> PartitionQueue:
        """Where sending to a partition stands; made when it is first asked for."""
        found = self.partitions.get(where)
        if found is None:
            found = self.partitions[where] = PartitionQueue(where, self._rules, self.producer_id)
        return found

    def leader(self, where: TopicPartition) -> int | None:
        """The broker that leads a partition, as far as this is known."""
        topic = self.router.snapshot.topics.get(where.topic)
        found = None if topic is None else topic.partitions.get(where.partition)
        return None if found is None else found.leader

    def last_failure(self, batch: Batch) -> Exception | None:
        """What keeps ``batch`` from being delivered, as far as this is known."""
        if batch.last_error is not None:
            return batch.last_error
        leader = self.leader(batch.topic_partition)
        return None if leader is None else self.router.outage(leader)

    def linger_s(self, topic: str) -> float:
        """How long a batch that is not full waits for more; a dead letter does not, as a flush waits for the
        record that it stands for."""
        return 0.0 if topic == self.config.dead_letter_topic else self.config.linger_ms / 1000

    def max_bytes(self, topic: str) -> int:
        """The largest batch that the topic accepts; 0 when that is not known."""
        buffer = self.topics.get(topic)
        return 0 if buffer is None else buffer.max_bytes

    def topic_id(self, topic: str) -> UUID | None:
        """The topic's id as it was last described.

        Not from the metadata of the moment: a restarting broker may deny the topic, and its numbering must
        go on.
        """
        buffer = self.topics.get(topic)
        return None if buffer is None else buffer.topic_id
