"""ElectLeaders: preferred leaders, or unclean ones from replicas that are not in sync (KIP-460)."""

from __future__ import annotations

from ...error_code import ErrorCode
from ..message import Request, Response, Struct, field
from ..wire import Error, Int8, Int32, String


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
