"""`RecordColumns`: the one in-memory shape of records that the read path and the write path share.

It knows no topic and no partition: a `RecordColumns` is records of *some* partition, in order. It owns its
memory (nothing in it points into a network buffer that will be reused).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model import NO_TIMESTAMP_MS, Record, TimestampType

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
"""Kafka's record headers as an Arrow type: ordered, duplicates allowed, a value may be null, a key may
not."""

HEADERS_AS_BYTES_TYPE = pa.list_(pa.struct([pa.field("key", pa.binary()), pa.field("value", pa.binary())]))
"""The same with keys as they are on the wire (`HeaderKeys.BYTES`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """``n`` records as columns.

    A column that was not asked for (read) or not given (write) is None, with the defaults named below.
    """

    length: int
    """n; every column that is present has this length."""
    offset: npt.NDArray[np.int64] | None = None
    """Absolute offsets, strictly increasing. Write: ignored (the broker assigns them)."""
    timestamp_ms: npt.NDArray[np.int64] | None = None
    """Milliseconds since the epoch; -1 is "no timestamp". Write: None means now, at encoding."""
    timestamp_type: npt.NDArray[np.int8] | None = None
    """`TimestampType` of each record. Write: ignored (the topic decides)."""
    key: pa.Array | None = None
    """binary (write: also string and their large_ kinds), nullable. Write: None means all null."""
    value: pa.Array | None = None
    """As ``key``."""
    headers: pa.Array | None = None
    """`HEADERS_TYPE` (or `HEADERS_AS_BYTES_TYPE`, where it was asked for); null where a record has none (as
    Spark's connector). Write: null and empty both mean none."""

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Record]:
        """The records one by one, see `records`; they know no topic, so theirs is empty."""
        return self.records()

    def records(self, topic: str = "", partition: int = -1) -> Iterator[Record]:
        """The records one by one, with the topic-partition that only the caller knows.

        Whole columns become lists first, about 0.3 us per record: slice what is too large for that.
        """
        n = self.length
        rows = zip(
            repeat(topic, n),
            repeat(partition),
            repeat(-1) if self.offset is None else self.offset.tolist(),
            repeat(None) if self.key is None else _list_of(self.key),
            repeat(None) if self.value is None else _list_of(self.value),
            repeat(()) if self.headers is None else _header_tuples(self.headers),
            repeat(NO_TIMESTAMP_MS) if self.timestamp_ms is None else self.timestamp_ms.tolist(),
            repeat(TimestampType.CREATE_TIME)
            if self.timestamp_type is None
            else self.timestamp_type.tolist(),
        )
        return map(tuple.__new__, repeat(Record), rows)  # what Record._make is, without its Python

    def to_arrow(self, topic: str | None = None, partition: int | None = None) -> pa.RecordBatch:
        """The columns that are there as one RecordBatch, without a copy: ``key``, ``value``, ``headers``,
        ``offset`` (int64), ``timestamp`` (timestamp of UTC in ms; null for none), ``timestamp_type`` (int8).

        ``topic`` and ``partition`` (int32) come as further columns where they are given.
        `Producer.send_columns` takes the batch as it is.
        """
        columns: dict[str, Any] = {
            "key": self.key,
            "value": self.value,
            "headers": self.headers,
            "topic": None if topic is None else pa.repeat(topic, self.length),
            "partition": None
            if partition is None
            else pa.repeat(pa.scalar(partition, pa.int32()), self.length),
            "offset": self.offset,
            "timestamp": None if self.timestamp_ms is None else _timestamps(self.timestamp_ms),
            "timestamp_type": self.timestamp_type,
        }
        there = {name: column for name, column in columns.items() if column is not None}
        return pa.RecordBatch.from_arrays([pa.array(column) for column in there.values()], names=list(there))

    @classmethod
    def concatenate(cls, pieces: Sequence[RecordColumns]) -> RecordColumns:
        """The rows of ``pieces``, one or more with the same columns, one after the other: a copy."""
        if len(pieces) == 1:
            return pieces[0]

        def join(name: str) -> Any:
            parts = [getattr(piece, name) for piece in pieces]
            if parts[0] is None:
                return None
            return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pa.concat_arrays(parts)

        return cls(
            length=sum(piece.length for piece in pieces),
            offset=join("offset"),
            timestamp_ms=join("timestamp_ms"),
            timestamp_type=join("timestamp_type"),
            key=join("key"),
            value=join("value"),
            headers=join("headers"),
        )

    def slice(self, start: int, stop: int) -> RecordColumns:
        """Rows ``[start, stop)`` as views; itself if that is all of them."""
        if start == 0 and stop == self.length:
            return self

        def cut(column: Any) -> Any:
            return None if column is None else column[start:stop]

        return RecordColumns(
            length=stop - start,
            offset=cut(self.offset),
            timestamp_ms=cut(self.timestamp_ms),
            timestamp_type=cut(self.timestamp_type),
            key=cut(self.key),
            value=cut(self.value),
            headers=cut(self.headers),
        )


def _list_of(column: pa.Array) -> list[Any]:
    return list(column.to_numpy(zero_copy_only=False))


def _header_tuples(headers: pa.Array) -> Iterable[tuple[Any, ...]]:
    """The headers of each record as a tuple of pairs."""
    if headers.null_count == len(headers):
        return repeat(())
    import pyarrow.compute as pc  # takes half as long as pyarrow itself: not before it is needed

    structs = headers.flatten()
    pairs = list(zip(_list_of(structs.field(0)), _list_of(structs.field(1)), strict=True))
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(headers), 0)).to_pylist()
    return (tuple(pairs[start:end]) if start < end else () for start, end in pairwise([0, *ends]))


def _timestamps(timestamp_ms: npt.NDArray[np.int64]) -> pa.Array:
    missing = timestamp_ms == NO_TIMESTAMP_MS
    return pa.array(timestamp_ms, pa.timestamp("ms", "UTC"), mask=missing if missing.any() else None)
