"""``quotas``: shows and changes limits of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

import argparse
from typing import Any

from .options import (
    add_connection_options,
    add_json_option,
    check_named_once,
    checked_values,
    connect,
    pair,
    wrong_usage,
)
from .output import act_on_each, print_rows


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "quotas",
        help="show and change limits of users, client ids and addresses",
        description="Shows the limits of all, or of exactly what --user, --client-id and --ip name; --set "
        "and --unset change them. The name 'default' stands for all that have no limit of their own.",
    )
    for option in ("--user", "--client-id", "--ip"):
        parser.add_argument(option, metavar="NAME", help="its name, or default")
    parser.add_argument(
        "--set", action="append", type=pair, default=[], metavar="NAME=NUMBER",
        help="producer_byte_rate, consumer_byte_rate (bytes/s), request_percentage, "
        "controller_mutation_rate, connection_creation_rate; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--unset", action="append", default=[], metavar="NAME", help="remove a limit; repeatable"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="let the cluster check the change without making it"
    )
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Apply the requested changes; without changes, print the limits."""
    named = {"user": arguments.user, "client-id": arguments.client_id, "ip": arguments.ip}
    entity = {kind: None if name == "default" else name for kind, name in named.items() if name is not None}
    limits = {name: _number(arguments, name, text) for name, text in arguments.set}
    check_named_once(arguments, [*(name for name, _ in arguments.set), *arguments.unset])
    limits |= dict.fromkeys(arguments.unset)
    if limits and not entity:
        wrong_usage(arguments, "whose limits? Give --user, --client-id or --ip")
    with connect(arguments) as admin:
        if limits:
            with checked_values(arguments):
                return act_on_each(
                    [" ".join(f"{kind} {name or 'default'}" for kind, name in entity.items())],
                    lambda _: admin.alter_quotas(entity, limits, validate_only=arguments.dry_run),
                    "the change is possible" if arguments.dry_run else "changed",
                    as_json=arguments.json,
                )
        found = admin.describe_quotas(entity)
    rows = [
        {kind: "default" if name is None else name for kind, name in quota.entity.items()}
        | {"limit": limit, "value": value}
        for quota in found
        for limit, value in sorted(quota.limits.items())
    ]
    print_rows(("user", "client-id", "ip", "limit", "value"), rows, as_json=arguments.json)
    return 0


def _number(arguments: argparse.Namespace, name: str, text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        wrong_usage(arguments, f"--set {name}: a number is wanted, not {text!r}")
