"""What a group has committed, asked by a client that is no member."""

from __future__ import annotations

from typing import Any

from spark_kafka_native.kafka import ClientConfig, Router, TopicPartition, committed_offsets


def committed(kafka: Any, group: str, topic: str, partitions: int) -> list[int | None]:
    """The offset of each partition."""
    router = Router(ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,)))
    try:
        wanted = [TopicPartition(topic, number) for number in range(partitions)]
        return list(committed_offsets(router, group, wanted).values())
    finally:
        router.close()
