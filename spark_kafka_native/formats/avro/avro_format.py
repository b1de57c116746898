"""`AvroFormat`: keys and values in Avro, under a schema that is given, derived, or kept by a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from ..errors import FormatError
from ..format import Decoder, Encoder, Resolved
from ..plain_types import place_of_null
from ..registry import (
    REGISTERED,
    RegisteredSchema,
    RegistryDecoder,
    RegistryEncoder,
    SchemaRegistry,
    frame_to_write,
    is_true,
    schema_to_read,
    schema_to_write,
)
from .bare_bytes import reads_bare_bytes, writes_bare_bytes
from .decoder import AvroDecoder
from .derived_schema import derive_schema
from .encoder import AvroEncoder
from .schema import AvroType, parse_schema
from .types import arrow_type

_LANGUAGE: Final = "AVRO"
_READER: Final = "avroschema"
"""The reader's schema, as Spark's option ``avroSchema`` of ``from_avro``."""


class AvroFormat:
    """Settings: ``schema``, what the data was written with, or is to be written with; ``avroschema``, what to
    read it as; and those of `registry`, which replaces ``schema`` for reads."""

    def resolve_read(self, settings: Mapping[str, str]) -> Resolved:
        """As `SchemaFormat.resolve_read`: with a registry, the latest schema unless one is named."""
        registry = SchemaRegistry.from_settings(settings)
        given = settings.get(_READER) or settings.get("schema")
        if given is not None:
            return Resolved(arrow_type(parse_schema(given)), settings)
        if registry is None:
            raise _without_schema(settings)
        chosen = schema_to_read(registry, settings, _LANGUAGE)
        return Resolved(arrow_type(_parse(chosen)), {**settings, REGISTERED: chosen.to_json()})

    def resolve_write(self, type: pa.DataType, settings: Mapping[str, str]) -> Resolved:
        """As `SchemaFormat.resolve_write`: the schema that is given, that of the registry, or the one that
        ``type`` has by itself."""
        given = settings.get("schema")
        registry = SchemaRegistry.from_settings(settings)
        if registry is None:
            return Resolved(type, {**settings, "schema": given or json.dumps(derive_schema(type))})
        wants_own = given is None and is_true(settings, "registry.register")
        text = json.dumps(derive_schema(type)) if wants_own else given
        unknown = place_of_null(type) if wants_own else None
        chosen = schema_to_write(registry, settings, _LANGUAGE, text, _name_of(text), unknown)
        return Resolved(type, {**settings, REGISTERED: chosen.to_json()})

    def decoder(self, type: pa.DataType, settings: Mapping[str, str]) -> Decoder:
        """As `Format.decoder`."""
        read = _reader_schema(settings)
        registry = SchemaRegistry.from_settings(settings)
        if registry is not None:
            AvroDecoder(read, read, type)  # what does not fit the type is no fault of the data

            def make(schema: RegisteredSchema) -> Decoder:
                written = _parse(schema)
                return reads_bare_bytes(written, AvroDecoder(written, read, type))

            return RegistryDecoder(type, registry, _LANGUAGE, make)
        written = parse_schema(settings["schema"]) if "schema" in settings else read
        return AvroDecoder(written, read, type)

    def encoder(self, type: pa.DataType, settings: Mapping[str, str]) -> Encoder:
        """As `Format.encoder`."""
        if (registered := settings.get(REGISTERED)) is not None:
            schema = RegisteredSchema.from_json(registered)
            frame = frame_to_write(schema, settings)
            written = _parse(schema)
            encoder = writes_bare_bytes(written, AvroEncoder(written, type))
            return RegistryEncoder.of(encoder, frame, settings)
        if SchemaRegistry.from_settings(settings) is not None:
            return self.encoder(type, self.resolve_write(type, settings).settings)
        given = settings.get("schema") or json.dumps(derive_schema(type))
        return AvroEncoder(parse_schema(given), type)


def _reader_schema(settings: Mapping[str, str]) -> AvroType:
    given = settings.get(_READER) or settings.get("schema")
    if given is not None:
        return parse_schema(given)
    if (registered := settings.get(REGISTERED)) is not None:
        return _parse(RegisteredSchema.from_json(registered))
    registry = SchemaRegistry.from_settings(settings)
    if registry is None:
        raise _without_schema(settings)
    return _parse(schema_to_read(registry, settings, _LANGUAGE))


def _name_of(text: str | None) -> str | None:
    """The full name of the type that ``text`` describes. It may use names that only the registry knows."""
    try:
        content = json.loads(text or "null")
    except (ValueError, RecursionError) as error:
        raise FormatError(f"The Avro schema is no JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        return None
    name, namespace = content["name"], content.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _parse(schema: RegisteredSchema) -> AvroType:
    return parse_schema(schema.text, [one.schema.text for one in schema.all_references()])


def _without_schema(settings: Mapping[str, str]) -> FormatError:
    payload = settings.get("payload", "value")
    return FormatError(
        f"Avro needs the schema that the data was written with: {payload}.schema as Avro's JSON, or "
        "registry.url"
    )
