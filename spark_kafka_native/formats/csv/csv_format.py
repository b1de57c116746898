"""`CsvFormat`: payloads that are lines of CSV, read with `pyarrow.csv` and Arrow's casts, and written with
its text kernels. `csv_rows` reads what these refuse.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from ..arrays import boolean, check_values, join_lines, offsets_and_data, spread, text_scalar, validity
from ..errors import FormatError
from ..format import Decoded
from ..isolate import NotTogetherError, decode_isolated
from ..plain_types import as_payloads, check_distinct, text_for_null
from ..text_values import parse_zone
from .rows import CsvDialect, CsvRows
from .write import CsvEncoder

MAX_TOGETHER: Final = 2**30
"""Bytes that are read at once: a block of `pyarrow.csv` is limited to 2 GiB."""


class CsvFormat:
    """One line in each payload; its values are the fields of a struct, by their position.

    Settings, as Spark's ``from_csv`` has them: ``sep`` (or ``delimiter``), ``quote``, ``escape``,
    ``nullvalue``; ``timezone``: the zone of timestamps that name none, default ``UTC``.
    """

    def decoder(self, type: pa.DataType, settings: Mapping[str, str]) -> CsvDecoder:
        """A decoder into the struct ``type``. Raises `FormatError`."""
        _check(type)
        zone = parse_zone(settings.get("timezone", "UTC"))
        return CsvDecoder(type=type, dialect=CsvDialect.parse(settings), zone=zone)

    def encoder(self, type: pa.DataType, settings: Mapping[str, str]) -> CsvEncoder:
        """An encoder of the struct ``type``. Raises `FormatError`."""
        kind = text_for_null(type)
        _check(kind)
        return CsvEncoder(CsvDialect.parse(settings), has_nulls=kind != type)

    def infer(self, payloads: pa.Array, settings: Mapping[str, str]) -> pa.DataType:
        """As `InferringFormat.infer`; see `infer_csv`."""
        from ..infer import infer_csv

        return infer_csv(payloads, settings)


_SCALARS: Final = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "float", "double", "string", "date32[day]"]
)


def _check(kind: pa.DataType) -> None:
    if not pa.types.is_struct(kind) or not kind.num_fields:
        raise FormatError(f"CSV needs a struct with at least one field, not {kind}")
    check_distinct([field.name for field in kind])
    for field in kind:
        is_time = pa.types.is_timestamp(field.type) and field.type.unit == "us"
        if str(field.type) not in _SCALARS and not pa.types.is_decimal128(field.type) and not is_time:
            raise FormatError(f"CSV can't hold the type {field.type} of `{field.name}`")


_ARROW_OVERFLOWS: Final = int(pa.__version__.split(".")[0]) < 20
"""Until PyArrow 20 `pyarrow.csv` writes into foreign memory where a line has far more values than expected
(https://github.com/apache/arrow/issues/45497): other payloads became zeros."""


@dataclass(frozen=True, kw_only=True)
class CsvDecoder:
    """Decodes lines into one struct type."""

    type: pa.DataType
    dialect: CsvDialect
    zone: dt.tzinfo

    def decode(self, payloads: pa.Array) -> Decoded:
        """As `Decoder.decode`. The fields of an empty payload are null, as in ``from_csv``."""
        if _ARROW_OVERFLOWS:
            return self._rows.read(as_payloads(payloads))
        return decode_isolated(as_payloads(payloads), self.read_together, self._rows.read)

    @cached_property
    def _rows(self) -> CsvRows:
        return CsvRows(self.type, self.dialect, self.zone)

    @cached_property
    def _regular(self) -> str:
        """RE2 for a line on which `pyarrow.csv` and `CsvRows` agree: values are quoted as a whole or not at
        all, and nothing is escaped but by doubling."""
        dialect = self.dialect
        quote, sep = re.escape(dialect.quote), re.escape(dialect.sep)
        inner = f"(?:[^{quote}]|{quote}{quote})"
        if dialect.quote != dialect.escape:
            inner = f"[^{quote}{re.escape(dialect.escape)}]"
        # An empty quoted value is no null, unless nulls are empty; `pyarrow.csv` does not say which is which.
        quoted = f"{quote}{inner}{'*' if not dialect.null_value else '+'}{quote}"
        value = f"(?:{quoted}|(?:[^{quote}{sep}][^{sep}]*)?)"
        return f"^{value}(?:{sep}{value})*$"

    def read_together(self, payloads: pa.Array) -> pa.Array:
        """All ``payloads`` at once, nulls and empty ones included. Raises `NotTogetherError`."""
        if payloads.nbytes > MAX_TOGETHER:
            raise NotTogetherError
        try:
            texts = payloads.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise NotTogetherError from error
        given = validity(texts)
        present = (np.diff(offsets_and_data(texts)[0]) > 0) & given
        if present.all():
            columns = self._columns(texts)
        else:
            places = np.flatnonzero(present)
            try:
                columns = [spread(one, present) for one in self._columns(texts.filter(boolean(present)))]
            except NotTogetherError as error:
                raise NotTogetherError(None if error.row is None else int(places[error.row])) from error
        mask = None if given.all() else boolean(~given)
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=mask)

    def _columns(self, texts: pa.Array) -> list[pa.Array]:
        """The values of ``texts``, none of which is null or empty."""
        if not len(texts):
            return [pa.nulls(0, field.type) for field in self.type]
        self._check_lines(texts)
        names = [str(place) for place in range(self.type.num_fields)]
        joined = join_lines(texts)
        try:
            table = pv.read_csv(
                pa.BufferReader(joined),
                read_options=pv.ReadOptions(
                    use_threads=False, block_size=joined.size + 1, column_names=names
                ),
                parse_options=self._parse_options,
                convert_options=pv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    strings_can_be_null=False,
                    check_utf8=False,
                ),
            )
        except pa.ArrowInvalid as error:
            named = re.search(r"Row #([0-9]+):", str(error))
            row = int(named[1]) - 1 if named else len(texts)
            raise NotTogetherError(row if 0 <= row < len(texts) else None) from error
        # A text without line breaks is one row or, with others, less. So with as many rows as texts, each row
        # is that of its text.
        if table.num_rows != len(texts):
            raise NotTogetherError
        strings = [column.combine_chunks() for column in table.columns]
        return [self._cast(one, field.type) for one, field in zip(strings, self.type, strict=True)]

    @cached_property
    def _parse_options(self) -> pv.ParseOptions:
        dialect = self.dialect
        return pv.ParseOptions(
            delimiter=dialect.sep,
            quote_char=dialect.quote or False,
            double_quote=dialect.quote == dialect.escape,
            escape_char=False,
            newlines_in_values=False,
            ignore_empty_lines=False,
        )

    def _check_lines(self, texts: pa.Array) -> None:
        """Raise `NotTogetherError` for the first line that `pyarrow.csv` might read in another way."""
        offsets, data = offsets_and_data(texts)
        data = data[offsets[0] : offsets[-1]]
        breaks = np.flatnonzero((data == ord("\n")) | (data == ord("\r")))
        if len(breaks):
            raise NotTogetherError(_row_of(offsets, int(breaks[0])))
        if data[:3].tobytes() == b"\xef\xbb\xbf":  # it would be left out
            raise NotTogetherError(0)
        if self.dialect.quote and (data == ord(self.dialect.quote)).any():
            regular = np.asarray(pc.match_substring_regex(texts, self._regular))
            if not regular.all():
                raise NotTogetherError(int(np.argmin(regular)))

    def _cast(self, strings: pa.Array, kind: pa.DataType) -> pa.Array:
        """Raises `NotTogetherError` for a text that is not, or not surely, of ``kind``."""
        present = np.diff(offsets_and_data(strings)[0]) > 0
        if self.dialect.null_value:
            present &= ~np.asarray(pc.equal(strings, text_scalar(self.dialect.null_value)))
        if present.all():
            return self._cast_present(strings, kind)
        return spread(self._cast_present(strings.filter(boolean(present)), kind), present)

    def _cast_present(self, strings: pa.Array, kind: pa.DataType) -> pa.Array:
        if pa.types.is_string(kind) or not len(strings):
            return strings.cast(kind)
        _check_characters(strings, kind)
        try:
            array = self._parsed(strings, kind)
            check_values(array)
        except pa.ArrowInvalid as error:
            raise NotTogetherError from error
        return array

    def _parsed(self, strings: pa.Array, kind: pa.DataType) -> pa.Array:
        if pa.types.is_decimal(kind):
            _check_decimals(strings)
            # In 128 bits a large number would wrap around as it gets its scale.
            return strings.cast(pa.decimal256(76, kind.scale)).cast(kind)
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            return strings.cast(kind)
        try:
            return strings.cast(kind)
        except pa.ArrowInvalid:
            if self.zone is not dt.UTC:
                raise
            return strings.cast(pa.timestamp("us")).cast(kind)


