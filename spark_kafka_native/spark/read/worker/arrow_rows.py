"""From fetched records to Spark's rows: `RowLayout` builds a `pa.RecordBatch` of the columns of the read,
`BatchCoalescer` one of many small pieces.

No copy of keys and values; nothing here costs a Python object per record. Columns that were not asked for are
never decoded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....kafka.consumer.fetched_records import FetchedRecords
from ....kafka.errors import ConfigError
from ....kafka.model import TopicPartition
from ....kafka.records.columns import RecordColumns, build_binary, wrap_numpy
from ...error_conditions import KafkaConditionError
from ..schema import RowSchema

if TYPE_CHECKING:
    from .bad_record_handler import BadRecordHandler
    from .decoded_columns import DecodedColumns

MAX_ROWS: Final = 2**20
"""Of one `pa.RecordBatch`: a string column holds 2 GiB, which the topic's name, once in each row, would
exceed with millions of tiny records; Arrow's offsets then wrap without an error."""

_MIN_ROWS: Final = 1_000

_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Of a `pa.RecordBatch` without what varies in length: small records can be decoded into thousands of
columns."""


class ColumnSource(Protocol):
    """Fills one or more columns of the DataFrame out of records.

    Each of Kafka's columns is a source of its own. `DecodedColumns` is another kind: it takes keys or values
    and gives the columns that these are decoded into.
    """

    @property
    def record_fields(self) -> frozenset[str]:
        """The fields of `RecordColumns` that it takes."""

    def build(self, records: RecordColumns, runs: PartitionRuns) -> Mapping[str, pa.Array]:
        """Its columns by the names that the DataFrame has for them, each as long as ``records``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """The columns of a read, and the sources that fill them."""

    sources: tuple[ColumnSource, ...]
    """With ``decoded`` they give each column of ``arrow`` once."""
    arrow: pa.Schema
    """The schema that Spark wants, the user's spelling of names included."""
    decoded: DecodedColumns | None = None
    max_rows: int = MAX_ROWS
    """Of one `pa.RecordBatch`."""

    @classmethod
    def of(cls, schema: RowSchema, handler: BadRecordHandler | None = None) -> RowLayout:
        """A source for each column of ``schema``; records that can't be decoded go to ``handler``."""
        pairs = zip(schema.names, schema.arrow, strict=True)
        return cls(
            sources=tuple(KafkaColumn(name=name, field=field) for name, field in pairs if name),
            arrow=schema.arrow,
            decoded=_decoded_columns(schema, handler),
            max_rows=_max_rows(schema.arrow),
        )

    @property
    def record_fields(self) -> frozenset[str]:
        """The fields of `RecordColumns` that have to be decoded."""
        fields = frozenset().union(*(source.record_fields for source in self.sources))
        return fields if self.decoded is None else fields | self.decoded.record_fields

    def to_record_batches(
        self, records: RecordColumns, topic_partition: TopicPartition
    ) -> Iterator[pa.RecordBatch]:
        """As `to_record_batch`, in batches of at most `max_rows`; none for no records."""
        for start in range(0, records.length, self.max_rows):
            stop = min(start + self.max_rows, records.length)
            yield self.to_record_batch(records.slice(start, stop), topic_partition)

    def to_record_batch(self, records: RecordColumns, topic_partition: TopicPartition) -> pa.RecordBatch:
        """At most `max_rows` ``records`` of one partition as Spark wants them; no copy of keys and values.

        Raises `KafkaConditionError` for a timestamp that Spark can't hold, `ConfigError` for text that is not
        UTF-8 or a null where the schema says not null; both name topic-partition and offset.
        """
        return self._build(records, PartitionRuns([topic_partition], [records.length]))

    def join(self, pieces: Sequence[tuple[RecordColumns, TopicPartition]]) -> pa.RecordBatch:
        """As `to_record_batch`, the rows of several partitions one after the other."""
        runs = PartitionRuns([tp for _, tp in pieces], [records.length for records, _ in pieces])
        return self._build(RecordColumns.concatenate([records for records, _ in pieces]), runs)

    def _build(self, records: RecordColumns, runs: PartitionRuns) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        for source in self.sources:
            columns |= source.build(records, runs)
        kept = None
        if self.decoded is not None:
            added, kept = self.decoded.build(records, runs)
            columns |= added
        arrays = [columns[name] for name in self.arrow.names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.arrow)
        return batch if kept is None else batch.filter(kept)


def _max_rows(schema: pa.Schema) -> int:
    row_bytes = sum(_least_bytes(field.type) for field in schema)
    return min(MAX_ROWS, max(_MIN_ROWS, int(_BATCH_BYTES / max(row_bytes, 1))))


def _least_bytes(kind: Any) -> float:
    """The bytes of one value in Arrow, without those that vary in length."""
    if pa.types.is_struct(kind):
        return sum(_least_bytes(kind.field(i).type) for i in range(kind.num_fields))
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return 4  # an offset


