"""ConsumerGroupHeartbeat: being a member of a group whose coordinator assigns (KIP-848)."""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Error, Int32, String, Uuid

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""A static member leaves and means to come back."""


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: list[Int32]


class Assignment(Struct):
    """What a member may read at once."""

    topic_partitions: list[TopicPartitions]


class ConsumerGroupHeartbeatResponse(Response):
    """The member's epoch, and its assignment where it has changed."""

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
    """Joins, stays, acknowledges and leaves. None (or -1) stands for what has not changed since the last one.

    ``topic_partitions`` are those that the member owns. Goes to the group's coordinator.
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
