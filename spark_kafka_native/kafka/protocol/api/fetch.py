"""Fetch: record sets of many partitions of one broker; topics by id from version 13 on (KIP-516)."""

from __future__ import annotations

from ...error_code import ErrorCode
from ..message import Request, Response, Struct, field
from ..wire import ZERO_UUID, Error, Int8, Int32, Int64, Records, String, Uuid
from .metadata import LeaderIdAndEpoch, NodeEndpoint

NO_SESSION_EPOCH = -1
"""A full fetch outside any fetch session (KIP-227)."""
NEW_SESSION_EPOCH = 0
"""A full fetch that asks for a new fetch session (KIP-227)."""


class ReplicaState(Struct):
    """The replica that fetches, if it is a broker; clients do not set it."""

    replica_id: Int32 = field(default=-1)
    replica_epoch: Int64 = field(default=-1)


class FetchPartition(Struct):
    """The start in one partition, and the maximum number of bytes (but at least one batch)."""

    partition: Int32
    current_leader_epoch: Int32 = field(since=9, ignorable=True, default=-1)
    fetch_offset: Int64
    last_fetched_epoch: Int32 = field(since=12, default=-1)
    log_start_offset: Int64 = field(since=5, ignorable=True, default=-1)
    partition_max_bytes: Int32
    replica_directory_id: Uuid = field(since=17, tag=0, ignorable=True, default=ZERO_UUID)
    high_watermark: Int64 = field(since=18, tag=1, ignorable=True, default=(1 << 63) - 1)


class FetchTopic(Struct):
    """The partitions of one topic. Set name *and* id: each version sends the one that it knows."""

    topic: String = field(until=12, ignorable=True, default="")
    topic_id: Uuid = field(since=13, ignorable=True, default=ZERO_UUID)
    partitions: list[FetchPartition]


class ForgottenTopic(Struct):
    """Partitions to remove from the fetch session."""

    topic: String = field(until=12, ignorable=True, default="")
    topic_id: Uuid = field(since=13, ignorable=True, default=ZERO_UUID)
    partitions: list[Int32]


class DivergingEpoch(Struct, spec_name="EpochEndOffset"):
    """The end of an epoch in the log; only followers ask for it."""

    epoch: Int32 = field(default=-1)
    end_offset: Int64 = field(default=-1)


class SnapshotId(Struct):
    """A snapshot to fetch first; only controllers send it."""

    end_offset: Int64 = field(default=-1)
    epoch: Int32 = field(default=-1)


class FetchedAbortedTransaction(Struct, spec_name="AbortedTransaction"):
    """The records of ``producer_id`` from ``first_offset`` to its next abort marker must not be shown."""

    producer_id: Int64
    first_offset: Int64


class PartitionData(Struct):
    """The outcome of one partition. ``records`` is a view of the frame, and may end inside a batch."""

    partition_index: Int32
    error_code: Error
    high_watermark: Int64
    last_stable_offset: Int64 = field(since=4, ignorable=True, default=-1)
    log_start_offset: Int64 = field(since=5, ignorable=True, default=-1)
    diverging_epoch: DivergingEpoch = field(since=12, tag=0, default=DivergingEpoch())
    current_leader: LeaderIdAndEpoch = field(since=12, tag=1, default=LeaderIdAndEpoch())
    snapshot_id: SnapshotId = field(since=12, tag=2, default=SnapshotId())
    aborted_transactions: list[FetchedAbortedTransaction] | None = field(nullable=4, ignorable=True)
    preferred_read_replica: Int32 = field(since=11, default=-1)
    records: Records | None


class FetchableTopicResponse(Struct):
    """The partitions of one topic: by name to version 12, by id after."""

    topic: String = field(until=12, ignorable=True, default="")
    topic_id: Uuid = field(since=13, ignorable=True, default=ZERO_UUID)
    partitions: list[PartitionData]


class FetchResponse(Response):
    """The record sets, and the fetch session they belong to (0: none)."""

    throttle_time_ms: Int32 = field(since=1, ignorable=True, default=0)
    error_code: Error = field(since=7, ignorable=True, default=ErrorCode.NONE)
    session_id: Int32 = field(since=7, default=0)
    responses: list[FetchableTopicResponse]
    node_endpoints: list[NodeEndpoint] = field(since=16, tag=0, default_factory=list)


class FetchRequest(Request[FetchResponse], api_key=1, versions=(4, 18), flexible=12):
    """Sent to the leader (or, with ``rack_id``, a follower) of all its partitions."""

    cluster_id: String | None = field(since=12, tag=0, nullable=12, ignorable=True, default=None)
    replica_id: Int32 = field(until=14, default=-1)
    replica_state: ReplicaState = field(since=15, tag=1, default=ReplicaState())
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = field(since=3, ignorable=True, default=0x7FFF_FFFF)
    isolation_level: Int8 = field(since=4, ignorable=True, default=0)
    session_id: Int32 = field(since=7, ignorable=True, default=0)
    session_epoch: Int32 = field(since=7, ignorable=True, default=NO_SESSION_EPOCH)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic] = field(since=7, default_factory=list)
    rack_id: String = field(since=11, ignorable=True, default="")
