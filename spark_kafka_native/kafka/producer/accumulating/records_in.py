"""What a caller hands over - columns, a list of records, the parts of one record - as checked columns. Pure.

What a topic allows (its partitions, its limits) is checked in `topics.py`.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...model import NO_TIMESTAMP_MS, Record
from ...records.columns import (
    HEADERS_TYPE,
    HeaderError,
    HeaderLists,
    RecordColumns,
    build_binary,
    build_headers,
    to_binary,
)
from ..delivery import DeliveryBlock, Rows
from ..errors import RecordError
from .batch import Origin, take_columns
from .partitioner import Partitions

E = TypeVar("E", bound=RecordError)
_TOPIC_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_MAX_TOPIC_CHARACTERS = 249
_NAMES = frozenset({"value", "key", "headers", "timestamp_ms"})
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class ArrowStream(Protocol):
    """Columns of pandas (2.2 on), polars, DuckDB and others, by Arrow's PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArray(Protocol):
    """One batch of columns, by the same."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


Columns: TypeAlias = RecordColumns | pa.RecordBatch | pa.Table | ArrowStream | ArrowArray
"""What `Producer.send_columns` takes."""

RecordHeaders = Sequence[tuple[str, bytes | None]]
Content = bytes | str | None
Sendable = Record | Mapping[str, Any] | Content
"""What `Producer.send_many` takes: a `Record`, a mapping with the names that `send` has, or a value alone."""


@dataclass(frozen=True, kw_only=True)
class TopicColumns:
    """The rows of one topic."""

    topic: str
    columns: RecordColumns
    partition: Partitions | None = None
    """int32[n], -1 where none was given; None: none was given at all."""
    rows: Rows | None = None
    """Their numbers in the columns that were handed over; None: all rows, in order."""

    def located(self, error: E) -> E:
        """``error`` with the row's number in the columns that were handed over."""
        if error.row is None or self.rows is None:
            return error
        return error.moved(int(self.rows[error.row]) - error.row)

    def take(self, rows: Rows) -> TopicColumns:
        """Some of them, in order."""
        return TopicColumns(
            topic=self.topic,
            columns=take_columns(self.columns, rows),
            partition=None if self.partition is None else self.partition[rows],
            rows=rows if self.rows is None else self.rows[rows],
        )

    def origin(self, block: DeliveryBlock, start: int, stop: int) -> Origin:
        """Where rows ``[start, stop)`` come from, ``block`` being that of all that was handed over."""
        return Origin(block, start) if self.rows is None else Origin(block, 0, self.rows[start:stop])


def columns_by_topic(columns: Columns, topic: str | None, partition: Any = None) -> list[TopicColumns]:
    """One `TopicColumns` per topic, in the order in which the topics first occur.

    ``topic`` and ``partition`` (a number, or n of them) take precedence over columns of these names. Raises
    `RecordError` with the row for what can't be sent, TypeError for a column of another type.
    """
    if isinstance(columns, RecordColumns):
        if topic is None:
            raise RecordError("RecordColumns carry no topic: give one")
        topics: Any = None
        records = _as_given(columns)
    else:
        batch = as_arrow(columns)
        records = _columns_of(batch)
        topics = None if topic is not None else column_of(batch, "topic")
        if topic is None and topics is None:
            raise RecordError("no topic: give one, or a column 'topic'")
        if partition is None:
            partition = column_of(batch, "partition")
    records = replace(records, headers=header_column(records.headers))
    chosen = _read_partition(partition, records.length)
    if topics is None:
        assert topic is not None
        return [TopicColumns(topic=topic, columns=records, partition=chosen)] if records.length else []
    return _by_topic(records, topics, chosen)


