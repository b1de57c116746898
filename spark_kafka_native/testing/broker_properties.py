"""What stands in a broker's server.properties. Pure: settings in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .certificates import Certificates

HOST = "127.0.0.1"
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_PACKAGE = "org.apache.kafka.common.security"


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
        made[f"{prefix}sasl.enabled.mechanisms"] = ",".join(["PLAIN", *SCRAM_MECHANISMS, "OAUTHBEARER"])
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
