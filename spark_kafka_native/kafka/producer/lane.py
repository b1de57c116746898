"""`Lane`: a way to a broker, and the produce requests that are on it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ..network.connection import Connection
from ..network.pending import Pending
from ..protocol.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ..protocol.wire import ZERO_UUID
from .batch import Batch

LAST_VERSION_BY_NAME = 12
"""From version 13 on Produce names topics by id (KIP-516); a cluster without ids is spoken to by name."""


@dataclass(kw_only=True)
class SentRequest:
    """A produce request without its answer."""

    pending: Pending[ProduceResponse]
    batches: list[Batch]
    by_id: bool
    topic_ids: dict[str, UUID]
    sent_at: float

    def match(self, response: ProduceResponse) -> dict[Batch, PartitionProduceResponse]:
        """What ``response`` says of each batch; one that it does not mention is missing."""
        told: dict[tuple[object, int], PartitionProduceResponse] = {}
        for topic in response.responses:
            for partition in topic.partition_responses:
                # The first word counts: an answer that names a partition twice must not settle it twice.
                told.setdefault((topic.topic_id if self.by_id else topic.name, partition.index), partition)
        matched = {}
        for batch in self.batches:
            name, index = batch.queue.topic_partition
            found = told.get((self.topic_ids[name] if self.by_id else name, index))
            if found is not None:
                matched[batch] = found
        return matched


class LaneKey(NamedTuple):
    """Which connection to which broker: a partition always takes the same one, so that nothing overtakes."""

    node_id: int
    number: int


class Lane:
    """One connection to one broker, as the sender's thread sees it."""

    def __init__(self, node_id: int, number: int = 0) -> None:
        self.node_id = node_id
        self.number = number
        self.connection: Connection | None = None
        self.connecting = False
        self.not_before = 0.0
        self.failures = 0
        self.sent: deque[SentRequest] = deque()
        self.last_answer_at = 0.0

    @property
    def usable(self) -> bool:
        """Whether there is a live connection."""
        return self.connection is not None and not self.connection.closed


def build_produce(
    batches: list[Batch], topic_ids: dict[str, UUID], acks: int, timeout_ms: int
) -> ProduceRequest:
    """One request for ``batches``, at most one of each partition (the protocol allows no more)."""
    topics: dict[str, list[PartitionProduceData]] = {}
    for batch in batches:
        topic, index = batch.queue.topic_partition
        topics.setdefault(topic, []).append(PartitionProduceData(index=index, records=memoryview(batch.data)))
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(name=topic, topic_id=topic_ids.get(topic, ZERO_UUID), partition_data=data)
            for topic, data in topics.items()
        ],
    )


def choose_version(connection: Connection, batches: list[Batch], topic_ids: dict[str, UUID]) -> int:
    """The version to speak: by topic id only where the ids of all topics are known."""
    version = connection.version_of(ProduceRequest)
    known = all(batch.queue.topic_partition.topic in topic_ids for batch in batches)
    return version if known else min(version, LAST_VERSION_BY_NAME)
