"""OffsetForLeaderEpoch: where the log of a leader epoch ends, to see whether a log was cut back (KIP-320)."""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Error, Int32, Int64, String


class OffsetForLeaderPartition(Struct):
    """The epoch that is asked about, and the one that we believe the leader to have."""

    partition: Int32
    current_leader_epoch: Int32 = field(since=2, ignorable=True, default=-1)
    leader_epoch: Int32


class OffsetForLeaderTopic(Struct):
    """The partitions of one topic."""

    topic: String
    partitions: list[OffsetForLeaderPartition]


class EpochEndOffset(Struct):
    """The highest epoch up to the one asked about, and the offset before which it ends; -1: none is known."""

    error_code: Error
    partition: Int32
    leader_epoch: Int32 = field(since=1, ignorable=True, default=-1)
    end_offset: Int64 = field(default=-1)


class OffsetForLeaderTopicResult(Struct):
    """The partitions of one topic."""

    topic: String
    partitions: list[EpochEndOffset]


class OffsetForLeaderEpochResponse(Response):
    """In no particular order."""

    throttle_time_ms: Int32 = field(since=2, ignorable=True, default=0)
    topics: list[OffsetForLeaderTopicResult]


class OffsetForLeaderEpochRequest(
    Request[OffsetForLeaderEpochResponse], api_key=23, versions=(2, 4), flexible=4
):
    """Goes to the leader of every partition in it. A consumer's ``replica_id`` is -1."""

    replica_id: Int32 = field(since=3, ignorable=True, default=-2)
    topics: list[OffsetForLeaderTopic]
