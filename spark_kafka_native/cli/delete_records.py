"""``delete-records``: deletes the records at the beginning of partitions (KIP-107)."""

from __future__ import annotations

import argparse
from typing import Any

from ..kafka.errors import KafkaError, PartialAnswerError, reasons_of
from ..kafka.model import OffsetAt, TopicPartition
from .offsets import OFFSET_SPECS, OffsetResolver, OffsetSpec, parse_offset_spec
from .options import (
    add_connection_options,
    add_json_option,
    add_topics,
    connect,
    given_topics,
    is_pattern,
    number,
    partitions_of,
    wrong_usage,
)
from .output import note, print_rows

_COLUMNS = ("topic", "partition", "first", "before", "records")


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "delete-records",
        help="delete the records before an offset",
        description="Shows how many records of each partition are before an offset, and with --execute "
        "deletes them for good.",
    )
    add_topics(parser, "names of topics")
    parser.add_argument(
        "-p",
        "--partition",
        type=number(0),
        action="append",
        metavar="N",
        help="only this partition; repeatable",
    )
    parser.add_argument(
        "--before", type=parse_offset_spec, required=True, metavar="OFFSET", help=OFFSET_SPECS
    )
    parser.add_argument("--execute", action="store_true", help="delete the records")
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Delete the records before the offset with ``--execute``, and print how many there were; if a part of
    the partitions refuses, those of the others.
    """
    names = given_topics(arguments)
    if patterns := [name for name in names if is_pattern(name)]:
        wrong_usage(
            arguments, f"{patterns[0]!r} is a pattern: name each topic whose records are to be deleted"
        )
    failed: dict[TopicPartition, KafkaError] = {}
    may_be: list[str] = []
    with connect(arguments) as admin:
        wanted = partitions_of(admin.router, names, arguments.partition)
        resolver = OffsetResolver(admin.router, wanted)
        first = resolver.resolve_all(OffsetSpec(at=OffsetAt.EARLIEST))
        before = resolver.resolve_all(arguments.before)
        if arguments.execute:  # first: the reader of the output may have hung up
            try:
                admin.delete_records({tp: offset for tp, offset in before.items() if offset > first[tp]})
            except PartialAnswerError as error:
                failed, may_be = error.failed, getattr(error, "__notes__", [])
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "first": first[tp],
            "before": before[tp],
            "records": before[tp] - first[tp],
        }
        for tp in wanted
        if tp not in failed
    ]
    for problem in reasons_of(failed):
        note(f"error: {problem}")
    for text in may_be:
        note(text)
    done = "deleted in the other partitions" if failed else "deleted"
    note(done if arguments.execute else "Nothing was deleted: --execute does it.")
    print_rows(_COLUMNS, rows, as_json=arguments.json)
    return 1 if failed else 0
