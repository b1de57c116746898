"""`PayloadFormat`: how keys or values are decoded and encoded, as the options ``key.*`` and ``value.*`` say.

``load()`` asks for the schema in a process without a JVM, and only a JVM parses DDL. So a schema given as
text stays text here, and is put into the text of the whole schema for Spark to parse.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyspark.sql.types as spark_types
from pyspark.sql.types import StructField, StructType

from ..kafka.errors import ConfigError
from .options.option_values import OWN_FORMATS, OptionValues

if TYPE_CHECKING:
    import pyarrow as pa

    # Imported late elsewhere: it takes pyarrow, which most calls of load() do without.
    from ..formats import Decoder, Encoder, Format

RAW: Final = "raw"
KAFKA_COLUMNS: Final = (
    "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
)  # fmt: skip
"""The columns that are Kafka's; a flat value has no part in them, whether they are asked for or not."""
CORRUPT_COLUMN: Final = "_corrupt_record"
ERROR_COLUMN: Final = "_error"
_OWN: Final = frozenset(["format", "schema", "layout", "prefix"])
"""Options that are not handed on to the format."""


@dataclass(frozen=True, kw_only=True)
class PayloadFormat:
    """The format of the keys, or of the values. Plain data."""

    payload: str
    """``key`` or ``value``."""
    name: str
    settings: tuple[tuple[str, str], ...]
    """The options of the format itself, names in lower case."""
    schema: str | None
    """The columns as DDL, without a surrounding ``struct<>``; None if the option was not given."""
    is_flat: bool = False
    """True if the fields are columns of the DataFrame, not fields of one column."""
    prefix: str = ""
    """What the names of these columns begin with."""

    @classmethod
    def parse(cls, values: OptionValues, payload: str) -> PayloadFormat | None:
        """None for raw bytes. Raises `ConfigError`."""
        name = values.value(f"{payload}.format").strip()
        name = name.lower() if name.lower() in OWN_FORMATS else name
        if name == RAW:
            _refuse_without_format(values, payload)
            return None
        _load(name, f"{payload}.format")
        given = values.with_prefix(f"{payload}.")
        is_flat = payload == "value" and values.value("value.layout") == "columns"
        prefix = (values.text("value.prefix") or "") if payload == "value" else ""
        if prefix and not is_flat:
            raise ConfigError("Option 'value.prefix' has no effect without value.layout=columns")
        return cls(
            payload=payload,
            name=name,
            settings=tuple((key, text) for key, text in sorted(given.items()) if key not in _OWN),
            schema=_parse_schema(given.get("schema"), payload),
            is_flat=is_flat,
            prefix=prefix,
        )

    def columns_ddl(self) -> str:
        """The columns of the DataFrame for the decoded fields.

        Raises `ConfigError` if there is no schema, or if a name appears twice.
        """
        if self.name == "string" and self.schema is None:
            return f"`{self.payload}` STRING"
        if self.schema is None:
            raise ConfigError(
                f"{self.payload}.format={self.name} needs {self.payload}.schema, such as "
                f"'id bigint, name string', or .schema(...) with the type of the column `{self.payload}`"
            )
        if not self.is_flat:
            return f"`{self.payload}` STRUCT<{self.schema}>"
        fields = [(f"{self.prefix}{name}", rest) for name, rest in _split_fields(self.schema)]
        taken = (*KAFKA_COLUMNS, CORRUPT_COLUMN, ERROR_COLUMN)
        names = [*(name.lower() for name in taken), *(name.lower() for name, _ in fields)]
        for name, _ in fields:
            if names.count(name.lower()) > 1:
                raise ConfigError(
                    f"value.layout=columns: there would be two columns `{name}`; "
                    "value.prefix gives the columns of the value other names"
                )
        return ", ".join(f"{_quoted(name)} {rest}" for name, rest in fields)

    def decoder(self, kind: Any) -> Decoder:
        """Decodes into the Arrow type ``kind``. Raises `ConfigError`."""
        with _config_errors(self._where):
            return self._format.decoder(kind, dict(self.settings))

    def encoder(self, kind: Any) -> Encoder:
        """Encodes rows of the Arrow type ``kind``. Raises `ConfigError`."""
        with _config_errors(self._where):
            return self._format.encoder(kind, dict(self.settings))

    @property
    def _format(self) -> Format:
        return _load(self.name, self._where)

    @property
    def _where(self) -> str:
        return f"{self.payload}.format={self.name}"


def _load(name: str, where: str) -> Format:
    from ..formats import load_format

    with _config_errors(where):
        return load_format(name)


@contextmanager
def _config_errors(where: str) -> Iterator[None]:
    from ..formats import FormatError

    try:
        yield
    except FormatError as error:
        raise ConfigError(f"{where}: {error}") from error


