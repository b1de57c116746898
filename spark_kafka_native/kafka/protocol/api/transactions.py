"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn: idempotent and transactional
producers (KIP-98, KIP-360, KIP-890).
"""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Boolean, Error, Int16, Int32, Int64, String

LAST_END_TXN_OF_VERSION_1 = 4
"""From version 5 on EndTxn raises the producer's epoch (KIP-890), which must not happen to a transaction that
was written with older versions."""
LAST_TXN_OFFSET_COMMIT_OF_VERSION_1 = 4
"""From version 5 on TxnOffsetCommit adds the group to the transaction by itself (KIP-890)."""


class AddPartitionsToTxnTopic(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[Int32]


class AddPartitionsToTxnPartitionResult(Struct):
    """The outcome of one partition."""

    partition_index: Int32
    partition_error_code: Error


class AddPartitionsToTxnTopicResult(Struct):
    """The partitions of one topic."""

    name: String
    results_by_partition: list[AddPartitionsToTxnPartitionResult]


class AddPartitionsToTxnResponse(Response):
    """One outcome per partition; if one is refused, none is added."""

    throttle_time_ms: Int32 = field(default=0)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult]


class AddPartitionsToTxnRequest(Request[AddPartitionsToTxnResponse], api_key=24, versions=(0, 3), flexible=3):
    """Sent to the transaction coordinator before the first batch to each partition. Later versions are used
    between brokers.
    """

    v3_and_below_transactional_id: String
    v3_and_below_producer_id: Int64
    v3_and_below_producer_epoch: Int16
    v3_and_below_topics: list[AddPartitionsToTxnTopic]


class AddOffsetsToTxnResponse(Response):
    """The outcome: without an error, the group's offsets are part of the transaction."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Error


class AddOffsetsToTxnRequest(Request[AddOffsetsToTxnResponse], api_key=25, versions=(0, 4), flexible=3):
    """Sent to the transaction coordinator before the first TxnOffsetCommit of the group."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


class EndTxnResponse(Response):
    """From version 5 on with the identity of the next transaction; both -1 before, and on an error."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Error
    producer_id: Int64 = field(since=5, ignorable=True, default=-1)
    producer_epoch: Int16 = field(since=5, ignorable=True, default=-1)


class EndTxnRequest(Request[EndTxnResponse], api_key=26, versions=(0, 5), flexible=3):
    """Sent to the transaction coordinator: commit or abort."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Boolean


class TxnOffsetCommitRequestPartition(Struct):
    """``committed_offset`` is the offset of the next record to read."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = field(since=2, ignorable=True, default=-1)
    committed_metadata: String | None


class TxnOffsetCommitRequestTopic(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[TxnOffsetCommitRequestPartition]


class TxnOffsetCommitResponsePartition(Struct):
    """The outcome of one partition."""

    partition_index: Int32
    error_code: Error


class TxnOffsetCommitResponseTopic(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[TxnOffsetCommitResponsePartition]


class TxnOffsetCommitResponse(Response):
    """One outcome per partition."""

    throttle_time_ms: Int32 = field(default=0)
    topics: list[TxnOffsetCommitResponseTopic]


class TxnOffsetCommitRequest(Request[TxnOffsetCommitResponse], api_key=28, versions=(0, 5), flexible=3):
    """Sent to the group's coordinator; the offsets count once the transaction is committed. The member id and
    the generation fence members of an earlier generation (KIP-447).
    """

    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Int32 = field(since=3, default=-1)
    member_id: String = field(since=3, default="")
    group_instance_id: String | None = field(since=3, nullable=3, default=None)
    topics: list[TxnOffsetCommitRequestTopic]


class InitProducerIdResponse(Response):
    """The producer's id and epoch; both -1 on an error."""

    throttle_time_ms: Int32 = field(ignorable=True, default=0)
    error_code: Error
    producer_id: Int64 = field(default=-1)
    producer_epoch: Int16


class InitProducerIdRequest(Request[InitProducerIdResponse], api_key=22, versions=(0, 5), flexible=2):
    """Sent to the transaction coordinator, or to any broker if there is no transactional id.

    Version 6 (two-phase commit, KIP-939) is unstable in Kafka 4.3 and not declared.
    """

    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Int64 = field(since=3, default=-1)
    producer_epoch: Int16 = field(since=3, default=-1)
