"""`RowLayout`: which columns a DataFrame shows, in which order and type, and which sources fill them.

Spark insists on its exact Arrow schema (names, order, types, nullability), so the schema comes from Spark's
own converter. Columns that were not asked for are never decoded.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

from ...kafka.errors import ConfigError
from ...kafka.model import TopicPartition
from ...kafka.records.columns import RecordColumns
from .column_types import COLUMN_TYPES
from .kafka_columns import KafkaColumn
from .origin import Origin

_BY_LOWER: Final = {name.lower(): name for name in COLUMN_TYPES}
MAX_ROWS: Final = 2**20
"""Of one `pa.RecordBatch`: a string column holds 2 GiB, which the topic's name, once in each row, would
exceed with millions of tiny records; Arrow's offsets then wrap without an error."""


class ColumnSource(Protocol):
    """Fills one or more columns of the DataFrame out of records. Plain data: pickled with the reader.

    Each of Kafka's columns is a source of its own. A value format would be another kind: it takes ``value``
    and gives the columns that it decodes it into.
    """

    @property
    def record_fields(self) -> frozenset[str]:
        """The fields of `RecordColumns` that it takes."""

    def build(self, records: RecordColumns, origin: Origin) -> Mapping[str, pa.Array]:
        """Its columns by the names that the DataFrame has for them, each as long as ``records``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """A checked schema and what fills it. Plain data: pickled with the reader."""

    sources: tuple[ColumnSource, ...]
    """Together they give each column of ``arrow`` once."""
    arrow: pa.Schema
    """The schema that Spark wants, the user's spelling of names included."""

    @classmethod
    def from_schema(cls, schema: StructType) -> RowLayout:
        """Check a subset of Kafka's columns, in any order; `ConfigError` says what is allowed."""
        names = tuple(_check_field(field) for field in schema.fields)
        if not names:
            raise ConfigError(f"The schema has no columns; give at least one of {', '.join(COLUMN_TYPES)}")
        if len(set(names)) != len(names):
            raise ConfigError(f"The schema names a column twice: {', '.join(names)}")
        arrow = _to_arrow_schema(schema)
        sources = tuple(KafkaColumn(name=name, field=field) for name, field in zip(names, arrow, strict=True))
        return cls(sources=sources, arrow=arrow)

    @property
    def record_fields(self) -> frozenset[str]:
        """The fields of `RecordColumns` that have to be decoded."""
        return frozenset().union(*(source.record_fields for source in self.sources))

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
        return self._build(records, Origin([topic_partition], [records.length]))

    def join(self, pieces: Sequence[tuple[RecordColumns, TopicPartition]]) -> pa.RecordBatch:
        """As `to_record_batch`, the rows of several partitions one after the other."""
        origin = Origin([tp for _, tp in pieces], [records.length for records, _ in pieces])
        return self._build(RecordColumns.concatenate([records for records, _ in pieces]), origin)

    def _build(self, records: RecordColumns, origin: Origin) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        for source in self.sources:
            columns |= source.build(records, origin)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.arrow.names], schema=self.arrow)


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
    if name == "headers" and not field.dataType.elementType["value"].nullable:
        raise ConfigError(
            f"Column `{field.name}`: the value of a header can be null, "
            "so the schema must not say NOT NULL for it"
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
