"""What a kernel runs: numbered steps that read values into builders of columns, or write them out of columns.

A step is six numbers: what it does, the builder or column that it is about (-1: none, the value is skipped),
the place and the number of its links, and two operands. Links are the numbers of other steps, always greater
than its own; those of `Read.ENUM` are the positions of symbols. A builder is four numbers: its kind, the
width of its values in bytes, and the place and number of its links to the builders of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]


class Built(IntEnum):
    """What a builder builds."""

    NULL = 0
    BOOL = 1
    FIXED = 2
    BYTES = 3
    LIST = 4
    """Lists with a part for the items, or maps with parts for keys and values."""
    STRUCT = 5


class Read(IntEnum):
    """Steps that read; ``a`` and ``b`` are their operands."""

    NULL = 0
    BOOL = 1
    INT = 2
    """``a``: an `As`; ``b``: what to multiply by, or if negative, to divide by (rounded down)."""
    LONG = 3
    """As `INT`."""
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    """``a``: 1 if they have to be UTF-8."""
    FIXED = 7
    """``b`` bytes."""
    DECIMAL = 8
    """``a``: its digits at most."""
    DECIMAL_FIXED = 9
    """``a``: its digits at most; ``b`` bytes."""
    UUID = 10
    """16 bytes (``b``), as text."""
    ENUM = 11
    """Links: for each symbol of the writer its position for the reader; -1 if it has none."""
    RECORD = 12
    ARRAY = 13
    """``a``: the least number of bytes of an item."""
    MAP = 14
    """As `ARRAY`; links: the key, the value."""
    UNION = 15
    """Links: the branches."""
    MEMBER = 16
    """``a``: the part of the struct that is filled; the others are null."""
    DEFAULT = 17
    """Reads ``b`` bytes of the constants from ``a`` on."""
    FAIL = 18
    """A value that the reader's schema can't hold."""


class As(IntEnum):
    """What becomes of an integer."""

    INTEGER = 0
    FLOAT = 1
    DOUBLE = 2
    TIME_MICROS = 3
    """A time of the day."""
    TIME_NANOS = 4


class Write(IntEnum):
    """Steps that write."""

    NOTHING = 0
    BOOL = 1
    INTEGER = 2
    """``a``: the bytes of a value in the column; ``b`` as of `Read.INT`."""
    RAW = 3
    """``a``: the bytes of a value."""
    BYTES = 4
    FIXED = 5
    """``a``: how many bytes each value must have."""
    DECIMAL = 6
    """``a``: the size of the fixed; -1 for bytes; ``b``: the bytes of a value in the column, 16 or 32."""
    RECORD = 7
    ARRAY = 8
    MAP = 9
    OPTIONAL = 10
    """``a``: the branch for null, -1 if null is refused; ``b``: the branch for values, -1 if there is no
    union."""
    MEMBERS = 11
    """A struct of which one member is not null, as a branch of a union; ``a``: the branch for null, or -1."""
    CONSTANT = 12
    """``b`` bytes of the constants from ``a`` on."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A program in the form that kernels take."""

    steps: I32
    """Shape (n, 6)."""
    links: I32
    builders: I32
    """Shape (n, 4); empty for a program that writes."""
    constants: bytes
    places: tuple[str, ...]
    """The path of the value that each step is about, for errors."""


@dataclass
class ProgramBuilder:
    """Collects steps and builders. Numbers are given out from the whole to the parts."""

    steps: list[list[int]] = field(default_factory=list)
    links: list[int] = field(default_factory=list)
    builders: list[list[int]] = field(default_factory=list)
    constants: bytearray = field(default_factory=bytearray)
    places: list[str] = field(default_factory=list)

    def step(self, op: IntEnum, about: int, place: str, a: int = 0, b: int = 0) -> int:
        """Add a step; its number."""
        self.steps.append([int(op), about, 0, 0, a, b])
        self.places.append(place)
        return len(self.steps) - 1

    def link(self, step: int, links: Sequence[int]) -> int:
        """Give ``step`` its links; its number."""
        self.steps[step][2:4] = [len(self.links), len(links)]
        self.links.extend(links)
        return step

    def builder(self, kind: Built, width: int = 0) -> int:
        """Add a builder; its number."""
        self.builders.append([int(kind), width, 0, 0])
        return len(self.builders) - 1

    def link_builder(self, builder: int, parts: Sequence[int]) -> int:
        """Give ``builder`` its parts; its number."""
        self.builders[builder][2:4] = [len(self.links), len(parts)]
        self.links.extend(parts)
        return builder

    def constant(self, data: bytes) -> tuple[int, int]:
        """Keep ``data``; where it is, and its size."""
        self.constants += data
        return len(self.constants) - len(data), len(data)

    def finish(self) -> Program:
        """The program of all steps."""
        return Program(
            np.array(self.steps, np.int32).reshape(-1, 6),
            np.array(self.links, np.int32),
            np.array(self.builders, np.int32).reshape(-1, 4),
            bytes(self.constants),
            tuple(self.places),
        )
