"""Metadata: brokers, topics, and the leader of each partition; and the new leaders that Fetch and Produce
responses name (KIP-951).
"""

from __future__ import annotations

from ...error_code import ErrorCode
from ..message import Request, Response, Struct, field
from ..wire import ZERO_UUID, Boolean, Error, Int32, String, Uuid

OPERATIONS_UNKNOWN = -(1 << 31)
"""The value of authorized operations that were not requested (KIP-430)."""


class MetadataRequestTopic(Struct):
    """A topic by name, or (from version 12 on) by id with a null name."""

    topic_id: Uuid = field(since=10, ignorable=True, default=ZERO_UUID)
    name: String | None = field(nullable=10)


class MetadataResponseBroker(Struct):
    """A broker, with the address that it advertises for the listener of the request."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = field(since=1, nullable=1, ignorable=True, default=None)


class MetadataResponsePartition(Struct):
    """A partition; ``leader_id`` is -1 while it has no leader."""

    error_code: Error
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = field(since=7, ignorable=True, default=-1)
    replica_nodes: list[Int32]
    isr_nodes: list[Int32]
    offline_replicas: list[Int32] = field(since=5, ignorable=True, default_factory=list)


class MetadataResponseTopic(Struct):
    """A topic; ``topic_id`` is zero before version 10 and on clusters without topic ids."""

    error_code: Error
    name: String | None = field(nullable=12)
    topic_id: Uuid = field(since=10, ignorable=True, default=ZERO_UUID)
    is_internal: Boolean = field(since=1, ignorable=True, default=False)
    partitions: list[MetadataResponsePartition]
    topic_authorized_operations: Int32 = field(since=8, default=OPERATIONS_UNKNOWN)


class MetadataResponse(Response):
    """The cluster as one broker sees it."""

    throttle_time_ms: Int32 = field(since=3, ignorable=True, default=0)
    brokers: list[MetadataResponseBroker]
    cluster_id: String | None = field(since=2, nullable=2, ignorable=True, default=None)
    controller_id: Int32 = field(since=1, ignorable=True, default=-1)
    topics: list[MetadataResponseTopic]
    cluster_authorized_operations: Int32 = field(since=8, until=10, default=OPERATIONS_UNKNOWN)
    error_code: Error = field(since=13, ignorable=True, default=ErrorCode.NONE)


class MetadataRequest(Request[MetadataResponse], api_key=3, versions=(1, 13), flexible=9):
    """The topics to describe: null for all, an empty list for none (brokers only)."""

    polled = True
    topics: list[MetadataRequestTopic] | None = field(nullable=1)
    allow_auto_topic_creation: Boolean = field(since=4, default=True)
    include_cluster_authorized_operations: Boolean = field(since=8, until=10, default=False)
    include_topic_authorized_operations: Boolean = field(since=8, default=False)


class LeaderIdAndEpoch(Struct):
    """The leader of a partition after it moved; -1 if the broker does not know it."""

    leader_id: Int32 = field(default=-1)
    leader_epoch: Int32 = field(default=-1)


class NodeEndpoint(Struct):
    """The address of a broker named in a `LeaderIdAndEpoch`."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = None
