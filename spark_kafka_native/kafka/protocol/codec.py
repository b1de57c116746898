"""From a declaration and a version to a reader and a writer: compiled once out of closures, then cached.

Runs of fixed-width fields become one `struct.Struct`; every length rule (compact or not, nullable or not) is
chosen while compiling, so nothing asks for the version while bytes are read. Bytes are untrusted: every
length is checked against what is left, an array also against the least size of its elements, before anything
of that size is made.
"""

from __future__ import annotations

import functools
import logging
import operator
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..errors import ProtocolError, UnsupportedVersionError
from .message import FOREVER, ArrayOf, Field, FieldType, Message, Struct, declared_fields
from .wire import (
    Buffer,
    Fixed,
    Read,
    Write,
    build_length,
    build_varint,
    join_short,
    read_compact_length,
    read_length32,
    read_varint,
    refuse_length,
)

_LOG = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, eq=False)
class Codec(Generic[M]):
    """Reads and writes one message class at one version. Get it from `codec`."""

    message: type[M]
    version: int
    flexible: bool
    _read: Read
    _write: Write

    @property
    def _where(self) -> str:
        return f"{self.message.__name__} v{self.version}"

    def read(self, data: memoryview) -> M:
        """Read a message that fills ``data``; record sets in it are views of ``data``.

        Raises `ProtocolError` when the bytes break the rules. Bytes left over are an error before flexible
        versions; after, they are logged and dropped, for the tag section has told where the message ends.
        """
        try:
            message, end = self._read(data, 0)
        except ProtocolError as error:
            raise ProtocolError(f"{self._where}, {len(data)} bytes: {error}") from error
        except (struct.error, IndexError) as error:
            raise ProtocolError(f"{self._where}: cut off after {len(data)} bytes") from error
        except UnicodeDecodeError as error:
            raise ProtocolError(
                f"{self._where}, {len(data)} bytes: a string is not UTF-8 ({error})"
            ) from error
        if end != len(data):
            left_over = f"{self._where}: {len(data) - end} bytes are left over after byte {end}"
            if not self.flexible:
                raise ProtocolError(left_over)
            _log_once(left_over)
        return message  # type: ignore[no-any-return]

    def write(self, message: M) -> list[Buffer]:
        """Write a message as buffers to be sent one after the other; a long record set is not copied.

        Raises `UnsupportedVersionError` for a value that this version cannot carry, `ValueError` for one that
        its type cannot hold.
        """
        out: list[Buffer] = []
        try:
            self._write(message, out)
        except ValueError as error:
            raise ValueError(f"{self._where}: {error}") from error
        return join_short(out)


_CODECS: dict[tuple[type[Message], int], Codec[Any]] = {}
_STRUCTS: dict[tuple[type[Struct], int, bool], Compiled] = {}


def codec(message: type[M], version: int) -> Codec[M]:
    """The codec of ``message`` at ``version``; `UnsupportedVersionError` outside the declared versions."""
    found = _CODECS.get((message, version))
    if found is None:
        found = _CODECS[message, version] = _compile_message(message, version)
    return found


def _compile_message(message: type[M], version: int) -> Codec[M]:
    lowest, highest = message.versions
    if not lowest <= version <= highest:
        raise UnsupportedVersionError(
            f"{message.__name__} is declared for versions {lowest} to {highest}, not {version}"
        )
    flexible = version >= message.flexible
    compiled = compile_struct(message, version, flexible=flexible)
    return Codec(message, version, flexible, compiled.read, compiled.write)


@functools.lru_cache(maxsize=64)
def _log_once(text: str) -> None:
    _LOG.warning("%s; they are ignored", text)


# --- compiling ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compiled:
    """The reader and writer of one type at one version, and the fewest bytes that a value of it takes."""

    read: Read
    write: Write
    least_size: int


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
        _write_run(run) if _fixed(run[0]) else _write_one(run[0].name, compiled[run[0].name]) for run in runs
    ]
    if flexible:
        writes.append(_write_tags(tags))
    absent = [field for field in fields if not field.present(version)]
    if checked := [field for field in absent if not field.ignorable]:
        writes.insert(0, _refuse_absent(struct_class, checked, version))
    read = _struct_reader(
        struct_class, runs, compiled, [*absent, *tagged.values()], tags if flexible else None
    )

    def write(value: Any, out: list[Buffer]) -> None:
        for write_next in writes:
            write_next(value, out)

    least_size = sum(compiled[field.name].least_size for field in ordered) + (1 if flexible else 0)
    return Compiled(read, write, least_size)


def _fixed(field: Field) -> bool:
    return isinstance(field.type, Fixed)


def _runs(fields: list[Field]) -> list[list[Field]]:
    """Group neighbours of fixed width; every other field stands alone."""
    runs: list[list[Field]] = []
    for field in fields:
        if runs and _fixed(field) and _fixed(runs[-1][0]):
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
        field_type.least_size(compact=flexible),
    )


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


# --- reading ------------------------------------------------------------------------------------------------


Step = tuple[Callable[[memoryview, int], tuple[Any, ...]] | None, int, Read | None]
"""What to read next: a run (its ``unpack_from`` and size), or one field of variable width (its reader)."""


