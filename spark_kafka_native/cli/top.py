"""``top``: shows a live view of topics, groups, lag and throughput."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ..kafka.errors import ConfigError, KafkaError, SecurityError
from .cluster_moment import ClusterMoment, look_at_cluster
from .options import add_connection_options, add_json_option, connect, number
from .output import BOLD, PLAIN, bold, counted, on_terminal, print_json, printable, table

if TYPE_CHECKING:
    from ..kafka.admin.admin import Admin

_INTERVAL_S = 2.0
_TOPIC_COLUMNS = ("topic", "partitions", "end_offsets", "records_per_s")
_GROUP_COLUMNS = ("group", "state", "members", "lag", "committed_per_s", "behind")
_HOME, _CLEAR_BELOW, _CLEAR_LINE = "\x1b[H", "\x1b[J", "\x1b[K"
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "top",
        help="a live view of topics, groups, lag and throughput",
        description="Shows throughput and lag, the busiest topics first, until Ctrl-C. In a pipe it prints a "
        "table (with --json one object per line) for each interval.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="TOPIC", help="only these topics, and the groups that read them"
    )
    parser.add_argument(
        "-i",
        "--interval",
        type=_seconds,
        default=_INTERVAL_S,
        metavar="SECONDS",
        help=f"(default {_INTERVAL_S:g})",
    )
    parser.add_argument("-c", "--count", type=number(1), metavar="N", help="stop after N updates")
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Show views, one after the other."""
    live = on_terminal() and not arguments.json
    with connect(arguments) as admin:
        before = look_at_cluster(admin, arguments.names)
        if live:
            sys.stdout.write(_HIDE + _HOME + _CLEAR_BELOW)
        try:
            shown, now = 0, before
            while arguments.count is None or shown < arguments.count:
                time.sleep(arguments.interval)  # a view shows the changes in this time
                now = _look_again(admin, arguments.names)
                _show(now, before, arguments.json, live)
                before, shown = now if now.brokers else before, shown + 1
        finally:
            if live:
                sys.stdout.write(_SHOW)
                sys.stdout.flush()
    return 0 if now.brokers else 1


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number is wanted, not {text!r}") from None
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"it must be from 0.1 to 3600 seconds, not {text}")
    return value


def _look_again(admin: Admin, names: list[str]) -> ClusterMoment:
    """A look that fails is a moment with nothing but a problem: a live view outlasts an outage."""
    try:
        return look_at_cluster(admin, names)
    except (SecurityError, ConfigError):  # each further login with a wrong password may lock the account
        raise
    except KafkaError as error:
        return ClusterMoment(at=time.monotonic(), problems=[str(error)])


def _show(now: ClusterMoment, before: ClusterMoment, as_json: bool, live: bool) -> None:
    topics, groups = topic_rows(now, before), group_rows(now, before)
    if as_json:
        print_json({"brokers": now.brokers, "topics": topics, "groups": groups, "problems": now.problems})
        sys.stdout.flush()
        return
    lines = [f"! {printable(problem)}" for problem in now.problems]
    if now.brokers:  # none in a look that has failed
        numbers = {"broker": now.brokers, "topic": len(topics), "group": len(groups)}
        heading = ", ".join(counted(count, noun) for noun, count in numbers.items())
        tables = ["", *table(_TOPIC_COLUMNS, topics), "", *table(_GROUP_COLUMNS, groups)]
        lines = [bold(heading), *tables, *lines]
    if live:
        size = shutil.get_terminal_size()
        kept = [cut_line(line, size.columns) for line in lines[: size.lines - 1]]
        painted = f"{_CLEAR_LINE}\n".join(kept)
        sys.stdout.write(f"{_HOME}{painted}{_CLEAR_LINE}{_CLEAR_BELOW}")
    else:
        sys.stdout.write("\n".join(lines) + "\n\n")
    sys.stdout.flush()


def cut_line(line: str, columns: int) -> str:
    """Return ``line`` cut to the width of the terminal: a wrapped line would push others off the screen."""
    bare = line.removeprefix(BOLD).removesuffix(PLAIN)
    return bare[:columns] if bare == line else f"{BOLD}{bare[:columns]}{PLAIN}"


def topic_rows(now: ClusterMoment, before: ClusterMoment) -> list[dict[str, Any]]:
    """Return a row for each topic, the busiest first."""
    ends: dict[str, int] = defaultdict(int)
    written: dict[str, int] = defaultdict(int)
    partitions: dict[str, int] = defaultdict(int)
    for tp, end in now.ends.items():
        ends[tp.topic] += end
        partitions[tp.topic] += 1
        # A lower end offset belongs to a new topic of the same name.
        written[tp.topic] += max(0, end - before.ends.get(tp, end))
    seconds = max(0.001, now.ends_at - before.ends_at)
    rows = [
        {
            "topic": name,
            "partitions": partitions[name],
            "end_offsets": ends[name],
            "records_per_s": round(written[name] / seconds, 1),
        }
        for name in ends
    ]
    return sorted(rows, key=lambda row: (-float(str(row["records_per_s"])), str(row["topic"])))


def group_rows(now: ClusterMoment, before: ClusterMoment) -> list[dict[str, Any]]:
    """Return a row for each group, the largest lag first."""
    rows = []
    for name, committed in now.groups.items():
        lag = sum(max(0, now.ends[tp] - offset) for tp, offset in committed.items())
        earlier, read_at = before.groups.get(name, {}), now.committed_at[name]
        seconds = max(0.001, read_at - before.committed_at.get(name, read_at))
        moved = sum(max(0, offset - earlier.get(tp, offset)) for tp, offset in committed.items()) / seconds
        rows.append(
            {
                "group": name,
                "state": now.states[name],
                "members": now.members.get(name),
                "lag": lag,
                "committed_per_s": round(moved, 1),
                "behind": None if not lag else f"{lag / moved:.0f} s" if moved else "for ever",
            }
        )
    return sorted(rows, key=lambda row: (-int(str(row["lag"])), str(row["group"])))
