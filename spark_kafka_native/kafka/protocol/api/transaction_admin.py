"""ListTransactions, DescribeTransactions, DescribeProducers, WriteTxnMarkers: finding and ending transactions
that hang (KIP-664).

Brokers send WriteTxnMarkers to each other; a client does to abort a transaction that no coordinator knows.
"""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Boolean, Error, Int8, Int16, Int32, Int64, String


class ListedTransaction(Struct, spec_name="TransactionState"):
    """One transactional id."""

    transactional_id: String
    producer_id: Int64
    transaction_state: String


class ListTransactionsResponse(Response):
    """The transactional ids of one coordinator."""

    throttle_time_ms: Int32
    error_code: Error
    unknown_state_filters: list[String]
    transaction_states: list[ListedTransaction]


class ListTransactionsRequest(Request[ListTransactionsResponse], api_key=66, versions=(0, 2), flexible=0):
    """Sent to every broker. An empty filter matches all; ``duration_filter`` in milliseconds, -1 for none."""

    state_filters: list[String]
    producer_id_filters: list[Int64]
    duration_filter: Int64 = field(since=1, default=-1)
    transactional_id_pattern: String | None = field(since=2, nullable=2, default=None)


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


class WritableTxnMarkerPartitionResult(Struct):
    """The outcome of one partition."""

    partition_index: Int32
    error_code: Error


class WritableTxnMarkerTopicResult(Struct):
    """The partitions of one topic."""

    name: String
    partitions: list[WritableTxnMarkerPartitionResult]


class WritableTxnMarkerResult(Struct):
    """The markers of one producer."""

    producer_id: Int64
    topics: list[WritableTxnMarkerTopicResult]


class WriteTxnMarkersResponse(Response):
    """One outcome per producer and partition."""

    markers: list[WritableTxnMarkerResult]


class WritableTxnMarkerTopic(Struct):
    """The partitions of one topic."""

    name: String
    partition_indexes: list[Int32]


class WritableTxnMarker(Struct):
    """``transaction_result``: true commits, false aborts."""

    producer_id: Int64
    producer_epoch: Int16
    transaction_result: Boolean
    topics: list[WritableTxnMarkerTopic]
    coordinator_epoch: Int32
    transaction_version: Int8 = field(since=2, ignorable=True, default=0)


class WriteTxnMarkersRequest(Request[WriteTxnMarkersResponse], api_key=27, versions=(1, 2), flexible=1):
    """Sent to the leader of all its partitions."""

    markers: list[WritableTxnMarker]
