"""ListOffsets: the offset of a timestamp, or of an end of a partition."""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Error, Int8, Int32, Int64, String

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
"""The record with the highest timestamp: version 7 and later (KIP-734)."""


class ListOffsetsPartition(Struct):
    """``timestamp`` in milliseconds since the epoch, or one of the constants above."""

    partition_index: Int32
    current_leader_epoch: Int32 = field(since=4, ignorable=True, default=-1)
    timestamp: Int64


class ListOffsetsTopic(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[ListOffsetsPartition]


class ListOffsetsPartitionResponse(Struct):
    """``offset`` and ``timestamp`` are -1 if no record matches."""

    partition_index: Int32
    error_code: Error
    timestamp: Int64 = field(since=1, default=-1)
    offset: Int64 = field(since=1, default=-1)
    leader_epoch: Int32 = field(since=4, default=-1)


class ListOffsetsTopicResponse(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[ListOffsetsPartitionResponse]


class ListOffsetsResponse(Response):
    """One offset per partition."""

    throttle_time_ms: Int32 = field(since=2, ignorable=True, default=0)
    topics: list[ListOffsetsTopicResponse]


class ListOffsetsRequest(Request[ListOffsetsResponse], api_key=2, versions=(1, 11), flexible=6):
    """Sent to the leader of all its partitions. ``replica_id`` of a client is -1."""

    polled = True
    replica_id: Int32
    isolation_level: Int8 = field(since=2, default=0)
    topics: list[ListOffsetsTopic]
    timeout_ms: Int32 = field(since=10, ignorable=True, default=0)
