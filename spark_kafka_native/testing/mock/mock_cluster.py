"""`MockCluster`: the brokers, topics and leaders of a mock, and the responses about them.

All brokers share it. A `Call` is a request together with its faults; `each_partition` and `named_error` make
responses of which the script may refuse a part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from ...kafka.error_code import ErrorCode
from .partition_log import PartitionLog
from .script import Effect, Fields, MockRequest, index_of, topic_of

CLUSTER_ID = "mock"


@dataclass
class MockTopic:
    """A topic."""

    name: str
    topic_id: UUID
    partitions: list[PartitionLog]
    configs: dict[str, str | None]


@dataclass(frozen=True)
class Call:
    """A request, and what the script says about it."""

    request: MockRequest
    faults: list[Effect]

    @property
    def fields(self) -> Fields:
        """Those of the request."""
        return self.request.fields

    @property
    def version(self) -> int:
        """That of the request."""
        return self.request.version

    def refusal(self, topic: str | None = None, partition: int | None = None) -> Effect | None:
        """The fault that refuses this part of the request, or, without arguments, any."""
        for fault in self.faults:
            if fault.code is not None and (topic is None or fault.covers(topic, partition)):
                return fault
        return None


Respond = Callable[[Call], Fields | None]
"""Carries a request out and returns the fields of the response; None: there is no response."""


@dataclass
class MockCluster:
    """State under one lock, `changed`, which is notified of every change that a thread may wait for."""

    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    topics: dict[str, MockTopic] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    when_deleted: list[Callable[[str], None]] = field(default_factory=list)
    """Called with the name of a topic that is deleted: what else goes with it."""

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str | None]) -> MockTopic:
        """Make a topic; its leaders take turns."""
        topic = self.topics[name] = MockTopic(name, uuid4(), [], dict(configs))
        self.grow_topic(name, partitions)
        return topic

    def delete_topic(self, name: str) -> bool:
        """Delete a topic; False if there is none."""
        if self.topics.pop(name, None) is None:
            return False
        for forget in self.when_deleted:
            forget(name)
        self.changed.notify_all()
        return True

    def grow_topic(self, name: str, partitions: int) -> None:
        """Add partitions up to the given number."""
        logs, nodes = self.topics[name].partitions, sorted(self.running) or [-1]
        logs += [
            PartitionLog(name, index, nodes[index % len(nodes)]) for index in range(len(logs), partitions)
        ]
        self.changed.notify_all()

    def topic_name(self, topic_id: UUID) -> str | None:
        """The topic with this id."""
        return next((topic.name for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def log(self, topic: str, partition: int) -> PartitionLog | None:
        """That of a partition, if it is there."""
        found = self.topics.get(topic)
        in_range = found is not None and 0 <= partition < len(found.partitions)
        return found.partitions[partition] if found is not None and in_range else None

    @property
    def coordinator(self) -> int:
        """The coordinator of all groups, and controller: the first running broker; -1 if none runs."""
        return min(self.running, default=-1)

    def lead(self, log: PartitionLog, node_id: int) -> None:
        """Make a broker the leader, in a new epoch."""
        log.leader = node_id
        log.leader_epoch += 1
        self.changed.notify_all()

    def elect(self) -> None:
        """Move each partition from a stopped leader to a running broker, if there is one."""
        for topic in self.topics.values():
            for log in topic.partitions:
                if log.leader not in self.running:
                    self.lead(log, min(self.running, default=-1))

    def led_log(
        self, call: Call, topic: str | None, partition: int, epoch: int = -1
    ) -> tuple[ErrorCode, PartitionLog | None]:
        """The log of a partition that the asked broker leads, or why there is none."""
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID, None
        log = self.log(topic, partition)
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        if log.leader != call.request.node_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
        if -1 < epoch < log.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH, None
        if epoch > log.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH, None
        return ErrorCode.NONE, log


Ask = Callable[[str | None, Fields], Fields]
"""Responds for a partition: gets its topic and its part of the request."""


def each_partition(
    cluster: MockCluster, call: Call, topics: list[Fields], keys: tuple[str, str], ask: Ask
) -> list[Fields]:
    """The response topic by topic, partition by partition; what the script refuses is not asked.

    ``keys`` are the response's names for the list of partitions and for their index.
    """
    responses = []
    for item in topics:
        topic = topic_of(item, cluster.topic_name)
        within = next(value for value in item.values() if isinstance(value, list))
        response: Fields = {key: item[key] for key in ("name", "topic", "topic_id") if key in item}
        response[keys[0]] = [_partition_response(call, topic, part, keys[1], ask) for part in within]
        responses.append(response)
    return responses


def _partition_response(call: Call, topic: str | None, part: Fields, index_key: str, ask: Ask) -> Fields:
    index = index_of(part)
    refusal = call.refusal(topic or "", index)
    response: dict[str, Any] = {} if refusal is not None and not refusal.applied else ask(topic, part)
    if refusal is not None:
        response["error_code"] = refusal.code
    return {**response, index_key: index}


def named_error(call: Call, name: str, check: Callable[[], ErrorCode]) -> Fields:
    """The response about one topic: the script's error, else what ``check`` (which does it) returns."""
    refusal = call.refusal(name)
    code = refusal.code if refusal is not None and not refusal.applied else check()
    if refusal is not None:
        code = refusal.code
    return {"name": name, "error_code": code, "error_message": None}


_TOPIC_RESOURCE = 2
_FROM_TOPIC, _BY_DEFAULT = 1, 5


