"""`decode_isolated`: reads many payloads at once, and one by one only around those that prevent it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from .format import BadRows, Decoded

SMALL: Final = 64
"""A batch of this many payloads that can't be read at once is read one by one."""

LONGEST_RUN: Final = 4_096
"""How many are read one by one, at most, before the next are tried together again."""


class NotTogetherError(Exception):
    """A batch of payloads can't be read at once."""

    def __init__(self, row: int | None = None) -> None:
        super().__init__(row)
        self.row = row
        """The first payload that prevents it; None if that is not known."""


def decode_isolated(
    payloads: pa.Array, read_batch: Callable[[pa.Array], pa.Array], read_rows: Callable[[pa.Array], Decoded]
) -> Decoded:
    """``payloads`` read with ``read_batch``, which may raise `NotTogetherError`, and where it does with
    ``read_rows``, which takes any payload.

    Both return arrays of one type, as long as their argument. The time is linear in the number of payloads,
    however many of them prevent their batch: batches shrink near such payloads, and runs that are read one by
    one grow while they lie close together.
    """
    isolation = _Isolation(payloads, read_batch, read_rows)
    while isolation.place < len(payloads) or not isolation.parts:
        isolation.step()
    return isolation.result()


class _Isolation:
    """How far the payloads have been read."""

    def __init__(
        self,
        payloads: pa.Array,
        read_batch: Callable[[pa.Array], pa.Array],
        read_rows: Callable[[pa.Array], Decoded],
    ) -> None:
        self._payloads = payloads
        self._read_batch = read_batch
        self._read_rows = read_rows
        self._batch = max(len(payloads), 1)
        """How many payloads are tried together next."""
        self._run = 1
        """How many are read one by one after a batch that can't be read."""
        self.place = 0
        """How many have been read."""
        self.parts: list[tuple[int, Decoded]] = []
        """With the place of each."""

    def step(self) -> None:
        """Read some more, or make the batch smaller."""
        part = self._payloads.slice(self.place, self._batch)
        try:
            self._add(Decoded(self._read_batch(part)))
            self._run = self._run if len(part) <= SMALL else 1
            self._batch *= 4
        except NotTogetherError as error:
            self._retreat(part, error.row)

    def _retreat(self, part: pa.Array, row: int | None) -> None:
        if row is not None and row >= SMALL:
            self._read_up_to(part, row)
        elif row is not None:
            self._run = min(2 * self._run, LONGEST_RUN)
            self._read_one_by_one(row + self._run)
            self._batch = 4 * SMALL
        elif len(part) <= SMALL:
            self._run = min(2 * self._run, LONGEST_RUN)
            self._read_one_by_one(max(len(part), self._run))
        else:
            self._batch = len(part) // 4

    def _read_up_to(self, part: pa.Array, row: int) -> None:
        try:
            self._add(Decoded(self._read_batch(part.slice(0, row))))
        except NotTogetherError:
            self._batch = row
            return
        self._run = 1
        self._read_one_by_one(1)
        self._batch = 4 * row

    def _read_one_by_one(self, count: int) -> None:
        self._add(self._read_rows(self._payloads.slice(self.place, count)))

    def _add(self, decoded: Decoded) -> None:
        self.parts.append((self.place, decoded))
        self.place += len(decoded.array)

    def result(self) -> Decoded:
        """Everything that was read."""
        if len(self.parts) == 1:
            return self.parts[0][1]
        rows = tuple(start + row for start, part in self.parts for row in part.bad.rows)
        reasons = tuple(reason for _, part in self.parts for reason in part.bad.reasons)
        return Decoded(pa.concat_arrays([part.array for _, part in self.parts]), BadRows(rows, reasons))
