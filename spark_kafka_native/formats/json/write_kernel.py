"""The writer of JSON: `CompiledWriter` where the build had a C compiler, else `ArrowWriter`, its twin.

Both write the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from ...kernel_choice import wants_compiled
from ..arrays import bitmap, validity
from ..errors import EncodeError
from .twin_write import write_texts

MAX_BYTES: Final = 2**31 - 1
"""Of a binary array, which has offsets of 32 bits."""


class Writer(Protocol):
    """Writes arrays as JSON."""

    def write(self, array: pa.Array) -> pa.Array:
        """The JSON text (binary) of each element, null for a null. Raises `EncodeError` if all of them have
        more than 2 GiB."""


class ArrowWriter:
    """Arrow's text kernels as a `Writer`: column by column."""

    def write(self, array: pa.Array) -> pa.Array:
        """As `Writer.write`."""
        try:
            return write_texts(array).cast(pa.binary())
        except pa.ArrowCapacityError as error:
            raise _too_large(0) from error


class CompiledWriter:
    """The C extension as a `Writer`: row by row. AttributeError if it lacks the loop."""

    def __init__(self, loops: Any, max_bytes: int = MAX_BYTES) -> None:
        self._write: Callable[..., int] = loops.write_columns
        self._max_bytes = max_bytes

    def write(self, array: pa.Array) -> pa.Array:
        """As `Writer.write`. The twin writes types that the kernel does not know: none that Spark has."""
        columns = Columns()
        try:
            columns.add(array, b"")
        except _UnknownTypeError:
            return ArrowWriter().write(array)
        rows = len(array)
        ends = np.zeros(rows + 1, np.int32)
        out = pa.allocate_buffer(0, resizable=True)
        done, room = 0, array.nbytes + rows * (columns.per_row + 8) + 256
        while True:
            out.resize(min(room, self._max_bytes), shrink_to_fit=False)
            done = self._write(*columns.finish(), POWERS, out, ends, done)
            if done == rows:
                break
            if room >= self._max_bytes:
                raise _too_large(done)
            # As much for each of the other rows as for those that are written, or twice as much.
            room = max(2 * room, int(1.1 * int(ends[done]) / (done or 1) * rows))
        valid = bitmap(validity(array)) if array.null_count else None
        return pa.Array.from_buffers(pa.binary(), rows, [valid, pa.py_buffer(ends), out])


def _too_large(row: int) -> EncodeError:
    return EncodeError(row, "the rows up to this one have more than 2 GiB as JSON: write fewer at once")


class _UnknownTypeError(Exception):
    pass


class _Op(IntEnum):
    """What a node of the kernel writes."""

    BOOL = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT = 5
    DOUBLE = 6
    STRING = 7
    BINARY = 8
    DATE = 9
    TIME = 10
    """``b``: 1 if it has a time zone."""
    DECIMAL = 11
    """``b``: its scale."""
    STRUCT = 12
    LIST = 13
    MAP = 14


_SCALARS: Final = {
    "bool": (_Op.BOOL, 1, 0),
    "int8": (_Op.INT8, 8, 0),
    "int16": (_Op.INT16, 16, 0),
    "int32": (_Op.INT32, 32, 0),
    "int64": (_Op.INT64, 64, 0),
    "float": (_Op.FLOAT, 32, 0),
    "double": (_Op.DOUBLE, 64, 0),
    "string": (_Op.STRING, 0, 0),
    "binary": (_Op.BINARY, 0, 0),
    "date32[day]": (_Op.DATE, 32, 0),
    "timestamp[us]": (_Op.TIME, 64, 0),
}
"""The operation, the bits of a value among the data, and ``b``."""


def _scalar(kind: pa.DataType) -> tuple[_Op, int, int]:
    if pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind):
        return _Op.DECIMAL, kind.bit_width, kind.scale
    if pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None:
        return _Op.TIME, 64, 1
    try:
        return _SCALARS[str(kind)]
    except KeyError:
        raise _UnknownTypeError from None


class Columns:
    """An array and its parts as the kernel takes them: nodes, each behind the one that it is a part of."""

    def __init__(self) -> None:
        self.per_row = 0
        """Bytes of names and brackets, about."""
        self._nodes: list[list[int]] = []
        """The operation, the number of the node behind it and its parts, the values, the offset of the first,
        the bits of a value, ``b``, place and size of the name."""
        self._names = bytearray()
        self._buffers: list[Any] = []
        """Validity, offsets and data of each node; ``b""`` where it has none."""

    def add(self, array: pa.Array, name: bytes) -> None:
        """Add ``array`` and its parts; ``name`` is what stands before a value of it."""
        kind = array.type
        types = pa.types
        parts: list[tuple[pa.Array, bytes]] = []
        if types.is_struct(kind):
            op, bits, b = _Op.STRUCT, 0, 0
            parts = [(array.field(i), _lead(kind.field(i).name)) for i in range(kind.num_fields)]
        elif types.is_map(kind):
            op, bits, b = _Op.MAP, 0, 0
            parts = [(array.keys, b""), (array.items, b"")]
        elif types.is_list(kind):
            op, bits, b = _Op.LIST, 0, 0
            parts = [(array.values, b"")]
        else:
            op, bits, b = _scalar(kind)
        node = [op, 0, len(array), array.offset, bits, b, len(self._names), len(name)]
        self._nodes.append(node)
        self._names += name
        self.per_row += len(name) + 2
        self._add_buffers(array, op)
        for part, lead in parts:
            self.add(part, lead)
        node[1] = len(self._nodes)

    def _add_buffers(self, array: pa.Array, op: _Op) -> None:
        buffers = array.buffers()
        valid = buffers[0] if array.null_count else None
        offsets = data = None
        if op in (_Op.STRING, _Op.BINARY, _Op.LIST, _Op.MAP):
            # An empty array may have none.
            offsets = buffers[1] or bytes(4 * (array.offset + len(array) + 1))
            data = buffers[2] if op in (_Op.STRING, _Op.BINARY) else None
        elif op is not _Op.STRUCT:
            data = buffers[1]
        self._buffers += [valid or b"", offsets or b"", data or b""]

    def finish(self) -> tuple[Any, int, bytes, list[Any]]:
        """Nodes of shape (n, 8), how many, names, and buffers."""
        return np.array(self._nodes, np.int64), len(self._nodes), bytes(self._names), self._buffers


def _lead(name: str) -> bytes:
    return f",{json.dumps(name, ensure_ascii=False)}:".encode()


def _powers_of_ten() -> bytes:
    """10**-k for k from -324 to 292: of each 126 bits, rounded down, plus one, in two words of 63 bits."""
    words = []
    for k in range(-324, 293):
        power = 10 ** abs(k)
        bits = power.bit_length()
        scaled = (power << 1100 >> bits + 974) if k <= 0 else (1 << bits + 125) // power
        words += [scaled + 1 >> 63, (scaled + 1) & (1 << 63) - 1]
    return np.array(words, np.uint64).tobytes()


POWERS: Final = _powers_of_ten()


def load_compiled() -> CompiledWriter | None:
    """The compiled writer, or None where it was not built."""
    try:
        from . import _write_kernel

        return CompiledWriter(_write_kernel)
    except (ImportError, AttributeError):  # not built, or built from older sources
        return None


def choose_writer() -> Writer:
    """The writer to use."""
    return (load_compiled() if wants_compiled() else None) or ArrowWriter()
