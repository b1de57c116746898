"""``users``: manages the SASL/SCRAM users that a cluster stores (KIP-554)."""

from __future__ import annotations

import argparse
import getpass
import sys
from typing import TYPE_CHECKING, Any

from .options import (
    add_connection_options,
    add_json_option,
    check_options,
    checked_values,
    connect,
    number,
    wrong_usage,
)
from .output import act_on_each, note, print_rows

if TYPE_CHECKING:
    from ..kafka.config.secret import Secret

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_ITERATIONS = 8_192
_ACTIONS = {"mechanism": ("set", "delete"), "iterations": ("set",), "password": ("set",)}
"""The actions of each option."""


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "users",
        help="list, set and delete users of SASL/SCRAM",
        description="Lists the users of SASL/SCRAM, creates one or gives it another password, or deletes the "
        "credentials of some. The password is read from the terminal, or from where --password says; only "
        "its salted hash is sent.",
    )
    parser.add_argument(
        "action", nargs="?", default="list", choices=("list", "set", "delete"), help="(default list)"
    )
    parser.add_argument("names", nargs="*", metavar="USER")
    parser.add_argument("--mechanism", choices=_MECHANISMS, help=f"set, delete: (default {_MECHANISMS[1]})")
    parser.add_argument("--iterations", type=number(1), metavar="N", help=f"set: (default {_ITERATIONS})")
    parser.add_argument(
        "--password",
        metavar="env:NAME|file:/path",
        help="set: where to read the password (default: the terminal)",
    )
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the requested action."""
    check_options(arguments, _ACTIONS)
    if arguments.action != "list" and not arguments.names:
        wrong_usage(arguments, f"{arguments.action}: which users?")
    if arguments.action == "list":
        return _list(arguments)
    return _set(arguments) if arguments.action == "set" else _delete(arguments)


def _list(arguments: argparse.Namespace) -> int:
    with connect(arguments) as admin:
        found = admin.describe_scram_users(arguments.names or None)
    rows = [
        {"user": user, "mechanism": mechanism, "iterations": iterations}
        for user, mechanisms in sorted(found.items())
        for mechanism, iterations in mechanisms.items()
    ]
    print_rows(("user", "mechanism", "iterations"), rows, as_json=arguments.json)
    missing = [user for user in arguments.names if not found.get(user)]
    for user in missing:
        note(f"error: user {user} has no credentials")
    return 1 if missing else 0


def _set(arguments: argparse.Namespace) -> int:
    if len(arguments.names) != 1:
        wrong_usage(arguments, "set: one user at a time, as each has a password of its own")
    (user,) = arguments.names
    password = _password(arguments)
    with connect(arguments) as admin, checked_values(arguments):  # iterations, an empty password
        admin.set_scram_user(
            user,
            password,
            mechanism=arguments.mechanism or _MECHANISMS[1],
            iterations=arguments.iterations or _ITERATIONS,
        )
    note(f"{user}: set")
    return 0


def _password(arguments: argparse.Namespace) -> Secret:
    from ..kafka.config.secret import Secret
    from ..kafka.security.config_providers import resolve

    if arguments.password is not None:
        if not arguments.password.startswith(("env:", "file:")):
            wrong_usage(arguments, "--password names a place: env:NAME or file:/path")
        return Secret(resolve("--password", arguments.password))
    if sys.stdin is None or not sys.stdin.isatty():
        wrong_usage(arguments, "no terminal to ask for a password: give --password env:NAME or file:/path")
    first = getpass.getpass(f"Password of {arguments.names[0]}: ")
    if first != getpass.getpass("Again: "):
        wrong_usage(arguments, "the two passwords differ")
    return Secret(first)


def _delete(arguments: argparse.Namespace) -> int:
    with connect(arguments) as admin:
        return act_on_each(
            dict.fromkeys(arguments.names),
            lambda user: admin.delete_scram_user(user, mechanism=arguments.mechanism or _MECHANISMS[1]),
            "deleted",
            as_json=arguments.json,
        )
