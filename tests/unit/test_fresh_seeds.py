"""Seeds of a run: fresh ones, the same again, one alone, and what a failure says of its own."""

from __future__ import annotations

import itertools

import pytest
from support.hooks.fresh_seeds import VARIABLE, run_seed, try_seeds


@pytest.fixture(autouse=True)
def run_7(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "7")


def tried(name: str, known: dict[str, int] | range = range(0), *, seconds: float = 3) -> list[int]:
    seeds: list[int] = []
    ticks = itertools.count()
    try_seeds(seeds.append, name, known, seconds=seconds, clock=lambda: float(next(ticks)))
    return seeds


def test_known_seeds_come_first_and_fresh_ones_while_there_is_time() -> None:
    seeds = tried("a", {"a batch was lost": 5, "a zombie wrote": 9})
    assert seeds[:2] == [5, 9]
    assert len(set(seeds)) == 5
    assert tried("a", range(3), seconds=0) == [0, 1, 2]
    assert len(tried("a", seconds=0.1)) == 1


def test_a_run_tries_the_same_again_and_each_test_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_seed() == 7
    first, other = tried("a"), tried("b")
    assert first == tried("a")
    assert not set(first) & set(other)
    monkeypatch.setenv(VARIABLE, "8")
    assert not set(first) & set(tried("a"))
    monkeypatch.delenv(VARIABLE)
    drawn = run_seed()
    assert run_seed() == drawn


def test_one_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "7:12")
    assert run_seed() == 7
    assert tried("a", range(3)) == [12]


def test_a_failure_says_how_to_try_its_seed_again() -> None:
    def fail(seed: int) -> None:
        if seed > 1:
            raise AssertionError("lost")

    with pytest.raises(AssertionError, match="lost") as raised:
        try_seeds(fail, "a", range(5))
    assert raised.value.__notes__ == ["a, seed 2: again with TEST_SEED=7:2"]
