"""``reset``: moves a group to other offsets."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ..kafka.errors import DeadlineExceededError, NetworkError
from ..kafka.model import TopicPartition
from .groups import check_no_markers
from .offsets import OFFSET_SPECS, OffsetSpec, parse_offset_spec, resolve_offset_spec
from .options import add_connection_options, add_json_option, connect, number, partitions_of, wrong_usage
from .output import note, output_of_change, print_rows

if TYPE_CHECKING:
    from ..kafka.admin.admin import Admin

_OUTCOME_UNKNOWN = (NetworkError, DeadlineExceededError, KeyboardInterrupt)


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "reset",
        help="move a group to another offset",
        description="Shows the offsets to which a group would move, and commits them with --execute. The "
        "group must have no members. Without --topic it moves in all partitions for which it has committed "
        "offsets.",
    )
    parser.add_argument("group", metavar="GROUP")
    parser.add_argument("--to", type=parse_offset_spec, metavar="OFFSET", help=OFFSET_SPECS)
    parser.add_argument(
        "--shift-by",
        type=int,
        metavar="N",
        help="instead of --to: move by N from the committed offsets (negative: back)",
    )
    parser.add_argument(
        "-t", "--topic", action="append", default=[], help="only this topic, or those that match; repeatable"
    )
    parser.add_argument(
        "-p",
        "--partition",
        type=number(0),
        action="append",
        help="only these partitions of the topics; repeatable",
    )
    parser.add_argument("--execute", action="store_true", help="commit the offsets")
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the change, and commit it with ``--execute``."""
    if (arguments.to is None) == (arguments.shift_by is None):
        wrong_usage(arguments, "where to? Give --to OFFSET, or --shift-by N")
    if arguments.partition and not arguments.topic:
        wrong_usage(arguments, "--partition: of which topic? Give --topic, too")
    with connect(arguments) as admin:
        committed = admin.group_offsets(arguments.group)
        check_no_markers(arguments.group, committed, "they can't be moved")
        before = {tp: at.offset for tp, at in committed.items()}
        wanted = _wanted(admin, arguments, before)
        if not wanted:
            note(f"Group {arguments.group} has committed no offsets: name its topics with --topic.")
            return 1
        offsets = _offsets(admin, arguments, wanted, before)
        moved = ", ".join(f"{tp} to {offset}" for tp, offset in sorted(offsets.items()))
        if arguments.execute:
            try:
                admin.reset_offsets(arguments.group, offsets)
            except _OUTCOME_UNKNOWN:  # the same shift would move it twice
                note(f"Group {arguments.group} may have moved nevertheless: {moved}. --to sets an offset.")
                raise
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "before": before.get(tp), "after": offset}
        for tp, offset in sorted(offsets.items())
    ]
    done = f"Group {arguments.group} moved: {moved}"
    with output_of_change(done) if arguments.execute else nullcontext():
        print_rows(("topic", "partition", "before", "after"), rows, as_json=arguments.json)
    if not arguments.execute:
        note("Nothing was changed: --execute does it.")
    return 0


def _wanted(
    admin: Admin, arguments: argparse.Namespace, before: dict[TopicPartition, int]
) -> list[TopicPartition]:
    if not arguments.topic:
        return sorted(before)
    return partitions_of(admin.router, list(dict.fromkeys(arguments.topic)), arguments.partition)


def _offsets(
    admin: Admin,
    arguments: argparse.Namespace,
    wanted: list[TopicPartition],
    before: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    if arguments.to is not None:
        return resolve_offset_spec(admin.router, wanted, arguments.to)
    missing = [tp for tp in wanted if tp not in before]
    if missing:
        wrong_usage(arguments, f"--shift-by: group {arguments.group} has committed nothing for {missing[0]}")
    offsets = {}
    for tp in wanted:
        spec = OffsetSpec(shift=before[tp] + arguments.shift_by)
        offsets.update(resolve_offset_spec(admin.router, [tp], spec))
    return offsets
