"""From a declared struct and a version to its reader and writer, compiled once and cached.

Runs of fixed-width fields become one `struct.Struct`; every length rule (compact or not, nullable or not) is
chosen here, so that nothing has to be asked while bytes are read or written.
"""

from __future__ import annotations

from typing import Any

from ..errors import ProtocolError
from .message import ArrayOf, Field, FieldType, Struct, declared_fields
from .reading import array_reader, fixed_array_reader, struct_reader
from .wire import Buffer, Compiled, Fixed
from .writing import array_writer, refuse_absent, write_one, write_run, write_tags

_STRUCTS: dict[tuple[type[Struct], int, bool], Compiled] = {}


def compile_struct(struct_class: type[Struct], version: int, *, flexible: bool) -> Compiled:
    """Compile a struct class, and the ones within, for a version of the message that holds it."""
    key = struct_class, version, flexible
    if key not in _STRUCTS:
        _STRUCTS[key] = _compile_struct(struct_class, version, flexible=flexible)
    return _STRUCTS[key]


def _compile_struct(struct_class: type[Struct], version: int, *, flexible: bool) -> Compiled:
    fields = declared_fields(struct_class)
    present = [field for field in fields if field.present(version)]
    ordered = [field for field in present if field.tag is None]
    tagged = {field.tag: field for field in present if field.tag is not None}
    if tagged and not flexible:
        raise TypeError(f"{struct_class.__name__} v{version} has tagged fields, but is not flexible")
    runs = _runs(ordered)
    compiled = {field.name: _compile_field(field, version, flexible=flexible) for field in present}
    tags = {tag: (field, compiled[field.name]) for tag, field in tagged.items()}
    writes = [
        write_run(run) if run[0].fixed else write_one(run[0].name, compiled[run[0].name]) for run in runs
    ]
    if flexible:
        writes.append(write_tags(tags))
    absent = [field for field in fields if not field.present(version)]
    if checked := [field for field in absent if not field.ignorable]:
        writes.insert(0, refuse_absent(struct_class, checked, version))
    read = struct_reader(
        struct_class, runs, compiled, [*absent, *tagged.values()], tags if flexible else None
    )

    def write(value: Any, out: list[Buffer]) -> None:
        for write_next in writes:
            write_next(value, out)

    min_size = sum(compiled[field.name].min_size for field in ordered) + (1 if flexible else 0)
    return Compiled(read, write, min_size)


def _runs(fields: list[Field]) -> list[list[Field]]:
    """Group neighbours of fixed width; every other field stands alone."""
    runs: list[list[Field]] = []
    for field in fields:
        if runs and field.fixed and runs[-1][0].fixed:
            runs[-1].append(field)
        else:
            runs.append([field])
    return runs


def _compile_field(field: Field, version: int, *, flexible: bool) -> Compiled:
    return _compile_type(
        field.type,
        version,
        flexible=flexible,
        nullable=version >= field.nullable,
        tagged=field.tag is not None,
    )


def _compile_type(
    field_type: FieldType, version: int, *, flexible: bool, nullable: bool = False, tagged: bool = False
) -> Compiled:
    if isinstance(field_type, ArrayOf):
        return _compile_array(field_type, version, flexible=flexible, nullable=nullable)
    if isinstance(field_type, type):
        compiled = compile_struct(field_type, version, flexible=flexible)
        if nullable and tagged:
            raise TypeError(
                f"a nullable {field_type.__name__} in a tag section is in none of Kafka's messages"
            )
        return _nullable_struct(compiled, field_type.__name__) if nullable else compiled
    return Compiled(
        field_type.reader(compact=flexible, nullable=nullable),
        field_type.writer(compact=flexible, nullable=nullable),
        field_type.min_size(compact=flexible),
    )


def _compile_array(array: ArrayOf, version: int, *, flexible: bool, nullable: bool) -> Compiled:
    if isinstance(array.element, Fixed) and array.element.from_wire is None:
        read = fixed_array_reader(array.element, compact=flexible, nullable=nullable)
        item = _compile_type(array.element, version, flexible=flexible)
    else:
        item = _compile_type(array.element, version, flexible=flexible)
        read = array_reader(item, compact=flexible, nullable=nullable)
    return Compiled(read, array_writer(item, compact=flexible, nullable=nullable), 1 if flexible else 4)


def _nullable_struct(compiled: Compiled, name: str) -> Compiled:
    """An int8 stands before it: -1 for null, 1 for a value (KIP-893)."""
    read_value, write_value = compiled.read, compiled.write

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        mark = data[at]
        if mark == 0xFF:
            return None, at + 1
        if mark != 1:
            raise ProtocolError(f"{name} at byte {at} begins with {mark}: neither null nor present (KIP-893)")
        return read_value(data, at + 1)

    def write(value: Any, out: list[Buffer]) -> None:
        if value is None:
            out.append(b"\xff")
            return
        out.append(b"\x01")
        write_value(value, out)

    return Compiled(read, write, 1)
