"""`derive_schema`: the Avro schema for rows of an Arrow type, as Spark's ``to_avro`` derives it."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from ..errors import FormatError

ROOT: Final = "topLevelRecord"
"""What Spark calls the outermost record."""
_SIMPLE: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.uint8(): "int",
    pa.uint16(): "int",
    pa.uint32(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.null(): "null",
}


def derive_schema(kind: pa.DataType) -> Any:
    """As JSON. Values that may be null are unions with null, but for the outermost: a row that is null is a
    payload that is null. Raises `FormatError`."""
    return _derive(kind, ROOT, "", "")


def _derive(kind: pa.DataType, name: str, namespace: str, place: str) -> Any:
    types = pa.types
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if types.is_struct(kind):
        inner = f"{namespace}.{name}" if namespace else name
        fields = [
            {
                "name": one.name,
                "type": _nullable(_derive(one.type, one.name, inner, _join(place, one.name)), one),
            }
            for one in kind
        ]
        record = {"type": "record", "name": name, "fields": fields}
        return record | ({"namespace": namespace} if namespace else {})
    if types.is_list(kind) or types.is_large_list(kind):
        items = _derive(kind.value_type, name, namespace, f"{place}[]")
        return {"type": "array", "items": _nullable(items, kind.value_field)}
    if types.is_map(kind):
        if not types.is_string(kind.key_type):
            raise FormatError(f"`{place}`: the keys of a map are strings in Avro, not {kind.key_type}")
        values = _derive(kind.item_type, name, namespace, f"{place}{{}}")
        return {"type": "map", "values": _nullable(values, kind.item_field)}
    return _logical(kind, name, namespace, place)


def _logical(kind: pa.DataType, name: str, namespace: str, place: str) -> Any:
    types = pa.types
    if types.is_dictionary(kind):
        return _derive(kind.value_type, name, namespace, place)
    if types.is_decimal128(kind) and kind.scale >= 0:
        size = next(size for size in range(1, 17) if 10**kind.precision <= 1 << (8 * size - 1))
        fixed = f"{namespace}.{name}.fixed" if namespace else f"{name}.fixed"
        return {
            "type": "fixed", "name": fixed, "size": size,
            "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale,
        }  # fmt: skip
    if types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if types.is_timestamp(kind):
        unit = {"s": "millis", "ms": "millis", "us": "micros", "ns": "nanos"}[kind.unit]
        return {"type": "long", "logicalType": f"{'' if kind.tz else 'local-'}timestamp-{unit}"}
    if types.is_time64(kind):
        return {"type": "long", "logicalType": "time-micros"}
    raise FormatError(f"{f'`{place}`' if place else 'The column'} is {kind}, for which Avro has no type")


def _nullable(avro: Any, field: pa.Field) -> Any:
    return [avro, "null"] if field.nullable and avro != "null" else avro


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
