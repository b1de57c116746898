"""WriteTxnMarkers: writes the end of a transaction into partitions.

Brokers send it to each other; a client does to abort a transaction that no coordinator knows (KIP-664).
"""

from __future__ import annotations

from ..message import Request, Response, Struct, field
from ..wire import Boolean, Error, Int8, Int16, Int32, Int64, String


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
