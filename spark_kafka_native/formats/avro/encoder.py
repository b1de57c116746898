"""`AvroEncoder`: rows as payloads of one schema."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import bitmap, offsets_and_data, validity, wrap
from ..errors import EncodeError
from .kernel import AvroColumns, AvroKernel, Refused, choose
from .reasons import describe_row
from .schema import AvroType
from .write_program import WriteColumn, compile_write

_NOTHING: Final = b""


class AvroEncoder:
    """Encodes rows of ``kind`` as ``avro``. Raises `FormatError` for types that do not fit each other."""

    def __init__(self, avro: AvroType, kind: pa.DataType, kernel: AvroKernel | None = None) -> None:
        compiled = compile_write(avro, kind)
        self._program, self._column = compiled.program, compiled.column
        self._kernel = kernel or choose()

    def encode(self, rows: pa.Array) -> pa.Array:
        """As `Encoder.encode`. A null row is a null payload, whether the schema allows null or not."""
        columns = _Collected()
        try:
            columns.collect(rows, self._column, "")
        except _UnfitError as error:
            raise self._first_unfit(rows) from error
        present = validity(rows)
        found = self._kernel.encode(self._program, columns.finish(), (~present).astype(np.uint8))
        if isinstance(found, Refused):
            raise EncodeError(found.row, describe_row(found.reason, self._program.places[found.step]))
        data, ends = found
        valid = None if present.all() else bitmap(present)
        buffers = [valid, pa.py_buffer(ends), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), len(rows), buffers)

    def _first_unfit(self, rows: pa.Array) -> EncodeError:
        """About the first row with a value that does not fit, found by halves."""
        first, count = 0, len(rows)
        while count > 1:
            half = count // 2
            if self._unfit(rows.slice(first, half)) is None:
                first, count = first + half, count - half
            else:
                count = half
        return EncodeError(first, self._unfit(rows.slice(first, 1)) or "it does not fit its schema")

    def _unfit(self, rows: pa.Array) -> str | None:
        """Why ``rows`` do not fit; None if they do."""
        try:
            _Collected().collect(rows, self._column, "")
        except _UnfitError as error:
            return str(error)
        return None


class _UnfitError(ValueError):
    """A value that its schema does not have; names its field."""


class _Collected:
    """The buffers of arrays, numbered as the program numbers its columns."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int, int, int]] = []
        self.buffers: list[Any] = []

    def collect(self, array: pa.Array, column: WriteColumn, place: str) -> None:
        """Add ``array`` and its parts."""
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
        if column.cast is not None:
            array = _cast(array, column.cast, place)
        if column.symbols:
            array = _positions(array, column.symbols, place)
        if column.parts or column.names or pa.types.is_struct(array.type):
            self._collect_parts(array, column, place)
        else:
            self._collect_leaf(array, column)

    def _collect_leaf(self, array: pa.Array, column: WriteColumn) -> None:
        kind, buffers = array.type, array.buffers()
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            self._add(array, 0, -1, buffers[1] or bytes(4 * (array.offset + len(array) + 1)), buffers[2])
        else:
            self._add(array, column.bits, -1, None, None if pa.types.is_null(kind) else buffers[1])

    def _collect_parts(self, array: pa.Array, column: WriteColumn, place: str) -> None:
        if pa.types.is_struct(array.type):
            self._add(array, 0, -1, None, None)
            # `flatten` makes the fields of a null struct null.
            fields = dict(zip((one.name for one in array.type), array.flatten(), strict=True))
            for name, part in zip(column.names, column.parts, strict=True):
                self.collect(fields[name], part, f"{place}.{name}" if place else name)
            return
        offsets, inner = _items(array)
        self._add(array, 0, len(inner[0]), offsets, None)
        for values, part in zip(inner, column.parts, strict=True):
            self.collect(values, part, place)

    def _add(self, array: pa.Array, bits: int, items: int, offsets: Any, data: Any) -> None:
        valid = array.buffers()[0] if array.null_count and not pa.types.is_null(array.type) else None
        self.shapes.append((len(array), array.offset, bits, items))
        self.buffers += [valid or _NOTHING, offsets or _NOTHING, data or _NOTHING]

    def finish(self) -> AvroColumns:
        """In the form that kernels take."""
        return AvroColumns(np.array(self.shapes, np.int64).reshape(-1, 4), self.buffers)


def _items(array: pa.Array) -> tuple[Any, list[pa.Array]]:
    """The offsets of lists or maps, and their items, or keys and values. Without those of other rows, where
    ``array`` is a slice, and those under a null: they need not fit the schema."""
    inner = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    buffer = array.buffers()[1]
    if buffer is None:
        return bytes(4 * (array.offset + len(array) + 1)), inner
    ends = np.frombuffer(buffer, np.int32, len(array) + 1, array.offset * 4)
    given = np.diff(ends)
    lengths = np.where(validity(array), given, 0)
    total = int(lengths.sum(dtype=np.int64))
    # The kernel refuses offsets that make no sense.
    if total == len(inner[0]) or (given < 0).any() or not 0 <= ends[0] <= ends[-1] <= len(inner[0]):
        return buffer, inner
    own = np.zeros(array.offset + len(array) + 1, np.int32)
    np.cumsum(lengths, out=own[array.offset + 1 :])
    if total == ends[-1] - ends[0]:
        return pa.py_buffer(own), [one.slice(int(ends[0]), total) for one in inner]
    places = np.arange(total) + np.repeat(ends[:-1] - own[array.offset : -1], lengths)
    return pa.py_buffer(own), [one.take(wrap(places, pa.int64())) for one in inner]


def _cast(array: pa.Array, kind: pa.DataType, place: str) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        raise _UnfitError(f"`{place}` can't be written as {kind}: {str(error)[:100]}") from error


def _positions(array: pa.Array, symbols: tuple[str, ...], place: str) -> pa.Array:
    """Of each text its position among ``symbols``."""
    data = [symbol.encode() for symbol in symbols]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int32)
    known = pa.Array.from_buffers(
        pa.string(), len(data), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(data))]
    )
    found = pc.index_in(array.cast(pa.string()), value_set=known)
    if found.null_count != array.null_count:
        row = int(np.flatnonzero(validity(array) & ~validity(found))[0])
        offsets, content = offsets_and_data(array.cast(pa.string()))
        text = content[offsets[row] : offsets[row + 1]][:40].tobytes().decode(errors="replace")
        raise _UnfitError(f"`{place}` is '{text}', which is none of the symbols of its enum")
    return found
