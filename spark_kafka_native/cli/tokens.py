"""``tokens``: creates, shows, renews and expires delegation tokens (KIP-48)."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from .options import add_connection_options, add_json_option, check_options, connect, wrong_usage
from .output import act_on_each, note, print_rows, print_rows_or_raise

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..kafka.admin.admin import Admin
    from ..kafka.admin.delegation_tokens import DelegationToken

_COLUMNS = ("token_id", "owner", "requester", "issued", "expires", "max", "renewers")
_MAX_DIGITS = 19
_MAX_MS = 2**63 - 1
_ACTIONS = {
    "owner": ("create", "describe"),
    "renewer": ("create",),
    "max_lifetime": ("create",),
    "period": ("renew",),
}
_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tokens",
        help="create, show, renew and expire delegation tokens",
        description="Creates a delegation token, shows those that the user may see, renews some, or expires "
        "them at once. create alone prints the HMAC, which is the password of everybody who logs in with the "
        "token. It takes an authenticated connection (SASL, or a client certificate).",
    )
    parser.add_argument(
        "action", nargs="?", default="describe", choices=("create", "describe", "renew", "expire"),
        help="(default describe)",
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="TOKEN_ID")
    parser.add_argument(
        "--owner", metavar="User:NAME", help="create: the owner (default the user); describe: only theirs"
    )
    parser.add_argument(
        "--renewer", action="append", default=[], metavar="User:NAME",
        help="create: who may renew it besides the owner; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--max-lifetime", type=_duration, metavar="TIME",
        help="create: how long it can be renewed at most, as 12h or 3d (default that of the brokers)",
    )  # fmt: skip
    parser.add_argument(
        "--period", type=_duration, metavar="TIME",
        help="renew: until when from now (default that of the brokers)",
    )  # fmt: skip
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the requested action."""
    check_options(arguments, _ACTIONS)
    if arguments.action == "create" and arguments.names:
        wrong_usage(arguments, "create: the cluster gives a token its id")
    if arguments.action in ("renew", "expire") and not arguments.names:
        wrong_usage(arguments, f"{arguments.action}: which tokens?")
    for principal in (arguments.owner, *arguments.renewer):
        if principal is not None and not all(principal.partition(":")[::2]):
            wrong_usage(arguments, f"a principal is a type and a name, such as User:alice, not {principal!r}")
    with connect(arguments) as admin:
        if arguments.action == "create":
            return _create(arguments, admin)
        if arguments.action == "describe":
            return _describe(arguments, admin)
        return _change(arguments, admin)


def _create(arguments: argparse.Namespace, admin: Admin) -> int:
    token = admin.create_delegation_token(
        owner=arguments.owner, renewers=arguments.renewer, max_lifetime_ms=arguments.max_lifetime
    )
    row = _row(token) | {"hmac": token.hmac.reveal()}
    try:
        print_rows_or_raise((*_COLUMNS, "hmac"), [row], as_json=arguments.json)
        sys.stdout.flush()
    except OSError as error:
        note(f"The token {token.token_id} is made, and its HMAC is lost: expire it.")
        if isinstance(error, BrokenPipeError):
            return 1  # the output alone is the purpose: a reader that hangs up has not got it
        raise
    return 0


def _describe(arguments: argparse.Namespace, admin: Admin) -> int:
    owners = None if arguments.owner is None else [arguments.owner]
    found = {token.token_id: token for token in admin.describe_delegation_tokens(owners)}
    wanted = [found[name] for name in arguments.names or sorted(found) if name in found]
    print_rows(_COLUMNS, [_row(token) for token in wanted], as_json=arguments.json)
    return _missing(arguments.names, found)


def _missing(names: Collection[str], found: Collection[str]) -> int:
    missing = [name for name in names if name not in found]
    for name in missing:
        note(f"error: no token {name} that this user may see")
    return 1 if missing else 0


def _change(arguments: argparse.Namespace, admin: Admin) -> int:
    found = {token.token_id: token for token in admin.describe_delegation_tokens()}

    def change(name: str) -> None:
        if arguments.action == "expire":
            admin.expire_delegation_token(found[name])
        else:
            admin.renew_delegation_token(found[name], period_ms=arguments.period)

    known = [name for name in dict.fromkeys(arguments.names) if name in found]
    done = "expired" if arguments.action == "expire" else "renewed"
    code = act_on_each(known, change, done, as_json=arguments.json)
    return max(code, _missing(arguments.names, found))


def _row(token: DelegationToken) -> dict[str, Any]:
    times = {"issued": token.issued_ms, "expires": token.expires_ms, "max": token.max_ms}
    return {
        "token_id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
    } | {name: _time(ms) for name, ms in times.items()}


def _time(milliseconds: int) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a broker may say anything, and the HMAC is shown only once
        return f"{milliseconds} ms"


def _duration(text: str) -> int:
    count, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not count.isdecimal() or not count.isascii() or not count.strip("0"):
        raise argparse.ArgumentTypeError(f"a time such as 30m, 12h or 3d is wanted, not {text!r}")
    if len(count) > _MAX_DIGITS or (milliseconds := int(count) * _UNITS[unit]) > _MAX_MS:
        raise argparse.ArgumentTypeError("that is a longer time than Kafka can count (2**63 - 1 ms)")
    return milliseconds
