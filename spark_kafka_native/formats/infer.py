"""Types for payloads of which the user gives no schema: `infer_json` and `infer_csv`, by the rules of Spark's
own inference. What records disagree about is a string."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from .csv.rows import CsvDialect, CsvLines
from .errors import FormatError
from .text_values import JAVA_DECIMAL, parse_date, parse_timestamp, parse_zone

MAX_FIELDS: Final = 2_000
"""Of all structs together. More of them are data in the names: a map."""

MAX_DEPTH: Final = 64
"""Objects and arrays in one another; deeper ones are strings."""

_MAX_DIGITS: Final = 38
_NOTHING: Final = pa.null()
_EMPTY: Final = pa.struct([])


def infer_json(payloads: pa.Array) -> pa.DataType:
    """The struct type of JSON objects; fields in the order of their names, as Spark has them.

    Whole numbers are bigint, or decimal where they need more digits; all other numbers are double. Payloads
    that are no object do not count. Raises `FormatError` if none is one, or for too many fields.
    """
    kind: pa.DataType = _NOTHING
    for payload in payloads.to_pylist():
        try:
            # Of bytes `json` would guess the encoding, and take more than a read does.
            content = json.loads(payload.decode()) if payload else None
            found = _json_type(content) if isinstance(content, dict) else _NOTHING
        except (ValueError, RecursionError):  # a name with half of a surrogate pair included
            continue
        kind = _merge(kind, found)
        _check_size(kind)
    if kind in (_NOTHING, _EMPTY):
        raise FormatError(f"none of {len(payloads):,} sampled payloads is a JSON object with a field in it")
    return _filled(kind)


def _json_type(value: Any, depth: int = 0) -> pa.DataType:
    match value:
        case bool():
            return pa.bool_()
        case int():
            return _integer(value)
        case float():
            return pa.float64()
        case str():
            return pa.string() if value else _NOTHING
        case list() | dict() if depth > MAX_DEPTH:
            return pa.string()
        case list():
            return pa.list_(_merge_all(_json_type(one, depth + 1) for one in value))
        case dict():
            fields = [pa.field(name, _json_type(value[name], depth + 1)) for name in sorted(value)]
            return pa.struct(fields)
    return _NOTHING


def _integer(value: int) -> pa.DataType:
    if -(2**63) <= value < 2**63:
        return pa.int64()
    digits = len(str(abs(value))) if abs(value) < 10**_MAX_DIGITS else _MAX_DIGITS + 1
    return pa.decimal128(digits, 0) if digits <= _MAX_DIGITS else pa.float64()


def _merge_all(kinds: Iterable[pa.DataType]) -> pa.DataType:
    merged: pa.DataType = _NOTHING
    for kind in kinds:
        merged = _merge(merged, kind)
    return merged


def _merge(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type for values of both."""
    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_struct(one) and types.is_struct(other):
        kinds = {field.name: field.type for field in one}
        for field in other:
            kinds[field.name] = _merge(kinds.get(field.name, _NOTHING), field.type)
        return pa.struct([pa.field(name, kinds[name]) for name in sorted(kinds)])
    if types.is_list(one) and types.is_list(other):
        return pa.list_(_merge(one.value_type, other.value_type))
    if _is_number(one) and _is_number(other):
        return _wider(one, other)
    if {str(one), str(other)} == {str(_DATE), str(_TIMESTAMP)}:
        return _TIMESTAMP
    return pa.string()


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_int64(kind) or pa.types.is_float64(kind) or pa.types.is_decimal(kind))


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pa.types.is_float64(one) or pa.types.is_float64(other):
        return pa.float64()
    return pa.decimal128(max(20 if pa.types.is_int64(kind) else kind.precision for kind in (one, other)), 0)


def _filled(kind: pa.DataType) -> pa.DataType:
    """``kind`` with strings where only nulls, or objects without a field, were seen."""
    if kind == _EMPTY:
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _filled(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_filled(kind.value_type))
    return pa.string() if pa.types.is_null(kind) else kind


def _check_size(kind: pa.DataType) -> None:
    count, left = 0, [kind]
    while left:
        one = left.pop()
        if pa.types.is_struct(one):
            count += one.num_fields
            left += [field.type for field in one]
        elif pa.types.is_list(one):
            left.append(one.value_type)
    if count > MAX_FIELDS:
        raise FormatError(
            f"the sampled payloads have more than {MAX_FIELDS:,} fields: names seem to be data; give a "
            "schema with a map"
        )


_DATE: Final = pa.date32()
_TIMESTAMP: Final = pa.timestamp("us", "UTC")


def infer_csv(payloads: pa.Array, settings: Mapping[str, str]) -> pa.DataType:
    """The struct type of lines of CSV; the fields are called ``_c0``, ``_c1``, ..., as Spark calls them.

    As many as the longest line has. Raises `FormatError` if no payload is a line of values.
    """
    dialect = CsvDialect.parse(settings)
    lines = CsvLines(dialect)
    zone = parse_zone(settings.get("timezone", "UTC"))
    columns: list[pa.DataType] = []
    for payload in payloads.to_pylist():
        try:
            texts = lines.split(payload.decode(), MAX_FIELDS) if payload else []
        except ValueError:
            continue
        columns += [_NOTHING] * (len(texts) - len(columns))
        for place, text in enumerate(texts):
            if text != dialect.null_value and columns[place] != pa.string():
                columns[place] = _merge(columns[place], _csv_type(text, zone))
    if not columns:
        raise FormatError(f"none of {len(payloads):,} sampled payloads is a line of CSV")
    kind = pa.struct([pa.field(f"_c{place}", one) for place, one in enumerate(columns)])
    _check_size(kind)
    return _filled(kind)


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}")


def _csv_type(text: str, zone: Any) -> pa.DataType:
    if _INTEGER.fullmatch(text):
        return _integer(int(text))
    if JAVA_DECIMAL.fullmatch(text) or text in ("NaN", "Inf", "-Inf"):
        return pa.float64()
    if len(text) == 10 and _reads(parse_date, text):
        return _DATE
    if _reads(lambda one: parse_timestamp(one, zone), text):
        return _TIMESTAMP
    return pa.bool_() if text.lower() in ("true", "false") else pa.string()


def _reads(parse: Callable[[str], Any], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True
