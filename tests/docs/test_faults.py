"""The table of faults names tests that exist, and no fault without one."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/faults.md"
_ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
FAULTS = 92


class Row(NamedTuple):
    number: int
    fault: str
    happens: str
    tests: list[tuple[str, str]]
    not_shown: str


def rows() -> list[Row]:
    found = []
    for number, fault, happens, cell in _ROW.findall(PAGE.read_text()):
        named, _, not_shown = cell.partition("*Not shown:*")
        found.append(
            Row(int(number), fault.strip(), happens.strip(), _TEST.findall(named), not_shown.strip())
        )
    return found


def find_tests() -> dict[str, set[str]]:
    """The names of all test functions, by the name of their file: a file may move to another folder."""
    found = defaultdict[str, set[str]](set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        found[path.name].update(re.findall(r"^ *(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE))
    return found


def test_every_fault_has_tests_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    table, known = rows(), find_tests()
    assert [row.number for row in table] == list(range(1, FAULTS + 1))
    assert len({row.fault for row in table}) == FAULTS
    assert not [row.number for row in table if not row.tests], "faults without a test"
    missing = [
        f"{row.number}: {file}::{test}"
        for row in table
        for file, test in row.tests
        if test not in known.get(file, ())
    ]
    assert not missing, "\n" + "\n".join(missing)
    partly = [row for row in table if row.not_shown]
    with capsys.disabled():
        print(
            f"\n{len(partly)} of {FAULTS} faults are shown in part: "
            + ", ".join(str(one[0]) for one in partly)
        )


def test_a_row_is_read_with_what_it_does_not_show() -> None:
    cell = "| 7 | A fault | an error | `test_a.py::test_b`, `test_c.py::test_d`. *Not shown:* the rest |"
    ((number, fault, happens, tests),) = _ROW.findall(cell)
    assert (number, fault, happens) == ("7", "A fault", "an error")
    assert _TEST.findall(tests) == [("test_a.py", "test_b"), ("test_c.py", "test_d")]
