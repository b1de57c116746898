"""`ClusterMetadata`: an immutable snapshot of brokers, topics and leaders. Pure: no socket, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from ..error_code import ErrorCode
from ..errors import BrokerError, NetworkError
from ..model import Broker, TopicPartition
from ..protocol.api.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

NO_TOPIC_ID = UUID(int=0)
"""The topic id in responses of clusters without topic ids (KIP-516)."""


class Partition(NamedTuple):
    """One partition. A tuple, because a cluster may have many thousands of them."""

    partition: int
    leader: int | None
    """Node id; None while there is no leader."""
    leader_epoch: int
    """-1 if the broker does not know it."""
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic. With an ``error_code`` (unknown, not authorized, ...) it has no partitions."""

    name: str
    topic_id: UUID | None
    partitions: Mapping[int, Partition]
    error_code: ErrorCode
    internal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """The metadata of the last responses. ``generation`` grows with every response."""

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    controller_id: int | None = None
    cluster_id: str | None = None
    topics: Mapping[str, Topic] = field(default_factory=dict)
    generation: int = 0

    def topic(self, name: str) -> Topic:
        """The topic called ``name``. Raises `BrokerError` with the topic's own error code or
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        topic = self.topics.get(name)
        if topic is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
        if topic.error_code:
            raise BrokerError(topic.error_code, f"topic {name}", operation="Describe")
        return topic

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """The partition, with or without a leader. Raises `BrokerError` if it does not exist."""
        topic = self.topic(topic_partition.topic)
        partition = topic.partitions.get(topic_partition.partition)
        if partition is None:
            has = f"topic {topic.name} has {len(topic.partitions)} partitions"
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic_partition}", has)
        return partition

    def updated(self, response: MetadataResponse, asked: Collection[str] | None) -> ClusterMetadata:
        """This snapshot updated with ``response``; ``asked`` are the topics that it covers, None for all."""
        topics = {t.name: self._topic(t) for t in response.topics if t.name is not None}
        if asked is not None:
            kept = {name: topic for name, topic in self.topics.items() if name not in asked}
            topics = kept | topics
        brokers = {
            b.node_id: Broker(node_id=b.node_id, host=b.host, port=b.port, rack=b.rack)
            for b in response.brokers
        }
        return replace(
            self,
            brokers=brokers,
            controller_id=response.controller_id if response.controller_id >= 0 else None,
            cluster_id=response.cluster_id,
            topics=topics,
            generation=self.generation + 1,
        )

    def _topic(self, told: MetadataResponseTopic) -> Topic:
        topic_id = told.topic_id if told.topic_id != NO_TOPIC_ID else None
        name = told.name or ""
        known = self.topics.get(name)
        older = known.partitions if known is not None and known.topic_id == topic_id else {}
        return Topic(
            name=name,
            topic_id=topic_id,
            partitions={p.partition_index: _newer(older.get(p.partition_index), p) for p in told.partitions},
            error_code=told.error_code,
            internal=told.is_internal,
        )


def topics_named(topics: Iterable[str]) -> str:
    """``topic a``, or ``topics a, b, c and 2 more``: the first of ``topics``, for a message."""
    names = sorted(topics)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"topic{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{more}"


def leader_changes(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[str]:
    """A sentence for each partition that has another leader in the later one."""
    for name, topic in after.topics.items():
        known = before.topics.get(name)
        for index, partition in topic.partitions.items():
            former = None if known is None else known.partitions.get(index)
            if former is not None and former.leader != partition.leader:
                yield f"{name}-{index}: led by {_words(partition.leader)}, before by {_words(former.leader)}"


def _words(leader: int | None) -> str:
    return "nobody" if leader is None else f"broker {leader}"


def _newer(known: Partition | None, told: MetadataResponsePartition) -> Partition:
    # A broker that lags behind still names the former leader, which its epoch reveals. Epochs compare for the
    # same topic id only: a topic that was created again starts at 0.
    if known is not None and 0 <= told.leader_epoch < known.leader_epoch:
        return known
    return Partition(
        told.partition_index,
        told.leader_id if told.leader_id >= 0 else None,
        told.leader_epoch,
        tuple(told.replica_nodes),
        tuple(told.isr_nodes),
        told.error_code,
    )


def topics_request(names: Iterable[str]) -> MetadataRequest:
    """Asks about existing topics: none is created for it."""
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def metadata_of(response: MetadataResponse, node_id: int) -> ClusterMetadata:
    """What one broker knows. Raises as `require_brokers`."""
    require_brokers(response, f"broker {node_id}, just started,")
    return ClusterMetadata().updated(response, None)


def require_brokers(response: MetadataResponse, broker: str = "a broker that has just started") -> None:
    """Raises `NetworkError` for a response that proves nothing: it is not that of a cluster."""
    if not response.brokers:
        raise NetworkError(f"{broker} names no brokers yet, and maybe no topics")
