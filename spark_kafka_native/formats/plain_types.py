"""`as_plain`: columns of any Arrow library as the types that formats take, which are those of Spark;
`check_distinct`: names of fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from .errors import FormatError


def check_distinct(names: Sequence[str], where: str = "") -> None:
    """Raise `FormatError` if a field of the struct at ``where`` (a name for people) appears twice."""
    if len(set(names)) != len(names):
        raise FormatError(f"A field appears twice{where and f' in {where}'}: {', '.join(names)}")


def as_plain(array: pa.Array) -> pa.Array:
    """``array`` with 32-bit offsets, without views and dictionaries, unsigned integers as the next larger
    signed ones, timestamps in microseconds. Raises `FormatError` if values would be lost."""
    kind = plain_type(array.type)
    if kind == array.type:
        return array
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise FormatError(f"a column of {array.type} can't be taken as {kind}: {error}") from error


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
