"""Settings for producing records and for transactions: frozen, hashable, picklable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..errors import ConfigError
from ..model import Acks
from .properties import INT32_MAX, Properties, boolean, property_field, text

COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")
OVER_LIMIT = ("fail", "skip", "dead_letter")


def _acks(text: str) -> Acks:
    try:
        return {"all": Acks.ALL, "-1": Acks.ALL, "1": Acks.LEADER, "0": Acks.NONE}[text.strip().lower()]
    except KeyError:
        raise ValueError("must be all (or -1), 1 or 0") from None


def _compression_type(text: str) -> str:
    if text.strip().lower() not in COMPRESSION_TYPES:
        raise ValueError(f"must be one of {', '.join(COMPRESSION_TYPES)}")
    return text.strip().lower()


def _over_limit(text: str) -> str:
    choice = text.strip().lower().replace(".", "_")
    if choice not in OVER_LIMIT:
        raise ValueError(f"must be one of {', '.join(OVER_LIMIT)}")
    return choice


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(Properties):
    """Settings for producing records. Names are Java's, or librdkafka's where Java has none."""

    acks: Acks = property_field("acks", Acks.ALL, _acks, aliases=("request.required.acks",))  # noqa: RUF009 - it returns a field
    """Which replicas must have a batch before it counts as written: ``all``, ``1`` (the leader) or ``0``
    (none)."""
    enable_idempotence: bool | None = property_field("enable.idempotence", None, boolean)
    """``true`` lets brokers drop the duplicates of retries. Default: yes, if acks=all and the limits allow
    it."""
    batch_size: int = property_field("batch.size", 1_000_000, min_value=0, max_value=INT32_MAX)
    """Limit of a record batch before compression; 0 sends every record in a batch of its own.

    Java's 16 KB suit records that arrive one by one; a column arrives at once, and large batches cost less on
    both sides."""
    batch_records: int = property_field("batch.num.messages", 100_000, min_value=1, max_value=INT32_MAX)
    """Limit of a record batch, in records."""
    linger_ms: int = property_field(
        "linger.ms", 5, min_value=0, max_value=INT32_MAX, aliases=("queue.buffering.max.ms",)
    )
    """How long a batch that is not full waits for more records. Writes of Spark use 1,000."""
    buffer_memory: int = property_field("buffer.memory", 64 * 1024 * 1024, min_value=1)
    """Limit of records that are accepted and not yet delivered."""
    max_buffered_records: int = property_field("queue.buffering.max.messages", 10_000_000, min_value=1)
    """The same limit, in records."""
    max_block_ms: int = property_field("max.block.ms", 60_000, min_value=0)
    """How long a call may wait for room in the buffer or for a topic's metadata."""
    block_on_buffer_full: bool = property_field("block.on.buffer.full", True, boolean)
    """With ``false`` a full buffer is an error at once."""
    max_in_flight: int = property_field(
        "max.in.flight.requests.per.connection",
        5,
        min_value=1,
        max_value=1_000,
        aliases=("max.in.flight",),
    )
    """Limit of unanswered requests on a connection."""
    connections_per_broker: int = property_field("connections.per.broker", 2, min_value=1, max_value=100)
    """Connections to each broker. The batches of a partition always use the same one.

    A broker serves the requests of one connection one after the other, and does not read while it writes;
    with two connections it does both at once."""
    delivery_timeout_ms: int = property_field(
        "delivery.timeout.ms", 120_000, min_value=1, max_value=INT32_MAX, aliases=("message.timeout.ms",)
    )
    """The time from accepting a record until it is delivered or fails, including all retries."""
    retries: int = property_field(
        "retries", INT32_MAX, min_value=0, max_value=INT32_MAX, aliases=("message.send.max.retries",)
    )
    """Limit of retries of a batch; ``delivery.timeout.ms`` may end them earlier."""
    max_request_size: int | None = property_field("max.request.size", None, int)
    """Limit of a record before compression, and of a request. Default: the topic's ``max.message.bytes``."""
    compression_type: str = property_field(
        "compression.type", "none", _compression_type, aliases=("compression.codec",)
    )
    """``none``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``."""
    compression_level: int | None = property_field("compression.level", None, int)
    """Level of the codec. Default: the codec's own."""
    partitioner: str = property_field("partitioner.class", "murmur2", text, aliases=("partitioner",))
    """murmur2 (Java's), crc32, fnv1a, consistent_random (librdkafka's), round_robin, least_bytes, sticky or
    explicit; also by the names of Java's classes."""
    allow_auto_create_topics: bool = property_field("allow.auto.create.topics", False, boolean)
    """``true`` lets brokers create a missing topic that is written to, with their own defaults (if their
    auto.create.topics.enable allows it). A misspelt name then creates a new topic."""
    spill_dir: str | None = property_field("spill.dir", None, text)
    """Folder for batches that could not be delivered. They are sent once the leader accepts records again, in
    order and before later ones: by this producer, or by the next one that opens the folder. Not with acks=0.
    For the client's API; a Spark write refuses it."""
    keep_undelivered: bool = property_field("keep.undelivered", False, boolean)
    """``true`` keeps undelivered records for `Producer.undelivered` (the client's API)."""
    over_limit: str = property_field("over.limit", "fail", _over_limit)
    """The treatment of a record that is larger than ``max.request.size``, ``buffer.memory`` or the topic's
    ``max.message.bytes``: ``fail``, ``skip`` (the record is left out) or ``dead_letter`` (it goes to
    ``dead.letter.topic`` instead). Not in transactions."""
    dead_letter_topic: str | None = property_field("dead.letter.topic", None, text)
    """The topic for records over a limit with ``over.limit=dead_letter``; values that do not fit there are
    truncated. The topic must exist."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for is_bad, why in (
            (
                self.max_request_size is not None and self.max_request_size < 1,
                f"max.request.size must be at least 1, not {self.max_request_size}",
            ),
            (
                self.over_limit == "dead_letter" and not self.dead_letter_topic,
                "over.limit=dead_letter needs dead.letter.topic",
            ),
            (
                self.over_limit != "dead_letter" and self.dead_letter_topic is not None,
                "dead.letter.topic has no effect without over.limit=dead_letter",
            ),
            (
                self.spill_dir is not None and self.acks is Acks.NONE,
                "spill.dir needs acks=1 or acks=all: with acks=0 no broker says that it has a record, and "
                "the folder would give up the only copy",
            ),
            (
                self.linger_ms > self.delivery_timeout_ms,
                f"linger.ms={self.linger_ms} is longer than delivery.timeout.ms={self.delivery_timeout_ms}: "
                "records would be given up while they wait for their batch to fill. Lower the one, or raise "
                "the other",
            ),
        ):
            if is_bad:
                raise ConfigError(why)
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
        """True if batches carry a producer id and sequence numbers (KIP-98). Brokers remember five batches
        per producer and partition.
        """
        return self.why_not_idempotent is None

    @property
    def why_not_idempotent(self) -> str | None:
        """The setting that keeps batches from being `idempotent`; None if they are."""
        if self.enable_idempotence is not None:
            return None if self.enable_idempotence else "enable.idempotence=false"
        if self.acks is not Acks.ALL:
            return f"acks={self.acks.value}"
        if self.max_in_flight > 5:
            return f"max.in.flight.requests.per.connection={self.max_in_flight} is over 5"
        return "retries=0" if self.retries < 1 else None

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], **values: Any) -> Self:
        """As `Properties.from_properties`. A codec's level may also be given under Java's name
        (compression.zstd.level).
        """
        values = cls._parse(properties) | values
        level = properties.get(f"compression.{str(values.get('compression_type', 'none')).lower()}.level")
        if level is not None and values.get("compression_level") is None:
            values["compression_level"] = cls._parse({"compression.level": level})["compression_level"]
        return cls(**values)

    @classmethod
    def property_names(cls) -> frozenset[str]:
        """As `Properties.property_names`, including Java's names of the codecs' levels."""
        return super().property_names() | {f"compression.{codec}.level" for codec in ("gzip", "lz4", "zstd")}


@dataclass(frozen=True, kw_only=True)
class TransactionConfig(Properties):
    """The identity of a transactional producer, and the time limit of its transactions."""

    transactional_id: str = property_field("transactional.id", "", text)
    """The name by which the coordinator knows the producer. A new producer with the same name fences this
    one. Required."""
    transaction_timeout_ms: int = property_field(
        "transaction.timeout.ms", 60_000, min_value=1, max_value=INT32_MAX
    )
    """The coordinator aborts a transaction that stays open for longer; brokers allow 15 minutes by
    default."""
    transaction_version: int = property_field("transaction.version", 2, min_value=1, max_value=2)
    """The newest protocol to use: 2 is that of KIP-890 (Kafka 4), if the cluster supports it; 1 is older."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.transactional_id:
            raise ConfigError("transactional.id must be given: the name by which the coordinator knows you")
