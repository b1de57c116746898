"""Selections and concatenations of `RecordColumns`. They own what they return."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...records.arrow_arrays import build_index
from ...records.columns import RecordColumns
from ..delivery import Rows


def take_columns(columns: RecordColumns, rows: Rows) -> RecordColumns:
    """``rows`` in their order, copied: the result keeps nothing of ``columns`` alive."""
    index = build_index(rows)
    return RecordColumns(
        length=len(rows),
        timestamp_ms=None if columns.timestamp_ms is None else columns.timestamp_ms[rows],
        key=None if columns.key is None else columns.key.take(index),
        value=None if columns.value is None else columns.value.take(index),
        headers=None if columns.headers is None else columns.headers.take(index),
    )


def concat_columns(parts: Sequence[RecordColumns], now_ms: int) -> RecordColumns:
    """All ``parts`` one after the other.

    A column that only some parts have is filled in the others: null, or ``now_ms`` for the timestamp.
    """
    if len(parts) == 1:
        return parts[0]
    timestamps = None
    if any(part.timestamp_ms is not None for part in parts):
        timestamps = np.concatenate(
            [np.full(p.length, now_ms, np.int64) if p.timestamp_ms is None else p.timestamp_ms for p in parts]
        )
    return RecordColumns(
        length=sum(part.length for part in parts),
        timestamp_ms=timestamps,
        key=_concat([part.key for part in parts], parts),
        value=_concat([part.value for part in parts], parts),
        headers=_concat([part.headers for part in parts], parts),
    )


def _concat(arrays: list[pa.Array | None], parts: Sequence[RecordColumns]) -> pa.Array | None:
    types = [array.type for array in arrays if array is not None]
    if not types:
        return None
    given = pa.large_binary() if pa.large_binary() in types else types[0]
    filled = []
    for array, part in zip(arrays, parts, strict=True):
        column = pa.nulls(part.length, given) if array is None else array
        filled.append(column if column.type == given else column.cast(given))
    return pa.concat_arrays(filled)
