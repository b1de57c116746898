"""What the compiled reader runs: a struct type as numbered nodes, and the columns that it makes of them.

A node is seven numbers: what it reads, the first and the number of the nodes of its parts, the place and the
size of its name among the names, and two operands. What a node reads goes to the builder of its number. Parts
have greater numbers than their whole, and follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class Node(IntEnum):
    """What a node reads; ``a`` and ``b`` are its operands."""

    BOOL = 0
    INTEGER = 1
    """``a``: its bytes."""
    FLOAT = 2
    DOUBLE = 3
    STRING = 4
    DECIMAL = 5
    """``a``: its digits at most; ``b``: its scale."""
    DATE = 6
    TIMESTAMP = 7
    """``a``: 1 if it has a time zone."""
    LIST = 8
    STRUCT = 9
    BINARY = 10
    """Base64."""
    MAP = 11
    """Its parts: the keys, which are strings, and the items."""


_MAX_DEPTH: Final = 64
"""Of a type: the reader calls itself for each level."""
_MAX_NODES: Final = 10_000

_SCALARS: Final = {
    pa.bool_(): (Node.BOOL, 0, 0),
    pa.int8(): (Node.INTEGER, 1, 0),
    pa.int16(): (Node.INTEGER, 2, 0),
    pa.int32(): (Node.INTEGER, 4, 0),
    pa.int64(): (Node.INTEGER, 8, 0),
    pa.float32(): (Node.FLOAT, 0, 0),
    pa.float64(): (Node.DOUBLE, 0, 0),
    pa.string(): (Node.STRING, 0, 0),
    pa.date32(): (Node.DATE, 0, 0),
    pa.binary(): (Node.BINARY, 0, 0),
}


@dataclass(frozen=True, slots=True, eq=False)
class ReadProgram:
    """A program in the form that the reader takes."""

    type: pa.DataType
    nodes: npt.NDArray[np.int32]
    """Shape (n, 7)."""
    names: bytes

    def assemble(self, built: Sequence[tuple[Any, ...]]) -> pa.Array:
        """The array out of what the builders have built: the number of values and of nulls of each, and its
        validity, offsets and data."""
        return self._assemble(self.type, 0, built)

    def _assemble(self, kind: pa.DataType, at: int, built: Sequence[tuple[Any, ...]]) -> pa.Array:
        length, nulls, valid, *buffers = built[at]
        first = int(self.nodes[at, 1])
        parts = [self._assemble(part.type, first + i, built) for i, part in enumerate(_parts(kind))]
        if pa.types.is_map(kind):
            entries = pa.struct([kind.key_field, kind.item_field])
            parts = [pa.Array.from_buffers(entries, len(parts[0]), [None], 0, children=parts)]
        held = [None if valid is None else pa.py_buffer(valid)]
        held += [pa.py_buffer(one) for one in buffers if one is not None]
        return pa.Array.from_buffers(kind, length, held, nulls, children=parts or None)


def compile_read(kind: pa.DataType, *, naive_is_utc: bool) -> ReadProgram | None:
    """The program for the struct ``kind``; None for a type that the reader does not know, such as
    timestamps with a zone unless ``naive_is_utc``."""
    nodes: list[list[int]] = [[0, 0, 0, 0, 0, 0, 0]]
    names = bytearray()
    level: list[tuple[int, pa.DataType]] = [(0, kind)]
    for _ in range(_MAX_DEPTH):
        following: list[tuple[int, pa.DataType]] = []
        for at, one in level:
            described = _describe(one, naive_is_utc)
            if described is None:
                return None
            op, a, b = described
            parts = _parts(one)
            nodes[at][:3] = [op, len(nodes), len(parts)]
            nodes[at][5:] = [a, b]
            for part in parts:
                name = part.name.encode()
                following.append((len(nodes), part.type))
                nodes.append([0, 0, 0, len(names), len(name), 0, 0])
                names += name
        if len(nodes) > _MAX_NODES:
            return None
        if not following:
            return ReadProgram(kind, np.array(nodes, np.int32), bytes(names))
        level = following
    return None


def _parts(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(i) for i in range(kind.num_fields)]


def _describe(kind: pa.DataType, naive_is_utc: bool) -> tuple[Node, int, int] | None:
    types = pa.types
    if types.is_struct(kind):
        return Node.STRUCT, 0, 0
    if types.is_list(kind):
        return Node.LIST, 0, 0
    if types.is_map(kind):
        return (Node.MAP, 0, 0) if types.is_string(kind.key_type) else None
    if types.is_timestamp(kind) and (naive_is_utc or kind.tz is None):
        return Node.TIMESTAMP, int(kind.tz is not None), 0
    if types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return Node.DECIMAL, kind.precision, kind.scale
    return _SCALARS.get(kind)


LEAST_POWER: Final = -325
MOST_POWER: Final = 308


@cache
def powers_of_five() -> npt.NDArray[np.uint64]:
    """The upper and the lower 64 bits of each power of five from `LEAST_POWER` to `MOST_POWER`, shifted so
    that the first bit is 1: rounded down, and the reciprocals up. See ``_read_double.h``."""
    found = np.zeros((MOST_POWER - LEAST_POWER + 1, 2), np.uint64)
    for row, power in enumerate(range(LEAST_POWER, MOST_POWER + 1)):
        five: int = 5 ** abs(power)
        if power < 0:
            bits = (five - 1).bit_length()
            five = (1 << (bits + 127 if power >= -27 else 2 * bits + 128)) // five + 1
        excess = five.bit_length() - 128
        five = five >> excess if excess > 0 else five << -excess
        found[row] = five >> 64, five & (2**64 - 1)
    return found
