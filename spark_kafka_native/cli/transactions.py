"""``transactions``: lists and describes transactions; finds and aborts hanging ones (KIP-664)."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..kafka.errors import KafkaError, PartialAnswerError, reasons_of
from ..kafka.model import TopicPartition
from .options import (
    add_connection_options,
    add_json_option,
    check_options,
    checked_values,
    connect,
    number,
    topics_matching,
    wrong_usage,
)
from .output import note, print_rows

if TYPE_CHECKING:
    from ..kafka.admin.admin import Admin

_ACTIONS = {"state": ("list",), "partition": ("abort",), "start_offset": ("abort",)}
"""The actions of each option."""
_LISTED = ("transactional_id", "state", "producer_id")
_DESCRIBED = (*_LISTED, "producer_epoch", "timeout_ms", "started_ms", "partitions")
_HANGING = ("topic", "partition", "start_offset", "producer_id", "producer_epoch", "last_timestamp_ms")
_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "transactions",
        help="list transactions; find and abort those that hang",
        description="Lists the transactional ids of a cluster, describes the named ones, finds the hanging "
        "transactions of topics, or aborts one of these. No coordinator ends a hanging transaction, and "
        "readers of committed records wait for it.",
    )
    parser.add_argument(
        "action", nargs="?", default="list", choices=("list", "describe", "hanging", "abort"),
        help="(default list)",
    )  # fmt: skip
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="describe: transactional ids; hanging, abort: topics"
    )
    parser.add_argument(
        "--state",
        action="append",
        choices=_STATES,
        default=[],
        help="list: only those in this state; repeatable",
    )
    parser.add_argument("-p", "--partition", type=number(0), help="abort: the partition of the topic")
    parser.add_argument(
        "--start-offset",
        type=number(0),
        metavar="OFFSET",
        help="abort: where the transaction begins (hanging shows it)",
    )
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the requested action."""
    check_options(arguments, _ACTIONS)
    if arguments.action != "list" and not arguments.names:
        what = "transactional ids" if arguments.action == "describe" else "topics"
        wrong_usage(arguments, f"{arguments.action}: which {what}?")
    if arguments.action == "abort" and (
        len(arguments.names) != 1 or arguments.partition is None or arguments.start_offset is None
    ):
        wrong_usage(arguments, "abort: give one topic, --partition and --start-offset, as hanging shows them")
    actions: dict[str, Callable[[Admin, argparse.Namespace], int | None]] = {
        "list": _list,
        "describe": _describe,
        "hanging": _hanging,
        "abort": _abort,
    }
    with connect(arguments) as admin:
        return actions[arguments.action](admin, arguments) or 0


def _list(admin: Admin, arguments: argparse.Namespace) -> int:
    with checked_values(arguments):  # a state that the brokers do not know
        found = admin.list_transactions(states=arguments.state)
    rows = [
        {"transactional_id": one.transactional_id, "state": one.state, "producer_id": one.producer_id}
        for one in found
        if not arguments.names or one.transactional_id in arguments.names
    ]
    print_rows(_LISTED, rows, as_json=arguments.json)
    missing = set(arguments.names) - {one.transactional_id for one in found}
    where = " in this state" if arguments.state else ""
    for name in sorted(missing):
        note(f"warning: there is no transactional id {name}{where}")
    return 1 if missing else 0


def _describe(admin: Admin, arguments: argparse.Namespace) -> None:
    rows = [
        {
            "transactional_id": name,
            "state": one.state,
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "timeout_ms": one.timeout_ms,
            "started_ms": one.started_ms,
            "partitions": [str(tp) for tp in one.topic_partitions],
        }
        for name, one in admin.describe_transactions(arguments.names).items()
    ]
    print_rows(_DESCRIBED, rows, as_json=arguments.json)


def _hanging(admin: Admin, arguments: argparse.Namespace) -> int:
    failed: dict[TopicPartition, KafkaError] = {}
    try:
        found = admin.hanging_transactions(topics_matching(admin.router, arguments.names))
    except PartialAnswerError as error:
        found, failed = error.found, error.failed
    for problem in reasons_of(failed):
        note(f"warning: {problem}")
    rows = [
        {
            "topic": one.topic_partition.topic,
            "partition": one.topic_partition.partition,
            "start_offset": one.producer.transaction_start_offset,
            "producer_id": one.producer.producer_id,
            "producer_epoch": one.producer.producer_epoch,
            "last_timestamp_ms": one.producer.last_timestamp_ms,
        }
        for one in found
    ]
    print_rows(_HANGING, rows, as_json=arguments.json)
    return 1 if failed else 0


def _abort(admin: Admin, arguments: argparse.Namespace) -> int:
    tp = TopicPartition(arguments.names[0], arguments.partition)
    try:
        is_aborted = admin.abort_hanging(tp, arguments.start_offset)
    except KafkaError:
        raise
    except ValueError as error:  # the transaction is not open
        note(f"error: {error}")
        return 1
    done = "aborted" if is_aborted else "no longer open: aborted, or ended by its producer"
    note(f"{tp}: the transaction from offset {arguments.start_offset} is {done}")
    return 0
