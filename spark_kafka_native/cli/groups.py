"""``groups``: lists groups, their members and their lag; deletes groups."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..kafka.error_code import ErrorCode
from ..kafka.errors import AuthenticationError, BrokerError, KafkaError, SecurityError
from ..spark.write.commit_markers import is_marker
from .options import add_connection_options, add_json_option, connect, wrong_usage
from .output import act_on_each, note, print_rows

if TYPE_CHECKING:
    from ..kafka.admin.admin import Admin
    from ..kafka.admin.groups import PartitionLag
    from ..kafka.model import OffsetToCommit, TopicPartition

_STATES = (
    "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty",
    "Assigning", "Reconciling", "NotReady",
)  # fmt: skip
"""The states of groups of all protocols (KIP-518, KIP-848, KIP-1071): brokers ignore any other word."""
_LAG_COLUMNS = ("group", "topic", "partition", "committed", "end", "lag")
_MEMBER_COLUMNS = ("group", "member", "client", "host", "instance", "partitions", "assignment")


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "groups",
        help="list groups, their lag and members; delete them",
        description="Lists the groups of a cluster. With --lag: the offset that a group has committed for "
        "each partition, and its distance from the end.",
    )
    parser.add_argument("names", nargs="*", metavar="GROUP", help="names of groups (default: all)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--lag", action="store_true", help="committed offsets, ends and lag, by partition")
    what.add_argument("--members", action="store_true", help="members and their partitions")
    what.add_argument("--delete", action="store_true", help="delete the named groups and their offsets")
    parser.add_argument(
        "--markers",
        action="store_true",
        help="with --delete: also groups of exactly-once writes, which hold their markers",
    )
    parser.add_argument(
        "--state", action="append", type=_state, default=[], metavar="STATE",
        help=f"only those in this state; repeatable: {', '.join(_STATES)}",
    )  # fmt: skip
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the requested action."""
    if arguments.delete and not arguments.names:
        wrong_usage(arguments, "--delete: which groups?")
    if arguments.markers and not arguments.delete:
        wrong_usage(arguments, "--markers: only with --delete")
    if arguments.delete and arguments.state:
        wrong_usage(arguments, "--state chooses what is shown; --delete deletes the groups that it names")
    with connect(arguments) as admin:
        if arguments.delete:
            names = dict.fromkeys(arguments.names)
            return act_on_each(
                names, lambda name: _delete(admin, name, arguments), "deleted", as_json=arguments.json
            )
        if arguments.lag:
            return _lag(admin, arguments)
        if arguments.members:
            return _members(admin, arguments)
        _list(admin, arguments)
    return 0


def _delete(admin: Admin, name: str, arguments: argparse.Namespace) -> None:
    if not arguments.markers:
        from ..kafka.group.committed_offsets import all_committed_offsets

        offsets = all_committed_offsets(admin.router, name, stable=False)  # a transaction may hang
        check_no_markers(name, offsets, "if that is gone for good, add --markers")
        if not offsets:
            _check_known(admin, [name])
            raise KafkaError(
                f"group {name} shows no offsets. Unless those of an exactly-once write are in an open "
                "transaction, or of topics that may not be described, add --markers"
            )
    admin.delete_groups([name])


def check_no_markers(name: str, offsets: Mapping[TopicPartition, OffsetToCommit], advice: str) -> None:
    """Raise `KafkaError` if group ``name`` is that of an exactly-once write."""
    if any(is_marker(one) for one in offsets.values()):
        raise KafkaError(
            f"group {name} reads nothing: its offsets are markers of an exactly-once write, or of dead "
            f"letters. Without them records that are committed may be written again; {advice}"
        )


def _state(text: str) -> str:
    for state in _STATES:
        if state.lower() == text.lower():
            return state
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(_STATES)}")


def _names(admin: Admin, arguments: argparse.Namespace) -> list[str]:
    named = list(dict.fromkeys(arguments.names))
    if named:
        _check_known(admin, named)
        if not arguments.state:
            return named
    # Share groups commit no offsets, and are described by another request.
    return [
        group.group_id
        for group in admin.list_groups(states=arguments.state)
        if (group.group_id in named if named else group.type != "share")
    ]


