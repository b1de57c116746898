"""What may be written: the checks of a DataFrame's columns, in the order and words of Spark's own
connector."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ...kafka.errors import ConfigError
from ..conditions import KafkaConditionError

_NESTED = (ArrayType, MapType, StructType)
_HEADERS_TEXT = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True, kw_only=True)
class RowColumns:
    """Which of a DataFrame's columns a record is made of. Plain data."""

    names: tuple[str, ...]
    """Of the columns that are used, as `Producer.send_columns` knows them."""
    topic: str | None
    """Where all rows go; None: the column ``topic`` says it."""

    @classmethod
    def check(cls, schema: StructType, topic: str | None) -> tuple[RowColumns, tuple[str, ...]]:
        """The columns of ``schema``, and what to warn of.

        Names match exactly, other columns are ignored. Raises `ConfigError` in the words of Spark's
        connector.
        """
        by_name = {field.name: field.dataType for field in schema.fields}
        _check_topic(by_name.get("topic"), topic)
        _check_content("key", by_name.get("key"))
        _check_content("value", by_name.get("value"))
        headers, partition = by_name.get("headers"), by_name.get("partition")
        if headers is not None and not _is_headers(headers):
            raise ConfigError(f"headers must be a(n) {_HEADERS_TEXT}")
        if partition is not None and not isinstance(partition, IntegerType):
            raise ConfigError("partition must be a(n) int")
        names = [name for name in ("key", "value", "headers", "partition") if name in by_name]
        names += ["topic"] if topic is None else []
        warnings: tuple[str, ...] = ()
        if isinstance(by_name.get("timestamp"), TimestampType):
            names.append("timestamp")
        elif "timestamp" in by_name:
            warnings = (
                f"column 'timestamp' is {by_name['timestamp'].simpleString()}, not timestamp, so it is "
                "ignored and records get the time at which they are written",
            )
        return cls(names=tuple(names), topic=topic), warnings

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of ``batch`` that make records. Raises `KafkaConditionError` for a null topic."""
        chosen = batch.select(list(self.names))
        if self.topic is None and (nulls := chosen.column("topic").null_count):
            raise KafkaConditionError("KAFKA_NULL_TOPIC_IN_DATA", {}, f"({nulls} of {batch.num_rows} rows)")
        return chosen


def _check_topic(column: DataType | None, option: str | None) -> None:
    if option is not None:
        return  # It takes the column's place, and nobody looks at that: as in Spark's connector.
    if column is None:
        raise ConfigError(
            "topic option required when no 'topic' attribute is present. "
            "Use the topic option for setting a topic."
        )
    if not isinstance(column, StringType):
        raise ConfigError("topic must be a(n) string")


def _check_content(name: str, column: DataType | None) -> None:
    if column is None:
        if name == "value":
            raise ConfigError(
                "Required attribute 'value' not found; to write all columns as JSON: "
                '.select(to_json(struct("*")).alias("value"))'
            )
        return
    if not isinstance(column, StringType | BinaryType):
        found = f'col("{name}")'
        converted = f"to_json({found})" if isinstance(column, _NESTED) else f'{found}.cast("string")'
        raise ConfigError(
            f"{name} attribute unsupported type {column.simpleString()}. {name} must be a(n) string or "
            f'binary; convert it first: .withColumn("{name}", {converted})'
        )


def _is_headers(column: DataType) -> bool:
    """Whether nullability aside it is an array of (key string, value binary)."""
    if not isinstance(column, ArrayType) or not isinstance(column.elementType, StructType):
        return False
    fields: list[StructField] = column.elementType.fields
    shape = [(field.name, type(field.dataType)) for field in fields]
    return shape == [("key", StringType), ("value", BinaryType)]
