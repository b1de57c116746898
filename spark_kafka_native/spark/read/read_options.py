"""`ReadOptions` and `StreamOptions`: the options of a read, parsed and checked, in the order in which Spark's
connector reports errors. `ReadTask`: the part of them that the workers get.

Two options can contradict each other in many ways; code that gets a `ReadOptions` need not check any of them
again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from pyspark.sql.types import StructType

from ...kafka.config.client_config import ClientConfig, ConsumerConfig
from ...kafka.config.timestamps import parse_timestamp_ms
from ...kafka.errors import ConfigError, KafkaError
from ...kafka.model import TopicPartition
from ..delegation_tokens import TokenOptions
from ..error_conditions import KafkaConditionError
from ..options.option_values import OptionValues
from ..payload_formats import ReadFormats, ignored_settings
from .offset_range import (
    At,
    AtTimestamp,
    AtTimestamps,
    Committed,
    Earliest,
    KafkaInputPartition,
    Latest,
    LatestMinus,
    OffsetRangeLimit,
    Specific,
    format_topic_partitions,
    parse_offset_limit,
    parse_timestamps,
)
from .schema import RowSchema
from .subscription import Subscription, parse_subscription

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TaskLimits:
    """How many tasks a read has, and how large they are; None for no limit."""

    min_partitions: int | None
    max_records_per_partition: int | None
    max_partitions: int | None


@dataclass(frozen=True, kw_only=True)
class StartFallbacks:
    """Where to start where the option for it gives no offset."""

    after_last_record: str
    """``error`` or ``latest``: for a starting time after the last record."""
    not_committed: str
    """``earliest``, ``latest`` or ``error``: for a partition of which the group has committed no offset."""


@dataclass(frozen=True, kw_only=True)
class OffsetRetries:
    """``fetchOffset.numRetries`` and ``fetchOffset.retryIntervalMs``."""

    count: int
    interval_ms: int

    def run(self, attempt: Callable[[], T], again: Callable[[KafkaError], bool]) -> T:
        """The result of ``attempt``, which is made again after an error for which ``again`` says so. Counted,
        as in Spark's connector: slow brokers are asked as often as fast ones."""
        for _ in range(self.count):
            try:
                return attempt()
            except KafkaError as error:
                if not again(error):
                    raise
            time.sleep(self.interval_ms / 1_000)
        return attempt()


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The options of a read. Plain data; `starting` and `ending` are limits as the user gave them, not yet
    offsets."""

    client: ClientConfig
    tokens: TokenOptions | None
    """How tasks log in with delegation tokens; None: as ``client`` does."""
    consumer: ConsumerConfig
    subscription: Subscription
    starting: OffsetRangeLimit
    ending: OffsetRangeLimit
    fallbacks: StartFallbacks
    fail_on_data_loss: bool
    task_limits: TaskLimits
    bind_at_load: bool
    """True if the bounds of a batch become offsets when it is planned, and not in its tasks."""
    include_headers: bool
    formats: ReadFormats
    filter_pushdown: bool
    group_id: str
    """``kafka.group.id``, or a unique one after ``groupIdPrefix`` that only error texts show."""
    has_group_id: bool
    offset_retries: OffsetRetries
    warnings: tuple[str, ...]

    @classmethod
    def for_batch(cls, values: OptionValues, *, now_ms: int | None = None) -> ReadOptions:
        """Check everything that can be checked without a cluster. Raises `ConfigError` and
        `KafkaConditionError`."""
        now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        starting = _parse_limit(values, "starting", now)
        _check_batch_start(starting)
        ending = _parse_limit(values, "ending", now)
        _check_batch_end(ending)
        options = _parse_general(values, starting, ending)
        if options.formats.letters is not None:
            raise ConfigError(_NO_BATCH_LETTERS)
        _check_limits_agree(starting, ending)
        return options

    @classmethod
    def for_stream(cls, values: OptionValues, *, now_ms: int) -> ReadOptions:
        """As `for_batch`, of a stream, which has no end."""
        return _parse_general(values, _parse_limit(values, "starting", now_ms), Latest())


def check_general(values: OptionValues) -> ReadOptions:
    """Check what holds for batch and stream alike, at ``load()``."""
    starting = _parse_limit(values, "starting", time.time_ns() // 1_000_000)
    return _parse_general(values, starting, Latest())


def _parse_limit(values: OptionValues, side: str, now_ms: int) -> OffsetRangeLimit:
    """The limit of the first option given: a time for all, times for each, offsets; else the default."""
    if (text := values.text(f"{side}Timestamp")) is not None:
        return AtTimestamp(parse_timestamp_ms(text, now_ms=now_ms))
    if (text := values.text(f"{side}OffsetsByTimestamp")) is not None:
        return parse_timestamps(text)
    return parse_offset_limit(values.value(f"{side}Offsets"))


def _check_batch_start(starting: OffsetRangeLimit) -> None:
    if isinstance(starting, Latest):
        raise ConfigError("starting offset can't be latest for batch queries on Kafka")
    if isinstance(starting, Specific):
        for topic_partition, offset in starting.offsets.items():
            if isinstance(offset, Latest):
                raise ConfigError(
                    f"startingOffsets for {topic_partition} can't be latest for batch queries on Kafka"
                )


def _check_batch_end(ending: OffsetRangeLimit) -> None:
    if isinstance(ending, Earliest):
        raise ConfigError("ending offset can't be earliest for batch queries on Kafka")
    if isinstance(ending, LatestMinus | Committed):
        raise ConfigError(
            "ending offset must be latest or JSON; latest-N and committed are for starting only"
        )
    if isinstance(ending, Specific):
        for topic_partition, offset in ending.offsets.items():
            if isinstance(offset, Earliest):
                raise ConfigError(
                    f"ending offset for {topic_partition} can't be earliest for batch queries on Kafka"
                )


def _parse_general(values: OptionValues, starting: OffsetRangeLimit, ending: OffsetRangeLimit) -> ReadOptions:
    subscription = parse_subscription(values)
    task_limits = TaskLimits(
        min_partitions=values.value("minPartitions"),
        max_records_per_partition=values.value("maxRecordsPerPartition"),
        max_partitions=values.value("maxPartitions"),
    )
    _check_kafka_properties(values)
    if isinstance(starting, Committed) and not values.kafka.get("group.id"):
        raise ConfigError(
            "startingOffsets=committed needs kafka.group.id: the group whose offsets to use"
            + values.near_miss("kafka.group.id")
        )
    _check_trigger_offsets(values)
    client, consumer = _parse_configs(values)
    warnings = values.judge_names((ClientConfig, ConsumerConfig))
    return ReadOptions(
        client=client,
        tokens=TokenOptions.parse(values, client),
        consumer=consumer,
        subscription=subscription,
        starting=starting,
        ending=ending,
        fallbacks=StartFallbacks(
            after_last_record=values.value("startingOffsetsByTimestampStrategy"),
            not_committed=values.value("committedOffsetsFallback"),
        ),
        fail_on_data_loss=values.value("failOnDataLoss"),
        task_limits=task_limits,
        bind_at_load=values.value("bindOffsets") == "load",
        include_headers=values.value("includeHeaders"),
        formats=ReadFormats.parse(values),
        filter_pushdown=values.value("filterPushdown"),
        group_id=values.kafka.get("group.id") or f"{values.value('groupIdPrefix')}-{uuid.uuid4()}",
        has_group_id=bool(values.kafka.get("group.id")),
        offset_retries=OffsetRetries(
            count=values.value("fetchOffset.numRetries"),
            interval_ms=values.value("fetchOffset.retryIntervalMs"),
        ),
        warnings=(*warnings, *ignored_settings(values), *_judge_group_id(values)),
    )


_AUTO_OFFSET_RESET: Final = """
Kafka option 'auto.offset.reset' is not supported.
Instead set the source option 'startingoffsets' to 'earliest' or 'latest'
to specify where to start. Structured Streaming manages which offsets are consumed
internally, rather than relying on the kafkaConsumer to do it. This will ensure that no
data is missed when new topics/partitions are dynamically subscribed. Note that
'startingoffsets' only applies when a new Streaming query is started, and
that resuming will always pick up from where the query left off. See the docs for more
details.
"""

REFUSED: Final = {
    "auto.offset.reset": _AUTO_OFFSET_RESET,
    "key.deserializer": (
        "Kafka option 'key.deserializer' is not supported as keys are deserialized as byte arrays with "
        "ByteArrayDeserializer. Use DataFrame operations to explicitly deserialize the keys."
    ),
    "value.deserializer": (
        "Kafka option 'value.deserializer' is not supported as values are deserialized as byte arrays with "
        "ByteArrayDeserializer. Use DataFrame operations to explicitly deserialize the values."
    ),
    "enable.auto.commit": "Kafka option 'enable.auto.commit' is not supported",
    "interceptor.classes": "Kafka option 'interceptor.classes' is not supported",
}


def _check_kafka_properties(values: OptionValues) -> None:
    for name, refusal in REFUSED.items():
        if name in values.kafka:
            raise ConfigError(refusal)
    values.require_bootstrap_servers("consumer")


_GROUP_ID_WARNING: Final = (
    "Kafka option 'kafka.group.id' has been set on this query: reading joins no consumer group and commits "
    "nothing (except in a stream with commitOffsets=true); the id is only used for startingOffsets=committed "
    "and in error messages"
)


def _judge_group_id(values: OptionValues) -> tuple[str, ...]:
    if "group.id" not in values.kafka:
        return ()
    if "groupIdPrefix" not in values:
        return (_GROUP_ID_WARNING,)
    return (
        _GROUP_ID_WARNING,
        "Option groupIdPrefix will be ignored as option kafka.group.id has been set.",
    )


def _check_trigger_offsets(values: OptionValues) -> None:
    """Compared in batch too, where both mean nothing: as Spark's connector does."""
    if "minOffsetsPerTrigger" in values and "maxOffsetsPerTrigger" in values:
        minimum, maximum = values.value("minOffsetsPerTrigger"), values.value("maxOffsetsPerTrigger")
        if minimum > maximum:
            raise ConfigError(
                f"The value of minOffsetPerTrigger({minimum}) is higher than the "
                f"maxOffsetsPerTrigger({maximum})."
            )


