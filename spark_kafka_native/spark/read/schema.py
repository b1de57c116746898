"""The columns that a DataFrame can have, their types, and `RowSchema`: the checked columns of one read.

``load()`` needs this file alone: Spark asks for the schema in a process of its own, where numpy and pyarrow
would have to be loaded first. So pyarrow is imported only where a schema is checked.
"""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ...kafka.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

COLUMN_TYPES: Final[dict[str, tuple[DataType, ...]]] = {
    "key": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "offset": (LongType(),),
    "timestamp": (TimestampType(),),
    "timestampType": (IntegerType(),),
    "headers": (HEADERS,),
}
"""Each column in the order of the full schema, with the types it can be read as; the first is the default."""


def full_schema(include_headers: bool) -> StructType:
    """The schema of the JVM connector: all columns nullable, ``headers`` only when asked for."""
    names = [name for name in COLUMN_TYPES if include_headers or name != "headers"]
    return StructType([StructField(name, COLUMN_TYPES[name][0], True) for name in names])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSchema:
    """The columns of a read. Plain data: pickled with the reader."""

    names: tuple[str, ...]
    """Kafka's names, in the order of ``arrow``."""
    arrow: pa.Schema
    """The schema that Spark wants, the user's spelling of names included."""

    @classmethod
    def from_schema(cls, schema: StructType) -> RowSchema:
        """Check a subset of Kafka's columns, in any order. Raises `ConfigError` that lists the allowed
        columns.
        """
        names = tuple(_check_field(field) for field in schema.fields)
        if not names:
            raise ConfigError(f"The schema has no columns; give at least one of {', '.join(COLUMN_TYPES)}")
        if len(set(names)) != len(names):
            raise ConfigError(f"The schema names a column twice: {', '.join(names)}")
        return cls(names=names, arrow=_to_arrow_schema(schema))


_BY_LOWER: Final = {name.lower(): name for name in COLUMN_TYPES}


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
    """Spark insists on names, order, types and nullability, so its own converter makes the schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # PySpark 4.1: UTC is what it does
