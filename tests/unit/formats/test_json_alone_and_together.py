"""A payload that `pyarrow.json` takes gives the row that it gives when it is read alone: its neighbours in a
batch must not change it."""

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_kafka_native.formats.isolate import NotTogetherError
from spark_kafka_native.formats.json.json_format import JsonFormat
from spark_kafka_native.formats.json.rows import JsonRows

KIND = pa.struct(
    [
        ("a", pa.int64()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("us")),
        ("l", pa.list_(pa.int32())),
        ("o", pa.struct([("s", pa.string()), ("d", pa.date32())])),
    ]
)
NUMBERS = (
    *(
        b"0 1 -1 -0 01 1.0 .5 1. +1 1e3 1E+2 1e-2 1e7 1e39 1e400 1e-50 0.001 1.005 16777217 12345678.9"
    ).split(),
    *(b"123456789 2147483648 9223372036854775807 9223372036854775808 3.4028236e38").split(),
    *(b"NaN -NaN nan Inf -Inf InfX -Infi Infinity -Infinity +Infinity").split(),
    *b"0e-90 5e-41 5e-19 1e-018 1e38 0e39".split(),
    b"1" * 30,
    b"0.1" + b"0" * 500,
)
TEXTS = (
    *(
        b"NaN Inf -INF true 1. .5 +1 -.5e1 1_0 0x1 1e2 12345678.901 + \\u0041 \\ud83d \\x \t \xc3\xa9 \xff"
    ).split(b" "),
    *(b"2020-01-01 2020-1-1 20200101 2020-02-30 0000-01-01 9999-12-31 10000-01-01").split(),
    *(
        b"2020-01-01T00:00:00Z 2020-01-01T00 2020-01-01T00:00 2020-01-01T24:00:00Z 2020-01-01T23:59:60Z"
    ).split(),
    *(b"2020-01-01T00:00:00.1Z 2020-01-01T00:00:00.1234567Z 1969-12-31T23:59:59.999999Z").split(),
    *(
        b"2020-01-01T00:00:00-00:00 2020-01-01t00:00:00z 0000-01-01T00:00:00Z 9999-12-31T23:59:59.999999Z"
    ).split(),
    *rb"0e-90 1\u0065-2 \u0031\u002e5 0e-1\u0039".split(),
    b"",
    b" 1",
    b"2020-01-01 00:00:00.123",
    b"2020-01-01 00:00:00+02:00",
    b"2020-01-01 00:00:00+0200",
    b"2020-01-01 00:00:00+02",
    b"2020-01-01 00:00:00 Z",
    b" 2020-01-01",
    b"\xed\xa0\x80",
)
OTHERS = (
    *(
        b'null true false [] [1] [1,null] [1,] {} {"s":"x"} {"s":1} {"d":"2020-01-01"} {"s":[-NaN,{"d":Inf}]}'
    ).split(),
    b" 1 ",
)
JSON_VALUES = st.sampled_from([*NUMBERS, *(b'"' + text + b'"' for text in TEXTS), *OTHERS])
NAMES = st.sampled_from([*(one.name.encode() for one in KIND), b"other", b"\\u0061"])
OBJECTS = st.lists(st.tuples(NAMES, JSON_VALUES), max_size=3).map(
    lambda pairs: b"{" + b",".join(b'"' + name + b'":' + value for name, value in pairs) + b"}"
)


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """An object, a third of them with one byte more, less or changed."""
    payload = draw(OBJECTS)
    if draw(st.integers(0, 2)):
        return payload
    place = draw(st.integers(0, len(payload)))
    added = draw(
        st.sampled_from([b"", b",", b'"', b"{", b"}", b"\\", b"\n", b" ", b":"]) | st.binary(max_size=1)
    )
    return payload[:place] + added + payload[place + draw(st.integers(0, 1)) :]


@settings(max_examples=1_500, deadline=None)
@example(b'{"f":Inf}')
@example(b'{"other":-NaN}')
@example(b'{"t":"0000-01-01T00:00:00Z"}')
@example(b'{"n":"2020-01-01 00:00:00Z"}')
@given(payloads())
def test_alone_and_together(payload: bytes) -> None:
    array = pa.array([payload], pa.binary())
    try:
        together = JsonFormat().decoder(KIND, {}).read_together(array)
    except NotTogetherError:
        return
    alone = JsonRows(KIND, dt.UTC).read(array)
    assert alone.bad.rows == ()
    # As text: NaN equals nothing.
    assert repr(together.to_pylist()) == repr(alone.array.to_pylist())


@pytest.mark.parametrize("depth", [10, 5_000, 300_000])
@pytest.mark.parametrize(
    ("opening", "innermost", "closing"),
    [(b"[", b"", b"]"), (b'{"a":', b"1", b"}"), (b'[{"a":', b"-NaN", b"}]"), (b" [ ", b"", b" ] ")],
)
def test_depth_makes_no_difference(depth: int, opening: bytes, innermost: bytes, closing: bytes) -> None:
    deep = b'{"x":' + opening * depth + innermost + closing * depth + b',"a":1}'
    decoder = JsonFormat().decoder(pa.struct([("a", pa.int64())]), {})
    alone = JsonRows(decoder.type, dt.UTC).read(pa.array([deep]))
    assert alone.array.equals(decoder.read_together(pa.array([deep])))
    assert alone.array.to_pylist() == [{"a": 1}]
    broken = JsonRows(decoder.type, dt.UTC).read(pa.array([deep[:-10] + b"]" + deep[-10:]]))
    assert broken.bad.rows == (0,)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"1.00000017881393432617187499", 1.0000001192092896),
        (b"3.4028235677973365e38", 3.4028234663852886e38),
        (b"-3.4028235677973365e38", -3.4028234663852886e38),
        (b"3.4028236e38", float("inf")),
    ],
)
def test_a_float_of_32_bits_is_rounded_once(text: bytes, value: float) -> None:
    """By way of a double it would be the next one, or none that is finite."""
    decoder = JsonFormat().decoder(pa.struct([("g", pa.float32())]), {})
    payload = pa.array([b'{"g":%s}' % text])
    assert JsonRows(decoder.type, dt.UTC).read(payload).array.to_pylist() == [{"g": value}]
    assert decoder.read_together(payload).to_pylist() == [{"g": value}]


@pytest.mark.parametrize("odd", [b"-NaN", b"Inf", b"-Inf"])
def test_odd_numbers_end_where_they_end(odd: bytes) -> None:
    """Other values may follow them, in any depth."""
    decoder = JsonFormat().decoder(pa.struct([("a", pa.int64()), ("s", pa.string())]), {})
    value = b'[%s, {"c": [%s , 1], "d": {}}, "x"]' % (odd, odd)
    payload = pa.array([b'{"s":%s,"a":1}' % value])
    alone = JsonRows(decoder.type, dt.UTC).read(payload)
    assert (alone.array.to_pylist(), alone.bad.rows) == ([{"a": 1, "s": value.decode()}], ())
