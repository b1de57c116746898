"""A Kafka client for columns: it fetches records into Arrow and numpy arrays, and produces from them.

Never imports pyspark. What is not in ``__all__`` may change without notice. Names are imported when they are
first used: to read an option must not cost the import of pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .admin.acls import Acl, AclFilter, AclOperation, AclPattern, AclPermission, AclResource
    from .admin.admin import Admin
    from .admin.cluster import ClusterDescription, LogDir, Reassignment, Replica
    from .admin.configs import ConfigEntry, ConfigResource, ConfigSource
    from .admin.group_descriptions import GroupDescription, GroupListing, GroupMember, PartitionLag
    from .admin.quotas import Quota
    from .admin.topics import NewTopic
    from .admin.transactions import (
        ActiveProducer,
        HangingTransaction,
        TransactionDescription,
        TransactionListing,
    )
    from .cluster.metadata import ClusterMetadata
    from .cluster.router import Router, router_for
    from .config.client_config import (
        ClientConfig,
        ConsumerConfig,
        ProducerConfig,
        SecurityConfig,
        SecurityProtocol,
        TransactionConfig,
    )
    from .config.secret import Secret
    from .connected_cluster import Cluster
    from .consumer.async_consumer import AsyncConsumer
    from .consumer.consumer import Consumer
    from .consumer.fetch_once import FetchedOnce
    from .consumer.fetched_records import FetchedRecords
    from .consumer.fetcher import Fetcher
    from .consumer.offset_reset import OffsetReset
    from .consumer.offsets import FoundOffset, LogBounds, list_offsets
    from .consumer.reader_config import ReaderConfig
    from .consumer.work_unit import WorkStatus, WorkUnit
    from .error_code import ErrorCode
    from .errors import (
        AuthenticationError,
        BrokerError,
        ClientClosedError,
        ConfigError,
        ConsumerClosedError,
        CorruptRecordError,
        DeadlineExceededError,
        EndOfLogError,
        KafkaError,
        LogTruncatedError,
        NetworkError,
        OffsetOutOfRangeError,
        PartialAnswerError,
        ProtocolError,
        RequestTimedOutError,
        SecurityError,
        TopicRecreatedError,
        UnsupportedVersionError,
    )
    from .group.committed import committed_offsets
    from .group.errors import CommitFailedError, NoCommittedOffsetError
    from .group.group_config import GroupConfig, GroupProtocol
    from .group.group_consumer import GroupConsumer
    from .model import (
        Acks,
        Broker,
        GroupMembership,
        HeaderKeys,
        IsolationLevel,
        OffsetAt,
        OffsetToCommit,
        Record,
        TimestampType,
        TopicPartition,
    )
    from .network.connection import Connection
    from .observe.event_stream import EventStream
    from .observe.histogram import Distribution
    from .observe.json_lines import JsonLines
    from .observe.metrics_exporter import MetricsExporter
    from .observe.opentelemetry_bridge import export_to_opentelemetry
    from .observe.snapshot import MetricKey, MetricsSnapshot
    from .producer.accumulating.partitioner import per_record
    from .producer.acknowledgement import Acknowledgement
    from .producer.delivery import (
        ColumnsDelivery,
        DeliveredColumns,
        Delivery,
        PartlyTakenError,
        RecordMetadata,
    )
    from .producer.errors import (
        BufferFullError,
        DeadLetteredError,
        DeliveryError,
        DeliveryStatus,
        ProducerClosedError,
        RecordError,
        RecordSkippedError,
        RecordTooLargeError,
        TransactionAbortableError,
        TransactionFatalError,
        TransactionStateError,
    )
    from .producer.producer import Producer
    from .producer.sending.transaction_requests import OpenTransaction, end_transaction
    from .producer.shared_producers import producer_for
    from .producer.stats import AcknowledgedOffsets, ProducerStats
    from .producer.transactional_producer import TransactionalProducer
    from .records.columns import RecordColumns
    from .records.compression import register_codec
    from .runtime.deadline import Deadline
    from .security.tokens import register_token_provider

__all__ = [
    "AcknowledgedOffsets",
    "Acknowledgement",
    "Acks",
    "Acl",
    "AclFilter",
    "AclOperation",
    "AclPattern",
    "AclPermission",
    "AclResource",
    "ActiveProducer",
    "Admin",
    "AsyncConsumer",
    "AuthenticationError",
    "Broker",
    "BrokerError",
    "BufferFullError",
    "ClientClosedError",
    "ClientConfig",
    "Cluster",
    "ClusterDescription",
    "ClusterMetadata",
    "ColumnsDelivery",
    "CommitFailedError",
    "ConfigEntry",
    "ConfigError",
    "ConfigResource",
    "ConfigSource",
    "Connection",
    "Consumer",
    "ConsumerClosedError",
    "ConsumerConfig",
    "CorruptRecordError",
    "DeadLetteredError",
    "Deadline",
    "DeadlineExceededError",
    "DeliveredColumns",
    "Delivery",
    "DeliveryError",
    "DeliveryStatus",
    "Distribution",
    "EndOfLogError",
    "ErrorCode",
    "EventStream",
    "FetchedOnce",
    "FetchedRecords",
    "Fetcher",
    "FoundOffset",
    "GroupConfig",
    "GroupConsumer",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "GroupMembership",
    "GroupProtocol",
    "HangingTransaction",
    "HeaderKeys",
    "IsolationLevel",
    "JsonLines",
    "KafkaError",
    "LogBounds",
    "LogDir",
    "LogTruncatedError",
    "MetricKey",
    "MetricsExporter",
    "MetricsSnapshot",
    "NetworkError",
    "NewTopic",
    "NoCommittedOffsetError",
    "OffsetAt",
    "OffsetOutOfRangeError",
    "OffsetReset",
    "OffsetToCommit",
    "OpenTransaction",
    "PartialAnswerError",
    "PartitionLag",
    "PartlyTakenError",
    "Producer",
    "ProducerClosedError",
    "ProducerConfig",
    "ProducerStats",
    "ProtocolError",
    "Quota",
    "ReaderConfig",
    "Reassignment",
    "Record",
    "RecordColumns",
    "RecordError",
    "RecordMetadata",
    "RecordSkippedError",
    "RecordTooLargeError",
    "Replica",
    "RequestTimedOutError",
    "Router",
    "Secret",
    "SecurityConfig",
    "SecurityError",
    "SecurityProtocol",
    "TimestampType",
    "TopicPartition",
    "TopicRecreatedError",
    "TransactionAbortableError",
    "TransactionConfig",
    "TransactionDescription",
    "TransactionFatalError",
    "TransactionListing",
    "TransactionStateError",
    "TransactionalProducer",
    "UnsupportedVersionError",
    "WorkStatus",
    "WorkUnit",
    "committed_offsets",
    "end_transaction",
    "export_to_opentelemetry",
    "list_offsets",
    "per_record",
    "producer_for",
    "register_codec",
    "register_token_provider",
    "router_for",
]

_MODULES = {
    "Admin": "admin.admin",
    "ActiveProducer": "admin.transactions",
    "HangingTransaction": "admin.transactions",
    "TransactionDescription": "admin.transactions",
    "TransactionListing": "admin.transactions",
    "ClusterDescription": "admin.cluster",
    "LogDir": "admin.cluster",
    "Reassignment": "admin.cluster",
    "Replica": "admin.cluster",
    "Acl": "admin.acls",
    "AclFilter": "admin.acls",
    "AclOperation": "admin.acls",
    "AclPattern": "admin.acls",
    "AclPermission": "admin.acls",
    "AclResource": "admin.acls",
    "ConfigEntry": "admin.configs",
    "ConfigResource": "admin.configs",
    "ConfigSource": "admin.configs",
    "GroupDescription": "admin.group_descriptions",
    "GroupListing": "admin.group_descriptions",
    "GroupMember": "admin.group_descriptions",
    "PartitionLag": "admin.group_descriptions",
    "Quota": "admin.quotas",
    "NewTopic": "admin.topics",
    "ClusterMetadata": "cluster.metadata",
    "Router": "cluster.router",
    "router_for": "cluster.router",
    "ClientConfig": "config.client_config",
    "ConsumerConfig": "config.client_config",
    "ProducerConfig": "config.client_config",
    "SecurityConfig": "config.client_config",
    "SecurityProtocol": "config.client_config",
    "committed_offsets": "group.committed",
    "AsyncConsumer": "consumer.async_consumer",
    "Cluster": "connected_cluster",
    "Connection": "network.connection",
    "Consumer": "consumer.consumer",
    "FetchedOnce": "consumer.fetch_once",
    "LogBounds": "consumer.offsets",
    "OffsetReset": "consumer.offset_reset",
    "ReaderConfig": "consumer.reader_config",
    "CommitFailedError": "group.errors",
    "NoCommittedOffsetError": "group.errors",
    "GroupConfig": "group.group_config",
    "GroupProtocol": "group.group_config",
    "GroupConsumer": "group.group_consumer",
    "FetchedRecords": "consumer.fetched_records",
    "Fetcher": "consumer.fetcher",
    "FoundOffset": "consumer.offsets",
    "list_offsets": "consumer.offsets",
    "ErrorCode": "error_code",
    "AuthenticationError": "errors",
    "BrokerError": "errors",
    "ConfigError": "errors",
    "ClientClosedError": "errors",
    "ConsumerClosedError": "errors",
    "CorruptRecordError": "errors",
    "DeadlineExceededError": "errors",
    "EndOfLogError": "errors",
    "KafkaError": "errors",
    "LogTruncatedError": "errors",
    "NetworkError": "errors",
    "OffsetOutOfRangeError": "errors",
    "PartialAnswerError": "errors",
    "ProtocolError": "errors",
    "RequestTimedOutError": "errors",
    "SecurityError": "errors",
    "TopicRecreatedError": "errors",
    "UnsupportedVersionError": "errors",
    "Acks": "model",
    "Broker": "model",
    "HeaderKeys": "model",
    "IsolationLevel": "model",
    "OffsetAt": "model",
    "Record": "model",
    "TimestampType": "model",
    "Distribution": "observe.histogram",
    "MetricKey": "observe.snapshot",
    "MetricsSnapshot": "observe.snapshot",
    "WorkStatus": "consumer.work_unit",
    "WorkUnit": "consumer.work_unit",
    "Acknowledgement": "producer.acknowledgement",
    "EventStream": "observe.event_stream",
    "JsonLines": "observe.json_lines",
    "MetricsExporter": "observe.metrics_exporter",
    "export_to_opentelemetry": "observe.opentelemetry_bridge",
    "TopicPartition": "model",
    "Deadline": "runtime.deadline",
    "register_token_provider": "security.tokens",
    "RecordColumns": "records.columns",
    "register_codec": "records.compression",
    "Secret": "config.secret",
    "ColumnsDelivery": "producer.delivery",
    "DeliveredColumns": "producer.delivery",
    "Delivery": "producer.delivery",
    "PartlyTakenError": "producer.delivery",
    "RecordMetadata": "producer.delivery",
    "BufferFullError": "producer.errors",
    "DeadLetteredError": "producer.errors",
    "DeliveryError": "producer.errors",
    "DeliveryStatus": "producer.errors",
    "ProducerClosedError": "producer.errors",
    "RecordError": "producer.errors",
    "RecordSkippedError": "producer.errors",
    "RecordTooLargeError": "producer.errors",
    "per_record": "producer.accumulating.partitioner",
    "producer_for": "producer.shared_producers",
    "AcknowledgedOffsets": "producer.stats",
    "Producer": "producer.producer",
    "ProducerStats": "producer.stats",
    "GroupMembership": "model",
    "OffsetToCommit": "model",
    "OpenTransaction": "producer.sending.transaction_requests",
    "end_transaction": "producer.sending.transaction_requests",
    "TransactionAbortableError": "producer.errors",
    "TransactionFatalError": "producer.errors",
    "TransactionStateError": "producer.errors",
    "TransactionConfig": "config.client_config",
    "TransactionalProducer": "producer.transactional_producer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value
