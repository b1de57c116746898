"""The public names of the Kafka client, which fetches records into Arrow and numpy arrays and produces them.

Never imports pyspark. A name that is not in ``__all__`` may change without notice. A module is imported when
one of its names is first used: reading an option must not cost the import of pyarrow.

A new name goes into `_MODULES` and into the imports above it, which are for type checkers: they cannot follow
a table. A test compares the two.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .admin.acls import Acl as Acl
    from .admin.acls import AclFilter as AclFilter
    from .admin.acls import AclOperation as AclOperation
    from .admin.acls import AclPattern as AclPattern
    from .admin.acls import AclPermission as AclPermission
    from .admin.acls import AclResource as AclResource
    from .admin.admin import Admin as Admin
    from .admin.cluster import ClusterDescription as ClusterDescription
    from .admin.cluster import LogDir as LogDir
    from .admin.cluster import Reassignment as Reassignment
    from .admin.cluster import Replica as Replica
    from .admin.configs import ConfigEntry as ConfigEntry
    from .admin.configs import ConfigResource as ConfigResource
    from .admin.configs import ConfigSource as ConfigSource
    from .admin.delegation_tokens import DelegationToken as DelegationToken
    from .admin.groups import GroupDescription as GroupDescription
    from .admin.groups import GroupListing as GroupListing
    from .admin.groups import GroupMember as GroupMember
    from .admin.groups import PartitionLag as PartitionLag
    from .admin.quotas import Quota as Quota
    from .admin.topics import NewTopic as NewTopic
    from .admin.transactions import ActiveProducer as ActiveProducer
    from .admin.transactions import HangingTransaction as HangingTransaction
    from .admin.transactions import TransactionDescription as TransactionDescription
    from .admin.transactions import TransactionListing as TransactionListing
    from .cluster.metadata import ClusterMetadata as ClusterMetadata
    from .cluster.offsets import FoundOffset as FoundOffset
    from .cluster.offsets import LogBounds as LogBounds
    from .cluster.offsets import list_offsets as list_offsets
    from .cluster.router import Router as Router
    from .cluster.router import router_for as router_for
    from .cluster_client import Cluster as Cluster
    from .config.client_config import ClientConfig as ClientConfig
    from .config.client_config import ConsumerConfig as ConsumerConfig
    from .config.client_config import ProducerConfig as ProducerConfig
    from .config.client_config import SecurityConfig as SecurityConfig
    from .config.client_config import SecurityProtocol as SecurityProtocol
    from .config.client_config import TransactionConfig as TransactionConfig
    from .config.reader_config import OffsetReset as OffsetReset
    from .config.reader_config import ReaderConfig as ReaderConfig
    from .config.secret import Secret as Secret
    from .consumer.async_consumer import AsyncConsumer as AsyncConsumer
    from .consumer.consumer import Consumer as Consumer
    from .consumer.fetch_once import FetchedOnce as FetchedOnce
    from .consumer.fetched_records import FetchedRecords as FetchedRecords
    from .consumer.fetched_records import WorkStatus as WorkStatus
    from .consumer.fetched_records import WorkUnit as WorkUnit
    from .consumer.fetcher import Fetcher as Fetcher
    from .consumer.typed_records import TypedRecords as TypedRecords
    from .error_code import ErrorCode as ErrorCode
    from .errors import AuthenticationError as AuthenticationError
    from .errors import BrokerError as BrokerError
    from .errors import ClientClosedError as ClientClosedError
    from .errors import CommitFailedError as CommitFailedError
    from .errors import ConfigError as ConfigError
    from .errors import ConsumerClosedError as ConsumerClosedError
    from .errors import CorruptRecordError as CorruptRecordError
    from .errors import DeadlineExceededError as DeadlineExceededError
    from .errors import EndOfLogError as EndOfLogError
    from .errors import KafkaError as KafkaError
    from .errors import LogTruncatedError as LogTruncatedError
    from .errors import MalformedRecordError as MalformedRecordError
    from .errors import NetworkError as NetworkError
    from .errors import NoCommittedOffsetError as NoCommittedOffsetError
    from .errors import OffsetOutOfRangeError as OffsetOutOfRangeError
    from .errors import PartialAnswerError as PartialAnswerError
    from .errors import ProtocolError as ProtocolError
    from .errors import RequestTimedOutError as RequestTimedOutError
    from .errors import SecurityError as SecurityError
    from .errors import TopicRecreatedError as TopicRecreatedError
    from .errors import UnsupportedVersionError as UnsupportedVersionError
    from .group.committed_offsets import committed_offsets as committed_offsets
    from .group.group_config import GroupConfig as GroupConfig
    from .group.group_config import GroupProtocol as GroupProtocol
    from .group.group_consumer import GroupConsumer as GroupConsumer
    from .model import Acks as Acks
    from .model import Broker as Broker
    from .model import GroupMembership as GroupMembership
    from .model import HeaderKeys as HeaderKeys
    from .model import IsolationLevel as IsolationLevel
    from .model import OffsetAt as OffsetAt
    from .model import OffsetToCommit as OffsetToCommit
    from .model import Record as Record
    from .model import TimestampType as TimestampType
    from .model import TopicPartition as TopicPartition
    from .network.connection import Connection as Connection
    from .observe.events import EventStream as EventStream
    from .observe.exporters import JsonLines as JsonLines
    from .observe.exporters import MetricsExporter as MetricsExporter
    from .observe.exporters import export_to_opentelemetry as export_to_opentelemetry
    from .observe.metrics import Distribution as Distribution
    from .observe.metrics import MetricKey as MetricKey
    from .observe.metrics import MetricsSnapshot as MetricsSnapshot
    from .observe.prometheus import export_to_prometheus as export_to_prometheus
    from .producer.accumulating.partitioner import per_record as per_record
    from .producer.completion import Acknowledgement as Acknowledgement
    from .producer.delivery import ColumnsDelivery as ColumnsDelivery
    from .producer.delivery import DeliveredColumns as DeliveredColumns
    from .producer.delivery import Delivery as Delivery
    from .producer.delivery import PartlyTakenError as PartlyTakenError
    from .producer.delivery import RecordMetadata as RecordMetadata
    from .producer.errors import BufferFullError as BufferFullError
    from .producer.errors import DeadLetteredError as DeadLetteredError
    from .producer.errors import DeliveryError as DeliveryError
    from .producer.errors import DeliveryStatus as DeliveryStatus
    from .producer.errors import ProducerClosedError as ProducerClosedError
    from .producer.errors import RecordError as RecordError
    from .producer.errors import RecordSkippedError as RecordSkippedError
    from .producer.errors import RecordTooLargeError as RecordTooLargeError
    from .producer.errors import TransactionAbortableError as TransactionAbortableError
    from .producer.errors import TransactionFatalError as TransactionFatalError
    from .producer.errors import TransactionStateError as TransactionStateError
    from .producer.producer import Producer as Producer
    from .producer.producer import producer_for as producer_for
    from .producer.sending.transaction_requests import OpenTransaction as OpenTransaction
    from .producer.sending.transaction_requests import end_transaction as end_transaction
    from .producer.stats import AcknowledgedOffsets as AcknowledgedOffsets
    from .producer.stats import ProducerStats as ProducerStats
    from .producer.transactional_producer import TransactionalProducer as TransactionalProducer
    from .records.columns import RecordColumns as RecordColumns
    from .records.compression import register_codec as register_codec
    from .runtime.deadline import Deadline as Deadline
    from .security.tokens import register_token_provider as register_token_provider

_MODULES: Final = {
    "Acl": "admin.acls",
    "AclFilter": "admin.acls",
    "AclOperation": "admin.acls",
    "AclPattern": "admin.acls",
    "AclPermission": "admin.acls",
    "AclResource": "admin.acls",
    "Admin": "admin.admin",
    "ClusterDescription": "admin.cluster",
    "LogDir": "admin.cluster",
    "Reassignment": "admin.cluster",
    "Replica": "admin.cluster",
    "ConfigEntry": "admin.configs",
    "ConfigResource": "admin.configs",
    "DelegationToken": "admin.delegation_tokens",
    "ConfigSource": "admin.configs",
    "GroupDescription": "admin.groups",
    "GroupListing": "admin.groups",
    "GroupMember": "admin.groups",
    "PartitionLag": "admin.groups",
    "Quota": "admin.quotas",
    "NewTopic": "admin.topics",
    "ActiveProducer": "admin.transactions",
    "HangingTransaction": "admin.transactions",
    "TransactionDescription": "admin.transactions",
    "TransactionListing": "admin.transactions",
    "ClusterMetadata": "cluster.metadata",
    "Router": "cluster.router",
    "router_for": "cluster.router",
    "ClientConfig": "config.client_config",
    "ConsumerConfig": "config.client_config",
    "ProducerConfig": "config.client_config",
    "SecurityConfig": "config.client_config",
    "SecurityProtocol": "config.client_config",
    "TransactionConfig": "config.client_config",
    "Secret": "config.secret",
    "Cluster": "cluster_client",
    "AsyncConsumer": "consumer.async_consumer",
    "Consumer": "consumer.consumer",
    "FetchedOnce": "consumer.fetch_once",
    "FetchedRecords": "consumer.fetched_records",
    "Fetcher": "consumer.fetcher",
    "TypedRecords": "consumer.typed_records",
    "OffsetReset": "config.reader_config",
    "FoundOffset": "cluster.offsets",
    "LogBounds": "cluster.offsets",
    "list_offsets": "cluster.offsets",
    "ReaderConfig": "config.reader_config",
    "WorkStatus": "consumer.fetched_records",
    "WorkUnit": "consumer.fetched_records",
    "ErrorCode": "error_code",
    "AuthenticationError": "errors",
    "BrokerError": "errors",
    "ClientClosedError": "errors",
    "ConfigError": "errors",
    "ConsumerClosedError": "errors",
    "CorruptRecordError": "errors",
    "DeadlineExceededError": "errors",
    "EndOfLogError": "errors",
    "KafkaError": "errors",
    "LogTruncatedError": "errors",
    "MalformedRecordError": "errors",
    "NetworkError": "errors",
    "OffsetOutOfRangeError": "errors",
    "PartialAnswerError": "errors",
    "ProtocolError": "errors",
    "RequestTimedOutError": "errors",
    "SecurityError": "errors",
    "TopicRecreatedError": "errors",
    "UnsupportedVersionError": "errors",
    "committed_offsets": "group.committed_offsets",
    "CommitFailedError": "errors",
    "NoCommittedOffsetError": "errors",
    "GroupConfig": "group.group_config",
    "GroupProtocol": "group.group_config",
    "GroupConsumer": "group.group_consumer",
    "Acks": "model",
    "Broker": "model",
    "GroupMembership": "model",
    "HeaderKeys": "model",
    "IsolationLevel": "model",
    "OffsetAt": "model",
    "OffsetToCommit": "model",
    "Record": "model",
    "TimestampType": "model",
    "TopicPartition": "model",
    "Connection": "network.connection",
    "EventStream": "observe.events",
    "Distribution": "observe.metrics",
    "JsonLines": "observe.exporters",
    "MetricsExporter": "observe.exporters",
    "export_to_opentelemetry": "observe.exporters",
    "export_to_prometheus": "observe.prometheus",
    "MetricKey": "observe.metrics",
    "MetricsSnapshot": "observe.metrics",
    "per_record": "producer.accumulating.partitioner",
    "Acknowledgement": "producer.completion",
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
    "TransactionAbortableError": "producer.errors",
    "TransactionFatalError": "producer.errors",
    "TransactionStateError": "producer.errors",
    "Producer": "producer.producer",
    "OpenTransaction": "producer.sending.transaction_requests",
    "end_transaction": "producer.sending.transaction_requests",
    "producer_for": "producer.producer",
    "AcknowledgedOffsets": "producer.stats",
    "ProducerStats": "producer.stats",
    "TransactionalProducer": "producer.transactional_producer",
    "RecordColumns": "records.columns",
    "register_codec": "records.compression",
    "Deadline": "runtime.deadline",
    "register_token_provider": "security.tokens",
}
"""The module of each public name."""

if not TYPE_CHECKING:  # type checkers see the imports above alone, so that they reject any other name
    __all__ = sorted(_MODULES)

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
        globals()[name] = value
        return value
