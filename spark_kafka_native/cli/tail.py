"""``tail``: records of topics, from anywhere, to the end or on and on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..kafka.errors import ConfigError
from ..kafka.model import HeaderKeys
from .command_parser import number, wrong_usage
from .connecting import add_connection_options, consumer_configs
from .output import on_terminal
from .places import PLACES, LogPlaces, Place, parse_place, partitions_of
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
    from ..kafka.config import ConsumerConfig
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
    parser.add_argument("names", nargs="+", metavar="TOPIC", help="names of topics")
    parser.add_argument("-p", "--partition", type=number(0), action="append", help="only these; repeatable")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--from", type=parse_place, metavar="PLACE", dest="start", help=PLACES)
    where.add_argument(
        "-n",
        "--lines",
        type=number(0),
        default=_LAST,
        help=f"this many from each partition's end (default {_LAST})",
    )
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
    render = _render(arguments)
    from ..kafka.cluster.router import Router

    client, consumer = consumer_configs(arguments)
    router = Router(client)
    try:
        _show(router, consumer, arguments, render)
    finally:
        router.close()
    return 0


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


def _show(router: Router, consumer: ConsumerConfig, arguments: argparse.Namespace, render: Render) -> None:
    from dataclasses import replace

    from ..kafka.consumer.fetch_run import FetchRun
    from .following import Following

    wanted = partitions_of(router, list(dict.fromkeys(arguments.names)), arguments.partition)
    level = consumer.isolation_level
    start = arguments.start if arguments.start is not None else _last(arguments.lines)
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
        for tp in wanted:
            if ends is None:
                run.add(tp, begins[tp])
            elif begins[tp] < ends[tp]:
                run.add(tp, begins[tp], ends[tp])
        found = iter(run.next, None)
        if arguments.follow and arguments.partition is None:
            found = Following(router, run, wanted, level).fetched()
        _print_all(found, render, arguments.count)
    finally:
        run.close()


def _last(lines: int) -> Place:
    return parse_place("latest" if lines == 0 else f"-{lines}")


def _print_all(found: Iterator[FetchedRecords], render: Render, count: int | None) -> None:
    left = count
    out = sys.stdout.buffer
    for fetched in found:
        lines = []
        for record in shown_records(fetched):
            lines.append(render(record))
            if left is not None and len(lines) >= left:
                break
        out.write(b"".join(lines))
        out.flush()
        if left is not None:
            left -= len(lines)
            if left <= 0:
                return


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
