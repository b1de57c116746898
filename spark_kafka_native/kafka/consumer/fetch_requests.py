"""Requests to the leader of partitions: Fetch, and OffsetForLeaderEpoch for old brokers.

Building and reading is pure. `find_truncated` also sends: it is needed once per change of a leader (KIP-320),
by brokers that do not compare epochs in Fetch (before version 12, Kafka 2.7).
"""

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

if TYPE_CHECKING:
    from ..protocol.api.offset_for_leader_epoch import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochResponse,
        OffsetForLeaderPartition,
    )

LAST_EPOCH_SINCE = 12
"""The first version in which the broker compares the epoch of the last fetched batch with its log
(KIP-595).
"""
NAMES_UNTIL = 12
"""The last version that goes by topic names; after it by ids (KIP-516)."""


@dataclass(slots=True, kw_only=True, eq=False)
class InFlightFetch:
    """A fetch request in flight and what it asked for."""

    pending: PendingResponse[FetchResponse]
    node_id: int
    asked: dict[TopicPartition, tuple[PartitionState, int]]
    """Each partition with the offset in the request, in the order of the request."""
    probe: bool
    """True if it asked for uncommitted records, only to learn where they begin: its response is no data."""
    names: dict[UUID, str]
    since: float
    """On the clock of the fetch."""
    sent_at: float
    """On the monotonic clock."""

    def explain(self, error: KafkaError) -> KafkaError:
        """Add the request to the error of a response that cannot be read (a frame over the limit, say)."""
        if type(error) is not ProtocolError or not self.asked:
            return error
        (tp, (_, offset)), *more = self.asked.items()
        others = f" and {len(more)} more partitions" if more else ""
        explained = ProtocolError(
            f"fetching {tp} at offset {offset}{others} from broker {self.node_id}: {error}"
        )
        explained.__cause__ = error
        return explained


def is_probe(states: Sequence[PartitionState]) -> bool:
    """True if the request for ``states`` only proves that a partition has no records up to an offset."""
    return all(state.position.probe_until is not None for state in states)


def build_fetch(
    states: Sequence[PartitionState], config: ConsumerConfig, rack: str, max_bytes: int, version: int
) -> FetchRequest:
    """One request for all ``states``, in their order: the broker fills the response from the front.

    A topic occurs repeatedly if partitions of another topic come between its own, as in Java's requests.
    """
    probe = is_probe(states)
    # The records of a range exist: waiting for more than it contains would be in vain.
    bounded = any(not state.position.endless for state in states)
    min_bytes = min(1, config.fetch_min_bytes) if bounded else config.fetch_min_bytes
    topics: list[tuple[str, UUID | None, list[FetchPartition]]] = []
    for state in states:
        leader, position = state.broker.leader, state.position
        assert leader is not None, "a partition without a leader is not asked for"
        topic = state.topic_partition.topic, leader.topic_id
        if not topics or topics[-1][:2] != topic:
            topics.append((*topic, []))
        topics[-1][2].append(
            FetchPartition(
                partition=state.topic_partition.partition,
                current_leader_epoch=leader.leader_epoch,
                fetch_offset=position.fetch_offset,
                last_fetched_epoch=position.last_fetched_epoch if version >= LAST_EPOCH_SINCE else -1,
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
            for name, topic_id, partitions in topics
        ],
        rack_id=rack,
    )


def read_fetch(
    response: FetchResponse, names: Mapping[UUID, str]
) -> Iterator[tuple[TopicPartition, PartitionData]]:
    """Each partition of the response; ``names`` are those of the topic ids in the request."""
    for topic in response.responses:
        name = topic.topic or names.get(topic.topic_id, "")
        for partition in topic.partitions:
            yield TopicPartition(name, partition.partition_index), partition


def find_truncated(
    connection: Connection, states: Sequence[PartitionState], timeout_ms: float
) -> list[tuple[PartitionState, KafkaError | None]]:
    """Ask the leader about partitions that got another leader epoch since they were read.

    Waits for the response. Returns those that were checked: None if the leader's log contains everything that
    was read, else the reason why the partition cannot be read on.
    """
    doubtful = {state.topic_partition: state for state in states if _is_doubtful(state)}
    if not doubtful:
        return []
    from ..protocol.api.offset_for_leader_epoch import OffsetForLeaderEpochRequest  # late: for old brokers

    try:
        connection.version_of(OffsetForLeaderEpochRequest)
    except UnsupportedVersionError:  # brokers before 2.1 do not know the request
        return []
    response = connection.send(build_offset_for_leader_epoch(list(doubtful.values())), timeout_ms)
    return read_offset_for_leader_epoch(response, doubtful)


def build_offset_for_leader_epoch(states: Sequence[PartitionState]) -> OffsetForLeaderEpochRequest:
    """The request: where does the epoch of the last fetched batch end?"""
    from ..protocol.api.offset_for_leader_epoch import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderPartition,
        OffsetForLeaderTopic,
    )

    topics: dict[str, list[OffsetForLeaderPartition]] = defaultdict(list)
    for state in states:
        leader = state.broker.leader
        assert leader is not None, "a partition without a leader is not asked for"
        topics[state.topic_partition.topic].append(
            OffsetForLeaderPartition(
                partition=state.topic_partition.partition,
                current_leader_epoch=leader.leader_epoch,
                leader_epoch=state.position.last_fetched_epoch,
            )
        )
    return OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            OffsetForLeaderTopic(topic=name, partitions=partitions) for name, partitions in topics.items()
        ],
    )


def read_offset_for_leader_epoch(
    response: OffsetForLeaderEpochResponse, doubtful: Mapping[TopicPartition, PartitionState]
) -> list[tuple[PartitionState, KafkaError | None]]:
    """Each of ``doubtful`` with the result of its check, as `find_truncated`."""
    checked: list[tuple[PartitionState, KafkaError | None]] = []
    missing = dict(doubtful)
    for topic in response.topics:
        for data in topic.partitions:
            state = missing.pop(TopicPartition(topic.topic, data.partition), None)
            if state is None:
                continue
            error: KafkaError | None = None
            position = state.position
            if data.error_code is not ErrorCode.NONE:
                error = BrokerError(data.error_code, _epoch(state))
            # An earlier epoch: the log lacks that of the last record, however far it reaches.
            elif data.end_offset >= 0 and (
                data.end_offset < position.fetch_offset
                or 0 <= data.leader_epoch < position.last_fetched_epoch
            ):
                # All before that is handed out first.
                end_offset = position.cut_at(data.end_offset)
                error = LogTruncatedError(state.topic_partition, position.fetch_offset, end_offset)
            checked.append((state, error))
    lacking = "the leader's response lacks it"
    checked += [(state, IncompleteResponseError(f"{_epoch(state)}: {lacking}")) for state in missing.values()]
    return checked


def _epoch(state: PartitionState) -> str:
    return f"epoch {state.position.last_fetched_epoch} of {state.topic_partition}"


def _is_doubtful(state: PartitionState) -> bool:
    broker = state.broker
    if broker.leader is None or state.position.last_fetched_epoch < 0:
        return False
    return broker.epoch_checked < broker.leader.leader_epoch
