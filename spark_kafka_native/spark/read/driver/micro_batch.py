"""`StreamOffset`: the offsets that a stream has reached. `LogEnds`: where the logs end. `MicroBatch`: the
batch between two offsets. Pure.

The JSON of an offset, in Spark's checkpoint, is the JVM connector's, ``{"topic":{"0":23}}``, so that each of
the two continues the other's checkpoint. What it has no place for stands in the *names* of further keys with
an empty object as their value: the JVM connector reads those as topics without partitions. No topic can have
such a name.

- ``"#id orders 3f2a..."``: the id of the topic that the offsets belong to (KIP-516).
- ``"#start"``, ``"#start orders 0:5 1:7"``: of the first batch, where it starts. Spark keeps no start of the
  first batch for Python sources, and asks again after a crash; by then, ``latest`` is another offset.
- ``"#added orders 2:40"``: with failOnDataLoss=false, where partitions begin that are new in the batch which
  ends here. Retention may have gone on when that batch runs again.
- ``"#gone orders 2:40"``: with failOnDataLoss=false, where the stream goes on in partitions that the cluster
  lacks now, as soon as it has them again. Those that have been missing for the longest come first.

The same two offsets give the same ranges, whenever and in whichever process: a batch that is run again reads
what it has read before.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ....kafka.errors import ConfigError
from ....kafka.model import TopicPartition
from ...error_conditions import KafkaConditionError
from ..data_loss import OTHER_CLUSTER
from ..offset_range import At, OffsetRange, format_topic_partitions
from .range_calculator import PlannedRange

Positions = Mapping[TopicPartition, int]
"""For each partition the offset of the next record to read."""

MAX_OFFSET: Final = 2**63 - 1

_ID: Final = re.compile(r"#id (\S+) ([0-9a-f]{32})")

_NAMED: Final = re.compile(r"#(start(?= |$)|(?:added|gone)(?= ))(?: (\S+)((?: \d{1,10}:\d{1,19})+))?")

MAX_GONE: Final = 1_000
"""Missing partitions of which the positions are kept. A pattern may subscribe to a topic of each day, and the
offset of each batch has them all."""

_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """Where a micro-batch ends, and the next one starts. Equal offsets have equal JSON."""

    positions: Positions
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Topic -> its id in hex, as far as brokers and checkpoint know any."""
    start: Positions | None = None
    """Of the end of the first batch: where that batch starts; other partitions at their beginning."""
    added: Positions = field(default_factory=dict)
    """Of the end of a batch: where its new partitions begin; the others are looked up."""
    gone: Positions = field(default_factory=dict)
    """Positions in partitions that are missing: they count as soon as the same topic has them again."""

    @property
    def is_initial(self) -> bool:
        """True if no batch was planned before it: it is its own start."""
        return self.start is not None and dict(self.start) == dict(self.positions)

    def to_json(self) -> dict[str, dict[str, int]]:
        """What Spark's ``json.dumps`` turns into the checkpoint's text: always in the same order, as Spark
        compares texts. Never empty, which would mean that everything is new: Raises ValueError."""
        found: dict[str, dict[str, int]] = {}
        for tp in sorted(self.positions):
            found.setdefault(tp.topic, {})[str(tp.partition)] = self.positions[tp]
        for topic in sorted({*found, *(tp.topic for tp in self.gone)} & set(self.topic_ids)):
            found[f"#id {topic} {self.topic_ids[topic]}"] = {}
        if self.start is not None:
            found |= {"#start": {}} | {
                name: {} for name in _name_positions("#start", sorted(self.start.items()))
            }
        found |= {name: {} for name in _name_positions("#added", sorted(self.added.items()))}
        found |= {name: {} for name in _name_positions("#gone", self.gone.items())}
        if not self.positions and self.start is None:
            raise ValueError("an offset of no partition at all")
        return found

    @classmethod
    def from_json(cls, offset: Any) -> StreamOffset:
        """The offset that ``to_json`` or the JVM connector wrote. Raises `ConfigError` for anything else."""
        if not isinstance(offset, dict):
            raise _unexpected(offset, "not a JSON object")
        positions: dict[TopicPartition, int] = {}
        topic_ids: dict[str, str] = {}
        named: dict[str, dict[TopicPartition, int]] = {"added": {}, "gone": {}}
        for name, partitions in offset.items():
            if not isinstance(partitions, dict):
                raise _unexpected(offset, f"{name!r} needs an object of partitions")
            if match := _ID.fullmatch(name):
                topic_ids[match[1]] = match[2]
            elif match := _NAMED.fullmatch(name):
                named.setdefault(match[1], {}).update(_parse_named(match))
            elif name.startswith("#"):
                raise _unexpected(offset, f"{name!r} is unknown here: a newer version wrote it")
            else:
                positions |= _parse_positions(offset, name, partitions)
        if not positions and "start" not in named and not named["gone"]:  # SPARK-41375: the JVM connector's
            raise _unexpected(offset, "it has no partitions, and each would be read again from its beginning")
        return cls(
            positions=positions,
            topic_ids=topic_ids,
            start=named.get("start"),
            added=named["added"],
            gone=named["gone"],
        )

    def is_other_topic(self, topic: str, topic_id: str | None) -> bool:
        """True if ``topic_id`` is known to be another topic than the one of these offsets."""
        known = self.topic_ids.get(topic)
        return known is not None and topic_id is not None and known != topic_id

    def back_in(self, there: Container[TopicPartition], topic_ids: Mapping[str, str]) -> StreamOffset:
        """This offset with the positions of missing partitions that are ``there`` again, in the same
        topic."""
        back = {
            tp: offset
            for tp, offset in self.gone.items()
            if tp in there and topic_ids.get(tp.topic) == self.topic_ids.get(tp.topic)
        }
        if not back:
            return self
        gone = {tp: offset for tp, offset in self.gone.items() if tp not in back}
        return replace(self, positions={**self.positions, **back}, gone=gone)


