"""`Option` and the table of all options: parsing, errors and docs/options.md come from this one place.

Names, defaults and the words of errors are those of Spark's own Kafka connector wherever it has the option.
``python -m spark_kafka_native.spark.options`` prints docs/options.md. Properties under ``kafka.`` are not
here: the client's configs declare them, and the page lists them from there.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..kafka.errors import ConfigError


class Scope(enum.Flag):
    """Where an option means something."""

    READ = enum.auto()
    """``spark.read``"""
    STREAM = enum.auto()
    """``spark.readStream``"""
    WRITE = enum.auto()
    """``df.write`` and ``df.writeStream``"""


class OptionType(enum.Enum):
    """How an option's text becomes a value."""

    TEXT = "text"
    BOOLEAN = "true or false"
    INT = "whole number"
    CHOICE = "one of"
    DURATION = "time span"
    """Milliseconds as a bare number, or with a unit: ``15m``, ``5s``."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: its bounds are inclusive; ``values`` tells the docs what a TEXT may be."""

    name: str
    scope: Scope
    sentence: str
    type: OptionType = OptionType.TEXT
    default: str | None = None
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    values: str = ""
    ours: bool = False
    """Not an option of Spark's own connector."""

    def parse(self, text: str) -> Any:
        """The value of ``text``: str, bool or int (milliseconds for a DURATION). Raises `ConfigError`."""
        return _PARSERS[self.type](self, text)


def _parse_boolean(option: Option, text: str) -> bool:
    value = text.strip().lower()
    if value not in ("true", "false"):
        raise ConfigError(f"For input string: \"{text}\" (option '{option.name}' is true or false)")
    return value == "true"


def _parse_int(option: Option, text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", text):
        raise ConfigError(f"For input string: \"{text[:100]}\" (option '{option.name}' is a whole number)")
    return _check_bounds(option, int(text))


def _parse_choice(option: Option, text: str) -> str:
    value = text.strip().lower()
    if value not in option.choices:
        raise ConfigError(
            f"No value found for '{text}' (option '{option.name}' is {' or '.join(option.choices)})"
        )
    return value


_DURATION_MS: Final = {
    "": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip


def _parse_duration(option: Option, text: str) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,15})\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _DURATION_MS:
        raise ConfigError(f"Option '{option.name}' is a time such as 500, 5s or 15m, not {text[:100]!r}")
    return _check_bounds(option, int(match[1]) * _DURATION_MS[match[2]])


def _check_bounds(option: Option, value: int) -> int:
    if option.least == 1 and value < 1:
        # Spark's words; it spells the newer of the two names in lower case.
        shown = "maxrecordsperpartition" if option.name == "maxRecordsPerPartition" else option.name
        raise ConfigError(f"{shown} must be positive")
    most = (2**63 - 1) if option.most is None else option.most
    if (option.least is not None and value < option.least) or value > most:
        raise ConfigError(f"{option.name} must be between {option.least} and {most}, not {value}")
    return value


_PARSERS: Final[dict[OptionType, Callable[[Option, str], Any]]] = {
    OptionType.TEXT: lambda _option, text: text,
    OptionType.BOOLEAN: _parse_boolean,
    OptionType.INT: _parse_int,
    OptionType.CHOICE: _parse_choice,
    OptionType.DURATION: _parse_duration,
}

_INT32_MAX: Final = 2**31 - 1
_READS: Final = Scope.READ | Scope.STREAM
_TIME: Final = "milliseconds, ISO-8601 (UTC unless it says otherwise), or relative: `-1h`, `-15 minutes`"
_OFFSETS_JSON: Final = '`{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}` (-1 latest, -2 earliest)'
_TIMESTAMPS_JSON: Final = '`{"topicA":{"0":1700000000000}}`'

OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        name="subscribe",
        scope=_READS,
        values="topic names, comma-separated",
        sentence="The topics to read. Give exactly one of `subscribe`, `subscribePattern` and `assign`.",
    ),
    Option(
        name="subscribePattern",
        scope=_READS,
        values="Java regular expression",
        sentence="Reads every topic in whose name the pattern is found, anywhere in it; internal topics are "
        "left out.",
    ),
    Option(
        name="assign",
        scope=_READS,
        values='`{"topicA":[0,1],"topicB":[2,4]}`',
        sentence="The partitions to read. Partitions that don't exist are left out.",
    ),
    Option(
        name="startingOffsets",
        scope=_READS,
        default="earliest (batch), latest (stream)",
        values=f"`earliest`, `latest` (streams), `latest-1000`, `committed`, or {_OFFSETS_JSON}",
        sentence="Where to start. JSON must list each partition that is read. `latest-N` is the last N "
        "offsets of each "
        "partition, `committed` the offsets of `kafka.group.id`.",
    ),
    Option(
        name="endingOffsets",
        scope=Scope.READ,
        default="latest",
        values=f"`latest` or {_OFFSETS_JSON}",
        sentence="Where to end, exclusive. JSON must list each partition that is read.",
    ),
    Option(
        name="startingTimestamp",
        scope=_READS,
        values=_TIME,
        sentence="Starts each partition at its first record at or after this time. Goes before the other "
        "starting options.",
    ),
    Option(
        name="endingTimestamp",
        scope=Scope.READ,
        values=_TIME,
        sentence="Ends each partition before its first record at or after this time, or at its end where "
        "there is none. "
        "Goes before the other ending options.",
    ),
    Option(
        name="startingOffsetsByTimestamp",
        scope=_READS,
        values=_TIMESTAMPS_JSON,
        sentence="As `startingTimestamp`, a time in milliseconds for each partition. Goes before "
        "`startingOffsets`.",
    ),
    Option(
        name="endingOffsetsByTimestamp",
        scope=Scope.READ,
        values=_TIMESTAMPS_JSON,
        sentence="As `endingTimestamp`, a time in milliseconds for each partition. Goes before "
        "`endingOffsets`.",
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        scope=_READS,
        type=OptionType.CHOICE,
        default="error",
        choices=("error", "latest"),
        sentence="What a partition without any record at or after the starting time means: an error, or a "
        "start at its end.",
    ),
    Option(
        name="committedOffsetsFallback",
        scope=_READS,
        type=OptionType.CHOICE,
        default="earliest",
        ours=True,
        choices=("earliest", "latest", "error"),
        sentence="Where `startingOffsets=committed` starts a partition for which the group has committed "
        "nothing.",
    ),
    Option(
        name="failOnDataLoss",
        scope=_READS,
        type=OptionType.BOOLEAN,
        default="true",
        sentence="Whether offsets that are gone (retention, a deleted or recreated topic) fail the query. "
        "With `false` it "
        "goes on at the first offset that is there, and a warning tells how many were lost.",
    ),
    Option(
        name="minPartitions",
        scope=_READS,
        type=OptionType.INT,
        least=1,
        most=_INT32_MAX,
        sentence="At least about so many tasks: large ranges are split. Without it, one task for each "
        "topic-partition.",
    ),
    Option(
        name="maxRecordsPerPartition",
        scope=_READS,
        type=OptionType.INT,
        least=1,
        sentence="At most so many offsets in a task: larger ranges are split evenly.",
    ),
    Option(
        name="maxPartitions",
        scope=_READS,
        type=OptionType.INT,
        least=1,
        most=_INT32_MAX,
        ours=True,
        sentence="At most so many tasks: small ranges are packed together, by leader and then evenly by "
        "size, and one "
        "fetch asks for many partitions. Goes before `minPartitions` and `maxRecordsPerPartition`.",
    ),
    Option(
        name="includeHeaders",
        scope=_READS | Scope.WRITE,
        type=OptionType.BOOLEAN,
        default="false",
        sentence="Adds the column `headers`. A write needs no option: it writes the column `headers` if "
        "there is one.",
    ),
    Option(
        name="filterPushdown",
        scope=Scope.READ,
        type=OptionType.BOOLEAN,
        default="false",
        ours=True,
        sentence="Plans only what `where` on `topic`, `partition`, `offset` and the earliest `timestamp` "
        "leaves, if the session has "
        "`spark.sql.python.filterPushdown.enabled=true`. Only for a DataFrame that is used with one filter: "
        "Spark keeps "
        "the last pushed filters attached to it, whatever it is used for next.",
    ),
    Option(
        name="groupIdPrefix",
        scope=_READS,
        default="spark-kafka-relation (batch), spark-kafka-source (stream)",
        values="text",
        sentence="Accepted for compatibility: reading takes part in no consumer group. Shows in error texts.",
    ),
    Option(
        name="kafkaConsumer.pollTimeoutMs",
        scope=_READS,
        type=OptionType.INT,
        default="120000",
        least=1,
        most=_INT32_MAX,
        sentence="A task whose partition makes no progress for so many milliseconds fails.",
    ),
    Option(
        name="fetchOffset.numRetries",
        scope=_READS,
        type=OptionType.INT,
        default="3",
        least=0,
        most=1000,
        sentence="How often the driver asks again when topics or offsets can't be found.",
    ),
    Option(
        name="fetchOffset.retryIntervalMs",
        scope=_READS,
        type=OptionType.INT,
        default="1000",
        least=0,
        most=_INT32_MAX,
        sentence="Milliseconds before it asks again.",
    ),
    Option(
        name="maxOffsetsPerTrigger",
        scope=Scope.STREAM,
        type=OptionType.INT,
        least=1,
        sentence="At most so many offsets in a micro-batch, shared out in proportion to what each partition "
        "has.",
    ),
    Option(
        name="minOffsetsPerTrigger",
        scope=Scope.STREAM,
        type=OptionType.INT,
        least=1,
        sentence="A micro-batch waits for so many offsets, but not longer than `maxTriggerDelay`.",
    ),
    Option(
        name="maxTriggerDelay",
        scope=Scope.STREAM,
        type=OptionType.DURATION,
        default="15m",
        least=0,
        sentence="How long `minOffsetsPerTrigger` may hold a micro-batch back.",
    ),
    Option(
        name="topic",
        scope=Scope.WRITE,
        values="topic name",
        sentence="The topic to write to; goes before the column `topic`.",
    ),
    Option(
        name="createTopics",
        scope=Scope.WRITE,
        type=OptionType.BOOLEAN,
        default="false",
        ours=True,
        sentence="Creates topics that don't exist, instead of failing.",
    ),
    Option(
        name="createTopics.partitions",
        scope=Scope.WRITE,
        type=OptionType.INT,
        least=1,
        most=100_000,
        ours=True,
        sentence="Partitions of a topic that is created; the broker's `num.partitions` if not given.",
    ),
    Option(
        name="createTopics.replicationFactor",
        scope=Scope.WRITE,
        type=OptionType.INT,
        least=1,
        most=32767,
        ours=True,
        sentence="Replicas of a topic that is created; the broker's `default.replication.factor` if not "
        "given.",
    ),
    Option(
        name="summaryPath",
        scope=Scope.WRITE,
        values="path of a file on the driver",
        ours=True,
        sentence="Where a batch write leaves what it wrote, as JSON: records, bytes, retries, and the first "
        "and last offset of each topic-partition.",
    ),
)
"""Every option, in the order of the documentation."""


if __name__ == "__main__":
    from .options_page import write_options_page

    print(write_options_page(), end="")
