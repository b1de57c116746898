"""`CommandParser`: options and names of a command in any order, and `number` and `pair` for their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Never


class CommandParser(argparse.ArgumentParser):
    """The parser of one command. Names may stand before, after and between options.

    Options are spelled out: ``--d`` must not be taken for ``--delete``.
    """

    _parsing = False

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings | {"allow_abbrev": False})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse's, but for the order (which calls this very method for its two passes)."""
        if self._parsing:
            return super().parse_known_args(args, namespace)
        self._parsing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._parsing = False

    def error(self, message: str) -> Never:
        """One line, and how to learn more; exit code 2."""
        self.exit(2, f"{self.prog}: {message}\nTry '{self.prog} --help'.\n")


def number(min_value: int, max_value: int | None = None) -> Callable[[str], int]:
    """The type of an option: a whole number in these bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text.replace("_", ""))
        except ValueError:
            raise argparse.ArgumentTypeError(f"a number is wanted, not {text!r}") from None
        if value < min_value or (max_value is not None and value > max_value):
            bounds = f"at least {min_value}" if max_value is None else f"from {min_value} to {max_value}"
            raise argparse.ArgumentTypeError(f"it must be {bounds}, not {value}")
        return value

    return parse


def pair(text: str) -> tuple[str, str]:
    """The type of an option: NAME=VALUE. The value, which may be a secret, is in no error."""
    name, found, value = text.partition("=")
    if not found or not name.strip():
        raise argparse.ArgumentTypeError("it is not of the form NAME=VALUE")
    return name.strip(), value


def wrong_usage(arguments: argparse.Namespace, text: str) -> Never:
    """Say what is wrong with what was typed, and end with 2."""
    parser: argparse.ArgumentParser = arguments.parser
    parser.error(text)
