"""``tail``: shows records of topics, from any offset, up to the end or continuously."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ..kafka.errors import DeadlineExceededError, KafkaError
from ..kafka.model import CLIENT_MODES, BadRecordMode, HeaderKeys, OffsetAt
from .offsets import OFFSET_SPECS, OffsetResolver, OffsetSpec, parse_offset_spec
from .options import (
    add_connection_options,
    add_topics,
    consumer_configs,
    given_topics,
    group_configs,
    number,
    partitions_of,
    topics_matching,
    wrong_usage,
)
from .output import check_reader, counted, note, on_terminal, write_bytes
from .record_lines import (
    FORMAT_HELP,
    RENDERS,
    Render,
    ShownRecord,
    escaped,
    parse_format,
    raw_line,
    shown_records,
)
from .typed_records import TypedLines, add_format_options, given_formats

if TYPE_CHECKING:
    from ..kafka.cluster.metadata import Topic
    from ..kafka.cluster.router import Router
    from ..kafka.config.client_config import ConsumerConfig
    from ..kafka.consumer.fetched_records import FetchedRecords
    from ..kafka.consumer.fetcher import FetchRun
    from ..kafka.group.group_consumer import GroupConsumer
    from ..kafka.model import IsolationLevel, TopicPartition

C = TypeVar("C", bound="ConsumerConfig")
_LAST = 10
_FIRST_FETCH_BYTES = 256 * 1024
_REFRESH_MS = 10_000
"""The interval between looks for new partitions and late ones: a person waits for a record that was just
written, and one request in this time is little to a broker."""
_LOOK_MS = 1_000
"""How often a wait for records checks if the output still has a reader, as in ``tail -f | grep -m1``."""
_LATE_MS = 5_000
"""The limit for a question to partitions that may not answer: others of them wait for it."""


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tail",
        help="show records of topics",
        description=f"Shows the last {_LAST} records of each partition, or those from an offset on. With -f "
        "it goes on with new records, also of partitions that are added. The records of one partition are in "
        "order.",
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
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--from", type=parse_offset_spec, metavar="OFFSET", dest="start", help=OFFSET_SPECS)
    where.add_argument(
        "-n",
        "--lines",
        type=number(0),
        metavar="N",
        help=f"the last N offsets of each partition (default {_LAST}); those of transaction markers, and of "
        "records that were compacted away, count too",
    )
    where.add_argument(
        "-g", "--group", help="read as a member of this group from its committed offsets, and commit those "
        "of printed records; goes on until it is stopped, or -c",
    )  # fmt: skip
    parser.add_argument(
        "--until", type=parse_offset_spec, metavar="OFFSET", help="stop before this offset (default the end)"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on with new records")
    parser.add_argument("-c", "--count", type=number(1), metavar="N", help="stop after N records in total")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "-o", "--output", choices=tuple(RENDERS),
        help="text: where, when, key and value (default on a terminal); raw: values as they are, each with a "
        "newline (default in a pipe); hex; json: one object a line",
    )  # fmt: skip
    shown.add_argument("--json", action="store_const", const="json", dest="output", help="as -o json")
    shown.add_argument("--format", metavar="TEXT", help=FORMAT_HELP)
    group = add_format_options(parser)
    group.add_argument(
        "--mode", choices=CLIENT_MODES,
        help="a record that can't be decoded: failfast (the default) ends with an error before it; "
        "permissive shows as much of it as can be read, and why not all; dropmalformed leaves it out",
    )  # fmt: skip
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the records."""
    if arguments.follow and arguments.until is not None:
        wrong_usage(arguments, "--follow goes on and on: it has no --until")
    names, render, typed = given_topics(arguments), _render(arguments), _typed(arguments)
    if arguments.group is not None:
        if arguments.until is not None or arguments.partition is not None:
            wrong_usage(arguments, "--group: the group says which partitions are read, and there is no end")
        with _Printer(render, arguments.count, typed) as printer:
            _show_group(names, arguments, printer)
        return 0
    from ..kafka.cluster.router import Router

    client, consumer = consumer_configs(arguments)
    router = Router(client)
    try:
        with _Printer(render, arguments.count, typed) as printer:
            whole = _show(router, names, consumer, arguments, printer)
    finally:
        router.close()
    return 0 if whole else 1


def _render(arguments: argparse.Namespace) -> Render:
    terminal = on_terminal()
    if arguments.format is not None:
        try:
            render = parse_format(arguments.format)
        except ValueError as error:
            wrong_usage(arguments, f"--format: {error}")
        return escaped(render) if terminal else render
    output = arguments.output or ("text" if terminal else "raw")
    return escaped(raw_line) if output == "raw" and terminal else RENDERS[output]


