"""`bind`: the codec of a message for one type: which field goes where, and that each of them can."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..arrays import binaries, numpy_type, wrap
from ..errors import FormatError
from ..plain_types import check_distinct, text_for_null
from .descriptors import is_repeated, is_required
from .message_types import is_map
from .messages import ListCodec, MapCodec, MessageField, StructCodec
from .scalars import (
    RAW_TYPES,
    TYPE_BYTES,
    TYPE_ENUM,
    TYPE_GROUP,
    TYPE_INT32,
    TYPE_MESSAGE,
    TYPE_STRING,
    ColumnCodec,
    EnumCodec,
    IntegerCodec,
    PlainCodec,
)
from .well_known import DURATION, TIMESTAMP, TimeCodec, WrapperCodec, wrapped, zero
from .wire import WireField

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UINT64_DIGITS = 20
_NEVER = PlainCodec(TYPE_STRING)
"""For a column without values, which has text in place of Arrow's type null: nothing of it is written."""


def bind(
    message: Descriptor,
    kind: pa.DataType,
    *,
    emits_defaults: bool = False,
    reads: bool = True,
    path: str = "",
) -> StructCodec:
    """The codec between ``message`` and the struct ``kind``, by the names of fields.

    With ``emits_defaults`` absent fields without presence are zeros instead of nulls. ``reads`` adds
    the fields without which oneofs can't be read. Without it a field may be of type null, and the rows have
    text in place of that (`nulls_as_text`). Raises `FormatError`.
    """
    where = f"`{path}`" if path else "the payload"
    if not pa.types.is_struct(kind) or not kind.num_fields:
        raise FormatError(
            f"{where} is the message {message.full_name}: its type must be a struct, not {kind}"
        )
    names = [one.name for one in kind]
    check_distinct(names, where)
    fields = []
    for one in kind:
        found = message.fields_by_name.get(one.name)
        place = f"{path}.{one.name}" if path else one.name
        if found is None:
            raise FormatError(_no_field(message, one.name))
        codec = _codec(found, one.type, emits_defaults, reads, place)
        fields.append(_field(found, codec, emits_defaults, is_absent=pa.types.is_null(one.type)))
    return StructCodec(kind, tuple(fields), _unread(message, set(names)) if reads else ())


def _no_field(message: Descriptor, name: str) -> str:
    lower = {known.lower(): known for known in message.fields_by_name}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f"; did you mean '{lower[near[0]]}'?" if near else ""
    return f"The message {message.full_name} has no field '{name}'{hint}"


def _field(
    found: FieldDescriptor, codec: ColumnCodec, emits_defaults: bool, *, is_absent: bool
) -> MessageField:
    default = None
    if found.has_default_value:
        default = _raw_value(found)
    elif emits_defaults and not is_repeated(found) and not found.has_presence:
        default = zero(RAW_TYPES[found.type])
    return MessageField(
        name=found.name,
        number=found.number,
        codec=codec,
        is_repeated=is_repeated(found) and not is_absent,
        is_required=is_required(found),
        has_presence=found.has_presence or is_absent,
        default=default,
        oneof=_oneof(found),
    )


def _oneof(found: FieldDescriptor) -> int | None:
    """A number for the oneof of several members that the field is in."""
    oneof = found.containing_oneof
    return None if oneof is None or len(oneof.fields) < 2 else oneof.index


def _raw_value(found: FieldDescriptor) -> pa.Array:
    kind, value = RAW_TYPES[found.type], found.default_value
    if pa.types.is_string(kind):
        return binaries([value.encode()]).cast(pa.string())
    if pa.types.is_binary(kind):
        return binaries([value])
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes([value]))])
    return wrap(np.array([value], numpy_type(kind)), kind)


def _unread(message: Descriptor, names: set[str]) -> tuple[WireField, ...]:
    unread = []
    for oneof in message.oneofs:
        if len(oneof.fields) > 1 and any(one.name in names for one in oneof.fields):
            for one in oneof.fields:
                if one.name not in names and one.type != TYPE_GROUP:
                    # Text is not looked at, and a message not parsed: both are as bytes on the wire.
                    kind = {TYPE_MESSAGE: TYPE_BYTES, TYPE_STRING: TYPE_BYTES, TYPE_ENUM: TYPE_INT32}
                    unread.append(
                        WireField(one.number, (kind.get(one.type, one.type), ""), oneof=_oneof(one))
                    )
    return tuple(unread)


