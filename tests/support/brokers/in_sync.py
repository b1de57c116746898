"""Waiting until a cluster has recovered from a fault, so that the next one is not a second one."""

from __future__ import annotations

from typing import Any

from spark_kafka_native.kafka.admin import Admin
from support.waiting import eventually


def await_in_sync(kafka: Any, replicas: int = 3) -> None:
    """Wait until each partition has all of its replicas in sync."""

    def whole() -> bool:
        topics = admin.describe_topics().values()
        return all(len(one.isr_nodes) == replicas for topic in topics for one in topic.partitions.values())

    with Admin(kafka.bootstrap_servers) as admin:
        eventually(whole, "all replicas in sync", 240)
