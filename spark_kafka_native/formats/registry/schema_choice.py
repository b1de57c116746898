"""Which schema of a registry a read or a write uses, as its settings say. For the driver, once per query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ..errors import FormatError
from .errors import RegistryError, UnknownSchemaError
from .framing import frame_guid, frame_id
from .registered_schema import RegisteredSchema
from .schema_registry import SchemaRegistry

REGISTERED: Final = "registered"
"""The setting with the `RegisteredSchema.to_json` that was chosen, for workers."""


def schema_to_read(registry: SchemaRegistry, settings: Mapping[str, str], language: str) -> RegisteredSchema:
    """The schema that the settings name: ``schemaid``, or ``schemaversion`` (by default the latest) of the
    subject. Raises `RegistryError`."""
    found = _named(registry, settings)
    if found.type != language:
        raise RegistryError(f"{found.shown} at {registry.url} is of type {found.type}, not {language}")
    return found


def schema_to_write(
    registry: SchemaRegistry,
    settings: Mapping[str, str],
    language: str,
    text: str | None,
    record: str | None = None,
    unknown: str | None = None,
) -> RegisteredSchema:
    """The schema under which to write: that of ``text``, which has to be registered already unless
    ``registry.register`` is true; without a text that which the settings name, as `schema_to_read`.

    ``record``: the full name of the record or message, for the strategies with ``record``. ``unknown``: the
    place of a column without values, if ``text`` is that of the columns: it is not registered, as the column
    has another type in other rows. Raises `RegistryError`.
    """
    if text is None:
        return schema_to_read(registry, settings, language)
    subject = subject_of(settings, record)
    references = _references(settings)
    if is_true(settings, "registry.register") and unknown is None:
        id = registry.register(subject, text, language, references)
    else:
        try:
            id = registry.lookup(subject, text, language, references)
        except RegistryError as error:
            if not any(isinstance(one, UnknownSchemaError) for one in (error, error.__cause__)):
                raise
            hint = (
                "registry.register=true registers it; without a schema of its own the write takes the latest "
                "version"
                if unknown is None
                else f"`{unknown}` has no values (Arrow's type null), and such a schema is not registered: "
                f"give {settings.get('payload', 'value')}.schema, or cast the column to its type"
            )
            raise RegistryError(f"{error}. {hint}") from error
    # With the references that it has; the registry may also have written it in another way.
    return replace(registry.schema_just_given(id), subject=subject)


def ids_in_headers(settings: Mapping[str, str]) -> bool:
    """True if a write puts the schema into a header of each record. Raises `FormatError`."""
    place = settings.get("schemaidin", "payload").strip().lower()
    if place not in ("payload", "header"):
        name = f"{settings.get('payload', 'value')}.schemaIdIn"
        raise FormatError(f"{name} must be payload or header, not '{place[:50]}'")
    return place == "header"


def frame_to_write(schema: RegisteredSchema, settings: Mapping[str, str]) -> bytes:
    """What names ``schema``: its id in front of payloads, its GUID in a header, as Confluent's serializers
    do. Raises `FormatError`."""
    if not ids_in_headers(settings):
        return frame_id(schema.known_id)
    try:
        return frame_guid(schema.guid or "")
    except ValueError:
        raise RegistryError(
            f"The registry gives no GUID for {schema.shown}, and a header names a schema by its GUID: "
            f"leave {settings.get('payload', 'value')}.schemaIdIn=header out"
        ) from None


def subject_of(settings: Mapping[str, str], record: str | None = None) -> str:
    """The subject that the settings name, by ``subject`` or ``subjectstrategy``. Raises `FormatError`."""
    if (given := settings.get("subject", "").strip()) != "":
        return given
    payload, topic = settings.get("payload", "value"), settings.get("topic")
    strategy = settings.get("subjectstrategy", "topic").strip().lower()
    if strategy not in ("topic", "record", "topic-record"):
        raise FormatError(
            f"{payload}.subjectStrategy must be topic, record or topic-record, not '{strategy}'"
        )
    if strategy != "topic" and record is None:
        raise FormatError(
            f"{payload}.subjectStrategy={strategy} needs a name of a record; give {payload}.subject"
        )
    if strategy == "record":
        return str(record)
    if topic is None:
        raise FormatError(f"There is no single topic to name the subject after; give {payload}.subject")
    return f"{topic}-{payload}" if strategy == "topic" else f"{topic}-{record}"


def is_true(settings: Mapping[str, str], name: str) -> bool:
    """True if a setting is ``true``; False without it. Raises `FormatError`."""
    text = settings.get(name, "false").strip().lower()
    if text not in ("true", "false"):
        raise FormatError(f"{name} must be true or false, not '{text[:50]}'")
    return text == "true"


def _named(registry: SchemaRegistry, settings: Mapping[str, str]) -> RegisteredSchema:
    payload = settings.get("payload", "value")
    if (id := settings.get("schemaid")) is not None:
        return registry.schema(_number(id, f"{payload}.schemaId", least=0))
    subject, version = subject_of(settings), settings.get("schemaversion", "latest").strip().lower()
    if version == "latest":
        return registry.latest(subject)
    return registry.version(subject, _number(version, f"{payload}.schemaVersion", least=1))


def _number(text: str, name: str, *, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not least <= number < 2**31:
        raise FormatError(f"{name} must be a whole number from {least}, not '{text[:50]}'")
    return number


def _references(settings: Mapping[str, str]) -> list[dict[str, object]]:
    text = settings.get("schemareferences")
    try:
        found = json.loads(text) if text is not None else []
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise FormatError('schemaReferences must be JSON: [{"name": ..., "subject": ..., "version": ...}]')
    return found
