"""`compile_read`: the steps that read the bytes of one schema by another one, into an Arrow type.

Three types meet at each value: the writer's, by which the bytes are laid out; the reader's, which says by
Avro's rules of resolution what they mean; and the Arrow type, which the user asks for. A field without a
place in it is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from ..errors import FormatError
from ..plain_types import check_distinct
from .defaults import encode_default
from .program import As, Built, Program, ProgramBuilder, Read
from .schema import AvroField, AvroType
from .types import (
    ARROW_UNITS,
    PROMOTIONS,
    UNITS,
    is_members,
    least_bytes,
    match_branches,
    same_name,
)


@dataclass(frozen=True, slots=True, eq=False)
class ReadColumn:
    """An array to build."""

    type: pa.DataType
    builder: int
    parts: tuple[ReadColumn, ...] = ()
    symbols: tuple[str, ...] = ()
    """The texts that the numbers of the builder stand for."""


@dataclass(frozen=True, slots=True, eq=False)
class AvroReadProgram:
    """The steps, and the columns that they fill."""

    program: Program
    column: ReadColumn


class _ResolutionError(FormatError):
    """The writer's schema and the reader's do not fit each other."""


def compile_read(written: AvroType, read: AvroType, kind: pa.DataType) -> AvroReadProgram:
    """Reads values of ``written`` as ``read``, into ``kind``. Raises `FormatError`."""
    compiler = _Compiler()
    column = compiler.column(read, kind, "")
    compiler.read(written, read, column, "")
    return AvroReadProgram(compiler.made.finish(), column)


_NARROW: Final = {pa.int8(): 1, pa.int16(): 2, pa.int32(): 4, pa.int64(): 8}
_MEANS: Final = {
    pa.float32(): As.FLOAT,
    pa.float64(): As.DOUBLE,
    pa.time64("us"): As.TIME_MICROS,
    pa.time64("ns"): As.TIME_NANOS,
}
_WIDTHS: Final = _NARROW | {pa.float32(): 4, pa.float64(): 8, pa.date32(): 4}


@dataclass
class _Compiler:
    made: ProgramBuilder = field(default_factory=ProgramBuilder)

    # Columns

    def column(self, read: AvroType, kind: pa.DataType, place: str) -> ReadColumn:
        """The builders for ``kind``. Raises `FormatError` if ``read`` does not fit it."""
        if pa.types.is_struct(kind):
            check_distinct([one.name for one in kind], f"`{place}`" if place else "")
        found = read.alternatives
        if len(found) > 1 and is_members(kind):
            return self._members(found, kind, place)
        if len(found) == 1:
            return self._single(found[0], kind, place)
        if not found and pa.types.is_null(kind):
            return ReadColumn(kind, self.made.builder(Built.NULL))
        if not found and not _is_plain(kind):
            raise _misfit(read, kind, place)
        for one in found:
            if one.kind == "enum":  # a column has the symbols of one enum, and nothing else
                raise _misfit(one, kind, place, " beside another type")
            _require_fit(one, kind, place)
        return self._leaf(found[0] if found else read, kind)

    def _single(self, read: AvroType, kind: pa.DataType, place: str) -> ReadColumn:
        if read.kind == "record" and pa.types.is_struct(kind):
            fields = {one.name: one.type for one in read.fields}
            builder, parts = self.made.builder(Built.STRUCT), []
            for one in kind:
                if one.name not in fields:
                    where = f"`{place}`" if place else f"The Avro schema {read.name}"
                    raise FormatError(
                        f"{where} has no field `{one.name}`; it has {', '.join(fields) or 'none'}"
                    )
                parts.append(self.column(fields[one.name], one.type, _join(place, one.name)))
        elif read.kind == "array" and pa.types.is_list(kind):
            builder = self.made.builder(Built.LIST)
            parts = [self.column(read.items[0], kind.value_type, _join(place, "[]"))]
        elif read.kind == "map" and pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
            builder, keys = self.made.builder(Built.LIST), self.made.builder(Built.BYTES)
            values = self.column(read.items[0], kind.item_type, _join(place, "{}"))
            parts = [ReadColumn(pa.string(), keys), values]
        else:
            _require_fit(read, kind, place)
            return self._leaf(read, kind)
        self.made.link_builder(builder, [part.builder for part in parts])
        return ReadColumn(kind, builder, tuple(parts))

    def _members(self, found: tuple[AvroType, ...], kind: pa.DataType, place: str) -> ReadColumn:
        builder, parts = self.made.builder(Built.STRUCT), []
        for one in kind:
            number = int(one.name.removeprefix("member"))
            if number >= len(found):
                raise FormatError(f"`{place}` is a union of {len(found)} types; it has no `{one.name}`")
            parts.append(self.column(found[number], one.type, _join(place, one.name)))
        self.made.link_builder(builder, [part.builder for part in parts])
        return ReadColumn(kind, builder, tuple(parts))

    def _leaf(self, read: AvroType, kind: pa.DataType) -> ReadColumn:
        if read.kind == "enum":
            return ReadColumn(kind, self.made.builder(Built.FIXED, 4), symbols=read.symbols)
        if pa.types.is_boolean(kind):
            return ReadColumn(kind, self.made.builder(Built.BOOL))
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return ReadColumn(kind, self.made.builder(Built.BYTES))
        return ReadColumn(
            kind, self.made.builder(Built.FIXED, 16 if pa.types.is_decimal(kind) else _width(kind))
        )

    # Steps

    def read(self, written: AvroType, read: AvroType, into: ReadColumn, place: str) -> int:
        """The step that reads a value. Raises `_ResolutionError`."""
        if written.kind == "union":
            step = self.made.step(Read.UNION, -1, place)
            return self.made.link(step, self._branches(written, read, into, place))
        if read.kind != "union":
            if written.kind == "null" and read.kind != "null":
                raise _mismatch(written, read, place)
            return self._value(written, read, into, place)
        [found] = match_branches((written,), read.items)
        return self._as_branch(written, read, found, into, place)

    def _as_branch(
        self, written: AvroType, read: AvroType, found: AvroType | None, into: ReadColumn, place: str
    ) -> int:
        """Of a type that is no union, as the branch ``found`` of ``read``."""
        if found is None:
            raise _mismatch(written, read, place)
        alternatives = read.alternatives
        if found.kind == "null" or len(alternatives) < 2 or not is_members(into.type):
            return self._value(written, found, into, place)
        names = [one.name for one in into.type]
        name = f"member{alternatives.index(found)}"
        position = names.index(name) if name in names else -1
        step = self.made.step(Read.MEMBER, into.builder, place, position)
        inner = (
            self.skip(written, place)
            if position < 0
            else self.read(written, found, into.parts[position], _join(place, name))
        )
        return self.made.link(step, [inner])

    def _branches(self, written: AvroType, read: AvroType, into: ReadColumn, place: str) -> list[int]:
        steps, refused = [], None
        matches = (
            match_branches(written.items, read.items) if read.kind == "union" else [None] * len(written.items)
        )
        for branch, match in zip(written.items, matches, strict=True):
            before = len(self.made.steps), len(self.made.links)
            try:
                steps.append(
                    self._as_branch(branch, read, match, into, place)
                    if read.kind == "union"
                    else self.read(branch, read, into, place)
                )
            except _ResolutionError as error:
                # Only a record that has this branch can't be read.
                refused = error
                del self.made.steps[before[0] :], self.made.places[before[0] :], self.made.links[before[1] :]
                steps.append(
                    self.made.step(Read.FAIL, -1, f"{place}: {branch.label}" if place else branch.label)
                )
        if refused is not None and all(self.made.steps[step][0] == Read.FAIL for step in steps):
            raise refused
        return steps

    def _value(self, written: AvroType, read: AvroType, into: ReadColumn, place: str) -> int:
        """Of a type that is no union, as one that is none."""
        if written.kind == "null":
            return self.made.step(Read.NULL, into.builder, place)
        if written.kind != read.kind and read.kind not in PROMOTIONS.get(written.kind, ()):
            raise _mismatch(written, read, place)
        if written.kind in ("enum", "fixed") and not same_name(written, read):
            raise _mismatch(written, read, place)
        if written.kind == "record":
            return self._record(written, read, into, place)
        if written.kind in ("array", "map"):
            return self._items(
                written, lambda inner: self._part(written, read, into, inner), into.builder, place
            )
        if written.kind == "enum":
            return self._enum(written, read, into, place)
        return self._plain(written, read, into, place)

    def _part(self, written: AvroType, read: AvroType, into: ReadColumn, place: str) -> list[int]:
        value = _join(place, "[]" if written.kind == "array" else "{}")
        item = into.parts[-1]
        if written.kind == "array":
            return [self.read(written.items[0], read.items[0], item, value)]
        key = self.made.step(Read.BYTES, into.parts[0].builder, _join(place, "key"), 1)
        return [key, self.read(written.items[0], read.items[0], item, value)]

    def _items(self, written: AvroType, parts: Callable[[str], list[int]], builder: int, place: str) -> int:
        op, least = (Read.ARRAY, 0) if written.kind == "array" else (Read.MAP, 1)
        step = self.made.step(op, builder, place, least + least_bytes(written.items[0]))
        return self.made.link(step, parts(place))

    def _record(self, written: AvroType, read: AvroType, into: ReadColumn, place: str) -> int:
        step = self.made.step(Read.RECORD, into.builder, place)
        wanted = {one.name: part for one, part in zip(into.type, into.parts, strict=True)}
        targets = _targets(written, read, place)
        fields = {one.name: one for one in read.fields}
        links = []
        for one in written.fields:
            name = targets.get(one.name)
            if name is None or name not in wanted:
                links.append(self.skip(one.type, _join(place, one.name)))
            else:
                links.append(self.read(one.type, fields[name].type, wanted[name], _join(place, name)))
        found = set(targets.values())
        for one in read.fields:
            if one.name not in found:
                links += self._missing(one, wanted.get(one.name), _join(place, one.name))
        return self.made.link(step, links)

    def _missing(self, wanted: AvroField, into: ReadColumn | None, place: str) -> list[int]:
        """A field that the writer does not have."""
        branches = wanted.type.items if wanted.type.kind == "union" else ()
        if not wanted.has_default and not any(one.kind == "null" for one in branches):
            raise _ResolutionError(
                f"`{place}` is not in the schema that the data was written with, and it has no default"
            )
        if into is None:
            return []
        if not wanted.has_default or (wanted.default is None and wanted.type.kind in ("null", "union")):
            return [self.made.step(Read.NULL, into.builder, place)]
        where, size = self.made.constant(encode_default(wanted.type, wanted.default, place))
        step = self.made.step(Read.DEFAULT, -1, place, where, size)
        return [self.made.link(step, [self.read(wanted.type, wanted.type, into, place)])]

    def _enum(self, written: AvroType, read: AvroType, into: ReadColumn, place: str) -> int:
        places = {symbol: i for i, symbol in enumerate(into.symbols)}
        default = places[read.default] if read.default is not None else -1
        step = self.made.step(Read.ENUM, into.builder, place)
        return self.made.link(step, [places.get(symbol, default) for symbol in written.symbols])

    def _plain(self, written: AvroType, read: AvroType, into: ReadColumn, place: str) -> int:
        kind, about = into.type, into.builder
        match written.kind:
            case "boolean":
                return self.made.step(Read.BOOL, about, place)
            case "int" | "long":
                op = Read.INT if written.kind == "int" else Read.LONG
                return self.made.step(
                    op, about, place, _MEANS.get(kind, As.INTEGER), _factor(written, read, kind)
                )
            case "float" | "double":
                return self.made.step(Read.FLOAT if written.kind == "float" else Read.DOUBLE, about, place)
        fixed = written.kind == "fixed"
        if fixed and written.size != read.size:
            raise _mismatch(written, read, place)
        if pa.types.is_decimal(kind):
            scale, digits = (
                (written.scale, written.precision)
                if written.logical == "decimal"
                else (read.scale, read.precision)
            )
            if scale != kind.scale or digits > kind.precision:
                raise _ResolutionError(f"`{place}` is written as decimal({digits},{scale}), not as {kind}")
            op = Read.DECIMAL_FIXED if fixed else Read.DECIMAL
            return self.made.step(op, about, place, kind.precision, written.size)
        if fixed:
            op = Read.UUID if pa.types.is_string(kind) else Read.FIXED
            return self.made.step(op, about, place, 0, written.size)
        return self.made.step(Read.BYTES, about, place, int(pa.types.is_string(kind)))

    def skip(self, written: AvroType, place: str) -> int:
        """The step that reads a value and forgets it."""
        match written.kind:
            case "union":
                step = self.made.step(Read.UNION, -1, place)
                return self.made.link(step, [self.skip(one, place) for one in written.items])
            case "record":
                step = self.made.step(Read.RECORD, -1, place)
                return self.made.link(
                    step, [self.skip(one.type, _join(place, one.name)) for one in written.fields]
                )
            case "array":
                return self._items(written, lambda inner: [self.skip(written.items[0], inner)], -1, place)
            case "map":
                return self._items(written, lambda inner: self._skipped_entry(written, inner), -1, place)
            case "enum":
                step = self.made.step(Read.ENUM, -1, place)
                return self.made.link(step, [-1] * len(written.symbols))
        op = {"string": Read.BYTES, "boolean": Read.BOOL}.get(written.kind) or Read[written.kind.upper()]
        return self.made.step(op, -1, place, 0, written.size)

    def _skipped_entry(self, written: AvroType, place: str) -> list[int]:
        return [self.made.step(Read.BYTES, -1, place), self.skip(written.items[0], place)]


def _join(place: str, name: str) -> str:
    return place + name if name in ("[]", "{}") else f"{place}.{name}" if place else name


def _width(kind: pa.DataType) -> int:
    return _WIDTHS.get(kind, 8)


def _targets(written: AvroType, read: AvroType, place: str) -> dict[str, str]:
    """Of each of the writer's fields that is read the name for the reader.

    As Avro has it, aliases rename the writer's fields. So the field `a` is read as `x` with the alias `a`,
    and not as a new `a` of the reader; but not if the writer has `x` too. Raises `_ResolutionError`.
    """
    fields, names = {one.name: one for one in read.fields}, {one.name for one in written.fields}
    renamed: dict[str, str] = {}
    without = [one for one in read.fields if one.name not in names]
    while without:
        one = without.pop()
        found = sorted(names.intersection(one.aliases) - {one.name})
        if len(found) > 1:
            several = ", ".join(f"`{alias}`" for alias in found)
            raise _ResolutionError(
                f"`{_join(place, one.name)}` has the aliases {several}, which were all written"
            )
        for alias in found:
            if alias in renamed:
                both = f"`{renamed[alias]}` and of `{one.name}`"
                raise _ResolutionError(f"`{_join(place, alias)}` was written; it is an alias of {both}")
            renamed[alias] = one.name
            if alias in fields:
                without.append(fields[alias])
    return renamed | {name: name for name in fields if name in names and name not in renamed}


def _mismatch(written: AvroType, read: AvroType, place: str) -> _ResolutionError:
    where = f"`{place}` was" if place else "The data was"
    return _ResolutionError(f"{where} written as {written.label}; it can't be read as {read.label}")


def _factor(written: AvroType, read: AvroType, kind: pa.DataType) -> int:
    """What to multiply an integer by, or if negative, to divide it by, to make one of ``kind``."""
    have = _unit(written) or _unit(read)
    want = ARROW_UNITS[kind.unit] if pa.types.is_timestamp(kind) or pa.types.is_time(kind) else _unit(read)
    if have is None or want is None:
        return 1
    return want // have if want >= have else -(have // want)


def _unit(avro: AvroType) -> int | None:
    return UNITS.get(avro.logical.rpartition("-")[2])


def _require_fit(read: AvroType, kind: pa.DataType, place: str) -> None:
    """Raise `FormatError` unless values of ``read`` can be in a column of ``kind``."""
    if not _fits(read, kind):
        raise _misfit(read, kind, place)


def _misfit(read: AvroType, kind: pa.DataType, place: str, beside: str = "") -> FormatError:
    where = f"`{place}`" if place else "The type"
    return FormatError(f"{where} is {read.label} in the Avro schema, which is not read as {kind}{beside}")


def _is_plain(kind: pa.DataType) -> bool:
    """True if `_Compiler._leaf` has a builder for ``kind``."""
    types = pa.types
    if types.is_time64(kind) or types.is_timestamp(kind) or types.is_decimal128(kind):
        return True
    return kind in _WIDTHS or kind in (pa.bool_(), pa.string(), pa.binary())


def _fits(read: AvroType, kind: pa.DataType) -> bool:
    types, logical = pa.types, read.logical
    if types.is_timestamp(kind):
        if logical.startswith("local-timestamp-"):
            return kind.tz is None
        return logical.startswith("timestamp-") and kind.tz is not None
    if types.is_time(kind):
        return logical.startswith("time-") and types.is_time64(kind)
    if types.is_date(kind):
        return logical == "date" and types.is_date32(kind)
    if types.is_decimal(kind):
        same = logical == "decimal" and read.scale == kind.scale and read.precision <= kind.precision
        return same and types.is_decimal128(kind)
    if types.is_string(kind):
        is_text = read.kind == "bytes" and logical != "decimal"
        return is_text or read.kind in ("string", "enum") or (read.kind == "fixed" and logical == "uuid")
    allowed = {
        "int": (*_NARROW, pa.float32(), pa.float64()),
        "long": (pa.int64(), pa.float32(), pa.float64()),
        "float": (pa.float32(), pa.float64()),
        "double": (pa.float64(),),
        "boolean": (pa.bool_(),),
        "bytes": (pa.binary(),),
        "string": (pa.binary(),),
        "fixed": (pa.binary(),),
    }
    return kind in allowed.get(read.kind, ())
