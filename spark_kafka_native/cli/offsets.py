"""``offsets``: prints the first and last offsets of partitions, or those of a time.

The offset specifications that commands share are here, too: ``earliest``, ``+10``, ``1h``, a date, and the
offsets that they stand for in each partition.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..kafka.config.timestamps import parse_timestamp_ms
from ..kafka.errors import ConfigError, KafkaError
from ..kafka.model import IsolationLevel, OffsetAt, TopicPartition
from .options import (
    add_connection_options,
    add_json_option,
    add_topics,
    consumer_configs,
    given_topics,
    number,
    partitions_of,
)
from .output import note, print_rows

if TYPE_CHECKING:
    from ..kafka.cluster.router import Router

OFFSET_SPECS = (
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
class OffsetSpec:
    """An offset in each partition: that of ``at`` plus ``shift``; or ``shift`` itself."""

    at: OffsetAt | None = None
    shift: int = 0


def parse_offset_spec(text: str) -> OffsetSpec:
    """Parse an offset specification; the type of an option."""
    word = text.strip()
    if word.lower() in _NAMED:
        return OffsetSpec(at=_NAMED[word.lower()])
    if re.fullmatch(r"[0-9]{1,19}", word):
        return OffsetSpec(shift=int(word))
    if re.fullmatch(r"[+-][0-9]{1,19}", word):
        start = OffsetAt.EARLIEST if word[0] == "+" else OffsetAt.LATEST
        return OffsetSpec(at=start, shift=int(word))
    return OffsetSpec(at=OffsetAt.timestamp(parse_time_ms(word)))


def parse_time_ms(text: str) -> int:
    """Return milliseconds since the epoch; the type of an option."""
    word = text.removeprefix("@")
    ago = re.fullmatch(r"-?\s*([0-9]+\s*[a-z]+)(\s+ago)?", word, re.IGNORECASE)
    try:
        return parse_timestamp_ms(f"-{ago[1]}" if ago else word, now_ms=int(time.time() * 1000))
    except ConfigError:
        raise argparse.ArgumentTypeError(f"{text!r} is none of: {OFFSET_SPECS}") from None


class OffsetResolver:
    """Resolves offset specifications in some partitions.

    Each leader is asked once about each `OffsetAt`, so that all results refer to the same moment. Each of
    these questions has its own limit: a leader that does not answer the first leaves the others all of the
    next one's.
    """

    def __init__(
        self,
        router: Router,
        topic_partitions: Collection[TopicPartition],
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        limit_ms: float | None = None,
    ) -> None:
        self._router = router
        self._limit_ms = limit_ms
        self._topic_partitions = topic_partitions
        self._isolation_level = isolation_level
        self._found: dict[OffsetAt, dict[TopicPartition, int | None]] = {}
        self.missing: dict[TopicPartition, KafkaError] = {}
        """The partitions that did not answer, with the reason."""

    def resolve(self, spec: OffsetSpec) -> dict[TopicPartition, int]:
        """Return the offset of ``spec`` in each partition, limited to the offsets that the partition has.

        A time after the last record gives the end. Partitions that do not answer are added to `missing`;
        raises if none answers.
        """
        outside = []
        first, end = self._find(OffsetAt.EARLIEST), self._find(OffsetAt.LATEST)
        start = dict.fromkeys(self._topic_partitions, 0) if spec.at is None else self._find(spec.at)
        offsets: dict[TopicPartition, int] = {}
        for tp in (tp for tp in self._topic_partitions if tp not in self.missing):
            low, high = first[tp] or 0, end[tp] or 0
            at = start[tp]
            offsets[tp] = high if at is None else max(low, min(high, at + spec.shift))
            if spec.at is None and spec.shift and offsets[tp] != spec.shift:
                outside.append(f"{tp} (it has {low} to {high})")
        if outside and len(outside) == len(self._topic_partitions):  # in some of many it is not unusual
            more = f" and {len(outside) - 1} more" if len(outside) > 1 else ""
            note(f"warning: there is no offset {spec.shift} in {outside[0]}{more}: the nearest is taken")
        return offsets

    def _find(self, at: OffsetAt) -> dict[TopicPartition, int | None]:
        from ..kafka.cluster.offsets import list_offsets_of_each

        if at not in self._found:
            asked = {tp: at for tp in self._topic_partitions if tp not in self.missing}
            level = self._isolation_level
            limit = self._router.deadline(self._limit_ms)
            found, failed = list_offsets_of_each(self._router, asked, isolation_level=level, deadline=limit)
            self._found[at] = {tp: one.offset for tp, one in found.items()}
            self.missing |= failed
            for error in failed.values():
                note(f"warning: {error}")
        return self._found[at]

    def resolve_all(self, spec: OffsetSpec) -> dict[TopicPartition, int]:
        """As `resolve`, but raises if any partition does not answer."""
        offsets = self.resolve(spec)
        for error in self.missing.values():
            raise error
        return offsets


def resolve_offset_spec(
    router: Router,
    topic_partitions: Collection[TopicPartition],
    spec: OffsetSpec,
    *,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """Resolve one offset specification. Raises if any partition does not answer."""
    return OffsetResolver(router, topic_partitions, isolation_level=isolation_level).resolve_all(spec)


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "offsets",
        help="first and end offsets of partitions, or those of a time",
        description="Prints the first and the end offset of each partition (the end is the offset of the "
        "next record to be written), or with --at another one.",
    )
    add_topics(parser)
    parser.add_argument(
        "-p",
        "--partition",
        type=number(0),
        action="append",
        metavar="N",
        help="only this partition; repeatable",
    )
    parser.add_argument("--at", type=parse_offset_spec, metavar="OFFSET", help=OFFSET_SPECS)
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Look up the offsets and print them."""
    from ..kafka.cluster.router import Router

    names = given_topics(arguments)
    client, consumer = consumer_configs(arguments)
    router = Router(client)
    try:
        found = partitions_of(router, names, arguments.partition)
        level = consumer.isolation_level

        resolver = OffsetResolver(router, found, isolation_level=level)
        if arguments.at is not None:
            offsets = resolver.resolve(arguments.at)
            rows = [{"topic": tp.topic, "partition": tp.partition, "offset": offsets[tp]} for tp in offsets]
            print_rows(("topic", "partition", "offset"), rows, as_json=arguments.json)
            return 1 if resolver.missing else 0
        first, end = (
            resolver.resolve(parse_offset_spec("earliest")),
            resolver.resolve(parse_offset_spec("latest")),
        )
        rows = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "first": first[tp],
                "end": end[tp],
                "offsets": end[tp] - first[tp],
            }
            for tp in end
        ]
        print_rows(("topic", "partition", "first", "end", "offsets"), rows, as_json=arguments.json)
    finally:
        router.close()
    return 1 if resolver.missing else 0
