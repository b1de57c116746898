"""Docstrings and comments of the package, its tests and its benchmarks are in plain technical English.

Each phrase below used to hide a subject or a standard term. A noun in its place names the thing.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "spark_kafka_native"

HINTS = {
    r"who|whom|whoever": "name the actor: the client, the caller, the owner of the lock",
    r"whose": '"with", "that has", or a sentence of its own',
    r"whatever": '"any", "all", "regardless of", or a noun',
    r"nobody|somebody|anybody": '"no client", "a thread", "any process"',
    r"told|tells": '"is configured to", "reports", "shows"',
    r"so (?:many|long|much)": '"the given number of", "for the given time", "this size"',
    r"what (?:is|was|has|had|comes|came)": "name the thing: the records, the answer, the open transaction",
    r"that there (?:is|was)": '"no partition exists", "if it has one"',
    r"as long as that": "name the time or the length",
    r"\A\s*whether": '"True if", "Check that", or a noun',
}
TICS = [
    (re.compile(rf"(?<!\w)(?:{words})\b".replace(" ", r"\s+"), re.IGNORECASE), hint)
    for words, hint in HINTS.items()
]
ANYWHERE = re.compile(
    rf"(?<!\w)(?:{'|'.join(HINTS)})\b".replace(r"\A\s*", "").replace(" ", r"[\s#:]+"), re.IGNORECASE
)
"""Matches every module with a tic, and others; to parse those alone takes a third of the time."""

Text = tuple[int, str]
"""The line where it begins, and its lines without ``#``."""


class Tic(NamedTuple):
    line: int
    words: str
    hint: str


def docstrings(source: str, *, of_attributes: bool) -> Iterator[Text]:
    """The docstrings of a module, its classes and functions; of attributes and constants if asked for."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in node.body if of_attributes else node.body[:1]:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text


def comments(source: str) -> Iterator[Text]:
    """The comments of a module; those in consecutive lines are one text."""
    first, lines = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] != first + len(lines):
                yield first, "\n".join(lines)
                lines = []
            first = first if lines else token.start[0]
            lines.append(token.string.lstrip("#: "))
    if lines:
        yield first, "\n".join(lines)


def tics(source: str, *, of_attributes: bool = True) -> list[Tic]:
    """The tics in the docstrings and comments of a module, by line."""
    if not ANYWHERE.search(source):
        return []
    return sorted(
        Tic(begin + text.count("\n", 0, found.end()), " ".join(found[0].split()), hint)
        for begin, text in [*docstrings(source, of_attributes=of_attributes), *comments(source)]
        for pattern, hint in TICS
        for found in pattern.finditer(text)
    )


def complaints(path: Path) -> list[str]:
    # docs/options.md quotes the docstrings of options: they are texts for users.
    of_attributes = PACKAGE / "kafka" / "config" not in path.parents
    found = tics(path.read_text(), of_attributes=of_attributes)
    return [f"{path.relative_to(ROOT)}:{tic.line}: {tic.words!r}: rather {tic.hint}" for tic in found]


def test_docstrings_and_comments_are_plain() -> None:
    folders = (PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / ".ci")
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    assert {path.relative_to(ROOT).parts[0] for path in paths} == {folder.name for folder in folders}
    found = [complaint for path in paths for complaint in complaints(path)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""Whether it is open."""', [(1, "Whether")]),
        ('def f():\n    """\n    Whether it is open.\n    """', [(3, "Whether")]),
        ('"""True, whether open or not."""', []),
        ('class C:\n    """A member whose lease\n    nobody holds."""', [(2, "whose"), (3, "nobody")]),
        ('async def f():\n    """Wait for what\n    is sent."""', [(3, "what is")]),
        ('LIMIT = 1\n"""In so many bytes."""', [(2, "so many")]),
        ("a = 1  # As it was told", [(1, "told")]),
        ("# A wait that is so\n# long\n\n\n# Whatever waits", [(2, "so long"), (5, "Whatever")]),
        ('raise ValueError("nobody")  # The whole of it', []),
    ],
)
def test_a_tic_is_found_at_its_line(source: str, expected: list[tuple[int, str]]) -> None:
    assert [(tic.line, tic.words) for tic in tics(source)] == expected


def test_options_are_for_their_users() -> None:
    source = 'class Config:\n    """Who reads."""\n\n    user: str\n    """Who writes."""\n'
    assert [tic.line for tic in tics(source, of_attributes=False)] == [2]
