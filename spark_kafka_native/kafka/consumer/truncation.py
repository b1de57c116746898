"""`find_truncated`: whether the log of a new leader is the one that was read so far (KIP-320), for brokers
that don't compare it by themselves in Fetch (before version 12, Kafka 2.7).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..error_code import ErrorCode
from ..errors import (
    BrokerError,
    IncompleteResponseError,
    KafkaError,
    LogTruncatedError,
    UnsupportedVersionError,
)
from ..model import TopicPartition
from ..network.connection import Connection
from .partition_state import PartitionState

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
