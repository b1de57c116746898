"""`JsonRows`: JSON objects read one by one, by the rules of Spark's ``from_json``.

For the payloads that `pyarrow.json` refuses. Many of them are good: a number where the schema wants text, a
member twice, a map. Only as much of a text is turned into Python objects as the schema asks for.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json.decoder
import math
import re
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from .format import BadRows, Decoded

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_QUOTED_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""As Java's ``BigDecimal`` reads it."""
_MAX_DIGITS: Final = 400
"""Of a number that becomes a decimal, which takes quadratic time."""
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


Convert = Callable[[str, int, int], Any]
"""The value of ``text[start:end]``, which is one JSON value. Raises `_MismatchError`."""


class _Skipper(json.JSONDecoder):
    """Finds where a value ends. Numbers are not converted."""

    def __init__(self) -> None:
        super().__init__(parse_int=_nothing, parse_float=_nothing, parse_constant=_nothing)


def _nothing(_text: str) -> None:
    return None


_skip: Final[Callable[[str, int], tuple[Any, int]]] = _Skipper().scan_once  # type: ignore[attr-defined]


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
        try:
            return self._object.read_whole(text)
        except RecursionError:
            return {}, "nested too deeply"


class _Object:
    """Reads an object into a dict of a struct type's fields. Of members with one name the last counts."""

    def __init__(self, type: pa.DataType, zone: dt.tzinfo) -> None:
        self._converts = {f.name: _converter(f.type, zone) for f in type}

    def read_whole(self, text: str) -> tuple[dict[str, Any], str | None]:
        """All of ``text``, and why it is bad: it is malformed, or a member does not fit (the first one)."""
        row: dict[str, Any] = {}
        reason = None
        try:
            for name, start, end in _members(text, 0):
                reason = _first(reason, self._put(row, name, text, (start, end)))
        except ValueError as error:
            # Malformed: the members before it are kept, as Spark keeps them in partial results.
            return row, str(error)
        return row, reason

    def __call__(self, text: str, start: int, end: int) -> dict[str, Any]:
        """As a nested value."""
        if text[start] != "{":
            raise _MismatchError("is not an object")
        row: dict[str, Any] = {}
        reason = None
        for name, at, stop in _members(text[start:end], 0):
            reason = _first(reason, self._put(row, name, text, (start + at, start + stop)))
        if reason is not None:
            raise _PartialError(row, reason)
        return row

    def _put(self, row: dict[str, Any], name: str, text: str, span: tuple[int, int]) -> str | None:
        convert = self._converts.get(name)
        if convert is None:
            return None
        row[name], reason = _convert(convert, text, span)
        return None if reason is None else f"`{name}` {reason}"


def _first(earlier: str | None, later: str | None) -> str | None:
    return later if earlier is None else earlier


class _PartialError(_MismatchError):
    """Some of a nested value could be read."""

    def __init__(self, value: Any, reason: str) -> None:
        super().__init__(reason)
        self.value = value


