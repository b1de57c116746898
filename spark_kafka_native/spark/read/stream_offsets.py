"""`StreamOffset`: how far a stream has come, and its JSON in Spark's checkpoint. Pure.

The JSON is the JVM connector's, ``{"topic":{"0":23}}``, so that each of the two continues the other's
checkpoint. What it has no place for stands in the *names* of further keys with an empty object behind them:
the JVM connector reads those as topics of which no partition is there. No topic can be called like that.

- ``"#id orders 3f2a..."``: the id of the topic that the offsets belong to (KIP-516).
- ``"#start"``, ``"#start orders 0:5 1:7"``: of the first batch, where it starts. Spark keeps no start of the
  first batch for Python sources, and asks again after a crash; by then, ``latest`` is another place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...kafka.errors import ConfigError
from ...kafka.model import TopicPartition

Positions = Mapping[TopicPartition, int]
"""For each partition the offset of the next record to read."""
MAX_OFFSET: Final = 2**63 - 1
_ID: Final = re.compile(r"#id (\S+) ([0-9a-f]{32})")
_START: Final = re.compile(r"#start(?: (\S+)((?: \d{1,10}:\d{1,19})+))?")
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """Where a micro-batch ends, and the next one starts. Equal offsets have equal JSON."""

    positions: Positions
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Topic -> its id in hex, as far as brokers and checkpoint know any."""
    start: Positions | None = None
    """Of the end of the first batch: where that batch starts. What is not in it starts at its beginning."""

    @property
    def is_initial(self) -> bool:
        """Whether nothing has been planned before it: it is its own start."""
        return self.start is not None and dict(self.start) == dict(self.positions)

    def to_json(self) -> dict[str, dict[str, int]]:
        """What Spark's ``json.dumps`` turns into the checkpoint's text: always in the same order, as Spark
        compares texts. Never empty, which would mean that everything is new: Raises ValueError."""
        found: dict[str, dict[str, int]] = {}
        for tp in sorted(self.positions):
            found.setdefault(tp.topic, {})[str(tp.partition)] = self.positions[tp]
        for topic in sorted(set(found) & set(self.topic_ids)):
            found[f"#id {topic} {self.topic_ids[topic]}"] = {}
        if self.start is not None:
            found |= {name: {} for name in _name_start(self.start)}
        if not found:
            raise ValueError("an offset of no partition at all")
        return found

    @classmethod
    def from_json(cls, offset: Any) -> StreamOffset:
        """The offset that ``to_json`` or the JVM connector wrote. Raises `ConfigError` for anything else."""
        if not isinstance(offset, dict):
            raise _unexpected(offset, "not a JSON object")
        positions: dict[TopicPartition, int] = {}
        topic_ids: dict[str, str] = {}
        start: dict[TopicPartition, int] | None = None
        for name, partitions in offset.items():
            if not isinstance(partitions, dict):
                raise _unexpected(offset, f"{name!r} needs an object of partitions")
            if match := _ID.fullmatch(name):
                topic_ids[match[1]] = match[2]
            elif match := _START.fullmatch(name):
                start = (start or {}) | _parse_start(match)
            elif name.startswith("#"):
                raise _unexpected(offset, f"{name!r} is unknown here: a newer version wrote it")
            else:
                positions |= _parse_positions(offset, name, partitions)
        return cls(positions=positions, topic_ids=topic_ids, start=start)

    def is_other_topic(self, topic: str, topic_id: str | None) -> bool:
        """Whether ``topic`` with ``topic_id`` is not the one that these offsets are of; False if unknown."""
        known = self.topic_ids.get(topic)
        return known is not None and topic_id is not None and known != topic_id


def _name_start(start: Positions) -> list[str]:
    by_topic: dict[str, list[str]] = {}
    for tp in sorted(start):
        by_topic.setdefault(tp.topic, []).append(f"{tp.partition}:{start[tp]}")
    return ["#start", *(f"#start {topic} {' '.join(offsets)}" for topic, offsets in by_topic.items())]


def _parse_start(match: re.Match[str]) -> dict[TopicPartition, int]:
    pairs = (pair.split(":") for pair in (match[2] or "").split())
    return {TopicPartition(match[1], int(partition)): int(offset) for partition, offset in pairs}


def _parse_positions(whole: Any, topic: str, partitions: dict[Any, Any]) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for partition, offset in partitions.items():
        if not _PARTITION.fullmatch(str(partition)):
            raise _unexpected(whole, f"{partition!r} of topic {topic!r} is not a partition")
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= MAX_OFFSET:
            raise _unexpected(whole, f"{str(offset)[:40]} is not an offset of {topic}-{partition}")
        found[TopicPartition(topic, int(partition))] = offset
    return found


def _unexpected(offset: Any, why: str) -> ConfigError:
    shown = str(offset)
    return ConfigError(
        f"The checkpoint has an offset that is not one of Kafka's: {shown[:200]} ({why}); expected e.g. "
        '{"topicA":{"0":23,"1":345}}'
    )