def _typed(arguments: argparse.Namespace) -> TypedLines | None:
    formats = given_formats(arguments)
    if not formats:
        if arguments.mode is not None:
            wrong_usage(arguments, "--mode is for records with --value-format or --key-format")
        return None
    if arguments.output == "hex":
        wrong_usage(arguments, "-o hex shows bytes: leave out the formats")
    return TypedLines(formats, arguments.mode or BadRecordMode.FAILFAST, warns=arguments.output != "json")


def _show_group(names: list[str], arguments: argparse.Namespace, printer: _Printer) -> None:
    """Print as a member of a group. The offsets of printed records are committed; a record that may not have
    been printed is read again.
    """
    from ..kafka.cluster.router import Router
    from ..kafka.group.group_consumer import GroupConsumer

    client, config = group_configs(arguments, arguments.group)
    router = Router(client)
    try:
        topics = topics_matching(router, names)
        metadata = router.metadata(topics)
        for name in topics:
            metadata.topic(name)
    finally:
        router.close()
    with GroupConsumer(client, topics, _strict_headers(config, arguments)) as consumer:
        while not printer.done:
            printer.print_next(consumer)


def _show(
    router: Router,
    names: list[str],
    consumer: ConsumerConfig,
    arguments: argparse.Namespace,
    printer: _Printer,
) -> bool:
    """Print the records; False if there are partitions that did not answer."""
    from ..kafka.consumer.fetcher import FetchRun

    wanted = partitions_of(router, names, arguments.partition)
    level = consumer.isolation_level
    start = (
        arguments.start
        if arguments.start is not None
        else _last(_LAST if arguments.lines is None else arguments.lines)
    )
    resolver = OffsetResolver(router, wanted, isolation_level=level)
    begins = resolver.resolve(start)
    ends = None
    if not arguments.follow:
        until = parse_offset_spec("latest") if arguments.until is None else arguments.until
        ends = resolver.resolve(until)
    run = FetchRun(router, _adjusted(consumer, arguments))
    try:
        for tp in begins:
            if ends is None:
                run.add(tp, begins[tp])
            elif begins[tp] < ends.get(tp, begins[tp]):
                run.add(tp, begins[tp], ends[tp])
        found = iter(run.next, None)
        if arguments.follow:
            late = dict.fromkeys(resolver.missing, start)
            growing = arguments.partition is None
            found = Following(router, run, wanted, level, late=late, growing=growing).fetched()
        with contextlib.suppress(BrokenPipeError):  # partitions that did not answer count nevertheless
            printer.print_all(found)
    finally:
        run.close()
    return not resolver.missing


def _adjusted(consumer: ConsumerConfig, arguments: argparse.Namespace) -> ConsumerConfig:
    """Return ``consumer`` with the settings that the options imply."""
    from dataclasses import replace

    if arguments.count is not None or arguments.start is None:
        # A person sees the few requested records at once, without waiting for megabytes of others.
        consumer = replace(consumer, max_partition_fetch_bytes=_FIRST_FETCH_BYTES)
    return _strict_headers(consumer, arguments)


def _strict_headers(config: C, arguments: argparse.Namespace) -> C:
    """Return ``config`` so that names of headers do not change in JSON: `produce` reads it back."""
    from dataclasses import replace

    return replace(config, header_keys=HeaderKeys.STRICT) if arguments.output == "json" else config


def _last(lines: int) -> OffsetSpec:
    return OffsetSpec(at=OffsetAt.LATEST, shift=-lines)


