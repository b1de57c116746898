"""`as_plain`: columns of any Arrow library as the types that formats take, which are those of Spark;
`check_distinct`: names of fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from .errors import FormatError

_INT32_MAX = 2**31 - 1
_VIEWS = ("string_view", "binary_view")
_REFUSED = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
    pa.ArrowIndexError,
    pa.ArrowCapacityError,
)


def check_distinct(names: Sequence[str], where: str = "") -> None:
    """Raise `FormatError` if a field of the struct at ``where`` (a name for people) appears twice."""
    if len(set(names)) != len(names):
        raise FormatError(f"A field appears twice{where and f' in {where}'}: {', '.join(names)}")


def as_plain(array: pa.Array) -> pa.Array:
    """``array`` with 32-bit offsets, without views and dictionaries, unsigned integers as the next larger
    signed ones, timestamps in microseconds. Raises `FormatError` if values would be lost, and for more than
    2 GiB of text or bytes in one column."""
    kind = plain_type(array.type)
    if kind == array.type:
        return array
    try:
        return _converted(array, kind) if _has_pitfalls(array.type) else _cast(array, kind)
    except _REFUSED as error:
        raise FormatError(f"a column of {array.type} can't be taken as {kind}: {error}") from error


def _has_pitfalls(kind: Any) -> bool:
    """True if Arrow's own cast may go wrong. Views of more than 2 GiB get wrapped offsets, a child of type
    null of a slice becomes too short, and a dictionary without words fails, also below a null."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_null(kind) or str(kind) in _VIEWS:
        return True
    return types.is_nested(kind) and any(_has_pitfalls(kind.field(i).type) for i in range(kind.num_fields))


def _cast(array: pa.Array, kind: Any) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        # Of a slice with 64-bit offsets Arrow looks at the place in the whole, not at the length.
        return pa.concat_arrays([array]).cast(kind)


def _converted(array: pa.Array, kind: Any) -> pa.Array:
    """As `_cast`, level by level: Arrow casts the leaves only, and nothing below a null."""
    types, given = pa.types, array.type
    if kind == given:
        return array
    if types.is_dictionary(given):
        return _converted(array.dictionary, kind).take(array.indices)
    if types.is_struct(given):
        fields = [_converted(field, one.type) for field, one in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=_nulls(array))
    if types.is_map(given):
        entries = _entries(array)
        keys, items = entries.flatten().flatten()
        offsets, mask = _offsets(entries), _nulls(array)
        keys, items = _converted(keys, kind.key_type), _converted(items, kind.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    if types.is_nested(given):
        elements = _converted(array.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(_offsets(array), elements, type=kind, mask=_nulls(array))
    if str(given) in _VIEWS and _view_bytes(array) > _INT32_MAX:
        raise FormatError(f"a column of {given} has more than 2 GiB: write fewer rows at once")
    return _cast(array, kind)


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _entries(maps: pa.MapArray) -> pa.ListArray:
    """Maps as lists of structs: Arrow flattens those alone."""
    structs = pa.StructArray.from_arrays([maps.keys, maps.items], names=["key", "value"])
    # A copy, as Arrow takes no mask beside offsets that are a slice.
    offsets = pa.concat_arrays([maps.offsets])
    return pa.ListArray.from_arrays(offsets, structs, mask=_nulls(maps))


def _offsets(lists: pa.Array) -> pa.Array:
    """Where the elements of each list begin in ``lists.flatten()``, which leaves out those of null lists."""
    import pyarrow.compute as pc  # late: most columns have no lists

    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(lists), 0)), out=offsets[1:])
    return pa.Array.from_buffers(pa.int64(), len(offsets), [None, pa.py_buffer(offsets)]).cast(pa.int32())


def _view_bytes(views: pa.Array) -> int:
    """The bytes of all values together, at most: any length may stand below a null. Arrow's cast to 32-bit
    offsets does not count them, and rows that share a value have more than the column takes in memory."""
    if not len(views):
        return 0
    fields = np.frombuffer(views.buffers()[1], np.uint32)
    lengths = fields[4 * views.offset : 4 * (views.offset + len(views)) : 4]
    return int(lengths.sum(dtype=np.int64))


