"""OffsetForLeaderEpoch: the end offset of a leader epoch, which shows if the log was truncated (KIP-320)."""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Error, Int32, Int64, String


class OffsetForLeaderPartition(Struct):
    """The epoch in question, and the current epoch of the leader as known to the client."""

    partition: Int32
    current_leader_epoch: Int32 = field(since=2, ignorable=True, default=-1)
    leader_epoch: Int32


class OffsetForLeaderTopic(Struct):
    """The partitions of one topic."""

    topic: String
    partitions: list[OffsetForLeaderPartition]


class EpochEndOffset(Struct):
    """The highest epoch up to the one in question, and its end offset (exclusive); -1: none is known."""

    error_code: Error
    partition: Int32
    leader_epoch: Int32 = field(since=1, ignorable=True, default=-1)
    end_offset: Int64 = field(default=-1)


class OffsetForLeaderTopicResult(Struct):
    """The partitions of one topic."""

    topic: String
    partitions: list[EpochEndOffset]


class OffsetForLeaderEpochResponse(Response):
    """One end offset per partition, in any order."""

    throttle_time_ms: Int32 = field(since=2, ignorable=True, default=0)
    topics: list[OffsetForLeaderTopicResult]


class OffsetForLeaderEpochRequest(
    Request[OffsetForLeaderEpochResponse], api_key=23, versions=(2, 4), flexible=4
):
    """Sent to the leader of all its partitions. A consumer's ``replica_id`` is -1."""

    replica_id: Int32 = field(since=3, ignorable=True, default=-2)
    topics: list[OffsetForLeaderTopic]
