"""`encode_default`: the default of a field, which a schema gives as JSON, as Avro's bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from ..errors import FormatError
from .schema import AvroType

MAX_DEFAULT: Final = 4_096
"""Bytes of a default: every record that lacks the field gets a copy."""


def encode_default(kind: AvroType, value: Any, place: str) -> bytes:
    """Raises `FormatError` for JSON that is no value of ``kind``, and for more than `MAX_DEFAULT` bytes."""
    try:
        data = _encode(kind, value)
    except (TypeError, ValueError, OverflowError, struct.error, RecursionError):
        raise FormatError(f"The default of `{place}` in the Avro schema is no {kind.label}") from None
    if len(data) > MAX_DEFAULT:
        raise FormatError(f"The default of `{place}` in the Avro schema has more than {MAX_DEFAULT:,} bytes")
    return data


def varint(value: int) -> bytes:
    """A number as Avro writes int and long."""
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("more than 64 bits")
    raw, data = (value << 1) ^ (value >> 63), bytearray()
    while raw >= 0x80:
        data.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*data, raw])


def _encode(kind: AvroType, value: Any) -> bytes:
    match kind.kind:
        case "null" | "boolean":
            if type(value) is not (bool if kind.kind == "boolean" else type(None)):
                raise ValueError
            return b"" if value is None else bytes([value])
        case "int" | "long":
            bits = 31 if kind.kind == "int" else 63
            if type(value) is not int or not -(1 << bits) <= value < 1 << bits:
                raise ValueError
            return varint(value)
        case "float" | "double":
            if type(value) not in (int, float):
                raise ValueError
            return struct.pack("<f" if kind.kind == "float" else "<d", float(value))
        case "enum":
            return varint(kind.symbols.index(value))
    return _encode_sized(kind, value)


def _encode_sized(kind: AvroType, value: Any) -> bytes:
    match kind.kind:
        case "string":
            data = str.encode(value)
            return varint(len(data)) + data
        case "bytes" | "fixed":
            # Code points 0 to 255 stand for bytes.
            data = str.encode(value, "latin-1")
            if kind.kind == "fixed" and len(data) != kind.size:
                raise ValueError
            return data if kind.kind == "fixed" else varint(len(data)) + data
        case "union":
            return _encode_union(kind, value)
    return _encode_parts(kind, value)


def _encode_union(kind: AvroType, value: Any) -> bytes:
    # Avro 1.12: the default is of any branch; before, of the first.
    for i, branch in enumerate(kind.items):
        try:
            return varint(i) + _encode(branch, value)
        except (TypeError, ValueError, OverflowError, struct.error):
            continue
    raise ValueError


def _encode_parts(kind: AvroType, value: Any) -> bytes:
    if kind.kind == "record":
        if not isinstance(value, Mapping):
            raise ValueError
        return b"".join(_encode(one.type, value.get(one.name, one.default)) for one in kind.fields)
    if not isinstance(value, list if kind.kind == "array" else Mapping):
        raise ValueError
    data = varint(len(value)) if value else b""
    for item in value:
        if kind.kind == "map":
            key = str.encode(item)
            data += varint(len(key)) + key
        data += _encode(kind.items[0], value[item] if kind.kind == "map" else item)
        if len(data) > MAX_DEFAULT:
            break
    return data + b"\0"