def as_payloads(payloads: pa.Array) -> pa.Array:
    """``payloads`` as binary, which decoders take: other programs have large binary, views, text. Raises
    `FormatError` for anything but an array of bytes or text."""
    if not isinstance(payloads, pa.Array):
        raise FormatError(f"payloads are a pyarrow.Array, not a {type(payloads).__name__}")
    if pa.types.is_binary(payloads.type):
        return payloads
    plain = as_plain(payloads)
    if not (pa.types.is_binary(plain.type) or pa.types.is_string(plain.type)):
        raise FormatError(f"payloads are binary, not {payloads.type}")
    return plain.cast(pa.binary())


def plain_type(kind: Any) -> Any:
    """The type that `as_plain` makes of ``kind``. Raises `FormatError` for views of lists: Arrow's cast to
    lists leaves the last offset out, and of slices it gives other elements."""
    types = pa.types
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        raise FormatError(f"{kind} is not supported: make it a list<{kind.value_type}>")
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([_plain_field(one) for one in kind])
    if types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    if types.is_nested(kind) and hasattr(kind, "value_field"):
        return pa.list_(_plain_field(kind.value_field))
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    return _PLAIN.get(str(kind), kind)


def nulls_as_text(array: pa.Array) -> pa.Array:
    """``array`` with text in place of Arrow's type null, for formats that have no such type."""
    kind = text_for_null(array.type)
    return array if kind == array.type else _converted(array, kind)


def nulls_as(array: pa.Array, given: Any) -> pa.Array:
    """``array`` as ``given``, if that differs only where ``array`` has Arrow's type null."""
    if array.type == given or type_for_null(array.type, given) != given:
        return array
    return _converted(array, given)


def text_for_null(kind: Any) -> Any:
    """``kind`` with text in place of null, the type that data frames give to a column without a value."""
    return type_for_null(kind, None)


def type_for_null(kind: Any, given: Any) -> Any:
    """``kind`` with the type that ``given`` has at the same place instead of null; text where it has none."""
    types = pa.types
    if types.is_null(kind):
        return pa.string() if given is None else given
    if types.is_struct(kind):
        is_like = given is not None and types.is_struct(given) and len(given) == len(kind)
        others = [one.type for one in given] if is_like else [None] * len(kind)
        fields = zip(kind, others, strict=True)
        return pa.struct([one.with_type(type_for_null(one.type, other)) for one, other in fields])
    if types.is_map(kind):
        other = given.item_type if given is not None and types.is_map(given) else None
        return pa.map_(kind.key_field, kind.item_field.with_type(type_for_null(kind.item_type, other)))
    if types.is_list(kind):
        other = given.value_type if given is not None and types.is_list(given) else None
        return pa.list_(kind.value_field.with_type(type_for_null(kind.value_type, other)))
    return kind


def place_of_null(kind: Any, place: str = "") -> str | None:
    """Where in ``kind`` the type null is, for people; None if it is nowhere."""
    types = pa.types
    parts = []
    if types.is_null(kind):
        return place
    if types.is_struct(kind):
        parts = [(one.type, f"{place}.{one.name}" if place else one.name) for one in kind]
    elif types.is_map(kind):
        parts = [(kind.item_type, f"{place}{{}}")]
    elif types.is_list(kind):
        parts = [(kind.value_type, f"{place}[]")]
    found = (place_of_null(one, where) for one, where in parts)
    return next((one for one in found if one is not None), None)


def _plain_field(one: Any) -> Any:
    return one.with_type(plain_type(one.type))


_PLAIN = {
    "large_string": pa.string(),
    "string_view": pa.string(),
    "large_binary": pa.binary(),
    "binary_view": pa.binary(),
    "uint8": pa.int16(),
    "uint16": pa.int32(),
    "uint32": pa.int64(),
    "uint64": pa.decimal128(20, 0),
    "halffloat": pa.float32(),
    "date64[ms]": pa.date32(),
}
