"""`compile_write`: the steps that write rows of an Arrow type as an Avro schema says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from ..errors import FormatError
from .defaults import encode_default, varint
from .program import Program, ProgramBuilder, Write
from .schema import AvroField, AvroType
from .types import ARROW_UNITS, MAX_DIGITS, UNITS, is_members


@dataclass(frozen=True, slots=True, eq=False)
class WriteColumn:
    """An array to write out of."""

    bits: int = 0
    """Of a value; 0 for a column without data of its own."""
    cast: pa.DataType | None = None
    """What to cast it to before."""
    symbols: tuple[str, ...] = ()
    """The texts that are written as their positions."""
    parts: tuple[WriteColumn, ...] = ()
    """Of a struct those fields that ``names`` names, of a list its items, of a map its keys and values."""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class WriteProgram:
    """The steps, and the arrays that they write out of: numbered as `collect` meets them, parts after the
    whole."""

    program: Program
    column: WriteColumn


def compile_write(avro: AvroType, kind: pa.DataType) -> WriteProgram:
    """Writes rows of ``kind`` as ``avro``. Raises `FormatError`."""
    compiler = _Compiler()
    if pa.types.is_null(kind):
        raise FormatError("All rows are null: there is nothing to write as Avro")
    _, column = compiler.value(avro, pa.field("", kind, nullable=False), "")
    return WriteProgram(compiler.made.finish(), column)


_TEXTS: Final = (pa.string(), pa.large_string())
_BYTES: Final = (pa.binary(), pa.large_binary())
_WRITTEN: Final = {
    "boolean": (pa.bool_(),),
    "int": (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()),
    "long": (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32()),
    ),
    "float": (pa.float32(),),
    "double": (pa.float32(), pa.float64()),
    "string": _TEXTS,
    "enum": _TEXTS,
    "bytes": (*_BYTES, *_TEXTS),
    "fixed": _BYTES,
}
_MOST_DIGITS: Final = 76
"""Of Arrow's decimal256, by way of which a decimal gets more digits behind the point."""
_TESTS: Final = {
    "record": (pa.types.is_struct,),
    "array": (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    "map": (pa.types.is_map,),
    "bytes": (pa.types.is_fixed_size_binary,),
    "fixed": (pa.types.is_fixed_size_binary,),
}


@dataclass
class _Compiler:
    made: ProgramBuilder = field(default_factory=ProgramBuilder)
    columns: int = 0

    def value(self, avro: AvroType, source: pa.Field, place: str) -> tuple[int, WriteColumn]:
        """The step that writes a value, null or not, and its column."""
        kind = source.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        number = self.columns
        self.columns += 1
        branches = avro.items if avro.kind == "union" else (avro,)
        null = next((i for i, one in enumerate(branches) if one.kind == "null"), -1)
        if pa.types.is_null(kind):
            return self._nulls(avro, null, place), WriteColumn()
        if len(avro.alternatives) > 1 and is_members(kind):
            return self._members(avro, kind, number, null, place)
        fitting = [one for one in avro.alternatives if _fits(one, kind)]
        found = min(fitting, key=lambda one: _preference(one, kind), default=None)
        if found is None:
            where = f"`{place}`" if place else "The column"
            raise FormatError(f"{where} is {source.type}; it can't be written as {avro.label}")
        of = branches.index(found) if avro.kind == "union" else -1
        step = self.made.step(Write.OPTIONAL, number, place, null if avro.kind == "union" else -1, of)
        inner, column = self._present(found, kind, number, place)
        return self.made.link(step, [inner]), column

    def _nulls(self, avro: AvroType, null: int, place: str) -> int:
        if null < 0:
            raise FormatError(f"`{place}` is null in all rows; its schema, {avro.label}, allows no null")
        where, size = self.made.constant(varint(null) if avro.kind == "union" else b"")
        return self.made.step(Write.CONSTANT, -1, place, where, size)

    def _members(
        self, avro: AvroType, kind: pa.DataType, number: int, null: int, place: str
    ) -> tuple[int, WriteColumn]:
        step = self.made.step(Write.MEMBERS, number, place, null)
        links, parts = [], []
        for one in kind:
            position = int(one.name.removeprefix("member"))
            if position >= len(avro.alternatives):
                raise FormatError(f"`{place}` is a union of {len(avro.alternatives)} types: no `{one.name}`")
            branch = avro.alternatives[position]
            # As a union with that branch alone, at its place.
            column = self.columns
            self.columns += 1
            link = self.made.step(Write.OPTIONAL, column, f"{place}.{one.name}", -1, avro.items.index(branch))
            if not _fits(branch, one.type):
                raise FormatError(
                    f"`{place}.{one.name}` is {one.type}; it can't be written as {branch.label}"
                )
            inner, part = self._present(branch, one.type, column, f"{place}.{one.name}")
            links.append(self.made.link(link, [inner]))
            parts.append(part)
        names = tuple(one.name for one in kind)
        return self.made.link(step, links), WriteColumn(parts=tuple(parts), names=names)

    def _present(self, avro: AvroType, kind: pa.DataType, number: int, place: str) -> tuple[int, WriteColumn]:
        """Of a value that is not null."""
        match avro.kind:
            case "record":
                return self._record(avro, kind, number, place)
            case "array":
                step = self.made.step(Write.ARRAY, number, place)
                link, items = self.value(avro.items[0], kind.value_field, f"{place}[]")
                cast = None if pa.types.is_list(kind) else pa.list_(kind.value_field)
                return self.made.link(step, [link]), WriteColumn(cast=cast, parts=(items,))
            case "map":
                step = self.made.step(Write.MAP, number, place)
                text = AvroType(kind="string")
                key, keys = self.value(text, kind.key_field, f"{place} (a key)")
                link, values = self.value(avro.items[0], kind.item_field, f"{place}{{}}")
                return self.made.link(step, [key, link]), WriteColumn(parts=(keys, values))
            case "enum":
                step = self.made.step(Write.INTEGER, number, place, 4, 1)
                return step, WriteColumn(bits=32, symbols=avro.symbols)
        return self._leaf(avro, kind, number, place)

    def _record(self, avro: AvroType, kind: pa.DataType, number: int, place: str) -> tuple[int, WriteColumn]:
        fields = {one.name: one for one in kind}
        extra = fields.keys() - {one.name for one in avro.fields}
        if extra or len(fields) != kind.num_fields:
            what = f"no field `{min(extra)}`" if extra else "no two fields of one name"
            raise FormatError(f"{f'`{place}`: the' if place else 'The'} Avro schema {avro.name} has {what}")
        step = self.made.step(Write.RECORD, number, place)
        links, parts, names = [], [], []
        for one in avro.fields:
            inner = f"{place}.{one.name}" if place else one.name
            if one.name not in fields:
                links.append(self._missing(one, inner))
                continue
            link, part = self.value(one.type, fields[one.name], inner)
            links.append(link)
            parts.append(part)
            names.append(one.name)
        return self.made.link(step, links), WriteColumn(parts=tuple(parts), names=tuple(names))

    def _missing(self, avro: AvroField, place: str) -> int:
        """A field that the rows do not have."""
        if avro.has_default:
            data = encode_default(avro.type, avro.default, place)
        elif _is_nullable(avro.type):
            data = encode_default(avro.type, None, place)
        else:
            raise FormatError(f"The Avro schema has a field `{place}` without a default; the rows have none")
        where, size = self.made.constant(data)
        return self.made.step(Write.CONSTANT, -1, place, where, size)

    def _leaf(self, avro: AvroType, kind: pa.DataType, number: int, place: str) -> tuple[int, WriteColumn]:
        types = pa.types
        match avro.kind:
            case "boolean":
                return self.made.step(Write.BOOL, number, place), WriteColumn(bits=1)
            case "int" | "long":
                cast = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}.get(kind)
                width = int((cast or kind).bit_width)
                step = self.made.step(Write.INTEGER, number, place, width // 8, _factor(avro, kind))
                return step, WriteColumn(bits=width, cast=cast)
            case "float" | "double":
                wanted = pa.float32() if avro.kind == "float" else pa.float64()
                step = self.made.step(Write.RAW, number, place, wanted.bit_width // 8)
                return step, WriteColumn(bits=wanted.bit_width, cast=None if kind == wanted else wanted)
        if types.is_decimal(kind):
            size = avro.size if avro.kind == "fixed" else -1
            digits = _digits(avro, kind)
            width = 16 if digits <= MAX_DIGITS else 32
            of = pa.decimal128 if width == 16 else pa.decimal256
            cast = None if kind.scale == avro.scale else of(digits, avro.scale)
            step = self.made.step(Write.DECIMAL, number, place, size, width)
            return step, WriteColumn(bits=8 * width, cast=cast)
        cast = pa.string() if types.is_large_string(kind) else pa.binary()
        if kind in (pa.string(), pa.binary()):
            cast = None
        op = Write.FIXED if avro.kind == "fixed" else Write.BYTES
        return self.made.step(op, number, place, avro.size), WriteColumn(bits=8, cast=cast)


def _fits(avro: AvroType, kind: pa.DataType) -> bool:
    """True if values of ``kind`` are written as ``avro``, which is no union."""
    types, logical = pa.types, avro.logical
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_timestamp(kind):
        return logical.startswith("timestamp-" if kind.tz else "local-timestamp-")
    if types.is_date32(kind):
        return logical == "date"
    if types.is_time64(kind):
        return logical == "time-micros"
    if types.is_decimal128(kind):
        digits = _digits(avro, kind)
        fits = 0 <= kind.scale <= avro.scale and digits <= min(avro.precision, _MOST_DIGITS)
        return logical == "decimal" and fits
    if logical == "decimal":
        return False
    return kind in _WRITTEN.get(avro.kind, ()) or any(test(kind) for test in _TESTS.get(avro.kind, ()))


def _preference(avro: AvroType, kind: pa.DataType) -> int:
    """Which of the types of a union that fit ``kind`` is written: the one with the lowest number, of equal
    ones the first. Text is a string before it is bytes, and all bytes are a value of `bytes`, but not of each
    `fixed`, nor is each struct each record.
    """
    types = pa.types
    if types.is_struct(kind):
        has_equal_names = {one.name for one in kind} == {one.name for one in avro.fields}
        return (0 if _takes(avro, kind) else 2) + (not has_equal_names)  # of 2 and 3: for the error
    if types.is_decimal(kind):
        return 0
    if types.is_fixed_size_binary(kind) and avro.kind == "fixed":
        return 0 if avro.size == kind.byte_width else 2
    order = ("enum", "bytes") if kind in _TEXTS or types.is_dictionary(kind) else ("bytes", "fixed")
    return order.index(avro.kind) + 1 if avro.kind in order else 0


def _takes(avro: AvroType, kind: pa.DataType) -> bool:
    """`_fits`, and so do all fields within: values of ``kind`` can be written."""
    types = pa.types
    if types.is_null(kind):
        return _is_nullable(avro) or avro.kind == "null"
    if len(avro.alternatives) > 1 and is_members(kind):
        return True  # each member names its type
    return any(_fits(one, kind) and _takes_within(one, kind) for one in avro.alternatives)


def _takes_within(avro: AvroType, kind: pa.DataType) -> bool:
    if avro.kind == "record":
        types = {one.name: one.type for one in avro.fields}
        required = {one.name for one in avro.fields if not one.has_default and not _is_nullable(one.type)}
        names = {one.name for one in kind}
        return required <= names <= types.keys() and all(_takes(types[one.name], one.type) for one in kind)
    if avro.kind == "array":
        return _takes(avro.items[0], kind.value_type)
    if avro.kind == "fixed" and pa.types.is_fixed_size_binary(kind):
        return avro.size == int(kind.byte_width)
    return avro.kind != "map" or _takes(avro.items[0], kind.item_type)


def _is_nullable(avro: AvroType) -> bool:
    return avro.kind == "union" and any(one.kind == "null" for one in avro.items)


def _digits(avro: AvroType, kind: pa.DataType) -> int:
    """Of a decimal of ``kind`` that has the scale of ``avro``."""
    return int(kind.precision - kind.scale + avro.scale)


def _factor(avro: AvroType, kind: pa.DataType) -> int:
    if not (pa.types.is_timestamp(kind) or pa.types.is_time(kind)):
        return 1
    have, want = ARROW_UNITS[kind.unit], UNITS[avro.logical.rpartition("-")[2]]
    return want // have if want >= have else -(have // want)
