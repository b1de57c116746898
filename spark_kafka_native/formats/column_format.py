"""`ColumnFormat`: how a program without Spark says the format and the type of keys or values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from .ddl import parse_ddl
from .errors import FormatError
from .format import Decoder, Encoder, SchemaFormat, check_settings, is_own_schema, load_format
from .plain_types import nulls_as


@dataclass(frozen=True, init=False)
class ColumnFormat:
    """A format, a type, and the format's settings.

    ``schema`` is an Arrow schema (of the fields of a struct) or type, columns as Spark writes them
    (``"id bigint, name string"``), or a schema in the format's own language (an Avro schema, say).
    ``settings`` are named as the data source's options are, without ``value.`` or ``key.``: ``{"timeZone":
    "Europe/Berlin"}``, ``{"registry.url": "https://..."}``. Raises `FormatError`, also for a setting that
    the format does not know, if it is one of ours.
    """

    name: str
    type: pa.DataType | None
    """Of the column; None if the settings say it."""
    settings: tuple[tuple[str, str], ...] = field(repr=False)
    """In lower case, sorted. They may hold the password of a registry, or say where it is (``env:NAME``)."""

    def __init__(
        self,
        name: str,
        schema: pa.Schema | pa.DataType | str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        found = load_format(name)
        check_settings(name, settings or ())
        given = {key.lower(): text for key, text in (settings or {}).items()}
        if isinstance(schema, str) and is_own_schema(schema, found):
            given["schema"], schema = schema, None
        if isinstance(schema, str):
            schema = parse_ddl(schema)
        elif isinstance(schema, pa.Schema):
            schema = pa.struct(list(schema))
        if schema is not None and not isinstance(schema, pa.DataType):
            raise FormatError(f"a schema is Arrow's, or a text, not {type(schema).__name__}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "type", schema)
        object.__setattr__(self, "settings", tuple(sorted(given.items())))

    @classmethod
    def of(cls, given: str | ColumnFormat) -> ColumnFormat:
        """``given``, or the format of that name with no settings."""
        return cls(given) if isinstance(given, str) else given

    def with_settings(self, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> ColumnFormat:
        """The same format with the settings that ``change`` returns for these."""
        changed = copy.copy(self)
        object.__setattr__(changed, "settings", tuple(sorted(change(dict(self.settings)).items())))
        return changed

    def decoder(self, payload: str, topic: str | None) -> tuple[Decoder, pa.DataType]:
        """A decoder of the ``payload`` (``key`` or ``value``) of records of ``topic``, and its type; schemas
        are looked up now. Raises `FormatError`."""
        found, known, kind = load_format(self.name), self._settings_of(payload, topic), self.type
        if isinstance(found, SchemaFormat):
            resolved = found.resolve_read(known | ({} if kind is None else {"typed": "true"}))
            known, kind = dict(resolved.settings), kind or resolved.type
        if kind is None and self.name == "string":
            kind = pa.string()
        if kind is None:
            raise FormatError("a schema is needed, such as 'id bigint, name string'")
        return found.decoder(kind, known), kind

    def typed(self, rows: pa.Array) -> pa.Array:
        """``rows`` with the type that was given for fields of type null: data frames have that for a column
        without values, and the next batch another type."""
        return rows if self.type is None else nulls_as(rows, self.type)

    def encoder(self, kind: pa.DataType, payload: str, topic: str | None) -> Encoder:
        """An encoder of rows of ``kind``; the schema under which they are written is looked up now. Raises
        `FormatError`, also if the format was given another type."""
        if self.type is not None and self.type != kind:
            raise FormatError(f"the rows are {kind}, and the schema says {self.type}")
        found, known = load_format(self.name), self._settings_of(payload, topic)
        if isinstance(found, SchemaFormat):
            known = dict(found.resolve_write(kind, known).settings)
        return found.encoder(kind, known)

    def _settings_of(self, payload: str, topic: str | None) -> dict[str, str]:
        known = {} if topic is None else {"topic": topic}
        return {**known, **dict(self.settings), "payload": payload}
