"""ConsumerGroupDescribe: groups of the consumer protocol (KIP-848) and their members."""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Boolean, Error, Int8, Int32, String, Uuid
from .metadata import OPERATIONS_UNKNOWN


class ConsumerGroupTopicPartitions(Struct, spec_name="TopicPartitions"):
    """The partitions of one topic."""

    topic_id: Uuid
    topic_name: String
    partitions: list[Int32]


class ConsumerGroupAssignment(Struct, spec_name="Assignment"):
    """The current or the target assignment of a member."""

    topic_partitions: list[ConsumerGroupTopicPartitions]


class ConsumerGroupMember(Struct, spec_name="Member"):
    """A member of the group."""

    member_id: String
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]
    subscribed_topic_regex: String | None = None
    assignment: ConsumerGroupAssignment
    target_assignment: ConsumerGroupAssignment
    member_type: Int8 = field(since=1, ignorable=True, default=-1)


class DescribedConsumerGroup(Struct, spec_name="DescribedGroup"):
    """One group."""

    error_code: Error
    error_message: String | None = None
    group_id: String
    group_state: String
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: String
    members: list[ConsumerGroupMember]
    authorized_operations: Int32 = OPERATIONS_UNKNOWN


class ConsumerGroupDescribeResponse(Response):
    """One description per group."""

    throttle_time_ms: Int32
    groups: list[DescribedConsumerGroup]


class ConsumerGroupDescribeRequest(
    Request[ConsumerGroupDescribeResponse], api_key=69, versions=(0, 1), flexible=0
):
    """Sent to the groups' coordinator; a group of the classic protocol is GROUP_ID_NOT_FOUND."""

    group_ids: list[String]
    include_authorized_operations: Boolean
