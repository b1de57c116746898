"""`read_columns`: what a caller hands over as columns -> columns per topic, checked. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..records.columns import HEADERS_TYPE, RecordColumns
from ..records.header_lists import HeaderError, HeaderLists
from .delivery import DeliveryBlock
from .errors import RecordError
from .gather import Rows, take_columns

Partitions = npt.NDArray[np.int32]
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class TopicColumns:
    """The rows of one topic."""

    topic: str
    columns: RecordColumns
    partition: Partitions | None = None
    """int32[n], -1 where none was given; None: none was given at all."""
    rows: Rows | None = None
    """Their numbers in what was handed over; None: all of it, in order."""

    def located(self, error: RecordError) -> RecordError:
        """``error`` with the row's number in what was handed over."""
        if error.row is None or self.rows is None:
            return error
        return error.moved(int(self.rows[error.row]) - error.row)

    def block(self, block: DeliveryBlock) -> DeliveryBlock:
        """Where to report the rows: ``block``, by their numbers in it."""
        return block if self.rows is None else RowsOfBlock(block, self.rows)


class RowsOfBlock(DeliveryBlock):
    """Some rows of a block: what is reported here is reported there."""

    __slots__ = ("_block", "_rows")

    def __init__(self, block: DeliveryBlock, rows: Rows) -> None:
        self._block = block
        self._rows = rows

    def report(self, rows: Rows, first: int, outcome: Any) -> None:
        """See `DeliveryBlock`."""
        self._block.report(self._rows[rows], first, outcome)


def read_columns(
    columns: RecordColumns | pa.RecordBatch | pa.Table, topic: str | None, partition: Any = None
) -> list[TopicColumns]:
    """One `TopicColumns` per topic, in the order in which the topics first occur.

    ``topic`` and ``partition`` (a number, or n of them) go before the columns of these names. Raises
    `RecordError` with the row for what can't be sent, TypeError for a column of another type.
    """
    if isinstance(columns, RecordColumns):
        if topic is None:
            raise RecordError("RecordColumns carry no topic: give one")
        topics: Any = None
        records = _as_given(columns)
    else:
        records = _read_arrow(columns)
        topics = None if topic is not None else _column(columns, "topic")
        if topic is None and topics is None:
            raise RecordError("no topic: give one, or a column 'topic'")
        if partition is None:
            partition = _column(columns, "partition")
    records = replace(records, headers=_read_headers(records.headers))
    chosen = _read_partition(partition, records.length)
    if topics is None:
        assert topic is not None
        return [TopicColumns(topic=topic, columns=records, partition=chosen)] if records.length else []
    return _by_topic(records, topics, chosen)


def _as_given(columns: RecordColumns) -> RecordColumns:
    key = None if columns.key is None else _as_binary(columns.key, "key")
    value = None if columns.value is None else _as_binary(columns.value, "value")
    return replace(columns, key=key, value=value)


def _read_headers(headers: pa.Array | None) -> pa.Array | None:
    """``headers`` as `HEADERS_TYPE`: Arrow's own casts go by the names of the fields, which are anything."""
    if headers is None or not len(headers):
        return None
    try:
        lists = HeaderLists.read(headers)
    except HeaderError as error:
        raise RecordError(f"column 'headers' has a header {error.reason}", None, error.row) from None
    if headers.type == HEADERS_TYPE:
        return headers
    key = lists.key.cast(pa.binary()).cast(pa.string())
    structs = pa.StructArray.from_arrays(
        [key, lists.value.cast(pa.binary())], fields=list(HEADERS_TYPE.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(lists.offsets, pa.int32()), structs, type=HEADERS_TYPE)


def _read_arrow(batch: pa.RecordBatch | pa.Table) -> RecordColumns:
    value = _column(batch, "value")
    if value is None:
        raise TypeError(f"a column 'value' is needed; there are {', '.join(batch.schema.names)}")
    key, headers, timestamp = (_column(batch, name) for name in ("key", "headers", "timestamp"))
    return RecordColumns(
        length=batch.num_rows,
        timestamp_ms=None if timestamp is None else _read_timestamps(timestamp),
        key=None if key is None else _as_binary(key, "key"),
        value=_as_binary(value, "value"),
        headers=headers,
    )


def _column(batch: pa.RecordBatch | pa.Table, name: str) -> Any:
    place = batch.schema.get_field_index(name)
    if place < 0:
        return None
    column = batch.column(place)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _as_binary(column: pa.Array, name: str) -> pa.Array | None:
    kind = column.type
    if isinstance(column, pa.ChunkedArray):  # more than 2 GiB in one column
        return pa.concat_arrays([chunk.cast(pa.large_binary()) for chunk in column.chunks])
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.binary())
    # Strings become binary, which copies nothing: calls of both kinds meet in one batch, and not all
    # binary is a string.
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column
    if pa.types.is_string(kind):
        return column.cast(pa.binary())
    if pa.types.is_large_string(kind):
        return column.cast(pa.large_binary())
    if pa.types.is_dictionary(kind):
        return _as_binary(column.dictionary_decode(), name)
    if pa.types.is_fixed_size_binary(kind) or str(kind) in ("binary_view", "string_view"):
        return column.cast(pa.binary())
    raise TypeError(f"column '{name}' is {kind}: binary or string is needed")