def as_arrow(columns: Any) -> pa.RecordBatch | pa.Table:
    """``columns`` as Arrow has them. Raises TypeError."""
    if isinstance(columns, pa.RecordBatch | pa.Table):
        return columns
    try:
        if hasattr(columns, "__arrow_c_stream__"):
            return pa.table(columns)
        if hasattr(columns, "__arrow_c_array__"):
            return pa.record_batch(columns)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise TypeError(f"the {type(columns).__name__} can't be read as Arrow columns: {error}") from error
    raise TypeError(
        "columns are RecordColumns, a RecordBatch, a Table, or a data frame with __arrow_c_stream__ "
        f"(pandas 2.2, polars), not {type(columns).__name__}"
    )


def _as_given(columns: RecordColumns) -> RecordColumns:
    for name in ("timestamp_ms", "key", "value", "headers"):
        column = getattr(columns, name)
        if column is not None and len(column) != columns.length:
            raise RecordError(
                f"column '{name}' has {len(column)} rows, and there are {columns.length} records"
            )
    key = None if columns.key is None else _as_binary(columns.key, "key")
    value = None if columns.value is None else _as_binary(columns.value, "value")
    times = columns.timestamp_ms
    return replace(columns, key=key, value=value, timestamp_ms=None if times is None else _given_times(times))


def header_column(headers: pa.Array | None) -> pa.Array | None:
    """``headers`` as `HEADERS_TYPE`: Arrow's own casts match fields by name, and these may have any name.
    Raises `RecordError` with the row of a header that no record can carry, TypeError for another type."""
    if headers is None or not len(headers) or _is_empty(headers):
        return None
    try:
        lists = HeaderLists.from_arrow(headers)
    except HeaderError as error:
        raise RecordError(f"column 'headers' has a header {error.reason}", None, error.row) from None
    except ValueError as error:
        raise TypeError(f"column 'headers': {error}") from None
    if headers.type == HEADERS_TYPE:
        return headers
    try:
        key, value = lists.key.cast(pa.binary()).cast(pa.string()), lists.value.cast(pa.binary())
        offsets = pa.array(lists.offsets, pa.int32())
    except pa.ArrowInvalid:
        raise _too_large("headers") from None
    structs = pa.StructArray.from_arrays([key, value], fields=list(HEADERS_TYPE.value_type))
    return pa.ListArray.from_arrays(offsets, structs, type=HEADERS_TYPE)


def _is_empty(headers: pa.Array) -> bool:
    """True if there is no header: data frames make a column of type null of that, or of such lists."""
    kind = headers.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return pa.types.is_null(kind) or bool(
        is_list and pa.types.is_null(kind.value_type) and not len(headers.flatten())
    )


def _too_large(name: str) -> RecordError:
    return RecordError(f"column '{name}' has more than 2 GiB: send fewer rows at once")


def _columns_of(batch: pa.RecordBatch | pa.Table) -> RecordColumns:
    value = column_of(batch, "value")
    if value is None:
        raise TypeError(f"a column 'value' is needed; there are {', '.join(batch.schema.names)}")
    key, headers, timestamp = (column_of(batch, name) for name in ("key", "headers", "timestamp"))
    return RecordColumns(
        length=batch.num_rows,
        timestamp_ms=None if timestamp is None else _read_timestamps(timestamp),
        key=None if key is None else _as_binary(key, "key"),
        value=_as_binary(value, "value"),
        headers=headers,
    )


def column_of(batch: pa.RecordBatch | pa.Table, name: str) -> Any:
    """The column ``name`` in one piece; None if there is none. Raises `RecordError` for two of them."""
    places = batch.schema.get_all_field_indices(name)
    if not places:
        return None
    if len(places) > 1:
        raise RecordError(f"there are {len(places)} columns '{name}': which one is meant?")
    return in_one_piece(batch.column(places[0]), name)


