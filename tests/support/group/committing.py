"""A `CommitQueue` of a member at a scripted coordinator, without the member's threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.group.commits import CommitQueue
from spark_kafka_native.kafka.group.group_config import GroupConfig
from spark_kafka_native.kafka.group.membership import Identity
from spark_kafka_native.kafka.group.progress import Progress
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.group_offsets import OffsetCommitRequest

from ..brokers.scripted_group import ScriptedGroup

PARTITIONS = [TopicPartition("a", partition) for partition in range(3)]
WITHIN_S = 120


class Committing:
    """A queue of commits at a scripted group, with a member that has read three partitions up to offset 9."""

    def __init__(self, group: ScriptedGroup) -> None:
        self.group = group
        self.progress = Progress()
        for tp in PARTITIONS:
            self.progress.begin(tp, 0, None)
            self.progress.handed_out(tp, 0, 9)
        self.identity: Identity | None = Identity("me", 1, None)
        self.doubted: list[Identity] = []
        servers = {
            "bootstrap.servers": group.cluster.bootstrap_servers,
            "retry.backoff.ms": "5",
            "retry.backoff.max.ms": "5",
        }
        self.router = Router(ClientConfig.from_properties(servers))
        self.queue = CommitQueue(
            self.router,
            GroupConfig(group_id="g"),
            lambda: self.identity,
            self.progress,
            self.doubted.append,
        )

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self.queue.submit(offsets).result(WITHIN_S)

    def during(self, number: int, act: Callable[[], object]) -> None:
        """``act`` while the coordinator answers request ``number`` (from 1)."""

        def answer(request: OffsetCommitRequest, version: int) -> Any:
            act()
            return self.group.commit(request, version)

        self.group.cluster[1].push(OffsetCommitRequest, *[self.group.commit] * (number - 1), answer)

    @property
    def sent(self) -> list[tuple[int, TopicPartition, int]]:
        """Generation, partition and offset of each request."""
        return [
            (
                request.generation_id_or_member_epoch,
                TopicPartition(topic.name, one.partition_index),
                one.committed_offset,
            )
            for request in self.group.cluster[1].requests(OffsetCommitRequest)
            for topic in request.topics
            for one in topic.partitions
        ]
