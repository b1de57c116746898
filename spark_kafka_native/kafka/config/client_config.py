"""Settings of a client and of its consumers; `configs_from` makes them of a constructor's arguments.

Configs are frozen, hashable, picklable values, parsed from Kafka's (Java's) property names. Nothing here
opens a file or a socket: a `ClientConfig` is plain data that Spark ships to executors.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import socket
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from ..errors import ConfigError
from ..model import HeaderKeys, IsolationLevel
from .properties import INT32_MAX, Properties, boolean, property_field, text
from .security_config import MSK_IAM, SecurityConfig, SecurityProtocol

if TYPE_CHECKING:
    from .producer_config import COMPRESSION_TYPES, ProducerConfig, TransactionConfig

__all__ = [
    "COMPRESSION_TYPES",
    "JAVA_ONLY",
    "ClientConfig",
    "ConsumerConfig",
    "ProducerConfig",
    "SecurityConfig",
    "SecurityProtocol",
    "TransactionConfig",
    "split_address",
    "unknown_properties",
]


def __getattr__(name: str) -> Any:
    # Late: readers do not need the producer's settings.
    if name in ("COMPRESSION_TYPES", "ProducerConfig", "TransactionConfig"):
        from . import producer_config

        return getattr(producer_config, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


MAX_RESPONSE_BYTES = 100 * 1024 * 1024
"""Limit of a response, in spite of a larger length prefix; librdkafka's ``receive.message.max.bytes`` is the
same."""
CANONICAL = "resolve_canonical_bootstrap_servers_only"
DNS_LOOKUPS = ("use_all_dns_ips", CANONICAL)
ADDRESS_FAMILIES = ("any", "v4", "v6")
MAX_BATCH_BYTES = 256 * 1024 * 1024
"""Limit of a decompressed record batch: 1 MiB of zstd can expand to 32 GiB."""


def _isolation_level(text: str) -> IsolationLevel:
    try:
        return IsolationLevel[text.strip().upper()]
    except KeyError:
        raise ValueError("must be read_uncommitted or read_committed") from None


def _dns_lookup(text: str) -> str:
    if text.strip().lower() not in DNS_LOOKUPS:
        raise ValueError(f"must be {' or '.join(DNS_LOOKUPS)}")
    return text.strip().lower()


def _address_family(text: str) -> str:
    if text.strip().lower() not in ADDRESS_FAMILIES:
        raise ValueError(f"must be one of {', '.join(ADDRESS_FAMILIES)}")
    return text.strip().lower()


def _source_address(text: str) -> str:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        raise ValueError("must be an IP address of this machine") from None
    return text


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(address.strip() for address in text.split(",") if address.strip())


@dataclass(frozen=True, kw_only=True)
class ClientConfig(Properties):
    """Settings for connecting to a cluster. Two equal configs share their connections within a process."""

    bootstrap_servers: tuple[str, ...] = property_field(
        "bootstrap.servers", (), _addresses, aliases=("metadata.broker.list",)
    )
    """``host:port`` of some brokers, comma-separated; IPv6 hosts in brackets. Required."""
    client_id: str = property_field("client.id", "spark-kafka-native", text)
    """The name of this client in the brokers' logs, metrics and quotas."""
    client_rack: str = property_field("client.rack", "", text)
    """Fetch from a replica in this rack if there is one (KIP-392). Empty: always from the leader."""
    request_timeout_ms: int = property_field("request.timeout.ms", 30_000, min_value=1, max_value=INT32_MAX)
    """A request that is not answered within this time closes its connection, and is sent again where that is
    safe."""
    default_api_timeout_ms: int = property_field(
        "default.api.timeout.ms", 60_000, min_value=1, max_value=INT32_MAX
    )
    """Limit of an operation with all its retries, including the first connection."""
    connection_setup_timeout_ms: int = property_field(
        "socket.connection.setup.timeout.ms", 10_000, min_value=1, max_value=INT32_MAX
    )
    """Limit of a name lookup, of a TCP connection to one address, and of TLS together with the first
    response."""
    client_dns_lookup: str = property_field("client.dns.lookup", DNS_LOOKUPS[0], _dns_lookup)
    """``use_all_dns_ips``: any address of a name may be used. With
    ``resolve_canonical_bootstrap_servers_only`` each address of a bootstrap server is a server of its own,
    under its canonical name."""
    broker_address_family: str = property_field("broker.address.family", "any", _address_family)
    """``any``, or only IPv4 addresses (``v4``) or IPv6 addresses (``v6``)."""
    connection_attempt_delay_ms: int = property_field(
        "connection.attempt.delay.ms", 250, min_value=-1, max_value=INT32_MAX
    )
    """Delay before the next address of a broker is tried in parallel (RFC 8305). -1: one after the other,
    each within its share of the time."""
    source_address: str | None = property_field("source.address", None, _source_address)
    """The local address of connections. Default: the system chooses."""
    keepalive: bool = property_field("socket.keepalive.enable", True, boolean)
    """``true`` makes the system probe idle connections (SO_KEEPALIVE)."""
    keepalive_idle_ms: int = property_field("socket.keepalive.idle.ms", -1, min_value=-1, max_value=INT32_MAX)
    """Idle time before the first probe, in whole seconds (TCP_KEEPIDLE): less than the idle timeout of
    firewalls on the way. -1 leaves it to the system (usually two hours)."""
    resolver: Callable[[str, int], Sequence[Any]] | None = None
    """A function of host and port that returns what `socket.getaddrinfo` does, used instead of the system's
    resolver. No property sets it. It is called in a thread; for Spark it must be picklable."""
    socket_factory: Callable[[Any], socket.socket] | None = None
    """A function that takes one of those addresses and returns a socket for it, connected (through a proxy,
    for example) or not yet. No property sets it."""
    connections_max_idle_ms: int = property_field("connections.max.idle.ms", 540_000, min_value=-1)
    """A connection that is idle for longer is closed when its client, or the next Spark task of the process,
    looks for one; with -1 none is."""
    retry_backoff_ms: int = property_field("retry.backoff.ms", 100, min_value=0, max_value=INT32_MAX)
    """Wait before the first retry; it doubles with each attempt."""
    retry_backoff_max_ms: int = property_field(
        "retry.backoff.max.ms", 1_000, min_value=0, max_value=INT32_MAX
    )
    """Limit of the wait before a retry."""
    metadata_max_age_ms: int = property_field("metadata.max.age.ms", 300_000, min_value=0)
    """Metadata older than this (leaders, partitions) is refreshed."""
    receive_buffer_bytes: int = property_field("receive.buffer.bytes", -1, min_value=-1, max_value=INT32_MAX)
    """SO_RCVBUF. -1 leaves it to the system, which adapts it to the connection."""
    send_buffer_bytes: int = property_field("send.buffer.bytes", -1, min_value=-1, max_value=INT32_MAX)
    """SO_SNDBUF. -1 leaves it to the system."""
    max_response_bytes: int = property_field(
        "receive.message.max.bytes", MAX_RESPONSE_BYTES, min_value=1_000, max_value=INT32_MAX
    )
    """A response with a larger length prefix closes its connection before any memory is allocated."""
    security: SecurityConfig = SecurityConfig()  # noqa: RUF009 - it is frozen

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], **values: Any) -> Self:
        """As `Properties.from_properties`, including the ``security`` part."""
        if "security" not in values:
            values["security"] = SecurityConfig.from_properties(properties)
        return cls(**(cls._parse(properties) | values))

    @classmethod
    def property_names(cls) -> frozenset[str]:
        """As `Properties.property_names`, including the ``security`` part."""
        return super().property_names() | SecurityConfig.property_names()

    def __post_init__(self) -> None:
        given: object = self.bootstrap_servers
        if isinstance(given, str):  # else the string would pass for a tuple of one-letter addresses
            raise ConfigError(
                f"bootstrap_servers must be a tuple, as ({given!r},); "
                'ClientConfig.from_properties({"bootstrap.servers": ...}) takes a string'
            )
        super().__post_init__()
        if not self.bootstrap_servers:
            raise ConfigError("bootstrap.servers must name at least one broker as host:port")
        for address in self.bootstrap_servers:
            split_address(address)
        if self.security.token_provider == MSK_IAM and self.security.aws_region is None:
            region = _region_of(self.bootstrap_servers)
            object.__setattr__(self, "security", replace(self.security, aws_region=region))


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(Properties):
    """Settings for fetching records."""

    fetch_min_bytes: int = property_field("fetch.min.bytes", 1, min_value=0, max_value=INT32_MAX)
    """The broker answers a fetch once it has this many bytes, or after ``fetch.max.wait.ms``."""
    fetch_max_wait_ms: int = property_field("fetch.max.wait.ms", 500, min_value=0, max_value=INT32_MAX)
    """Limit of the broker's wait for ``fetch.min.bytes``."""
    fetch_max_bytes: int = property_field(
        "fetch.max.bytes", 50 * 1024 * 1024, min_value=1, max_value=INT32_MAX
    )
    """Limit of one response with all its partitions."""
    max_partition_fetch_bytes: int = property_field(
        "max.partition.fetch.bytes",
        4 * 1024 * 1024,
        min_value=1,
        max_value=INT32_MAX,
        aliases=("fetch.message.max.bytes",),
    )
    """Limit of one partition in a response; a single larger batch is returned nevertheless."""
    isolation_level: IsolationLevel = property_field(  # noqa: RUF009 - it returns a field
        "isolation.level", IsolationLevel.READ_UNCOMMITTED, _isolation_level
    )
    """``read_committed`` hides records of open and aborted transactions."""
    check_crcs: bool = property_field("check.crcs", True, boolean)
    """``false`` skips the check of each record batch's checksum."""
    header_keys: HeaderKeys = HeaderKeys.REPLACE
    """How header keys that are not UTF-8 are decoded. No property sets it: Java's consumer has no choice."""
    max_batch_bytes: int = property_field(
        "max.decompressed.batch.bytes", MAX_BATCH_BYTES, min_value=1, max_value=INT32_MAX
    )
    """A record batch that decompresses to more is an error."""
    poll_timeout_ms: int = property_field("poll.timeout.ms", 120_000, min_value=1, max_value=INT32_MAX)
    """A partition without progress for this time fails with its offset."""
    end_of_log_wait_ms: int = property_field("end.of.log.wait.ms", 5_000, min_value=0, max_value=INT32_MAX)
    """How long a range may wait at the end of the log for records that its plan includes.

    For about a second, a new leader's high watermark can be lower than the one that the range was planned
    with."""


