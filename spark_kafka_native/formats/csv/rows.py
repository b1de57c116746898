"""`CsvDialect`: how a line of CSV is written; `CsvRows`: lines read one by one, by the rules of Spark's
``from_csv``, for those that the fast path refuses."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from ..errors import FormatError
from ..format import BadRows, Decoded
from ..text_values import JAVA_DECIMAL, decimal_parser, parse_date, parse_timestamp, round_to_float32

REFUSED: Final = frozenset(
    [
        "charset", "chartoescapequoteescaping", "columnnameofcorruptrecord", "comment", "dateformat",
        "emptyvalue", "enabledatetimeparsingfallback", "encoding", "escapequotes", "header",
        "ignoreleadingwhitespace", "ignoretrailingwhitespace", "inferschema", "linesep", "locale",
        "maxcharspercolumn", "maxcolumns", "mode", "multiline", "nanvalue", "negativeinf", "positiveinf",
        "quoteall", "singlevariantcolumn", "timeformat", "timestampformat", "timestampntzformat",
        "unescapedquotehandling",
    ]
)  # fmt: skip
"""Options of Spark's ``from_csv`` that change the rows and are not implemented, in lower case."""
_AS_HERE: Final = {
    "header": "false",
    "inferschema": "false",
    "mode": "permissive",
    "multiline": "false",
    "quoteall": "false",
}
"""Values without an effect: rows are read and written so in any case."""


@dataclass(frozen=True, kw_only=True)
class CsvDialect:
    """The characters of the format."""

    sep: str = ","
    quote: str = '"'
    """Empty: quotes mean nothing."""
    escape: str = "\\"
    """In a quoted value, before a quote or itself. The quote itself: quotes are doubled (RFC 4180)."""
    null_value: str = ""
    """The text of a null, quoted or not."""

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> CsvDialect:
        """Raises `FormatError`."""
        others = (name for name, text in settings.items() if _AS_HERE.get(name) != text.strip().lower())
        if refused := sorted(REFUSED.intersection(others)):
            raise FormatError(f"CSV has no setting '{refused[0]}' here: it is read and written without it")
        sep = settings.get("sep", settings.get("delimiter", ","))
        dialect = cls(
            sep=_character("sep", "\t" if sep == "\\t" else sep),
            quote=_character("quote", settings.get("quote", '"'), may_be_empty=True),
            escape=_character("escape", settings.get("escape", "\\")),
            null_value=settings.get("nullvalue", ""),
        )
        if dialect.sep in (dialect.quote, dialect.escape):
            raise FormatError("CSV: sep, quote and escape: the separator must differ from the other two")
        if any(one in dialect.null_value for one in (dialect.sep, dialect.quote, "\n", "\r") if one):
            raise FormatError("CSV: nullValue must be without separators, quotes and line breaks")
        return dialect

    @cached_property
    def quoted(self) -> str:
        """The pattern of a quoted value without what may follow it, for `re` and RE2; its group is the
        content."""
        quote, escape = re.escape(self.quote), re.escape(self.escape)
        if self.quote == self.escape:
            return f"{quote}((?:[^{quote}]|{quote}{quote})*){quote}"
        return f"{quote}((?:[^{quote}{escape}]|{escape}(?s:.))*){quote}"

    def unescape(self, content: str) -> str:
        """Of what stands between two quotes."""
        if self.escape not in content:
            return content
        pattern = f"{re.escape(self.escape)}([{re.escape(self.escape)}{re.escape(self.quote)}])"
        return re.sub(pattern, r"\1", content)


def _character(name: str, text: str, *, may_be_empty: bool = False) -> str:
    if (may_be_empty and not text) or (len(text) == 1 and text.isascii() and text not in "\r\n\0"):
        return text
    raise FormatError(f"CSV: {name} must be one ASCII character, not {text[:20]!r}")