def _parse_configs(values: OptionValues) -> tuple[ClientConfig, ConsumerConfig]:
    properties = dict(values.kafka)
    if "kafkaConsumer.pollTimeoutMs" in values or "poll.timeout.ms" not in properties:
        properties["poll.timeout.ms"] = str(values.value("kafkaConsumer.pollTimeoutMs"))
    return ClientConfig.from_properties(properties), ConsumerConfig.from_properties(properties)


def _check_limits_agree(starting: OffsetRangeLimit, ending: OffsetRangeLimit) -> None:
    """Both sides given for each partition: the same partitions, and no start after its end."""
    compared = _comparable(starting, ending)
    if compared is None:
        return
    starts, ends, what = compared
    if starts.keys() != ends.keys():
        raise KafkaConditionError(
            "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
            {
                "tpsForStartOffset": format_topic_partitions(starts),
                "tpsForEndOffset": format_topic_partitions(ends),
            },
        )
    for topic_partition, start in starts.items():
        end = ends[topic_partition]
        if start is not None and end is not None and start > end:
            raise KafkaConditionError(
                "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
                {
                    "what": what,
                    "startOffset": start,
                    "endOffset": end,
                    "topic": topic_partition.topic,
                    "partition": topic_partition.partition,
                },
            )


_Numbers = Mapping[TopicPartition, int | None]


