"""A real Apache Kafka for tests, demo and notebooks.

One or three brokers (KRaft) on this machine, no Docker: `EmbeddedKafka` is the cluster, `EmbeddedBroker` the
process, folder and controls of one broker. `create_topic` and `allow` work on any test cluster.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ..kafka.admin import Admin, NewTopic
from ..kafka.admin.acls import Acl
from ..kafka.cluster.router import Router
from ..kafka.config.client_config import ClientConfig
from ..kafka.errors import BrokerError
from ..kafka.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from .broker_files import (
    HOST,
    STARTED,
    BrokerImage,
    ClusterSettings,
    Ports,
    broker_image,
    build_properties,
    check_listeners,
    check_users,
    random_id,
    write_properties,
    write_scram_checkpoint,
)
from .credentials import Certificates, write_certificates
from .embedded_kdc import SERVICE, EmbeddedKdc
from .errors import BrokerStartError
from .processes import EmbeddedService, Guard, GuardedProcess, free_ports, is_free

_START_TRIES = 3  # a port that was free when we looked may be taken by the time the broker binds it
_LAST_PORT: Final = 65_535

ACLS: Final[Mapping[str, str]] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Broker settings: all operations need a grant, except for clients of listeners without an identity."""


class EmbeddedKafka(EmbeddedService):
    """A Kafka cluster that lives as long as the ``with`` block, and never longer than this process.

    ``brokers``: 1 or 3, each also a controller; with three, replication factor 3 and min.insync.replicas 2.
    ``listeners``: which of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL clients may use; each gets a free
    port, or ``port``, ``port + 1``, ... in order of broker and listener. ``users``: name to password, for
    SASL PLAIN, SCRAM-SHA-256 and -512; OAUTHBEARER takes any `unsigned_token`. ``client_auth``: "none",
    "requested" or "required" client certificates.
    ``kerberos``: the SASL listeners also take GSSAPI; `kdc` makes principals and keytabs.
    ``properties``: broker settings that win over ours. ``heap_mb``, ``jvm_options``: per broker.

    Raises `JavaUnavailableError`, `JarsUnavailableError` or `BrokerStartError`, each with what to do.
    """

    _folder_prefix = "spark-kafka-native-broker-"

    def __init__(  # noqa: PLR0913 - a user's choices, each with a default
        self,
        brokers: int = 1,
        *,
        listeners: Sequence[str] = ("PLAINTEXT",),
        users: Mapping[str, str] | None = None,
        client_auth: str = "none",
        kerberos: bool = False,
        properties: Mapping[str, object] | None = None,
        heap_mb: int = 512,
        jvm_options: Sequence[str] = (),
        port: int | None = None,
        startup_timeout_s: float = 60,
    ) -> None:
        if brokers not in (1, 3):
            raise ValueError(f"brokers must be 1 or 3 (a quorum), not {brokers}")
        self.listeners = check_listeners(listeners)
        highest = _LAST_PORT + 1 - brokers * len(self.listeners)
        if port is not None and port > highest:
            raise ValueError(f"port is {port}: the first of these listeners has at most {highest}")
        self.users = check_users({"alice": "alice-secret"} if users is None else users)
        self.certificates: Certificates | None = None
        self.cluster_id = random_id()
        self._node_ids = range(1, brokers + 1)
        self.kdc: EmbeddedKdc | None = EmbeddedKdc() if kerberos else None
        """The KDC of its realm, as long as the cluster runs; None without ``kerberos``."""
        self._client_auth = client_auth
        self._properties = {name: str(value) for name, value in (properties or {}).items()}
        # Three brokers share the cores with what they test: the quick compiler alone saves them a third of
        # the CPU that a start takes. One broker keeps the other: benchmarks run against it.
        quick = ["-XX:TieredStopAtLevel=1"] if brokers > 1 else []
        self._jvm_options = (f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", *quick, *jvm_options)
        self._port = port
        self._startup_timeout_s = startup_timeout_s
        self._brokers: dict[int, EmbeddedBroker] = {}

    def __repr__(self) -> str:
        return f"EmbeddedKafka({', '.join(map(repr, self._brokers.values())) or 'not started'})"

    def close(self) -> None:
        """Kill every broker and remove their folder. Harmless when repeated."""
        self._brokers = {}
        try:
            super().close()
        finally:
            if self.kdc is not None:
                self.kdc.close()

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
        create_topic(
            self._internal_servers(), name, partitions, replication_factor=replication_factor, config=config
        )
        return name

    def allow(self, user: str, operation: str, resource: str, name: str) -> None:
        """Let ``user`` do ``operation`` to a topic, group, cluster or transactional_id; see
        `ACLS`.
        """
        allow(self._internal_servers(), user, operation, resource, name)

    def _internal_servers(self) -> str:
        self._running_guard()
        return ",".join(f"{HOST}:{broker.ports.internal}" for broker in self._brokers.values())

    def _start(self, guard: Guard) -> None:
        image = broker_image()
        if any(name.endswith("SSL") for name in self.listeners):
            self.certificates = write_certificates(guard.folder / "certificates", HOST, "localhost", "::1")
        if self.kdc is not None:
            self.kdc.start()
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
            kerberos=None if self.kdc is None else (SERVICE, str(self.kdc.keytab(SERVICE))),
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
                jvm_options=(*self._jvm_options, *(() if self.kdc is None else self.kdc.jvm_options)),
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


class EmbeddedBroker:
    """A broker in a process of its own. Made by `EmbeddedKafka`; used by one thread at a time.

    ``folder`` holds ``server.properties``, the data under ``log/`` and what the broker said in ``output``.
    """

    def __init__(  # noqa: PLR0913 - what a process is started with
        self,
        *,
        guard: Guard,
        image: BrokerImage,
        node_id: int,
        ports: Ports,
        folder: Path,
        jvm_options: Sequence[str],
        startup_timeout_s: float,
    ) -> None:
        self.node_id = node_id
        self.ports = ports
        self.folder = folder
        self._guard = guard
        self._command = image.command(folder / "server.properties", jvm_options)
        self._startup_timeout_s = startup_timeout_s
        self._process: GuardedProcess | None = None
        self._output_start = 0

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else "not running"
        return f"EmbeddedBroker(node_id={self.node_id}, {state}, folder={str(self.folder)!r})"

    @property
    def output(self) -> Path:
        """The file with everything the broker wrote, over all its starts."""
        return self.folder / "output"

    @property
    def pid(self) -> int | None:
        """Process id of its last start, None before the first."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """True while its process exists, paused or not."""
        return self._process is not None and self._process.returncode is None

    def address(self, listener: str) -> str:
        """``host:port`` of a client listener; `KeyError` names one that the broker lacks."""
        return f"{HOST}:{self.ports.listeners[listener]}"

    def start(self) -> None:
        """Start it without waiting; see `await_ready`. Data from an earlier run is kept."""
        self._output_start = self.output.stat().st_size if self.output.exists() else 0
        self._process = self._guard.start(self._command, output=self.output, cwd=self.folder)

    def await_ready(self) -> None:
        """Wait until the broker serves clients.

        `BrokerStartError` with the end of its output when it never does.
        """
        deadline = time.monotonic() + self._startup_timeout_s
        while not (said := self._said()).count(STARTED):
            if not self.running:
                raise BrokerStartError(f"broker {self.node_id} ended while starting", said)
            if time.monotonic() > deadline:
                raise BrokerStartError(
                    f"broker {self.node_id} was not ready after {self._startup_timeout_s:g} s", said
                )
            time.sleep(0.03)

    def kill(self) -> None:
        """SIGKILL: it ends at once, without a goodbye to its clients, and flushes nothing."""
        self._end(signal.SIGKILL, 10)

    def stop(self, timeout_s: float = 30) -> None:
        """SIGTERM: it hands over its leaderships and closes its logs.

        Killed when it takes longer than ``timeout_s``.
        """
        try:
            self._end(signal.SIGTERM, timeout_s)
        except TimeoutError:
            self.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        if self._process:
            self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on from where `pause` held it."""
        if self._process:
            self._process.send(signal.SIGCONT)

    def restart(self, *, graceful: bool = True) -> None:
        """Stop it (kill it, if not ``graceful``) and start it on its ports and data; returns when ready."""
        if self.running:
            self.stop() if graceful else self.kill()
        self.start()
        self.await_ready()

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        if self._process and self._process.send(number):
            if number == signal.SIGTERM:
                self._process.send(signal.SIGCONT)  # a paused broker hears it only once it goes on
            self._process.wait(timeout_s)

    def _said(self) -> str:
        with self.output.open("rb") as file:
            file.seek(self._output_start)
            return file.read().decode(errors="replace")


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


def allow(bootstrap_servers: str, user: str, operation: str, resource: str, name: str) -> None:
    """Let ``user`` do ``operation`` to a ``resource`` (topic, group, cluster or transactional_id).

    ``bootstrap_servers`` are those of a listener that permits everything; the name of the cluster is
    ``kafka-cluster``. Raises `BrokerError`.
    """
    with Admin(bootstrap_servers) as admin:
        admin.create_acls([Acl(resource=resource, name=name, principal=f"User:{user}", operation=operation)])
