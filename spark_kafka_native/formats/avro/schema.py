"""`AvroType`, `parse_schema`: schemas of Avro 1.12, read from their JSON.

A schema may come from a registry, so it is untrusted: its depth and its size, with each reference to a name
written out, are capped. A type that contains itself is refused: no column of Arrow or Spark can hold it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..errors import FormatError

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
MAX_TEXT: Final = 1 << 20
"""Characters of a schema."""
MAX_DEPTH: Final = 64
MAX_TYPES: Final = 10_000
"""Types in a schema; one that is named in two places counts twice."""
_REQUIRED: Final = object()
"""The default of a field that has none; JSON's null is another matter."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AvroType:
    """One type. What its kind has no use for is empty."""

    kind: str
    """One of `PRIMITIVES`, ``record``, ``enum``, ``fixed``, ``array``, ``map`` or ``union``."""
    name: str = ""
    """With its namespace, of a record, an enum or a fixed."""
    aliases: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    items: tuple[AvroType, ...] = ()
    """The items of an array, the values of a map, the branches of a union."""
    symbols: tuple[str, ...] = ()
    default: str | None = None
    """Of an enum: the symbol to read for those that the reader does not know."""
    size: int = 0
    """Of a fixed, in bytes."""
    logical: str = ""
    """Empty also for a logical type that does not fit its type: then it is ignored, as Avro asks."""
    precision: int = 0
    scale: int = 0
    count: int = 1
    """How many types it is made of, itself included."""
    depth: int = 1

    @property
    def label(self) -> str:
        """What to call it in an error."""
        what = self.name or self.kind
        return f"{what} ({self.logical})" if self.logical else what

    @property
    def alternatives(self) -> tuple[AvroType, ...]:
        """The branches of a union without null; the type itself if it is no union."""
        if self.kind != "union":
            return (self,) if self.kind != "null" else ()
        return tuple(item for item in self.items if item.kind != "null")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = _REQUIRED
    """JSON."""

    @property
    def has_default(self) -> bool:
        """True if a reader may do without a value in the data."""
        return self.default is not _REQUIRED


def parse_schema(text: str, references: Iterable[str] = ()) -> AvroType:
    """The type that ``text`` describes; ``references`` are schemas that define names which it uses.

    Raises `FormatError`.
    """
    parser = _Parser()
    for reference in references:
        parser.parse(_load(reference), "", 1)
    return parser.parse(_load(text), "", 1)


def _load(text: str) -> Any:
    if len(text) > MAX_TEXT:
        raise FormatError(f"The Avro schema has {len(text):,} characters; at most {MAX_TEXT:,} are read")
    if text.strip() in PRIMITIVES:
        return text.strip()  # as Java's parser takes it
    try:
        content = json.loads(text)
        json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair can't be in a name
    except (ValueError, RecursionError) as error:
        raise FormatError(f"The Avro schema is no JSON: {error}") from error
    return content


