"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: membership in a group of the classic protocol;
ConsumerGroupHeartbeat: membership in a group with server-side assignment (KIP-848).

The data that members of the classic protocol exchange is inside, as bytes that the coordinator does not read:
see `consumer_protocol`.
"""

from __future__ import annotations

import dataclasses
from typing import Self

from ...error_code import ErrorCode
from ...errors import UnsupportedVersionError
from ..message import Request, Response, Struct, field
from ..wire import Boolean, Bytes, Error, Int32, String, Uuid

_MANY_LEAVE_SINCE = 3  # KIP-345


class JoinGroupRequestProtocol(Struct):
    """An assignor that the member supports, and its data for the group's leader."""

    name: String
    metadata: Bytes


class JoinGroupResponseMember(Struct):
    """A member; only the leader receives the list."""

    member_id: String
    group_instance_id: String | None = field(since=5, nullable=5, ignorable=True, default=None)
    metadata: Bytes


class JoinGroupResponse(Response):
    """The generation that begins. With MEMBER_ID_REQUIRED only ``member_id`` is valid (KIP-394)."""

    throttle_time_ms: Int32 = field(since=2, ignorable=True, default=0)
    error_code: Error
    generation_id: Int32 = -1
    protocol_type: String | None = field(since=7, nullable=7, ignorable=True, default=None)
    protocol_name: String | None = field(nullable=7)
    leader: String
    skip_assignment: Boolean = field(since=9, default=False)
    member_id: String
    members: list[JoinGroupResponseMember]


class JoinGroupRequest(Request[JoinGroupResponse], api_key=11, versions=(0, 9), flexible=6):
    """Sent to the group's coordinator, which answers when all members have joined."""

    group_id: String
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32 = field(since=1, ignorable=True, default=-1)
    member_id: String
    group_instance_id: String | None = field(since=5, nullable=5, default=None)
    protocol_type: String
    protocols: list[JoinGroupRequestProtocol]
    reason: String | None = field(since=8, nullable=8, ignorable=True, default=None)


class SyncGroupResponse(Response):
    """The assignment of this member by the leader."""

    throttle_time_ms: Int32 = field(since=1, ignorable=True, default=0)
    error_code: Error
    protocol_type: String | None = field(since=5, nullable=5, ignorable=True, default=None)
    protocol_name: String | None = field(since=5, nullable=5, ignorable=True, default=None)
    assignment: Bytes


class SyncGroupRequestAssignment(Struct):
    """The assignment of one member."""

    member_id: String
    assignment: Bytes


class SyncGroupRequest(Request[SyncGroupResponse], api_key=14, versions=(0, 5), flexible=4):
    """The leader sends the assignments of all members; the others send none. Sent to the coordinator."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: String | None = field(since=3, nullable=3, default=None)
    protocol_type: String | None = field(since=5, nullable=5, ignorable=True, default=None)
    protocol_name: String | None = field(since=5, nullable=5, ignorable=True, default=None)
    assignments: list[SyncGroupRequestAssignment]


class HeartbeatResponse(Response):
    """REBALANCE_IN_PROGRESS asks the member to join again."""

    throttle_time_ms: Int32 = field(since=1, ignorable=True, default=0)
    error_code: Error


class HeartbeatRequest(Request[HeartbeatResponse], api_key=12, versions=(0, 4), flexible=4):
    """Keeps a member in its group for another session timeout. Sent to the coordinator."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: String | None = field(since=3, nullable=3, default=None)


class MemberResponse(Struct):
    """The outcome of one leaving member."""

    member_id: String
    group_instance_id: String | None = field(nullable=3)
    error_code: Error


class LeaveGroupResponse(Response):
    """Read ``members`` if there are any: in old versions ``error_code`` is the outcome of the only one."""

    throttle_time_ms: Int32 = field(since=1, ignorable=True, default=0)
    error_code: Error = field(default=ErrorCode.NONE)
    members: list[MemberResponse] = field(since=_MANY_LEAVE_SINCE, default_factory=list)


class MemberIdentity(Struct):
    """A member that leaves; an administrator names a static one by its instance id alone."""

    member_id: String
    group_instance_id: String | None = field(nullable=3, default=None)
    reason: String | None = field(since=5, nullable=5, ignorable=True, default=None)


class LeaveGroupRequest(Request[LeaveGroupResponse], api_key=13, versions=(0, 5), flexible=4):
    """Fill ``members``; before version 3 it can hold only one. Sent to the coordinator."""

    group_id: String
    member_id: String = field(until=2, default="")
    members: list[MemberIdentity] = field(since=_MANY_LEAVE_SINCE, default_factory=list)

    def downgraded(self, version: int) -> Self:
        """Move the only member to the fields that old versions have."""
        if version >= _MANY_LEAVE_SINCE or not self.members:
            return self
        if len(self.members) > 1 or self.members[0].group_instance_id is not None:
            raise UnsupportedVersionError(
                f"LeaveGroup v{version} lets one member leave, by its member id: several, and static ones, "
                f"need version {_MANY_LEAVE_SINCE} or later"
            )
        return dataclasses.replace(self, member_id=self.members[0].member_id, members=[])


JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""The ``member_epoch`` with which a static member leaves for a while."""


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: list[Int32]


class Assignment(Struct):
    """The partitions that a member may read now."""

    topic_partitions: list[TopicPartitions]


class ConsumerGroupHeartbeatResponse(Response):
    """The member's epoch, and its assignment if that has changed."""

    throttle_time_ms: Int32
    error_code: Error
    error_message: String | None = field(nullable=0, default=None)
    member_id: String | None = field(nullable=0, default=None)
    member_epoch: Int32
    heartbeat_interval_ms: Int32
    assignment: Assignment | None = field(nullable=0, default=None)


class ConsumerGroupHeartbeatRequest(
    Request[ConsumerGroupHeartbeatResponse], api_key=68, versions=(0, 1), flexible=0
):
    """Joins, stays, acknowledges and leaves. None (or -1) stands for a value that has not changed since the
    last heartbeat. ``topic_partitions`` are the partitions that the member owns. Sent to the group's
    coordinator.
    """

    group_id: String
    member_id: String
    member_epoch: Int32
    instance_id: String | None = field(nullable=0, default=None)
    rack_id: String | None = field(nullable=0, default=None)
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = field(nullable=0, default=None)
    subscribed_topic_regex: String | None = field(since=1, nullable=1, default=None)
    server_assignor: String | None = field(nullable=0, default=None)
    topic_partitions: list[TopicPartitions] | None = field(nullable=0, default=None)