def in_one_piece(column: Any, name: str) -> Any:
    """The array that ``column``, called ``name``, is, or its chunks joined. Raises `RecordError` if it has
    more bytes than an array of that kind may have."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    try:
        return column.combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowCapacityError):
        # Text and bytes of more than 2 GiB, a dictionary of views, or dictionaries with more words together
        # than their indices can number: Arrow does not join those.
        chunks = [_plain(chunk, name) for chunk in column.chunks]
    large = _LARGE.get(chunks[0].type, chunks[0].type)
    try:
        return pa.concat_arrays([chunk.cast(large) for chunk in chunks])
    except (pa.ArrowInvalid, pa.ArrowCapacityError):
        raise _too_large(name) from None


def _plain(column: pa.Array, name: str) -> pa.Array:
    """As `_decoded`, also for dictionaries within ``column``. Raises `RecordError`."""
    if not pa.types.is_nested(column.type):
        return _decoded(column)
    from ....formats import FormatError  # late: bytes have no use for it
    from ....formats.plain_types import as_plain

    try:
        return as_plain(column)
    except FormatError as error:
        raise RecordError(f"column '{name}': {error}") from error


def _decoded(column: pa.Array) -> pa.Array:
    """``column`` without a dictionary."""
    if not pa.types.is_dictionary(column.type):
        return column
    words = column.dictionary
    # Arrow takes no views by their places, and makes text of at most 2 GiB.
    return words.cast(_LARGE.get(words.type, words.type)).take(column.indices)


_LARGE = {
    pa.string(): pa.large_string(),
    pa.binary(): pa.large_binary(),
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
}


_TEXT = {pa.string(), pa.large_string(), pa.string_view()}


def _as_binary(column: pa.Array, name: str) -> pa.Array:
    # Strings become binary, too: calls of both kinds meet in one batch, and not all binary is a string.
    found = to_binary(in_one_piece(column, name))
    if found is None:
        raise TypeError(f"column '{name}' is {column.type}: binary or string is needed")
    return found


def _read_timestamps(column: pa.Array) -> npt.NDArray[np.int64] | None:
    """Milliseconds; null becomes the time of sending."""
    if pa.types.is_null(column.type):
        return None
    column = _decoded(column)
    kind = column.type
    if not pa.types.is_timestamp(kind) and not pa.types.is_integer(kind):
        raise TypeError(f"column 'timestamp' is {kind}: a timestamp or int64 milliseconds is needed")
    if column.null_count == len(column):
        return None
    nulls = np.asarray(column.is_null()) if column.null_count else None
    if pa.types.is_timestamp(kind):
        times = _as_milliseconds(np.asarray(pc.fill_null(column.cast(pa.int64()), 0)), kind.unit)
    else:
        times = _check_times(np.asarray(pc.fill_null(column, 0)))
    if nulls is not None:
        times = np.where(nulls, time.time_ns() // 1_000_000, times)
    return times


def _as_milliseconds(times: npt.NDArray[np.int64], unit: str) -> npt.NDArray[np.int64]:
    """Timestamps as Kafka has them: milliseconds, rounded down. Kafka has none before 1970, and -1 would
    become "no timestamp"."""
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    bad = np.flatnonzero((times < 0) | (times > _INT64_MAX // 1_000 * min(per_second, 1_000)))
    if len(bad):
        row = int(bad[0])
        raise RecordError(
            f"the timestamp {times[row]} {unit} is not within 1970 and the end of int64 ms", None, row
        )
    return times * 1_000 if per_second == 1 else times // (per_second // 1_000)


def _given_times(times: Any) -> npt.NDArray[np.int64]:
    """As `_check_times`. Raises TypeError unless they are an array of whole numbers."""
    needed = "a NumPy array of whole milliseconds is needed (-1: none)"
    if not isinstance(times, np.ndarray) or np.ma.isMaskedArray(times):
        raise TypeError(f"column 'timestamp_ms' is {type(times).__name__}: {needed}")
    if times.dtype.kind not in "iu":
        raise TypeError(f"column 'timestamp_ms' is {times.dtype}: {needed}")
    return _check_times(times)


def _check_times(times: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Milliseconds, -1 for none, as int64."""
    bad = np.flatnonzero((times < -1) | (times > _INT64_MAX))
    if len(bad):
        row = int(bad[0])
        raise RecordError(f"the timestamp {times[row]} ms is not within 1970 and the end of int64", None, row)
    return times.astype(np.int64, copy=False)


