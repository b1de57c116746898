"""DescribeTransactions, DescribeProducers: transactions as known to coordinators and leaders (KIP-664)."""

from __future__ import annotations

from ..message import Request, Response, Struct
from ..wire import Error, Int16, Int32, Int64, String


class TopicData(Struct):
    """The partitions of one topic."""

    topic: String
    partitions: list[Int32]


class TransactionState(Struct):
    """The transaction of one transactional id; its times are in milliseconds."""

    error_code: Error
    transactional_id: String
    transaction_state: String
    transaction_timeout_ms: Int32
    transaction_start_time_ms: Int64
    producer_id: Int64
    producer_epoch: Int16
    topics: list[TopicData]


class DescribeTransactionsResponse(Response):
    """One state per transactional id."""

    throttle_time_ms: Int32
    transaction_states: list[TransactionState]


class DescribeTransactionsRequest(
    Request[DescribeTransactionsResponse], api_key=65, versions=(0, 0), flexible=0
):
    """Sent to the coordinator of the transactional ids."""

    transactional_ids: list[String]


class ProducerState(Struct):
    """A producer that has written to a partition, and the start of its open transaction, if any."""

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1


class PartitionResponse(Struct):
    """The producers of one partition."""

    partition_index: Int32
    error_code: Error
    error_message: String | None = None
    active_producers: list[ProducerState]


class TopicResponse(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[PartitionResponse]


class DescribeProducersResponse(Response):
    """The producers of each partition."""

    throttle_time_ms: Int32
    topics: list[TopicResponse]


class TopicRequest(Struct):
    """The partitions of one topic."""

    name: String
    partition_indexes: list[Int32]


class DescribeProducersRequest(Request[DescribeProducersResponse], api_key=61, versions=(0, 0), flexible=0):
    """Sent to the leader of all its partitions."""

    topics: list[TopicRequest]
