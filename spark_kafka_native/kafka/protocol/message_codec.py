"""A message class at one version: bytes to a message, a message to bytes. Compiled once, then cached.

A declared struct is compiled into closures. Runs of fixed-width fields become one `struct.Struct`; every
length rule (compact or not, nullable or not) is chosen at compile time, so that reading and writing look up
neither versions nor names.

Bytes are untrusted. A reader checks every length against the bytes that are left, and the length of an array
also against the minimum size of its elements, before it allocates anything of that size. A value that does
not fit its type is a `ValueError` that names the field; one that the version cannot carry is an
`UnsupportedVersionError`.
"""

from __future__ import annotations

import dataclasses
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
    Compiled,
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


class UnencodableError(ValueError):
    """A request has a value that its type cannot hold, such as a name that is no UTF-8, or too long."""


@dataclass(frozen=True, eq=False)
class MessageCodec(Generic[M]):
    """Reads and writes one message class at one version. Obtained from `codec`."""

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

        Raises `ProtocolError` when the bytes break the rules. Bytes left over are an error in versions that
        are not flexible. In flexible versions they are logged and dropped: the tag section marks the end.
        """
        message, end = self.read_start(data)
        if end != len(data):
            left_over = f"{self._where}: {len(data) - end} bytes are left over after byte {end}"
            if not self.flexible:
                raise ProtocolError(left_over)
            _log_once(self._where, left_over)
        return message

    def read_start(self, data: memoryview) -> tuple[M, int]:
        """Read a message at the start of ``data``; return it and its end. Fields of a later version may
        follow. Raises `ProtocolError` when the bytes break the rules.
        """
        try:
            return self._read(data, 0)
        except ProtocolError as error:
            raise ProtocolError(f"{self._where}, {len(data)} bytes: {error}") from error
        except (struct.error, IndexError) as error:
            raise ProtocolError(f"{self._where}: cut off after {len(data)} bytes") from error
        except UnicodeDecodeError as error:
            raise ProtocolError(
                f"{self._where}, {len(data)} bytes: a string is not UTF-8 ({error})"
            ) from error

    def write(self, message: M) -> list[Buffer]:
        """Write a message as buffers to be sent one after the other; a long record set is not copied.

        Raises `UnsupportedVersionError` for a value that this version cannot carry, `UnencodableError` for
        one that its type cannot hold.
        """
        out: list[Buffer] = []
        try:
            self._write(message, out)
        except ValueError as error:
            raise UnencodableError(f"{self._where}: {error}") from error
        return join_short(out)


_CODECS: dict[tuple[type[Message], int], MessageCodec[Any]] = {}


def codec(message: type[M], version: int) -> MessageCodec[M]:
    """Return the codec of ``message`` at ``version``; `UnsupportedVersionError` for an undeclared version."""
    found = _CODECS.get((message, version))
    if found is None:
        found = _CODECS[message, version] = _compile_message(message, version)
    return found


def _compile_message(message: type[M], version: int) -> MessageCodec[M]:
    lowest, highest = message.versions
    if not lowest <= version <= highest:
        raise UnsupportedVersionError(
            f"{message.__name__} is declared for versions {lowest} to {highest}, not {version}"
        )
    flexible = version >= message.flexible
    compiled = compile_struct(message, version, flexible=flexible)
    return MessageCodec(message, version, flexible, compiled.read, compiled.write)


_LOGGED: set[str] = set()


def _log_once(where: str, text: str) -> None:
    """Log once per message and version: a broker sends it with every response or never."""
    if where not in _LOGGED:
        _LOGGED.add(where)
        _LOG.warning("%s; they are ignored", text)


# --- compiling ----------------------------------------------------------------------------------------------

_STRUCTS: dict[tuple[type[Struct], int, bool], Compiled] = {}


def compile_struct(struct_class: type[Struct], version: int, *, flexible: bool) -> Compiled:
    """Compile a struct class, and those nested in it, for a version of the message that holds it."""
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
        _run_writer(run) if run[0].fixed else _field_writer(run[0].name, compiled[run[0].name])
        for run in runs
    ]
    if flexible:
        writes.append(_tags_writer(tags))
    absent = [field for field in fields if not field.present(version)]
    if checked := [field for field in absent if not field.ignorable]:
        writes.insert(0, _absent_refuser(struct_class, checked, version))
    read = _struct_reader(
        struct_class, runs, compiled, [*absent, *tagged.values()], tags if flexible else None
    )

    def write(value: Any, out: list[Buffer]) -> None:
        for write_next in writes:
            write_next(value, out)

    min_size = sum(compiled[field.name].min_size for field in ordered) + (1 if flexible else 0)
    return Compiled(read, write, min_size)


def _runs(fields: list[Field]) -> list[list[Field]]:
    """Group neighbouring fields of fixed width; every other field is a run of its own."""
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
        read = _fixed_array_reader(array.element, compact=flexible, nullable=nullable)
        item = _compile_type(array.element, version, flexible=flexible)
    else:
        item = _compile_type(array.element, version, flexible=flexible)
        read = _array_reader(item, compact=flexible, nullable=nullable)
    return Compiled(read, _array_writer(item, compact=flexible, nullable=nullable), 1 if flexible else 4)


def _nullable_struct(compiled: Compiled, name: str) -> Compiled:
    """Put an int8 before the struct: -1 for null, 1 for a value (KIP-893)."""
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

_Step = tuple[Callable[[memoryview, int], tuple[Any, ...]] | None, int, Read | None]
"""A step of a reader: a run (its ``unpack_from`` and size), or one field of variable width (its reader)."""


def _struct_reader(
    struct_class: type[Struct],
    runs: list[list[Field]],
    compiled: dict[str, Compiled],
    defaulted: list[Field],
    tags: dict[int, tuple[Field, Compiled]] | None,
) -> Read:
    """Return a reader that creates an instance of a mutable twin class and then changes its class.

    A frozen dataclass sets its attributes one by one through ``object.__setattr__``, which takes five times
    as long as the twin's ``__init__``. Filling ``__dict__`` at once takes twice as long.
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
    """Return a class with the same attributes; its arguments are the fields in the order of reading, the
    other fields have defaults.
    """
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [(field.name, Any) for field in ordered]
    fields += [(field.name, Any, _default_of(field)) for field in defaulted]
    return dataclasses.make_dataclass(struct_class.__name__, fields, eq=False, repr=False)


