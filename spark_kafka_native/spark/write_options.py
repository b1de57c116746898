"""`WriteOptions`: everything a write was told, parsed and checked. Names and words of errors are Spark's
connector's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..kafka.config import ClientConfig, ProducerConfig, unknown_properties
from ..kafka.errors import ConfigError
from ..kafka.producer.partitioner import partitioner_name
from .option_values import OptionValues

LINGER_MS: Final = 1_000
"""A task knows where its rows end and flushes there: waiting for fuller batches before costs it nothing."""

_REFUSED: Final = {
    "key.serializer": (
        "Kafka option 'key.serializer' is not supported as keys are serialized with ByteArraySerializer."
    ),
    "value.serializer": (
        "Kafka option 'value.serializer' is not supported as value are serialized with ByteArraySerializer."
    ),
    "transactional.id": (
        "Kafka option 'transactional.id' is not supported: tasks that run side by side can't share one. "
        "The idempotent producer, the default, already writes nothing twice within a task attempt."
    ),
    "interceptor.classes": "Kafka option 'interceptor.classes' is not supported",
    "spill.dir": (
        "Kafka option 'spill.dir' is not supported in a Spark write: a failed task is run again by Spark, "
        "and what it left in a folder would be written twice"
    ),
}
_MEANINGLESS: Final = frozenset(
    [
        "client.dns.lookup",
        "enable.metrics.push",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "transaction.timeout.ms",
        "transaction.two.phase.commit.enable",
        "auto.include.jmx.reporter",
        "security.providers",
        "keep.undelivered",
    ]
)
"""Legal for Java's producer, and without a meaning here."""


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """A write. Plain data."""

    client: ClientConfig
    producer: ProducerConfig
    topic: str | None
    """Where everything goes; None: each row says it."""
    create_topics: bool
    create_partitions: int | None
    create_replication_factor: int | None
    summary_path: str | None
    warnings: tuple[str, ...]

    @classmethod
    def read(cls, values: OptionValues) -> WriteOptions:
        """Check everything that can be checked without a cluster. Raises `ConfigError`."""
        for name, refusal in _REFUSED.items():
            if name in values.kafka:
                raise ConfigError(refusal)
        if "bootstrap.servers" not in values.kafka:
            raise ConfigError(
                "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer"
            )
        client, producer, unknown = _read_configs(values.kafka)
        topic = (values.text("topic") or "").strip() or None
        create = values.value("createTopics")
        for name in ("createTopics.partitions", "createTopics.replicationFactor"):
            if name in values and not create:
                raise ConfigError(f"Option '{name}' means nothing without createTopics=true")
        return cls(
            client=client,
            producer=producer,
            topic=topic,
            create_topics=create,
            create_partitions=values.value("createTopics.partitions"),
            create_replication_factor=values.value("createTopics.replicationFactor"),
            summary_path=values.text("summaryPath"),
            warnings=(*values.warnings, *unknown),
        )


def _read_configs(properties: Mapping[str, str]) -> tuple[ClientConfig, ProducerConfig, tuple[str, ...]]:
    given = dict(properties)
    if given.pop("partitioner.ignore.keys", "false").strip().lower() == "true":
        given.setdefault("partitioner.class", "sticky")
    if "partitioner.class" in given:
        given["partitioner.class"] = partitioner_name(given["partitioner.class"])
    producer = ProducerConfig.from_properties(given)
    if "linger.ms" not in given:
        producer = replace(producer, linger_ms=LINGER_MS)
    unknown = unknown_properties(
        (name for name in given if name not in _MEANINGLESS), ClientConfig, ProducerConfig
    )
    warnings = tuple(
        f"Unknown option 'kafka.{name}' is ignored"
        + ("" if nearest is None else f"; did you mean 'kafka.{nearest}'?")
        for name, nearest in unknown.items()
    )
    return ClientConfig.from_properties(given), producer, warnings