def _name_positions(what: str, positions: Iterable[tuple[TopicPartition, int]]) -> list[str]:
    by_topic: dict[str, list[str]] = {}
    for tp, offset in positions:
        by_topic.setdefault(tp.topic, []).append(f"{tp.partition}:{offset}")
    return [f"{what} {topic} {' '.join(offsets)}" for topic, offsets in by_topic.items()]


def _parse_named(match: re.Match[str]) -> dict[TopicPartition, int]:
    pairs = (pair.split(":") for pair in (match[3] or "").split())
    return {TopicPartition(match[2], int(partition)): int(offset) for partition, offset in pairs}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnds:
    """Where the logs of all partitions end, and which topics they are of."""

    latest: Positions
    """With read_committed, the last stable offsets."""
    topic_ids: Mapping[str, str]
    """In hex, where brokers have them."""

    def are_behind(self, start: StreamOffset, held: Positions) -> bool:
        """True if partitions of ``start`` are missing, or end before it. Those at a position of ``held`` are
        known to; they, and topics known to have been created again, are left out.
        """
        return any(
            self.latest.get(tp, -1) < offset
            for tp, offset in self._same_topics(start).items()
            if held.get(tp) != offset
        )

    def shorter_than(self, start: StreamOffset) -> dict[TopicPartition, int]:
        """The positions of ``start`` that are behind the end of their log. Topics known to have been created
        again are left out."""
        return {
            tp: offset
            for tp, offset in self._same_topics(start).items()
            if self.latest.get(tp, offset) < offset
        }

    def without(self, left_out: Container[TopicPartition]) -> LogEnds:
        """These ends without those of some partitions."""
        return replace(self, latest={tp: at for tp, at in self.latest.items() if tp not in left_out})

    def _same_topics(self, start: StreamOffset) -> Positions:
        start = start.back_in(self.latest, self.topic_ids)
        others = {name for name, topic_id in self.topic_ids.items() if start.is_other_topic(name, topic_id)}
        if not others:
            return start.positions
        return {tp: offset for tp, offset in start.positions.items() if tp.topic not in others}


