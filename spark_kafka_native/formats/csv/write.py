"""`CsvEncoder`: rows as lines of CSV, built by Arrow's text kernels, column by column."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import hide, text_scalar, validity
from ..errors import EncodeError
from ..json.write import scalar_texts
from ..plain_types import nulls_as_text
from .rows import CsvDialect

_IN_NO_SCALAR = frozenset(("", ",", ";", "|", "\t", '"', "'"))
"""Usual separators and quotes that no number, date, time or Base64 has: those need no look for them."""


@dataclass(frozen=True)
class CsvEncoder:
    """Writes what Spark's ``to_csv`` writes: a value is quoted where it has to be, an empty text is ``""``.

    White space at the ends of a text stays, and timestamps keep their microseconds.
    """

    dialect: CsvDialect
    has_nulls: bool = False
    """Rows have fields of the type null."""

    def encode(self, rows: pa.Array) -> pa.Array:
        """As `Encoder.encode`; ``rows`` are structs. Raises `EncodeError` for a text that would need quotes,
        if there are none."""
        rows = nulls_as_text(rows) if self.has_nulls else rows
        columns = [self._text(child) for child in rows.flatten()]
        lines = pc.binary_join_element_wise(*columns, text_scalar(self.dialect.sep)).cast(pa.binary())
        return hide(lines, ~validity(rows)) if rows.null_count else lines

    def _text(self, column: pa.Array) -> pa.Array:
        if pa.types.is_string(column.type):
            texts = self._quoted(column)
        else:
            # Of JSON's texts only those of dates, timestamps and odd numbers have quotes.
            texts = pc.utf8_trim(scalar_texts(column), '"')
            if not {self.dialect.sep, self.dialect.quote} <= _IN_NO_SCALAR:
                texts = self._quoted(texts)
        return texts.fill_null(text_scalar(self.dialect.null_value)) if column.null_count else texts

    def _quoted(self, texts: pa.Array) -> pa.Array:
        dialect = self.dialect
        special = "".join(re.escape(one) for one in (dialect.sep, dialect.quote, "\r", "\n") if one)
        if not dialect.quote:
            broken = pc.match_substring_regex(texts, f"[{special}]")
            if pc.any(broken).as_py():
                row = int(np.argmax(np.asarray(broken.fill_null(False))))
                raise EncodeError(row, "a text has a separator or a line break, and quote is empty")
            return texts
        needs = pc.match_substring_regex(texts, f"^$|[{special}]")
        if not pc.any(needs).as_py():
            return texts
        inner = texts
        if dialect.escape != dialect.quote:
            inner = pc.replace_substring(inner, dialect.escape, dialect.escape * 2)
        inner = pc.replace_substring(inner, dialect.quote, dialect.escape + dialect.quote)
        quote = text_scalar(dialect.quote)
        return pc.if_else(needs, pc.binary_join_element_wise(quote, inner, quote, text_scalar("")), texts)
