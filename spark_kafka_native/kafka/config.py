"""What a caller may set: frozen, hashable, picklable values, parsed once from Kafka's own (Java's) property
names.

Nothing here opens a file or a socket: a `ClientConfig` is plain data that Spark ships to executors.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from .errors import ConfigError
from .model import Acks, IsolationLevel
from .properties import Properties, property_field

MAX_RESPONSE_BYTES = 100 * 1024 * 1024
"""No response is larger, whatever its length prefix says; librdkafka's ``receive.message.max.bytes`` is the
same.
"""
MAX_BATCH_BYTES = 256 * 1024 * 1024
"""No record batch is decompressed to more: 1 MiB of zstd can claim 32 GiB."""
INT32_MAX = 2**31 - 1


class SecurityProtocol(enum.Enum):
    """How a listener is spoken to; Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def _isolation_level(text: str) -> IsolationLevel:
    try:
        return IsolationLevel[text.strip().upper()]
    except KeyError:
        raise ValueError("must be read_uncommitted or read_committed") from None


def _acks(text: str) -> Acks:
    try:
        return {"all": Acks.ALL, "-1": Acks.ALL, "1": Acks.LEADER, "0": Acks.NONE}[text.strip().lower()]
    except KeyError:
        raise ValueError("must be all (or -1), 1 or 0") from None


def _compression_type(text: str) -> str:
    if text.strip().lower() not in COMPRESSION_TYPES:
        raise ValueError(f"must be one of {', '.join(COMPRESSION_TYPES)}")
    return text.strip().lower()


def _security_protocol(text: str) -> SecurityProtocol:
    try:
        return SecurityProtocol[text.strip().upper()]
    except KeyError:
        raise ValueError(f"must be one of {', '.join(p.name for p in SecurityProtocol)}") from None


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(address.strip() for address in text.split(",") if address.strip())


def _checks_hostname(text: str) -> bool:
    """``ssl.endpoint.identification.algorithm``: https checks the broker's name, empty (or none) does not."""
    if text.strip().lower() not in ("", "none", "https"):
        raise ValueError("must be https, or empty to accept a certificate of any host name")
    return text.strip().lower() == "https"


def _text(text: str) -> str:
    return text


@dataclass(frozen=True, kw_only=True)
class SecurityConfig(Properties):
    """How connections are encrypted and proven. PEM only; SASL comes later and is refused until then."""

    protocol: SecurityProtocol = property_field(  # noqa: RUF009 - it returns a field
        "security.protocol", SecurityProtocol.PLAINTEXT, _security_protocol
    )
    ca_location: str | None = property_field("ssl.truststore.location", None, _text)
    """File of PEM certificates to trust; None trusts the system's."""
    ca_pem: str | None = property_field("ssl.truststore.certificates", None, _text)
    """The same, inline (KIP-651)."""
    certificate_location: str | None = property_field("ssl.keystore.location", None, _text)
    """File with the client's certificate chain and private key, PEM."""
    certificate_pem: str | None = property_field("ssl.keystore.certificate.chain", None, _text)
    key_pem: str | None = property_field("ssl.keystore.key", None, _text, secret=True)
    key_password: str | None = property_field("ssl.key.password", None, _text, secret=True)
    check_hostname: bool = property_field("ssl.endpoint.identification.algorithm", True, _checks_hostname)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL):
            raise ConfigError(
                f"security.protocol={self.protocol.name} is not supported yet: "
                "this version speaks PLAINTEXT and SSL"
            )
        for name, location in (("truststore", self.ca_location), ("keystore", self.certificate_location)):
            if location and location.lower().endswith((".jks", ".p12", ".pfx")):
                raise ConfigError(
                    f"ssl.{name}.location={location} is a Java or PKCS#12 store; give PEM instead: "
                    f"keytool -importkeystore -srckeystore {location} -destkeystore store.p12 "
                    "-deststoretype PKCS12, "
                    f"then openssl pkcs12 -in store.p12 -out {name}.pem -nodes"
                )
        if (self.certificate_pem is None) != (self.key_pem is None):
            raise ConfigError("ssl.keystore.certificate.chain and ssl.keystore.key must be given together")

    @property
    def encrypted(self) -> bool:
        """Whether connections speak TLS."""
        return self.protocol in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, kw_only=True)
