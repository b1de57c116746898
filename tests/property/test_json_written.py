"""JSON as it is written: random columns by the compiled writer, by its twin, and by Python's json."""

from __future__ import annotations

import base64
import json
import math
import random
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.hooks.fresh_seeds import try_seeds

from spark_kafka_native.formats.json.write_kernel import (
    POWERS,
    ArrowWriter,
    Columns,
    Writer,
    load_compiled,
)

COMPILED = load_compiled()
WRITERS: list[Writer] = [ArrowWriter()] if COMPILED is None else [COMPILED, ArrowWriter()]
TEXTS = ("", "a", "häß", "😀", "\u2028", '"', "\\", "\x00", "\x1f", "\n", "\x7f", "/", "lorem ipsum dolor ")


class Cases:
    """Types and values, drawn."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def type(self, depth: int = 0) -> pa.DataType:
        rng = self.rng
        match rng.randrange(16 if depth < 3 else 12):
            case 0:
                return pa.bool_()
            case 1 | 2:
                return rng.choice((pa.int8(), pa.int16(), pa.int32(), pa.int64()))
            case 3:
                return pa.float32()
            case 4:
                return pa.float64()
            case 5 | 6:
                return pa.string()
            case 7:
                return pa.binary()
            case 8:
                return pa.date32()
            case 9:
                return pa.timestamp("us", rng.choice((None, "UTC", "Europe/Paris")))
            case 10:
                precision = rng.randrange(1, 39)
                return pa.decimal128(precision, rng.randrange(precision + 1))
            case 11:
                return pa.decimal256(76, rng.randrange(-3, 77))
            case 12:
                return pa.list_(self.type(depth + 1))
            case 13:
                return pa.map_(rng.choice((pa.string(), pa.int32(), pa.bool_())), self.type(depth + 1))
            case _:
                return self.struct(depth + 1)

    def struct(self, depth: int = 0) -> pa.DataType:
        names = {self.text() for _ in range(self.rng.randrange(1, 6))}
        return pa.struct([(name, self.type(depth)) for name in sorted(names)])

    def text(self) -> str:
        return "".join(self.rng.choice(TEXTS) for _ in range(self.rng.randrange(5)))

    def array(self, kind: pa.DataType, count: int) -> pa.Array:
        """``count`` values with nulls, within larger buffers; nulls may have contents all the same."""
        before, behind = self.rng.randrange(10), self.rng.randrange(3)
        return self.whole(kind, before + count + behind).slice(before, count)

    def whole(self, kind: pa.DataType, count: int) -> pa.Array:
        rng, types = self.rng, pa.types
        mask = [rng.random() < 0.2 for _ in range(count)] if rng.random() < 0.7 else [False] * count
        nulls = pa.array(mask, pa.bool_())
        if types.is_struct(kind):
            parts = [self.array(field.type, count) for field in kind]
            return pa.StructArray.from_arrays(parts, fields=list(kind), mask=nulls)
        if types.is_list(kind) or types.is_map(kind):
            ends = pa.array(np.cumsum([0, *(rng.choice((0, 1, 3)) for _ in range(count))]), pa.int32())
            size = ends[-1].as_py()
            valid = pa.array([not one for one in mask], pa.bool_()).buffers()[1]
            if types.is_list(kind):
                return pa.Array.from_buffers(
                    kind, count, [valid, ends.buffers()[1]], children=[self.array(kind.value_type, size)]
                )
            texts = [self.text() for _ in range(size)]
            if not types.is_string(kind.key_type):
                texts = [str(rng.randrange(2)) for _ in range(size)]
            keys = pa.array(texts, pa.string()).cast(kind.key_type)
            entries = pa.StructArray.from_arrays(
                [keys, self.array(kind.item_type, size)], fields=[kind.key_field, kind.item_field]
            )
            return pa.Array.from_buffers(kind, count, [valid, ends.buffers()[1]], children=[entries])
        if types.is_string(kind):
            values = pa.array([self.text() for _ in range(count)], kind)
        elif types.is_binary(kind):
            values = pa.array([rng.randbytes(rng.randrange(6)) for _ in range(count)], kind)
        elif types.is_boolean(kind):
            values = pa.array([rng.random() < 0.5 for _ in range(count)], kind)
        else:
            values = self.numbers(kind, count)
        valid = pa.array([not one for one in mask], pa.bool_()).buffers()[1]
        return pa.Array.from_buffers(kind, count, [valid, *values.buffers()[1:]])

    def numbers(self, kind: pa.DataType, count: int) -> pa.Array:
        """Values of any width, of random bits; of few of them often."""
        rng, width = self.rng, kind.bit_width // 8
        found = bytearray()
        for _ in range(count):
            number = rng.getrandbits(rng.randrange(1, 8 * width + 1))
            if pa.types.is_float64(kind) and rng.random() < 0.7:
                found += struct.pack("<d", self.double())
            elif pa.types.is_float32(kind) and rng.random() < 0.7:
                found += np.float32(round(rng.uniform(-1e5, 1e5), rng.randrange(5))).tobytes()
            else:
                found += (number ^ rng.choice((0, (1 << 8 * width) - 1))).to_bytes(width, "little")
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(bytes(found))])

    def double(self) -> float:
        rng = self.rng
        match rng.randrange(6):
            case 0:
                return round(rng.uniform(-1e6, 1e6), rng.randrange(8))
            case 1:
                return math.ldexp(1.0, rng.randrange(-1074, 1024))
            case 2:
                return rng.randrange(1 << 51, 1 << 53) / 4  # halfway between two texts of as many digits
            case 3:
                return float(f"1e{rng.randrange(-323, 309)}")
            case 4:
                return float(rng.randrange(-(1 << 62), 1 << 62))
        return rng.choice((0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308))


def is_meant(kind: pa.DataType, value: Any, found: Any) -> bool:
    """True if ``found``, as Python's json reads it, is ``value`` of an array."""
    types = pa.types
    if value is None or found is None:
        return value is found
    if types.is_struct(kind):
        return found.keys() == {name for name, one in value.items() if one is not None} and all(
            is_meant(field.type, value[field.name], found[field.name])
            for field in kind
            if field.name in found
        )
    if types.is_list(kind):
        return len(found) == len(value) and all(
            is_meant(kind.value_type, one, other) for one, other in zip(value, found, strict=True)
        )
    if types.is_map(kind):
        named = {key if isinstance(key, str) else json.dumps(key): item for key, item in value}
        return found.keys() == named.keys() and all(
            is_meant(kind.item_type, item, found[key]) for key, item in named.items()
        )
    if types.is_floating(kind) and not math.isfinite(value):
        return found == {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}[str(value)]
    if types.is_float64(kind):
        return Decimal(repr(value)) == found and math.copysign(1, value) == math.copysign(1, float(found))
    if types.is_float32(kind):
        return Decimal(str(np.float32(value))) == found
    if types.is_binary(kind):
        return isinstance(found, str) and base64.b64decode(found, validate=True) == value
    if types.is_date(kind) or types.is_timestamp(kind):
        return isinstance(found, str)  # `test_json_write.py` has the values, which Python may not know
    return bool(found == value)