def _codec(found: FieldDescriptor, kind: pa.DataType, emits: bool, reads: bool, path: str) -> ColumnCodec:
    if not reads and pa.types.is_null(kind):
        return _NEVER
    if is_map(found):
        if not pa.types.is_map(kind):
            raise FormatError(f"`{path}` is a map, not {kind}")
        entry = found.message_type.fields_by_name
        key = _element(entry["key"], kind.key_type, emits, reads, f"{path}{{}}")
        value = _part(entry["value"], kind.item_type, emits, reads, f"{path}{{}}")
        return MapCodec(kind if reads else text_for_null(kind), key, value)
    if is_repeated(found):
        if not pa.types.is_list(kind):
            raise FormatError(f"`{path}` is repeated: its type must be an array, not {kind}")
        return ListCodec(kind, _part(found, kind.value_type, emits, reads, f"{path}[]"))
    return _element(found, kind, emits, reads, path)


def _part(found: FieldDescriptor, kind: pa.DataType, emits: bool, reads: bool, path: str) -> ColumnCodec:
    """Of an array or a map: one that is null is refused when it is written."""
    is_never = not reads and pa.types.is_null(kind)
    return _NEVER if is_never else _element(found, kind, emits, reads, path)


def _element(found: FieldDescriptor, kind: pa.DataType, emits: bool, reads: bool, path: str) -> ColumnCodec:
    if found.type == TYPE_GROUP:
        raise FormatError(f"`{path}` is a group, which is not supported")
    if found.type == TYPE_MESSAGE:
        return _message(found.message_type, kind, emits, reads, path)
    if found.type == TYPE_ENUM and kind in (pa.string(), pa.int32()):
        return _enum(found.enum_type, kind)
    codec = None if found.type == TYPE_ENUM else _scalar(found.type, kind)
    if codec is None:
        name = found.enum_type.full_name if found.type == TYPE_ENUM else RAW_TYPES[found.type]
        raise FormatError(f"`{path}` is {name} in the message, which can't be {kind}")
    return codec


def _message(message: Descriptor, kind: pa.DataType, emits: bool, reads: bool, path: str) -> ColumnCodec:
    name = message.full_name
    if name == TIMESTAMP and pa.types.is_timestamp(kind) and kind.unit == "us":
        _check_time(message)
        return TimeCodec(kind)
    if name == DURATION and kind == pa.duration("us"):
        _check_time(message)
        return TimeCodec(kind)
    value = wrapped(message)
    codec = None if value is None else _scalar(value.type, kind)
    if codec is not None:
        return WrapperCodec(codec)
    return bind(message, kind, emits_defaults=emits, reads=reads, path=path)


def _check_time(message: Descriptor) -> None:
    """A descriptor may call anything so."""
    shape = [(one.number, one.type, is_repeated(one)) for one in message.fields]
    if shape != [(1, 3, False), (2, TYPE_INT32, False)]:
        raise FormatError(f"{message.full_name} is not Google's")


def _scalar(number: int, kind: pa.DataType) -> ColumnCodec | None:
    raw = RAW_TYPES.get(number)
    if raw is None:
        return None
    if kind == raw and not pa.types.is_unsigned_integer(raw):
        return PlainCodec(number)
    if pa.types.is_integer(raw) and kind in _SIGNED:
        return IntegerCodec(number, kind)
    is_wide = pa.types.is_decimal128(kind) and kind.scale == 0 and kind.precision >= _UINT64_DIGITS
    return IntegerCodec(number, kind) if pa.types.is_uint64(raw) and is_wide else None


def _enum(enum: EnumDescriptor, kind: pa.DataType) -> ColumnCodec:
    values: Any = enum.values
    names = tuple((one.name, one.number) for one in values)
    return EnumCodec(kind, enum.name, names, enum.is_closed)
