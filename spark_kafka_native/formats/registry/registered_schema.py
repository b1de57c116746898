"""`RegisteredSchema`: a schema as a registry keeps it. Plain data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from .errors import RegistryError

MAX_DEPTH: Final = 100
"""Of a schema that is JSON text: parsers recurse."""
# A text that does not end is taken as one: looking for its end from each quote in it would take for ever.
_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|([\[{])|([\]}])', re.DOTALL)


@dataclass(frozen=True, slots=True, eq=False)
class SchemaReference:
    """A schema that another one uses, under ``name``: a full name in Avro, an import in protobuf, a URL in
    JSON Schema."""

    name: str
    schema: RegisteredSchema


# Compared by identity: one that many others use would be compared as often.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegisteredSchema:
    """One version of a schema."""

    type: str
    """``AVRO``, ``PROTOBUF`` or ``JSON``."""
    text: str = field(repr=False)
    id: int | None = None
    guid: str | None = None
    subject: str | None = None
    """Subject and version are known if the schema was found by them."""
    version: int | None = None
    references: tuple[SchemaReference, ...] = ()

    @property
    def known_id(self) -> int:
        """Its id. Raises `RegistryError` if it is only known by its GUID."""
        if self.id is None:
            raise RegistryError(f"{self.shown} has no id")
        return self.id

    @property
    def reference_count(self) -> int:
        """How many schemas it uses, by way of others too; one that is used twice counts twice."""
        return sum(1 + one.schema.reference_count for one in self.references)

    def all_references(self) -> Iterator[SchemaReference]:
        """All schemas that it uses, by way of others too, each name once, and each after those that it uses
        itself."""
        seen: set[str] = set()
        for one in self.references:
            for found in (*one.schema.all_references(), one):
                if found.name not in seen:
                    seen.add(found.name)
                    yield found

    @property
    def shown(self) -> str:
        """Its name in messages."""
        where = f" (subject {self.subject}, version {self.version})" if self.subject else ""
        return f"schema {self.guid if self.id is None else self.id}{where}"

    def to_json(self) -> str:
        """Text for `from_json`: how a schema travels in settings."""
        return json.dumps(_plain(self))

    @classmethod
    def from_json(cls, text: str) -> RegisteredSchema:
        """The schema of which ``text`` is the `to_json`."""
        return _built(json.loads(text))


def _plain(schema: RegisteredSchema) -> dict[str, Any]:
    return {
        "type": schema.type,
        "text": schema.text,
        "id": schema.id,
        "guid": schema.guid,
        "subject": schema.subject,
        "version": schema.version,
        "references": [[one.name, _plain(one.schema)] for one in schema.references],
    }


def _built(plain: dict[str, Any]) -> RegisteredSchema:
    references = tuple(SchemaReference(name, _built(one)) for name, one in plain["references"])
    return RegisteredSchema(**{**plain, "references": references})


def json_depth(text: str) -> int:
    """How deep the brackets of a JSON text are nested."""
    depth = deepest = 0
    for match in _BRACKETS.finditer(text):
        depth += (match[1] is not None) - (match[2] is not None)
        deepest = max(deepest, depth)
    return deepest
