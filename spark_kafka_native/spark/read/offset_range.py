"""The offsets of a read. `OffsetRangeLimit`: where it starts or ends, as the options say it before the
cluster is asked, and its JSON. `OffsetRange`: the offsets of one partition that a task reads;
`KafkaInputPartition`: those of a task, as plain data that Spark pickles.

A bound that is no offset yet (`Earliest`, `Latest`, `FirstAtOrAfter`) is looked up when the task runs, so
that a DataFrame that is read twice sees what arrived in between.

The JSON comes from users, from checkpoints and from notebooks' widgets: it is checked like any untrusted
input, and every error names the key it is about.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from ...kafka.errors import ConfigError
from ...kafka.model import TopicPartition
from ..delegation_tokens import TokenLogin


@dataclass(frozen=True, slots=True)
class At:
    """This offset (of an end: exclusive)."""

    offset: int

    def __str__(self) -> str:
        return str(self.offset)


@dataclass(frozen=True, slots=True)
class Inner:
    """An offset at which a range was split; the range's own start (or end) is still to be looked up.

    Offsets before the earliest one when the task runs are not wanted, and no loss.
    """

    offset: int

    def __str__(self) -> str:
        return str(self.offset)


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first offset that is there when the job runs."""

    def __str__(self) -> str:
        return "earliest"


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the log when the job runs."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True, slots=True)
class FirstAtOrAfter:
    """The first record at or after a time, or the end of the log while there is none, when the job runs."""

    timestamp_ms: int

    def __str__(self) -> str:
        return f"the first record at or after {self.timestamp_ms} ms"


StartBound = At | Inner | Earliest

EndBound = At | Inner | Latest | FirstAtOrAfter


def fixed_offset(bound: StartBound | EndBound) -> int | None:
    """The offset of a bound that is one; None if the task looks it up."""
    return bound.offset if isinstance(bound, At | Inner) else None


def is_open(bound: StartBound | EndBound) -> bool:
    """True if the range, or the one it is a piece of, has no fixed offset on that side."""
    return not isinstance(bound, At)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The offsets ``[start, end)`` of one partition. Plain data: Spark pickles it.

    ``floor`` and ``ceiling`` come from pushed filters, and cut the bounds once they are looked up.
    """

    topic: str
    partition: int
    start: StartBound
    end: EndBound
    floor: int = 0
    ceiling: int | None = None
    topic_id: str | None = None
    """The topic this was planned for, as hex; None where brokers give no topic ids."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the range is of."""
        return TopicPartition(self.topic, self.partition)

    @property
    def topic_uuid(self) -> UUID | None:
        """``topic_id`` as the client has it."""
        return None if self.topic_id is None else UUID(hex=self.topic_id)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True)
class KafkaInputPartition(InputPartition):  # type: ignore[misc]
    """A task: one offset range, or many of different partitions (and of the same)."""

    ranges: tuple[OffsetRange, ...]
    login: TokenLogin | None = None
    """With ``delegationTokens=true``. Spark pickles the reader of a stream once, and partitions for each
    micro-batch: a stream outlives its tokens."""


MAX_JSON_LENGTH: Final = 8 << 20
"""Characters. 8 MiB hold some 400 000 partitions; more than that is a mistake or an attack."""

MAX_JSON_DEPTH: Final = 4

MAX_OFFSET: Final = 2**63 - 1

OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'

TIMESTAMPS_EXAMPLE: Final = (
    '{"topicA": {"0": 123456789, "1": 123456789},\n"topicB": {"0": 123456789, "1": 123456789}}'
)

ASSIGN_EXAMPLE: Final = '{"topicA":[0,1],"topicB":[0,1]}'

PartitionOffset = At | Earliest | Latest
"""An offset >= 0, or what -2 and -1 mean in JSON."""


@dataclass(frozen=True, slots=True)
class LatestMinus:
    """``count`` offsets before the end of the log, but never before its start."""

    count: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The offsets that ``kafka.group.id`` has committed."""


@dataclass(frozen=True, slots=True)
class Specific:
    """An offset for exactly each partition that is read."""

    offsets: Mapping[TopicPartition, PartitionOffset]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record at or after a time, the same for each partition."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """The first record at or after a time, one for exactly each partition that is read."""

    timestamps_ms: Mapping[TopicPartition, int]


OffsetRangeLimit = Earliest | Latest | LatestMinus | Committed | Specific | AtTimestamp | AtTimestamps

_LATEST_MINUS: Final = re.compile(r"latest\s*-\s*([0-9]{1,18})")


def parse_offset_limit(text: str) -> OffsetRangeLimit:
    """A word, ``latest-1000`` or JSON as in `OFFSETS_EXAMPLE`; `ConfigError` if anything else."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Earliest() if word == "earliest" else Latest()
    if word == "committed":
        return Committed()
    if match := _LATEST_MINUS.fullmatch(word):
        return LatestMinus(int(match[1]))
    return Specific(_parse_partition_map(text, OFFSETS_EXAMPLE, _as_offset))


