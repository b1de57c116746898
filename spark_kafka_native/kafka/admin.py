"""`Admin`: create, grow, empty and delete topics, and describe configurations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from .cluster.router import Router
from .error_code import ErrorCode
from .errors import BrokerError
from .model import TopicPartition
from .network.deadline import Deadline
from .protocol.api.configs import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from .protocol.api.topics import (
    DEFAULT_COUNT,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)

BROKER_SHARE = 0.8
"""Of the time that is left a broker may spend this much waiting, so that its answer still arrives in time."""


@dataclass(frozen=True, kw_only=True)
class NewTopic:
    """A topic to create; None leaves a count to the broker's default."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)


class Admin:
    """Changes a cluster. Every method raises `BrokerError` for the first topic that is refused."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def create_topics(self, topics: Collection[NewTopic], deadline: Deadline | None = None) -> None:
        """Create ``topics`` and wait until the metadata of this client know all of them."""
        limit = deadline or self._router.deadline()
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics], timeout_ms=_share(limit)
        )
        for result in self._router.send_any(request, limit).topics:
            _refuse(result.error_code, f"creating topic {result.name}", result.error_message)
        wanted = {topic.name for topic in topics}

        def all_led() -> None:
            metadata = self._router.metadata(wanted, refresh=True, deadline=limit)
            for name in wanted:
                for partition in metadata.topic(name).partitions:
                    self._router.leader(TopicPartition(name, partition))

        self._router.retry(
            all_led, what=f"waiting for new topics {', '.join(sorted(wanted))}", deadline=limit
        )

    def delete_topics(self, names: Collection[str], deadline: Deadline | None = None) -> None:
        """Delete ``names``; the brokers may still name them for a moment afterwards."""
        limit = deadline or self._router.deadline()
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in names], timeout_ms=_share(limit)
        )
        for result in self._router.send_any(request, limit).responses:
            _refuse(result.error_code, f"deleting topic {result.name}", result.error_message)

    def create_partitions(self, counts: Mapping[str, int], deadline: Deadline | None = None) -> None:
        """Grow each topic to so many partitions in all."""
        limit = deadline or self._router.deadline()
        topics = [
            CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in counts.items()
        ]
        request = CreatePartitionsRequest(topics=topics, timeout_ms=_share(limit))
        for result in self._router.send_any(request, limit).results:
            _refuse(result.error_code, f"adding partitions to topic {result.name}", result.error_message)

    def delete_records(
        self, before: Mapping[TopicPartition, int], deadline: Deadline | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before each offset; the first offset that each partition has afterwards."""
        limit = deadline or self._router.deadline()
        first: dict[TopicPartition, int] = {}

        def attempt() -> None:
            by_node: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
            for tp, leader in self._router.leaders(tp for tp in before if tp not in first).items():
                by_node[leader.node_id][tp] = before[tp]
            for node_id, offsets in by_node.items():
                response = self._router.send_to(node_id, _delete_records(offsets, limit), limit)
                for topic in response.topics:
                    for partition in topic.partitions:
                        tp = TopicPartition(topic.name, partition.partition_index)
                        _refuse(
                            partition.error_code, f"deleting records of {tp} before offset {before.get(tp)}"
                        )
                        first[tp] = partition.low_watermark

        topics = {tp.topic for tp in before}
        self._router.retry(attempt, what="deleting records", deadline=limit, topics=topics)
        return first

    def describe_topic_configs(
        self, names: Collection[str], deadline: Deadline | None = None
    ) -> dict[str, dict[str, str | None]]:
        """Each topic's configuration by name; None where the broker keeps the value to itself."""
        resources = [_all_configs(TOPIC_RESOURCE, name) for name in names]
        return _read_configs(self._router.send_any(DescribeConfigsRequest(resources=resources), deadline))

    def describe_broker_configs(
        self, node_id: int, deadline: Deadline | None = None
    ) -> dict[str, str | None]:
        """One broker's configuration, as that broker has it."""
        self._router.metadata(())
        resource = _all_configs(BROKER_RESOURCE, str(node_id))
        response = self._router.send_to(node_id, DescribeConfigsRequest(resources=[resource]), deadline)
        return _read_configs(response)[str(node_id)]


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=DEFAULT_COUNT if topic.partitions is None else topic.partitions,
        replication_factor=DEFAULT_COUNT if topic.replication_factor is None else topic.replication_factor,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _delete_records(before: Mapping[TopicPartition, int], deadline: Deadline) -> DeleteRecordsRequest:
    topics: dict[str, list[DeleteRecordsPartition]] = defaultdict(list)
    for tp, offset in before.items():
        topics[tp.topic].append(DeleteRecordsPartition(partition_index=tp.partition, offset=offset))
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        timeout_ms=_share(deadline),
    )


def _read_configs(response: DescribeConfigsResponse) -> dict[str, dict[str, str | None]]:
    configs: dict[str, dict[str, str | None]] = {}
    for result in response.results:
        _refuse(result.error_code, f"describing configs of {result.resource_name}", result.error_message)
        configs[result.resource_name] = {config.name: config.value for config in result.configs}
    return configs


def _share(deadline: Deadline) -> int:
    return int(deadline.remaining_ms * BROKER_SHARE)


def _refuse(error_code: ErrorCode, where: str, message: str | None = None) -> None:
    if error_code:
        raise BrokerError(error_code, where, message)


def _all_configs(resource_type: int, name: str) -> DescribeConfigsResource:
    return DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=None)
