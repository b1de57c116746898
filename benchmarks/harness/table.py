"""Tables that read well in a terminal, with ratios and whether a target was met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A ratio to reach, against whom."""

    against: str
    ratio: float
    wanted: float | None = None

    def __str__(self) -> str:
        if self.wanted is None:
            return f"{self.ratio:.2f}x {self.against}"
        mark = "met" if self.ratio >= self.wanted else "MISSED"
        return f"{self.ratio:.2f}x {self.against} (>= {self.wanted:g}: {mark})"


def rate(records: float, seconds: float) -> str:
    """Records per second in millions, or in thousands where that is too coarse."""
    per_second = records / seconds
    return f"{per_second / 1e6:.2f} M" if per_second >= 95_000 else f"{per_second / 1e3:.1f} k"


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """First column left, the others right."""
    print(f"\n{title}")
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        print("  " + "  ".join(cells), flush=True)
