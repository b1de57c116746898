"""`PayloadFormat`: how keys or values are decoded and encoded, as the options ``key.*`` and ``value.*`` say.

``load()`` asks for the schema in a process without a JVM, and only a JVM parses DDL. So a schema given as
text stays text here, and is put into the text of the whole schema for Spark to parse.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyspark.sql.types as spark_types
from pyspark.errors import PySparkTypeError
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, UserDefinedType

from ..kafka.errors import ConfigError
from ..kafka.model import CORRUPT_COLUMN, ERROR_COLUMN, BadRecordMode
from ..kafka.security.config_providers import allowed_path, check_module, resolve_registry
from .options.option import Scope
from .options.option_values import OWN_FORMATS, OptionValues
from .read.offset_range import parse_assignment

if TYPE_CHECKING:
    import pyarrow as pa

    # Imported late elsewhere: it takes pyarrow, which most calls of load() do without.
    from ..formats import Decoder, Encoder, Format

RAW: Final = "raw"
KAFKA_COLUMNS: Final = (
    "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
)  # fmt: skip
"""The columns that are Kafka's; a flat value has no part in them, whether they are asked for or not."""
_LAYOUT: Final = frozenset(["format", "layout", "prefix"])
"""Options that are not handed on to the format."""
_ABOUT_COLUMNS: Final = frozenset(["schema", "inferrecords"])
_SINGLE: Final = re.compile(r"(?!struct\b)[a-z_]+\s*(\([\d\s,]*\)|<.*>)?", re.IGNORECASE | re.DOTALL)
"""DDL of a type without the name of a column."""


@dataclass(frozen=True, kw_only=True)
class PayloadFormat:
    """The format of the keys, or of the values. Plain data."""

    payload: str
    """``key`` or ``value``."""
    name: str
    settings: tuple[tuple[str, str], ...] = field(repr=False)
    """The options of the format itself, names in lower case. They may hold the password of a registry."""
    schema: str | None
    """The columns as DDL, without a surrounding ``struct<>``; None if the option was not given."""
    is_single: bool = False
    """True if ``schema`` is one type, which is no struct, instead of columns."""
    is_flat: bool = False
    """True if the fields are columns of the DataFrame, not fields of one column."""
    prefix: str = ""
    """What the names of these columns begin with."""
    sampled_records: int = 0
    """How many records the schema is to be inferred from; 0 if it is given."""

    @classmethod
    def parse(cls, values: OptionValues, payload: str) -> PayloadFormat | None:
        """None for raw bytes. Raises `ConfigError`."""
        from ..formats import is_own_schema

        name = values.value(f"{payload}.format").strip()
        name = name.lower() if name.lower() in OWN_FORMATS else name
        if name == RAW:
            _refuse_without_format(values, payload)
            return None
        found = _load(name, f"{payload}.format")
        if name in OWN_FORMATS:
            _refuse_without_registry(values, payload, name)
        given = _settings_for(values, payload)
        if name == "protobuf":
            _check_allowed(given, payload)
        is_flat = payload == "value" and values.value("value.layout") == "columns"
        if is_flat and name == "string":
            raise ConfigError("value.layout=columns: values with value.format=string have no fields")
        prefix = (values.text("value.prefix") or "") if payload == "value" else ""
        if prefix and not is_flat:
            raise ConfigError("Option 'value.prefix' has no effect without value.layout=columns")
        schema = given.pop("schema", None)
        sampled = _sampled_records(values, payload, schema)
        if sampled:
            schema = None
        if schema is not None and is_own_schema(schema, found):
            given["schema"], schema = schema, None
        columns = _parse_schema(schema, payload)
        return cls(
            payload=payload,
            name=name,
            settings=tuple(sorted(given.items())),
            schema=columns,
            is_single=columns is not None and _SINGLE.fullmatch(columns) is not None,
            is_flat=is_flat,
            prefix=prefix,
            sampled_records=sampled,
        )

    def resolve_read(self, *, typed: bool = False) -> PayloadFormat:
        """With the schema that the settings name, looked up now: for the driver. ``typed``: the type of the
        columns is known already. Raises `ConfigError`."""
        from ..formats import SchemaFormat

        found = self._format
        if not isinstance(found, SchemaFormat):
            return self
        with _config_errors(self._where):
            known_type = {"typed": "true"} if typed or self.schema is not None else {}
            resolved = found.resolve_read(resolve_registry(dict(self.settings)) | known_type)
        known = self._with(resolved.settings)
        if self.schema is not None or resolved.type is None:
            return known
        return known._of_type(resolved.type)

    def infer(self, payloads: pa.Array) -> PayloadFormat:
        """With the schema of ``payloads``, a sample (binary, none of them null). Raises `ConfigError`."""
        from ..formats import InferringFormat

        found = self._format
        if not isinstance(found, InferringFormat):
            raise ConfigError(f"{self._where} can't infer a schema: give {self.payload}.schema")
        with _config_errors(self._where):
            return self._of_type(found.infer(payloads, dict(self.settings)))

    def _of_type(self, type: pa.DataType) -> PayloadFormat:
        from pyspark.sql.pandas.types import from_arrow_type

        kind = from_arrow_type(type, prefer_timestamp_ntz=True)
        if isinstance(kind, StructType):
            return replace(self, schema=", ".join(_field_ddl(field) for field in kind.fields))
        return replace(self, schema=_type_ddl(kind), is_single=True)

    def resolve_write(self, kind: Any) -> PayloadFormat:
        """With the schema under which rows of the Arrow type ``kind`` are written, looked up now: for the
        driver. Raises `ConfigError`."""
        from ..formats import SchemaFormat

        if self.sampled_records:
            raise ConfigError(f"{self.payload}.schema=infer is for reads: a write has the type of its rows")
        found = self._format
        if not isinstance(found, SchemaFormat):
            return self
        with _config_errors(self._where):
            resolved = found.resolve_write(kind, resolve_registry(dict(self.settings)))
        return self._with(resolved.settings)

    def _with(self, settings: Mapping[str, str]) -> PayloadFormat:
        """With ``settings``, but for secrets that are references: each process resolves them."""
        kept = {name: text for name, text in self.settings if name.startswith("registry.")}
        found = {name: text for name, text in {**settings, **kept}.items() if name != "typed"}
        return replace(self, settings=tuple(sorted(found.items())))

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
            return f"`{self.payload}` " + (self.schema if self.is_single else f"STRUCT<{self.schema}>")
        if self.is_single:
            raise ConfigError(f"value.layout=columns: the values have no fields, they are {self.schema}")
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
            return self._format.decoder(kind, resolve_registry(dict(self.settings)))

    def encoder(self, kind: Any) -> Encoder:
        """Encodes rows of the Arrow type ``kind``; the same one each time. Raises `ConfigError`."""
        return _encoder(self, kind)

    @property
    def _format(self) -> Format:
        return _load(self.name, self._where)

    @property
    def _where(self) -> str:
        return f"{self.payload}.format={self.name}"


