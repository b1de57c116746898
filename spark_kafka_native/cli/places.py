"""Places in a topic as a person says them (``earliest``, ``+10``, ``1h``, a date), and their offsets."""

from __future__ import annotations

import argparse
import fnmatch
import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..kafka.error_code import ErrorCode
from ..kafka.errors import BrokerError, ConfigError, KafkaError
from ..kafka.model import IsolationLevel, OffsetAt, TopicPartition
from ..spark.options.timestamps import parse_timestamp_ms
from .command_parser import wrong_usage
from .output import note

if TYPE_CHECKING:
    from ..kafka.cluster.router import Router
    from ..kafka.runtime.deadline import Deadline

PLACES = (
    "earliest, latest, max-timestamp, an offset, +N from the beginning, -N from the end, a time as "
    "2026-05-01T12:00 (UTC) or @MILLISECONDS, or how long ago: 90s, 15m, 1h, 2d"
)
_NAMED = {
    "earliest": OffsetAt.EARLIEST,
    "beginning": OffsetAt.EARLIEST,
    "latest": OffsetAt.LATEST,
    "end": OffsetAt.LATEST,
    "now": OffsetAt.LATEST,
    "max-timestamp": OffsetAt.MAX_TIMESTAMP,
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Somewhere in each partition: where ``at`` is, and ``shift`` offsets on; or at the offset ``shift``."""

    at: OffsetAt | None = None
    shift: int = 0


def parse_place(text: str) -> Place:
    """The type of an option."""
    word = text.strip()
    if word.lower() in _NAMED:
        return Place(at=_NAMED[word.lower()])
    if re.fullmatch(r"[0-9]{1,19}", word):
        return Place(shift=int(word))
    if re.fullmatch(r"[+-][0-9]{1,19}", word):
        start = OffsetAt.EARLIEST if word[0] == "+" else OffsetAt.LATEST
        return Place(at=start, shift=int(word))
    return Place(at=OffsetAt.timestamp(parse_time_ms(word)))


def parse_time_ms(text: str) -> int:
    """Milliseconds since the epoch; the type of an option."""
    word = text.removeprefix("@")
    ago = re.fullmatch(r"-?\s*([0-9]+\s*[a-z]+)(\s+ago)?", word, re.IGNORECASE)
    try:
        return parse_timestamp_ms(f"-{ago[1]}" if ago else word, now_ms=int(time.time() * 1000))
    except ConfigError:
        raise argparse.ArgumentTypeError(f"{text!r} is none of: {PLACES}") from None


class LogPlaces:
    """Places in these partitions. Leaders are asked once about each, so that all are of one moment."""

    def __init__(
        self,
        router: Router,
        topic_partitions: Collection[TopicPartition],
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        deadline: Deadline | None = None,
    ) -> None:
        self._router = router
        self._deadline = deadline
        self._topic_partitions = topic_partitions
        self._isolation_level = isolation_level
        self._found: dict[OffsetAt, dict[TopicPartition, int | None]] = {}
        self.missing: dict[TopicPartition, KafkaError] = {}
        """Those that did not answer, and why."""

    def resolve(self, place: Place) -> dict[TopicPartition, int]:
        """The offset of ``place`` in each partition, within what that has; a time after all is the end. Those
        that do not answer are `missing`; raises where none does.
        """
        outside = []
        first, end = self._find(OffsetAt.EARLIEST), self._find(OffsetAt.LATEST)
        start = dict.fromkeys(self._topic_partitions, 0) if place.at is None else self._find(place.at)
        offsets: dict[TopicPartition, int] = {}
        for tp in (tp for tp in self._topic_partitions if tp not in self.missing):
            low, high = first[tp] or 0, end[tp] or 0
            at = start[tp]
            offsets[tp] = high if at is None else max(low, min(high, at + place.shift))
            if place.at is None and place.shift and offsets[tp] != place.shift:
                outside.append(f"{tp} (it has {low} to {high})")
        if outside and len(outside) == len(self._topic_partitions):  # in one of many it is nothing unusual
            more = f" and {len(outside) - 1} more" if len(outside) > 1 else ""
            note(f"warning: there is no offset {place.shift} in {outside[0]}{more}: the nearest is taken")
        return offsets

    def _find(self, at: OffsetAt) -> dict[TopicPartition, int | None]:
        from ..kafka.consumer.offsets import list_offsets_of_each

        if at not in self._found:
            asked = {tp: at for tp in self._topic_partitions if tp not in self.missing}
            level = self._isolation_level
            found, failed = list_offsets_of_each(
                self._router, asked, isolation_level=level, deadline=self._deadline
            )
            self._found[at] = {tp: one.offset for tp, one in found.items()}
            self.missing |= failed
            for error in failed.values():
                note(f"warning: {error}")
        return self._found[at]

    def resolve_all(self, place: Place) -> dict[TopicPartition, int]:
        """As `resolve`; raises where any partition does not answer."""
        offsets = self.resolve(place)
        for error in self.missing.values():
            raise error
        return offsets


def resolve_place(
    router: Router,
    topic_partitions: Collection[TopicPartition],
    place: Place,
    *,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """As `LogPlaces.resolve`, of one place. Raises where any partition does not answer."""
    return LogPlaces(router, topic_partitions, isolation_level=isolation_level).resolve_all(place)


TOPICS = "names of topics; also patterns: 'orders-*', or a regular expression after ^, as '^orders-[0-9]+$'"


def add_topics(parser: argparse.ArgumentParser, text: str = TOPICS) -> None:
    """Declare the topics of a command: in any place, or each after ``-t``."""
    parser.add_argument("names", nargs="*", metavar="TOPIC", help=text)
    parser.add_argument("-t", "--topic", action="append", default=[], help="the same as TOPIC; repeatable")


def given_topics(arguments: argparse.Namespace) -> list[str]:
    """The topics that were named. Wrong usage if there are none."""
    names = list(dict.fromkeys([*arguments.topic, *arguments.names]))
    if not names:
        wrong_usage(arguments, "which topics?")
    return names


def is_pattern(name: str) -> bool:
    """True for what can't be the name of a topic and stands for those that match it."""
    return name.startswith("^") or any(letter in name for letter in "*?[")


def topics_matching(router: Router, names: Collection[str]) -> list[str]:
    """``names``, with the topics that match in place of each pattern.

    Internal topics match only a pattern that begins with ``_``. Raises `BrokerError` if no topic matches a
    pattern, `ConfigError` for a bad regular expression.
    """
    if not any(map(is_pattern, names)):
        return list(dict.fromkeys(names))
    topics = router.metadata(None, refresh=True).topics
    found: dict[str, None] = {}
    for name in names:
        pattern = _compiled(name) if is_pattern(name) else None
        if pattern is None:
            found[name] = None
            continue
        internal = name.lstrip("^").startswith("_")
        matching = [one for one in sorted(topics) if internal or not topics[one].internal]
        matching = [one for one in matching if pattern.match(one)]
        if not matching:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic matches {name!r}")
        found.update(dict.fromkeys(matching))
    return list(found)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern if pattern.startswith("^") else fnmatch.translate(pattern))
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no regular expression: {error}") from None


def partitions_of(
    router: Router, names: Collection[str], partitions: Collection[int] | None = None
) -> list[TopicPartition]:
    """The partitions of topics (names and patterns), or those with these numbers.

    Raises `BrokerError` for what is unknown.
    """
    topics = topics_matching(router, names)
    metadata = router.metadata(topics)
    found = []
    for name in topics:
        there = sorted(metadata.topic(name).partitions)
        for index in there if partitions is None else sorted(set(partitions)):
            metadata.partition(TopicPartition(name, index))
            found.append(TopicPartition(name, index))
    return found