def _struct_reader(
    struct_class: type[Struct],
    runs: list[list[Field]],
    compiled: dict[str, Compiled],
    defaulted: list[Field],
    tags: dict[int, tuple[Field, Compiled]] | None,
) -> Read:
    """A reader that fills the instance's ``__dict__`` at once, and in which as little as possible is a call.

    A frozen dataclass's ``__init__`` sets one attribute after the other through ``object.__setattr__``:
    twice the time, for nothing that is needed here.
    """
    for field in defaulted:
        if field.required:
            raise TypeError(f"{struct_class.__name__}.{field.name} may be absent, and has no default")
    names = tuple(field.name for run in runs for field in run)
    steps = tuple(_step(run, compiled) for run in runs)
    conversions = tuple(_conversions([field for run in runs for field in run]))
    constants = {field.name: field.default for field in defaulted if not isinstance(field.default, list)}
    lists = tuple((field.name, field.default) for field in defaulted if isinstance(field.default, list))
    new = object.__new__

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
        instance = new(struct_class)
        state = instance.__dict__
        state.update(zip(names, values))  # noqa: B905  # strict costs a third of this line, and both are made above
        if constants:
            state.update(constants)
        for name, default in lists:
            state[name] = default.copy()
        if tags is None:
            return instance, at
        return instance, at + 1 if data[at] == 0 else _read_tags(data, at, tags, state)

    return read


def _step(run: list[Field], compiled: dict[str, Compiled]) -> Step:
    if not _fixed(run[0]):
        return None, 0, compiled[run[0].name].read
    layout = struct.Struct(">" + "".join(field.type.format for field in run if isinstance(field.type, Fixed)))
    return layout.unpack_from, layout.size, None


def _conversions(ordered: list[Field]) -> Iterator[tuple[int, Callable[[Any], Any]]]:
    for index, field in enumerate(ordered):
        if isinstance(field.type, Fixed) and field.type.from_wire is not None:
            yield index, field.type.from_wire


def _read_tags(
    data: memoryview, at: int, tags: dict[int, tuple[Field, Compiled]], state: dict[str, Any]
) -> int:
    """Read a tag section (KIP-482): known tags into ``state``, unknown ones skipped by their size."""
    count, at = read_varint(data, at)
    for _ in range(count):
        tag, at = read_varint(data, at)
        size, at = read_varint(data, at)
        end = at + size
        if end > len(data):
            raise refuse_length(f"tag {tag}", size, at, data)
        if tag in tags:
            field, compiled = tags[tag]
            state[field.name], read_to = compiled.read(data[:end], at)
            if read_to != end:
                raise ProtocolError(
                    f"tag {tag} ({field.name}) at byte {at} has size {size}, but took {read_to - at}"
                )
        at = end
    return at


# --- writing ------------------------------------------------------------------------------------------------


def _write_run(run: list[Field]) -> Write:
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


def _write_one(name: str, compiled: Compiled) -> Write:
    write_value = compiled.write

    def write(value: Any, out: list[Buffer]) -> None:
        try:
            write_value(getattr(value, name), out)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    return write


def _write_tags(tags: dict[int, tuple[Field, Compiled]]) -> Write:
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


def _refuse_absent(struct_class: type[Struct], absent: list[Field], version: int) -> Write:
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


# --- arrays -------------------------------------------------------------------------------------------------


def _compile_array(array: ArrayOf, version: int, *, flexible: bool, nullable: bool) -> Compiled:
    if isinstance(array.element, Fixed) and array.element.from_wire is None:
        read = _fixed_array_reader(array.element, compact=flexible, nullable=nullable)
        item = _compile_type(array.element, version, flexible=flexible)
    else:
        item = _compile_type(array.element, version, flexible=flexible)
        read = _array_reader(item, compact=flexible, nullable=nullable)
    return Compiled(read, _array_writer(item, compact=flexible, nullable=nullable), 1 if flexible else 4)


def _array_reader(item: Compiled, *, compact: bool, nullable: bool) -> Read:
    read_length = read_compact_length if compact else read_length32
    read_item, least_size = item.read, item.least_size
    if least_size == 0:
        raise TypeError("an array of elements without bytes has no bound on its length")

    def read(data: memoryview, at: int) -> tuple[list[Any] | None, int]:
        length, at = read_length(data, at)
        if length < 0 or length * least_size > len(data) - at:
            if length == -1 and nullable:
                return None, at
            raise refuse_length("an array", length, at, data)
        items: list[Any] = []
        for _ in range(length):
            value, at = read_item(data, at)
            items.append(value)
        return items, at

    return read


def _fixed_array_reader(fixed: Fixed, *, compact: bool, nullable: bool) -> Read:
    """Numbers: each of the usual lengths (replicas, partitions) has a `struct.Struct` and needs no call."""
    read_length = read_compact_length if compact else read_length32
    size = fixed.least_size(compact=compact)
    usual = tuple(struct.Struct(f">{length}{fixed.format}").unpack_from for length in range(16))
    before, first, after = (
        (0, 1, 1) if compact else (3, 0, 4)
    )  # an int32 below 16: three zeros, then the length

    def read(data: memoryview, at: int) -> tuple[list[Any] | None, int]:
        length = data[at + before] - first
        if 0 <= length < 16 and (compact or data[at : at + 3] == b"\0\0\0"):
            at += after
            return list(usual[length](data, at)), at + length * size
        length, at = read_length(data, at)
        if length < 0 or length * size > len(data) - at:
            if length == -1 and nullable:
                return None, at
            raise refuse_length("an array", length, at, data)
        return list(struct.unpack_from(f">{length}{fixed.format}", data, at)), at + length * size

    return read


def _array_writer(item: Compiled, *, compact: bool, nullable: bool) -> Write:
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