@dataclass
class _Parser:
    known: dict[str, AvroType] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    """Names of types that are being read."""

    def parse(self, node: Any, namespace: str, depth: int) -> AvroType:
        if depth > MAX_DEPTH:
            raise FormatError(f"The Avro schema is nested more than {MAX_DEPTH} deep")
        if isinstance(node, str):
            found = self._named(node, namespace)
        elif isinstance(node, list):
            found = self._union(node, namespace, depth)
        elif isinstance(node, Mapping):
            found = self._described(node, namespace, depth)
        else:
            raise FormatError(f"The Avro schema has {json.dumps(node)[:50]} where a type should be")
        if found.count > MAX_TYPES:
            raise FormatError(f"The Avro schema has more than {MAX_TYPES:,} types, written out")
        if depth + found.depth - 1 > MAX_DEPTH:
            raise FormatError(f"The Avro schema is nested more than {MAX_DEPTH} deep")
        return found

    def _named(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(kind=name)
        for full in (_full_name(name, namespace), name):
            if full in self.open:
                raise FormatError(
                    f"The Avro type {full} contains itself: a recursive type can't be a column; "
                    "value.format=raw gives the bytes"
                )
            if full in self.known:
                return self.known[full]
        raise FormatError(f"The Avro schema names a type `{name[:100]}` that it does not define")

    def _union(self, node: list[Any], namespace: str, depth: int) -> AvroType:
        branches = tuple(self.parse(branch, namespace, depth + 1) for branch in node)
        if any(branch.kind == "union" for branch in branches):
            raise FormatError("The Avro schema has a union directly in a union")
        names = [branch.name or branch.kind for branch in branches]
        for name in names:
            if names.count(name) > 1:
                raise FormatError(f"The Avro schema has a union with `{name}` twice")
        return _sized(AvroType(kind="union", items=branches), branches)

    def _described(self, node: Mapping[str, Any], namespace: str, depth: int) -> AvroType:
        kind = node.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(node, str(kind), namespace, depth)
        if kind == "array" or kind == "map":
            of = self.parse(
                _member(node, "items" if kind == "array" else "values", kind), namespace, depth + 1
            )
            return _sized(AvroType(kind=kind, items=(of,)), (of,))
        if kind is None:
            raise FormatError(f"The Avro schema has an object without `type`: {json.dumps(node)[:100]}")
        found = self.parse(kind, namespace, depth + 1)
        return _with_logical(found, node) if isinstance(kind, str) and kind in PRIMITIVES else found

    def _definition(self, node: Mapping[str, Any], kind: str, namespace: str, depth: int) -> AvroType:
        given = _member(node, "name", kind)
        inner = node.get("namespace")
        name = _full_name(given, inner if isinstance(inner, str) else namespace)
        within = name.rpartition(".")[0]
        if name in self.open or name in self.known:
            raise FormatError(f"The Avro schema defines `{name}` twice")
        aliases = tuple(_full_name(alias, within) for alias in _texts(node, "aliases"))
        self.open.add(name)
        if kind == "enum":
            found = _enum(node, name, aliases)
        elif kind == "fixed":
            found = _fixed(node, name, aliases)
        else:
            fields = self._fields(_member(node, "fields", "record"), within, depth)
            record = AvroType(kind="record", name=name, aliases=aliases, fields=fields)
            found = _sized(record, tuple(field.type for field in fields))
        self.open.discard(name)
        self.known[name] = found
        return found

    def _fields(self, nodes: Any, namespace: str, depth: int) -> tuple[AvroField, ...]:
        fields, total = [], 0
        for node in nodes if isinstance(nodes, list) else [None]:
            if not isinstance(node, Mapping):
                raise FormatError("The Avro schema has a record with `fields` that are no list of objects")
            kind = self.parse(_member(node, "type", "field"), namespace, depth + 1)
            total += kind.count
            if total > MAX_TYPES:
                raise FormatError(f"The Avro schema has more than {MAX_TYPES:,} types, written out")
            name = str(_member(node, "name", "field"))
            default = node.get("default", _REQUIRED)
            fields.append(AvroField(name=name, type=kind, aliases=_texts(node, "aliases"), default=default))
        names = {one.name for one in fields}
        if len(names) != len(fields):
            raise FormatError("The Avro schema has a record with two fields of the same name")
        return tuple(fields)


def _sized(made: AvroType, parts: tuple[AvroType, ...]) -> AvroType:
    depth = 1 + max((part.depth for part in parts), default=0)
    return replace(made, count=1 + sum(part.count for part in parts), depth=depth)


def _enum(node: Mapping[str, Any], name: str, aliases: tuple[str, ...]) -> AvroType:
    symbols, default = _texts(node, "symbols"), node.get("default")
    if not symbols or len(set(symbols)) != len(symbols):
        raise FormatError(f"The Avro enum `{name}` has no symbols, or one of them twice")
    if default is not None and default not in symbols:
        raise FormatError(f"The Avro enum `{name}` has a default that is none of its symbols")
    return AvroType(kind="enum", name=name, aliases=aliases, symbols=symbols, default=default)


def _fixed(node: Mapping[str, Any], name: str, aliases: tuple[str, ...]) -> AvroType:
    size = node.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 31:
        raise FormatError(f"The Avro fixed `{name}` has no size")
    return _with_logical(AvroType(kind="fixed", name=name, aliases=aliases, size=size), node)


_LOGICAL: Final = {
    "int": {"date", "time-millis"},
    "long": {
        "time-micros",
        *(f"{zone}timestamp-{unit}" for zone in ("", "local-") for unit in ("millis", "micros", "nanos")),
    },
    "string": {"uuid"},
    "bytes": {"decimal"},
    "fixed": {"decimal", "uuid", "duration"},
}
"""Each type's logical types; the others are ignored."""


def _with_logical(made: AvroType, node: Mapping[str, Any]) -> AvroType:
    logical = node.get("logicalType")
    if not isinstance(logical, str) or logical not in _LOGICAL.get(made.kind, ()):
        return made
    precision, scale = node.get("precision", 0), node.get("scale", 0)
    fits = {"uuid": made.size in (0, 16), "duration": made.size == 12}.get(logical, True)
    if logical == "decimal":
        whole = all(isinstance(number, int) for number in (precision, scale))
        fits = whole and precision > 0 and 0 <= scale <= precision
    if not fits:
        return made
    if logical != "decimal":
        return replace(made, logical=logical)
    return replace(made, logical=logical, precision=precision, scale=scale)


def _full_name(name: Any, namespace: str) -> str:
    if not isinstance(name, str) or not name:
        raise FormatError(f"The Avro schema has {json.dumps(name)[:50]} where a name should be")
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _member(node: Mapping[str, Any], name: str, kind: str) -> Any:
    if name not in node:
        raise FormatError(f"The Avro schema has a {kind} without `{name}`")
    return node[name]


def _texts(node: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = node.get(name) or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise FormatError(f"The Avro schema has `{name}` that are no list of names")
    return tuple(texts)
