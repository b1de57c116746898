"""``tail``: records of topics, from anywhere, to the end or on and on."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..kafka.errors import ConfigError
from ..kafka.model import HeaderKeys
from .command_parser import number, wrong_usage
from .connecting import add_connection_options, consumer_configs, group_configs
from .output import on_terminal
from .places import (
    PLACES,
    LogPlaces,
    Place,
    add_topics,
    given_topics,
    parse_place,
    partitions_of,
    topics_matching,
)
from .record_lines import (
    FORMAT_HELP,
    Render,
    ShownRecord,
    escaped,
    hex_line,
    json_line,
    parse_format,
    raw_line,
    text_line,
)

if TYPE_CHECKING:
    from ..kafka.cluster.router import Router
    from ..kafka.config.client_config import ConsumerConfig
    from ..kafka.consumer.fetched_records import FetchedRecords

_LAST = 10
_FIRST_FETCH_BYTES = 256 * 1024
_RENDERS: dict[str, Render] = {"text": text_line, "raw": raw_line, "hex": hex_line, "json": json_line}


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tail",
        help="show records of topics",
        description=f"Shows the last {_LAST} records of each partition, or those from a place on; with -f "
        "goes on with those that come, also of partitions that are added. Those of one partition are in "
        "order.",
    )
    add_topics(parser)
    parser.add_argument("-p", "--partition", type=number(0), action="append", help="only these; repeatable")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--from", type=parse_place, metavar="PLACE", dest="start", help=PLACES)
    where.add_argument(
        "-n",
        "--lines",
        type=number(0),
        help=f"this many from each partition's end (default {_LAST})",
    )
    where.add_argument(
        "-g", "--group", help="read as a member of this group from what it has committed, and commit what is "
        "printed; goes on until it is stopped, or -c",
    )  # fmt: skip
    parser.add_argument("--until", type=parse_place, metavar="PLACE", help="stop before it (default the end)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with the records that come")
    parser.add_argument("-c", "--count", type=number(1), help="stop after this many records in total")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "-o", "--output", choices=tuple(_RENDERS),
        help="text: where, when, key and value (default on a terminal); raw: values as they are, each with a "
        "newline (default in a pipe); hex; json: one object a line",
    )  # fmt: skip
    shown.add_argument("--json", action="store_const", const="json", dest="output", help="as -o json")
    shown.add_argument("--format", metavar="TEXT", help=FORMAT_HELP)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the records."""
    if arguments.follow and arguments.until is not None:
        wrong_usage(arguments, "--follow goes on and on: it has no --until")
    names, render = given_topics(arguments), _render(arguments)
    if arguments.group is not None:
        if arguments.until is not None or arguments.partition is not None:
            wrong_usage(arguments, "--group: the group says which partitions are read, and there is no end")
        _show_group(names, arguments, render)
        return 0
    from ..kafka.cluster.router import Router

    client, consumer = consumer_configs(arguments)
    router = Router(client)
    try:
        whole = _show(router, names, consumer, arguments, render)
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
    return escaped(raw_line) if output == "raw" and terminal else _RENDERS[output]


def _show_group(names: list[str], arguments: argparse.Namespace, render: Render) -> None:
    """Print as a member of a group. What was printed is committed, and a record of which that is not sure is
    read again.
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
    left = arguments.count
    with GroupConsumer(client, topics, config) as consumer:
        while left is None or left > 0:
            fetched = consumer.read()
            assert fetched is not None  # it waits for ever
            printed = _print(fetched, render, left)
            whole = printed == fetched.columns.length
            offsets = fetched.columns.offset
            assert offsets is not None  # every column is fetched
            done = fetched.next_offset if whole else int(offsets[printed])
            consumer.commit(offsets={fetched.topic_partition: done})
            if left is not None:
                left -= printed


def _show(
    router: Router,
    names: list[str],
    consumer: ConsumerConfig,
    arguments: argparse.Namespace,
    render: Render,
) -> bool:
    """Print the records; False if there are partitions that did not answer."""
    from dataclasses import replace

    from ..kafka.consumer.fetcher import FetchRun
    from .following import Following

    wanted = partitions_of(router, names, arguments.partition)
    level = consumer.isolation_level
    start = (
        arguments.start
        if arguments.start is not None
        else _last(_LAST if arguments.lines is None else arguments.lines)
    )
    places = LogPlaces(router, wanted, isolation_level=level)
    begins = places.resolve(start)
    ends = None
    if not arguments.follow:
        until = parse_place("latest") if arguments.until is None else arguments.until
        ends = places.resolve(until)
    # What is shown to a person comes at once, and not behind megabytes that nobody has asked to see.
    few = arguments.count is not None or arguments.start is None
    if few:
        consumer = replace(consumer, max_partition_fetch_bytes=_FIRST_FETCH_BYTES)
    if arguments.output == "json":  # which can be produced again: a header's name must not become another
        consumer = replace(consumer, header_keys=HeaderKeys.STRICT)
    run = FetchRun(router, consumer)
    try:
        for tp in begins:
            if ends is None:
                run.add(tp, begins[tp])
            elif begins[tp] < ends.get(tp, begins[tp]):
                run.add(tp, begins[tp], ends[tp])
        found = iter(run.next, None)
        if arguments.follow:
            late = dict.fromkeys(places.missing, start)
            growing = arguments.partition is None
            found = Following(router, run, wanted, level, late=late, growing=growing).fetched()
        _print_all(found, render, arguments.count)
    finally:
        run.close()
    return not places.missing


def _last(lines: int) -> Place:
    return parse_place("latest" if lines == 0 else f"-{lines}")


def _print_all(found: Iterator[FetchedRecords], render: Render, count: int | None) -> None:
    left = count
    for fetched in found:
        printed = _print(fetched, render, left)
        if left is not None:
            left -= printed
            if left <= 0:
                return


def _print(fetched: FetchedRecords, render: Render, max_records: int | None) -> int:
    """Print the first records of ``fetched``, and return how many they were."""
    lines = [render(record) for record in itertools.islice(shown_records(fetched), max_records)]
    sys.stdout.buffer.write(b"".join(lines))
    sys.stdout.buffer.flush()
    return len(lines)


def shown_records(fetched: FetchedRecords) -> Iterator[ShownRecord]:
    """The records of ``fetched``, one by one."""
    columns, (topic, partition) = fetched.columns, fetched.topic_partition
    if not columns.length:
        return
    given = (columns.offset, columns.timestamp_ms, columns.key, columns.value, columns.headers)
    if any(column is None for column in given):
        raise ConfigError("all columns have to be fetched to show records")
    offset, timestamp_ms, key, value, headers = (
        column.to_pylist() if hasattr(column, "to_pylist") else column.tolist()  # type: ignore[union-attr]
        for column in given
    )
    for row in range(columns.length):
        pairs = [(one["key"], one["value"]) for one in headers[row] or ()]
        yield ShownRecord(topic, partition, offset[row], timestamp_ms[row], key[row], value[row], pairs)
