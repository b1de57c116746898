"""Rounds: every contender once, then every contender again, so that the machine's moods hit all alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

Run = Callable[[], float]
"""Does the work once; its seconds."""


def best_of_rounds(runs: Mapping[str, Run], rounds: int, warm_up: int = 0) -> dict[str, float]:
    """The best time of each over ``rounds`` interleaved rounds, after ``warm_up`` runs that don't count.

    The warm-up of one contender is run in one go: a JIT interrupted by others' work is no warmer for it.
    """
    for name, run in runs.items():
        for number in range(warm_up):
            print(
                f"\r  warming up {name} {number + 1}/{warm_up}".ljust(70), end="", file=sys.stderr, flush=True
            )
            run()
    best = dict.fromkeys(runs, float("inf"))
    for number in range(rounds):
        for name, run in runs.items():
            print(f"\r  round {number + 1}/{rounds} {name}".ljust(70), end="", file=sys.stderr, flush=True)
            best[name] = min(best[name], run())
    print("\r".ljust(72), end="\r", file=sys.stderr, flush=True)
    return best
