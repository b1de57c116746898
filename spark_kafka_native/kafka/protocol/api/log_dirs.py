"""DescribeLogDirs: the log directories of brokers and the replicas in them (KIP-113)."""

from __future__ import annotations

from ...error_code import ErrorCode
from ..message import Request, Response, Struct, field
from ..wire import Boolean, Error, Int32, Int64, String


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
