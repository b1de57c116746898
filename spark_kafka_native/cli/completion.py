"""``completion``: prints a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
from typing import Any


def add_command(commands: Any) -> None:
    """Declare the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        description='Prints the script. bash: put eval "$(pykafka completion bash)" into ~/.bashrc; zsh: '
        "write it to a file _pykafka in a folder of $fpath.",
    )
    parser.add_argument("shell", choices=("bash", "zsh"))
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from .main import command_line_parser

    print(shtab.complete(command_line_parser(), arguments.shell))
    return 0
