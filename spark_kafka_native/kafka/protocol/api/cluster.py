"""DescribeCluster, ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, DescribeLogDirs:
brokers and the replicas on them.
"""

from __future__ import annotations

from ...error_code import ErrorCode
from ..message import Request, Response, Struct, field
from ..wire import Boolean, Error, Int8, Int32, Int64, String
from .metadata import OPERATIONS_UNKNOWN

BROKER_ENDPOINT = 1
CONTROLLER_ENDPOINT = 2


class DescribeClusterBroker(Struct):
    """A broker, with the address that it advertises for the listener of the request."""

    broker_id: Int32
    host: String
    port: Int32
    rack: String | None = None
    is_fenced: Boolean = field(since=2, default=False)


class DescribeClusterResponse(Response):
    """The cluster's brokers."""

    throttle_time_ms: Int32
    error_code: Error
    error_message: String | None = None
    endpoint_type: Int8 = field(since=1, default=BROKER_ENDPOINT)
    cluster_id: String
    controller_id: Int32 = field(default=-1)
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: Int32 = field(default=OPERATIONS_UNKNOWN)


class DescribeClusterRequest(Request[DescribeClusterResponse], api_key=60, versions=(0, 2), flexible=0):
    """Sent to any broker."""

    include_cluster_authorized_operations: Boolean = False
    endpoint_type: Int8 = field(since=1, default=BROKER_ENDPOINT)
    include_fenced_brokers: Boolean = field(since=2, default=False)


class PartitionResult(Struct):
    """The outcome of one partition."""

    partition_id: Int32
    error_code: Error
    error_message: String | None


class ReplicaElectionResult(Struct):
    """The partitions of one topic."""

    topic: String
    partition_result: list[PartitionResult]


class ElectLeadersResponse(Response):
    """One outcome per partition."""

    throttle_time_ms: Int32
    error_code: Error = field(since=1, default=ErrorCode.NONE)
    replica_election_results: list[ReplicaElectionResult]


class ElectionTopic(Struct, spec_name="TopicPartitions"):
    """The partitions of one topic."""

    topic: String
    partitions: list[Int32]


class ElectLeadersRequest(Request[ElectLeadersResponse], api_key=43, versions=(0, 2), flexible=2):
    """Sent to the controller. ``election_type`` 0: preferred, 1: unclean. Null for all partitions."""

    election_type: Int8 = field(since=1, default=0)
    topic_partitions: list[ElectionTopic] | None
    timeout_ms: Int32 = 60000


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


class DescribeLogDirsPartition(Struct):
    """A replica: its size in bytes and its lag."""

    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: Boolean


class DescribeLogDirsTopic(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[DescribeLogDirsPartition]


class DescribeLogDirsResult(Struct):
    """One directory."""

    error_code: Error
    log_dir: String
    topics: list[DescribeLogDirsTopic]
    total_bytes: Int64 = field(since=4, ignorable=True, default=-1)
    usable_bytes: Int64 = field(since=4, ignorable=True, default=-1)
    is_cordoned: Boolean = field(since=5, ignorable=True, default=False)


class DescribeLogDirsResponse(Response):
    """The directories of one broker."""

    throttle_time_ms: Int32
    error_code: Error = field(since=3, ignorable=True, default=ErrorCode.NONE)
    results: list[DescribeLogDirsResult]


class DescribableLogDirTopic(Struct):
    """The partitions of one topic."""

    topic: String
    partitions: list[Int32]


class DescribeLogDirsRequest(Request[DescribeLogDirsResponse], api_key=35, versions=(1, 5), flexible=2):
    """Sent to each broker to describe; null for all topics."""

    topics: list[DescribableLogDirTopic] | None
