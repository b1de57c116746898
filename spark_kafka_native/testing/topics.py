"""Creating topics on a test cluster, through our own client."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ..kafka.admin import Admin, NewTopic
from ..kafka.cluster.router import Router
from ..kafka.config.client_config import ClientConfig
from ..kafka.errors import BrokerError
from ..kafka.protocol.api.metadata import MetadataRequest, MetadataRequestTopic


def create_topic(
    bootstrap_servers: str,
    name: str,
    partitions: int,
    *,
    replication_factor: int | None = None,
    config: Mapping[str, object] | None = None,
) -> None:
    """Create a topic, and wait until every partition has a leader and every broker knows of it."""
    topic = NewTopic(
        name=name,
        partitions=partitions,
        replication_factor=replication_factor,
        configs={key: str(value) for key, value in (config or {}).items()},
    )
    # A router of its own, not the process's: the address is that of a cluster which is soon gone.
    router = Router(ClientConfig(bootstrap_servers=tuple(bootstrap_servers.split(","))))
    try:
        Admin(router).create_topics([topic])
        for node_id in sorted(router.snapshot.brokers):
            router.retry(
                partial(_check_known, router, node_id, name),
                what=f"waiting until broker {node_id} knows of topic {name}",
                deadline=router.deadline(),
            )
    finally:
        router.close()


def _check_known(router: Router, node_id: int, name: str) -> None:
    # The next request may go to any broker, and one that lags would call the topic unknown.
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    for topic in router.send_to(node_id, request, router.deadline()).topics:
        if topic.error_code:
            raise BrokerError(topic.error_code, f"topic {name}")
