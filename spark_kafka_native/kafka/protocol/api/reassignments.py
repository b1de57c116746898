"""AlterPartitionReassignments, ListPartitionReassignments: moving replicas (KIP-455)."""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Boolean, Error, Int32, String


class ReassignablePartitionResponse(Struct):
    """The outcome of one partition."""

    partition_index: Int32
    error_code: Error
    error_message: String | None


class ReassignableTopicResponse(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[ReassignablePartitionResponse]


class AlterPartitionReassignmentsResponse(Response):
    """One outcome per partition."""

    throttle_time_ms: Int32
    allow_replication_factor_change: Boolean = field(since=1, ignorable=True, default=True)
    error_code: Error
    error_message: String | None
    responses: list[ReassignableTopicResponse]


class ReassignablePartition(Struct):
    """The target replicas of a partition; null cancels its reassignment."""

    partition_index: Int32
    replicas: list[Int32] | None = None


class ReassignableTopic(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[ReassignablePartition]


class AlterPartitionReassignmentsRequest(
    Request[AlterPartitionReassignmentsResponse], api_key=45, versions=(0, 1), flexible=0
):
    """Sent to the controller."""

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Boolean = field(since=1, default=True)
    topics: list[ReassignableTopic]


class OngoingPartitionReassignment(Struct):
    """A partition with a reassignment in progress."""

    partition_index: Int32
    replicas: list[Int32]
    adding_replicas: list[Int32]
    removing_replicas: list[Int32]


class OngoingTopicReassignment(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[OngoingPartitionReassignment]


class ListPartitionReassignmentsResponse(Response):
    """The reassignments in progress."""

    throttle_time_ms: Int32
    error_code: Error
    error_message: String | None
    topics: list[OngoingTopicReassignment]


class ListPartitionReassignmentsTopics(Struct):
    """The partitions of one topic."""

    name: String
    partition_indexes: list[Int32]


class ListPartitionReassignmentsRequest(
    Request[ListPartitionReassignmentsResponse], api_key=46, versions=(0, 0), flexible=0
):
    """Sent to the controller; null for all topics."""

    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None