def _decoded_columns(schema: RowSchema, handler: BadRecordHandler | None) -> DecodedColumns | None:
    if not schema.decoded:
        return None
    # Most reads have none: they do without the import of formats.
    from .decoded_columns import DecodedColumns

    return DecodedColumns.of(schema, handler)


SMALL_ROWS: Final = 1_000

SMALL_BYTES: Final = 64 * 1024
"""Larger pieces are passed on as they are: joining costs a copy."""

JOINED_ROWS: Final = 10_000

JOINED_BYTES: Final = 1024 * 1024


class BatchCoalescer:
    """Rows that have been fetched and are not yet given to Spark. A partition's rows stay in their order."""

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self._pieces: list[tuple[RecordColumns, TopicPartition]] = []
        self._rows = 0
        self._bytes = 0
        self.next_offsets: dict[TopicPartition, int] = {}
        """How far each partition has come with them."""

    def add(self, fetched: FetchedRecords) -> bool:
        """Take ``fetched`` if it is small; False if it is not: then `take` the earlier pieces first."""
        rows = fetched.columns.length
        if rows > SMALL_ROWS or (size := fetched.nbytes) > SMALL_BYTES:
            return False
        if rows:
            self._pieces.append((fetched.columns, fetched.topic_partition))
        self._rows += rows
        self._bytes += size
        self.next_offsets[fetched.topic_partition] = fetched.next_offset
        return True

    @property
    def full(self) -> bool:
        """True if it is time to `take`."""
        return self._rows >= min(JOINED_ROWS, self._layout.max_rows) or self._bytes >= JOINED_BYTES

    def take(self) -> list[pa.RecordBatch]:
        """All rows in one batch; an empty list if there are none. Raises as `RowLayout.to_record_batch`."""
        pieces, self._pieces = self._pieces, []
        self._rows = self._bytes = 0
        return [self._layout.join(pieces)] if pieces else []


_FIELDS: Final = {"timestamp": "timestamp_ms", "timestampType": "timestamp_type"}
"""`RecordColumns` fields that are spelt differently."""

_WITHOUT_FIELD: Final = ("topic", "partition")

_MAX_TIMESTAMP_MS: Final = (2**63 - 1) // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaColumn:
    """A column source of one column."""

    name: str
    """Kafka's name."""
    field: pa.Field
    """What Spark wants, under the user's name."""

    @property
    def record_fields(self) -> frozenset[str]:
        """The fields of `RecordColumns` that have to be decoded for it."""
        wanted = set() if self.name in _WITHOUT_FIELD else {_FIELDS.get(self.name, self.name)}
        # Errors name the offset.
        return frozenset(wanted | {"offset"} if self._can_fail else wanted)

    @property
    def _can_fail(self) -> bool:
        """True if a record can have a value that the column can't show."""
        is_text = pa.types.is_string(self.field.type) and self.name != "topic"
        return is_text or pa.types.is_timestamp(self.field.type) or not self.field.nullable

    def build(self, records: RecordColumns, runs: PartitionRuns) -> Mapping[str, pa.Array]:
        """The column under its name, as long as ``records``.

        Raises `KafkaConditionError` for a timestamp that Spark can't hold, `ConfigError` for text that is not
        UTF-8 or a null where the schema says not null; both name topic-partition and offset.
        """
        return {self.field.name: self._array(records, runs)}

    def _array(self, records: RecordColumns, runs: PartitionRuns) -> pa.Array:
        match self.name:
            case "topic":
                return runs.topics()
            case "partition":
                return runs.partitions()
            case "offset":
                offsets: Any = records.offset
                return wrap_numpy(offsets, self.field.type)
            case "timestamp":
                return wrap_numpy(_to_microseconds(records, runs), self.field.type)
            case "timestampType":
                types: Any = records.timestamp_type
                return wrap_numpy(types.astype(np.int32), self.field.type)
            case _:
                return self._payload(records, runs)

    def _payload(self, records: RecordColumns, runs: PartitionRuns) -> pa.Array:
        """Key, value or headers."""
        array = self._convert(getattr(records, self.name), records, runs)
        if not self.field.nullable and array.null_count:
            row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            raise ConfigError(
                f"{runs.at(row)}{_describe_row(records, row)}: `{self.field.name}` is null, but "
                "the schema says NOT NULL; declare the column nullable"
            )
        return array

    def _convert(self, array: pa.Array, records: RecordColumns, runs: PartitionRuns) -> pa.Array:
        kind = self.field.type
        if self.name == "headers":
            return _relabel(array, kind)
        if array.type == kind:
            return array
        try:
            return array.cast(kind)
        except pa.ArrowInvalid as error:
            row = _first_not_utf8(array)
            where = f"{runs.at(row)}{_describe_row(records, row)}"
            raise ConfigError(f"{where}: the {self.name} is not UTF-8; read the column as binary") from error


