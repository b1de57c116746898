"""Columns of Arrow IPC streams as related types, next to the same in Python: nested ones, slices, and values
under a null, which count for nothing."""

import random
import struct
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from support.hooks.fresh_seeds import try_seeds

from spark_kafka_native.formats.arrow_ipc import ArrowIpcFormat, _cast

BAD: Final = object()
"""In place of a value that does not fit, and of each that it is in."""
FLOATS: Final = (0.0, -1.5, float("inf"), float(np.finfo(np.float32).max))
WIDTHS: Final = {
    name: digits
    for name, digits in (("decimal32", 9), ("decimal64", 18), ("decimal128", 38), ("decimal256", 76))
    if hasattr(pa, name)
}
"""The decimals of this version of Arrow, and their most digits."""
Types = tuple[pa.DataType, pa.DataType]


def test_nested_columns_are_read_as_python_reads_them() -> None:
    seen = {"good": 0, "bad": 0}

    def check(seed: int) -> None:
        rng = random.Random(seed)
        have, want = _types(rng, 0)
        column, expected = _column(rng, have, want, rng.randrange(1, 6), rng.choice([0, 0.2, 0.9]))
        column.validate(full=True)
        start = rng.randrange(len(column))
        for part, values in ((column, expected), (column.slice(start), expected[start:])):
            is_good = BAD not in values
            assert _is_cast(part, want, values) == is_good
            payload = _stream(part)
            assert not _is_valid(payload) or _is_decoded(payload, want, values) == is_good
            seen["good" if is_good else "bad"] += 1

    try_seeds(check, "casts of Arrow streams", range(300))
    assert min(seen.values()) > 100


def test_decimals_are_read_as_python_reads_them() -> None:
    seen = {"good": 0, "bad": 0}

    def check(seed: int) -> None:
        rng = random.Random(seed)
        have, want = (_decimal(rng, rng.choice([*WIDTHS])) for _ in range(2))
        if rng.random() < 0.3:
            have = getattr(pa, f"decimal{have.bit_width}")(
                have.precision, rng.choice([want.scale, rng.randint(-76, 76)])
            )
        is_near = abs(want.scale - have.scale) <= 76
        numbers = [_number(rng, have, want, rng.random() < 0.5) for _ in range(20)]
        good = [number for number in numbers if number[1] is not BAD]
        column = pa.Array.from_buffers(
            have, len(good), [None, pa.py_buffer(b"".join(data for data, _ in good))]
        )
        assert _is_cast(column, want, [value for _, value in good]) == is_near
        for data in [data for data, value in numbers if value is BAD]:
            assert not _is_cast(pa.Array.from_buffers(have, 1, [None, pa.py_buffer(data)]), want, [BAD])
        seen["good"] += len(good)
        seen["bad"] += 20 - len(good)

    try_seeds(check, "casts of Arrow decimals", range(300))
    assert min(seen.values()) > 1000


def _is_cast(column: pa.Array, want: pa.DataType, values: list[Any]) -> bool:
    try:
        converted = _cast(column, want)
    except pa.ArrowException:
        return False
    converted.validate(full=True)
    assert converted.type == want
    assert converted.to_pylist() == values
    return True