def _read_timestamps(column: pa.Array) -> npt.NDArray[np.int64] | None:
    """Milliseconds; null becomes the time of sending."""
    if pa.types.is_timestamp(column.type):
        # Not rounded: the millisecond in which it lies.
        column = pc.cast(column, pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    elif not pa.types.is_integer(column.type):
        raise TypeError(f"column 'timestamp' is {column.type}: a timestamp or int64 milliseconds is needed")
    if column.null_count == len(column):
        return None
    if column.null_count:
        import time

        column = pc.fill_null(column, time.time_ns() // 1_000_000)
    stamps: npt.NDArray[np.int64] = np.asarray(column.cast(pa.int64()))
    bad = np.flatnonzero(stamps < -1)
    if len(bad):
        row = int(bad[0])
        raise RecordError(f"the timestamp {stamps[row]} ms is before 1970: Kafka takes none", None, row)
    return stamps


def _read_partition(partition: Any, length: int) -> Partitions | None:
    if partition is None:
        return None
    if isinstance(partition, int):
        partition = np.full(length, partition, np.int64)
    if isinstance(partition, pa.Array | pa.ChunkedArray):
        if pa.types.is_null(partition.type) or partition.null_count == length:
            return None
        if not pa.types.is_integer(partition.type):
            raise TypeError(f"column 'partition' is {partition.type}: whole numbers are needed")
        nulls = np.asarray(partition.is_null()) if partition.null_count else None
        values = np.asarray(pc.fill_null(partition, 0)).astype(np.int64)
    else:
        nulls, values = None, np.asarray(partition).astype(np.int64, casting="same_kind")
    if len(values) != length:
        raise ValueError(f"{len(values)} partitions for {length} records")
    outside = np.flatnonzero((values < 0) | (values > _INT32_MAX))
    if len(outside):
        row = int(outside[0])
        raise RecordError(f"partition {values[row]} is not a partition: they count from 0", None, row)
    chosen = values.astype(np.int32)
    if nulls is not None:
        chosen[nulls] = -1
    return chosen


def _by_topic(records: RecordColumns, topics: Any, partition: Partitions | None) -> list[TopicColumns]:
    if pa.types.is_dictionary(topics.type):
        topics = topics.dictionary_decode()
    if topics.null_count:
        row = int(np.flatnonzero(np.asarray(topics.is_null()))[0])
        raise RecordError("column 'topic' is null: each record needs a topic", None, row)
    if not records.length:
        return []
    # Somebody else's dictionary may hold a name twice, and each row's place must be that of its topic.
    encoded = topics.dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), np.asarray(encoded.indices)
    present = list(dict.fromkeys(codes[np.sort(np.unique(codes, return_index=True)[1])].tolist()))
    if len(present) == 1:
        return [TopicColumns(topic=names[present[0]], columns=records, partition=partition)]
    parts = []
    for code in present:
        rows = np.flatnonzero(codes == code).astype(np.int64)
        own = None if partition is None else partition[rows]
        parts.append(
            TopicColumns(topic=names[code], columns=take_columns(records, rows), partition=own, rows=rows)
        )
    return parts
