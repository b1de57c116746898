"""``configs``: shows and changes settings of topics, brokers and groups."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .options import add_connection_options, add_json_option, check_named_once, connect, pair, wrong_usage
from .output import act_on_each, print_rows

if TYPE_CHECKING:
    from ..kafka.admin.configs import ConfigResource

_KINDS = ("topic", "broker", "group", "loggers")


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "configs",
        help="show and change settings of topics, brokers and groups",
        description="Shows the settings that are not defaults (--all: every one), or changes some and "
        "leaves the others as they are.",
    )
    parser.add_argument("kind", choices=_KINDS, help="the kind of thing whose settings to show")
    parser.add_argument(
        "name", help="its name; for a broker its id, or 'all' for the defaults of all brokers"
    )
    parser.add_argument("--all", action="store_true", help="defaults, too")
    parser.add_argument("--set", action="append", type=pair, default=[], metavar="NAME=VALUE")
    parser.add_argument("--unset", action="append", default=[], metavar="NAME", help="back to the default")
    parser.add_argument(
        "--append",
        action="append",
        type=pair,
        default=[],
        metavar="NAME=VALUE",
        help="add an item to a setting that is a list",
    )
    parser.add_argument(
        "--subtract",
        action="append",
        type=pair,
        default=[],
        metavar="NAME=VALUE",
        help="remove an item from such a setting",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="let the cluster check the change without making it"
    )
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Apply the requested changes; without changes, print the settings."""
    resource = _resource(arguments)
    pairs = [*arguments.set, *arguments.append, *arguments.subtract]
    check_named_once(arguments, [*(name for name, _ in pairs), *arguments.unset])
    values = dict(arguments.set) | dict.fromkeys(arguments.unset)
    with connect(arguments) as admin:
        if values or arguments.append or arguments.subtract:
            return act_on_each(
                [str(resource)],
                lambda _: admin.alter_configs(
                    resource,
                    values,
                    append=dict(arguments.append),
                    subtract=dict(arguments.subtract),
                    validate_only=arguments.dry_run,
                ),
                "the change is possible" if arguments.dry_run else "changed",
                as_json=arguments.json,
            )
        entries = admin.describe_configs(resource, documentation=arguments.json and arguments.all)
    rows = [
        {
            "name": one.name,
            "value": "(hidden)" if one.sensitive else one.value,
            "source": one.source.name.lower(),
            "read_only": one.read_only,
        }
        | ({"documentation": one.documentation} if one.documentation else {})
        for _, one in sorted(entries.items())
        if arguments.all or not one.is_default
    ]
    print_rows(("name", "value", "source", "read_only"), rows, as_json=arguments.json)
    return 0


def _resource(arguments: argparse.Namespace) -> ConfigResource:
    from ..kafka.admin.configs import ConfigResource

    kind, name = arguments.kind, arguments.name
    if kind == "topic":
        return ConfigResource.topic(name)
    if kind == "group":
        return ConfigResource.group(name)
    if kind == "broker" and name == "all":
        return ConfigResource.all_brokers()
    if not name.isdecimal():
        wrong_usage(arguments, f"a broker goes by its id, a number, not {name!r}")
    return ConfigResource.broker(int(name)) if kind == "broker" else ConfigResource.broker_loggers(int(name))
