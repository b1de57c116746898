"""Produce requests: built from batches, in flight on a connection, and their responses matched with the
batches again. Nothing is sent or received here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ...errors import UnsupportedVersionError
from ...network.connection import Connection
from ...network.pending_response import PendingResponse
from ...protocol.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ...protocol.wire import ZERO_UUID
from ..accumulating.batch import Batch

LAST_VERSION_OF_TRANSACTIONS_1 = 11
"""From version 12 on Produce adds its partitions to the transaction by itself (KIP-890): never in one whose
partitions are added in the old way."""
LAST_VERSION_BY_NAME = 12
"""From version 13 on Produce names topics by id (KIP-516); to a cluster without ids they name topics by
name."""


@dataclass(kw_only=True)
class InFlightRequest:
    """A produce request without its answer."""

    pending: PendingResponse[ProduceResponse]
    batches: list[Batch]
    by_id: bool
    topic_ids: dict[str, UUID]
    sent_at: float

    def match(self, response: ProduceResponse) -> dict[Batch, PartitionProduceResponse]:
        """What ``response`` says of each batch; one that it does not mention is missing."""
        told: dict[tuple[object, int], PartitionProduceResponse] = {}
        for topic in response.responses:
            for partition in topic.partition_responses:
                # The first entry counts: an answer that names a partition twice must not settle it twice.
                told.setdefault((topic.topic_id if self.by_id else topic.name, partition.index), partition)
        matched = {}
        for batch in self.batches:
            name, index = batch.topic_partition
            found = told.get((self.topic_ids[name] if self.by_id else name, index))
            if found is not None:
                matched[batch] = found
        return matched


class ConnectionKey(NamedTuple):
    """Which connection to which broker: a partition always takes the same one, so that nothing overtakes."""

    node_id: int
    number: int


class BrokerConnection:
    """The sender's thread owns it. The connection may be replaced; what is in flight goes with it."""

    def __init__(self, node_id: int, number: int = 0) -> None:
        self.node_id = node_id
        self.number = number
        self.connection: Connection | None = None
        self.connecting = False
        self.not_before = 0.0
        self.failures = 0
        self.in_flight: deque[InFlightRequest] = deque()
        self.last_answer_at = 0.0

    def has_room(self, max_in_flight: int) -> bool:
        """Whether one more request may be sent while fewer than ``max_in_flight`` are unanswered.

        Not while one waits for room in the socket: a broker that does not read holds up its own records only,
        and one request at most is kept for it.
        """
        return (
            len(self.in_flight) < max_in_flight
            and self.connection is not None
            and not self.connection.has_unwritten
        )


def build_produce(
    batches: list[Batch],
    topic_ids: dict[str, UUID],
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """One request for ``batches``, at most one of each partition (the protocol allows no more)."""
    topics: dict[str, list[PartitionProduceData]] = {}
    for batch in batches:
        topic, index = batch.topic_partition
        topics.setdefault(topic, []).append(PartitionProduceData(index=index, records=memoryview(batch.data)))
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(name=topic, topic_id=topic_ids.get(topic, ZERO_UUID), partition_data=data)
            for topic, data in topics.items()
        ],
    )


def choose_version(
    connection: Connection,
    batches: list[Batch],
    topic_ids: dict[str, UUID],
    transaction_version: int | None = None,
) -> int:
    """The version to speak: by topic id only where the ids of all topics are known, and in a transaction
    only those of its protocol. Raises `UnsupportedVersionError`."""
    if transaction_version == 1:
        return connection.version_of(ProduceRequest, LAST_VERSION_OF_TRANSACTIONS_1)
    version = connection.version_of(ProduceRequest)
    if transaction_version == 2 and version <= LAST_VERSION_OF_TRANSACTIONS_1:
        raise UnsupportedVersionError(
            f"{connection.address} speaks Produce up to version {version}, while the cluster has "
            "transaction.version=2: is it being downgraded? Begin the transaction again"
        )
    known = all(batch.topic_partition.topic in topic_ids for batch in batches)
    return version if known else min(version, LAST_VERSION_BY_NAME)
