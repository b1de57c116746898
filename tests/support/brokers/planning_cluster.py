"""A scripted cluster to plan on: isolation levels, records' times, committed offsets, internal topics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from spark_kafka_native.kafka.protocol.api.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from spark_kafka_native.kafka.protocol.api.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse
from support.brokers.scripted_broker import ScriptedCluster


class PlanningCluster(ScriptedCluster):
    """One broker. ``committed`` and ``times`` say what it knows beside the logs."""

    def __init__(self) -> None:
        super().__init__(1)
        self.committed: dict[TopicPartition, int] = {}
        self.times: dict[TopicPartition, list[tuple[int, int]]] = {}
        """Of some records, in order: timestamp and offset."""
        self.internal: set[str] = set()
        self.on_lookup: Any = lambda: None
        """Called before committed offsets or times are answered: an event in the middle of planning."""
        self[1].on(MetadataRequest, self.metadata)
        self[1].on(ListOffsetsRequest, self.list_offsets)
        self[1].on(FindCoordinatorRequest, self.coordinator)
        self[1].on(OffsetFetchRequest, self.offset_fetch)

    def metadata(self, request: MetadataRequest, version: int) -> MetadataResponse:
        response = super().metadata(request, version)
        topics = [replace(topic, is_internal=topic.name in self.internal) for topic in response.topics]
        return replace(response, topics=topics)

    def coordinator(self, request: FindCoordinatorRequest, _version: int) -> FindCoordinatorResponse:
        found = [
            Coordinator(
                key=key,
                node_id=1,
                host=self[1].host,
                port=self[1].port,
                error_code=ErrorCode.NONE,
                error_message=None,
            )
            for key in request.coordinator_keys
        ]
        return FindCoordinatorResponse(coordinators=found)

    def offset_fetch(self, request: OffsetFetchRequest, _version: int) -> OffsetFetchResponse:
        self.on_lookup()
        (group,) = request.groups
        topics = [
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=self.committed.get(TopicPartition(topic.name, index), -1),
                        metadata=None,
                        error_code=ErrorCode.NONE,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in group.topics or ()
        ]
        answer = OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=ErrorCode.NONE)
        return OffsetFetchResponse(groups=[answer])

    def list_offsets(self, request: ListOffsetsRequest, _version: int) -> ListOffsetsResponse:
        if any(partition.timestamp >= 0 for topic in request.topics for partition in topic.partitions):
            self.on_lookup()
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=asked.partition_index,
                            error_code=ErrorCode.NONE,
                            offset=self.offset_at(
                                TopicPartition(topic.name, asked.partition_index),
                                asked.timestamp,
                                request.isolation_level,
                            ),
                        )
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def offset_at(self, tp: TopicPartition, timestamp: int, isolation_level: int) -> int:
        log = self.logs[tp]
        if timestamp == -2:
            return log.log_start_offset
        if timestamp == -1:
            is_stable = isolation_level == 1 and log.last_stable_offset is not None
            return log.last_stable_offset if is_stable else log.end_offset
        return next((offset for time, offset in self.times.get(tp, ()) if time >= timestamp), -1)
