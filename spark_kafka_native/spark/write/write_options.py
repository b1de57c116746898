"""`WriteOptions`: the options of a write, parsed and checked. Names and words of errors are Spark's
connector's."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ...kafka.config.client_config import ClientConfig, ProducerConfig
from ...kafka.errors import ConfigError, KafkaError
from ...kafka.producer.accumulating.partitioner import partitioner_name
from ...kafka.security.config_providers import allowed_path
from ..delegation_tokens import TokenLogin, TokenOptions
from ..options.option_values import IGNORE_KEYS, MEANINGLESS_IN_WRITES, OptionValues
from ..payload_formats import PayloadFormat, ignored_settings

_LOG: Final = logging.getLogger("spark_kafka_native")
LOGIN_MS: Final = 15_000
"""For the driver's login before a commit or an abort."""
LINGER_MS: Final = 1_000
"""A task knows where its rows end and flushes there: waiting for fuller batches before costs it nothing."""

REFUSED: Final = {
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
_ONCE: Final = "deliveryGuarantee=exactly-once"
_OF_ONCE: Final = ("transactionalIdPrefix", "transactionTimeout", "transactionMarkerTopic", "writeId")
_WRITE_ID: Final = re.compile(r"[A-Za-z0-9._:+-]{1,200}")
"""It becomes a part of names, where ``/`` separates it from the number of the task."""


@dataclass(frozen=True, kw_only=True)
class ExactlyOnce:
    """How rows are written exactly once. Plain data."""

    transactional_id_prefix: str
    is_prefix_given: bool = False
    """True if it was chosen, and not left at its default."""
    transaction_timeout_ms: int
    marker_topic: str | None = None
    """Where markers are kept; None: as offsets of groups."""
    write_id: str | None = None
    """What a batch write is called, so that it can be run again; None: it is all or nothing, by one task."""

    @classmethod
    def parse(cls, values: OptionValues, producer: ProducerConfig) -> ExactlyOnce | None:
        """None where it was not asked for. Raises `ConfigError` for what can't go with it."""
        if values.value("deliveryGuarantee") != "exactly-once":
            for name in _OF_ONCE:
                if name in values:
                    raise ConfigError(f"Option '{name}' has no effect without {_ONCE}")
            return None
        _check_producer(producer)
        if (values.text("asyncProgressTrackingEnabled") or "").strip().lower() == "true":
            raise ConfigError(
                f"{_ONCE} can't be had with asyncProgressTrackingEnabled=true: after a restart more than the "
                "last micro-batch would be written again"
            )
        if "transaction.timeout.ms" in values.kafka:
            raise ConfigError(f"{_ONCE} takes its transactions' timeout from the option transactionTimeout")
        prefix = values.value("transactionalIdPrefix").strip()
        if not prefix:
            raise ConfigError("transactionalIdPrefix must not be empty")
        return cls(
            transactional_id_prefix=prefix,
            is_prefix_given="transactionalIdPrefix" in values,
            transaction_timeout_ms=values.value("transactionTimeout"),
            marker_topic=_parse_marker_topic(values),
            write_id=_parse_write_id(values),
        )


def _check_producer(producer: ProducerConfig) -> None:
    """Raise `ConfigError` for what can't be had in transactions."""
    if (why := producer.why_not_idempotent) is not None:
        raise ConfigError(
            f"{_ONCE} needs kafka.acks=all, kafka.retries and kafka.enable.idempotence (the defaults): "
            f"kafka.{why}"
        )
    if producer.over_limit != "fail":
        raise ConfigError(
            f"{_ONCE} can't be had with kafka.over.limit={producer.over_limit}: a transaction is committed "
            "with all of its rows or not at all"
        )


def _parse_marker_topic(values: OptionValues) -> str | None:
    if "transactionMarkerTopic" not in values:
        return None
    topic = (values.text("transactionMarkerTopic") or "").strip()
    if not topic:
        # Not "none": markers that move from a topic into groups are not found again.
        raise ConfigError("transactionMarkerTopic must not be empty; leave it out to keep markers in groups")
    if topic == (values.text("topic") or "").strip():
        raise ConfigError("transactionMarkerTopic must not be the topic that the rows go to")
    return topic


def _parse_write_id(values: OptionValues) -> str | None:
    if "writeId" not in values:
        return None
    write_id = (values.text("writeId") or "").strip()
    if _WRITE_ID.fullmatch(write_id) is None:
        raise ConfigError(
            f"writeId must be 1 to 200 ASCII letters, digits and . _ - : +, not {write_id[:250]!r}: it "
            "becomes a part of transactional ids and of the names of groups"
        )
    return write_id


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """A write. Plain data."""

    client: ClientConfig
    """Of the driver until `WriteOptions.with_login`, then of the tasks."""
    tokens: TokenOptions | None
    """How tasks log in with delegation tokens; None: as ``client`` does."""
    producer: ProducerConfig
    topic: str | None
    """Where everything goes; None: each row says it."""
    topic_hint: str
    """What to add to an error where no row says it either."""
    timestamp_column: str | None
    """The column with the records' timestamps; None: none is written."""
    create_topics: bool
    create_partitions: int | None
    create_replication_factor: int | None
    summary_path: str | None
    formats: tuple[PayloadFormat, ...]
    """How keys and values are encoded; none for bytes."""
    exactly_once: ExactlyOnce | None
    warnings: tuple[str, ...]

    @property
    def fixed_topics(self) -> tuple[str, ...]:
        """The topics that no row names: ``topic`` and the dead-letter topic, where there are any."""
        return tuple(topic for topic in (self.topic, self.producer.dead_letter_topic) if topic is not None)

    def with_login(self, login: TokenLogin) -> WriteOptions:
        """The same for tasks: with ``login`` in the place of the driver's credentials."""
        assert self.tokens is not None
        return replace(self, client=login.to(self.tokens.of_tasks(self.client)))

    def with_driver(self, client: ClientConfig | None) -> WriteOptions:
        """Those of tasks with the driver's ``client``, where it is to be had and can log in: the token of the
        tasks may have ended, and a KDC or a token endpoint may be down."""
        if client is None:
            return self
        from ...kafka.cluster.router import router_for  # late: workers read this module, too

        router = router_for(client)
        try:
            router.metadata((), deadline=router.deadline(LOGIN_MS))
        except KafkaError as error:
            _LOG.warning(
                "Transactions are ended with the tasks' token, as the driver can't log in: %s", error
            )
            return self
        return replace(self, client=client)

    @classmethod
    def parse(cls, values: OptionValues) -> WriteOptions:
        """Check everything that can be checked without a cluster. Raises `ConfigError`."""
        for name, refusal in REFUSED.items():
            if name in values.kafka:
                raise ConfigError(refusal)
        values.require_bootstrap_servers("producer")
        client, producer = _parse_configs(values.kafka)
        topic = _parse_name(values, "topic", "the column `topic` says where each row goes")
        timestamp = _parse_name(values, "timestampColumn", "rows get the time at which they are written")
        create = values.value("createTopics")
        summary_path = values.text("summaryPath")
        if summary_path is not None:
            if Path(summary_path).name in ("", ".."):
                raise ConfigError(f"summaryPath must be the path of a file, not {summary_path!r}")
            allowed_path("summaryPath", summary_path)
        for name in ("createTopics.partitions", "createTopics.replicationFactor"):
            if name in values and not create:
                raise ConfigError(f"Option '{name}' has no effect without createTopics=true")
        return cls(
            client=client,
            tokens=TokenOptions.parse(values, client),
            producer=producer,
            topic=None if topic is None else topic.strip(),
            topic_hint=values.near_miss("topic"),
            timestamp_column=timestamp,
            create_topics=create,
            create_partitions=values.value("createTopics.partitions"),
            create_replication_factor=values.value("createTopics.replicationFactor"),
            summary_path=summary_path,
            formats=tuple(one for name in ("key", "value") if (one := PayloadFormat.parse(values, name))),
            exactly_once=ExactlyOnce.parse(values, producer),
            warnings=(
                *values.judge_names((ClientConfig, ProducerConfig), MEANINGLESS_IN_WRITES | {IGNORE_KEYS}),
                *ignored_settings(values),
            ),
        )


def _parse_name(values: OptionValues, option: str, without: str) -> str | None:
    """None where it is not given. Raises `ConfigError` for an empty one, as of a variable that is not set."""
    name = values.text(option)
    if name is not None and not name.strip():
        raise ConfigError(f"Option '{option}' is empty. Without the option {without}")
    return name


def _parse_configs(properties: Mapping[str, str]) -> tuple[ClientConfig, ProducerConfig]:
    given = dict(properties)
    if given.pop(IGNORE_KEYS, "false").strip().lower() == "true":
        given.setdefault("partitioner.class", "sticky")
    if "partitioner.class" in given:
        given["partitioner.class"] = partitioner_name(given["partitioner.class"])
    producer = ProducerConfig.from_properties(given)
    if not {"linger.ms", "queue.buffering.max.ms"} & given.keys():
        producer = replace(producer, linger_ms=min(LINGER_MS, producer.delivery_timeout_ms))
    return ClientConfig.from_properties(given), producer