class ClientConfig(Properties):
    """Everything that reaching a cluster takes. Two equal configs share their connections within a
    process.
    """

    bootstrap_servers: tuple[str, ...] = property_field("bootstrap.servers", (), _addresses)
    """``host:port`` of some brokers; IPv6 hosts in brackets. Never empty."""
    client_id: str = property_field("client.id", "spark-kafka-native", _text)
    client_rack: str = property_field("client.rack", "", _text)
    """Fetch from a replica in this rack where there is one (KIP-392); empty for always the leader."""
    request_timeout_ms: int = property_field("request.timeout.ms", 30_000, least=1, most=INT32_MAX)
    """No answer for so long closes the connection."""
    default_api_timeout_ms: int = property_field("default.api.timeout.ms", 60_000, least=1, most=INT32_MAX)
    """An operation with its retries."""
    connection_setup_timeout_ms: int = property_field(
        "socket.connection.setup.timeout.ms", 10_000, least=1, most=INT32_MAX
    )
    """One address: TCP connect, and then again for TLS and the first answer."""
    connections_max_idle_ms: int = property_field("connections.max.idle.ms", 540_000, least=1)
    retry_backoff_ms: int = property_field("retry.backoff.ms", 100, least=0, most=INT32_MAX)
    retry_backoff_max_ms: int = property_field("retry.backoff.max.ms", 1_000, least=0, most=INT32_MAX)
    metadata_max_age_ms: int = property_field("metadata.max.age.ms", 300_000, least=0)
    receive_buffer_bytes: int = property_field("receive.buffer.bytes", -1, least=-1, most=INT32_MAX)
    """SO_RCVBUF; -1 leaves it to the system, which sizes it as the connection goes."""
    send_buffer_bytes: int = property_field("send.buffer.bytes", -1, least=-1, most=INT32_MAX)
    max_response_bytes: int = property_field(
        "receive.message.max.bytes", MAX_RESPONSE_BYTES, least=1_000, most=INT32_MAX
    )
    """A frame that claims more closes its connection before anything is allocated."""
    security: SecurityConfig = SecurityConfig()

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """As `Properties.from_properties`, the ``security`` part included."""
        return cls(security=SecurityConfig.from_properties(properties), **cls._parse(properties))

    @classmethod
    def property_names(cls) -> frozenset[str]:
        """As `Properties.property_names`, the ``security`` part included."""
        return super().property_names() | SecurityConfig.property_names()

    def __post_init__(self) -> None:
        super().__post_init__()
        given: object = self.bootstrap_servers
        if isinstance(given, str):  # which would pass for a tuple of one-letter addresses
            raise ConfigError(
                f"bootstrap_servers must be a tuple, as ({given!r},); "
                'ClientConfig.from_properties({"bootstrap.servers": ...}) takes a string'
            )
        if not self.bootstrap_servers:
            raise ConfigError("bootstrap.servers must name at least one broker as host:port")
        for address in self.bootstrap_servers:
            split_address(address)


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(Properties):
    """How records are fetched."""

    fetch_min_bytes: int = property_field("fetch.min.bytes", 1, least=0, most=INT32_MAX)
    fetch_max_wait_ms: int = property_field("fetch.max.wait.ms", 500, least=0, most=INT32_MAX)
    fetch_max_bytes: int = property_field("fetch.max.bytes", 50 * 1024 * 1024, least=1, most=INT32_MAX)
    """One response, all its partitions together."""
    max_partition_fetch_bytes: int = property_field(
        "max.partition.fetch.bytes", 4 * 1024 * 1024, least=1, most=INT32_MAX
    )
    """One partition in a response; a single larger batch comes nevertheless."""
    isolation_level: IsolationLevel = property_field(  # noqa: RUF009 - it returns a field
        "isolation.level", IsolationLevel.READ_UNCOMMITTED, _isolation_level
    )
    check_crcs: bool = property_field("check.crcs", True, _boolean)
    max_batch_bytes: int = property_field(
        "max.decompressed.batch.bytes", MAX_BATCH_BYTES, least=1, most=INT32_MAX
    )
    poll_timeout_ms: int = property_field("poll.timeout.ms", 120_000, least=1, most=INT32_MAX)
    """A partition that makes no progress for so long fails with its offset."""
    end_of_log_wait_ms: int = property_field("end.of.log.wait.ms", 5_000, least=0, most=INT32_MAX)
    """How long a range may wait at the log's end for records that it was promised.

    A new leader's high watermark can lag behind the one that a range was planned with, for about a second."""


COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(Properties):
    """How records are produced. Names are Java's, or librdkafka's where Java has none."""

    acks: Acks = property_field("acks", Acks.ALL, _acks)  # noqa: RUF009 - it returns a field
    """Which replicas must have a batch before it counts as written."""
    enable_idempotence: bool | None = property_field("enable.idempotence", None, _boolean)
    """Whether the brokers drop what a retry sends twice. None: yes, where acks=all and the limits
    allow it.
    """
    batch_size: int = property_field("batch.size", 1_000_000, least=0, most=INT32_MAX)
    """Bytes of a record batch before compression, at most; 0 sends every record alone.

    Java's 16 KB are for records that come one by one; a column is there at once, and large batches cost
    everybody less.
    """
    batch_records: int = property_field("batch.num.messages", 100_000, least=1, most=INT32_MAX)
    """Records of a record batch, at most."""
    linger_ms: int = property_field("linger.ms", 5, least=0, most=INT32_MAX)
    """How long a batch that is not full waits for more records."""
    buffer_memory: int = property_field("buffer.memory", 64 * 1024 * 1024, least=1)
    """Bytes of records accepted and not yet delivered, at most."""
    max_buffered_records: int = property_field("queue.buffering.max.messages", 10_000_000, least=1)
    """As ``buffer_memory``, counted in records."""
    max_block_ms: int = property_field("max.block.ms", 60_000, least=0)
    """How long a full buffer, or a topic that is not known yet, holds up the caller."""
    block_on_buffer_full: bool = property_field("block.on.buffer.full", True, _boolean)
    """False: a full buffer raises at once."""
    max_in_flight: int = property_field("max.in.flight.requests.per.connection", 5, least=1, most=1_000)
    """Requests sent on a connection and not yet answered, at most."""
    connections_per_broker: int = property_field("connections.per.broker", 2, least=1, most=100)
    """A broker takes the requests of one connection one after the other, reading none while it writes
    one; on two it does both at once. A partition's batches always take the same."""
    delivery_timeout_ms: int = property_field("delivery.timeout.ms", 120_000, least=1, most=INT32_MAX)
    """From accepting a record to giving up on it, all retries included."""
    retries: int = property_field("retries", INT32_MAX, least=0, most=INT32_MAX)
    """How often a batch is sent again; ``delivery_timeout_ms`` ends it earlier."""
    max_request_size: int | None = property_field("max.request.size", None, int)
    """Bytes of a record before compression, and of a request, at most. None: what the topic's
    max.message.bytes allows.
    """
    compression_type: str = property_field("compression.type", "none", _compression_type)
    compression_level: int | None = property_field("compression.level", None, int)
    """None: the codec's usual one."""
    partitioner: str = property_field("partitioner.class", "murmur2", _text)
    """murmur2 (Java's), crc32, fnv1a, round_robin, least_bytes, sticky or explicit; also by the
    names of Java's classes.
    """
    spill_dir: str | None = property_field("spill.dir", None, _text)
    """Folder for batches that could not be delivered; the next producer that opens it sends them first."""
    keep_undelivered: bool = property_field("keep.undelivered", False, _boolean)
    """Whether undelivered records are kept for `Producer.undelivered`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_request_size is not None and self.max_request_size < 1:
            raise ConfigError(f"max.request.size must be at least 1, not {self.max_request_size}")
        if self.enable_idempotence:
            for name, bad in (
                ("acks must be all", self.acks is not Acks.ALL),
                ("max.in.flight.requests.per.connection must be at most 5", self.max_in_flight > 5),
                ("retries must be at least 1", self.retries < 1),
            ):
                if bad:
                    raise ConfigError(f"{name} when enable.idempotence=true")

    @property
    def idempotent(self) -> bool:
        """Whether batches carry a producer id and sequence numbers (KIP-98). Brokers remember five
        batches, no more.
        """
        if self.enable_idempotence is not None:
            return self.enable_idempotence
        return self.acks is Acks.ALL and self.max_in_flight <= 5 and self.retries > 0

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """As `Properties.from_properties`; a codec's level may also come under Java's name
        (compression.zstd.level).
        """
        values = cls._parse(properties)
        level = properties.get(f"compression.{values.get('compression_type', 'none')}.level")
        if level is not None and values.get("compression_level") is None:
            values["compression_level"] = cls._parse({"compression.level": level})["compression_level"]
        return cls(**values)

    @classmethod
    def property_names(cls) -> frozenset[str]:
        """As `Properties.property_names`, with Java's names of the codecs' levels."""
        return super().property_names() | {f"compression.{codec}.level" for codec in ("gzip", "lz4", "zstd")}


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` as its parts; a leading ``LISTENER://`` is dropped, as Java does."""
    rest = address.partition("://")[2] or address
    host, colon, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"bootstrap.servers: {address!r} looks like IPv6; write it as [{host}]:{port}")
    if not host or not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"bootstrap.servers: {address!r} is not host:port")
    return host, int(port)


JAVA_ONLY = frozenset(
    (
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.include.jmx.reporter",
        "client.dns.lookup",
        "enable.metrics.push",
        "exclude.internal.topics",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "security.providers",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
        "ssl.keystore.type",
        "ssl.protocol",
        "ssl.provider",
        "ssl.truststore.type",
    )
)
"""Properties of Java's consumer that are legal and mean nothing here: no warning for those."""


def unknown_properties(names: Iterable[str], *configs: type[Properties]) -> dict[str, str | None]:
    """Names that none of ``configs`` reads and Java's consumer does not know either, each with the nearest
    known one.
    """
    known = sorted(frozenset[str]().union(*(config.property_names() for config in configs)))
    unknown: dict[str, str | None] = {}
    for name in names:
        if name not in known and name not in JAVA_ONLY:
            unknown[name] = next(iter(difflib.get_close_matches(name, known, n=1)), None)
    return unknown
