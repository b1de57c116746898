"""Waiting until a cluster has recovered from a fault, so that the next one is not a second one, or until each
of its brokers knows of a change."""

from __future__ import annotations

from functools import partial
from typing import Any

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from support.waiting import eventually


def await_in_sync(kafka: Any, replicas: int = 3) -> None:
    """Wait until each partition has all of its replicas in sync."""

    def whole() -> bool:
        topics = admin.describe_topics().values()
        return all(len(one.isr_nodes) == replicas for topic in topics for one in topic.partitions.values())

    with Admin(kafka.bootstrap_servers) as admin:
        eventually(whole, "all replicas in sync", 240)


def await_partitions(kafka: Any, topic: str, count: int) -> None:
    """Wait until each broker lists that number of partitions. A client may ask any of them, and one that is
    paused before it knows gives its former answer when it runs again."""
    router = Router(ClientConfig(bootstrap_servers=tuple(kafka.bootstrap_servers.split(","))))
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)

    def known(node_id: int) -> bool:
        router.metadata((topic,), refresh=True)
        if node_id not in router.snapshot.brokers:  # it was paused, and is not back yet
            return False
        (found,) = router.send_to(node_id, request, router.deadline()).topics
        return len(found.partitions) == count

    try:
        for broker in kafka.brokers:
            eventually(partial(known, broker.node_id), f"{count} partitions at broker {broker.node_id}", 240)
    finally:
        router.close()