def _refuse_without_format(values: OptionValues, payload: str) -> None:
    for name in sorted(_OWN - {"format"}):
        if f"{payload}.{name}" in values:
            raise ConfigError(f"Option '{payload}.{name}' has no effect without {payload}.format")


@dataclass(frozen=True, kw_only=True)
class ReadFormats:
    """How a read decodes keys and values. Plain data."""

    key: PayloadFormat | None = None
    value: PayloadFormat | None = None
    mode: str = "failfast"
    """``failfast``, ``permissive`` or ``dropmalformed``: what becomes of a record that can't be decoded."""

    @classmethod
    def parse(cls, values: OptionValues) -> ReadFormats:
        """Raises `ConfigError`."""
        formats = cls(
            key=PayloadFormat.parse(values, "key"),
            value=PayloadFormat.parse(values, "value"),
            mode=values.value("mode"),
        )
        if "mode" in values and not formats.any:
            raise ConfigError("Option 'mode' has no effect without key.format or value.format")
        return formats

    @property
    def any(self) -> bool:
        """True if keys or values are decoded."""
        return not (self.key is self.value is None)

    def of(self, name: str) -> PayloadFormat | None:
        """The format of the column ``name``; None if it is not decoded."""
        return {"key": self.key, "value": self.value}.get(name)

    def extend(self, plain: StructType) -> StructType | str:
        """The schema ``plain`` of Kafka's columns with those that are decoded, as DDL where there are any.

        Raises `ConfigError`.
        """
        if not self.any:
            return plain
        columns = []
        for field in plain.fields:
            payload = self.of(field.name)
            columns.append(
                f"{_quoted(field.name)} {field.dataType.simpleString()}"
                if payload is None
                else payload.columns_ddl()
            )
        if self.mode == "permissive":
            columns += [f"`{CORRUPT_COLUMN}` BINARY", f"`{ERROR_COLUMN}` STRING"]
        return ", ".join(columns)


_COMMENT: Final = re.compile(
    r"(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|--[^\n]*|/\*.*?\*/", re.DOTALL
)
"""A comment, which would reach to the end of the whole schema; or quoted text, to keep."""
_STRUCT: Final = re.compile(r"struct\s*<(.*)>", re.IGNORECASE | re.DOTALL)


def _parse_schema(text: str | None, payload: str) -> str | None:
    """DDL as it is, or the JSON of a `StructType` as DDL."""
    if text is None:
        return None
    text = _COMMENT.sub(lambda match: match[1] or " ", text).strip()
    if text.startswith("{"):
        try:
            kind = StructType.fromJson(json.loads(text))
            return ", ".join(_field_ddl(field) for field in kind.fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{payload}.schema is no JSON of a Spark StructType: {error}") from error
    match = _STRUCT.fullmatch(text)
    return match[1].strip() if match else text


def _field_ddl(field: StructField) -> str:
    return f"{_quoted(field.name)} {_type_ddl(field.dataType)}"


def _type_ddl(kind: spark_types.DataType) -> str:
    match kind:
        case StructType():
            return f"STRUCT<{', '.join(_field_ddl(field) for field in kind.fields)}>"
        case spark_types.ArrayType():
            return f"ARRAY<{_type_ddl(kind.elementType)}>"
        case spark_types.MapType():
            return f"MAP<{_type_ddl(kind.keyType)}, {_type_ddl(kind.valueType)}>"
    return str(kind.simpleString())


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


_NAME: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s`:,<>()]+))(?:\s*:\s*|\s+)(.*\S)\s*", re.DOTALL)


def _split_fields(ddl: str) -> Iterator[tuple[str, str]]:
    """The name of each column in ``ddl``, and the rest of its declaration."""
    for part in _split_at_commas(ddl):
        match = _NAME.fullmatch(part)
        if match is None:
            raise ConfigError(f"value.schema: '{part.strip()[:100]}' is no column with a name and a type")
        yield (match[1].replace("``", "`") if match[1] else match[2]), match[3]


_TOKEN: Final = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|.", re.DOTALL)


def _split_at_commas(ddl: str) -> Iterator[str]:
    """``ddl`` in pieces between the commas that are not inside of brackets or quotes."""
    piece, depth = "", 0
    for token in _TOKEN.findall(ddl):
        depth += token in ("<", "(")
        depth -= token in (">", ")")
        if token == "," and depth == 0:
            yield piece
            piece = ""
        else:
            piece += token
    yield piece


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Spark insists on names, order, types and nullability, so its own converter makes the schema."""
    from pyspark.sql.pandas.types import to_arrow_schema as convert

    if "timezone" in inspect.signature(convert).parameters:
        return convert(schema, timezone="UTC")
    return convert(schema)  # PySpark 4.1: UTC is what it does