def parse_timestamps(text: str) -> AtTimestamps:
    """Times in milliseconds, JSON as in `TIMESTAMPS_EXAMPLE`; `ConfigError` if anything else."""
    return AtTimestamps(_parse_partition_map(text, TIMESTAMPS_EXAMPLE, _as_timestamp))


def parse_assignment(text: str) -> tuple[TopicPartition, ...]:
    """Partitions of topics, JSON as in `ASSIGN_EXAMPLE`, sorted; `ConfigError` if anything else.

    One that is listed twice counts once, as in the JVM connector.
    """
    found: list[TopicPartition] = []
    for topic, partitions in _parse_object(text, ASSIGN_EXAMPLE).items():
        if not isinstance(partitions, list):
            raise _unexpected(ASSIGN_EXAMPLE, text, f"topic {topic!r} needs a list of partitions")
        for partition in partitions:
            if not _is_int(partition) or not 0 <= partition < 2**31:
                raise _unexpected(
                    ASSIGN_EXAMPLE, text, f"{partition!r} of topic {topic!r} is not a partition"
                )
            found.append(TopicPartition(topic, partition))
    return tuple(sorted(set(found)))


def format_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """The JVM connector's JSON, topics and partitions in order: ``{"topic":{"0":23,"1":345}}``."""
    by_topic: dict[str, dict[str, int]] = {}
    for topic_partition in sorted(offsets):
        by_topic.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offsets[
            topic_partition
        ]
    return json.dumps(by_topic, separators=(",", ":"))


def format_topic_partitions(topic_partitions: Iterable[TopicPartition]) -> str:
    """For error texts: ``[a-0, a-1, b-0]``, cut after 50."""
    names = [str(topic_partition) for topic_partition in sorted(topic_partitions)]
    more = f", ... {len(names) - 50} more" if len(names) > 50 else ""
    return f"[{', '.join(names[:50])}{more}]"


def _parse_partition_map(text: str, example: str, convert: Any) -> dict[TopicPartition, Any]:
    found: dict[TopicPartition, Any] = {}
    for topic, partitions in _parse_object(text, example).items():
        if not isinstance(partitions, dict):
            raise _unexpected(example, text, f"topic {topic!r} needs an object of partitions")
        for key, value in partitions.items():
            if not re.fullmatch(r"0|[1-9][0-9]{0,9}", key) or int(key) >= 2**31:
                raise _unexpected(example, text, f"{key!r} of topic {topic!r} is not a partition")
            converted = convert(value)
            if converted is None:
                raise _unexpected(example, text, f"{str(value)[:40]} is not allowed for {topic}-{key}")
            found[TopicPartition(topic, int(key))] = converted
    return found


def _as_offset(value: Any) -> PartitionOffset | None:
    if not _is_int(value):
        return None
    if value in (-1, -2):
        return Latest() if value == -1 else Earliest()
    return At(value) if 0 <= value <= MAX_OFFSET else None


def _as_timestamp(value: Any) -> int | None:
    return value if _is_int(value) and 0 <= value <= MAX_OFFSET else None


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _parse_object(text: str, example: str) -> dict[str, Any]:
    if len(text) > MAX_JSON_LENGTH:
        raise _unexpected(
            example, text, f"it has {len(text)} characters, more than the {MAX_JSON_LENGTH} allowed"
        )
    if _depth(text) > MAX_JSON_DEPTH:
        raise _unexpected(example, text, f"it is nested more than {MAX_JSON_DEPTH} levels deep")
    try:
        parsed = json.loads(
            text, object_pairs_hook=_reject_duplicates, parse_constant=_reject_constant, parse_float=_whole
        )
    except ValueError as error:
        raise _unexpected(example, text, str(error)) from error
    if not isinstance(parsed, dict):
        raise _unexpected(example, text, "it is not a JSON object")
    return parsed


def _depth(text: str) -> int:
    """Nesting of the brackets outside strings, found before the parser would recurse into them."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:100]!r} occurs twice")
        found[key] = value
    return found


def _whole(text: str) -> int | float:
    """``5.0`` is 5, as in Spark's connector: columns with nulls are floats in pandas."""
    whole, _, fraction = text.partition(".")
    return int(whole) if fraction and not fraction.strip("0") else float(text)


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _unexpected(example: str, text: str, why: str) -> ConfigError:
    shown = text if len(text) <= 200 else f"{text[:200]}..."
    return ConfigError(f"Expected e.g. {example}, got {shown} ({why})")
