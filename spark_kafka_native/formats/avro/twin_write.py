"""`encode`: the kernel's loop over rows in Python, for where the C extension was not built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .defaults import varint
from .program import I32, Program, Write
from .reasons import BadRow

if TYPE_CHECKING:
    from .kernel import AvroColumns, Refused

_LARGEST = (1 << 31) - 1


class _RefusedError(Exception):
    def __init__(self, reason: BadRow) -> None:
        super().__init__()
        self.reason = reason
        self.step = -1


class _Column:
    """One column: its buffers, seen from its first row."""

    def __init__(self, shape: list[int], valid: bytes, offsets: bytes, data: bytes) -> None:
        self.length, self.first, self.bits, items = shape
        self.valid, self.data = valid, data
        self.ends = np.frombuffer(offsets, np.int32)
        self.limit = items if items >= 0 else len(data)

    def is_null(self, row: int) -> bool:
        bit = self.first + row
        return bool(self.valid) and not self.valid[bit >> 3] >> (bit & 7) & 1

    def value(self, row: int, width: int) -> bytes:
        at = (self.first + row) * width
        return self.data[at : at + width]

    def edges(self, row: int) -> tuple[int, int]:
        start, end = (int(edge) for edge in self.ends[self.first + row : self.first + row + 2])
        if not 0 <= start <= end <= self.limit:
            raise _RefusedError(BadRow.COLUMN)
        return start, end


def encode(
    program: Program, columns: AvroColumns, skip: npt.NDArray[np.uint8]
) -> tuple[bytes, I32] | Refused:
    """As `AvroKernel.encode`."""
    from .kernel import Refused

    buffers = [bytes(memoryview(buffer)) for buffer in columns.buffers]
    found = [_Column(shape, *buffers[3 * i : 3 * i + 3]) for i, shape in enumerate(columns.shapes.tolist())]
    writing = _Writing(program, found)
    ends = [0]
    for row in range(len(skip)):
        try:
            if not skip[row]:
                writing.value(0, row)
        except _RefusedError as error:
            return Refused(row, int(error.reason), error.step)
        if len(writing.out) > _LARGEST:
            raise OverflowError("the rows have more than 2 GiB as Avro")
        ends.append(len(writing.out))
    return bytes(writing.out), np.array(ends, np.int32)


class _Writing:
    def __init__(self, program: Program, columns: list[_Column]) -> None:
        self.steps, self.links = program.steps.tolist(), program.links.tolist()
        self.constants, self.columns = program.constants, columns
        self.out = bytearray()

    def value(self, number: int, row: int) -> None:
        op, about, child, count, a, b = self.steps[number]
        try:
            self._write(Write(op), about, self.links[child : child + count], (a, b), row)
        except _RefusedError as error:
            if error.step < 0:
                error.step = number
            raise

    def _write(self, op: Write, about: int, links: list[int], operands: tuple[int, int], row: int) -> None:
        a, b = operands
        match op:
            case Write.RECORD:
                for link in links:
                    self.value(link, row)
            case Write.CONSTANT:
                self.out += self.constants[a : a + b]
            case Write.OPTIONAL:
                self._optional(self.columns[about], links[0], operands, row)
            case Write.ARRAY | Write.MAP:
                self._items(self.columns[about], links, row)
            case Write.MEMBERS:
                self._members(links, a, row)
            case Write.NOTHING:
                pass
            case _:
                self._leaf(op, self.columns[about], operands, row)

    def _leaf(self, op: Write, column: _Column, operands: tuple[int, int], row: int) -> None:
        a, b = operands
        match op:
            case Write.BOOL:
                bit = column.first + row
                self.out.append(column.data[bit >> 3] >> (bit & 7) & 1)
            case Write.INTEGER:
                self._integer(int.from_bytes(column.value(row, a), "little", signed=True), b)
            case Write.RAW:
                self.out += column.value(row, a)
            case Write.DECIMAL:
                self._decimal(int.from_bytes(column.value(row, b), "little", signed=True), a)
            case _:
                start, end = column.edges(row)
                if op == Write.FIXED and end - start != a:
                    raise _RefusedError(BadRow.SIZE)
                if op == Write.BYTES:
                    self.out += varint(end - start)
                self.out += column.data[start:end]

    def _integer(self, value: int, factor: int) -> None:
        value = value * factor if factor > 1 else value // -factor if factor < -1 else value
        try:
            self.out += varint(value)
        except ValueError:
            raise _RefusedError(BadRow.RANGE) from None

    def _decimal(self, value: int, size: int) -> None:
        used = (value if value >= 0 else ~value).bit_length() // 8 + 1
        if size >= 0 and used > size:
            raise _RefusedError(BadRow.DIGITS)
        if size < 0:
            self.out += varint(used)
        self.out += value.to_bytes(used if size < 0 else size, "big", signed=True)

    def _optional(self, column: _Column, link: int, operands: tuple[int, int], row: int) -> None:
        null, branch = operands
        if column.is_null(row):
            if null < 0:
                raise _RefusedError(BadRow.NULL)
            self.out += varint(null)
            return
        if branch >= 0:
            self.out += varint(branch)
        self.value(link, row)

    def _items(self, column: _Column, links: list[int], row: int) -> None:
        start, end = column.edges(row)
        if start < end:
            self.out += varint(end - start)
        for item in range(start, end):
            for link in links:
                self.value(link, item)
        self.out += b"\0"

    def _members(self, links: list[int], null: int, row: int) -> None:
        present = [link for link in links if not self.columns[self.steps[link][1]].is_null(row)]
        if len(present) > 1 or (not present and null < 0):
            raise _RefusedError(BadRow.MEMBERS)
        if present:
            self.value(present[0], row)
        else:
            self.out += varint(null)
