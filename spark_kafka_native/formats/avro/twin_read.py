"""`decode`: the kernel's loop over payloads in Python, for where the C extension was not built.

The same results, the same refusals: it is what the compiled kernel is tested against.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from ..arrays import offsets_and_data, validity
from .program import As, Built, Program, Read
from .reasons import BadPayload

if TYPE_CHECKING:
    from .kernel import BuiltArray

_LARGEST = (1 << 31) - 1


class _BadError(Exception):
    """``reason``: a `BadPayload`; ``step``: the innermost that failed."""

    def __init__(self, reason: BadPayload) -> None:
        super().__init__()
        self.reason = reason
        self.step = -1


class _Builder:
    """A column that grows."""

    def __init__(self, kind: int, width: int, parts: Sequence[int], everyone: list[_Builder]) -> None:
        self.kind, self.width = kind, width
        self.parts = parts
        self.everyone = everyone
        self.valid: list[bool] = []
        self.values: list[bytes] = []
        """Of each value the bytes; none for structs and lists."""
        self.ends = [0]

    @property
    def length(self) -> int:
        return len(self.valid)

    @property
    def weight(self) -> int:
        return 1 + sum(self.everyone[part].weight for part in self.parts)

    def put(self, data: bytes = b"") -> None:
        self.valid.append(True)
        self._put(data)

    def put_null(self) -> None:
        self.valid.append(False)
        self._put(bytes(1 if self.kind == Built.BOOL else self.width))
        if self.kind == Built.STRUCT:
            for part in self.parts:
                self.everyone[part].put_null()

    def _put(self, data: bytes) -> None:
        self.values.append(data)
        if self.kind == Built.LIST:
            self.ends.append(self.everyone[self.parts[0]].length)
        else:
            self.ends.append(self.ends[-1] + len(data))
        if self.ends[-1] > _LARGEST:
            raise OverflowError("a column has more than 2 GiB")

    def truncate(self, length: int) -> None:
        del self.valid[length:], self.values[length:], self.ends[length + 1 :]
        for part in self.parts:
            self.everyone[part].truncate(length if self.kind == Built.STRUCT else self.ends[-1])

    def finish(self) -> BuiltArray:
        from .kernel import BuiltArray

        nulls = self.valid.count(False)
        has_offsets = self.kind in (Built.BYTES, Built.LIST)
        data: bytes | None = b"".join(self.values)
        if self.kind == Built.BOOL:
            data = np.packbits(np.frombuffer(data or b"", np.uint8), bitorder="little").tobytes()
        return BuiltArray(
            self.length,
            nulls,
            np.packbits(self.valid, bitorder="little").tobytes()
            if nulls and self.kind != Built.NULL
            else None,
            np.array(self.ends, np.int32).tobytes() if has_offsets else None,
            data if self.kind in (Built.BOOL, Built.FIXED, Built.BYTES) else None,
        )


def decode(
    program: Program, payloads: pa.Array, prefix: bytes
) -> tuple[list[BuiltArray], list[tuple[int, int, int]]]:
    """As `AvroKernel.decode`."""
    reading = _Reading(program)
    offsets, data = offsets_and_data(payloads)
    content, present, bad = data.tobytes(), validity(payloads), []
    root = reading.builders[0]
    for row in range(len(payloads)):
        if not present[row]:
            root.put_null()
            continue
        payload = content[offsets[row] : offsets[row + 1]]
        try:
            reading.row(payload[len(prefix) :] if prefix and payload.startswith(prefix) else payload)
        except _BadError as error:
            bad.append((row, int(error.reason), error.step))
            root.truncate(row)
            root.put_null()
    return [builder.finish() for builder in reading.builders], bad


class _Step(NamedTuple):
    op: int
    target: int
    links: list[int]
    a: int
    b: int


class _Reading:
    """The state of one call."""

    def __init__(self, program: Program) -> None:
        links = program.links.tolist()
        self.steps = [
            _Step(op, target, links[child : child + count], a, b)
            for op, target, child, count, a, b in program.steps.tolist()
        ]
        self.constants = program.constants
        self.builders: list[_Builder] = []
        for kind, width, child, count in program.builders.tolist():
            self.builders.append(_Builder(kind, width, links[child : child + count], self.builders))
        self.data, self.at, self.end = b"", 0, 0
        self.credit = 0

    def row(self, payload: bytes) -> None:
        self.data, self.at, self.end = payload, 0, len(payload)
        self.credit = 4096 + 4 * len(self.builders) + 1024 * len(payload)
        self.value(0)
        if self.at != self.end:
            raise _BadError(BadPayload.LEFT_OVER)

    def value(self, number: int) -> None:
        step = self.steps[number]
        try:
            _READERS[Read(step.op)](self, step)
        except _BadError as error:
            if error.step < 0:
                error.step = number
            raise

    def number(self, most: int) -> int:
        raw = 0
        for i in range(most):
            if self.at == self.end:
                raise _BadError(BadPayload.END)
            byte = self.data[self.at]
            self.at += 1
            if i == most - 1 and byte > (0x0F if most == 5 else 0x01):
                break
            raw |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                return raw >> 1 ^ -(raw & 1)
        raise _BadError(BadPayload.VARINT)

    def take(self, size: int) -> bytes:
        if size > self.end - self.at:
            raise _BadError(BadPayload.END)
        self.at += size
        return self.data[self.at - size : self.at]

    def counted(self) -> int:
        size = self.number(10)
        if size < 0:
            raise _BadError(BadPayload.LENGTH)
        if size > self.end - self.at:
            raise _BadError(BadPayload.END)
        return size

    def put(self, target: int, data: bytes) -> None:
        if target >= 0:
            self.builders[target].put(data)

    def put_integer(self, target: int, value: int) -> None:
        width = self.builders[target].width
        if not -(1 << (8 * width - 1)) <= value < 1 << (8 * width - 1):
            raise _BadError(BadPayload.RANGE)
        self.put(target, value.to_bytes(width, "little", signed=True))

    def put_null(self, target: int) -> None:
        if target < 0:
            return
        self.spend(self.builders[target].weight - 1)
        self.builders[target].put_null()

    def spend(self, credit: int) -> None:
        self.credit -= credit
        if self.credit < 0:
            raise _BadError(BadPayload.EXPANSION)

    # One method for each kind of step

    def read_null(self, step: _Step) -> None:
        self.put_null(step.target)

    def read_boolean(self, step: _Step) -> None:
        if self.at == self.end:
            raise _BadError(BadPayload.END)
        if self.data[self.at] > 1:
            raise _BadError(BadPayload.BOOL)
        self.put(step.target, self.take(1))

    def read_int(self, step: _Step) -> None:
        self._integer(step.target, self.number(5), step.a, step.b)

    def read_long(self, step: _Step) -> None:
        self._integer(step.target, self.number(10), step.a, step.b)

    def _integer(self, target: int, value: int, a: int, b: int) -> None:
        if target < 0:
            return
        if a not in (As.FLOAT, As.DOUBLE):
            value = value * b if b > 1 else value // -b if b < -1 else value
            if a != As.INTEGER and not 0 <= value < 86_400 * (10**6 if a == As.TIME_MICROS else 10**9):
                raise _BadError(BadPayload.RANGE)
            self.put_integer(target, value)
        else:
            # NumPy, as Python's numbers would be rounded twice.
            number = np.int64(value)
            self.put(target, (np.float32(number) if a == As.FLOAT else np.float64(number)).tobytes())

    def read_float(self, step: _Step) -> None:
        data = self.take(4)
        if step.target >= 0 and self.builders[step.target].width == 8:
            data = np.frombuffer(data, np.float32).astype(np.float64).tobytes()
        self.put(step.target, data)

    def read_double(self, step: _Step) -> None:
        self.put(step.target, self.take(8))

    def read_bytes(self, step: _Step) -> None:
        data = self.take(self.counted())
        if step.target >= 0 and step.a:
            try:
                data.decode()
            except UnicodeDecodeError:
                raise _BadError(BadPayload.UTF8) from None
        self.put(step.target, data)

    def read_fixed(self, step: _Step) -> None:
        self.put(step.target, self.take(step.b))

    def read_decimal(self, step: _Step) -> None:
        self._decimal(step.target, self.take(self.counted()), step.a)

    def read_decimal_fixed(self, step: _Step) -> None:
        self._decimal(step.target, self.take(step.b), step.a)

    def _decimal(self, target: int, data: bytes, digits: int) -> None:
        if target < 0:
            return
        value = int.from_bytes(data, "big", signed=True)
        if not data or abs(value) >= 10**digits:
            raise _BadError(BadPayload.DECIMAL)
        self.put(target, value.to_bytes(16, "little", signed=True))

    def read_uuid(self, step: _Step) -> None:
        text = self.take(16).hex()
        self.put(step.target, "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])).encode())

    def read_enum(self, step: _Step) -> None:
        symbol = self.number(5)
        if not 0 <= symbol < len(step.links):
            raise _BadError(BadPayload.SYMBOL)
        if step.target < 0:
            return
        if step.links[symbol] < 0:
            raise _BadError(BadPayload.UNKNOWN_SYMBOL)
        self.put_integer(step.target, step.links[symbol])

    def read_record(self, step: _Step) -> None:
        for link in step.links:
            self.value(link)
        self.put(step.target, b"")

    def read_items(self, step: _Step) -> None:
        target = step.target
        items = self.builders[self.builders[target].parts[0]] if target >= 0 else None
        first = 0 if items is None else items.length
        while (count := self.number(10)) != 0:
            self._block(step, count, items)
        if items is None:
            return
        if len(step.links) == 2 and len(set(items.values[first:])) < items.length - first:
            raise _BadError(BadPayload.KEY_TWICE)
        self.put(target, b"")

    def _block(self, step: _Step, count: int, items: _Builder | None) -> None:
        size = None
        if count == -(1 << 63):
            raise _BadError(BadPayload.COUNT)
        if count < 0:
            count, size = -count, self.counted()
        if not step.a:
            self.spend(count * (items.weight if items is not None else 1))
        elif count > (self.end - self.at) // step.a:
            raise _BadError(BadPayload.COUNT)
        start = self.at
        for _ in range(count):
            for link in step.links:
                self.value(link)
        if size is not None and self.at - start != size:
            raise _BadError(BadPayload.BLOCK)

    def read_union(self, step: _Step) -> None:
        branch = self.number(10)
        if not 0 <= branch < len(step.links):
            raise _BadError(BadPayload.BRANCH)
        self.value(step.links[branch])

    def read_member(self, step: _Step) -> None:
        self.value(step.links[0])
        for i, part in enumerate(self.builders[step.target].parts):
            if i != step.a:
                self.put_null(part)
        self.put(step.target, b"")

    def read_default(self, step: _Step) -> None:
        self.spend(step.b + 1)
        outside = self.data, self.at, self.end
        self.data, self.at, self.end = self.constants, step.a, step.a + step.b
        try:
            self.value(step.links[0])
        finally:
            self.data, self.at, self.end = outside

    def read_fail(self, _: _Step) -> None:
        raise _BadError(BadPayload.RESOLUTION)


_READERS = {
    Read.NULL: _Reading.read_null,
    Read.BOOL: _Reading.read_boolean,
    Read.INT: _Reading.read_int,
    Read.LONG: _Reading.read_long,
    Read.FLOAT: _Reading.read_float,
    Read.DOUBLE: _Reading.read_double,
    Read.BYTES: _Reading.read_bytes,
    Read.FIXED: _Reading.read_fixed,
    Read.DECIMAL: _Reading.read_decimal,
    Read.DECIMAL_FIXED: _Reading.read_decimal_fixed,
    Read.UUID: _Reading.read_uuid,
    Read.ENUM: _Reading.read_enum,
    Read.RECORD: _Reading.read_record,
    Read.ARRAY: _Reading.read_items,
    Read.MAP: _Reading.read_items,
    Read.UNION: _Reading.read_union,
    Read.MEMBER: _Reading.read_member,
    Read.DEFAULT: _Reading.read_default,
    Read.FAIL: _Reading.read_fail,
}
