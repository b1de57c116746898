"""`SingleRecords`: records that came one by one and wait to become columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...records.arrow_arrays import build_binary, build_headers
from ...records.columns import RecordColumns
from ..delivery import DeliveryBlock
from .partitioner import Partitions

RecordHeaders = Sequence[tuple[str, bytes | None]]
SingleRecord = tuple[bytes | None, bytes | None, int | None, float, RecordHeaders | None]
"""Key, value, partition, timestamp in ms (a given one is an int, the clock's has a fraction), headers."""
FIELDS = 5
_EXACT = 2.0**53
"""Whole numbers from here on are not all floats."""


class SingleRecords:
    """The records of one topic, in the order of the calls. The topic's lock guards them."""

    __slots__ = ("block", "count", "fields", "opened_at", "size")

    def __init__(self, block: DeliveryBlock, opened_at: float) -> None:
        self.block = block
        self.opened_at = opened_at
        self.size = 0
        self.count = 0
        """How many records there are."""
        self.fields: list[Any] = []
        """A `SingleRecord` is added with one ``extend``: an interrupt leaves all of it in, or nothing.

        No tuple per record, as the garbage collector would go through all of them."""

    def columns(self) -> tuple[RecordColumns, Partitions | None]:
        """The records as columns, and their partitions: int32[n], -1 where none was given; None where none
        was at all."""
        keys, values, partitions, timestamps, headers = (self.fields[i::FIELDS] for i in range(FIELDS))
        n = len(values)
        columns = RecordColumns(
            length=n,
            timestamp_ms=_milliseconds(timestamps),
            key=None if _all_none(keys) else build_binary(keys),
            value=None if _all_none(values) else build_binary(values),
            headers=build_headers(headers) if any(headers) else None,
        )
        return columns, _partitions(partitions)


def _all_none(values: list[Any]) -> bool:
    # To compare bytes with None takes 15 ns: only where it can be so.
    return values[0] is None and values.count(None) == len(values)


def _milliseconds(given: list[float]) -> npt.NDArray[np.int64]:
    times = np.fromiter(given, np.float64, len(given))
    if times.max() >= _EXACT:
        return np.fromiter(map(int, given), np.int64, len(given))
    return times.astype(np.int64)


def _partitions(given: list[int | None]) -> Partitions | None:
    """None where all are."""
    missing = given.count(None)
    if missing == len(given):
        return None
    if not missing:
        return np.fromiter(given, np.int32, len(given))
    return np.fromiter((-1 if one is None else one for one in given), np.int32, len(given))