def _read_partition(partition: Any, length: int) -> Partitions | None:
    if partition is None:
        return None
    values, nulls = _whole_numbers(partition)
    if values.size and not np.issubdtype(values.dtype, np.integer):
        raise TypeError(f"a partition is a whole number, not {values.dtype}")
    if not values.ndim:
        values = np.full(length, values)
    if values.shape != (length,):
        raise ValueError(f"{len(values)} partitions for {length} records")
    if nulls is not None and nulls.all():
        return None
    outside = np.flatnonzero((values < 0) | (values > _INT32_MAX))
    if len(outside):
        row = int(outside[0])
        raise RecordError(f"partition {values[row]} is not a partition: they count from 0", None, row)
    chosen: Partitions = values.astype(np.int32)
    if nulls is not None:
        chosen[nulls] = -1
    return chosen


def _whole_numbers(partition: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """The numbers as they are, and which of them are null."""
    if isinstance(partition, np.ma.MaskedArray):
        return partition.filled(0), np.ma.getmaskarray(partition)
    if not isinstance(partition, pa.Array | pa.ChunkedArray):
        return np.asarray(partition), None
    partition = _decoded(in_one_piece(partition, "partition"))
    kind = partition.type
    if pa.types.is_null(kind):
        return np.zeros(len(partition), np.int32), np.ones(len(partition), np.bool_)
    if not pa.types.is_integer(kind):
        raise TypeError(f"column 'partition' is {kind}: whole numbers are needed")
    return np.asarray(pc.fill_null(partition, 0)), np.asarray(partition.is_null())


def first_wrong_partition(part: TopicColumns, count: int, *, explicit: bool) -> int | None:
    """The first row of ``part`` with a partition that is none of ``count``, or without one although
    partitions are ``explicit``; None if there is none."""
    if part.partition is None:
        return 0 if explicit and part.columns.length else None
    wrong = part.partition >= count
    if explicit:
        wrong |= part.partition < 0
    rows = np.flatnonzero(wrong)
    return int(rows[0]) if len(rows) else None


def _by_topic(records: RecordColumns, topics: Any, partition: Partitions | None) -> list[TopicColumns]:
    topics = _decoded(topics)
    if topics.null_count:
        row = int(np.flatnonzero(np.asarray(topics.is_null()))[0])
        raise RecordError("column 'topic' is null: each record needs a topic", None, row)
    if not records.length:
        return []
    if topics.type not in _TEXT:
        raise TypeError(f"column 'topic' is {topics.type}: string is needed")
    # A caller's dictionary may hold a name twice; each row must get the place of its topic.
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


def check_topic(topic: str) -> None:
    """Raise `RecordError` for a name that Kafka does not allow: the broker's own answer would come later."""
    right = 0 < len(topic) <= _MAX_TOPIC_CHARACTERS and _TOPIC_CHARACTERS.issuperset(topic)
    if not right or topic in (".", ".."):
        raise RecordError(
            f"{topic[:300]!r} is no topic name: it takes 1 to {_MAX_TOPIC_CHARACTERS} of "
            "a-z, A-Z, 0-9, '.', '_' and '-'"
        )


def as_bytes(content: Any, what: str) -> bytes:
    """``content`` as bytes, strings as UTF-8. Raises TypeError that names ``what``."""
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"a record's {what} is bytes, str or None, not {type(content).__name__}: encode it first")


def checked_headers(headers: Any) -> list[tuple[str, bytes | None]]:
    """Pairs, or a mapping, as pairs of str and bytes. Raises TypeError."""
    checked: list[tuple[str, bytes | None]] = []
    for name, content in headers.items() if isinstance(headers, dict) else headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's key is str, not {type(name).__name__}")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise RecordError(f"the header key {name!r} has no UTF-8: {error}") from None
        checked.append((name, None if content is None else as_bytes(content, f"header {name!r}")))
    return checked


