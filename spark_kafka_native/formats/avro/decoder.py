"""`AvroDecoder`: payloads that one schema wrote, as columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import offsets_and_data
from ..format import BadRows, Decoded
from ..plain_types import as_payloads
from .fingerprint import SINGLE_OBJECT, single_object_prefix
from .kernel import AvroKernel, BuiltArray, choose
from .read_program import ReadColumn, compile_read
from .reasons import describe_payload
from .schema import AvroType


class AvroDecoder:
    """Decodes what ``written`` wrote, as ``read`` says, into ``kind``. Raises `FormatError` where that is not
    possible."""

    def __init__(
        self, written: AvroType, read: AvroType, kind: pa.DataType, kernel: AvroKernel | None = None
    ) -> None:
        compiled = compile_read(written, read, kind)
        self._program, self._column = compiled.program, compiled.column
        self._prefix = single_object_prefix(written)
        self._kernel = kernel or choose()

    @property
    def type(self) -> pa.DataType:
        """Of what `decode` returns."""
        return self._column.type

    def decode(self, payloads: pa.Array) -> Decoded:
        """As `Decoder.decode`. An empty payload is one that breaks off, unless the schema has no bytes."""
        payloads = as_payloads(payloads)
        built, bad = self._kernel.decode(self._program, payloads, self._prefix)
        if not bad:
            return Decoded(_assemble(self._column, built))
        ends, data = offsets_and_data(payloads)
        reasons = tuple(
            describe_payload(reason, self._program.places[step] if step >= 0 else "")
            + _looks_like(data[ends[row] : min(ends[row] + 10, ends[row + 1])].tobytes())
            for row, reason, step in bad
        )
        return Decoded(_assemble(self._column, built), BadRows(tuple(row for row, _, _ in bad), reasons))


def _looks_like(head: bytes) -> str:
    """What else a bad payload may be; ``head``: its first ten bytes."""
    if head[:2] == SINGLE_OBJECT and len(head) == 10:
        return f" (it begins as one of another schema, of fingerprint {head[:1:-1].hex()})"
    if head[:1] == b"\0" and len(head) > 5:
        number = int.from_bytes(head[1:5], "big")
        return f" (it begins as one of a schema registry, of schema {number}: see registry.url)"
    return ""


def _assemble(column: ReadColumn, built: list[BuiltArray]) -> pa.Array:
    """The array out of the buffers of its builders."""
    own, kind = built[column.builder], column.type
    if column.symbols:
        return _texts(column, own)
    if pa.types.is_null(kind):
        return pa.nulls(own.length)
    valid = None if own.valid is None else pa.py_buffer(own.valid)
    parts = [_assemble(part, built) for part in column.parts]
    if pa.types.is_map(kind):
        keys = kind.key_field
        entries = pa.struct([keys, kind.item_field])
        parts = [pa.Array.from_buffers(entries, len(parts[0]), [None], 0, children=parts)]
    buffers = [valid, *(pa.py_buffer(one) for one in (own.offsets, own.data) if one is not None)]
    return pa.Array.from_buffers(kind, own.length, buffers, own.nulls, children=parts or None)


def _texts(column: ReadColumn, own: BuiltArray) -> pa.Array:
    """The symbols at the positions that were read."""
    data = [symbol.encode() for symbol in column.symbols]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int32)
    symbols = pa.Array.from_buffers(
        pa.string(), len(data), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(data))]
    )
    valid = None if own.valid is None else pa.py_buffer(own.valid)
    positions = pa.Array.from_buffers(
        pa.int32(), own.length, [valid, pa.py_buffer(own.data or b"")], own.nulls
    )
    return pc.take(symbols, positions)
