"""``topics``: lists, creates and deletes topics, and adds partitions."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .options import (
    add_connection_options,
    add_json_option,
    check_named_once,
    check_options,
    connect,
    is_pattern,
    number,
    pair,
    topics_matching,
    wrong_usage,
)
from .output import act_on_each, note, print_rows

_COLUMNS = ("topic", "partitions", "replicas", "under_replicated", "leaderless")
_ACTIONS = {
    "internal": ("list",),
    "partitions": ("create", "grow"),
    "replication_factor": ("create",),
    "replicas": ("create",),
    "settings": ("create",),
    "if_not_exists": ("create",),
    "if_exists": ("delete",),
    "dry_run": ("create", "grow"),
}
"""The actions of each option."""


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "topics",
        help="list, create, delete and grow topics",
        description="Lists the topics of a cluster, or creates, deletes or grows the named ones.",
    )
    parser.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=("list", "create", "delete", "grow"),
        help="(default list)",
    )
    parser.add_argument("names", nargs="*", metavar="TOPIC", help="names of topics; list takes patterns, too")
    parser.add_argument("--internal", action="store_true", help="list Kafka's own topics, too")
    parser.add_argument(
        "--partitions", type=number(1, 2**31 - 1), metavar="N", help="how many (create: default the broker's)"
    )
    parser.add_argument(
        "--replication-factor", type=number(1, 32_767), metavar="N", help="default: the broker's"
    )
    parser.add_argument(
        "--replicas",
        metavar="1:2,2:3",
        help="instead of both: the brokers of each partition, the leader first",
    )
    parser.add_argument(
        "--set", action="append", type=pair, default=[], metavar="NAME=VALUE", dest="settings",
        help="a setting of a new topic, such as retention.ms=86400000; repeatable",
    )  # fmt: skip
    parser.add_argument("--if-not-exists", action="store_true", help="leave a topic that exists as it is")
    parser.add_argument("--if-exists", action="store_true", help="ignore topics that do not exist")
    parser.add_argument(
        "--dry-run", action="store_true", help="let the cluster check the change without making it"
    )
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the requested action."""
    check_options(arguments, _ACTIONS)
    if arguments.action != "list" and not arguments.names:
        wrong_usage(arguments, f"{arguments.action}: which topics?")
    if "" in arguments.names:
        wrong_usage(arguments, "a topic has a name that is not empty")
    if arguments.action != "list" and (patterns := [name for name in arguments.names if is_pattern(name)]):
        wrong_usage(
            arguments, f"{patterns[0]!r} is a pattern: name each topic; topics list shows those that match"
        )
    actions = {"list": _list, "create": _create, "delete": _delete, "grow": _grow}
    return actions[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    with connect(arguments) as admin:
        topics = admin.describe_topics(topics_matching(admin.router, arguments.names) or None)
    rows = []
    failed = [topic for topic in topics.values() if topic.error_code]
    for topic in failed:
        note(f"warning: topic {topic.name}: {topic.error_code.name} ({topic.error_code.description})")
    for name, topic in topics.items():
        if topic.error_code:
            continue
        if topic.internal and not (arguments.internal or arguments.names):
            continue
        partitions = topic.partitions.values()
        rows.append(
            {
                "topic": name,
                "partitions": len(partitions),
                "replicas": max((len(one.replica_nodes) for one in partitions), default=0),
                "under_replicated": sum(len(one.isr_nodes) < len(one.replica_nodes) for one in partitions),
                "leaderless": sum(one.leader is None for one in partitions),
                "topic_id": None if topic.topic_id is None else str(topic.topic_id),
                "internal": topic.internal,
            }
        )
    print_rows(_COLUMNS, rows, as_json=arguments.json)
    return 1 if failed else 0


def _create(arguments: argparse.Namespace) -> int:
    from ..kafka.admin.topics import NewTopic

    if arguments.replicas and (arguments.partitions or arguments.replication_factor):
        wrong_usage(arguments, "--replicas says how many partitions and replicas there are")
    check_named_once(arguments, [name for name, _ in arguments.settings])
    replicas = _replicas(arguments)

    def create(name: str) -> None:
        new = NewTopic(
            name=name,
            partitions=arguments.partitions,
            replication_factor=arguments.replication_factor,
            configs=dict(arguments.settings),
            replicas=replicas,
        )
        admin.create_topics(new, exist_ok=arguments.if_not_exists, validate_only=arguments.dry_run)

    if arguments.dry_run:
        done = "would be there" if arguments.if_not_exists else "would be created"
    else:
        done = "is there" if arguments.if_not_exists else "created"
    with connect(arguments) as admin:
        return _each(arguments, create, done)


def _delete(arguments: argparse.Namespace) -> int:
    done = "is not there" if arguments.if_exists else "deleted"
    with connect(arguments) as admin:
        return _each(
            arguments, lambda name: admin.delete_topics([name], missing_ok=arguments.if_exists), done
        )


def _grow(arguments: argparse.Namespace) -> int:
    if arguments.partitions is None:
        wrong_usage(arguments, "grow: to how many partitions in all? Give --partitions N")
    done = "would grow" if arguments.dry_run else f"has {arguments.partitions} partitions now"

    def grow(name: str) -> None:
        admin.create_partitions({name: arguments.partitions}, validate_only=arguments.dry_run)

    with connect(arguments) as admin:
        return _each(arguments, grow, done)


def _replicas(arguments: argparse.Namespace) -> list[list[int]] | None:
    if arguments.replicas is None:
        return None
    try:
        node_id = number(0, 2**31 - 1)
        return [[node_id(node) for node in one.split(":")] for one in arguments.replicas.split(",")]
    except argparse.ArgumentTypeError:
        wrong_usage(arguments, f"--replicas: {arguments.replicas!r} is not of the form 1:2,2:3")


def _each(arguments: argparse.Namespace, act: Callable[[str], None], done: str) -> int:
    return act_on_each(dict.fromkeys(arguments.names), act, done, as_json=arguments.json)
