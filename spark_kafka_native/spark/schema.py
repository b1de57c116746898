"""`RecordSchema`: which of Kafka's columns a DataFrame shows, in which order and type.

Spark insists on its exact Arrow schema (names, order, types, nullability), so the schema comes from Spark's
own converter. Columns that were not asked for are never decoded. Nothing here costs a Python object per
record.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

from ..kafka.errors import ConfigError
from ..kafka.model import TopicPartition
from ..kafka.records.columns import RecordColumns
from .columns import COLUMN_TYPES
from .conditions import KafkaConditionError

_BY_LOWER: Final = {name.lower(): name for name in COLUMN_TYPES}
_FIELDS: Final = {"timestamp": "timestamp_ms", "timestampType": "timestamp_type"}
"""`RecordColumns` fields that are spelt differently; topic and partition are no fields of it."""
_MAX_TIMESTAMP_MS: Final = (2**63 - 1) // 1000
MAX_ROWS: Final = 2**20
"""Of one `pa.RecordBatch`: a string column holds 2 GiB, which the topic's name, once in each row, would
exceed with millions of tiny records; Arrow's offsets then wrap without an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSchema:
    """A checked schema. Plain data: pickled with the reader."""

    columns: tuple[str, ...]
    """Kafka's names of the columns, in the DataFrame's order."""
    arrow: pa.Schema
    """The schema that Spark wants, the user's spelling of names included."""

    @classmethod
    def read(cls, schema: StructType) -> RecordSchema:
        """Check a subset of Kafka's columns, in any order; `ConfigError` says what is allowed."""
        columns = tuple(_check_field(field) for field in schema.fields)
        if not columns:
            raise ConfigError(f"The schema has no column; give at least one of {', '.join(COLUMN_TYPES)}")
        if len(set(columns)) != len(columns):
            raise ConfigError(f"The schema names a column twice: {', '.join(columns)}")
        return cls(columns=columns, arrow=_to_arrow_schema(schema))

    @property
    def record_fields(self) -> frozenset[str]:
        """The fields of `RecordColumns` that have to be decoded."""
        wanted = {_FIELDS.get(name, name) for name in self.columns if name not in ("topic", "partition")}
        if any(_can_fail(field) for field in self.arrow):
            # Errors name the offset.
            wanted.add("offset")
        return frozenset(wanted)

    def to_record_batches(
        self, records: RecordColumns, topic_partition: TopicPartition
    ) -> Iterator[pa.RecordBatch]:
        """As `to_record_batch`, in batches of at most `MAX_ROWS`; none for no records."""
        for start in range(0, records.length, MAX_ROWS):
            stop = min(start + MAX_ROWS, records.length)
            yield self.to_record_batch(records.slice(start, stop), topic_partition)

    def to_record_batch(self, records: RecordColumns, topic_partition: TopicPartition) -> pa.RecordBatch:
        """At most `MAX_ROWS` ``records`` of one partition as Spark wants them; no copy of keys and values.

        Raises `KafkaConditionError` for a timestamp that Spark can't hold, `ConfigError` for text that is not
        UTF-8 or a null where the schema says not null; both name topic-partition and offset.
        """
        arrays = [
            _build_array(name, field, records, topic_partition)
            for name, field in zip(self.columns, self.arrow, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)


def _can_fail(field: pa.Field) -> bool:
    """Whether a record can have a value that the column can't show."""
    is_text = pa.types.is_string(field.type) and field.name.lower() != "topic"
    return is_text or pa.types.is_timestamp(field.type) or not field.nullable


def _check_field(field: StructField) -> str:
    name = _BY_LOWER.get(field.name.lower())
    if name is None:
        nearest = difflib.get_close_matches(field.name.lower(), _BY_LOWER, n=1)
        hint = f"; did you mean `{_BY_LOWER[nearest[0]]}`?" if nearest else ""
        raise ConfigError(f"Kafka source has no column `{field.name}`{hint} (it has {_describe_columns()})")
    if not any(_same_type(field.dataType, allowed) for allowed in COLUMN_TYPES[name]):
        allowed = " or ".join(kind.simpleString() for kind in COLUMN_TYPES[name])
        raise ConfigError(
            f"Column `{field.name}` can be read as {allowed}, not as {field.dataType.simpleString()}"
        )
    return name


def _describe_columns() -> str:
    return ", ".join(
        f"{name} {'|'.join(kind.simpleString() for kind in kinds)}" for name, kinds in COLUMN_TYPES.items()
    )


def _same_type(given: DataType, allowed: DataType) -> bool:
    """Equal but for the nullability inside, as Spark's ``sameType``."""
    return bool(given.simpleString() == allowed.simpleString())


def _to_arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # PySpark 4.1: UTC is what it does


def _build_array(
    name: str, field: pa.Field, records: RecordColumns, topic_partition: TopicPartition
) -> pa.Array:
    if name == "topic":
        return _repeat(topic_partition.topic, pa.string(), records.length)
    if name == "partition":
        return _repeat(topic_partition.partition, pa.int32(), records.length)
    values: Any = getattr(records, _FIELDS.get(name, name))
    if name == "offset":
        return _wrap(values, field.type)
    if name == "timestamp":
        return _wrap(_to_microseconds(values, records, topic_partition), field.type)
    if name == "timestampType":
        return _wrap(values.astype(np.int32), field.type)
    array = _as_type(name, values, field.type, records, topic_partition)
    if not field.nullable and array.null_count:
        where = _describe_row(records, int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0]))
        raise ConfigError(f"{topic_partition}{where}: `{field.name}` is null, but the schema says it is not")
    return array


