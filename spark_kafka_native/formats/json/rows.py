"""`JsonRows`: JSON objects read one by one, by the rules of Spark's ``from_json``.

For the payloads of which the compiled reader is not sure and that `pyarrow.json` refuses. Many of them are
good: a member twice, a map, a name of a zone. Only as much of a text is turned into Python objects as the
schema asks for.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from ..format import BadRows, Decoded
from ..text_values import (
    JAVA_DECIMAL,
    JSON_NUMBER,
    decimal_parser,
    parse_date,
    parse_timestamp,
    round_to_float32,
)
from .scan import elements, members, read_string

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_QUOTED_FLOATS: Final = {
    "NaN": float("nan"),
    **dict.fromkeys(("Infinity", "+Infinity", "INF", "+INF"), float("inf")),
    **dict.fromkeys(("-Infinity", "-INF"), float("-inf")),
}
_BARE_FLOATS: Final = {
    **dict.fromkeys(("NaN", "-NaN"), float("nan")),
    **dict.fromkeys(("Infinity", "Inf"), float("inf")),
    **dict.fromkeys(("-Infinity", "-Inf"), float("-inf")),
}


class _MismatchError(Exception):
    """A value that does not fit its field."""

    def __init__(self, reason: str, value: Any = None) -> None:
        super().__init__(reason)
        self.value = value
        """As much of a nested value as could be read."""


Convert = Callable[[str, int, int], Any]
"""The value of ``text[start:end]``, which is one JSON value. Raises `_MismatchError`."""


class JsonRows:
    """Reads objects into rows of one struct type."""

    def __init__(self, type: pa.DataType, zone: dt.tzinfo) -> None:
        self._type = type
        self._object = _Object(type, zone)

    def read(self, payloads: pa.Array) -> Decoded:
        """Each of ``payloads`` (binary) by itself."""
        values, rows, reasons = [], [], []
        for row, payload in enumerate(payloads.to_pylist()):
            value, reason = self._read_one(payload)
            values.append(value)
            if reason is not None:
                rows.append(row)
                reasons.append(reason)
        return Decoded(pa.array(values, self._type), BadRows(tuple(rows), tuple(reasons)))

    def _read_one(self, payload: bytes | None) -> tuple[dict[str, Any] | None, str | None]:
        """The row, and why it is bad."""
        if payload is None:
            return None, None
        try:
            text = payload.decode()
        except UnicodeDecodeError as error:
            return {}, f"not UTF-8 at byte {error.start}"
        text = text.strip(" \t\r\n")
        if not text:
            return None, None
        if text[0] != "{":
            return {}, f"not a JSON object, it begins with {text[:10]!r}"
        return self._object.read_whole(text)


class _Object:
    """Reads an object into a dict of a struct type's fields. Of members with one name the last counts."""

    def __init__(self, type: pa.DataType, zone: dt.tzinfo) -> None:
        self._converts = {f.name: _converter(f.type, zone) for f in type}

    def read_whole(self, text: str) -> tuple[dict[str, Any], str | None]:
        """All of ``text``, and why it is bad: it is malformed, or a member does not fit (the first one)."""
        row: dict[str, Any] = {}
        try:
            return row, self._fill(row, text)
        except ValueError as error:
            # Malformed: the members before it are kept, as Spark keeps them in partial results.
            return row, str(error)

    def __call__(self, text: str, start: int, end: int) -> dict[str, Any]:
        """As a nested value."""
        if text[start] != "{":
            raise _MismatchError("is not an object")
        row: dict[str, Any] = {}
        reason = self._fill(row, text[start:end])
        if reason is not None:
            raise _MismatchError(reason, row)
        return row

    def _fill(self, row: dict[str, Any], text: str) -> str | None:
        """Read the members of ``text`` into ``row``. Returns why one of them does not fit, the first."""
        reason, converts = None, self._converts
        for name, start, end in members(text, 0):
            convert = converts.get(name)
            if convert is None:
                continue
            try:
                is_null = end - start == 4 and text.startswith("null", start)
                row[name] = None if is_null else convert(text, start, end)
            except _MismatchError as error:
                row[name] = error.value
                reason = reason or f"`{name}` {error}"
        return reason


def _convert(convert: Convert, text: str, span: tuple[int, int]) -> tuple[Any, str | None]:
    """The value, and the reason why it does not fit."""
    start, end = span
    if text.startswith("null", start) and end - start == 4:
        return None, None
    try:
        return convert(text, start, end), None
    except _MismatchError as error:
        return error.value, str(error)


def _converter(kind: pa.DataType, zone: dt.tzinfo) -> Convert:
    """How a value of ``kind``, a type that `JsonFormat` supports, is read."""
    types = pa.types
    if types.is_struct(kind):
        return _Object(kind, zone)
    if types.is_map(kind):
        return _map_of(_converter(kind.item_type, zone))
    if types.is_list(kind):
        return _list_of(_converter(kind.value_type, zone))
    if types.is_timestamp(kind):
        return _timestamp_in(zone if kind.tz else None)
    if types.is_integer(kind):
        return _integer_of(kind.bit_width)
    if types.is_decimal(kind):
        return _decimal_of(kind.precision, kind.scale)
    if types.is_floating(kind):
        return _float32 if kind.bit_width == 32 else _float
    return {"bool": _boolean, "binary": _binary, "date32[day]": _date, "string": _text}[str(kind)]