def _describe_row(records: RecordColumns, row: int) -> str:
    return "" if records.offset is None else f" at offset {int(records.offset[row])}"


def _to_microseconds(records: RecordColumns, runs: PartitionRuns) -> npt.NDArray[np.int64]:
    timestamp_ms: Any = records.timestamp_ms
    if len(timestamp_ms) and (
        timestamp_ms.max() > _MAX_TIMESTAMP_MS or timestamp_ms.min() < -_MAX_TIMESTAMP_MS
    ):
        beyond = (timestamp_ms > _MAX_TIMESTAMP_MS) | (timestamp_ms < -_MAX_TIMESTAMP_MS)
        row = int(np.flatnonzero(beyond)[0])
        offset = "?" if records.offset is None else int(records.offset[row])
        raise KafkaConditionError(
            "KAFKA_MALFORMED_RECORD_TIMESTAMP",
            {"timestampMs": int(timestamp_ms[row]), "offset": offset, "topicPartition": runs.at(row)},
        )
    microseconds: npt.NDArray[np.int64] = timestamp_ms * 1000
    return microseconds


def _first_not_utf8(array: pa.Array) -> int:
    """The first row that doesn't cast: found by halving, as an error does not tell."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            array.slice(low, middle - low).cast(pa.string())
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def _relabel(array: pa.Array, kind: Any) -> pa.Array:
    """The same memory under a type that differs in the names and nullability inside only."""
    if array.type.equals(kind, check_metadata=True):
        return array
    children = []
    if pa.types.is_list(kind):
        children = [_relabel(array.values, kind.value_type)]
    elif pa.types.is_struct(kind):
        children = [_relabel(array.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        # `field` has applied the struct's offset: with `from_buffers` it would be applied once more.
        nulls = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    # Only the array's own buffers: children bring theirs.
    own = array.buffers()[: 2 if pa.types.is_list(kind) else 1]
    return pa.Array.from_buffers(kind, len(array), own, array.null_count, array.offset, children)


@dataclass(frozen=True, slots=True)
class PartitionRuns:
    """Rows of one topic-partition, then of the next."""

    topic_partitions: Sequence[TopicPartition]
    lengths: Sequence[int]
    """How many rows of each."""

    def at(self, row: int) -> TopicPartition:
        """Where one row is of."""
        return self.topic_partitions[bisect_right(list(accumulate(self.lengths)), row)]

    def topics(self) -> pa.Array:
        """The topic of each row."""
        runs = zip((tp.topic for tp in self.topic_partitions), self.lengths, strict=True)
        same = groupby(runs, key=lambda run: run[0])
        return _joined(constant_array(topic, pa.string(), sum(n for _, n in runs)) for topic, runs in same)

    def partitions(self) -> pa.Array:
        """The partition of each row, int32."""
        if len(self.lengths) == 1:
            return constant_array(self.topic_partitions[0].partition, pa.int32(), self.lengths[0])
        numbers = np.array([tp.partition for tp in self.topic_partitions], np.int32).repeat(self.lengths)
        return wrap_numpy(numbers, pa.int32())


def _joined(arrays: Iterable[pa.Array]) -> pa.Array:
    parts = list(arrays)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


MAX_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Limit for all arrays of a process: a million rows of a topic's name can take 249 MB."""

_MIN_LENGTH: Final = 1024

_kept: dict[tuple[object, Any], tuple[pa.Array, int]] = {}
"""Each array with its size in bytes, by value and type; the most recently used one is last."""

_kept_bytes = 0
"""The sum of their sizes. Computing it anew took most of the time of a task over many partitions."""


def constant_array(value: str | int, kind: Any, length: int) -> pa.Array:
    """``length`` times ``value``, as an array of type ``kind`` (string or int32)."""
    global _kept_bytes
    array, nbytes = _kept.pop((value, kind), (None, 0))
    _kept_bytes -= nbytes
    if array is None or len(array) < length:
        array = pa.repeat(_array_of(value, kind)[0], max(length, _MIN_LENGTH))
        nbytes = array.nbytes
    if nbytes <= MAX_KEPT_BYTES:
        _kept[value, kind] = array, nbytes
        _kept_bytes += nbytes
        _drop_oldest()
    return array.slice(0, length)


def kept_bytes() -> int:
    """What the arrays that are kept take."""
    return _kept_bytes


def _array_of(value: str | int, kind: Any) -> pa.Array:
    # `pa.scalar` imports pandas: 0.7 s of each new worker's first task.
    if isinstance(value, int):
        return wrap_numpy(np.array([value], np.int32), kind)
    return build_binary([value.encode()]).view(kind)


def _drop_oldest() -> None:
    global _kept_bytes
    while _kept_bytes > MAX_KEPT_BYTES:
        _, nbytes = _kept.pop(next(iter(_kept)))
        _kept_bytes -= nbytes
