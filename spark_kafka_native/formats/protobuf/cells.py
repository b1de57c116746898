"""`Cells`: which rows the elements of a column belong to, and the faults in them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass
class Findings:
    """Faults in a batch. Rows are its indices."""

    problems: dict[int, str] = field(default_factory=dict)
    """The first problem of each row that has any."""
    conflicted: set[int] = field(default_factory=set)
    """Rows with two members of one oneof: their order, which decides, is not in the columns."""


class Cells:
    """The elements of one column."""

    def __init__(self, count: int, findings: Findings) -> None:
        self._findings = findings
        self._path = ""
        self._parent: Cells | None = None
        self._lengths: npt.NDArray[np.int64] | None = None
        self._rows: npt.NDArray[np.int64] | None = None
        self._count = count

    def field(self, name: str) -> Cells:
        """The same elements' field ``name``."""
        return self._below(f"{self._path}.{name}" if self._path else name, None)

    def elements(self, lengths: npt.NDArray[np.int64]) -> Cells:
        """The elements of lists, of which each has one of ``lengths``."""
        return self._below(f"{self._path}[]", lengths)

    def kept(self, keep: npt.NDArray[np.bool_]) -> Cells:
        """The elements where ``keep`` is true."""
        return self._below(self._path, keep.astype(np.int64))

    def _below(self, path: str, lengths: npt.NDArray[np.int64] | None) -> Cells:
        cells = Cells(self._count, self._findings)
        cells._path, cells._parent, cells._lengths = path, self, lengths
        return cells

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The row of each element; worked out when something is wrong."""
        if self._rows is None:
            if self._parent is None:
                self._rows = np.arange(self._count)
            elif self._lengths is None:
                self._rows = self._parent.rows
            else:
                self._rows = np.repeat(self._parent.rows, self._lengths)
        return self._rows

    def refuse(self, where: npt.NDArray[np.bool_], reason: str) -> None:
        """Note the elements that are wrong; ``reason`` follows the name of the field."""
        if where.any():
            for row in self.rows[where].tolist():
                self._findings.problems.setdefault(row, f"`{self._path}` {reason}")

    def conflict(self, where: npt.NDArray[np.bool_]) -> None:
        """Note the messages that have two members of one oneof."""
        if where.any():
            self._findings.conflicted.update(self.rows[where].tolist())