def _text(text: str, start: int, end: int) -> str:
    """A string as it is; anything else as its JSON text."""
    if text[start] != '"':
        return text[start:end]
    if text.find("\\", start, end) < 0:
        return text[start + 1 : end - 1]
    return _checked(read_string(text, start)[0])


def _checked(text: str) -> str:
    """``text``, which may have been escaped, if Arrow can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _MismatchError("has half of a surrogate pair") from None
    return text


def _shown(text: str, start: int, end: int) -> str:
    return text[start:end] if end - start <= 20 else f"{text[start : start + 20]}..."


def _quoted(text: str, start: int, end: int, what: str) -> str:
    if text[start] != '"':
        raise _MismatchError(f"is not {what}: {_shown(text, start, end)}")
    return text[start + 1 : end - 1] if text.find("\\", start, end) < 0 else read_string(text, start)[0]


def _boolean(text: str, start: int, end: int) -> bool:
    match text[start:end]:
        case "true":
            return True
        case "false":
            return False
    raise _MismatchError(f"is not a boolean: {_shown(text, start, end)}")


def _integer_of(bits: int) -> Convert:
    def convert(text: str, start: int, end: int) -> int:
        if end - start <= 20 and _INTEGER.fullmatch(text, start, end):
            value = int(text[start:end])
            if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
                return value
        raise _MismatchError(f"is not an integer of {bits} bits: {_shown(text, start, end)}")

    return convert


def _float(text: str, start: int, end: int) -> float:
    if JSON_NUMBER.fullmatch(text, start, end):
        return float(text[start:end])
    if text[start] == '"':
        value = _QUOTED_FLOATS.get(text[start + 1 : end - 1])
    else:
        value = _BARE_FLOATS.get(text[start:end])
    if value is not None:
        return value
    raise _MismatchError(f"is not a number: {_shown(text, start, end)}")


def _float32(text: str, start: int, end: int) -> float:
    value = _float(text, start, end)
    return round_to_float32(text[start:end], value)


def _decimal_of(precision: int, scale: int) -> Convert:
    parse = decimal_parser(precision, scale)

    def convert(text: str, start: int, end: int) -> Decimal:
        is_quoted = text[start] == '"'
        shown = _quoted(text, start, end, "a number") if is_quoted else text[start:end]
        try:
            return parse(shown, JAVA_DECIMAL if is_quoted else JSON_NUMBER)
        except ValueError as error:
            raise _MismatchError(f"{error}: {_shown(text, start, end)}") from None

    return convert


def _timestamp_in(zone: dt.tzinfo | None) -> Convert:
    """``zone`` is that of a text without one; None for a type without a time zone."""

    def convert(text: str, start: int, end: int) -> dt.datetime:
        if text[start] != '"':
            return _from_epoch(text, start, end, zone)
        shown = _quoted(text, start, end, "a timestamp")
        try:
            return parse_timestamp(shown, zone)
        except ValueError as error:
            raise _MismatchError(f"{error}: {_shown(text, start, end)}") from None

    return convert


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def _from_epoch(text: str, start: int, end: int, zone: dt.tzinfo | None) -> dt.datetime:
    """A number of seconds, as Spark reads it."""
    if zone is None or end - start > 20 or not _INTEGER.fullmatch(text, start, end):
        raise _MismatchError(f"is not a timestamp: {_shown(text, start, end)}")
    try:
        return _EPOCH + dt.timedelta(seconds=int(text[start:end]))
    except OverflowError:
        raise _MismatchError(f"is out of range: {_shown(text, start, end)}") from None


def _date(text: str, start: int, end: int) -> dt.date:
    try:
        return parse_date(_quoted(text, start, end, "a date"))
    except ValueError as error:
        raise _MismatchError(f"{error}: {_shown(text, start, end)}") from None


def _binary(text: str, start: int, end: int) -> bytes:
    shown = _quoted(text, start, end, "Base64")
    try:
        return base64.b64decode(shown, validate=True)
    except (binascii.Error, ValueError):
        raise _MismatchError(f"is not Base64: {_shown(text, start, end)}") from None


def _list_of(convert: Convert) -> Convert:
    def read(text: str, start: int, end: int) -> list[Any]:
        if text[start] != "[":
            raise _MismatchError(f"is not an array: {_shown(text, start, end)}")
        pairs = [_convert(convert, text, span) for span in elements(text, start)]
        values = [value for value, _ in pairs]
        reason = next((f"has an element that {reason}" for _, reason in pairs if reason), None)
        if reason is not None:
            raise _MismatchError(reason, values)
        return values

    return read


def _map_of(convert: Convert) -> Convert:
    def read(text: str, start: int, end: int) -> list[tuple[str, Any]]:
        if text[start] != "{":
            raise _MismatchError(f"is not an object: {_shown(text, start, end)}")
        read: dict[str, Any] = {}
        wrong = None
        for name, at, stop in members(text[start:end], 0):
            try:
                read[_checked(name)], reason = _convert(convert, text, (start + at, start + stop))
            except _MismatchError as error:
                wrong = wrong or f"has a name that {error}"
                continue
            if reason is not None:
                wrong = wrong or f"has a member `{name[:20]}` that {reason}"
        if wrong is not None:
            raise _MismatchError(wrong, list(read.items()))
        return list(read.items())

    return read