class _Printer:
    """Prints records, up to a number of them, and counts those that could not be decoded."""

    def __init__(self, render: Render, count: int | None, typed: TypedLines | None) -> None:
        self._render = render
        self._left = count
        self.typed = typed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.typed is not None and self.typed.left_out:
            note(f"{counted(self.typed.left_out, 'record')} could not be decoded: left out.")

    @property
    def done(self) -> bool:
        """True once as many records are printed as were asked for."""
        return self._left is not None and self._left <= 0

    def print_all(self, found: Iterator[FetchedRecords]) -> None:
        """Print the records as they come."""
        for fetched in found:
            for records, next_offset in self._parts(fetched):
                self.print(records, next_offset)
                if self.done:
                    return

    def print_next(self, consumer: GroupConsumer) -> None:
        """Print the next records of a group's member, and commit those; none if they are late."""
        fetched = consumer.read(_LOOK_MS / 1000)
        if fetched is None:
            check_reader()
            return
        for records, next_offset in self._parts(fetched):
            next_offset = self.print(records, next_offset)
            consumer.commit(offsets={fetched.topic_partition: next_offset})
            if self.done:
                return

    def _parts(self, fetched: FetchedRecords) -> Iterator[tuple[Iterator[ShownRecord], int]]:
        if self.typed is None:
            return iter([(shown_records(fetched), fetched.next_offset)])
        return self.typed.parts(fetched)

    def print(self, records: Iterator[ShownRecord], next_offset: int) -> int:
        """Print ``records``, which end before ``next_offset``, and return the offset before which all of them
        were printed."""
        lines: list[bytes] = []
        for record in records:
            if self.done:
                next_offset = record.offset
                break
            if self._left is not None:
                self._left -= 1
            if record.error is not None and self.typed is not None and self.typed.warns:
                note(f"{record.topic}-{record.partition}@{record.offset}: {record.error}")
            lines.append(self._render(record))
        if not lines:  # all were left out, and a write of nothing would not notice
            check_reader()
        write_bytes(b"".join(lines))
        return next_offset


@contextlib.contextmanager
def _passing_over() -> Iterator[None]:
    """Pass over an error if another attempt may succeed."""
    from ..kafka.runtime.retry import is_retriable

    try:
        yield
    except KafkaError as error:
        if not is_retriable(error) and not isinstance(error, DeadlineExceededError):
            raise


class Following:
    """Fetches the records of ``known`` without an end through ``run``.

    Partitions that are ``late`` are read from their offset once they answer. If ``growing``, partitions that
    are added to the topics are read from their beginning.
    """

    def __init__(
        self,
        router: Router,
        run: FetchRun,
        known: Collection[TopicPartition],
        level: IsolationLevel,
        *,
        late: Mapping[TopicPartition, OffsetSpec],
        growing: bool,
    ) -> None:
        from ..kafka.runtime.background import Background

        self._background = Background("pykafka-tail")
        self._router = router
        self._run = run
        self._known = set(known)
        self._topics = {tp.topic for tp in known}
        self._level = level
        self._late = dict(late)
        self._growing = growing

    def fetched(self) -> Iterator[FetchedRecords]:
        """Yield records as they arrive, without an end."""
        from ..kafka.runtime.deadline import Deadline

        every_ms = min(_REFRESH_MS, max(_LOOK_MS, self._router.config.metadata_max_age_ms))
        due = Deadline.after_ms(every_ms)
        try:
            while True:
                found = self._run.next(due.within_ms(_LOOK_MS))
                if found is not None:
                    yield found
                else:
                    check_reader()
                self._background.settle()
                if due.expired:
                    self._look()
                    due = Deadline.after_ms(every_ms)
        finally:
            self._background.close()

    def _look(self) -> None:
        """Begin to look for partitions that are new, or were late, and answer now. In the background: those
        that are read don't wait for the others.
        """
        if self._growing or self._late:
            self._background.start("look", self._find, self._add)

    def _find(self) -> list[tuple[TopicPartition, int]]:
        """The offsets of these partitions. One attempt: the fetches report an error that persists, and
        another attempt follows. Until `_add` has the result, no other thread uses `_late` and `_known`.
        """
        topics = self._router.refresh(self._topics, self._router.deadline(_LATE_MS)).topics
        if self._growing:
            self._expect_new(topics)
        found: list[tuple[TopicPartition, int]] = []
        for spec in set(self._late.values()):
            late = [tp for tp in self._late if self._late[tp] == spec]
            resolver = OffsetResolver(self._router, late, isolation_level=self._level, limit_ms=_LATE_MS)
            with _passing_over():
                found += resolver.resolve(spec).items()
        return found

    def _add(self, found: list[tuple[TopicPartition, int]] | KafkaError) -> None:
        with _passing_over():
            if isinstance(found, KafkaError):
                raise found
            for topic_partition, offset in found:
                self._run.add(topic_partition, offset)
                del self._late[topic_partition]

    def _expect_new(self, topics: Mapping[str, Topic]) -> None:
        """New partitions are late until their leaders answer: one that does not must not keep the others from
        being read.
        """
        from ..kafka.model import TopicPartition

        for name in sorted(self._topics & topics.keys()):
            partitions = () if topics[name].error_code else topics[name].partitions
            for topic_partition in (TopicPartition(name, one) for one in partitions):
                if topic_partition not in self._known:
                    self._known.add(topic_partition)
                    self._late[topic_partition] = OffsetSpec(at=OffsetAt.EARLIEST)
