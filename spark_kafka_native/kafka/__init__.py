"""A Kafka client for columns: it fetches records into Arrow and numpy arrays, and produces from them.

Never imports pyspark. What is not in ``__all__`` may change without notice. Names are imported when they are
first used: to read an option must not cost the import of pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .admin import Admin, NewTopic
    from .cluster.metadata import ClusterMetadata
    from .cluster.router import Router, router_for
    from .config import ClientConfig, ConsumerConfig, ProducerConfig, SecurityConfig, SecurityProtocol
    from .consumer.committed import committed_offsets
    from .consumer.fetcher import FetchedRecords, Fetcher
    from .consumer.offsets import FoundOffset, list_offsets
    from .error_code import ErrorCode
    from .errors import (
        BrokerError,
        ConfigError,
        CorruptRecordError,
        DeadlineExceededError,
        EndOfLogError,
        KafkaError,
        LogTruncatedError,
        NetworkError,
        OffsetOutOfRangeError,
        ProtocolError,
        RequestTimedOutError,
        SecurityError,
        TopicRecreatedError,
        UnsupportedVersionError,
    )
    from .model import Acks, Broker, IsolationLevel, OffsetAt, TimestampType, TopicPartition
    from .network.deadline import Deadline
    from .records.columns import RecordColumns

__all__ = [
    "Acks",
    "Admin",
    "Broker",
    "BrokerError",
    "ClientConfig",
    "ClusterMetadata",
    "ConfigError",
    "ConsumerConfig",
    "CorruptRecordError",
    "Deadline",
    "DeadlineExceededError",
    "EndOfLogError",
    "ErrorCode",
    "FetchedRecords",
    "Fetcher",
    "FoundOffset",
    "IsolationLevel",
    "KafkaError",
    "LogTruncatedError",
    "NetworkError",
    "NewTopic",
    "OffsetAt",
    "OffsetOutOfRangeError",
    "ProducerConfig",
    "ProtocolError",
    "RecordColumns",
    "RequestTimedOutError",
    "Router",
    "SecurityConfig",
    "SecurityError",
    "SecurityProtocol",
    "TimestampType",
    "TopicPartition",
    "TopicRecreatedError",
    "UnsupportedVersionError",
    "committed_offsets",
    "list_offsets",
    "router_for",
]

_MODULES = {
    "Admin": "admin",
    "NewTopic": "admin",
    "ClusterMetadata": "cluster.metadata",
    "Router": "cluster.router",
    "router_for": "cluster.router",
    "ClientConfig": "config",
    "ConsumerConfig": "config",
    "ProducerConfig": "config",
    "SecurityConfig": "config",
    "SecurityProtocol": "config",
    "committed_offsets": "consumer.committed",
    "FetchedRecords": "consumer.fetcher",
    "Fetcher": "consumer.fetcher",
    "FoundOffset": "consumer.offsets",
    "list_offsets": "consumer.offsets",
    "ErrorCode": "error_code",
    "BrokerError": "errors",
    "ConfigError": "errors",
    "CorruptRecordError": "errors",
    "DeadlineExceededError": "errors",
    "EndOfLogError": "errors",
    "KafkaError": "errors",
    "LogTruncatedError": "errors",
    "NetworkError": "errors",
    "OffsetOutOfRangeError": "errors",
    "ProtocolError": "errors",
    "RequestTimedOutError": "errors",
    "SecurityError": "errors",
    "TopicRecreatedError": "errors",
    "UnsupportedVersionError": "errors",
    "Acks": "model",
    "Broker": "model",
    "IsolationLevel": "model",
    "OffsetAt": "model",
    "TimestampType": "model",
    "TopicPartition": "model",
    "Deadline": "network.deadline",
    "RecordColumns": "records.columns",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value