def check_partition(partition: Any) -> int:
    """``partition`` as an int. Raises TypeError."""
    try:
        return operator.index(partition)
    except TypeError:
        kind = type(partition).__name__
        raise TypeError(f"a record's partition is a whole number, not {kind}") from None


def check_timestamp(timestamp_ms: Any) -> int:
    """``timestamp_ms`` as an int. Raises TypeError, or `RecordError` for a timestamp that no record can
    carry."""
    try:
        number = operator.index(timestamp_ms)
    except TypeError:
        kind = type(timestamp_ms).__name__
        raise TypeError(f"a record's timestamp is a whole number of milliseconds, not {kind}") from None
    if not -1 <= number <= _INT64_MAX:
        raise RecordError(f"the timestamp {number} ms is not within 1970 and the end of int64")
    return number


def one_row(
    key: bytes | None, value: bytes | None, headers: RecordHeaders, timestamp_ms: int | None
) -> RecordColumns:
    """A single record as columns."""
    return RecordColumns(
        length=1,
        timestamp_ms=None if timestamp_ms is None else np.array([timestamp_ms], np.int64),
        key=build_binary([key]),
        value=build_binary([value]),
        headers=build_headers([headers]) if headers else None,
    )


def columns_of(records: Iterable[Sendable], now_ms: int) -> RecordColumns:
    """``records`` in their order; one without a timestamp gets ``now_ms`` where others have one.

    A Record's topic, partition and offset say where it came from, not where it goes. Raises `RecordError`
    with the row of an item that is no record.
    """
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[Any] = []
    timestamps: list[int] = []
    for row, record in enumerate(records):  # about 0.4 us each; `send` takes four times as long
        try:
            key, value, own_headers, timestamp_ms = _fields(record)
            keys.append(_content(key, "key"))
            values.append(_content(value, "value"))
            headers.append(checked_headers(own_headers) if own_headers else None)
            timestamps.append(check_timestamp(timestamp_ms))
        except TypeError as error:
            raise RecordError(str(error), None, row) from None
        except RecordError as error:
            raise error.at(row) from None
    times = np.array(timestamps, np.int64)
    missing = times == NO_TIMESTAMP_MS
    return RecordColumns(
        length=len(values),
        timestamp_ms=None if missing.all() else np.where(missing, now_ms, times),
        key=None if keys.count(None) == len(keys) else build_binary(keys),
        value=None if values.count(None) == len(values) else build_binary(values),
        headers=build_headers(headers) if any(headers) else None,
    )


def _fields(record: Any) -> tuple[Any, Any, Any, int]:
    if record is None or isinstance(record, bytes | str):
        return None, record, None, NO_TIMESTAMP_MS
    if isinstance(record, Record):
        return record.key, record.value, record.headers, record.timestamp_ms
    if isinstance(record, Mapping):
        if not _NAMES.issuperset(record):
            unknown = ", ".join(repr(name) for name in record if name not in _NAMES)
            raise TypeError(f"a record has value, key, headers and timestamp_ms, not {unknown}")
        timestamp_ms = record.get("timestamp_ms")
        stamped = NO_TIMESTAMP_MS if timestamp_ms is None else timestamp_ms
        return record.get("key"), record.get("value"), record.get("headers"), stamped
    if isinstance(record, tuple):
        # The other clients have the value first, and this one had the key: neither is to be guessed.
        raise TypeError(
            'a tuple does not say which part is the key: pass {"key": ..., "value": ...}, a Record, '
            "or a value alone"
        )
    return None, record, None, NO_TIMESTAMP_MS


def _content(content: Any, what: str) -> bytes | None:
    return content if content is None or content.__class__ is bytes else as_bytes(content, what)
