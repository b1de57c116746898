"""`JsonFormat`: payloads that are JSON objects, read with `pyarrow.json` and written with Arrow's kernels.

A good batch costs no Python object per record. `json_rows` reads what `pyarrow.json` refuses.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from .arrays import boolean, offsets_and_data, text_scalar, validity, wrap
from .errors import FormatError
from .format import Decoded
from .isolate import NotTogetherError, decode_isolated
from .json_rows import JsonRows
from .json_write import JsonEncoder

MAX_TOGETHER: Final = 2**30
"""Bytes that are read at once: a block of `pyarrow.json` is limited to 2 GiB."""


class JsonFormat:
    """One JSON object in each payload; its members are the fields of a struct.

    Setting ``timezone``: the zone of timestamps that name none, default ``UTC``.
    """

    def decoder(self, type: pa.DataType, settings: Mapping[str, str]) -> JsonDecoder:
        """A decoder into the struct ``type``. Raises `FormatError`."""
        _check_struct(type)
        _check_readable(type, "")
        return JsonDecoder(type=type, zone=parse_zone(settings.get("timezone", "UTC")))

    def encoder(self, type: pa.DataType, settings: Mapping[str, str]) -> JsonEncoder:  # noqa: ARG002
        """An encoder of the struct ``type``. Raises `FormatError`."""
        _check_struct(type)
        _check_readable(type, "")
        return JsonEncoder()


def parse_zone(name: str) -> dt.tzinfo:
    """The time zone called ``name``. Raises `FormatError`."""
    try:
        return dt.UTC if name.upper() in ("UTC", "Z") else ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        raise FormatError(f"timeZone: there is no time zone '{name}'") from error


def _check_struct(kind: pa.DataType) -> None:
    if not pa.types.is_struct(kind):
        raise FormatError(f"JSON needs a struct, not {kind}")


_SCALARS: Final = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "float", "double", "string", "binary", "date32[day]"]
)


def _check_readable(kind: pa.DataType, path: str) -> None:
    """Raise `FormatError` for what JSON has no rule for."""
    types = pa.types
    if types.is_struct(kind):
        _check_names([f.name for f in kind], path)
        for f in kind:
            _check_readable(f.type, f"{path}.{f.name}" if path else f.name)
    elif types.is_map(kind) and types.is_string(kind.key_type):
        _check_readable(kind.item_type, f"{path}{{}}")
    elif types.is_list(kind):
        _check_readable(kind.value_type, f"{path}[]")
    elif str(kind) not in _SCALARS and not types.is_decimal128(kind) and not _is_microseconds(kind):
        raise FormatError(f"JSON can't hold the type {kind} of `{path}`")


def _check_names(names: list[str], path: str) -> None:
    where = f" in `{path}`" if path else ""
    if not names:
        raise FormatError(f"JSON needs a struct with at least one field{where}")
    if len(set(names)) != len(names):
        raise FormatError(f"A field appears twice{where}: {', '.join(names)}")


def _is_microseconds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.unit == "us")


@dataclass(frozen=True, kw_only=True)
class JsonDecoder:
    """Decodes JSON objects into one struct type."""

    type: pa.DataType
    zone: dt.tzinfo

    def decode(self, payloads: pa.Array) -> Decoded:
        """As `Decoder.decode`. An empty payload, or one of white space, is null, as in ``from_json``."""
        if self._together is None:
            return self._rows.read(payloads)
        return decode_isolated(payloads, self.read_together, self._rows.read)

    @cached_property
    def _rows(self) -> JsonRows:
        return JsonRows(self.type, self.zone)

    @cached_property
    def _together(self) -> pj.ParseOptions | None:
        """How `pyarrow.json` reads the type; None if it can't."""
        kind = _parsed_type(self.type, naive_is_utc=self.zone is dt.UTC)
        if kind is None:
            return None
        return pj.ParseOptions(explicit_schema=pa.schema(list(kind)), unexpected_field_behavior="ignore")

    def read_together(self, payloads: pa.Array) -> pa.Array:
        """All ``payloads`` at once, nulls and empty ones included. Raises `NotTogetherError`."""
        if payloads.nbytes > MAX_TOGETHER:
            raise NotTogetherError
        try:
            # `pyarrow.json` does not check that text is UTF-8.
            texts = payloads.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise NotTogetherError from error
        if not texts.null_count and _first_that_is_no_object(texts) is None:
            return self._parse(texts)
        texts = pc.ascii_trim(texts, " \t\r\n")
        present = (np.diff(offsets_and_data(texts)[0]) > 0) & validity(texts)
        texts = texts.filter(boolean(present))
        try:
            if (bad := _first_that_is_no_object(texts)) is not None:
                raise NotTogetherError(bad)
            return _spread(self._parse(texts), present)
        except NotTogetherError as error:
            row = None if error.row is None else int(np.flatnonzero(present)[error.row])
            raise NotTogetherError(row) from error

    def _parse(self, texts: pa.Array) -> pa.Array:
        """``texts``, each of which begins with a brace and ends with one, as structs."""
        if not len(texts):
            return pa.nulls(0, self.type)
        joined = _joined_by_newline(texts)
        try:
            table = pj.read_json(
                pa.BufferReader(joined),
                read_options=pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
                parse_options=self._together,
            )
            struct = table.to_struct_array().combine_chunks()
            struct = struct if struct.type == self.type else struct.cast(self.type)
            _check_values(struct)
        except pa.ArrowInvalid as error:
            named = re.search(r" in row ([0-9]+)$", str(error))
            row = int(named[1]) if named else len(texts)
            raise NotTogetherError(row if row < len(texts) else None) from error
        # Each text is one object or more: `{` can't follow `}` inside an object, and a newline can't be in a
        # string. So with as many rows as texts, each row is that of its text.
        if len(struct) != len(texts):
            raise NotTogetherError
        return struct


