"""JSON Schema as an Arrow type, and the other way round.

Drafts 4 to 2020-12 (https://json-schema.org/specification), as far as they say of which type a value is.
Values without an Arrow type (of several types, of any type, objects in a circle) are strings with their JSON
text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from ..errors import FormatError

MAX_DEPTH: Final = 100
MAX_PARTS: Final = 10_000
"""Schemas within a schema; one that is referred to twice counts twice."""
_ANY: Final = pa.string()
_STRINGS: Final = {"date": pa.date32(), "date-time": pa.timestamp("us", "UTC")}
_TYPING: Final = frozenset(
    ("type", "properties", "$ref", "oneOf", "anyOf", "allOf", "items", "enum", "const", "format")
)
"""Keywords that say of which type a value is."""
_PLAIN: Final = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}


def type_of_json_schema(text: str, references: Mapping[str, str] | None = None) -> pa.DataType:
    """The struct that the JSON Schema ``text`` describes. ``references``: other schemas by the URLs under
    which they are used. Raises `FormatError`."""
    root = _parse(text)
    documents = {name: _parse(one) for name, one in (references or {}).items()}
    kind = _Walk(root, documents).type(root, "", 0, ())
    if not pa.types.is_struct(kind):
        raise FormatError("the JSON Schema is not that of an object with properties")
    return kind


def _parse(text: str) -> Any:
    try:
        content = json.loads(text)
        json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair can't be in a name
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the JSON Schema is no JSON: {str(error)[:200]}") from None
    return content


class _Walk:
    """A walk through a schema."""

    def __init__(self, root: Any, documents: Mapping[str, Any]) -> None:
        self._documents = {"": root, **documents}
        self._parts = 0

    def type(self, schema: Any, document: str, depth: int, within: tuple[str, ...]) -> pa.DataType:
        """The type of ``schema``, a part of the document of this name. ``within``: the references that led to
        it."""
        self._parts += 1
        if depth > MAX_DEPTH or self._parts > MAX_PARTS:
            raise FormatError(f"the JSON Schema has more than {MAX_PARTS} parts, or is nested too deep")
        if not isinstance(schema, dict):
            return _ANY
        if isinstance(schema.get("$ref"), str):
            kind = self._referred(schema["$ref"], document, depth, within)
            return self._with_siblings(kind, schema, document, depth, within)
        kind = _name_of(schema)
        given = schema.get("oneOf", schema.get("anyOf"))
        if isinstance(given, list) and not (kind and _are_constraints(given)):
            return self._alternative(given, document, depth, within)
        if kind == "object":
            return self._object(schema, document, depth, within)
        if kind == "array":
            items = schema.get("items")
            return pa.list_(
                self.type(items, document, depth + 1, within) if isinstance(items, dict) else _ANY
            )
        return _string(schema) if kind == "string" else _PLAIN.get(str(kind), _ANY)

    def _object(self, schema: Any, document: str, depth: int, within: tuple[str, ...]) -> pa.DataType:
        fields = self._fields(schema, document, depth, within)
        if fields:
            return pa.struct(list(fields.items()))
        others = schema.get("additionalProperties")
        if isinstance(others, dict) and others:
            return pa.map_(pa.string(), self.type(others, document, depth + 1, within))
        return _ANY

    def _fields(
        self, schema: Any, document: str, depth: int, within: tuple[str, ...]
    ) -> dict[str, pa.DataType]:
        fields: dict[str, pa.DataType] = {}
        for part in schema.get("allOf") if isinstance(schema.get("allOf"), list) else ():
            kind = self.type(part, document, depth + 1, within)
            fields |= {one.name: one.type for one in kind} if pa.types.is_struct(kind) else {}
        properties = schema.get("properties")
        if isinstance(properties, dict):
            for name, one in properties.items():
                fields[name] = self.type(one, document, depth + 1, within)
        return fields

    def _with_siblings(
        self, kind: pa.DataType, schema: Any, document: str, depth: int, within: tuple[str, ...]
    ) -> pa.DataType:
        """The type that ``$ref`` gives, with the fields beside it, which have no meaning until draft 7."""
        root = self._documents[document]
        draft = root.get("$schema") if isinstance(root, dict) else None
        if not pa.types.is_struct(kind) or "/draft-0" in str(draft):
            return kind
        fields = {one.name: one.type for one in kind} | self._fields(schema, document, depth, within)
        return pa.struct(list(fields.items()))

    def _alternative(
        self, given: list[Any], document: str, depth: int, within: tuple[str, ...]
    ) -> pa.DataType:
        """One type or null; of several types none is that of all values."""
        left = [one for one in given if not (isinstance(one, dict) and one.get("type") == "null")]
        if len(left) != 1:
            return _ANY
        return self.type(left[0], document, depth + 1, within)

    def _referred(self, reference: str, document: str, depth: int, within: tuple[str, ...]) -> pa.DataType:
        where, _, pointer = reference.partition("#")
        target = where or document
        full = f"{target}#{pointer}"
        if full in within:
            return _ANY  # an object that contains itself
        if target not in self._documents:
            raise FormatError(f"the JSON Schema refers to '{where[:200]}', which is not among its references")
        found: Any = self._documents[target]
        for step in filter(None, pointer.split("/")):
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                raise FormatError(f"the JSON Schema has no part '{reference[:200]}', to which it refers")
            found = found[key]
        return self.type(found, target, depth + 1, (*within, full))


def _are_constraints(given: list[Any]) -> bool:
    """True if none of these says more of the type: they demand fields, or bounds."""
    return not any(isinstance(one, dict) and _TYPING & one.keys() for one in given)


def _string(schema: Mapping[str, Any]) -> pa.DataType:
    if str(schema.get("contentEncoding", "")).lower() == "base64":
        return pa.binary()
    return _STRINGS.get(str(schema.get("format")), pa.string())


def _name_of(schema: Mapping[str, Any]) -> str | None:
    """The name of the type apart from null; None if there is none, ``""`` if there are several."""
    given = schema.get("type")
    if isinstance(given, list):
        left = {one for one in given if isinstance(one, str) and one != "null"}
        if left == {"integer", "number"}:
            return "number"
        return left.pop() if len(left) == 1 else ""
    if given is None and ("properties" in schema or "allOf" in schema):
        return "object"
    if given is None and isinstance(schema.get("enum"), list):
        return "string" if all(isinstance(one, str) for one in schema["enum"]) else ""
    return given if isinstance(given, str) else None


def json_schema_of(kind: pa.DataType, title: str) -> str:
    """The JSON Schema of the struct ``kind``, as `JsonEncoder` writes it: null fields are left out."""
    return json.dumps(
        {"$schema": "http://json-schema.org/draft-07/schema#", "title": title} | _schema_of(kind),
        ensure_ascii=False,
    )


def _schema_of(kind: pa.DataType) -> dict[str, Any]:
    types = pa.types
    if types.is_struct(kind):
        return {"type": "object", "properties": {one.name: _schema_of(one.type) for one in kind}}
    if types.is_map(kind):
        return {"type": "object", "additionalProperties": _or_null(_schema_of(kind.item_type))}
    if types.is_list(kind):
        return {"type": "array", "items": _or_null(_schema_of(kind.value_type))}
    for is_of, schema in _SCHEMAS:
        if is_of(kind):
            return schema
    return {"type": "string"}


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


_SCHEMAS: Final = (
    (pa.types.is_integer, {"type": "integer"}),
    (pa.types.is_boolean, {"type": "boolean"}),
    (pa.types.is_decimal, {"type": "number"}),
    (pa.types.is_floating, {"type": "number"}),
    (pa.types.is_date, {"type": "string", "format": "date"}),
    (pa.types.is_binary, {"type": "string", "contentEncoding": "base64"}),
    (_is_instant, {"type": "string", "format": "date-time"}),
)


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, schema]}
