"""Readers of structs, tag sections and arrays: closures that `compile` puts together.

Bytes are untrusted. Every length is checked against what is left, an array's also against the least size of
its elements, before anything of that size is made; nothing here asks for a version or looks a name up while
it reads.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import ProtocolError
from .message import Field, Struct
from .wire import Compiled, Fixed, Read, read_compact_length, read_length32, read_varint, refuse_length

Step = tuple[Callable[[memoryview, int], tuple[Any, ...]] | None, int, Read | None]
"""What to read next: a run (its ``unpack_from`` and size), or one field of variable width (its reader)."""


def struct_reader(
    struct_class: type[Struct],
    runs: list[list[Field]],
    compiled: dict[str, Compiled],
    defaulted: list[Field],
    tags: dict[int, tuple[Field, Compiled]] | None,
) -> Read:
    """A reader that makes the instance as its mutable twin, which then changes its class.

    A frozen dataclass sets one attribute after the other through ``object.__setattr__``: five times the time
    of the twin's ``__init__``. Filling ``__dict__`` at once takes twice as long.
    """
    for field in defaulted:
        if field.required:
            raise TypeError(f"{struct_class.__name__}.{field.name} may be absent, and has no default")
    ordered = [field for run in runs for field in run]
    steps = tuple(_step(run, compiled) for run in runs)
    conversions = tuple(_conversions(ordered))
    twin = _mutable_twin(struct_class, ordered, defaulted)

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        for unpack, size, read_value in steps:
            if unpack is not None:
                values += unpack(data, at)
                at += size
            else:
                value, at = read_value(data, at)  # type: ignore[misc]  # one of the two is there
                values.append(value)
        for index, convert in conversions:
            values[index] = convert(values[index])
        instance = twin(*values)
        if tags is not None:
            at = at + 1 if data[at] == 0 else _read_tags(data, at, tags, instance)
        instance.__class__ = struct_class
        return instance, at

    return read


def _mutable_twin(struct_class: type[Struct], ordered: list[Field], defaulted: list[Field]) -> type[Any]:
    """A class with the same attributes, made from what is read, in that order; the rest has defaults."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [(field.name, Any) for field in ordered]
    fields += [(field.name, Any, _default_of(field)) for field in defaulted]
    return dataclasses.make_dataclass(struct_class.__name__, fields, eq=False, repr=False)


def _default_of(field: Field) -> Any:
    if isinstance(field.default, list):
        return dataclasses.field(default_factory=field.default.copy)
    return dataclasses.field(default=field.default)


def _step(run: list[Field], compiled: dict[str, Compiled]) -> Step:
    if not run[0].fixed:
        return None, 0, compiled[run[0].name].read
    layout = struct.Struct(">" + "".join(field.type.format for field in run if isinstance(field.type, Fixed)))
    return layout.unpack_from, layout.size, None


def _conversions(ordered: list[Field]) -> Iterator[tuple[int, Callable[[Any], Any]]]:
    for index, field in enumerate(ordered):
        if isinstance(field.type, Fixed) and field.type.from_wire is not None:
            yield index, field.type.from_wire


def _read_tags(data: memoryview, at: int, tags: dict[int, tuple[Field, Compiled]], instance: Any) -> int:
    """Read a tag section (KIP-482): known tags into ``instance``, unknown ones skipped by their size."""
    count, at = read_varint(data, at)
    for _ in range(count):
        tag, at = read_varint(data, at)
        size, at = read_varint(data, at)
        end = at + size
        if end > len(data):
            raise refuse_length(f"tag {tag}", size, at, data)
        if tag in tags:
            field, compiled = tags[tag]
            value, read_to = compiled.read(data[:end], at)
            setattr(instance, field.name, value)
            if read_to != end:
                raise ProtocolError(
                    f"tag {tag} ({field.name}) at byte {at} has size {size}, but took {read_to - at}"
                )
        at = end
    return at


def array_reader(item: Compiled, *, compact: bool, nullable: bool) -> Read:
    """A reader of an array of anything that is not a plain number."""
    read_length = read_compact_length if compact else read_length32
    read_item, min_size = item.read, item.min_size
    if min_size == 0:
        raise TypeError("an array of elements without bytes has no bound on its length")

    def read(data: memoryview, at: int) -> tuple[list[Any] | None, int]:
        length, at = read_length(data, at)
        if length < 0 or length * min_size > len(data) - at:
            if length == -1 and nullable:
                return None, at
            raise refuse_length("an array", length, at, data)
        items: list[Any] = []
        for _ in range(length):
            value, at = read_item(data, at)
            items.append(value)
        return items, at

    return read


def fixed_array_reader(fixed: Fixed, *, compact: bool, nullable: bool) -> Read:
    """Numbers: each of the usual lengths (replicas, partitions) has a `struct.Struct` and needs no call."""
    unpack_length = struct.Struct(">i").unpack_from
    read_length = read_compact_length if compact else read_length32
    size = fixed.min_size(compact=compact)
    usual = tuple(struct.Struct(f">{length}{fixed.format}").unpack_from for length in range(16))

    def read(data: memoryview, at: int) -> tuple[list[Any] | None, int]:
        if compact:
            length, first = data[at] - 1, at + 1
        else:
            length, first = unpack_length(data, at)[0], at + 4
        if 0 <= length < 16:
            return list(usual[length](data, first)), first + length * size
        length, at = read_length(data, at)
        if length < 0 or length * size > len(data) - at:
            if length == -1 and nullable:
                return None, at
            raise refuse_length("an array", length, at, data)
        return list(struct.unpack_from(f">{length}{fixed.format}", data, at)), at + length * size

    return read