_DECIMAL128_DIGITS: Final = 38
_MIN_DAYS, _MAX_DAYS = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, the first and the last day that Python knows."""
_DAY_US: Final = 86_400_000_000


def _check_values(array: pa.Array) -> None:
    """Raise `pa.ArrowInvalid` for values that `pyarrow.json` lets pass: decimals with more digits than their
    type, and years before 1 or after 9999."""
    types = pa.types
    kind = array.type
    if types.is_struct(kind):
        for child in array.flatten():
            _check_values(child)
    elif types.is_list(kind):
        _check_values(array.flatten())
    elif types.is_decimal(kind):
        array.validate(full=True)
    elif types.is_timestamp(kind):
        _check_range(array.view(pa.int64()), _MIN_DAYS * _DAY_US, (_MAX_DAYS + 1) * _DAY_US - 1)
    elif types.is_date32(kind):
        _check_range(array.view(pa.int32()), _MIN_DAYS, _MAX_DAYS)


def _check_range(array: pa.Array, least: int, most: int) -> None:
    values = np.frombuffer(array.buffers()[1], array.type.to_pandas_dtype())[array.offset :][: len(array)]
    outside = ((values < least) | (values > most)) & validity(array)
    if outside.any():
        raise pa.ArrowInvalid("a year before 1 or after 9999")


def _parsed_type(kind: pa.DataType, *, naive_is_utc: bool) -> pa.DataType | None:
    """The type that `pyarrow.json` is asked for, which casts to ``kind``; None if there is none.

    It can't read dates and maps, takes text for binary values, and takes timestamps without a zone for UTC,
    even where the type has no zone.
    """
    types = pa.types
    if types.is_struct(kind):
        fields = [(f.name, _parsed_type(f.type, naive_is_utc=naive_is_utc)) for f in kind]
        return None if any(one is None for _, one in fields) else pa.struct(fields)
    if types.is_list(kind):
        element = _parsed_type(kind.value_type, naive_is_utc=naive_is_utc)
        return None if element is None else pa.list_(element)
    if types.is_date32(kind) or (types.is_timestamp(kind) and kind.tz is None):
        return pa.string()
    if types.is_map(kind) or types.is_binary(kind):
        return None
    if types.is_decimal(kind) and kind.precision + kind.scale > _DECIMAL128_DIGITS:
        # In 128 bits a large number would wrap around as it gets its scale; the cast checks it.
        return pa.decimal256(kind.precision, kind.scale)
    return kind if naive_is_utc or not types.is_timestamp(kind) else None


def _first_that_is_no_object(texts: pa.Array) -> int | None:
    """The first of ``texts`` that does not begin with ``{`` and end with ``}``; None if all do."""
    if not len(texts):
        return None
    offsets, data = offsets_and_data(texts)
    if not len(data):
        return 0
    # An empty text at an end of the data has no byte of its own there: its length says that it is bad.
    framed = (data[offsets[:-1].clip(max=len(data) - 1)] == ord("{")) & (data[offsets[1:] - 1] == ord("}"))
    framed &= np.diff(offsets) >= 2
    return None if framed.all() else int(np.argmin(framed))


_NEWLINE: Final = text_scalar("\n")


def _joined_by_newline(texts: pa.Array) -> Any:
    """One buffer."""
    ends = wrap(np.array([0, len(texts)], np.int32), pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(ends, texts), _NEWLINE)[0].as_buffer()


def _spread(array: pa.Array, present: npt.NDArray[np.bool_]) -> pa.Array:
    """``array``'s rows where ``present`` is true, nulls where it is not."""
    return array.take(wrap(np.cumsum(present) - 1, pa.int64(), present))
