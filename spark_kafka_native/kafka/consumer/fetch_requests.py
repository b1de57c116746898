"""Requests to the leader of a partition: Fetch, and OffsetForLeaderEpoch for old brokers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from ..config.client_config import ConsumerConfig
from ..error_code import ErrorCode
from ..errors import (
    BrokerError,
    IncompleteResponseError,
    KafkaError,
    LogTruncatedError,
    ProtocolError,
    UnsupportedVersionError,
)
from ..model import IsolationLevel, TopicPartition
from ..network.connection import Connection
from ..network.pending_response import PendingResponse
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


@dataclass(slots=True, kw_only=True, eq=False)
class InFlightFetch:
    """A fetch request in flight and what it asked for."""

    pending: PendingResponse[FetchResponse]
    node_id: int
    asked: dict[TopicPartition, tuple[PartitionState, int]]
    """Each partition and the offset that it was asked from."""
    names: dict[UUID, str]
    since: float
    """On the run's clock."""
    sent_at: float
    """In seconds that always count."""


def with_request(error: KafkaError, flight: InFlightFetch) -> KafkaError:
    """A response that can't be read (a frame over the cap, say), with what was asked for."""
    if type(error) is not ProtocolError or not flight.asked:
        return error
    (tp, (_, offset)), *more = flight.asked.items()
    others = f" and {len(more)} more partitions" if more else ""
    told = ProtocolError(f"fetching {tp} at offset {offset}{others} from broker {flight.node_id}: {error}")
    told.__cause__ = error
    return told


if TYPE_CHECKING:
    from ..protocol.api.offset_for_leader_epoch import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochResponse,
        OffsetForLeaderPartition,
    )


def find_truncated(
    connection: Connection, states: Sequence[PartitionState], timeout_ms: float
) -> list[tuple[PartitionState, KafkaError]]:
    """Ask the leader about those of ``states`` that have another leader epoch than they were read under.

    Waits for the answer: this is once per change of a leader. Those that can't be read on, each with why.
    """
    doubtful = {state.topic_partition: state for state in states if _is_doubtful(state)}
    if not doubtful:
        return []
    from ..protocol.api.offset_for_leader_epoch import OffsetForLeaderEpochRequest  # late: for old brokers

    try:
        connection.version_of(OffsetForLeaderEpochRequest)
    except UnsupportedVersionError:  # a broker before 2.1 can't say
        return []
    response = connection.send(build_offset_for_leader_epoch(list(doubtful.values())), timeout_ms)
    return read_offset_for_leader_epoch(response, doubtful)


def build_offset_for_leader_epoch(states: Sequence[PartitionState]) -> OffsetForLeaderEpochRequest:
    """The request: where does the epoch end that was read last?"""
    from ..protocol.api.offset_for_leader_epoch import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderPartition,
        OffsetForLeaderTopic,
    )

    topics: dict[str, list[OffsetForLeaderPartition]] = defaultdict(list)
    for state in states:
        assert state.leader is not None, "a partition without a leader is not asked for"
        topics[state.topic_partition.topic].append(
            OffsetForLeaderPartition(
                partition=state.topic_partition.partition,
                current_leader_epoch=state.leader.leader_epoch,
                leader_epoch=state.last_epoch,
            )
        )
    return OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            OffsetForLeaderTopic(topic=name, partitions=partitions) for name, partitions in topics.items()
        ],
    )


def read_offset_for_leader_epoch(
    response: OffsetForLeaderEpochResponse, doubtful: dict[TopicPartition, PartitionState]
) -> list[tuple[PartitionState, KafkaError]]:
    """Note in each state that its epoch was checked; those that failed the check, with why."""
    failures: list[tuple[PartitionState, KafkaError]] = []
    doubtful = dict(doubtful)
    for topic in response.topics:
        for told in topic.partitions:
            state = doubtful.pop(TopicPartition(topic.topic, told.partition), None)
            if state is None:
                continue
            if told.error_code is not ErrorCode.NONE:
                where = f"epoch {state.last_epoch} of {state.topic_partition}"
                failures.append((state, BrokerError(told.error_code, where)))
            elif 0 <= told.end_offset < state.ask_from:
                cut = LogTruncatedError(state.topic_partition, state.position, told.end_offset)
                failures.append((state, cut))
            else:
                state.passed_epoch_check()
    for tp, state in doubtful.items():
        error = IncompleteResponseError(f"epoch {state.last_epoch} of {tp}: the leader's answer lacks it")
        failures.append((state, error))
    return failures


def _is_doubtful(state: PartitionState) -> bool:
    return (
        state.leader is not None and state.last_epoch >= 0 and state.epoch_checked < state.leader.leader_epoch
    )