def _stream(column: pa.Array) -> bytes:
    batch = pa.record_batch([column], names=["x"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _is_valid(payload: bytes) -> bool:
    """False for some lists out of the middle of others, which pyarrow 18 writes with wrong offsets."""
    try:
        pa.ipc.open_stream(payload).read_all().validate(full=True)
    except pa.ArrowInvalid:
        return pa.__version__ >= "19"
    return True


def _is_decoded(payload: bytes, want: pa.DataType, values: list[Any]) -> bool:
    decoder = ArrowIpcFormat().decoder(pa.list_(pa.struct([("x", want)])), {})
    decoded = decoder.decode(pa.array([payload], pa.binary()))
    decoded.array.validate(full=True)
    if decoded.bad.rows:
        return False
    assert decoded.array.to_pylist() == [[{"x": value} for value in values]]
    return True


def _types(rng: random.Random, depth: int) -> Types:
    """A type of a stream, and a related one that is asked for."""
    match rng.choice(["leaf", "struct", "list", "map"]) if depth < 3 else "leaf":
        case "struct":
            both = [(f"f{i}", _types(rng, depth + 1)) for i in range(rng.randrange(1, 3))]
            have, want = (pa.struct([(name, types[side]) for name, types in both]) for side in (0, 1))
        case "list":
            have, want = (pa.list_(one) for one in _types(rng, depth + 1))
        case "map":
            items = _types(rng, depth + 1)
            keys = rng.choice([pa.string(), pa.large_string()]), pa.string()
            have, want = (pa.map_(key, item) for key, item in zip(keys, items, strict=True))
        case _:
            decimals = _decimal(rng, rng.choice([*WIDTHS])), _decimal(rng, "decimal128")
            have, want = rng.choice([*_LEAVES, *[decimals] * 4])
    return have, want


def _decimal(rng: random.Random, name: str) -> pa.DataType:
    precision = rng.choice([WIDTHS[name], rng.randint(1, WIDTHS[name])])
    return getattr(pa, name)(precision, rng.randint(0, precision))


_LEAVES: Final = [
    (pa.float64(), pa.float32()),
    (pa.float64(), pa.float64()),
    (pa.int64(), pa.int8()),
    (pa.null(), pa.float32()),
    (pa.null(), pa.struct([("y", pa.int8())])),
]


def _column(
    rng: random.Random, have: pa.DataType, want: pa.DataType, length: int, share: float
) -> tuple[pa.Array, list[Any]]:
    """A column of ``have`` where ``share`` of the numbers do not fit, often as a slice of a longer one; and
    its values as ``want``."""
    before, after = rng.choice([(0, 0), (1, 2)])
    total = before + length + after
    present = [rng.random() < 0.8 for _ in range(total)]
    types = pa.types
    if types.is_null(have):
        return pa.nulls(length), [None] * length
    if types.is_struct(have):
        parts = [_column(rng, a.type, b.type, total, share) for a, b in zip(have, want, strict=True)]
        buffers, children = [_bits(present)], [part for part, _ in parts]
        rows = zip(*(values for _, values in parts), strict=True)
        names = [one.name for one in have]
        values = [BAD if BAD in row else dict(zip(names, row, strict=True)) for row in rows]
    elif types.is_nested(have):
        ends = np.cumsum([rng.randrange(3) for _ in range(total + 1)])
        elements, inner = _elements(rng, have, want, int(ends[-1]) + rng.randrange(2), share)
        buffers = [_bits(present), pa.py_buffer(ends.astype(np.int32))]
        children = [elements]
        lists = [inner[start:end] for start, end in pairwise(ends.tolist())]
        values = [BAD if BAD in one else one for one in lists]
    else:
        numbers = [_number(rng, have, want, rng.random() < share) for _ in present]
        buffers = [_bits(present), pa.py_buffer(b"".join(data for data, _ in numbers))]
        children, values = [], [value for _, value in numbers]
    shown = [value if there else None for value, there in zip(values, present, strict=True)]
    column = pa.Array.from_buffers(have, total, buffers, children=children)
    return column.slice(before, length), shown[before : before + length]


def _elements(
    rng: random.Random, have: pa.DataType, want: pa.DataType, count: int, share: float
) -> tuple[pa.Array, list[Any]]:
    """Those of lists, or the entries of maps."""
    if pa.types.is_list(have):
        return _column(rng, have.value_type, want.value_type, count, share)
    items, values = _column(rng, have.item_type, want.item_type, count, share)
    keys = [f"k{i}" for i in range(count)]
    entry = pa.struct([have.key_field, have.item_field])
    children = [pa.array(keys, have.key_type), items]
    entries = pa.Array.from_buffers(entry, count, [None], children=children)
    return entries, [BAD if one is BAD else (key, one) for key, one in zip(keys, values, strict=True)]


def _number(rng: random.Random, have: pa.DataType, want: pa.DataType, misfits: bool) -> tuple[bytes, Any]:
    """The memory of a number of ``have``, and what it is as ``want``."""
    if pa.types.is_decimal(have):
        unscaled = _unscaled(rng, have, want, misfits)
        return unscaled.to_bytes(have.bit_width // 8, "little", signed=True), _rescaled(unscaled, have, want)
    if pa.types.is_integer(have):
        whole = rng.choice([-129, 128, 2**40]) if misfits else rng.randrange(-128, 128)
        return struct.pack("<q", whole), BAD if misfits else whole
    number = rng.choice([1e300, -1e39]) if misfits else rng.choice(FLOATS)
    return struct.pack("<d", number), BAD if misfits and want == pa.float32() else number


def _unscaled(rng: random.Random, have: pa.DataType, want: pa.DataType, misfits: bool) -> int:
    """A number of ``have``, near the largest that fits or any if it ``misfits``, else one that fits."""
    added = want.scale - have.scale
    fitting = 10 ** max(0, min(have.precision, want.precision - added))
    if misfits:
        most = 10**have.precision - 1
        number = rng.choice([most, fitting, fitting + 1, rng.randrange(10 ** rng.randint(1, have.precision))])
        return rng.choice([1, -1]) * min(number, most)
    step = 10 ** max(0, -added)
    largest = (fitting - 1) // step
    return rng.choice([1, -1]) * step * rng.choice([0, largest, rng.randint(0, largest)])


def _rescaled(unscaled: int, have: pa.DataType, want: pa.DataType) -> Any:
    """`BAD` for a number with too many digits in front of the point or behind it."""
    if have == want:
        return _decimal_of(unscaled, want)
    up, down = (10 ** max(0, by) for by in (want.scale - have.scale, have.scale - want.scale))
    if abs(want.scale - have.scale) > 76:
        return BAD
    number, rest = divmod(unscaled * up, down)
    return BAD if rest or abs(number) >= 10**want.precision else _decimal_of(number, want)


def _decimal_of(unscaled: int, kind: pa.DataType) -> Decimal:
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -kind.scale))


def _bits(present: list[bool]) -> Any:
    return pa.py_buffer(np.packbits(np.array(present, np.bool_), bitorder="little"))
