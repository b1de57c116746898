"""The compiled reader of JSON against `JsonRows` and `pyarrow.json`: what it is sure of is what they read,
for random types and payloads, plain, odd and spoilt."""

from __future__ import annotations

import datetime as dt
import random
import struct
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pytest
from support.hooks.fresh_seeds import try_seeds

from spark_kafka_native.formats.isolate import NotTogetherError
from spark_kafka_native.formats.json.json_format import JsonDecoder
from spark_kafka_native.formats.json.read_kernel import load_reader
from spark_kafka_native.formats.json.read_program import compile_read
from spark_kafka_native.formats.json.rows import JsonRows

READER = load_reader()
pytestmark = pytest.mark.skipif(READER is None, reason="there is no C compiler")

PART = pa.struct([("s", pa.string()), ("y", pa.int8())])
FIELDS = {
    "a": (
        pa.int64(),
        "5 -7 1700000000000 9223372036854775807 -9223372036854775808 9223372036854775808 01 1e3 1.0 -0",
    ),
    "i": (pa.int32(), "7 2147483647 -2147483648 2147483648 123456789012345678901234567890"),
    "h": (pa.int16(), "-3 32767 -32769 -"),
    "y": (pa.int8(), "1 -128 128 127 0"),
    "s": (
        pa.string(),
        r'"text" "" "a~longer~text~than~a~step~takes" "\n\t\"\\\/\b\f\r" "\u00e9\ud83d\ude00\u0000" '
        r'"\ud83d" "\udc00" "\x" "\u12" "é漢😀" 1.50 [1,~2] {"b":~[null]} true "' + '\t"',
    ),
    "f": (
        pa.float64(),
        '2.5 0.1 -0 1e400 5e-324 2.2250738585072014e-308 9007199254740993 NaN "NaN" 1. .5 1E+2 0e0',
    ),
    "g": (pa.float32(), "0.1 16777217 1.00000017881393432617187499 3.4028235677973366e38 1e-40 -0.0 -Inf"),
    "b": (pa.bool_(), 'true false truth "true" 1'),
    "d": (
        pa.date32(),
        '"2020-02-29" "2021-02-29" "0001-01-01" "9999-12-31" "0000-01-01" "2020-1-1" "2020-01-01T" 1',
    ),
    "x": (
        pa.decimal128(10, 2),
        '1.25 "1.25" 1.255 -0.005 99999999.994 99999999.995 7 1e2 "1." "-12e-1" 1e-300',
    ),
    "z": (pa.decimal128(38, 18), "3 0.1234567890123456785 12345678901234567890.5 123456789012345678901"),
    "t": (
        pa.timestamp("us", "UTC"),
        '"2020-01-01T00:00:00Z" "2020-01-01~02:00:00.123456+02:00" "2020-01-01" 1577836800 253402300800 '
        '"2020-01-01T24:00:00Z" "2020-01-01T23:59:60Z" "2020-01-01T00:00:00.1234567Z" '
        '"0001-01-01T00:00:00+02:00" '
        '"1969-12-31T23:59:59.999999-05:30" "2020-01-01T00:00:00+24:00" "2020-01-01T00:00" "soon"',
    ),
    "n": (
        pa.timestamp("us"),
        '"2020-01-01~00:00:00" "2020-01-01T01:02:03.5" "2020-01-01T00:00:00Z" 1577836800',
    ),
    "l": (pa.list_(pa.int32()), '[1] [] [1,~null,2] ["x"] [1,] [[1]] {}'),
    "o": (
        pa.struct([("s", pa.string()), ("d", pa.date32()), ("l", pa.list_(PART))]),
        '{} {"s":"x"} {"d":"2020-01-01","l":[{"s":"q","y":3},{},null]} {"l":[{"y":300}]} '
        '{"s":1,"s":2} {"s":"x",}',
    ),
    "m": (
        pa.map_(pa.string(), PART),
        r'{"k":{"s":"x"},"":null} {} {"k":{},"k":{}} {"\u006b":{},"k":{}} {"k":1} {"k":{},} {"\ud83d":{}} []',
    ),
    "c": (pa.binary(), '"aGk=" "" "AAEC/+8=" "aGk" "aGl=" "aG==" "====" "a" 1 "AA==AA==" "aG-_" "aG\\/v"'),
}
"""By name: the type, and values for it, of which the first is plain; ``~`` stands for a space."""
VALUES = {name: [one.replace("~", " ") for one in texts.split(" ")] for name, (_, texts) in FIELDS.items()}
EVERY_VALUE = [one for values in VALUES.values() for one in values] + ["null"]
PIECES = [
    *(b'" , { } [ ] : \\ 0 - . e null \xff \xc3 \xed\xa0\x80 \xc3\xa9'.split()),
    b" ",
    b"\n",
    b"\0",
    b"",
]


