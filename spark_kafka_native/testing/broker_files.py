"""The files that a broker starts from: its server.properties, and those that are prepared once per machine.

The properties are pure: settings in, text out. The prepared files make a start fast. They are by-products of
a real format and a real first start, kept in the cache beside the jars:
- ``bootstrap.checkpoint``: Kafka's feature levels as StorageTool writes them. They depend on the release
  alone, not on cluster or node, so a copy saves a second per broker.
- ``classes-<java>.jsa``: a class-data archive (JEP 350), about a second of CPU per start saved. The JVM
  checks by itself that it fits and goes on without it where it does not.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .credentials import Certificates
from .errors import BrokerStartError
from .java import Java, find_java, jars, kafka_folder, locked
from .processes import Guard, free_ports

HOST = "127.0.0.1"
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_PACKAGE = "org.apache.kafka.common.security"
STARTED = "Kafka Server started"
_LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",  # says STARTED
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The ports of one broker: one per client listener, one for its fellow brokers, one for the quorum."""

    listeners: Mapping[str, int]
    internal: int
    controller: int


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """What all brokers of a cluster share. ``ports`` maps node id to the broker's ports."""

    ports: Mapping[int, Ports]
    users: Mapping[str, str] = field(default_factory=dict)
    certificates: Certificates | None = None
    kerberos: tuple[str, str] | None = None
    """The broker's principal and its keytab; None: no GSSAPI."""
    client_auth: str = "none"
    properties: Mapping[str, str] = field(default_factory=dict)


def build_properties(settings: ClusterSettings, node_id: int, log_folder: str) -> dict[str, str]:
    """The properties of one broker that is also a controller; ``settings.properties`` win over ours."""
    ports = settings.ports[node_id]
    bound = {**ports.listeners, "INTERNAL": ports.internal}
    addresses = {name: f"{name}://{HOST}:{port}" for name, port in bound.items()}
    voters = ",".join(f"{voter}@{HOST}:{other.controller}" for voter, other in settings.ports.items())
    protocols = {name: name for name in ports.listeners} | {
        "INTERNAL": "PLAINTEXT",
        "CONTROLLER": "PLAINTEXT",
    }
    made = {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join([*addresses.values(), f"CONTROLLER://{HOST}:{ports.controller}"]),
        "advertised.listeners": ",".join(addresses.values()),
        "inter.broker.listener.name": "INTERNAL",
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in protocols.items()
        ),
        "log.dirs": log_folder,
        **_sizes(len(settings.ports)),
    }
    for name in ports.listeners:
        made |= _security(name, settings)
    return made | dict(settings.properties)


def write_properties(properties: Mapping[str, str]) -> str:
    """The text of a Java properties file (ISO 8859-1 with escapes, as `java.util.Properties` reads it)."""
    return "".join(f"{_escape(name)}={_escape(value)}\n" for name, value in properties.items())


def scram_records(users: Mapping[str, str]) -> list[str]:
    """What ``StorageTool format --add-scram`` takes, one per user and mechanism."""
    return [
        f"{mechanism}=[name={name},password={password}]"
        for mechanism in SCRAM_MECHANISMS
        for name, password in users.items()
    ]


def check_users(users: Mapping[str, str]) -> dict[str, str]:
    """The users as given; `ValueError` for one that neither StorageTool nor a JAAS line can express."""
    for name, password in users.items():
        if not name or not password or set('",[]\\ ') & set(name + password):
            raise ValueError(
                f"user {name!r}: name and password must not be empty or contain any of '\",[]\\ '"
            )
    return dict(users)


def _sizes(brokers: int) -> dict[str, str]:
    """Small, and with short timers: tests wait for elections, group joins and the log cleaner."""
    replicas, in_sync = str(min(brokers, 3)), str(min(brokers, 2))
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "5",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "5",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "5",
        # Among three, a dead one is to be missed soon. One alone is never to be taken for dead, however busy
        # the machine: its partitions would be without a leader until it is believed alive again.
        "broker.session.timeout.ms": "4000" if brokers > 1 else "30000",
        "broker.heartbeat.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "0",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "log.cleaner.backoff.ms": "200",
        "log.cleaner.dedupe.buffer.size": str(8 << 20),  # 128 MiB by default: half of our heap
        "num.network.threads": "2",
        "num.io.threads": "4",
    }