def _region_of(addresses: Iterable[str]) -> str | None:
    """The region in the names of an MSK cluster's brokers; None if they have other names."""
    found = re.search(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com", ",".join(addresses))
    return None if found is None else found[1]


def split_address(address: str) -> tuple[str, int]:
    """The parts of ``host:port`` or ``[v6]:port``; a leading ``LISTENER://`` is dropped, as in Java."""
    rest = address.partition("://")[2] or address
    host, colon, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        form = "[address]:port" if host.endswith(":") else f"[{host}]:{port}"  # without a port, or with one
        raise ConfigError(f"bootstrap.servers: {address!r} looks like IPv6; write it as {form}")
    if not host or not colon or not re.fullmatch("0*[0-9]{1,5}", port) or not 0 < int(port[-5:]) < 65536:
        raise ConfigError(f"bootstrap.servers: {address!r} is not host:port")
    return host, int(port[-5:])


JAVA_ONLY = frozenset(
    (
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.include.jmx.reporter",
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
        "ssl.protocol",
        "ssl.provider",
    )
)
"""Valid properties of Java's consumer that have no meaning here: they cause no warning."""


def unknown_properties(names: Iterable[str], *configs: type[Properties]) -> dict[str, str | None]:
    """The names that neither ``configs`` nor Java's consumer know, each with the most similar known one."""
    known = sorted(frozenset[str]().union(*(config.property_names() for config in configs)))
    unknown: dict[str, str | None] = {}
    for name in names:
        if name not in known and name not in JAVA_ONLY:
            unknown[name] = next(iter(difflib.get_close_matches(name, known, n=1)), None)
    return unknown


DEFAULT_PORT: Final = 9092
"""The port of an address without one; Kafka's own default."""

Bootstrap = str | list[str] | tuple[str, ...] | ClientConfig | Mapping[str, Any]
"""How to reach a cluster: ``host:port`` of some brokers, comma-separated or as a list or tuple (port 9092 by
default); a `ClientConfig`; or a mapping of Kafka's dotted property names to values, as librdkafka's clients
take it."""

Own = TypeVar("Own", bound=Properties)
Other = TypeVar("Other", bound=Properties)


@overload
def configs_from(bootstrap: Bootstrap | None, keywords: Mapping[str, Any]) -> tuple[ClientConfig]: ...
@overload
def configs_from(
    bootstrap: Bootstrap | None, keywords: Mapping[str, Any], own: type[Own] | Own, /
) -> tuple[ClientConfig, Own]: ...
@overload
def configs_from(
    bootstrap: Bootstrap | None,
    keywords: Mapping[str, Any],
    own: type[Own] | Own,
    other: type[Other] | Other,
    /,
) -> tuple[ClientConfig, Own, Other]: ...
def configs_from(bootstrap: Bootstrap | None, keywords: Mapping[str, Any], *owns: Any) -> tuple[Any, ...]:
    """A `ClientConfig`, and a config for each of ``owns``: config classes, or instances to start from.

    ``keywords`` are field names of these configs and of `SecurityConfig`; they take precedence over
    ``bootstrap``. A name that several configs have belongs to the client (``client_id``) or to the first one;
    ``security=SecurityConfig(...)`` sets the others. ``bootstrap_servers=`` may replace ``bootstrap``.

    Raises TypeError for an unknown keyword and `ConfigError` for a value; warns about properties of a mapping
    that no config of this client reads.
    """
    known = (ClientConfig, *(own if isinstance(own, type) else type(own) for own in owns), SecurityConfig)
    values = _by_config(keywords, known)
    properties = bootstrap if isinstance(bootstrap, Mapping) else {}
    _warn_of_unknown(properties, known)
    client = _client(bootstrap, values[ClientConfig], values[SecurityConfig])
    return (client, *(_own(own, properties, values) for own in owns))


def _by_config(
    keywords: Mapping[str, Any], configs: Iterable[type[Properties]]
) -> dict[type[Properties], dict[str, Any]]:
    """``keywords`` by the config that has a field of that name."""
    values: dict[type[Properties], dict[str, Any]] = {config: {} for config in configs}
    names = {config: {f.name for f in fields(config)} for config in values}
    for keyword, value in keywords.items():
        config = next((config for config in values if keyword in names[config]), None)
        if config is None:
            raise TypeError(f"there is no setting {keyword!r}{_nearest_keyword(keyword, values)}")
        values[config][keyword] = value
    return values


def _nearest_keyword(keyword: str, configs: Iterable[type[Properties]]) -> str:
    """The probable spelling, as a suffix of the error; other clients spell some keywords as the property with
    underscores.
    """
    spelled = {f.name: f.name for config in configs for f in fields(config)}
    for config in configs:
        for f in fields(config):
            for name in (f.metadata.get("property"), *f.metadata.get("aliases", ())):
                spelled.setdefault(str(name).replace(".", "_"), f.name)
    near = difflib.get_close_matches(keyword.lower().replace(".", "_"), spelled, n=1)
    return f": did you mean {spelled[near[0]]!r}?" if near else ""


def _client(bootstrap: Bootstrap | None, values: dict[str, Any], security: dict[str, Any]) -> ClientConfig:
    if bootstrap is None and "bootstrap_servers" in values:
        bootstrap = values.pop("bootstrap_servers")
    if "bootstrap_servers" in values:
        raise ConfigError("bootstrap_servers is given twice: as the first argument and as a keyword")
    given = values.get("security")
    if "security" in values and not isinstance(given, SecurityConfig):  # never shown: it may be a password
        raise ConfigError(f"security must be a SecurityConfig, not of the type {type(given).__name__}")
    if isinstance(bootstrap, ClientConfig):
        start = values.get("security", bootstrap.security)
        return replace(bootstrap, **values | {"security": replace(start, **security) if security else start})
    properties: Mapping[str, Any] = bootstrap if isinstance(bootstrap, Mapping) else {}
    if "security" not in values:
        values["security"] = SecurityConfig.from_properties(properties, **security)
    elif security:
        values["security"] = replace(values["security"], **security)
    if bootstrap is properties:
        bootstrap = properties.get("bootstrap.servers", properties.get("metadata.broker.list", ()))
    addresses = _bootstrap_servers(bootstrap)
    return ClientConfig.from_properties(properties, bootstrap_servers=addresses, **values)


def _bootstrap_servers(given: Any) -> tuple[str, ...]:
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(
            "bootstrap must be host:port of some brokers (a str, list or tuple), a ClientConfig, or a "
            f"mapping of Kafka's property names, not of the type {type(given).__name__}"
        )
    return tuple(_with_port(one.strip()) for part in parts for one in part.split(",") if one.strip())


def _with_port(address: str) -> str:
    host = address.partition("://")[2] or address
    has_port = not host.endswith("]") if host.startswith("[") else ":" in host
    return address if has_port else f"{address}:{DEFAULT_PORT}"


def _warn_of_unknown(properties: Mapping[str, Any], known: tuple[type[Properties], ...]) -> None:
    for name in properties:
        if not isinstance(name, str):
            raise ConfigError(f"a property's name is a str, not {name!r}")
    if not unknown_properties(properties, *known, ConsumerConfig):
        return
    from .client_config import ProducerConfig  # late: a reader's properties seldom include them

    for name, near in unknown_properties(properties, *known, ConsumerConfig, ProducerConfig).items():
        hint = "" if near is None else f"; did you mean {near!r}?"
        # The warning points to the caller of the constructor that called configs_from.
        warnings.warn(f"the unknown property {name!r} is ignored{hint}", stacklevel=4)


def _own(
    own: type[Properties] | Properties,
    properties: Mapping[str, Any],
    values: dict[type[Properties], dict[str, Any]],
) -> Properties:
    if isinstance(own, type):
        return own.from_properties(properties, **values[own])
    twice = sorted(own.property_names().intersection(properties))
    if twice:
        raise ConfigError(
            f"{', '.join(twice)} stands in the mapping, and a {type(own).__name__} is given too"
        )
    return replace(own, **values[type(own)])