def topic_responders(cluster: MockCluster) -> dict[str, Respond]:
    """The functions for each API about the cluster and its topics, to be called with its lock held."""
    functions: dict[str, Callable[[MockCluster, Call], Fields]] = {
        "Metadata": metadata,
        "DescribeCluster": describe_cluster,
        "CreateTopics": create_topics,
        "DeleteTopics": delete_topics,
        "CreatePartitions": create_partitions,
        "DescribeConfigs": describe_configs,
    }
    return {api: partial(function, cluster) for api, function in functions.items()}


def metadata(cluster: MockCluster, call: Call) -> Fields:
    """Metadata."""
    asked = call.fields["topics"]
    if asked is None or (not asked and call.version == 0):
        asked = [{"name": name} for name in cluster.topics]
    nodes = sorted(cluster.running)
    return {
        "brokers": [_address(cluster, node_id, "node_id") for node_id in nodes],
        "cluster_id": CLUSTER_ID,
        "controller_id": cluster.coordinator,
        "topics": [_describe(cluster, call, one) for one in asked],
    }


def _address(cluster: MockCluster, node_id: int, key: str) -> Fields:
    host, port = cluster.addresses[node_id]
    return {key: node_id, "host": host, "port": port}


def _describe(cluster: MockCluster, call: Call, asked: Fields) -> Fields:
    name = topic_of(asked, cluster.topic_name)
    topic = cluster.topics.get(name or "")
    refusal = call.refusal(name or "")
    if refusal is not None or topic is None:
        missing = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic_id = asked.get("topic_id", UUID(int=0))
        return {"name": name, "topic_id": topic_id, "error_code": refusal.code if refusal else missing}
    nodes = sorted(cluster.running)
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": [
            {
                "error_code": ErrorCode.NONE if log.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                "partition_index": log.partition,
                "leader_id": log.leader,
                "leader_epoch": log.leader_epoch,
                "replica_nodes": nodes,
                "isr_nodes": nodes,
            }
            for log in topic.partitions
        ],
    }


def describe_cluster(cluster: MockCluster, _call: Call) -> Fields:
    """DescribeCluster."""
    return {
        "cluster_id": CLUSTER_ID,
        "controller_id": cluster.coordinator,
        "brokers": [_address(cluster, node_id, "broker_id") for node_id in sorted(cluster.running)],
    }


def create_topics(cluster: MockCluster, call: Call) -> Fields:
    """CreateTopics."""
    return {"topics": [_create(cluster, call, one) for one in call.fields["topics"]]}


def _create(cluster: MockCluster, call: Call, asked: Fields) -> Fields:
    name = asked["name"]
    partitions = len(asked["assignments"]) or max(1, asked["num_partitions"])
    made: list[MockTopic] = []

    def create() -> ErrorCode:
        if name in cluster.topics:
            return ErrorCode.TOPIC_ALREADY_EXISTS
        if not call.fields["validate_only"]:
            configs = {one["name"]: one["value"] for one in asked["configs"]}
            made.append(cluster.create_topic(name, partitions, configs))
        return ErrorCode.NONE

    response = named_error(call, name, create)
    if made:
        response |= {"topic_id": made[0].topic_id, "num_partitions": partitions, "replication_factor": 1}
    return response


def delete_topics(cluster: MockCluster, call: Call) -> Fields:
    """DeleteTopics."""
    asked = call.fields.get("topics") or [{"name": name} for name in call.fields.get("topic_names", ())]

    def delete(one: Fields) -> Fields:
        name = topic_of(one, cluster.topic_name)
        if name is None:
            return {"topic_id": one["topic_id"], "error_code": ErrorCode.UNKNOWN_TOPIC_ID}

        def remove() -> ErrorCode:
            return ErrorCode.NONE if cluster.delete_topic(name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        return named_error(call, name, remove)

    return {"responses": [delete(one) for one in asked]}


def create_partitions(cluster: MockCluster, call: Call) -> Fields:
    """CreatePartitions."""

    def grow(one: Fields) -> Fields:
        def add() -> ErrorCode:
            topic = cluster.topics.get(one["name"])
            if topic is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if one["count"] <= len(topic.partitions):
                return ErrorCode.INVALID_PARTITIONS
            if not call.fields["validate_only"]:
                cluster.grow_topic(topic.name, one["count"])
            return ErrorCode.NONE

        return named_error(call, one["name"], add)

    return {"results": [grow(one) for one in call.fields["topics"]]}


def describe_configs(cluster: MockCluster, call: Call) -> Fields:
    """DescribeConfigs: of topics, what they were created with, and what a producer asks for."""

    def describe(one: Fields) -> Fields:
        head: dict[str, Any] = {
            "resource_type": one["resource_type"],
            "resource_name": one["resource_name"],
            "error_message": None,
        }
        is_topic = one["resource_type"] == _TOPIC_RESOURCE
        topic = cluster.topics.get(one["resource_name"]) if is_topic else None
        refusal = call.refusal(one["resource_name"])
        if refusal is not None or (is_topic and topic is None):
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return head | {"error_code": missing if refusal is None else refusal.code, "configs": []}
        own = topic.configs if topic is not None else {}
        values = {"max.message.bytes": "1048588", "cleanup.policy": "delete"} | own
        wanted = one["configuration_keys"]
        return head | {
            "configs": [
                {
                    "name": name,
                    "value": value,
                    "config_source": _FROM_TOPIC if name in own else _BY_DEFAULT,
                    "documentation": None,
                }
                for name, value in values.items()
                if not wanted or name in wanted
            ]
        }

    return {"results": [describe(one) for one in call.fields["resources"]]}
