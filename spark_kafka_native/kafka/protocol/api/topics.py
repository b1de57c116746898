"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords: changes to topics.

All but DeleteRecords, which leaders answer, go to any broker.
"""

from __future__ import annotations

import dataclasses
from typing import Self

from ...error_code import ErrorCode
from ...errors import UnsupportedVersionError
from ..message import Request, Response, Struct, field
from ..wire import ZERO_UUID, Boolean, Error, Int8, Int16, Int32, Int64, String, Uuid

DEFAULT_COUNT = -1
"""For ``num_partitions`` and ``replication_factor``: the broker's default (version 4 and later, KIP-464)."""

_BY_STATE_SINCE = 6  # KIP-516


class CreatableReplicaAssignment(Struct):
    """The brokers that hold one partition."""

    partition_index: Int32
    broker_ids: list[Int32]


class CreatableTopicConfig(Struct):
    """A configuration of the new topic."""

    name: String
    value: String | None


class CreatableTopic(Struct):
    """A topic to create; with ``assignments``, both counts must be -1."""

    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: list[CreatableReplicaAssignment] = field(default_factory=list)
    configs: list[CreatableTopicConfig] = field(default_factory=list)


class CreatableTopicConfigs(Struct):
    """A configuration of the created topic."""

    name: String
    value: String | None
    read_only: Boolean
    config_source: Int8 = field(ignorable=True, default=-1)
    is_sensitive: Boolean


class CreatableTopicResult(Struct):
    """The outcome of one topic."""

    name: String
    topic_id: Uuid = field(since=7, ignorable=True, default=ZERO_UUID)
    error_code: Error
    error_message: String | None = field(since=1, ignorable=True)
    topic_config_error_code: Error = field(since=5, tag=0, ignorable=True, default=ErrorCode.NONE)
    num_partitions: Int32 = field(since=5, ignorable=True, default=-1)
    replication_factor: Int16 = field(since=5, ignorable=True, default=-1)
    configs: list[CreatableTopicConfigs] | None = field(
        since=5, nullable=5, ignorable=True, default_factory=list
    )


class CreateTopicsResponse(Response):
    """One outcome per topic."""

    throttle_time_ms: Int32 = field(since=2, ignorable=True, default=0)
    topics: list[CreatableTopicResult]


class CreateTopicsRequest(Request[CreateTopicsResponse], api_key=19, versions=(2, 7), flexible=5):
    """Topics to create within ``timeout_ms``; with ``validate_only`` nothing is changed."""

    topics: list[CreatableTopic]
    timeout_ms: Int32 = field(default=60_000)
    validate_only: Boolean = field(since=1, default=False)


class DeleteTopicState(Struct):
    """A topic by name, or by id with a null name."""

    name: String | None = None
    topic_id: Uuid = field(default=ZERO_UUID)


class DeletableTopicResult(Struct):
    """The outcome of one topic."""

    name: String | None = field(nullable=6)
    topic_id: Uuid = field(since=6, ignorable=True, default=ZERO_UUID)
    error_code: Error
    error_message: String | None = field(since=5, nullable=5, ignorable=True, default=None)


class DeleteTopicsResponse(Response):
    """One outcome per topic."""

    throttle_time_ms: Int32 = field(since=1, ignorable=True, default=0)
    responses: list[DeletableTopicResult]


class DeleteTopicsRequest(Request[DeleteTopicsResponse], api_key=20, versions=(1, 6), flexible=4):
    """Fill ``topics``; before version 6 topics are sent by name."""

    topics: list[DeleteTopicState] = field(since=_BY_STATE_SINCE, default_factory=list)
    topic_names: list[String] = field(until=5, ignorable=True, default_factory=list)
    timeout_ms: Int32

    def downgraded(self, version: int) -> Self:
        """Move the names to the field that old versions have."""
        if version >= _BY_STATE_SINCE or not self.topics:
            return self
        names = [topic.name for topic in self.topics if topic.name is not None]
        if len(names) < len(self.topics):
            raise UnsupportedVersionError(
                f"DeleteTopics v{version} knows no topic ids: it needs version {_BY_STATE_SINCE} or later"
            )
        return dataclasses.replace(self, topics=[], topic_names=[*self.topic_names, *names])


class CreatePartitionsAssignment(Struct):
    """The brokers that hold one new partition."""

    broker_ids: list[Int32]


class CreatePartitionsTopic(Struct):
    """``count`` is the total number of partitions afterwards."""

    name: String
    count: Int32
    assignments: list[CreatePartitionsAssignment] | None


class CreatePartitionsTopicResult(Struct):
    """The outcome of one topic."""

    name: String
    error_code: Error
    error_message: String | None = None


class CreatePartitionsResponse(Response):
    """One outcome per topic."""

    throttle_time_ms: Int32
    results: list[CreatePartitionsTopicResult]


class CreatePartitionsRequest(Request[CreatePartitionsResponse], api_key=37, versions=(0, 3), flexible=2):
    """Topics that get more partitions."""

    topics: list[CreatePartitionsTopic]
    timeout_ms: Int32
    validate_only: Boolean = False


class DeleteRecordsPartition(Struct):
    """Records before ``offset`` are deleted; -1 means the high watermark."""

    partition_index: Int32
    offset: Int64


class DeleteRecordsTopic(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[DeleteRecordsPartition]


class DeleteRecordsPartitionResult(Struct):
    """``low_watermark`` is the partition's first offset afterwards."""

    partition_index: Int32
    low_watermark: Int64
    error_code: Error


class DeleteRecordsTopicResult(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[DeleteRecordsPartitionResult]


class DeleteRecordsResponse(Response):
    """One outcome per partition."""

    throttle_time_ms: Int32
    topics: list[DeleteRecordsTopicResult]


class DeleteRecordsRequest(Request[DeleteRecordsResponse], api_key=21, versions=(0, 2), flexible=2):
    """Sent to the leader of all its partitions."""

    topics: list[DeleteRecordsTopic]
    timeout_ms: Int32