def plain(array: pa.Array) -> Any:
    """``array`` for Python, which knows no year 10,000."""
    kind = array.type
    if pa.types.is_struct(kind):
        parts = [plain(one) for one in array.flatten()]
        names = [one.name for one in kind]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_list(kind):
        items, ends = plain(array.values), array.offsets.to_pylist()
        spans = [items[ends[i] : ends[i + 1]] for i in range(len(array))]
        return [
            span if valid else None for span, valid in zip(spans, array.is_valid().to_pylist(), strict=True)
        ]
    if pa.types.is_map(kind):
        pairs = list(zip(array.keys.to_pylist(), plain(array.items), strict=True))
        ends = array.offsets.to_pylist()
        spans = [pairs[ends[i] : ends[i + 1]] for i in range(len(array))]
        return [
            span if valid else None for span, valid in zip(spans, array.is_valid().to_pylist(), strict=True)
        ]
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return array.view(pa.int32() if pa.types.is_date(kind) else pa.int64()).to_pylist()
    return array.to_pylist()


def test_both_writers_write_the_same_and_json_reads_what_was_meant() -> None:
    def check(seed: int) -> None:
        cases = Cases(seed)
        rows = cases.array(cases.struct(), cases.rng.randrange(20))
        first, *others = [writer.write(rows) for writer in WRITERS]
        first.validate(full=True)
        for other in others:
            assert other.equals(first)
        for value, text in zip(plain(rows), first.to_pylist(), strict=True):
            found = None if text is None else json.loads(text, parse_float=Decimal)
            assert is_meant(rows.type, value, found), (value, text)

    try_seeds(check, "json written", range(60))


def test_both_writers_write_the_same_for_columns_of_any_type() -> None:
    def check(seed: int) -> None:
        cases = Cases(seed)
        column = cases.array(cases.type(), 200)
        first, *others = [writer.write(column) for writer in WRITERS]
        assert first.null_count == column.null_count
        for other in others:
            assert other.equals(first)

    try_seeds(check, "json written columns", range(60))


def test_columns_that_lie_are_refused() -> None:
    """Lengths and offsets that leave their buffers: an error, or texts of what there is, and no crash."""
    kernel = pytest.importorskip("spark_kafka_native.formats.json._write_kernel", exc_type=ImportError)

    def check(seed: int) -> None:
        cases = Cases(seed)
        rng = cases.rng
        rows = cases.array(cases.struct(), 20)
        columns = Columns()
        columns.add(rows, b"")
        nodes, count, names, buffers = columns.finish()
        for _ in range(20):
            spoilt, given = nodes.copy(), list(buffers)
            if rng.random() < 0.7:
                at = rng.randrange(count), rng.randrange(8)
                spoilt[at] = rng.choice((-1, 0, 1, 2**31, 2**62, spoilt[at] + rng.randrange(-3, 4)))
            else:
                at = rng.randrange(len(given))
                data = bytearray(given[at])
                match rng.randrange(3):
                    case 0:
                        del data[rng.randrange(len(data) + 1) :]
                    case 1 if len(data) >= 4 and at % 3 == 1:
                        place = 4 * rng.randrange(len(data) // 4)
                        data[place : place + 4] = rng.getrandbits(32).to_bytes(4, "little")
                given[at] = bytes(data)
            ends, out = np.zeros(21, np.int32), bytearray(rng.randrange(4000))
            try:
                done = kernel.write_columns(
                    spoilt, count, names, given, POWERS, out, ends, rng.choice((0, 0, 0, -1, 21, 22))
                )
            except ValueError:
                continue
            assert 0 <= done <= 20

    try_seeds(check, "json written out of lying columns", range(60))


@pytest.mark.skipif(len(WRITERS) == 1, reason="there is no C compiler")
def test_both_writers_are_there() -> None:
    assert len(WRITERS) == 2
