"""A real Apache Kafka for tests, demo and notebooks.

One or three brokers (KRaft) on this machine, no Docker.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from .acls import allow
from .broker_image import BrokerImage, broker_image, random_id, write_scram_checkpoint
from .broker_properties import (
    HOST,
    ClusterSettings,
    Ports,
    build_properties,
    check_listeners,
    check_users,
    write_properties,
)
from .certificates import Certificates, write_certificates
from .embedded_broker import EmbeddedBroker
from .errors import BrokerStartError
from .guard import Guard
from .ports import free_ports, is_free
from .topics import create_topic

_START_TRIES = 3  # a port that was free when we looked may be taken by the time the broker binds it


class EmbeddedKafka:
    """A Kafka cluster that lives as long as the ``with`` block, and never longer than this process.

    ``brokers``: 1 or 3, each also a controller; with three, replication factor 3 and min.insync.replicas 2.
    ``listeners``: which of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL clients may use; each gets a free
    port, or ``port``, ``port + 1``, ... in order of broker and listener. ``users``: name to password, for
    SASL PLAIN, SCRAM-SHA-256 and -512; OAUTHBEARER takes any `unsigned_token`. ``client_auth``: "none",
    "requested" or "required" client certificates.
    ``properties``: broker settings that win over ours. ``heap_mb``, ``jvm_options``: per broker.

    Raises `JavaUnavailableError`, `JarsUnavailableError` or `BrokerStartError`, each with what to do.
    """

    def __init__(  # noqa: PLR0913 - a user's choices, each with a default
        self,
        brokers: int = 1,
        *,
        listeners: Sequence[str] = ("PLAINTEXT",),
        users: Mapping[str, str] | None = None,
        client_auth: str = "none",
        properties: Mapping[str, object] | None = None,
        heap_mb: int = 512,
        jvm_options: Sequence[str] = (),
        port: int | None = None,
        startup_timeout_s: float = 60,
    ) -> None:
        if brokers not in (1, 3):
            raise ValueError(f"brokers must be 1 or 3 (a quorum), not {brokers}")
        self.listeners = check_listeners(listeners)
        self.users = check_users({"alice": "alice-secret"} if users is None else users)
        self.certificates: Certificates | None = None
        self.cluster_id = random_id()
        self._node_ids = range(1, brokers + 1)
        self._client_auth = client_auth
        self._properties = {name: str(value) for name, value in (properties or {}).items()}
        # Three brokers share the cores with what they test: the quick compiler alone saves them a third of
        # the CPU that a start takes. One broker keeps the other: benchmarks run against it.
        quick = ["-XX:TieredStopAtLevel=1"] if brokers > 1 else []
        self._jvm_options = (f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", *quick, *jvm_options)
        self._port = port
        self._startup_timeout_s = startup_timeout_s
        self._guard: Guard | None = None
        self._brokers: dict[int, EmbeddedBroker] = {}

    def __enter__(self) -> EmbeddedKafka:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"EmbeddedKafka({', '.join(map(repr, self._brokers.values())) or 'not started'})"

    def start(self) -> EmbeddedKafka:
        """Start all brokers and wait until they serve clients. The ``with`` statement calls it."""
        if self._guard:
            raise RuntimeError("this EmbeddedKafka is already running")
        image = broker_image()
        self._guard = Guard("spark-kafka-native-broker-")
        try:
            self._start(image, self._guard)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill every broker and remove their folder. Harmless when repeated."""
        guard, self._guard = self._guard, None
        self._brokers = {}
        if guard:
            guard.close()

    @property
    def folder(self) -> Path:
        """The folder of everything this cluster writes; gone once it is closed."""
        return self._running_guard().folder

    @property
    def brokers(self) -> tuple[EmbeddedBroker, ...]:
        """All brokers, by ascending node id."""
        return tuple(self._brokers.values())

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,...`` of the first listener."""
        return self.bootstrap_servers_for(self.listeners[0])

    def bootstrap_servers_for(self, listener: str) -> str:
        """``host:port,...`` of a listener, by its security protocol."""
        self._running_guard()
        if listener not in self.listeners:
            raise ValueError(
                f"no listener {listener}: this cluster was started with {', '.join(self.listeners)}"
            )
        return ",".join(broker.address(listener) for broker in self._brokers.values())

    def broker(self, node_id: int) -> EmbeddedBroker:
        """The broker with that node id. Node ids start at 1."""
        if node_id not in self._brokers:
            raise ValueError(f"no broker {node_id}: there are {list(self._brokers)}")
        return self._brokers[node_id]

    def kill(self, node_id: int) -> None:
        """SIGKILL a broker."""
        self.broker(node_id).kill()

    def stop(self, node_id: int) -> None:
        """Stop a broker in good order."""
        self.broker(node_id).stop()

    def pause(self, node_id: int) -> None:
        """SIGSTOP a broker: its connections stay open and nothing answers."""
        self.broker(node_id).pause()

    def resume(self, node_id: int) -> None:
        """SIGCONT a broker."""
        self.broker(node_id).resume()

    def restart(self, node_id: int, *, graceful: bool = True) -> None:
        """Restart a broker on its ports and data; returns when it serves clients."""
        self.broker(node_id).restart(graceful=graceful)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic, wait until every partition has a leader, and return its name."""
        internal = ",".join(f"{HOST}:{broker.ports.internal}" for broker in self._brokers.values())
        create_topic(internal, name, partitions, replication_factor=replication_factor, config=config)
        return name

    def allow(self, user: str, operation: str, resource: str, name: str) -> None:
        """Let ``user`` do ``operation`` to a topic, group, cluster or transactional_id; see
        `testing.acls`.
        """
        internal = ",".join(f"{HOST}:{broker.ports.internal}" for broker in self._brokers.values())
        allow(internal, user, operation, resource, name)

    def _start(self, image: BrokerImage, guard: Guard) -> None:
        if any(name.endswith("SSL") for name in self.listeners):
            self.certificates = write_certificates(guard.folder / "certificates", HOST, "localhost", "::1")
        checkpoint = None
        if any(name.startswith("SASL") for name in self.listeners) and self.users:
            checkpoint = guard.folder / "bootstrap.checkpoint"
            write_scram_checkpoint(image, checkpoint, self.users)
        for attempt in range(1, _START_TRIES + 1):
            try:
                self._start_brokers(image, guard, checkpoint)
                return
            except BrokerStartError as error:
                for broker in self._brokers.values():
                    broker.kill()
                if "Address already in use" not in str(error) or self._port or attempt == _START_TRIES:
                    raise
                shutil.rmtree(guard.folder / "brokers")

    def _start_brokers(self, image: BrokerImage, guard: Guard, checkpoint: Path | None) -> None:
        settings = ClusterSettings(
            ports=self._choose_ports(),
            users=self.users,
            certificates=self.certificates,
            client_auth=self._client_auth,
            properties=self._properties,
        )
        for node_id, ports in settings.ports.items():
            folder = guard.folder / "brokers" / str(node_id)
            folder.mkdir(parents=True)
            properties = build_properties(settings, node_id, str(folder / "log"))
            (folder / "server.properties").write_text(write_properties(properties), encoding="ascii")
            image.format(folder / "log", self.cluster_id, node_id, checkpoint)
            self._brokers[node_id] = EmbeddedBroker(
                guard=guard,
                image=image,
                node_id=node_id,
                ports=ports,
                folder=folder,
                jvm_options=self._jvm_options,
                startup_timeout_s=self._startup_timeout_s,
            )
        for broker in self._brokers.values():
            broker.start()
        for broker in self._brokers.values():
            broker.await_ready()

    def _choose_ports(self) -> dict[int, Ports]:
        brokers, listeners = len(self._node_ids), len(self.listeners)
        outer = list(range(self._port, self._port + brokers * listeners)) if self._port else []
        for port in outer:
            if not is_free(HOST, port):
                raise BrokerStartError(
                    f"port {port} of {HOST} is taken (Address already in use): choose another, or none at all"
                )
        found = [port for port in free_ports((3 + listeners) * brokers + len(outer)) if port not in outer]
        inner, outer = found[: 2 * brokers], outer or found[2 * brokers :]
        return {
            node_id: Ports(
                listeners=dict(zip(self.listeners, outer[i * listeners : (i + 1) * listeners], strict=True)),
                internal=inner[2 * i],
                controller=inner[2 * i + 1],
            )
            for i, node_id in enumerate(self._node_ids)
        }

    def _running_guard(self) -> Guard:
        if self._guard is None:
            raise RuntimeError(
                "this EmbeddedKafka is not running: use it in a with statement, or call start()"
            )
        return self._guard
