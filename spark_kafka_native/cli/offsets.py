"""``offsets``: where partitions begin and end, and where a time is in them."""

from __future__ import annotations

import argparse
from typing import Any

from .command_parser import number
from .connecting import add_connection_options, add_json_option, consumer_configs
from .output import print_rows
from .places import PLACES, LogPlaces, add_topics, given_topics, parse_place, partitions_of


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
    parser.add_argument("--at", type=parse_place, metavar="PLACE", help=PLACES)
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Look them up and print them."""
    from ..kafka.cluster.router import Router

    names = given_topics(arguments)
    client, consumer = consumer_configs(arguments)
    router = Router(client)
    try:
        found = partitions_of(router, names, arguments.partition)
        level = consumer.isolation_level

        places = LogPlaces(router, found, isolation_level=level)
        if arguments.at is not None:
            offsets = places.resolve(arguments.at)
            rows = [{"topic": tp.topic, "partition": tp.partition, "offset": offsets[tp]} for tp in offsets]
            print_rows(("topic", "partition", "offset"), rows, as_json=arguments.json)
            return 1 if places.missing else 0
        first, end = places.resolve(parse_place("earliest")), places.resolve(parse_place("latest"))
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
    return 1 if places.missing else 0