def _list(admin: Admin, arguments: argparse.Namespace) -> None:
    wanted = set(arguments.names)
    found = [
        {"group": one.group_id, "state": one.state, "type": one.type, "protocol": one.protocol_type}
        for one in admin.list_groups(states=arguments.state)
        if not wanted or one.group_id in wanted
    ]
    if missing := sorted(wanted - {str(one["group"]) for one in found}):
        _check_known(admin, missing)  # groups that exist are in another state
    print_rows(("group", "state", "type", "protocol"), found, as_json=arguments.json)


def _check_known(admin: Admin, names: list[str]) -> None:
    """Raise `BrokerError` for the first of ``names`` that is no group: it would look like one without lag."""
    listed = {group.group_id for group in admin.list_groups()}
    for name in names:
        if name not in listed:
            try:
                admin.describe_groups([name])  # brokers list no group without the permission to describe it
            except KafkaError as error:
                if getattr(error, "error_code", None) is ErrorCode.GROUP_AUTHORIZATION_FAILED:
                    raise
            raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {name}")


def _lag(admin: Admin, arguments: argparse.Namespace) -> int:
    """Return a row for each partition for which one of these groups has committed an offset."""
    rows: list[dict[str, Any]] = []
    problems: list[KafkaError] = []
    for name in _names(admin, arguments):
        try:
            if not arguments.names and any(is_marker(one) for one in admin.group_offsets(name).values()):
                continue
            lag = admin.group_lag(name)
            problems += _failures(lag)
        except SecurityError:
            raise  # each further login with a wrong password may lock the account
        except KafkaError as error:
            problems.append(error)
            continue
        _warn_of_lost(name, lag)
        rows += [
            {
                "group": name,
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": at.committed_offset,
                "end": at.end_offset,
                "lag": at.lag,
            }
            for tp, at in lag.items()
        ]
    if problems and not rows:
        raise problems[0]
    for problem in problems:
        note(f"warning: {problem}")
    print_rows(_LAG_COLUMNS, rows, as_json=arguments.json)
    return 1 if problems else 0


def _failures(lag: Mapping[TopicPartition, PartitionLag]) -> list[KafkaError]:
    """Return why partitions did not answer. Raises the `AuthenticationError` of a leader."""
    errors = [at.error for at in lag.values() if at.error is not None]
    for error in errors:
        if isinstance(error, AuthenticationError):
            raise error
    return errors


def _warn_of_lost(name: str, lag: Mapping[TopicPartition, PartitionLag]) -> None:
    for tp, at in lag.items():
        if at.end_offset is not None and at.committed_offset > at.end_offset:
            note(
                f"warning: group {name} has committed {at.committed_offset} for {tp}, which ends at "
                f"{at.end_offset}: records were lost, or the topic was created again"
            )


def _members(admin: Admin, arguments: argparse.Namespace) -> int:
    """Print a row for each member of these groups."""
    rows: list[dict[str, Any]] = []
    failed = False
    for name in _names(admin, arguments):
        try:
            described = admin.describe_groups([name])[name]
        except SecurityError:
            raise
        except KafkaError as error:
            note(f"warning: {error}")
            # A streams group, or one that was just deleted, is only a failure where it was named.
            is_gone = isinstance(error, BrokerError) and error.error_code is ErrorCode.GROUP_ID_NOT_FOUND
            failed |= bool(arguments.names) or not is_gone
            continue
        rows += [
            {
                "group": name,
                "member": member.member_id,
                "client": member.client_id,
                "host": member.host,
                "instance": member.instance_id,
                "partitions": len(member.assignment),
                "assignment": [str(tp) for tp in member.assignment],
            }
            for member in described.members
        ]
    print_rows(_MEMBER_COLUMNS, rows, as_json=arguments.json)
    return 1 if failed else 0
