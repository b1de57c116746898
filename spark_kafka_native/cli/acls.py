"""``acls``: lists, adds and removes ACLs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from .options import add_connection_options, add_json_option, checked_values, connect, wrong_usage
from .output import counted, note, output_of_change, print_rows

if TYPE_CHECKING:
    from ..kafka.admin.acls import Acl

_COLUMNS = ("permission", "principal", "host", "operation", "resource", "name", "pattern")


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "acls",
        help="list, add and remove ACLs",
        description="Lists the ACLs that match the options, adds one for each operation, or removes those "
        "that match. remove takes only ACLs that allow (with --deny: only those that deny) and, with a name, "
        "only those of exactly that name (with --prefix: only those of that prefix).",
    )
    parser.add_argument(
        "action", nargs="?", default="list", choices=("list", "add", "remove"), help="(default list)"
    )
    parser.add_argument(
        "--principal", metavar="User:NAME", help="the user to which they apply; User:* is every user"
    )
    parser.add_argument(
        "--operation", action="append", default=[], metavar="WORD",
        help="all, read, write, create, delete, alter, describe, describe_configs ...; repeatable",
    )  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--topic")
    what.add_argument("--group")
    what.add_argument("--transactional-id")
    what.add_argument("--cluster", action="store_true")
    parser.add_argument("--prefix", action="store_true", help="the name is a prefix of names")
    parser.add_argument(
        "--deny", action="store_true", help="deny instead of allow; a denial outweighs every permission"
    )
    parser.add_argument("--host", help="only from this address (default every one)")
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the requested action."""
    with checked_values(arguments):  # an unknown operation, type or permission
        if arguments.action == "add":
            return _add(arguments)
        return _list_or_remove(arguments)


def _resource(arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    for kind in ("topic", "group", "transactional_id"):
        if (name := getattr(arguments, kind)) is not None:
            return kind, name
    return ("cluster", "kafka-cluster") if arguments.cluster else (None, None)


def _add(arguments: argparse.Namespace) -> int:
    from ..kafka.admin.acls import Acl

    kind, name = _resource(arguments)
    if kind is None or name is None or not arguments.principal or not arguments.operation:
        wrong_usage(
            arguments,
            "add: give --principal, --operation, and one of --topic, --group, --transactional-id, --cluster",
        )
    rules = [
        Acl(
            resource=kind,
            name=name,
            principal=arguments.principal,
            operation=operation,
            permission="deny" if arguments.deny else "allow",
            pattern="prefixed" if arguments.prefix else "literal",
            host=arguments.host or "*",
        )
        for operation in arguments.operation
    ]
    with connect(arguments) as admin:
        admin.create_acls(rules)
    with output_of_change(f"{counted(len(rules), 'ACL')} added."):
        _show(rules, arguments)
    return 0


def _list_or_remove(arguments: argparse.Namespace) -> int:
    from ..kafka.admin.acls import AclFilter

    kind, name = _resource(arguments)
    if arguments.action == "remove" and kind is None and not arguments.principal:
        wrong_usage(arguments, "remove: whose, or of what? Give --principal, or a resource")
    removes = arguments.action == "remove"
    # `remove` removes the ACL that `add` creates from the same words: no denial and no other pattern.
    permission = "deny" if arguments.deny else "allow" if removes else "any"
    pattern = "prefixed" if arguments.prefix else "literal" if removes and name is not None else "any"
    filters = [
        AclFilter(
            resource=kind or "any",
            name=name,
            principal=arguments.principal,
            operation=operation,
            permission=permission,
            pattern=pattern,
            host=arguments.host,
        )
        for operation in arguments.operation or ["any"]
    ]
    found: dict[Acl, None] = {}
    try:
        with connect(arguments) as admin:
            for one in filters:
                found.update(dict.fromkeys(admin.delete_acls(one) if removes else admin.describe_acls(one)))
    finally:  # also after a failure: the ACLs removed before it are gone
        if removes and (found or sys.exception() is None):  # the error says what else was removed
            note(f"{len(found)} removed")
        if found or sys.exception() is None:
            _show(list(found), arguments)
    return 0


def _show(rules: list[Acl], arguments: argparse.Namespace) -> None:
    rows = [
        {
            column: getattr(value, "name", value).lower() if column in _WORDS else value
            for column in _COLUMNS
            if (value := getattr(rule, column)) is not None
        }
        for rule in rules
    ]
    print_rows(_COLUMNS, rows, as_json=arguments.json)


_WORDS = frozenset(("permission", "operation", "resource", "pattern"))
