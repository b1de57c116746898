"""Fetch requests out of partition states, and what a response says about each partition. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from ..config.client_config import ConsumerConfig
from ..model import IsolationLevel, TopicPartition
from ..protocol.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from .partition_state import PartitionState

LAST_EPOCH_SINCE = 12
"""The first version in which the broker compares the epoch of what was fetched last with its log
(KIP-595).
"""
NAMES_UNTIL = 12
"""The last version that goes by topic names; after it by ids (KIP-516)."""


def build_fetch(
    states: Sequence[PartitionState], config: ConsumerConfig, rack: str, max_bytes: int, version: int
) -> FetchRequest:
    """One request for all ``states``, in their order: the broker fills the response from the front."""
    probe = all(state.probe_until is not None for state in states)
    # The records of a range exist: waiting for more than it has would be in vain.
    bounded = any(not state.endless for state in states)
    min_bytes = min(1, config.fetch_min_bytes) if bounded else config.fetch_min_bytes
    topics: dict[tuple[str, UUID | None], list[FetchPartition]] = defaultdict(list)
    for state in states:
        leader = state.leader
        assert leader is not None, "a partition without a leader is not asked for"
        topics[state.topic_partition.topic, leader.topic_id].append(
            FetchPartition(
                partition=state.topic_partition.partition,
                current_leader_epoch=leader.leader_epoch,
                fetch_offset=state.ask_from,
                last_fetched_epoch=state.last_epoch if version >= LAST_EPOCH_SINCE else -1,
                partition_max_bytes=state.wanted_bytes(),
            )
        )
    return FetchRequest(
        max_wait_ms=0 if probe else min(config.fetch_max_wait_ms, config.poll_timeout_ms // 2),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=IsolationLevel.READ_UNCOMMITTED if probe else config.isolation_level,
        topics=[
            FetchTopic(topic=name, partitions=partitions)
            if topic_id is None
            else FetchTopic(topic=name, topic_id=topic_id, partitions=partitions)
            for (name, topic_id), partitions in topics.items()
        ],
        rack_id=rack,
    )


def read_fetch(
    response: FetchResponse, names: Mapping[UUID, str]
) -> Iterator[tuple[TopicPartition, PartitionData]]:
    """Each partition of the response; ``names`` are those of the topic ids that were asked for."""
    for topic in response.responses:
        name = topic.topic or names.get(topic.topic_id, "")
        for partition in topic.partitions:
            yield TopicPartition(name, partition.partition_index), partition
