"""A group of one member at scripted brokers: what it asks for is granted, until a test says otherwise."""

from __future__ import annotations

from typing import Any

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.group.assignors import by_topic
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api import find_coordinator as finding
from spark_kafka_native.kafka.protocol.api import group_membership as classic
from spark_kafka_native.kafka.protocol.api import group_membership as epochs
from spark_kafka_native.kafka.protocol.api import group_offsets as offset_commit
from spark_kafka_native.kafka.protocol.api import group_offsets as offset_fetch
from spark_kafka_native.kafka.protocol.consumer_protocol import ConsumerProtocolAssignment, write_versioned
from support.brokers.scripted_broker import ScriptedCluster


class ScriptedGroup:
    """Both protocols. The member has ``assigned``; FindCoordinator names broker `coordinator`."""

    def __init__(self, cluster: ScriptedCluster, assigned: list[TopicPartition]) -> None:
        self.cluster = cluster
        self.assigned = assigned
        self.coordinator = 1
        self.committed: dict[TopicPartition, int] = {}
        self.commit_refusals: list[ErrorCode] = []
        """What the next commits are answered with instead."""
        for broker in cluster.brokers.values():
            broker.on(finding.FindCoordinatorRequest, self._named)
            broker.on(classic.JoinGroupRequest, joined)
            broker.on(classic.SyncGroupRequest, self._synced)
            broker.on(classic.HeartbeatRequest, classic.HeartbeatResponse(error_code=ErrorCode.NONE))
            broker.on(classic.LeaveGroupRequest, classic.LeaveGroupResponse())
            broker.on(epochs.ConsumerGroupHeartbeatRequest, self._heard)
            broker.on(offset_fetch.OffsetFetchRequest, self.fetch_offsets)
            broker.on(offset_commit.OffsetCommitRequest, self.commit)

    def _named(self, request: finding.FindCoordinatorRequest, _version: int) -> Any:
        named = {"node_id": self.coordinator, "host": "", "port": 0, "error_code": ErrorCode.NONE}
        found = [
            finding.Coordinator(key=key, error_message=None, **named) for key in request.coordinator_keys
        ]
        return finding.FindCoordinatorResponse(coordinators=found)

    def _synced(self, _request: Any, _version: int) -> Any:
        told = ConsumerProtocolAssignment(assigned_partitions=by_topic(self.assigned))
        return classic.SyncGroupResponse(error_code=ErrorCode.NONE, assignment=write_versioned(told))

    def _heard(self, request: epochs.ConsumerGroupHeartbeatRequest, _version: int) -> Any:
        told = [
            epochs.TopicPartitions(topic_id=self.cluster.topic_ids[one.topic], partitions=one.partitions)
            for one in by_topic(self.assigned)
        ]
        return epochs.ConsumerGroupHeartbeatResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            member_epoch=max(1, request.member_epoch) if request.member_epoch >= 0 else request.member_epoch,
            heartbeat_interval_ms=50,
            assignment=epochs.Assignment(topic_partitions=told),
        )

    def fetch_offsets(self, request: offset_fetch.OffsetFetchRequest, _version: int) -> Any:
        """The committed offsets of the requested partitions."""

        def one(topic: str, index: int) -> offset_fetch.OffsetFetchResponsePartitions:
            return offset_fetch.OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=self.committed.get(TopicPartition(topic, index), -1),
                metadata=None,
                error_code=ErrorCode.NONE,
            )

        groups = []
        for group in request.groups:
            topics = [
                offset_fetch.OffsetFetchResponseTopics(
                    name=topic.name, partitions=[one(topic.name, index) for index in topic.partition_indexes]
                )
                for topic in group.topics or ()
            ]
            groups.append(offset_fetch.OffsetFetchResponseGroup(group_id=group.group_id, topics=topics))
        return offset_fetch.OffsetFetchResponse(groups=groups)

    def commit(self, request: offset_commit.OffsetCommitRequest, _version: int) -> Any:
        """Store the committed offsets."""
        code = self.commit_refusals.pop(0) if self.commit_refusals else ErrorCode.NONE
        topics = []
        for topic in request.topics:
            for one in topic.partitions if not code else ():
                self.committed[TopicPartition(topic.name, one.partition_index)] = one.committed_offset
            partitions = [
                offset_commit.OffsetCommitResponsePartition(
                    partition_index=one.partition_index, error_code=code
                )
                for one in topic.partitions
            ]
            topics.append(offset_commit.OffsetCommitResponseTopic(name=topic.name, partitions=partitions))
        return offset_commit.OffsetCommitResponse(topics=topics)


def joined(request: classic.JoinGroupRequest, _version: int) -> Any:
    """The member follows another one."""
    return classic.JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=1,
        protocol_name=request.protocols[0].name,
        leader="another",
        member_id=request.member_id or "me",
        members=[],
    )
