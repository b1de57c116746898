"""ListGroups, DescribeGroups, ConsumerGroupDescribe, DeleteGroups, OffsetDelete: administering groups.

ListGroups is sent to every broker, because each lists the groups that it coordinates; the others are sent to
the coordinator. ConsumerGroupDescribe is for groups of the consumer protocol (KIP-848), DescribeGroups for
all others.
"""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Boolean, Bytes, Error, Int8, Int32, String, Uuid
from .metadata import OPERATIONS_UNKNOWN


class ListedGroup(Struct):
    """A group that the broker coordinates."""

    group_id: String
    protocol_type: String
    group_state: String = field(since=4, ignorable=True, default="")
    group_type: String = field(since=5, ignorable=True, default="")


class ListGroupsResponse(Response):
    """The groups of one broker."""

    throttle_time_ms: Int32 = field(since=1, ignorable=True, default=0)
    error_code: Error
    groups: list[ListedGroup]


class ListGroupsRequest(Request[ListGroupsResponse], api_key=16, versions=(0, 5), flexible=3):
    """Empty filters match all groups. States since version 4 (KIP-518), types since version 5 (KIP-848)."""

    states_filter: list[String] = field(since=4, default_factory=list)
    types_filter: list[String] = field(since=5, default_factory=list)


class DescribedGroupMember(Struct):
    """A member; its subscription and its assignment are bytes of the members' own protocol."""

    member_id: String
    group_instance_id: String | None = field(since=4, nullable=4, ignorable=True, default=None)
    client_id: String
    client_host: String
    member_metadata: Bytes
    member_assignment: Bytes


class DescribedGroup(Struct):
    """A group of the classic protocol. A group that does not exist is Dead (from version 6 on, an error)."""

    error_code: Error
    error_message: String | None = field(since=6, nullable=6, default=None)
    group_id: String
    group_state: String
    protocol_type: String
    protocol_data: String
    members: list[DescribedGroupMember]
    authorized_operations: Int32 = field(since=3, default=OPERATIONS_UNKNOWN)


class DescribeGroupsResponse(Response):
    """One description per group."""

    throttle_time_ms: Int32 = field(since=1, ignorable=True, default=0)
    groups: list[DescribedGroup]


class DescribeGroupsRequest(Request[DescribeGroupsResponse], api_key=15, versions=(0, 6), flexible=5):
    """Sent to the groups' coordinator."""

    groups: list[String]
    include_authorized_operations: Boolean = field(since=3, default=False)


class DeletableGroupResult(Struct):
    """The outcome of one group."""

    group_id: String
    error_code: Error


class DeleteGroupsResponse(Response):
    """One outcome per group."""

    throttle_time_ms: Int32
    results: list[DeletableGroupResult]


class DeleteGroupsRequest(Request[DeleteGroupsResponse], api_key=42, versions=(0, 2), flexible=2):
    """Groups without members. Sent to their coordinator."""

    groups_names: list[String]


class OffsetDeleteResponsePartition(Struct):
    """The outcome of one partition."""

    partition_index: Int32
    error_code: Error


class OffsetDeleteResponseTopic(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[OffsetDeleteResponsePartition]


class OffsetDeleteResponse(Response):
    """One outcome per partition."""

    error_code: Error
    throttle_time_ms: Int32
    topics: list[OffsetDeleteResponseTopic]


class OffsetDeleteRequestPartition(Struct):
    """A partition; its committed offset is deleted."""

    partition_index: Int32


class OffsetDeleteRequestTopic(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[OffsetDeleteRequestPartition]


class OffsetDeleteRequest(Request[OffsetDeleteResponse], api_key=47, versions=(0, 0)):
    """Committed offsets to delete, of topics that no member reads."""

    group_id: String
    topics: list[OffsetDeleteRequestTopic]


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
