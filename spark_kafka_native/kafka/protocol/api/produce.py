"""Produce: record batches to the leaders of their partitions; topics by id from version 13 on (KIP-516)."""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import ZERO_UUID, Error, Int16, Int32, Int64, Records, String, Uuid
from .metadata import LeaderIdAndEpoch, NodeEndpoint


class PartitionProduceData(Struct):
    """One record batch for one partition; ``records`` is sent without being copied."""

    index: Int32
    records: Records | None


class TopicProduceData(Struct):
    """The partitions of one topic. Set name *and* id: each version sends the one that it knows."""

    name: String = field(until=12, ignorable=True, default="")
    topic_id: Uuid = field(since=13, ignorable=True, default=ZERO_UUID)
    partition_data: list[PartitionProduceData]


class BatchIndexAndErrorMessage(Struct):
    """A record of the batch that was refused (KIP-467)."""

    batch_index: Int32
    batch_index_error_message: String | None = None


class PartitionProduceResponse(Struct):
    """The outcome of one batch: ``base_offset`` is the offset of its first record, -1 on an error."""

    index: Int32
    error_code: Error
    base_offset: Int64
    log_append_time_ms: Int64 = field(since=2, ignorable=True, default=-1)
    log_start_offset: Int64 = field(since=5, ignorable=True, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = field(since=8, ignorable=True, default_factory=list)
    error_message: String | None = field(since=8, nullable=8, ignorable=True, default=None)
    current_leader: LeaderIdAndEpoch = field(since=10, tag=0, default=LeaderIdAndEpoch())


class TopicProduceResponse(Struct):
    """The partitions of one topic: by name to version 12, by id after."""

    name: String = field(until=12, ignorable=True, default="")
    topic_id: Uuid = field(since=13, ignorable=True, default=ZERO_UUID)
    partition_responses: list[PartitionProduceResponse]


class ProduceResponse(Response):
    """One outcome per partition."""

    responses: list[TopicProduceResponse]
    throttle_time_ms: Int32 = field(since=1, ignorable=True, default=0)
    node_endpoints: list[NodeEndpoint] = field(since=10, tag=0, default_factory=list)


class ProduceRequest(Request[ProduceResponse], api_key=0, versions=(3, 13), flexible=9):
    """``acks`` is 0, 1 or -1; with 0 the broker does not answer."""

    transactional_id: String | None = field(since=3, nullable=3, default=None)
    acks: Int16
    timeout_ms: Int32
    topic_data: list[TopicProduceData]

    @property
    def answered(self) -> bool:
        """True unless ``acks`` is 0."""
        return self.acks != 0
