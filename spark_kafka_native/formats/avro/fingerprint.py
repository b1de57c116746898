"""`fingerprint`: the CRC-64-AVRO of a schema's canonical form, by which single-object encoding names it.

Avro 1.12, "Parsing Canonical Form for Schemas" and "Single-object encoding".
"""

from __future__ import annotations

import json
from typing import Final

from .schema import PRIMITIVES, AvroType

SINGLE_OBJECT: Final = b"\xc3\x01"
"""How a payload begins that is encoded so; the fingerprint follows, eight bytes, little-endian."""
_EMPTY: Final = 0xC15D213AA4D7A795


def single_object_prefix(avro: AvroType) -> bytes:
    """The ten bytes before what ``avro`` writes."""
    return SINGLE_OBJECT + fingerprint(avro).to_bytes(8, "little")


def fingerprint(avro: AvroType) -> int:
    """Of 64 bits."""
    value = _EMPTY
    for byte in canonical_form(avro).encode():
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value


def canonical_form(avro: AvroType) -> str:
    """The schema without what does not change the bytes: defaults, aliases, logical types."""
    return _form(avro, set())


def _form(avro: AvroType, seen: set[str]) -> str:
    if avro.kind in PRIMITIVES:
        return f'"{avro.kind}"'
    if avro.kind == "union":
        return "[" + ",".join(_form(item, seen) for item in avro.items) + "]"
    if avro.kind in ("array", "map"):
        name = "items" if avro.kind == "array" else "values"
        return f'{{"type":"{avro.kind}","{name}":{_form(avro.items[0], seen)}}}'
    if avro.name in seen:
        return _quoted(avro.name)
    seen.add(avro.name)
    head = f'{{"name":{_quoted(avro.name)},"type":"{avro.kind}"'
    if avro.kind == "enum":
        return f'{head},"symbols":[{",".join(map(_quoted, avro.symbols))}]}}'
    if avro.kind == "fixed":
        return f'{head},"size":{avro.size}}}'
    fields = ",".join(
        f'{{"name":{_quoted(field.name)},"type":{_form(field.type, seen)}}}' for field in avro.fields
    )
    return f'{head},"fields":[{fields}]}}'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _table() -> tuple[int, ...]:
    table = []
    for i in range(256):
        value = i
        for _ in range(8):
            value = value >> 1 ^ (_EMPTY if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE: Final = _table()
