"""Fetch requests out of partition states, and what a response says about each partition. Pure."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from ..config import ConsumerConfig
from ..model import TopicPartition
from ..protocol.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from .partition_state import PartitionState

LAST_EPOCH_SINCE = 12
"""The first version in which the broker compares the epoch of what was fetched last with its log
(KIP-595).
"""
NAMES_UNTIL = 12
"""The last version that goes by topic names; after it by ids (KIP-516)."""

_BATCH_PREFIX = struct.Struct(">qii")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
_HEADER_BYTES = 61


def build_fetch(
    states: Sequence[PartitionState], config: ConsumerConfig, rack: str, max_bytes: int, version: int
) -> FetchRequest:
    """One request for all ``states``, in their order: the broker fills the response from the front."""
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
        max_wait_ms=config.fetch_max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=max_bytes,
        isolation_level=config.isolation_level,
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


def offset_after(records: memoryview) -> tuple[int, int] | None:
    """The offset after the last complete batch of a record set and that batch's leader epoch; None when not
    even one is complete.

    Reads lengths only, 0.2 us per batch, so that the next request can be on its way before these records are
    decoded (which checks everything, and has the last word).
    """
    position, last, size = 0, -1, len(records)
    while size - position >= _HEADER_BYTES:
        length = _BATCH_PREFIX.unpack_from(records, position)[1]
        if length < _HEADER_BYTES - 12 or length > size - position - 12:
            break
        last = position
        position += length + 12
    if last < 0:
        return None
    base_offset, _, leader_epoch = _BATCH_PREFIX.unpack_from(records, last)
    delta: int = _LAST_OFFSET_DELTA.unpack_from(records, last + _LAST_OFFSET_DELTA_AT)[0]
    return base_offset + delta + 1, leader_epoch