_DIGITS: Final = b"0123456789"


def _characters(kind: pa.DataType) -> bytes:
    """Those of texts that Arrow reads as `CsvRows` does: it takes ``0x1f`` for an integer, and ``1`` for
    true."""
    types = pa.types
    if types.is_boolean(kind):
        return b"truefalsTRUEFALS"
    if types.is_integer(kind):
        return _DIGITS + b"-"
    if types.is_floating(kind) or types.is_decimal(kind):
        return _DIGITS + b"+-.eE"
    return _DIGITS + b"-" if types.is_date(kind) else _DIGITS + b"-:. TZ+"


def _check_characters(strings: pa.Array, kind: pa.DataType) -> None:
    allowed: npt.NDArray[np.bool_] = np.zeros(256, np.bool_)
    allowed[list(_characters(kind))] = True
    offsets, data = offsets_and_data(strings)
    fits = allowed[data[offsets[0] : offsets[-1]]]
    if not fits.all():
        raise NotTogetherError(None)


_MAX_PLAIN: Final = 76
"""Characters of a number without an exponent: more digits may wrap around in 256 bits."""
_DECIMAL: Final = rf"^(?:[^eE]{{0,{_MAX_PLAIN}}}|[^eE]{{1,37}}[eE][+-]?[0-3]?[0-9])$"


def _check_decimals(strings: pa.Array) -> None:
    """Raise `NotTogetherError` for numbers that may not fit 256 bits with all of their digits: Arrow does not
    notice, and takes powers of ten from beyond the end of its table, up to the end of the process."""
    offsets, data = offsets_and_data(strings)
    # All other characters of numbers are below `E`.
    is_plain = data[offsets[0] : offsets[-1]].max() < ord("E") and np.diff(offsets).max() <= _MAX_PLAIN
    if not is_plain and not pc.all(pc.match_substring_regex(strings, _DECIMAL)).as_py():
        raise NotTogetherError(None)


def _row_of(offsets: Any, place: int) -> int:
    """The text that has the byte ``place``, counted from the first one."""
    return int(np.searchsorted(offsets - offsets[0], place, side="right")) - 1
