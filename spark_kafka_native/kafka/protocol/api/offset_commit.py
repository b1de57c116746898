"""OffsetCommit: stores the offsets up to which a group has read.

Version 10 names topics by id only (KIP-848) and is not declared, as for OffsetFetch.
"""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Error, Int32, Int64, String


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