def _default_of(field: Field) -> Any:
    if isinstance(field.default, list):
        return dataclasses.field(default_factory=field.default.copy)
    return dataclasses.field(default=field.default)


def _step(run: list[Field], compiled: dict[str, Compiled]) -> _Step:
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


def _array_reader(item: Compiled, *, compact: bool, nullable: bool) -> Read:
    """Return a reader of an array of elements other than plain numbers."""
    read_length = read_compact_length if compact else read_length32
    read_item, min_size = item.read, item.min_size
    if min_size == 0:
        # Nothing would limit the length that the bytes claim.
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


def _fixed_array_reader(fixed: Fixed, *, compact: bool, nullable: bool) -> Read:
    """Return a reader of an array of numbers. Each usual length (replicas, partitions) has its own
    `struct.Struct`, which saves calls.
    """
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


# --- writing ------------------------------------------------------------------------------------------------


def _run_writer(run: list[Field]) -> Write:
    """Return a writer of neighbouring fields of fixed width, which packs them at once."""
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
    """Return the error for the field of a run that does not fit its type."""
    for fixed, name, value in zip(types, names, values, strict=True):
        try:
            struct.pack(">" + fixed.format, value)
        except struct.error as error:
            return ValueError(f"{name}={value!r} is not an {fixed.name} ({error})")
    return ValueError(f"{', '.join(names)} do not fit their types")


def _field_writer(name: str, compiled: Compiled) -> Write:
    """Return a writer of one field of variable width."""
    write_value = compiled.write

    def write(value: Any, out: list[Buffer]) -> None:
        try:
            write_value(getattr(value, name), out)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    return write


def _tags_writer(tags: dict[int, tuple[Field, Compiled]]) -> Write:
    """Return a writer of the tag section: in the order of the tags, non-default values only (KIP-482)."""
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


def _absent_refuser(struct_class: type[Struct], absent: list[Field], version: int) -> Write:
    """Return a writer that refuses values that this version cannot carry and that must not be dropped."""

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


def _array_writer(item: Compiled, *, compact: bool, nullable: bool) -> Write:
    """Return a writer of an array of any elements."""
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