def end_of_batch(start: StreamOffset, ends: LogEnds, positions: Positions) -> StreamOffset:
    """The offset to write down. The end of the first batch says where that batch starts, too.

    It keeps the positions of missing partitions where the ids of their topics are known: without an id, a
    topic that comes back may be another one of the same name.
    """
    begin: dict[TopicPartition, int] | None = None
    if start.is_initial:
        begin = {
            tp: offset
            for tp, offset in start.positions.items()
            if not start.is_other_topic(tp.topic, ends.topic_ids.get(tp.topic))
        }
    left = [
        (tp, offset)
        for tp, offset in {**start.gone, **start.positions}.items()
        if tp not in positions
        and tp.topic in start.topic_ids
        and not start.is_other_topic(tp.topic, ends.topic_ids.get(tp.topic))
    ]
    gone = dict(left[-MAX_GONE:])
    ids = {**{tp.topic: start.topic_ids[tp.topic] for tp in gone}, **ends.topic_ids}
    return StreamOffset(positions=positions, topic_ids=ids, start=begin, gone=gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """A micro-batch, before the cluster is asked for the first offsets of new partitions."""

    begin: Positions
    """Where partitions that were there before are read on; of the topics that ``end`` is of."""
    former: Positions
    """Positions in topics that were deleted and created again: their unread records are lost."""
    end: StreamOffset

    @classmethod
    def between(cls, start: StreamOffset, end: StreamOffset) -> MicroBatch:
        """The batch from ``start`` to ``end``. The first one starts where its end says: after a crash,
        ``start`` may be a later one, looked up anew."""
        start = start.back_in(end.positions, end.topic_ids)
        known = start.positions
        begun: set[str] = set()
        if start.is_initial and end.start is not None:
            known, begun = end.start, {tp.topic for tp in end.start}
        missing = {tp: offset for tp, offset in start.gone.items() if tp in end.positions}
        former = {
            tp: offset
            for tp, offset in {**missing, **start.positions}.items()
            if tp.topic not in begun and start.is_other_topic(tp.topic, end.topic_ids.get(tp.topic))
        }
        begin = {tp: offset for tp, offset in known.items() if tp not in former}
        return cls(begin=begin, former=former, end=end)

    @property
    def added(self) -> list[TopicPartition]:
        """The partitions that start at their beginning: new ones, and all of a topic that is another now."""
        return sorted(tp for tp in self.end.positions if tp not in self.begin)

    def losses(self, *, has_group_id: bool = False) -> Iterator[KafkaConditionError]:
        """The losses in partitions that earlier batches have read."""
        if deleted := sorted((self.begin.keys() | self.former.keys()) - self.end.positions.keys()):
            yield partitions_deleted(deleted, has_group_id=has_group_id)
        for tp in sorted(self.former.keys() & self.end.positions.keys()):
            now = self.end.topic_ids[tp.topic]
            yield offset_changed(
                tp,
                self.former[tp],
                self.end.positions[tp],
                f"The topic was deleted and created again: its id is now {now}. What was not read of the "
                "former topic is lost; with failOnDataLoss=false, the new one is read from its beginning. "
                f"{OTHER_CLUSTER}",
            )
        for tp in sorted(self.begin.keys() & self.end.positions.keys()):
            if self.end.positions[tp] < self.begin[tp]:
                note = ""
                if self.end.start is not None:
                    note = (
                        "The stream was to start there, beyond the end of its log; with failOnDataLoss=false "
                        f"it goes on at offset {self.end.positions[tp]}, that end."
                    )
                yield offset_changed(tp, self.begin[tp], self.end.positions[tp], note)

    def losses_of_added(self, earliest: Positions) -> Iterator[KafkaConditionError]:
        """The losses in new partitions; ``earliest`` has their first offsets."""
        if missing := [tp for tp in self.added if tp not in earliest]:
            yield KafkaConditionError(
                "KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS",
                {"partitions": format_topic_partitions(missing)},
            )
        for tp in self.added:
            if earliest.get(tp, 0) > 0:
                yield KafkaConditionError(
                    "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
                    {"topicPartition": tp, "startOffset": earliest[tp]},
                )

    def ranges(self, earliest: Positions) -> list[PlannedRange]:
        """The ranges to read, partitions in order, empty ones left out."""
        starts: Mapping[TopicPartition, int] = {
            **self.begin,
            **{tp: earliest[tp] for tp in self.added if tp in earliest},
        }
        return [
            _plan(tp, starts[tp], until, self.end.topic_ids.get(tp.topic))
            for tp, until in sorted(self.end.positions.items())
            if tp in starts and starts[tp] < until
        ]


def partitions_deleted(partitions: Iterable[TopicPartition], *, has_group_id: bool) -> KafkaConditionError:
    """The loss of partitions that brokers do not name."""
    suffix = "_AND_GROUP_ID_CONFIG_PRESENT" if has_group_id else ""
    return KafkaConditionError(
        f"KAFKA_DATA_LOSS.PARTITIONS_DELETED{suffix}",
        {"partitions": format_topic_partitions(partitions)},
        "If a topic still has these partitions, an ACL is missing: with one for Describe the query goes on "
        "where it was.",
    )


def offset_changed(
    topic_partition: TopicPartition, before: int, now: int, note: str = ""
) -> KafkaConditionError:
    """The loss of a partition that was read up to ``before``, if its log ends at ``now``."""
    return KafkaConditionError(
        "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED",
        {"topicPartition": topic_partition, "prevOffset": before, "newOffset": now},
        note,
    )


def _plan(
    topic_partition: TopicPartition, from_offset: int, until_offset: int, topic_id: str | None
) -> PlannedRange:
    shipped = OffsetRange(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        start=At(from_offset),
        end=At(until_offset),
        topic_id=topic_id,
    )
    return PlannedRange(shipped=shipped, from_offset=from_offset, until_offset=until_offset)


def check_available_now(end: Positions, target: Positions, latest: Positions) -> None:
    """Check that a batch of Trigger.AvailableNow ends within the logs as they were at its start, and as they
    are now. Raises `KafkaConditionError`, also with failOnDataLoss=false, as Spark's connector does."""
    if end.keys() != target.keys():
        raise _mismatch(
            "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED", end, "tpsForPrefetched", target
        )
    if any(offset > target[tp] for tp, offset in end.items()):
        raise KafkaConditionError(
            "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED",
            {"prefetchedOffset": _show(target), "endOffset": _show(end)},
        )
    if not end.keys() <= latest.keys():
        raise _mismatch(
            "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW", end, "tpsForLatestOffset", latest
        )
    if any(offset > latest[tp] for tp, offset in end.items()):
        raise KafkaConditionError(
            "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW",
            {"latestOffset": _show(latest), "endOffset": _show(end)},
        )


def _mismatch(
    condition: str, end: Positions, name: str, other: Iterable[TopicPartition]
) -> KafkaConditionError:
    return KafkaConditionError(
        condition,
        {name: format_topic_partitions(other), "tpsForEndOffset": format_topic_partitions(end)},
    )


def _show(positions: Positions) -> str:
    shown = [f"{tp} -> {positions[tp]}" for tp in sorted(positions)]
    return ", ".join(shown[:50]) + (f", ... {len(shown) - 50} more" if len(shown) > 50 else "")
