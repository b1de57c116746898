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
SingleRecord = tuple[bytes | None, bytes | None, int | None, int | None, RecordHeaders | None]
"""Key, value, partition, timestamp in ms, headers."""
FIELDS = 5


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

    def columns(self, now_ms: int) -> tuple[RecordColumns, Partitions | None]:
        """The records as columns, and their partitions: int32[n], -1 where none was given; None where none
        was at all. A record without a timestamp gets ``now_ms`` where others have one."""
        keys, values, partitions, timestamps, headers = (self.fields[i::FIELDS] for i in range(FIELDS))
        n = len(values)
        columns = RecordColumns(
            length=n,
            timestamp_ms=_whole_numbers(timestamps, now_ms, np.int64),
            key=None if _all_none(keys) else build_binary(keys),
            value=None if _all_none(values) else build_binary(values),
            headers=build_headers(headers) if any(headers) else None,
        )
        return columns, _whole_numbers(partitions, -1, np.int32)


def _all_none(values: list[Any]) -> bool:
    # To compare bytes with None takes 15 ns: only where it can be so.
    return values[0] is None and values.count(None) == len(values)


def _whole_numbers(given: list[int | None], otherwise: int, kind: Any) -> npt.NDArray[Any] | None:
    """None where all are."""
    missing = given.count(None)
    if missing == len(given):
        return None
    if not missing:
        return np.fromiter(given, kind, len(given))
    return np.fromiter((otherwise if one is None else one for one in given), kind, len(given))