def _convert(convert: Convert, text: str, span: tuple[int, int]) -> tuple[Any, str | None]:
    """The value, and the reason why it does not fit."""
    start, end = span
    if text.startswith("null", start) and end - start == 4:
        return None, None
    try:
        return convert(text, start, end), None
    except _PartialError as error:
        return error.value, str(error)
    except _MismatchError as error:
        return None, str(error)


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Name and place of each member of the object that is all of ``text`` from ``at``. Raises ValueError."""
    at = _space(text, at + 1)
    if text[at : at + 1] == "}":
        _check_end(text, at + 1)
        return
    while True:
        if text[at : at + 1] != '"':
            raise ValueError(f"malformed JSON at character {at}: expected a member's name")
        name, at = _string(text, at)
        at = _space(text, at)
        if text[at : at + 1] != ":":
            raise ValueError(f"malformed JSON at character {at}: expected ':'")
        start = _space(text, at + 1)
        end = _end_of(text, start)
        yield name, start, end
        at = _space(text, end)
        match text[at : at + 1]:
            case ",":
                at = _space(text, at + 1)
            case "}":
                _check_end(text, at + 1)
                return
            case _:
                raise ValueError(f"malformed JSON at character {at}: expected ',' or '}}'")


def _elements(text: str, start: int) -> Iterator[tuple[int, int]]:
    """The place of each element of the array at ``start``, which is well-formed."""
    at = _space(text, start + 1)
    while text[at] != "]":
        end = _end_of(text, at)
        yield at, end
        at = _space(text, end)
        if text[at] == ",":
            at = _space(text, at + 1)


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _string(text: str, at: int) -> tuple[str, int]:
    try:
        value, end = json.decoder.scanstring(text, at + 1)  # type: ignore[attr-defined]
        return value, end
    except json.JSONDecodeError as error:
        raise ValueError(f"malformed JSON at character {error.pos}: {error.msg}") from None


def _end_of(text: str, start: int) -> int:
    try:
        try:
            return _skip(text, start)[1]
        except StopIteration:
            return _skip_odd_numbers(text, start)[1]
    except StopIteration as error:
        raise ValueError(f"malformed JSON at character {error.value}: expected a value") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"malformed JSON at character {error.pos}: {error.msg}") from None


_ODD_NUMBER: Final = re.compile(r"-?Inf(?!inity)|-NaN")


def _skip_odd_numbers(text: str, at: int) -> tuple[Any, int]:
    """As `_skip`. Takes the numbers that `pyarrow.json` takes and `json` does not, so that a record is read
    alike alone and among others."""
    if match := _ODD_NUMBER.match(text, at):
        return None, match.end()
    decoder: Any = json.decoder
    match text[at : at + 1]:
        case "{":
            _, end = decoder.JSONObject((text, at + 1), True, _skip_odd_numbers, None, None)
        case "[":
            _, end = decoder.JSONArray((text, at + 1), _skip_odd_numbers)
        case _:
            _, end = _skip(text, at)
    return None, end


def _check_end(text: str, at: int) -> None:
    if _space(text, at) != len(text):
        raise ValueError(f"malformed JSON at character {at}: something follows the object")


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
    value, _ = _string(text, start)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _MismatchError("has half of a surrogate pair") from None
    return value


def _shown(text: str, start: int, end: int) -> str:
    return text[start:end] if end - start <= 20 else f"{text[start : start + 20]}..."


def _quoted(text: str, start: int, end: int, what: str) -> str:
    if text[start] != '"':
        raise _MismatchError(f"is not {what}: {_shown(text, start, end)}")
    return _string(text, start)[0]


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
    if _NUMBER.fullmatch(text, start, end):
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
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value))
    if not math.isfinite(rounded):
        return rounded
    # From the text, as `pyarrow.json` does: by way of a double it would be rounded twice.
    return float(pa.scalar(text[start:end], pa.string()).cast(pa.float32()).as_py())


def _decimal_of(precision: int, scale: int) -> Convert:
    context = Context(prec=precision, rounding=ROUND_HALF_UP, Emax=10**6, Emin=-(10**6))
    step = Decimal(1).scaleb(-scale)

    def convert(text: str, start: int, end: int) -> Decimal:
        is_quoted = text[start] == '"'
        shown = text[start + 1 : end - 1] if is_quoted else text[start:end]
        pattern = _QUOTED_DECIMAL if is_quoted else _NUMBER
        if len(shown) > _MAX_DIGITS or not pattern.fullmatch(shown):
            raise _MismatchError(f"is not a number: {_shown(text, start, end)}")
        try:
            return Decimal(shown).quantize(step, context=context)
        except InvalidOperation:
            raise _MismatchError(
                f"is not a decimal({precision},{scale}): {_shown(text, start, end)}"
            ) from None

    return convert


_TIMESTAMP: Final = re.compile(
    r"(?P<date>\d{4}-\d{2}-\d{2})(?:[ T](?P<time>\d{2}(?::\d{2}(?::\d{2}(?:\.\d+)?)?)?)\s*(?P<zone>\S*))?"
)


def _timestamp_in(zone: dt.tzinfo | None) -> Convert:
    """``zone`` is that of a text without one; None for a type without a time zone."""

    def convert(text: str, start: int, end: int) -> dt.datetime:
        if text[start] != '"':
            return _from_epoch(text, start, end, zone)
        shown = _string(text, start)[0]
        try:
            return _parse_timestamp(shown.strip(), zone)
        except (ValueError, OverflowError, LookupError, OSError):  # OSError: a name that is a folder's
            raise _MismatchError(f"is not a timestamp: {_shown(text, start, end)}") from None

    return convert


def _parse_timestamp(text: str, zone: dt.tzinfo | None) -> dt.datetime:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError
    clock = match["time"] or "00:00:00"
    whole, _, fraction = clock.partition(".")
    moment = dt.datetime.fromisoformat(f"{match['date']}T{whole}{'.' + fraction[:6] if fraction else ''}")
    named = match["zone"] or ""
    if zone is None:
        if named:
            raise ValueError
        return moment
    if not named:
        return moment.replace(tzinfo=zone)
    if named[0] in "+-Z":
        return dt.datetime.fromisoformat(moment.isoformat() + named)
    return moment.replace(tzinfo=ZoneInfo(named))


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
    shown = _quoted(text, start, end, "a date").strip()
    try:
        return dt.date.fromisoformat(shown[:10]) if shown[10:11] in ("", "T", " ") else _refuse()
    except ValueError:
        raise _MismatchError(f"is not a date: {_shown(text, start, end)}") from None


def _refuse() -> dt.date:
    raise ValueError


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
        pairs = [_convert(convert, text, span) for span in _elements(text, start)]
        values = [value for value, _ in pairs]
        reason = next((f"has an element that {reason}" for _, reason in pairs if reason), None)
        if reason is not None:
            raise _PartialError(values, reason)
        return values

    return read


def _map_of(convert: Convert) -> Convert:
    def read(text: str, start: int, end: int) -> list[tuple[str, Any]]:
        if text[start] != "{":
            raise _MismatchError(f"is not an object: {_shown(text, start, end)}")
        read: dict[str, Any] = {}
        wrong = None
        for name, at, stop in _members(text[start:end], 0):
            read[name], reason = _convert(convert, text, (start + at, start + stop))
            wrong = _first(wrong, reason and f"has a member `{name[:20]}` that {reason}")
        if wrong is not None:
            raise _PartialError(list(read.items()), wrong)
        return list(read.items())

    return read
