"""Writers of structs, tag sections and arrays: closures that `compile` puts together.

A value that does not fit its type is a `ValueError` that names the field; one that the version cannot carry
is an `UnsupportedVersionError`.
"""

from __future__ import annotations

import operator
import struct
from typing import Any

from ..errors import UnsupportedVersionError
from .message import FOREVER, Field, Struct
from .wire import Buffer, Compiled, Fixed, Write, build_length, build_varint


def write_run(run: list[Field]) -> Write:
    """A writer of neighbours of fixed width in one go."""
    types = [field.type for field in run if isinstance(field.type, Fixed)]
    pack = struct.Struct(">" + "".join(fixed.format for fixed in types)).pack
    names = [field.name for field in run]
    get = operator.attrgetter(*names)
    conversions = [(index, fixed.to_wire) for index, fixed in enumerate(types) if fixed.to_wire is not None]

    def write(value: Any, out: list[Buffer]) -> None:
        values = list(get(value)) if len(names) > 1 else [get(value)]
        for index, convert in conversions:
            values[index] = convert(values[index])
        try:
            out.append(pack(*values))
        except struct.error as error:
            raise _refuse_value(types, names, values) from error

    return write


def _refuse_value(types: list[Fixed], names: list[str], values: list[Any]) -> ValueError:
    """Find the field of a run that does not fit its type."""
    for fixed, name, value in zip(types, names, values, strict=True):
        try:
            struct.pack(">" + fixed.format, value)
        except struct.error as error:
            return ValueError(f"{name}={value!r} is not an {fixed.name} ({error})")
    return ValueError(f"{', '.join(names)} do not fit their types")


def write_one(name: str, compiled: Compiled) -> Write:
    """A writer of one field of variable width."""
    write_value = compiled.write

    def write(value: Any, out: list[Buffer]) -> None:
        try:
            write_value(getattr(value, name), out)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    return write


def write_tags(tags: dict[int, tuple[Field, Compiled]]) -> Write:
    """Write the tag section: in the order of the tags, and only what is not the default (KIP-482)."""
    in_order = sorted(tags.items())

    def write(value: Any, out: list[Buffer]) -> None:
        written: list[Buffer] = []
        count = 0
        for tag, (field, compiled) in in_order:
            item = getattr(value, field.name)
            if item == field.default:
                continue
            body: list[Buffer] = []
            compiled.write(item, body)
            written += (build_varint(tag), build_varint(sum(map(len, body))), *body)
            count += 1
        out.append(build_varint(count))
        out += written

    return write


def refuse_absent(struct_class: type[Struct], absent: list[Field], version: int) -> Write:
    """Refuse what this version cannot carry where dropping it would change the meaning."""

    def write(value: Any, out: list[Buffer]) -> None:
        del out
        for field in absent:
            item = getattr(value, field.name)
            if item != field.default:
                raise UnsupportedVersionError(
                    f"{struct_class.__name__} v{version} cannot carry {field.name}={item!r}: "
                    f"it needs version {field.since}{_until(field)}"
                )

    return write


def _until(field: Field) -> str:
    return " or later" if field.until == FOREVER else f" to {field.until}"


def array_writer(item: Compiled, *, compact: bool, nullable: bool) -> Write:
    """A writer of an array of anything."""
    write_item = item.write

    def write(value: list[Any] | None, out: list[Buffer]) -> None:
        if value is None:
            if not nullable:
                raise ValueError("an array must not be null")
            out.append(build_length(-1, compact=compact))
            return
        out.append(build_length(len(value), compact=compact))
        for element in value:
            write_item(element, out)

    return write