def _security(listener: str, settings: ClusterSettings) -> dict[str, str]:
    prefix = f"listener.name.{listener.lower()}."
    made: dict[str, str] = {}
    if listener.endswith("SSL"):
        if settings.certificates is None:
            raise ValueError(f"the listener {listener} needs certificates")
        made |= {
            f"{prefix}ssl.keystore.type": "PEM",
            f"{prefix}ssl.keystore.location": str(settings.certificates.server),
            f"{prefix}ssl.truststore.type": "PEM",
            f"{prefix}ssl.truststore.location": str(settings.certificates.authority),
            f"{prefix}ssl.client.auth": settings.client_auth,
        }
    if listener.startswith("SASL"):
        accounts = "".join(f' user_{name}="{password}"' for name, password in settings.users.items())
        others = ["OAUTHBEARER"]
        if settings.kerberos is not None:
            principal, keytab = settings.kerberos
            others.append("GSSAPI")
            made["sasl.kerberos.service.name"] = principal.partition("/")[0]
            made[f"{prefix}gssapi.sasl.jaas.config"] = (
                "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
                f'keyTab="{keytab}" principal="{principal}";'
            )
        made[f"{prefix}sasl.enabled.mechanisms"] = ",".join(["PLAIN", *SCRAM_MECHANISMS, *others])
        # Tokens without a signature (`unsigned_token` makes them): for tests only, as Kafka's docs say.
        made[f"{prefix}oauthbearer.sasl.jaas.config"] = (
            f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule required;"
        )
        made[f"{prefix}plain.sasl.jaas.config"] = f"{_PACKAGE}.plain.PlainLoginModule required{accounts};"
        for mechanism in SCRAM_MECHANISMS:
            login = f"{_PACKAGE}.scram.ScramLoginModule required;"
            made[f"{prefix}{mechanism.lower()}.sasl.jaas.config"] = login
    return made


