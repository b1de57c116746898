"""The Arrow type of a message, as Spark's ``from_protobuf`` would have it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ..errors import FormatError
from .descriptors import is_repeated
from .scalars import RAW_TYPES, TYPE_ENUM, TYPE_GROUP, TYPE_MESSAGE
from .well_known import DURATION, TIMESTAMP, wrapped

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

MAX_DEPTH_ALLOWED: Final = 10
"""Of ``recursive.fields.max.depth``, as in Spark."""
MAX_DEPTH: Final = 100
"""Messages in messages; protobuf's own parsers stop there."""
MAX_FIELDS: Final = 10_000
"""Fields in one type, those of nested messages counted wherever they stand."""
_TIMES: Final = {TIMESTAMP: pa.timestamp("us", "UTC"), DURATION: pa.duration("us")}
_REFUSED: Final = {
    "convert.any.fields.to.json": "an Any is read as struct<type_url, value>",
    "retain.empty.message.types": "messages without fields are left out",
}


@dataclass(frozen=True, kw_only=True)
class TypeChoices:
    """Spark's options that decide about types."""

    enums_as_ints: bool = False
    upcasts_unsigned: bool = True
    unwraps: bool = False
    max_depth: int = -1
    emits_defaults: bool = False

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> TypeChoices:
        """Raises `FormatError`."""
        for name, instead in _REFUSED.items():
            if _flag(settings, name, False):
                raise FormatError(f"{name} is not supported: {instead}")
        depth = settings.get("recursive.fields.max.depth", "-1").strip()
        if depth != "-1" and (
            not re.fullmatch("[0-9]{1,4}", depth) or not 1 <= int(depth) <= MAX_DEPTH_ALLOWED
        ):
            raise FormatError(
                f"recursive.fields.max.depth must be 1 to {MAX_DEPTH_ALLOWED}, not '{depth[:100]}'"
            )
        return cls(
            enums_as_ints=_flag(settings, "enums.as.ints", False),
            upcasts_unsigned=_flag(settings, "upcast.unsigned.ints", True),
            unwraps=_flag(settings, "unwrap.primitive.wrapper.types", False),
            max_depth=int(depth),
            emits_defaults=_flag(settings, "emit.default.values", False),
        )


def _flag(settings: Mapping[str, str], name: str, default: bool) -> bool:
    text = settings.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise FormatError(f"{name} must be true or false, not '{text}'")
    return text == "true"


class RecursiveError(FormatError):
    """A message in itself, of which nothing says how deep to read it."""


def message_type(message: Descriptor, choices: TypeChoices) -> pa.DataType:
    """A struct of the fields of ``message``. Raises `FormatError`, for a recursive one `RecursiveError`."""
    found = _Walk(choices).struct(message, Counter([message.full_name]), message.full_name)
    if found is None:
        raise FormatError(f"The message {message.full_name} has no fields")
    return found


class _Walk:
    """Counts the fields while it walks through the messages: a small descriptor can make a huge type."""

    def __init__(self, choices: TypeChoices) -> None:
        self._choices = choices
        self._count = 0

    def struct(self, message: Descriptor, seen: Counter[str], path: str) -> pa.DataType | None:
        fields = []
        if seen.total() > MAX_DEPTH:
            raise FormatError(f"Messages are nested more than {MAX_DEPTH} deep in the message")
        for one in message.fields:
            self._count += 1
            if self._count > MAX_FIELDS:
                raise FormatError(f"The message has more than {MAX_FIELDS} fields, nested ones included")
            kind = self._field(one, seen, f"{path}.{one.name}")
            if kind is not None:
                fields.append(pa.field(one.name, kind))
        return pa.struct(fields) if fields else None

    def _field(self, one: FieldDescriptor, seen: Counter[str], path: str) -> pa.DataType | None:
        if is_map(one):
            entry = one.message_type.fields_by_name
            value = self._element(entry["value"], seen, path)
            key = self._element(entry["key"], seen, path)
            return None if value is None or key is None else pa.map_(key, value)
        element = self._element(one, seen, path)
        return element if element is None or not is_repeated(one) else pa.list_(element)

    def _element(self, one: FieldDescriptor, seen: Counter[str], path: str) -> pa.DataType | None:
        if one.type == TYPE_ENUM:
            return pa.int32() if self._choices.enums_as_ints else pa.string()
        if one.type not in (TYPE_MESSAGE, TYPE_GROUP):
            return self._scalar(one.type)
        if one.type == TYPE_GROUP:
            return None
        name = one.message_type.full_name
        if name in _TIMES:
            return _TIMES[name]
        value = wrapped(one.message_type) if self._choices.unwraps else None
        if value is not None:
            return self._scalar(value.type)
        return self._nested(one.message_type, seen, path)

    def _nested(self, message: Descriptor, seen: Counter[str], path: str) -> pa.DataType | None:
        name = message.full_name
        if seen[name] and self._choices.max_depth < 0:
            raise RecursiveError(
                f"`{path}` is recursive ({name} in itself): recursive.fields.max.depth says how deep to read"
            )
        if seen[name] and seen[name] >= self._choices.max_depth:
            return None
        return self.struct(message, seen + Counter([name]), path)

    def _scalar(self, number: int) -> pa.DataType:
        kind = RAW_TYPES[number]
        if pa.types.is_uint32(kind):
            return pa.int64() if self._choices.upcasts_unsigned else pa.int32()
        if pa.types.is_uint64(kind):
            return pa.decimal128(20, 0) if self._choices.upcasts_unsigned else pa.int64()
        return kind


def is_map(one: FieldDescriptor) -> bool:
    """True for a map, which is a repeated message in descriptors."""
    return bool(one.type == TYPE_MESSAGE and one.message_type.GetOptions().map_entry)
