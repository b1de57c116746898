"""`ClusterAdmin`: brokers, their log directories, reassignments and leader elections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..cluster.fan_out import ask_every_broker
from ..error_code import ErrorCode
from ..model import Broker, TopicPartition
from ..protocol.api.cluster import (
    AlterPartitionReassignmentsRequest,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    ElectionTopic,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ..runtime.deadline import Timeout
from .family import TRY_AGAIN, AdminFamily, ItemResult, Task, broker_share, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The cluster, as a broker sees it."""

    cluster_id: str | None
    controller_id: int | None
    """In a KRaft cluster: a broker that forwards to the controller."""
    brokers: tuple[Broker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A replica of a partition in a log directory."""

    size_bytes: int
    offset_lag: int
    """The number of offsets behind the high watermark (of a ``future`` replica, behind the current one)."""
    future: bool
    """True if it is being moved here from another directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """A log directory of a broker."""

    node_id: int
    path: str
    error_code: ErrorCode
    """KAFKA_STORAGE_ERROR if the disk has failed."""
    total_bytes: int | None
    usable_bytes: int | None
    """Both None with brokers before 3.3."""
    replicas: Mapping[TopicPartition, Replica]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A partition with a reassignment in progress."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ClusterAdmin(AdminFamily):
    """Brokers, disks, replicas and leaders."""

    def describe_cluster(self, timeout: Timeout = None) -> ClusterDescription:
        """Id, controller and brokers."""
        metadata = self._router.metadata((), refresh=True, deadline=self._limit(timeout))
        return ClusterDescription(
            cluster_id=metadata.cluster_id,
            controller_id=metadata.controller_id,
            brokers=tuple(broker for _, broker in sorted(metadata.brokers.items())),
        )

    def describe_log_dirs(self, timeout: Timeout = None) -> list[LogDir]:
        """The log directories of every broker, with their replicas. Raises `BrokerError`."""
        limit = self._limit(timeout)

        def read(node_id: int, response: DescribeLogDirsResponse) -> list[LogDir]:
            # The response has an error code since Kafka 3.2; without Describe it has no directories before.
            without_any = ErrorCode.NONE if response.results else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            outcome = ItemResult(f"broker {node_id}", response.error_code or without_any)
            refuse(outcome, "describing log directories of", "Describe")
            return [_log_dir(node_id, result) for result in response.results]

        request = DescribeLogDirsRequest(topics=None)
        return ask_every_broker(self._router, request, read, what="log directories", deadline=limit)[0]

    def reassign(
        self, replicas: Mapping[TopicPartition, Sequence[int] | None], timeout: Timeout = None
    ) -> None:
        """Begin to move partitions to other brokers, the preferred leader first; None cancels a reassignment
        in progress. `list_reassignments` returns those in progress.

        Raises `BrokerError` for the first partition that is refused; the others are moved.
        """
        limit = self._limit(timeout)
        wanted = {TopicPartition(*tp): brokers for tp, brokers in replicas.items()}

        def ask(pending: list[Any]) -> Iterable[ItemResult]:
            topics: dict[str, list[ReassignablePartition]] = defaultdict(list)
            for tp in pending:
                brokers = wanted[tp]
                target = None if brokers is None else list(brokers)
                topics[tp.topic].append(ReassignablePartition(partition_index=tp.partition, replicas=target))
            request = AlterPartitionReassignmentsRequest(
                timeout_ms=broker_share(limit),
                topics=[ReassignableTopic(name=name, partitions=parts) for name, parts in topics.items()],
            )
            response = self._ask_controller(request, limit)
            if response.error_code:
                return [ItemResult(tp, response.error_code, response.error_message) for tp in pending]
            return [
                ItemResult(TopicPartition(topic.name, one.partition_index), one.error_code, one.error_message)
                for topic in response.responses
                for one in topic.partitions
            ]

        # Only the end of a reassignment is refused so, and so it has been ended.
        ended = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        self._settle(wanted, ask, Task("reassigning", "Alter", done_by_lost=ended), limit)

    def list_reassignments(self, timeout: Timeout = None) -> dict[TopicPartition, Reassignment]:
        """The partitions with a reassignment in progress. Raises `BrokerError`."""
        limit = self._limit(timeout)
        found: dict[TopicPartition, Reassignment] = {}

        def ask(pending: list[object]) -> list[ItemResult]:
            request = ListPartitionReassignmentsRequest(timeout_ms=broker_share(limit))
            response = self._ask_controller(request, limit)
            for topic in response.topics:
                for one in topic.partitions:
                    found[TopicPartition(topic.name, one.partition_index)] = Reassignment(
                        replicas=tuple(one.replicas),
                        adding=tuple(one.adding_replicas),
                        removing=tuple(one.removing_replicas),
                    )
            return [ItemResult(pending[0], response.error_code, response.error_message)]

        self._settle(["reassignments"], ask, Task("listing", "Describe", changes=False), limit)
        return found

    def elect_leaders(
        self,
        topic_partitions: Collection[TopicPartition] | None = None,
        timeout: Timeout = None,
        *,
        unclean: bool = False,
    ) -> set[TopicPartition]:
        """Make the preferred replica the leader of each partition (None: of all); returns those that got
        another leader, without those that an attempt without an answer has given one.

        ``unclean`` elects a replica that is not in sync if no other is available: **records that only the
        others have are lost**. Raises `BrokerError` for the first that is refused.
        """
        limit = self._limit(timeout)
        elected: set[TopicPartition] = set()
        wanted = None if topic_partitions is None else [TopicPartition(*tp) for tp in topic_partitions]

        def ask(pending: list[Any]) -> Iterable[ItemResult]:
            asked = None if wanted is None else _by_topic(pending)
            request = ElectLeadersRequest(
                election_type=int(unclean), topic_partitions=asked, timeout_ms=broker_share(limit)
            )
            response = self._ask_controller(request, limit)
            if response.error_code:
                return [ItemResult(tp, response.error_code) for tp in pending]
            outcomes = []
            for topic in response.replica_election_results:
                for one in topic.partition_result:
                    tp = TopicPartition(topic.topic, one.partition_id)
                    if not one.error_code:
                        elected.add(tp)
                    needless = one.error_code is ErrorCode.ELECTION_NOT_NEEDED
                    code = ErrorCode.NONE if needless else one.error_code
                    outcomes.append(ItemResult(tp, code, one.error_message))
            return outcomes if wanted is not None else _of_all(outcomes)

        self._settle(
            ["all"] if wanted is None else wanted, ask, Task("electing the leader of", "Alter"), limit
        )
        return elected


def _of_all(outcomes: Iterable[ItemResult]) -> list[ItemResult]:
    """All partitions were requested: the first that is to be asked again stands for all, or the first
    refusal.
    """
    refused = [
        ItemResult("all", one.error_code, f"{one.name}: {one.message}") for one in outcomes if one.error_code
    ]
    put_off = [one for one in refused if one.error_code in TRY_AGAIN]
    return put_off[:1] or [*refused, ItemResult("all", ErrorCode.NONE)]


def _by_topic(topic_partitions: Iterable[TopicPartition]) -> list[ElectionTopic]:
    topics: dict[str, list[int]] = defaultdict(list)
    for tp in topic_partitions:
        topics[tp.topic].append(tp.partition)
    return [ElectionTopic(topic=name, partitions=partitions) for name, partitions in topics.items()]


def _log_dir(node_id: int, result: DescribeLogDirsResult) -> LogDir:
    return LogDir(
        node_id=node_id,
        path=result.log_dir,
        error_code=result.error_code,
        total_bytes=result.total_bytes if result.total_bytes >= 0 else None,
        usable_bytes=result.usable_bytes if result.usable_bytes >= 0 else None,
        replicas={
            TopicPartition(topic.name, one.partition_index): Replica(
                size_bytes=one.partition_size, offset_lag=one.offset_lag, future=one.is_future_key
            )
            for topic in result.topics
            for one in topic.partitions
        },
    )
