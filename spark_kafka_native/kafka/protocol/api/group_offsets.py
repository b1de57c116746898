"""OffsetCommit, OffsetFetch: the offsets up to which groups have read; many groups at once from OffsetFetch 8
on (KIP-709).

Version 10 of both names topics by id only (KIP-848) and is not declared: a committed offset is looked up by
topic name.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from ...error_code import ErrorCode
from ...errors import UnsupportedVersionError
from ..message import Request, Response, Struct, field
from ..wire import Boolean, Error, Int32, Int64, String


class OffsetCommitRequestPartition(Struct):
    """``committed_offset`` is the offset of the next record to read."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = field(since=6, ignorable=True, default=-1)
    committed_metadata: String | None


class OffsetCommitRequestTopic(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[OffsetCommitRequestPartition]


class OffsetCommitResponsePartition(Struct):
    """The outcome of one partition."""

    partition_index: Int32
    error_code: Error


class OffsetCommitResponseTopic(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[OffsetCommitResponsePartition]


class OffsetCommitResponse(Response):
    """One outcome per partition."""

    throttle_time_ms: Int32 = field(since=3, ignorable=True, default=0)
    topics: list[OffsetCommitResponseTopic]


class OffsetCommitRequest(Request[OffsetCommitResponse], api_key=8, versions=(2, 9), flexible=8):
    """Sent to the group's coordinator; a caller that is no member sends epoch -1 and an empty member id."""

    group_id: String
    generation_id_or_member_epoch: Int32 = field(since=1, ignorable=True, default=-1)
    member_id: String = field(since=1, ignorable=True, default="")
    group_instance_id: String | None = field(since=7, nullable=7, default=None)
    retention_time_ms: Int64 = field(since=2, until=4, ignorable=True, default=-1)
    topics: list[OffsetCommitRequestTopic]


NO_OFFSET = -1
"""The ``committed_offset`` of a partition for which the group has committed none."""

_GROUPS_SINCE = 8


class OffsetFetchRequestTopic(Struct):
    """The partitions of one topic, to version 7."""

    name: String
    partition_indexes: list[Int32]


class OffsetFetchRequestTopics(Struct):
    """The partitions of one topic, from version 8 on."""

    name: String
    partition_indexes: list[Int32]


class OffsetFetchRequestGroup(Struct):
    """A group; ``topics`` null for all its committed offsets."""

    group_id: String
    member_id: String | None = field(since=9, nullable=9, ignorable=True, default=None)
    member_epoch: Int32 = field(since=9, ignorable=True, default=-1)
    topics: list[OffsetFetchRequestTopics] | None


class OffsetFetchResponsePartition(Struct):
    """One committed offset, to version 7."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = field(since=5, ignorable=True, default=-1)
    metadata: String | None
    error_code: Error


class OffsetFetchResponseTopic(Struct):
    """The partitions of one topic, to version 7."""

    name: String
    partitions: list[OffsetFetchResponsePartition]


class OffsetFetchResponsePartitions(Struct):
    """One committed offset, from version 8 on."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = field(ignorable=True, default=-1)
    metadata: String | None
    error_code: Error


class OffsetFetchResponseTopics(Struct):
    """The partitions of one topic, from version 8 on."""

    name: String
    partitions: list[OffsetFetchResponsePartitions]


class OffsetFetchResponseGroup(Struct):
    """The committed offsets of one group."""

    group_id: String
    topics: list[OffsetFetchResponseTopics]
    error_code: Error = field(default=ErrorCode.NONE)


class OffsetFetchResponse(Response):
    """Read ``groups``: through `upgraded` it is filled at every version."""

    throttle_time_ms: Int32 = field(since=3, ignorable=True, default=0)
    topics: list[OffsetFetchResponseTopic] = field(until=7, default_factory=list)
    error_code: Error = field(since=2, until=7, ignorable=True, default=ErrorCode.NONE)
    groups: list[OffsetFetchResponseGroup] = field(since=_GROUPS_SINCE, default_factory=list)

    def upgraded(self, version: int, request: Any) -> Self:
        """Return the response of an old version as a list of one group."""
        if version >= _GROUPS_SINCE:
            return self
        topics = [
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in self.topics
        ]
        group_id = request.groups[0].group_id if request.groups else request.group_id
        group = OffsetFetchResponseGroup(group_id=group_id, topics=topics, error_code=self.error_code)
        return dataclasses.replace(self, topics=[], groups=[group])


class OffsetFetchRequest(Request[OffsetFetchResponse], api_key=9, versions=(1, 9), flexible=6):
    """Fill ``groups``; before version 8 it can hold only one. Sent to the groups' coordinator."""

    group_id: String = field(until=7, default="")
    topics: list[OffsetFetchRequestTopic] | None = field(until=7, nullable=2, default_factory=list)
    groups: list[OffsetFetchRequestGroup] = field(since=_GROUPS_SINCE, default_factory=list)
    require_stable: Boolean = field(since=7, default=False)

    def downgraded(self, version: int) -> Self:
        """Move the only group to the fields that old versions have."""
        if version >= _GROUPS_SINCE or not self.groups:
            return self
        if len(self.groups) > 1:
            raise UnsupportedVersionError(
                f"OffsetFetch v{version} asks for one group at a time, not {len(self.groups)}: "
                f"it needs version {_GROUPS_SINCE} or later, or one request for each group"
            )
        group = self.groups[0]
        topics = None
        if group.topics is not None:
            topics = [
                OffsetFetchRequestTopic(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in group.topics
            ]
        return dataclasses.replace(self, group_id=group.group_id, topics=topics, groups=[])
