"""Codecs of ``google.protobuf.Timestamp``, ``Duration`` and the wrappers, which have types of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..arrays import bitmap, hide, numbers, validity, wrap
from .cells import Cells
from .descriptors import is_repeated
from .scalars import RAW_TYPES, TYPE_INT32, TYPE_INT64, TYPE_MESSAGE, ColumnCodec, is_zero
from .wire import WireField, WireFile

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
TIMESTAMP: Final = "google.protobuf.Timestamp"
DURATION: Final = "google.protobuf.Duration"
_MIN_S, _MAX_S = -62_135_596_800, 253_402_300_799
"""0001-01-01 and the last second of 9999, the limits of a ``Timestamp`` (timestamp.proto)."""
_MAX_DURATION_S: Final = 315_576_000_000
"""About 10,000 years, the limit of a ``Duration`` (duration.proto)."""


def wrapped(message: Descriptor) -> FieldDescriptor | None:
    """The only field of a wrapper; None if ``message`` is none. A descriptor may call anything so."""
    fields = message.fields
    is_one = message.full_name in WRAPPERS and len(fields) == 1 and fields[0].number == 1
    return fields[0] if is_one and not is_repeated(fields[0]) and fields[0].type in RAW_TYPES else None


@dataclass(frozen=True)
class TimeCodec:
    """A ``Timestamp`` or a ``Duration``, in microseconds; nanoseconds below are cut off."""

    type: pa.DataType

    def declare(self, file: WireFile) -> tuple[int, str]:
        """As `ColumnCodec.declare`."""
        fields = [WireField(1, (TYPE_INT64, "")), WireField(2, (TYPE_INT32, ""))]
        return TYPE_MESSAGE, file.add_message(fields)

    def read(self, raw: pa.Array, cells: Cells) -> pa.Array:
        """As `ColumnCodec.read`."""
        seconds, nanos = (_or_zero(raw.field(index)) for index in (0, 1))
        nanos = nanos.astype(np.int64)
        valid = validity(raw)
        if pa.types.is_duration(self.type):
            outside = (seconds < -_MAX_DURATION_S) | (seconds > _MAX_DURATION_S)
            outside |= abs(nanos) >= 1_000_000_000
            outside |= ((seconds < 0) & (nanos > 0)) | ((seconds > 0) & (nanos < 0))
            # Toward zero, as the seconds are.
            micros = np.where(nanos < 0, -(-nanos // 1_000), nanos // 1_000)
        else:
            outside = (seconds < _MIN_S) | (seconds > _MAX_S) | (nanos < 0) | (nanos >= 1_000_000_000)
            micros = nanos // 1_000
        outside &= valid
        cells.refuse(outside, "is out of the range of its type")
        seconds = np.where(outside, 0, seconds)
        return wrap(seconds * 1_000_000 + micros, self.type, valid & ~outside)

    def write(self, values: pa.Array, cells: Cells) -> pa.Array:
        """As `ColumnCodec.write`."""
        micros, valid = numbers(values.view(pa.int64())), validity(values)
        seconds = micros // 1_000_000
        nanos = (micros - seconds * 1_000_000) * 1_000
        if pa.types.is_duration(self.type):
            is_mixed = (seconds < 0) & (nanos > 0)
            seconds, nanos = seconds + is_mixed, nanos - is_mixed * 1_000_000_000
            outside = abs(seconds) > _MAX_DURATION_S
        else:
            outside = (seconds < _MIN_S) | (seconds > _MAX_S)
        cells.refuse(outside & valid, "is out of the range of its type")
        parts = [
            wrap(seconds, pa.int64(), seconds != 0),
            wrap(nanos.astype(np.int32), pa.int32(), nanos != 0),
        ]
        return struct(parts, ["f1", "f2"], valid)


def _or_zero(array: pa.Array) -> npt.NDArray[Any]:
    return np.where(validity(array), numbers(array), 0)


def struct(columns: list[pa.Array], names: list[str], valid: npt.NDArray[np.bool_]) -> pa.Array:
    """A struct of ``columns``, null where not ``valid``."""
    fields = [pa.field(name, one.type) for name, one in zip(names, columns, strict=True)]
    return pa.Array.from_buffers(pa.struct(fields), len(valid), [bitmap(valid)], children=columns)


@dataclass(frozen=True)
class WrapperCodec:
    """The value in a wrapper, null where there is no wrapper."""

    value: ColumnCodec

    @property
    def type(self) -> pa.DataType:
        """As `ColumnCodec.type`."""
        return self.value.type

    def declare(self, file: WireFile) -> tuple[int, str]:
        """As `ColumnCodec.declare`."""
        return TYPE_MESSAGE, file.add_message([WireField(1, self.value.declare(file))])

    def read(self, raw: pa.Array, cells: Cells) -> pa.Array:
        """As `ColumnCodec.read`. A wrapper without a value has the zero of its type."""
        inner = raw.field(0)
        absent = validity(raw) & ~validity(inner)
        if absent.any():
            inner = fill(inner, absent)
        return self.value.read(inner, cells)

    def write(self, values: pa.Array, cells: Cells) -> pa.Array:
        """As `ColumnCodec.write`."""
        inner = self.value.write(values, cells)
        return struct([hide(inner, is_zero(inner))], ["f1"], validity(values))


def zero(kind: pa.DataType) -> pa.Array:
    """One raw value, that of an absent field without presence."""
    width = 8 if pa.types.is_string(kind) or pa.types.is_binary(kind) else 0
    buffers = [None, pa.py_buffer(bytes(8)), *([pa.py_buffer(b"")] if width else [])]
    return pa.Array.from_buffers(kind, 1, buffers)


def fill(values: pa.Array, where: npt.NDArray[np.bool_], value: pa.Array | None = None) -> pa.Array:
    """``values`` with the only element of ``value``, by default zero, where ``where`` is true."""
    places = np.arange(len(values))
    places[where] = len(values)
    return pa.concat_arrays([values, zero(values.type) if value is None else value]).take(
        wrap(places, pa.int64())
    )