class Payloads:
    """Draws types and payloads."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def kind(self, without: str = "") -> pa.DataType:
        """Some of the fields, in any order."""
        names = [name for name in FIELDS if name not in without]
        names = self._random.sample(names, self._random.randint(1, len(names)))
        return pa.struct([(name, FIELDS[name][0]) for name in names])

    def payload(self) -> bytes | None:
        """A third of them are plain, a third has odd values, a third is spoilt."""
        draw = self._random
        if draw.random() < 0.05:
            return draw.choice([None, b"", b" \n", b"null", b"[]", b"{}", b" { } ", b"{", b"}"])
        style = draw.randrange(3)
        text = self._object(0.0 if style == 0 else 0.2).encode()
        return self._spoil(text) if style == 2 else text

    def _object(self, odd: float) -> str:
        draw = self._random
        names = [name for name in FIELDS if draw.random() < 0.8]
        if draw.random() < 0.3:
            draw.shuffle(names)
        members = []
        for name in names:
            if draw.random() < odd:
                name = draw.choice(["other", "", "aa", "\\u0061", "événement", draw.choice(list(FIELDS))])
            members.append(f'{self._space()}"{name}"{self._space()}:{self._space()}{self._value(name, odd)}')
        return f"{{{','.join(members)}{self._space()}}}"

    def _space(self) -> str:
        return self._random.choice(["", "", "", " ", "\r\n\t "])

    def _value(self, name: str, odd: float) -> str:
        draw = self._random
        if name in "fgxz" and draw.random() < 0.5:
            return self._number()
        if name in "tnd" and draw.random() < 0.5:
            return self._time(name)
        if draw.random() < odd:
            return draw.choice(EVERY_VALUE if name not in VALUES or draw.random() < 0.3 else VALUES[name])
        return VALUES.get(name, EVERY_VALUE)[0]

    def _number(self) -> str:
        draw = self._random
        match draw.randrange(5):
            case 0:
                return repr(draw.random() * 10 ** draw.randint(-5, 20))
            case 1:
                return repr(struct.unpack("<d", draw.randbytes(8))[0]).replace("nan", "1").replace("inf", "2")
            case 2:
                return f"{draw.getrandbits(draw.randint(1, 64))}e{draw.randint(-340, 310)}"
            case 3:
                return repr(float(np.float32(draw.random())))
        return f"{draw.getrandbits(40)}.{draw.getrandbits(30):0{draw.randint(1, 12)}}"

    def _time(self, name: str) -> str:
        draw = self._random
        moment = dt.datetime(1, 1, 1) + dt.timedelta(microseconds=draw.randrange(315_537_897_600 * 10**6))
        if name == "d":
            return f'"{moment.date()}"'
        zone = draw.choice(["", "Z", "+00:00", "-11:30", "+23:59"]) if name == "t" else ""
        return f'"{moment.isoformat(sep=draw.choice("T "))}{zone}"'

    def _spoil(self, text: bytes) -> bytes:
        draw = self._random
        for _ in range(draw.choice([1, 1, 2, 4])):
            at = draw.randrange(len(text) + 1)
            text = (
                text[:at] + draw.choice([*PIECES, draw.randbytes(1)]) + text[at + draw.choice([0, 0, 1, 3]) :]
            )
        return text


def drawn(seed: int, without: str = "") -> tuple[pa.DataType, pa.Array]:
    draw = Payloads(seed)
    payloads = pa.array([draw.payload() for _ in range(60)], pa.binary())
    return draw.kind(without), payloads.slice(seed % 7)


def shown(array: pa.Array, rows: Iterable[int]) -> list[str]:
    """As text: NaN equals nothing. Times as numbers: some are in no year that Python knows."""
    numbers = pa.struct(
        [(f.name, pa.int64() if pa.types.is_timestamp(f.type) else f.type) for f in array.type]
    )
    return [repr(row) for row in array.cast(numbers).take(pa.array(rows, pa.int64())).to_pylist()]


def test_what_the_reader_is_sure_of_is_what_a_payload_is_alone() -> None:
    sure_of = 0

    def check(seed: int) -> None:
        nonlocal sure_of
        kind, payloads = drawn(seed)
        assert READER is not None
        program = compile_read(kind, naive_is_utc=True)
        assert program is not None
        array, unsure = READER(program, payloads)
        array.validate(full=True)
        assert array.type == kind
        assert array.take(pa.array(unsure)).null_count == len(unsure)
        sure = sorted(set(range(len(payloads))) - set(unsure.tolist()))
        alone = JsonRows(kind, dt.UTC).read(payloads)
        assert not set(alone.bad.rows) & set(sure)
        assert shown(array, sure) == shown(alone.array, sure)
        sure_of += len(sure)

    try_seeds(check, "sure of JSON", range(40))
    assert sure_of > 40 * 20


def test_a_column_is_the_same_without_the_reader() -> None:
    def check(seed: int) -> None:
        kind, payloads = drawn(seed)
        ours = JsonDecoder(type=kind, zone=dt.UTC, reader=READER).decode(payloads)
        arrow = JsonDecoder(type=kind, zone=dt.UTC, reader=None).decode(payloads)
        assert ours.bad == arrow.bad
        assert shown(ours.array, range(len(payloads))) == shown(arrow.array, range(len(payloads)))

    try_seeds(check, "JSON without the reader", range(20))


def test_what_arrow_reads_the_reader_mostly_reads_too() -> None:
    """Else it would only cost time."""
    refused = read = 0
    for seed in range(60):
        kind, payloads = drawn(seed, without="mcxz")
        decoder = JsonDecoder(type=kind, zone=dt.UTC, reader=READER)
        program = compile_read(kind, naive_is_utc=True)
        assert READER is not None
        assert program is not None
        _, unsure = READER(program, payloads)
        for row in range(len(payloads)):
            try:
                decoder.read_together(payloads.slice(row, 1))
            except NotTogetherError:
                continue
            read += 1
            refused += row in unsure
    assert read > 1_000
    assert refused < read // 10