def _escape(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("=", "\\=").replace(":", "\\:")
    # Through UTF-16: java.util.Properties knows only escapes of four digits.
    units = escaped.encode("utf-16-be")
    codes = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    return "".join(chr(code) if code < 127 else f"\\u{code:04x}" for code in codes)


def check_listeners(listeners: Sequence[str]) -> tuple[str, ...]:
    """The listeners as given; `ValueError` names one that is not a security protocol of Kafka."""
    for name in listeners:
        if name not in SECURITY_PROTOCOLS:
            raise ValueError(f"no listener {name!r}: choose among {', '.join(SECURITY_PROTOCOLS)}")
    if not listeners or len(set(listeners)) != len(listeners):
        raise ValueError(
            f"listeners must name at least one protocol, and each only once, not {list(listeners)}"
        )
    return tuple(listeners)


@dataclass(frozen=True, kw_only=True)
class BrokerImage:
    """What every broker on this machine starts from."""

    java: Java
    classpath: str
    checkpoint: Path
    archive: Path | None

    def command(self, properties: Path, jvm_options: Sequence[str]) -> list[str]:
        """The command line of a broker in the foreground."""
        archive = (
            [f"-XX:SharedArchiveFile={self.archive}", "-Xshare:auto", "-Xlog:disable"] if self.archive else []
        )
        return [
            str(self.java.executable),
            *archive,
            *_quiet(properties.parent),
            *jvm_options,
            *_LOGGING,
            *("-cp", self.classpath, "kafka.Kafka", str(properties)),
        ]

    def format(self, log_folder: Path, cluster_id: str, node_id: int, checkpoint: Path | None = None) -> None:
        """Make ``log_folder`` what ``StorageTool format`` makes of it (KIP-858 has meta.properties)."""
        log_folder.mkdir(parents=True)
        meta = {
            "version": "1",
            "cluster.id": cluster_id,
            "node.id": str(node_id),
            "directory.id": random_id(),
        }
        (log_folder / "meta.properties").write_text(write_properties(meta), encoding="ascii")
        shutil.copyfile(checkpoint or self.checkpoint, log_folder / "bootstrap.checkpoint")


def _quiet(folder: Path) -> list[str]:
    """Leave nothing elsewhere: codecs are unpacked into the temp folder, and a killed JVM removes none."""
    return ["-XX:-UsePerfData", f"-Djava.io.tmpdir={folder}"]


def random_id() -> str:
    """A UUID the way Kafka writes them: 22 characters of URL-safe base64, never with a dash in front."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def broker_image() -> BrokerImage:
    """The image for this machine's Java.

    Made on the first call, under a lock, and read from the cache afterwards.
    """
    java, folder = find_java(), kafka_folder()
    classpath = os.pathsep.join(str(jar) for jar in jars())
    checkpoint, archive = folder / "bootstrap.checkpoint", folder / f"classes-{java.version}.jsa"
    if not checkpoint.exists() or not archive.exists():
        with locked(folder / "image.lock"):
            if not checkpoint.exists():
                _write_checkpoint(java, classpath, checkpoint, {})
            if not archive.exists():
                _write_archive(java, classpath, checkpoint, archive)
    usable = archive if archive.exists() and archive.stat().st_size else None
    return BrokerImage(java=java, classpath=classpath, checkpoint=checkpoint, archive=usable)


def write_scram_checkpoint(image: BrokerImage, path: Path, users: Mapping[str, str]) -> None:
    """A checkpoint that holds SCRAM credentials too.

    These are salted, so StorageTool runs for them (about 1 s).
    """
    _write_checkpoint(image.java, image.classpath, path, users)


def _write_checkpoint(java: Java, classpath: str, path: Path, users: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="spark-kafka-native-format-") as name:
        folder = Path(name)
        properties = folder / "server.properties"
        # Named in the file, but never opened.
        ports = Ports(listeners={"PLAINTEXT": 1}, internal=2, controller=3)
        settings = ClusterSettings(ports={1: ports})
        properties.write_text(
            write_properties(build_properties(settings, 1, str(folder / "log"))), encoding="ascii"
        )
        scram = [argument for record in scram_records(users) for argument in ("--add-scram", record)]
        command = [
            *(
                str(java.executable),
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                *_LOGGING,
                *_quiet(folder),
            ),
            *("-cp", classpath, "kafka.tools.StorageTool"),
            *("format", "-t", random_id(), "-c", str(properties)),
        ]
        # A JVM reads its arguments in the locale: without one, accounts of any script would be mangled.
        ran = subprocess.run(
            [*command, *scram],
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        made = folder / "log" / "bootstrap.checkpoint"
        if ran.returncode or not made.exists():
            raise BrokerStartError("StorageTool could not format a broker's folder", ran.stdout + ran.stderr)
        _publish(made, path)


def _write_archive(java: Java, classpath: str, checkpoint: Path, archive: Path) -> None:
    """Start a broker once, with the archive written as it stops.

    An empty file records that it did not work out.
    """
    guard = Guard("spark-kafka-native-archive-")
    try:
        dumped = guard.folder / archive.name
        image = BrokerImage(java=java, classpath=classpath, checkpoint=checkpoint, archive=None)
        ports = free_ports(3)
        settings = ClusterSettings(
            ports={1: Ports(listeners={"PLAINTEXT": ports[0]}, internal=ports[1], controller=ports[2])}
        )
        properties, log, output = (guard.folder / part for part in ("server.properties", "log", "output"))
        properties.write_text(write_properties(build_properties(settings, 1, str(log))), encoding="ascii")
        image.format(log, random_id(), 1)
        options = ["-Xmx512m", "-XX:+UseSerialGC", f"-XX:ArchiveClassesAtExit={dumped}"]
        process = guard.start(image.command(properties, options), output=output)
        _await_start(output)
        process.send(signal.SIGTERM)
        process.wait(60)
        if not dumped.exists():
            dumped.touch()
        _publish(dumped, archive)
    except TimeoutError:
        archive.touch()
    finally:
        guard.close()


def _await_start(output: Path, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while STARTED not in output.read_text(encoding="utf-8", errors="replace"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no broker after {timeout_s:g} s")
        time.sleep(0.1)


def _publish(made: Path, path: Path) -> None:
    """Move a finished file into the cache in one step, across file systems too."""
    partial = path.with_name(path.name + ".partial")
    shutil.copyfile(made, partial)
    partial.replace(path)