# One for a process: it is asked for with each batch, and may have looked up schemas.
@functools.lru_cache(maxsize=16)
def _encoder(payload: PayloadFormat, kind: Any) -> Encoder:
    with _config_errors(payload._where):
        return payload._format.encoder(kind, resolve_registry(dict(payload.settings)))


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


def _settings_for(values: OptionValues, payload: str) -> dict[str, str]:
    """The settings of the format and its schema: ``value.*``, ``registry.*``, and the topic if there is
    only one."""
    given = {name: text for name, text in values.with_prefix(f"{payload}.").items() if name not in _LAYOUT}
    shared = {f"registry.{name}": text for name, text in values.with_prefix("registry.").items()}
    topics = _topics(values)
    known = {"topic": topics.pop()} if len(topics) == 1 else {}
    return shared | given | known | {"payload": payload}


def _check_allowed(given: dict[str, str], payload: str) -> None:
    """Raise `ConfigError` for a file or a module that the environment does not allow. The path becomes one
    without links."""
    if (path := given.get("descriptorfile")) is not None:
        given["descriptorfile"] = allowed_path(f"{payload}.descriptorFile", path)
    if (message := given.get("messageclass")) is not None:
        check_module(f"{payload}.messageClass", message.rpartition(".")[0])


def _topics(values: OptionValues) -> set[str]:
    """Those that the options name; nothing of an option that is ignored here."""
    if values.scope is Scope.WRITE:
        topic = (values.text("topic") or "").strip()
        return {topic} if topic else set()
    try:
        return {one.topic for one in parse_assignment(values.text("assign") or "{}")}.union(
            topic for part in (values.text("subscribe") or "").split(",") if (topic := part.strip())
        )
    except ConfigError:  # the subscription's
        return set()


def _sampled_records(values: OptionValues, payload: str, schema: str | None) -> int:
    """0 where the schema is not to be inferred."""
    if schema is not None and schema.strip().lower() == "infer":
        return int(values.value(f"{payload}.inferRecords"))
    if f"{payload}.inferRecords" in values:
        raise ConfigError(f"Option '{payload}.inferRecords' has no effect without {payload}.schema=infer")
    return 0


def _refuse_without_format(values: OptionValues, payload: str) -> None:
    for name in values.meaningful_names(f"{payload}."):
        if name != f"{payload}.format":
            raise ConfigError(f"Option '{name}' has no effect without {payload}.format")


def _refuse_without_registry(values: OptionValues, payload: str, name: str) -> None:
    """Raise `ConfigError` for settings of a registry where there is none: payloads would name no schema.
    `SchemaRegistry.from_settings` refuses those about the schema."""
    from ..formats.format import OF_REGISTRY, SETTINGS

    if "registry.url" not in SETTINGS[name]:
        for given in values.meaningful_names(f"{payload}."):
            if given.removeprefix(f"{payload}.") in OF_REGISTRY:
                raise ConfigError(f"Option '{given}' has no effect with {payload}.format={name}")
    urls = ("registry.url", "key.registry.url", "value.registry.url")
    if not any(url in values for url in urls):
        for given in values.meaningful_names("registry."):
            raise ConfigError(f"Option '{given}' has no effect without registry.url")
    if not any(url in values for url in ("registry.url", f"{payload}.registry.url")):
        for given in values.meaningful_names(f"{payload}.registry."):
            raise ConfigError(f"Option '{given}' has no effect without {payload}.registry.url")


