"""Tables that read well in a terminal, with ratios and whether a target was met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A ratio to reach against a contender."""

    ratio: float
    wanted: float | None = None
    against: str = ""
    """Left out where the column says it."""

    def __str__(self) -> str:
        ratio = f"{self.ratio:.2f}x {self.against}".strip()
        if self.wanted is None:
            return ratio
        mark = "met" if self.ratio >= self.wanted else "MISSED"
        return f"{ratio} (>= {self.wanted:g}: {mark})"


def rate(records: float, seconds: float) -> str:
    """Records per second in millions, or in thousands where that is too coarse."""
    per_second = records / seconds
    return f"{per_second / 1e6:.2f} M" if per_second >= 95_000 else f"{per_second / 1e3:.1f} k"


def print_rates(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Two tables: rates under ``columns``, then the three ratios that each row ends with."""
    width = 1 + len(columns)
    print_table(title, ["records/s", *columns], [row[:width] for row in rows])
    print_table(
        "pykafka against", ["", "limit", "JVM default", "best JVM"], [[row[0], *row[width:]] for row in rows]
    )


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
