"""What is told of groups: `GroupListing`, `GroupDescription`, `GroupMember`, `PartitionLag`; and how
descriptions come out of the answers for each of the two protocols.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from ..error_code import ErrorCode
from ..errors import BrokerError, IncompleteResponseError, KafkaError, ProtocolError
from ..model import TopicPartition
from ..protocol.api.consumer_group_describe import Assignment, ConsumerGroupDescribeResponse, Member
from ..protocol.api.describe_groups import DescribedGroupMember, DescribeGroupsResponse
from ..protocol.consumer_protocol import PROTOCOL_TYPE, ConsumerProtocolAssignment, read_versioned


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group, as a list shows it."""

    group_id: str
    protocol_type: str
    """``consumer``; empty where offsets are committed from outside; Kafka Connect has another."""
    state: str
    """Kafka's word: Stable, Empty, PreparingRebalance ...; empty with brokers before 2.6."""
    type: str
    """``classic``, ``consumer`` (KIP-848), ``share`` or ``streams``; empty with brokers before 3.8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group."""

    member_id: str
    instance_id: str | None
    """Of a static member (KIP-345)."""
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    """What it reads; empty also where the group is not one of consumers."""
    target: tuple[TopicPartition, ...] | None = None
    """What it shall read once all have given up what they shall not (KIP-848)."""
    member_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group and its members."""

    group_id: str
    type: str
    """``classic`` or ``consumer``."""
    state: str
    assignor: str
    members: tuple[GroupMember, ...]
    group_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """Where a group stands in a partition, and where that ends."""

    committed_offset: int
    end_offset: int | None
    """None where the partition is gone, or did not answer."""
    error: KafkaError | None = None
    """Why it did not answer."""

    @property
    def lag(self) -> int | None:
        """How many offsets there are to read; never below 0."""
        return None if self.end_offset is None else max(0, self.end_offset - self.committed_offset)


def read_consumer_group(response: ConsumerGroupDescribeResponse, group_id: str) -> GroupDescription:
    """The description of a group of the consumer protocol. Raises `BrokerError`."""
    for group in response.groups:
        if group.group_id == group_id:
            if group.error_code:
                raise _refusal(group.error_code, group_id, group.error_message)
            return GroupDescription(
                group_id=group_id,
                type="consumer",
                state=group.group_state,
                assignor=group.assignor_name,
                members=tuple(_consumer_member(member) for member in group.members),
                group_epoch=group.group_epoch,
            )
    raise IncompleteResponseError(f"describing group {group_id}: the answer lacks it")


def read_classic_group(response: DescribeGroupsResponse, group_id: str) -> GroupDescription:
    """The description of a group of the classic protocol. Raises `BrokerError`."""
    for group in response.groups:
        if group.group_id == group_id:
            if group.error_code:
                raise _refusal(group.error_code, group_id, group.error_message)
            if group.group_state == "Dead":  # what brokers before 4.0 say of a group that never was
                raise _refusal(ErrorCode.GROUP_ID_NOT_FOUND, group_id, None)
            consumers = group.protocol_type == PROTOCOL_TYPE
            return GroupDescription(
                group_id=group_id,
                type="classic",
                state=group.group_state,
                assignor=group.protocol_data,
                members=tuple(_classic_member(member, consumers) for member in group.members),
            )
    raise IncompleteResponseError(f"describing group {group_id}: the answer lacks it")


def _refusal(error_code: ErrorCode, group_id: str, message: str | None) -> BrokerError:
    return BrokerError(error_code, f"describing group {group_id}", message or None, "Describe")


def _consumer_member(member: Member) -> GroupMember:
    return GroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=_partitions(member.assignment),
        target=_partitions(member.target_assignment),
        member_epoch=member.member_epoch,
    )


def _partitions(assignment: Assignment) -> tuple[TopicPartition, ...]:
    return _flat((topic.topic_name, topic.partitions) for topic in assignment.topic_partitions)


def _classic_member(member: DescribedGroupMember, consumers: bool) -> GroupMember:
    assignment: tuple[TopicPartition, ...] = ()
    if consumers and member.member_assignment:
        # A member may have a way of its own: the rest of the group is shown nevertheless.
        with contextlib.suppress(ProtocolError):
            told = read_versioned(ConsumerProtocolAssignment, member.member_assignment)
            assignment = _flat((topic.topic, topic.partitions) for topic in told.assigned_partitions)
    return GroupMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=assignment,
    )


def _flat(topics: Iterable[tuple[str, Iterable[int]]]) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(TopicPartition(topic, partition) for topic, partitions in topics for partition in partitions)
    )
