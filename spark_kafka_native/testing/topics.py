"""Creating topics on a test cluster, through our own client."""

from __future__ import annotations

from collections.abc import Mapping

from ..kafka.admin import Admin, NewTopic
from ..kafka.cluster.router import Router
from ..kafka.config import ClientConfig


def create_topic(
    bootstrap_servers: str,
    name: str,
    partitions: int,
    *,
    replication_factor: int | None = None,
    config: Mapping[str, object] | None = None,
) -> None:
    """Create a topic and wait until every partition has a leader."""
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
    finally:
        router.close()
