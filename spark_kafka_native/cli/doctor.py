"""``doctor``: checks this machine and the way to a cluster, with advice."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .options import add_connection_options, add_json_option, client_config, names_a_cluster
from .output import on_terminal, print_json, printable

if TYPE_CHECKING:
    from .doctor_checks import Finding

_MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "error": "ERROR"}
_COLOURS = {"ok": "\x1b[32m", "note": "\x1b[36m", "warning": "\x1b[33m", "error": "\x1b[31m"}


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="check the way to a cluster, and this machine",
        description="Checks names, TCP, TLS, SASL and the first exchange of each bootstrap server, whether "
        "every broker can be reached where it says it is, and Python, Java and Spark on this machine. "
        "Only the machine if nothing says which cluster. Ends with 1 if anything is an error.",
    )
    parser.add_argument(
        "--write", action="store_true", help="also write to a temporary topic, to measure the broker's clock"
    )
    add_json_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the checks and print the findings; 1 if any is an error."""
    findings: list[Finding] = []
    for finding in _checks(arguments):
        findings.append(finding)
        if not arguments.json:
            _show(finding)
    if arguments.json:
        print_json([asdict(finding) for finding in findings])
    return 1 if any(finding.status == "error" for finding in findings) else 0


def _checks(arguments: argparse.Namespace) -> Iterator[Finding]:
    from .doctor_checks import check_machine

    if names_a_cluster(arguments):
        yield from _cluster_checks(arguments)
    yield from check_machine()


def _cluster_checks(arguments: argparse.Namespace) -> Iterator[Finding]:
    from ..kafka.cluster.router import Router
    from .doctor_checks import check_address, check_cluster, check_writing, remark

    config = client_config(arguments)
    reached = False
    for address in config.bootstrap_servers:
        findings = list(check_address(address, config))
        yield from findings
        reached = reached or all(finding.status != "error" for finding in findings)
    if not reached:
        return
    router = Router(config)
    try:
        yield from check_cluster(router)
        if arguments.write:
            yield from check_writing(router)
        else:
            yield remark("clock", "not measured", "--write measures it, with a topic made for that.")
    finally:
        router.close()


def _show(finding: Finding) -> None:
    mark = _MARKS[finding.status]
    if on_terminal():
        coloured = mark if os.environ.get("NO_COLOR") else f"{_COLOURS[finding.status]}{mark}\x1b[0m"
        print(f"{' ' * (7 - len(mark))}{coloured}  {printable(finding.check)}: {printable(finding.detail)}")
        if finding.advice:
            print(f"         {printable(finding.advice)}")
        return
    print("\t".join(printable(one) for one in (mark, finding.check, finding.detail, finding.advice or "-")))
