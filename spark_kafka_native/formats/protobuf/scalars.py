"""Codecs of fields that are one value: numbers, text, bytes, enums."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..arrays import hide, numbers, numpy_type, offsets_and_data, strings, validity, wrap
from .cells import Cells
from .wire import WireFile


class ColumnCodec(Protocol):
    """Between the columns that `ptars` reads and writes, called raw, and those of the user."""

    @property
    def type(self) -> pa.DataType:
        """Of the user's column."""

    def declare(self, file: WireFile) -> tuple[int, str]:
        """The type of the field in the descriptor for `ptars`, and the name of its message."""

    def read(self, raw: pa.Array, cells: Cells) -> pa.Array:
        """The user's column. Null where ``raw`` is, and where a value does not fit, which ``cells`` notes."""

    def write(self, values: pa.Array, cells: Cells) -> pa.Array:
        """The raw column. ``cells`` notes values that do not fit."""


# The numbers of FieldDescriptorProto.Type (descriptor.proto).
TYPE_DOUBLE, TYPE_FLOAT, TYPE_BOOL, TYPE_STRING, TYPE_MESSAGE, TYPE_BYTES, TYPE_ENUM = 1, 2, 8, 9, 11, 12, 14
TYPE_INT64, TYPE_INT32, TYPE_GROUP = 3, 5, 10
RAW_TYPES: Final[Mapping[int, pa.DataType]] = {
    TYPE_DOUBLE: pa.float64(),
    TYPE_FLOAT: pa.float32(),
    TYPE_INT64: pa.int64(),
    4: pa.uint64(),
    TYPE_INT32: pa.int32(),
    6: pa.uint64(),
    7: pa.uint32(),
    TYPE_BOOL: pa.bool_(),
    TYPE_STRING: pa.string(),
    TYPE_BYTES: pa.binary(),
    13: pa.uint32(),
    TYPE_ENUM: pa.int32(),
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
"""What `ptars` makes of each type of a scalar field."""


def is_zero(raw: pa.Array) -> npt.NDArray[np.bool_]:
    """Where a raw scalar is what a field without presence is when it is absent; a null is none. A negative
    zero is not: its bits are set."""
    if pa.types.is_string(raw.type) or pa.types.is_binary(raw.type):
        zero = np.diff(offsets_and_data(raw)[0]) == 0
    elif pa.types.is_boolean(raw.type):
        zero = numbers(raw.cast(pa.uint8())) == 0
    else:
        values = numbers(raw)
        zero = values.view(f"u{values.itemsize}") == 0
    return zero & validity(raw) if len(raw) else np.zeros(0, np.bool_)


@dataclass(frozen=True)
class PlainCodec:
    """Both columns are the same."""

    number: int
    """Of the field's type."""

    @property
    def type(self) -> pa.DataType:
        """As `ColumnCodec.type`."""
        return RAW_TYPES[self.number]

    def declare(self, file: WireFile) -> tuple[int, str]:  # noqa: ARG002
        """As `ColumnCodec.declare`."""
        return self.number, ""

    def read(self, raw: pa.Array, cells: Cells) -> pa.Array:  # noqa: ARG002
        """As `ColumnCodec.read`."""
        return raw

    def write(self, values: pa.Array, cells: Cells) -> pa.Array:
        """As `ColumnCodec.write`; text must be UTF-8."""
        if not pa.types.is_string(values.type):
            return values
        try:
            # Spark's strings may hold any bytes, and `ptars` takes them for UTF-8.
            return values.cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            cells.refuse(_not_utf8(values.cast(pa.binary())), "is not UTF-8")
            return values


def _not_utf8(values: pa.Array) -> npt.NDArray[np.bool_]:
    bad = np.zeros(len(values), np.bool_)
    for index, value in enumerate(values.to_pylist()):
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            bad[index] = True
    return bad


@dataclass(frozen=True)
class IntegerCodec:
    """Integers as integers of another width, or as decimals without a fraction."""

    number: int
    type: pa.DataType

    def declare(self, file: WireFile) -> tuple[int, str]:  # noqa: ARG002
        """As `ColumnCodec.declare`."""
        return self.number, ""

    def read(self, raw: pa.Array, cells: Cells) -> pa.Array:
        """As `ColumnCodec.read`."""
        if pa.types.is_decimal(self.type):
            return raw.cast(self.type)
        return _convert(raw, self.type, cells)

    def write(self, values: pa.Array, cells: Cells) -> pa.Array:
        """As `ColumnCodec.write`."""
        kind = RAW_TYPES[self.number]
        if not pa.types.is_decimal(values.type):
            return _convert(values, kind, cells)
        try:
            return values.cast(kind)
        except pa.ArrowInvalid:
            numbers = values.to_pylist()
            outside = [one is not None and not 0 <= one < 2**64 for one in numbers]
            cells.refuse(np.array(outside, np.bool_), f"does not fit {kind}")
            return pa.nulls(len(values), kind)


def _convert(values: pa.Array, kind: pa.DataType, cells: Cells) -> pa.Array:
    if values.type == kind:
        return values
    given, valid = numbers(values), validity(values)
    limits = np.iinfo(numpy_type(kind))
    outside = given > limits.max if limits.max < np.iinfo(given.dtype).max else np.zeros(len(given), np.bool_)
    if limits.min > np.iinfo(given.dtype).min:
        outside = outside | (given < limits.min)
    outside &= valid
    cells.refuse(outside, f"does not fit {kind}")
    return wrap(given.astype(numpy_type(kind)), kind, valid & ~outside)


@dataclass(frozen=True)
class EnumCodec:
    """The names of an enum's values, or their numbers."""

    type: pa.DataType
    name: str
    """Of the enum."""
    numbers_by_name: tuple[tuple[str, int], ...]
    """In the order of the enum: the first name of a number is the one that is read."""
    is_closed: bool
    """True if a number that is not in the enum counts as absent (proto2)."""

    def declare(self, file: WireFile) -> tuple[int, str]:  # noqa: ARG002
        """As `ColumnCodec.declare`; as numbers, of which any may come."""
        return TYPE_INT32, ""

    @cached_property
    def _names(self) -> dict[int, str]:
        return {number: name for name, number in reversed(self.numbers_by_name)}

    @property
    def _unknown(self) -> str:
        return f"UNKNOWN_ENUM_VALUE_{self.name}_"

    @cached_property
    def _known(self) -> npt.NDArray[np.int32]:
        return np.array(sorted(self._names), np.int32)

    def read(self, raw: pa.Array, cells: Cells) -> pa.Array:  # noqa: ARG002
        """As `ColumnCodec.read`. A number without a name is called as Java's runtime calls it."""
        raw = self.without_unknown(raw)
        given, valid = numbers(raw), validity(raw)
        places, strange = self._places(raw)
        if pa.types.is_integer(self.type):
            return wrap(given, self.type, valid)
        names = [self._names[number] for number in self._known.tolist()]
        if strange.any():
            others = np.unique(given[strange])
            names += [f"{self._unknown}{number}" for number in others.tolist()]
            places[strange] = len(self._known) + np.searchsorted(others, given[strange])
        return strings(names).take(wrap(places, pa.int64(), valid))

    def without_unknown(self, raw: pa.Array) -> pa.Array:
        """``raw``, null where an enum that is closed does not have the number."""
        return hide(raw, self._places(raw)[1]) if self.is_closed else raw

    def _places(self, raw: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The places of numbers in `_known`, and which of them are not there."""
        given = numbers(raw)
        places = np.searchsorted(self._known, given).clip(max=len(self._known) - 1)
        return places, (self._known[places] != given) & validity(raw)

    def write(self, values: pa.Array, cells: Cells) -> pa.Array:
        """As `ColumnCodec.write`; also the names that `read` gives to unknown numbers."""
        if pa.types.is_integer(self.type):
            given, valid = numbers(values), validity(values)
            if self.is_closed:
                cells.refuse(valid & ~np.isin(given, self._known), f"is no number of the enum {self.name}")
            return values
        encoded = values.dictionary_encode()
        found = [self._number(one) for one in _texts(encoded.dictionary)]
        indices, valid = numbers(encoded.indices), validity(encoded.indices)
        missing = np.array([one is None for one in found] or [True], np.bool_)
        places = np.where(valid, indices, 0)
        cells.refuse(missing[places] & valid, f"is no name of the enum {self.name}")
        return wrap(np.array([one or 0 for one in found] or [0], np.int32)[places], pa.int32(), valid)

    def _number(self, name: str) -> int | None:
        found = dict(self.numbers_by_name).get(name)
        unknown = re.fullmatch(re.escape(self._unknown) + "(-?[0-9]{1,10})", name)
        if found is not None or unknown is None or self.is_closed:
            return found
        number = int(unknown[1])
        return number if -(2**31) <= number < 2**31 else None


def _texts(array: pa.Array) -> list[Any]:
    return [one.decode(errors="replace") for one in array.cast(pa.binary()).to_pylist()]
