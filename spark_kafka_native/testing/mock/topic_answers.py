"""Answers about the cluster and its topics."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ...kafka.error_code import ErrorCode
from .mock_cluster import CLUSTER_ID, Call, MockCluster, MockTopic, named_error
from .mock_request import topic_of
from .script import Fields

_TOPIC_RESOURCE = 2
_FROM_TOPIC, _BY_DEFAULT = 1, 5


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

    answer = named_error(call, name, create)
    if made:
        answer |= {"topic_id": made[0].topic_id, "num_partitions": partitions, "replication_factor": 1}
    return answer


def delete_topics(cluster: MockCluster, call: Call) -> Fields:
    """DeleteTopics."""
    asked = call.fields.get("topics") or [{"name": name} for name in call.fields.get("topic_names", ())]

    def delete(one: Fields) -> Fields:
        name = topic_of(one, cluster.topic_name)
        if name is None:
            return {"topic_id": one["topic_id"], "error_code": ErrorCode.UNKNOWN_TOPIC_ID}

        def remove() -> ErrorCode:
            if cluster.topics.pop(name, None) is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            cluster.changed.notify_all()
            return ErrorCode.NONE

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
                if wanted is None or name in wanted
            ]
        }

    return {"results": [describe(one) for one in call.fields["resources"]]}