_REPEATED: dict[tuple[object, Any], pa.Array] = {}
"""One array for each topic and partition of this process, sliced: a constant column then costs nothing."""
_MAX_REPEATED: Final = 64


def _repeat(value: object, kind: Any, length: int) -> pa.Array:
    array = _REPEATED.get((value, kind))
    if array is None or len(array) < length:
        if len(_REPEATED) >= _MAX_REPEATED:
            _REPEATED.clear()
        array = pa.repeat(pa.scalar(value, kind), max(length, 1024))
        _REPEATED[value, kind] = array
    return array.slice(0, length)


def _wrap(values: npt.NDArray[Any], kind: Any) -> pa.Array:
    """A numpy column as an Arrow array over the same memory."""
    contiguous = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(contiguous), [None, pa.py_buffer(contiguous)])


def _to_microseconds(
    timestamp_ms: npt.NDArray[np.int64], records: RecordColumns, topic_partition: TopicPartition
) -> npt.NDArray[np.int64]:
    if len(timestamp_ms) and (
        timestamp_ms.max() > _MAX_TIMESTAMP_MS or timestamp_ms.min() < -_MAX_TIMESTAMP_MS
    ):
        beyond = (timestamp_ms > _MAX_TIMESTAMP_MS) | (timestamp_ms < -_MAX_TIMESTAMP_MS)
        row = int(np.flatnonzero(beyond)[0])
        offset = "?" if records.offset is None else int(records.offset[row])
        raise KafkaConditionError(
            "KAFKA_MALFORMED_RECORD_TIMESTAMP",
            {"timestampMs": int(timestamp_ms[row]), "offset": offset, "topicPartition": topic_partition},
        )
    return timestamp_ms * 1000


def _as_type(
    name: str, array: pa.Array, kind: Any, records: RecordColumns, topic_partition: TopicPartition
) -> pa.Array:
    if name == "headers":
        return _relabel(array, kind)
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        where = _describe_row(records, _first_not_utf8(array))
        raise ConfigError(
            f"{topic_partition}{where}: the {name} is not UTF-8; read the column as binary"
        ) from error


def _describe_row(records: RecordColumns, row: int) -> str:
    return "" if records.offset is None else f" at offset {int(records.offset[row])}"


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
