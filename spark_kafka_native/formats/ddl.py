"""`parse_ddl`: Spark's text for columns and types (``id bigint, tags array<string>``) as an Arrow type.

Spark parses such text in its JVM; a client has none. Follows Spark's grammar for data types (SQL reference,
"Data Types"): names of types in any case, names of columns plain or in backquotes.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from .errors import FormatError

_SIMPLE: Final = {
    **dict.fromkeys(("boolean",), pa.bool_()),
    **dict.fromkeys(("tinyint", "byte"), pa.int8()),
    **dict.fromkeys(("smallint", "short"), pa.int16()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("bigint", "long"), pa.int64()),
    **dict.fromkeys(("float", "real"), pa.float32()),
    **dict.fromkeys(("double",), pa.float64()),
    **dict.fromkeys(("string",), pa.string()),
    **dict.fromkeys(("binary",), pa.binary()),
    **dict.fromkeys(("date",), pa.date32()),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), pa.timestamp("us", "UTC")),
    **dict.fromkeys(("timestamp_ntz",), pa.timestamp("us")),
}
_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|(\w+)|([<>(),:]))", re.UNICODE)
MAX_DEPTH: Final = 100
"""Of types within types."""


def parse_ddl(text: str) -> pa.DataType:
    """The type that ``text`` names, or the struct of the columns that it lists. Raises `FormatError`."""
    parser = _Parser(text)
    kind = parser.type(0) if parser.begins_type() else parser.columns(0, None)
    parser.expect(None)
    return kind


class _Parser:
    """The tokens of a text, and how far they are read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                raise FormatError(f"'{text[:200]}' is no schema: '{text[at:].strip()[:20]}' has no meaning")
            self._tokens.append(match[0].strip())
            at = match.end()
        self._at = 0

    def begins_type(self) -> bool:
        """True if all of it is one type: the name of a type, and no column of that name."""
        after = self._tokens[1] if len(self._tokens) > 1 else None
        return after in (None, "<", "(")

    def columns(self, depth: int, end: str | None) -> pa.DataType:
        """A struct, up to the token ``end``."""
        fields: list[tuple[str, pa.DataType]] = []
        while not fields or self._take(","):
            name = self._name()
            self._take(":")
            fields.append((name, self.type(depth + 1)))
            if self._take_word("not"):
                # Kept out of the type: a value that is missing has no other place than null.
                raise self._error(f"column `{name}` is decoded and can be null: leave out NOT NULL")
            if self._take_word("comment"):
                self._at += 1
        if (found := self._peek()) != end:
            raise self._error(f"'{found}' does not follow a column" if found else "it breaks off")
        return pa.struct(fields)

    def type(self, depth: int) -> pa.DataType:
        """One type."""
        if depth > MAX_DEPTH:
            raise self._error(f"it is nested more than {MAX_DEPTH} deep")
        name = (self._next() or "").lower()
        match name:
            case "array":
                self.expect("<")
                return self._until(pa.list_(self.type(depth + 1)))
            case "map":
                self.expect("<")
                key = self.type(depth + 1)
                self.expect(",")
                return self._until(pa.map_(key, self.type(depth + 1)))
            case "struct":
                self.expect("<")
                return self._until(self.columns(depth, ">"))
            case "decimal" | "dec" | "numeric":
                return self._decimal()
        if name not in _SIMPLE:
            raise self._error(f"'{name}' is no type" if name else "a type is missing at the end")
        return _SIMPLE[name]

    def expect(self, token: str | None) -> None:
        """Step over ``token``; None is the end."""
        found = self._next()
        if found != token:
            wanted = "the end" if token is None else f"'{token}'"
            raise self._error(f"{wanted} is expected" + (f", not '{found}'" if found else ""))

    def _until(self, kind: pa.DataType) -> pa.DataType:
        self.expect(">")
        return kind

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number()
            scale = self._number() if self._take(",") else 0
            self.expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self._error(f"there is no decimal({precision},{scale})")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        token = self._next() or ""
        if not re.fullmatch("[0-9]{1,4}", token):
            raise self._error(f"a number is expected, not '{token}'")
        return int(token)

    def _name(self) -> str:
        token = self._next() or ""
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", token):
            raise self._error(
                f"the name of a column is expected, not '{token}'" if token else "it breaks off"
            )
        return token

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> str | None:
        token = self._peek()
        self._at += 1
        return token

    def _take(self, token: str) -> bool:
        found = self._peek() == token
        self._at += found
        return found

    def _take_word(self, word: str) -> bool:
        token = self._peek()
        found = token is not None and token.lower() == word
        self._at += found
        return found

    def _error(self, reason: str) -> FormatError:
        return FormatError(
            f"'{self._text.strip()[:200]}' is no schema such as 'id bigint, name string': {reason}"
        )
