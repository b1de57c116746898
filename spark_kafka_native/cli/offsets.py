"""``offsets``: prints the first and last offsets of partitions, or those of a time."""

from __future__ import annotations

import argparse
from typing import Any

from .offset_specs import OFFSET_SPECS, OffsetResolver, parse_offset_spec
from .options import (
    add_connection_options,
    add_json_option,
    add_topics,
    consumer_configs,
    given_topics,
    number,
    partitions_of,
)
from .output import print_rows


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "offsets",
        help="first and last offsets of partitions, or those of a time",
        description="The offsets between which each partition has records (the last is that of the next one "
        "to be written), or the one at a place.",
    )
    add_topics(parser)
    parser.add_argument("-p", "--partition", type=number(0), action="append", help="only these; repeatable")
    parser.add_argument("--at", type=parse_offset_spec, metavar="PLACE", help=OFFSET_SPECS)
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