class CsvLines:
    """Splits lines into values."""

    def __init__(self, dialect: CsvDialect) -> None:
        self._dialect = dialect
        self._unquoted = re.compile(f"[^{re.escape(dialect.sep)}]*")
        self._quoted = None
        if dialect.quote:
            end, space = re.escape(dialect.sep), " \t".replace(dialect.sep, "")
            self._quoted = re.compile(rf"{dialect.quoted}[{space}]*(?={end}|\Z)")

    def split(self, line: str, limit: int) -> list[str]:
        """The values of ``line``, at most one more than ``limit``. Raises `ValueError`."""
        values: list[str] = []
        at = 0
        while len(values) <= limit:
            if self._quoted is not None and line.startswith(self._dialect.quote, at):
                match = self._quoted.match(line, at)
                if match is None:
                    raise ValueError(f"value {len(values) + 1} has a quote that is not closed at its end")
                values.append(self._dialect.unescape(match[1]))
            else:
                match = self._unquoted.match(line, at)
                assert match is not None
                values.append(match[0] or self._dialect.null_value)
            at = match.end() + 1
            if at > len(line):
                break
        return values


Convert = Callable[[str], Any]
"""The value of a text. Raises `ValueError`, with what it is not."""


class CsvRows:
    """Reads lines into rows of one struct type."""

    def __init__(self, type: pa.DataType, dialect: CsvDialect, zone: dt.tzinfo) -> None:
        self._type = type
        self._null_value = dialect.null_value
        self._lines = CsvLines(dialect)
        self._fields = [(field.name, _converter(field.type, zone)) for field in type]

    def read(self, payloads: pa.Array) -> Decoded:
        """Each of ``payloads`` (binary) by itself."""
        values, rows, reasons = [], [], []
        for row, payload in enumerate(payloads.to_pylist()):
            value, reason = (None, None) if payload is None else self._read_one(payload)
            values.append(value)
            if reason is not None:
                rows.append(row)
                reasons.append(reason)
        return Decoded(pa.array(values, self._type), BadRows(tuple(rows), tuple(reasons)))

    def _read_one(self, payload: bytes) -> tuple[dict[str, Any], str | None]:
        """The row, and why it is bad."""
        nothing = {name: None for name, _ in self._fields}
        if not payload:
            return nothing, None
        try:
            texts = self._lines.split(payload.decode(), len(self._fields))
        except UnicodeDecodeError as error:
            return nothing, f"not UTF-8 at byte {error.start}"
        except ValueError as error:
            return nothing, str(error)
        reason = None
        if len(texts) != len(self._fields):
            more = "more" if len(texts) > len(self._fields) else f"{len(texts)}"
            reason = f"the line has {more} values, and the schema {len(self._fields)}"
        row = nothing
        for text, (name, convert) in zip(texts, self._fields, strict=False):
            if text == self._null_value:
                continue
            try:
                row[name] = convert(text)
            except ValueError as error:
                shown = text if len(text) <= 20 else f"{text[:20]}..."
                reason = reason or f"`{name}` {error}: {shown}"
        return row, reason


def _converter(kind: pa.DataType, zone: dt.tzinfo) -> Convert:
    types = pa.types
    if types.is_string(kind):
        return str
    if types.is_boolean(kind):
        return _boolean
    if types.is_integer(kind):
        return _integer_of(kind.bit_width)
    if types.is_floating(kind):
        return _float if types.is_float64(kind) else _float32
    if types.is_decimal(kind):
        parse = decimal_parser(kind.precision, kind.scale)
        return lambda text: parse(text, JAVA_DECIMAL)
    if types.is_date(kind):
        return parse_date
    return lambda text: parse_timestamp(text, None if kind.tz is None else zone)


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError("is not a boolean")
    return lowered == "true"


_INTEGER: Final = re.compile(r"[+-]?[0-9]+")


def _integer_of(bits: int) -> Convert:
    def convert(text: str) -> int:
        if len(text) <= 40 and _INTEGER.fullmatch(text):
            value = int(text)
            if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
                return value
        raise ValueError(f"is not an integer of {bits} bits")

    return convert


_NAMED: Final = {
    "NaN": float("nan"),
    **dict.fromkeys(("Inf", "Infinity", "+Infinity"), float("inf")),
    **dict.fromkeys(("-Inf", "-Infinity"), float("-inf")),
}
_SPACE: Final = "".join(map(chr, range(33)))
"""As Java trims a number."""


def _float(text: str) -> float:
    shown = text.strip(_SPACE)
    if JAVA_DECIMAL.fullmatch(shown):
        return float(shown)
    if (value := _NAMED.get(shown)) is not None:
        return value
    raise ValueError("is not a number")


def _float32(text: str) -> float:
    value = _float(text)
    return round_to_float32(text.strip(_SPACE).removeprefix("+"), value)