def _comparable(
    starting: OffsetRangeLimit, ending: OffsetRangeLimit
) -> tuple[_Numbers, _Numbers, str] | None:
    """Both sides as numbers (None for earliest and latest), and what the numbers are."""
    if isinstance(starting, Specific) and isinstance(ending, Specific):
        return _offsets_of(starting), _offsets_of(ending), "offset"
    if isinstance(starting, AtTimestamps) and isinstance(ending, AtTimestamps):
        return starting.timestamps_ms, ending.timestamps_ms, "timestamp"
    return None


def _offsets_of(limit: Specific) -> dict[TopicPartition, int | None]:
    return {tp: bound.offset if isinstance(bound, At) else None for tp, bound in limit.offsets.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchLimits:
    """The options about the size of a micro-batch; None for no limit."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 900_000
    """How long ``min_offsets`` may hold a batch back."""

    @property
    def any(self) -> bool:
        """True if any limit is set."""
        return not (self.max_offsets is self.max_bytes is self.min_offsets is None)


_ENDING: Final = {
    "endingOffsets": "ending offset not valid in streaming queries",
    "endingOffsetsByTimestamp": "ending timestamp not valid in streaming queries",
    "endingTimestamp": "ending timestamp not valid in streaming queries",
}


_NO_BATCH_LETTERS: Final = (
    "mode=dlq is for streams: Spark may read a batch DataFrame any number of times, and nothing says when "
    "that is done. Read it as a stream with trigger(availableNow=True); or with mode=permissive, and write "
    "the rows where `_error` is not null to a topic"
)


def _check_letters(read: ReadOptions) -> None:
    limits = read.task_limits
    if read.formats.letters is not None and (limits.min_partitions or limits.max_records_per_partition):
        raise ConfigError(
            "mode=dlq can't be had with minPartitions or maxRecordsPerPartition: one task at a time writes "
            "the dead letters of a partition, in the order of its offsets. Repartition the DataFrame instead"
        )


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """The options of a streaming read, parsed and checked. Plain data."""

    read: ReadOptions
    limits: MicroBatchLimits
    commit_offsets: bool
    """True if the offsets of completed batches are committed to ``kafka.group.id``."""

    @classmethod
    def parse(cls, values: OptionValues) -> StreamOptions:
        """Check everything that can be checked without a cluster. Raises `ConfigError`."""
        for name, refusal in _ENDING.items():
            if name in values:
                raise ConfigError(refusal)
        read = ReadOptions.for_stream(values, now_ms=time.time_ns() // 1_000_000)
        _check_letters(read)
        limits = MicroBatchLimits(
            max_offsets=values.value("maxOffsetsPerTrigger"),
            max_bytes=values.value("maxBytesPerTrigger"),
            min_offsets=values.value("minOffsetsPerTrigger") or None,
            max_delay_ms=values.value("maxTriggerDelay"),
        )
        commit_offsets = values.value("commitOffsets")
        if commit_offsets and not read.has_group_id:
            raise ConfigError(
                "commitOffsets=true needs kafka.group.id: the group that the offsets are committed to"
                + values.near_miss("kafka.group.id")
            )
        return cls(read=read, limits=limits, commit_offsets=commit_offsets)


@dataclass(frozen=True, kw_only=True)
class ReadTask:
    """What all tasks of a read share."""

    client: ClientConfig
    consumer: ConsumerConfig
    schema: RowSchema
    fail_on_data_loss: bool
    group_id: str
    ends_are_known: bool = False
    """True if every fixed end was in the log at planning (a stream's), so that it need not be looked up."""

    def client_for(self, partition: KafkaInputPartition) -> ClientConfig:
        """The config of the task that reads ``partition``: with its delegation token, if it has one."""
        return self.client if partition.login is None else partition.login.to(self.client)

    @classmethod
    def of(cls, options: ReadOptions, schema: StructType, *, ends_are_known: bool = False) -> ReadTask:
        """The tasks of a read of ``schema``'s columns. Raises `ConfigError` for columns that can't be."""
        # Nothing that a task waits for may take longer than its poll timeout.
        client = options.client if options.tokens is None else options.tokens.of_tasks(options.client)
        timeout_ms = min(options.client.default_api_timeout_ms, options.consumer.poll_timeout_ms)
        # Before it is over, a log that has become shorter has to be known for that.
        wait_ms = min(options.consumer.end_of_log_wait_ms, options.consumer.poll_timeout_ms // 2)
        return cls(
            client=replace(client, default_api_timeout_ms=timeout_ms),
            consumer=replace(options.consumer, end_of_log_wait_ms=wait_ms),
            schema=RowSchema.from_schema(schema, options.formats),
            fail_on_data_loss=options.fail_on_data_loss,
            group_id=options.group_id,
            ends_are_known=ends_are_known,
        )
