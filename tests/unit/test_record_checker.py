"""The soak's checker sees each kind of damage, alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.exactly_once.record_checker import Found, batches, compare, complaints

PLAN = {"batches": 2, "tasks": 2, "rows": 6, "partitions": 2}


def value(batch: int, task: int, index: int) -> bytes:
    return b"%d-%d-%d %s" % (batch, task, index, b"x" * (index % 97))


def good() -> Found:
    """Offsets with gaps, as transactions' markers leave them."""
    found: Found = {0: {}, 1: {}}
    for batch in range(2):
        for task in range(2):
            for index in range(6):
                there = found[index % 2]
                there[len(there) + batch * 3] = value(batch, task, index)
    return found


def lose(found: Found) -> None:
    for partition in found.values():
        for offset in [offset for offset, one in partition.items() if one.startswith(b"1-1-")]:
            del partition[offset]


def tear(found: Found) -> None:
    del found[1][max(found[1])]


def double(found: Found) -> None:
    for partition in found.values():
        for one in [one for one in partition.values() if one.startswith(b"0-0-")]:
            partition[max(partition) + 1] = one


def swap(found: Found) -> None:
    first, second = list(found[0])[:2]
    found[0][first], found[0][second] = found[0][second], found[0][first]


def falsify(found: Found) -> None:
    found[1][0] = found[1][0][:-1] + b"y"


def misplace(found: Found) -> None:
    found[1][99] = found[0].pop(max(found[0]))


def invent(found: Found) -> None:
    found[0][99] = value(7, 0, 0)


@pytest.mark.parametrize(
    ("damage", "kinds"),
    [
        (lambda _: None, set()),
        (lose, {"lost"}),
        (tear, {"lost", "torn"}),
        (double, {"duplicate"}),
        (swap, {"reordered"}),
        (falsify, {"corrupt", "lost", "torn"}),
        (misplace, {"corrupt", "lost", "torn"}),
        (invent, {"strange"}),
    ],
)
def test_damage_is_named(damage: Callable[[Found], None], kinds: set[str]) -> None:
    found = good()
    damage(found)
    assert {kind for kind, all_ in complaints(PLAN, found).items() if all_} == kinds


def test_what_was_written_beyond_the_plan_is_checked_too(tmp_path: Path) -> None:
    plan = PLAN | {"folder": str(tmp_path)}
    assert batches(plan) == 2
    for lines, wanted in (("0\n", 2), ("0\n1\n2\n", 3)):
        (tmp_path / "commits").write_text(lines)
        assert batches(plan) == wanted
    assert complaints(plan | {"batches": 3}, good())["lost"]


def test_who_read_along_saw_what_is_there() -> None:
    followed, final = good(), good()
    del followed[1][max(followed[1])]  # not read yet
    assert not any(compare(followed, final).values())
    followed[0][5_000] = b"of a transaction that was aborted"
    assert [kind for kind, all_ in compare(followed, final).items() if all_] == ["aborted read"]
    followed = good()
    del followed[0][0]
    followed[1][1] = b"another"
    assert {kind for kind, all_ in compare(followed, final).items() if all_} == {"skipped", "two values"}
