"""ConsumerGroupHeartbeat: membership in a group with server-side assignment (KIP-848)."""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Error, Int32, String, Uuid

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