def ignored_settings(values: OptionValues) -> tuple[str, ...]:
    """A warning for each setting that means nothing to the format of its payload."""
    warnings: list[str] = []
    for payload in ("key", "value"):
        name = values.value(f"{payload}.format").strip().lower()
        if name == RAW or name not in OWN_FORMATS:
            continue
        from ..formats.format import OF_REGISTRY, SETTINGS

        known = {one.lower() for one in (*SETTINGS[name], *OF_REGISTRY)} | _LAYOUT | _ABOUT_COLUMNS
        warnings += [
            f"Option '{given}' is ignored with {payload}.format={name}"
            for given in values.meaningful_names(f"{payload}.")
            if given.removeprefix(f"{payload}.").lower() not in known
        ]
    return tuple(warnings)


@dataclass(frozen=True, kw_only=True)
class LetterOptions:
    """Where bad records go with ``mode=dlq``. Plain data."""

    topic: str
    prefix: str
    """What the transactional ids and groups begin with."""

    @classmethod
    def parse(cls, values: OptionValues) -> LetterOptions | None:
        """None with another mode. Raises `ConfigError`."""
        topic = (values.text("dlq.topic") or "").strip()
        if values.value("mode") != BadRecordMode.DLQ:
            if topic:
                raise ConfigError("Option 'dlq.topic' has no effect without mode=dlq")
            return None
        if not topic:
            raise ConfigError("mode=dlq needs dlq.topic: the topic that bad records go to")
        prefix = values.value("transactionalIdPrefix")
        if not prefix.strip():
            raise ConfigError("transactionalIdPrefix must not be empty")
        return cls(topic=topic, prefix=prefix)


@dataclass(frozen=True, kw_only=True)
class ReadFormats:
    """How a read decodes keys and values. Plain data."""

    key: PayloadFormat | None = None
    value: PayloadFormat | None = None
    mode: BadRecordMode = BadRecordMode.FAILFAST
    letters: LetterOptions | None = None
    """With ``dlq``."""

    @classmethod
    def parse(cls, values: OptionValues) -> ReadFormats:
        """Raises `ConfigError`."""
        formats = cls(
            key=PayloadFormat.parse(values, "key"),
            value=PayloadFormat.parse(values, "value"),
            mode=BadRecordMode(values.value("mode")),
            letters=LetterOptions.parse(values),
        )
        if "mode" in values and not formats.any:
            raise ConfigError("Option 'mode' has no effect without key.format or value.format")
        return formats

    @property
    def any(self) -> bool:
        """True if keys or values are decoded."""
        return not (self.key is self.value is None)

    @property
    def samples(self) -> bool:
        """True if a schema is to be inferred from records."""
        return any(one is not None and one.sampled_records for one in (self.key, self.value))

    def resolve(self) -> ReadFormats:
        """For columns of known types, with the schemas that the options name, looked up now: for the driver.
        Raises `ConfigError`."""
        return replace(
            self,
            key=None if self.key is None else self.key.resolve_read(typed=True),
            value=None if self.value is None else self.value.resolve_read(typed=True),
        )

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
        for column in plain.fields:
            payload = self.of(column.name)
            columns.append(
                f"{_quoted(column.name)} {column.dataType.simpleString()}"
                if payload is None
                else (payload.resolve_read() if payload.schema is None else payload).columns_ddl()
            )
        if self.mode is BadRecordMode.PERMISSIVE:
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
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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


_OPAQUE: Final = frozenset({"variant", "geometry", "geography"})


def _type_names(kind: DataType) -> Iterator[str]:
    """Of ``kind`` and all types in it."""
    yield kind.typeName()
    if isinstance(kind, UserDefinedType):
        yield from _type_names(kind.sqlType())
    elif isinstance(kind, StructType):
        for field in kind.fields:
            yield from _type_names(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _type_names(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _type_names(kind.keyType)
        yield from _type_names(kind.valueType)


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Spark insists on names, order, types and nullability, so its own converter makes the schema. Raises
    `ConfigError` for a type that it does not convert, or for which it has Spark's own bytes."""
    from pyspark.sql.pandas.types import to_arrow_schema as convert

    if (opaque := _OPAQUE.intersection(_type_names(schema))) != frozenset():
        raise ConfigError(
            f"The schema {schema.simpleString()[:500]} has the type {min(opaque)}, which no format knows: "
            "take string in its place (to_json makes that of a variant, and parse_json makes one of it)"
        )
    try:
        if "timezone" in inspect.signature(convert).parameters:
            return convert(schema, timezone="UTC")
        return convert(schema)  # PySpark 4.1: UTC is what it does
    except PySparkTypeError as error:
        hint = "" if "harType" not in str(error) else " (for text of any length use string)"
        raise ConfigError(f"The schema {schema.simpleString()[:500]} can't be read{hint}: {error}") from error
