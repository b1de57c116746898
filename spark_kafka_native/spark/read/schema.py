"""The columns that a DataFrame can have, their types, and `RowSchema`: the checked columns of one read.

``load()`` needs this file alone: Spark asks for the schema in a process of its own, where numpy and pyarrow
would have to be loaded first. So pyarrow is imported only where a schema is checked.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ...kafka.errors import ConfigError
from ...kafka.model import CORRUPT_COLUMN, ERROR_COLUMN, BadRecordMode
from ..payload_formats import LetterOptions, PayloadFormat, ReadFormats, to_arrow_schema

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

ERROR_COLUMNS: Final = {CORRUPT_COLUMN: (BinaryType, StringType), ERROR_COLUMN: (StringType,)}
"""The columns that ``mode=permissive`` adds, with the types that they can have."""


def full_schema(include_headers: bool) -> StructType:
    """The schema of the JVM connector: all columns nullable, ``headers`` only when asked for."""
    names = [name for name in COLUMN_TYPES if include_headers or name != "headers"]
    return StructType([StructField(name, COLUMN_TYPES[name][0], True) for name in names])


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedPayload:
    """The key or the value, decoded into columns. Plain data."""

    format: PayloadFormat
    columns: tuple[str, ...]
    """The names that the DataFrame has for them: of one column, or of each field."""
    kind: pa.DataType
    """The type that the payload is decoded into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSchema:
    """The columns of a read. Plain data: pickled with the reader."""

    names: tuple[str, ...]
    """Kafka's names, in the order of ``arrow``; empty for a column that is decoded, or is about errors."""
    arrow: pa.Schema
    """The schema that Spark wants, the user's spelling of names included."""
    decoded: tuple[DecodedPayload, ...] = ()
    mode: BadRecordMode = BadRecordMode.FAILFAST
    """The option of this name."""
    letters: LetterOptions | None = None
    """With ``mode=dlq``."""

    @classmethod
    def from_schema(cls, schema: StructType, formats: ReadFormats | None = None) -> RowSchema:
        """Check a subset of Kafka's columns, in any order, and those that ``formats`` decode. For the driver:
        all workers use the schemas of formats that are looked up here.

        Raises `ConfigError` that lists the allowed columns.
        """
        formats = (formats or ReadFormats()).resolve()
        names = tuple("" if _is_added(field, formats) else _check_field(field) for field in schema.fields)
        if not names:
            raise ConfigError(f"The schema has no columns; give at least one of {', '.join(COLUMN_TYPES)}")
        _check_once(schema.names)
        arrow = to_arrow_schema(schema)
        decoded = tuple(_decoded_payloads(schema, arrow, formats))
        if "" in names and not decoded:
            raise ConfigError(
                f"The schema asks for {' and '.join(arrow.names[i] for i, n in enumerate(names) if not n)}, "
                "but for no column that is decoded, and so nothing can be found wrong"
            )
        return cls(names=names, arrow=arrow, decoded=decoded, mode=formats.mode, letters=formats.letters)


def _check_once(names: list[str]) -> None:
    # Kafka's columns in any case; of the fields of a value, `a` and `A` are two.
    columns = [_BY_LOWER.get(name.lower(), name) for name in names]
    counts = Counter(columns)
    twice = [name for name, column in zip(names, columns, strict=True) if counts[column] > 1]
    if twice:
        shown = ", ".join(f"`{name}`" for name in twice)
        raise ConfigError(f"The schema names a column twice: {shown}; leave all but one out")


def _is_added(field: StructField, formats: ReadFormats) -> bool:
    """True for a column that is none of Kafka's: it is decoded, or about errors."""
    return _payload_of(field, formats) is not None or (
        formats.mode is BadRecordMode.PERMISSIVE and _is_about_errors(field)
    )


def _is_about_errors(field: StructField) -> bool:
    if field.name not in ERROR_COLUMNS:
        return False
    if not isinstance(field.dataType, ERROR_COLUMNS[field.name]) or not field.nullable:
        allowed = " or ".join(kind().simpleString() for kind in ERROR_COLUMNS[field.name])
        raise ConfigError(f"Column `{field.name}` must be a nullable {allowed}")
    return True


def _payload_of(field: StructField, formats: ReadFormats) -> PayloadFormat | None:
    """The format that fills the column ``field``; None if none does."""
    name, value = _BY_LOWER.get(field.name.lower()), formats.value
    is_field = value is not None and value.is_flat and field.name.startswith(value.prefix)
    if name is not None:
        if is_field and field.name != name:
            # Kafka's names ignore case, those of a value's fields do not.
            raise ConfigError(
                f"Column `{field.name}` may be Kafka's `{name}` or a field of the values: write `{name}`, or "
                "give value.prefix with value.layout=columns"
            )
        payload = formats.of(name)
        return None if payload is None or payload.is_flat else payload
    return value if is_field and field.name not in ERROR_COLUMNS else None


def _decoded_payloads(schema: StructType, arrow: pa.Schema, formats: ReadFormats) -> Iterator[DecodedPayload]:
    import pyarrow as pa

    for payload in (formats.key, formats.value):
        columns = [field for field in schema.fields if _payload_of(field, formats) is payload]
        if payload is None or not columns:
            continue
        for field in columns:
            _check_nullable(field, field.name)
        types = [arrow.field(field.name) for field in columns]
        if payload.is_flat:
            kind = pa.struct([one.with_name(one.name.removeprefix(payload.prefix)) for one in types])
        else:
            kind = types[0].type
        payload.decoder(kind)
        names = tuple(field.name for field in columns)
        yield DecodedPayload(format=payload, columns=names, kind=kind)


def _check_nullable(field: StructField, path: str) -> None:
    """Raise `ConfigError` where a value that is missing would have no place."""
    kinds: list[tuple[str, DataType, bool]] = [(path, field.dataType, field.nullable)]
    while kinds:
        where, kind, nullable = kinds.pop()
        if not nullable:
            raise ConfigError(f"Column `{where}` is decoded and can be null: declare it without NOT NULL")
        match kind:
            case StructType():
                kinds += [(f"{where}.{one.name}", one.dataType, one.nullable) for one in kind.fields]
            case ArrayType():
                kinds.append((f"{where}[]", kind.elementType, kind.containsNull))
            case MapType():
                kinds.append((f"{where}{{}}", kind.valueType, kind.valueContainsNull))


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
