"""`commit_offsets`: tell a consumer group how far something has read, without joining it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from ..cluster.coordinator_requests import send_to_coordinator
from ..cluster.coordinators import CoordinatorKey
from ..cluster.router import Router
from ..errors import BrokerError, IncompleteResponseError
from ..model import OffsetToCommit, TopicPartition
from ..protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ..runtime.deadline import Deadline
from .membership import Identity


def commit_offsets(
    router: Router,
    group_id: str,
    positions: Mapping[TopicPartition, int | OffsetToCommit],
    deadline: Deadline | None = None,
) -> None:
    """Commit the offset of the next record to read for each partition.

    The group must have no members: those of a group that has some commit for themselves, and the coordinator
    refuses anybody else (UNKNOWN_MEMBER_ID). Raises `BrokerError`, `DeadlineExceededError`.
    """
    if positions:
        send_to_coordinator(
            router,
            CoordinatorKey.group(group_id),
            build_offset_commit(group_id, positions),
            lambda response: read_offset_commit(response, group_id, positions),
            deadline,
        )


def build_offset_commit(
    group_id: str, positions: Mapping[TopicPartition, int | OffsetToCommit], identity: Identity | None = None
) -> OffsetCommitRequest:
    """The request for the group's coordinator, of a member or (None) of somebody outside."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for tp, position in positions.items():
        one = OffsetToCommit(offset=position) if isinstance(position, int) else position
        topics[tp.topic].append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=one.offset,
                committed_leader_epoch=one.leader_epoch,
                committed_metadata=one.metadata,
            )
        )
    member = Identity("", -1, None) if identity is None else identity
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=[
            OffsetCommitRequestTopic(name=name, partitions=partitions) for name, partitions in topics.items()
        ],
    )


def read_offset_commit(
    response: OffsetCommitResponse, group_id: str, positions: Collection[TopicPartition]
) -> None:
    """Raises `BrokerError` for the first refusal, `IncompleteResponseError` for a partition left out."""
    missing = set(positions)
    for topic in response.topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            if partition.error_code:
                where = f"committing the offset of {tp} in group {group_id}"
                raise BrokerError(partition.error_code, where, operation="Read")
            missing.discard(tp)
    if missing:
        raise IncompleteResponseError(
            f"committing offsets in group {group_id}: the answer says nothing of {min(missing)}"
        )
