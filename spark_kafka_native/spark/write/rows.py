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
_TIMESTAMP_LEFT_OUT = (
    "column 'timestamp' is not written, as with Spark's own connector: records get the time at which they "
    "are written; timestampColumn=timestamp writes it"
)


@dataclass(frozen=True, kw_only=True)
class RowColumns:
    """Which of a DataFrame's columns a record is made of. Plain data."""

    names: tuple[str, ...]
    """Of the columns that are used, as `Producer.send_columns` knows them."""
    topic: str | None
    """Where all rows go; None: the column ``topic`` says it."""
    timestamp: str | None = None
    """The column with the records' timestamps; None: a record gets the time at which it is written."""

    @classmethod
    def check(
        cls, schema: StructType, topic: str | None, timestamp: str | None = None, topic_hint: str = ""
    ) -> tuple[RowColumns, tuple[str, ...]]:
        """The columns of ``schema``, and what to warn of; ``timestamp`` is the option ``timestampColumn``,
        and ``topic_hint`` a text to add to the error for a missing topic.

        Names match exactly, other columns are ignored. Raises `ConfigError` in the words of Spark's
        connector.
        """
        by_name = {field.name: field.dataType for field in schema.fields}
        _check_topic(by_name.get("topic"), topic, topic_hint)
        _check_content("key", by_name.get("key"))
        _check_content("value", by_name.get("value"))
        headers, partition = by_name.get("headers"), by_name.get("partition")
        if headers is not None and not _is_headers(headers):
            raise ConfigError(f"headers must be a(n) {_HEADERS_TEXT}")
        if partition is not None and not isinstance(partition, IntegerType):
            raise ConfigError("partition must be a(n) int")
        names = [name for name in ("key", "value", "headers", "partition") if name in by_name]
        names += ["topic"] if topic is None else []
        if timestamp is not None:
            _check_timestamp(timestamp, by_name)
            names.append(timestamp)
        left_out = timestamp is None and "timestamp" in by_name
        warnings = (_TIMESTAMP_LEFT_OUT,) if left_out else ()
        return cls(names=tuple(names), topic=topic, timestamp=timestamp), warnings

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of ``batch`` that make records. Raises `KafkaConditionError` for a null topic."""
        chosen = batch.select(list(self.names))
        if self.topic is None and (nulls := chosen.column("topic").null_count):
            raise KafkaConditionError("KAFKA_NULL_TOPIC_IN_DATA", {}, f"({nulls} of {batch.num_rows} rows)")
        if self.timestamp is None or self.timestamp == "timestamp":
            return chosen
        names = ["timestamp" if name == self.timestamp else name for name in self.names]
        return pa.RecordBatch.from_arrays(chosen.columns, names=names)


def _check_topic(column: DataType | None, option: str | None, hint: str) -> None:
    if option is not None:
        return  # The column is ignored then, as in Spark's connector.
    if column is None:
        raise ConfigError(
            "topic option required when no 'topic' attribute is present. "
            f"Use the topic option for setting a topic.{hint}"
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


def _check_timestamp(name: str, by_name: dict[str, DataType]) -> None:
    if name not in by_name:
        raise ConfigError(f"timestampColumn: there is no column '{name}' among {', '.join(by_name)}")
    if not isinstance(by_name[name], TimestampType):
        raise ConfigError(
            f"timestampColumn: column '{name}' is {by_name[name].simpleString()}, and must be a timestamp; "
            f'convert it first: .withColumn("{name}", col("{name}").cast("timestamp"))'
        )


def _is_headers(column: DataType) -> bool:
    """True if it is an array of (key string, value binary), nullability aside."""
    if not isinstance(column, ArrayType) or not isinstance(column.elementType, StructType):
        return False
    fields: list[StructField] = column.elementType.fields
    shape = [(field.name, type(field.dataType)) for field in fields]
    return shape == [("key", StringType), ("value", BinaryType)]
