"""Seeds that no run before has tried: `try_seeds` for simulations, and one for Hypothesis.

Each run draws a seed of its own, which its header names; ``TEST_SEED`` in the environment chooses it. The
note of a failure names the run's seed and the one that failed: ``TEST_SEED=run:seed`` tries that one alone. A
seed that has found a defect becomes a known one, which every run tries.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping

VARIABLE = "TEST_SEED"
SECONDS = float(os.environ.get("SEED_SECONDS", "2"))
"""For the fresh seeds of one test; 0: none are tried."""


def run_seed() -> int:
    """The seed of this run; the processes of a run share it by the environment."""
    chosen = os.environ.setdefault(VARIABLE, str(random.SystemRandom().randrange(1 << 32)))
    return int(chosen.partition(":")[0])


def only_seed() -> int | None:
    """The single seed to try, if one is chosen."""
    chosen = os.environ.get(VARIABLE, "").partition(":")[2]
    return int(chosen) if chosen else None


def pytest_report_header() -> str:
    """A line at the top of the report."""
    return (
        f"fresh seeds: {VARIABLE}={run_seed()} tries the same again, SEED_SECONDS={SECONDS:g} for each test"
    )


def try_seeds(
    check: Callable[[int], object],
    name: str,
    known: Iterable[int] | Mapping[str, int] = (),
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Call ``check`` with each of the ``known`` seeds (names of defects, with the seeds that found them), and
    with fresh ones while there is time: at least one, unless ``seconds`` is 0. Returns how many were fresh.

    ``name`` is that of the test: each test draws seeds of its own.
    """
    only = only_seed()
    if only is not None:
        _try(check, only, name)
        return 0
    for seed in known.values() if isinstance(known, Mapping) else known:
        _try(check, seed, name)
    draw, until, count = random.Random(f"{run_seed()} {name}"), clock() + seconds, 0
    while seconds and (not count or clock() < until):
        _try(check, draw.randrange(1 << 32), name)
        count += 1
    return count


def _try(check: Callable[[int], object], seed: int, name: str) -> None:
    try:
        check(seed)
    except BaseException as error:
        error.add_note(f"{name}, seed {seed}: again with {VARIABLE}={run_seed()}:{seed}")
        raise
