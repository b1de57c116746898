"""The one-broker part of `EmbeddedKafka` in a container, where there is Docker: same names and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from .broker_files import HOST, STARTED, ClusterSettings, Ports, build_properties
from .embedded_kafka import create_topic
from .java import KAFKA_VERSION
from .processes import free_ports

IMAGE = f"apache/kafka:{KAFKA_VERSION}"
_LOG_FOLDER = "/tmp/kafka-logs"


class KafkaContainer:
    """One Kafka broker in a Docker container, through testcontainers; PLAINTEXT only."""

    def __init__(self, image: str = IMAGE, startup_timeout_s: int = 120) -> None:
        self._image = image
        self._startup_timeout_s = startup_timeout_s
        self._container: Any = None
        self._port = 0

    def __enter__(self) -> KafkaContainer:
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.waiting_utils import wait_for_logs

        self._port, internal, controller = free_ports(3)
        ports = Ports(listeners={"PLAINTEXT": self._port}, internal=internal, controller=controller)
        properties = build_properties(ClusterSettings(ports={1: ports}), 1, _LOG_FOLDER)
        # Advertised is the address on this machine; inside, the broker listens on every interface, because
        # that is where Docker forwards the published port to.
        client = f"PLAINTEXT://{HOST}:{self._port}"
        properties["listeners"] = properties["listeners"].replace(client, f"PLAINTEXT://0.0.0.0:{self._port}")
        self._container = DockerContainer(self._image).with_bind_ports(self._port, self._port)
        for name, value in properties.items():
            # The image's own rule for names: KAFKA_, capitals, underscores for dots.
            self._container.with_env(f"KAFKA_{name.upper().replace('.', '_')}", value)
        self._container.start()
        try:
            wait_for_logs(self._container, STARTED, timeout=self._startup_timeout_s)
        except BaseException:
            self._container.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._container.stop()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` as this machine reaches it."""
        return f"{HOST}:{self._port}"

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic, wait until every partition has a leader, and return its name."""
        create_topic(
            self.bootstrap_servers, name, partitions, replication_factor=replication_factor, config=config
        )
        return name
