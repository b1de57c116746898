"""The compiled reader of JSON: what it is sure of, and what it leaves to Python."""

from __future__ import annotations

import datetime as dt
import json
import random
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.formats.json.json_format import JsonDecoder
from spark_kafka_native.formats.json.read_kernel import Reader, choose_reader, load_reader
from spark_kafka_native.formats.json.read_program import LEAST_POWER, compile_read, powers_of_five

pytestmark = pytest.mark.skipif(load_reader() is None, reason="there is no C compiler")

UTC_MICROS = pa.timestamp("us", "UTC")
MAPS = pa.map_(pa.string(), pa.map_(pa.string(), pa.list_(pa.string())))


@pytest.fixture
def reader() -> Reader:
    found = load_reader()
    assert found is not None
    return found


def read(reader: Reader, payloads: list[bytes | None], **fields: pa.DataType) -> tuple[list, list[int]]:
    program = compile_read(pa.struct(list(fields.items())), naive_is_utc=True)
    assert program is not None
    array, unsure = reader(program, pa.array(payloads, pa.binary()))
    array.validate(full=True)
    return array.to_pylist(), unsure.tolist()


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("true", pa.bool_(), True),
        ("-128", pa.int8(), -128),
        ("9223372036854775807", pa.int64(), 2**63 - 1),
        ("-9223372036854775808", pa.int64(), -(2**63)),
        ("-0", pa.int64(), 0),
        ("1.5", pa.float64(), 1.5),
        ("0.8444218515250481", pa.float64(), 0.8444218515250481),
        ("1.7976931348623157e308", pa.float64(), 1.7976931348623157e308),
        ("123456789012345678901234567890", pa.float64(), 123456789012345678901234567890.0),
        ("9223372036854775807", pa.float64(), 2.0**63),
        ("-18446744073709551615", pa.float64(), -(2.0**64)),
        ("0.1", pa.float32(), float(np.float32(0.1))),
        ('"x"', pa.string(), "x"),
        ('"é \\u00e9\\ud83d\\ude00\\u0000\\n"', pa.string(), "é é\U0001f600\0\n"),
        ("1.50", pa.string(), "1.50"),
        ('{"b": [1, "}"]}', pa.string(), '{"b": [1, "}"]}'),
        ("1.255", pa.decimal128(10, 2), Decimal("1.26")),
        ('"-1.2"', pa.decimal128(10, 2), Decimal("-1.20")),
        ("12345678901234567890.5", pa.decimal128(38, 18), Decimal("12345678901234567890.5")),
        ('"2020-02-29"', pa.date32(), dt.date(2020, 2, 29)),
        ('"0001-01-01"', pa.date32(), dt.date(1, 1, 1)),
        ('"2020-01-01 02:00:00.5+02:00"', UTC_MICROS, dt.datetime(2020, 1, 1, 0, 0, 0, 500_000, dt.UTC)),
        ('"9999-12-31T23:59:59.999999Z"', UTC_MICROS, dt.datetime.max.replace(tzinfo=dt.UTC)),
        ("1577836800", UTC_MICROS, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        ("253402300799", UTC_MICROS, dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)),
        ("-62135596800", UTC_MICROS, dt.datetime(1, 1, 1, tzinfo=dt.UTC)),
        ('"2020-01-01 00:00:00"', pa.timestamp("us"), dt.datetime(2020, 1, 1)),
        ("[1, null]", pa.list_(pa.int32()), [1, None]),
        ('[{"b":"1"}, {}, null]', pa.list_(pa.struct([("b", pa.string())])), [{"b": "1"}, {"b": None}, None]),
        ("null", pa.list_(pa.struct([("b", pa.string())])), None),
        ('{"x":1, "":null}', pa.map_(pa.string(), pa.int32()), [("x", 1), ("", None)]),
        ('{"é":{"\\u00e9":[]}}', MAPS, [("é", [("é", [])])]),
        ("{}", MAPS, []),
        ("1e39", pa.string(), "1e39"),
        ('"2020-01-01T00:00:00-05:30"', UTC_MICROS, dt.datetime(2020, 1, 1, 5, 30, tzinfo=dt.UTC)),
        ('"2020-01-01T23:59:59.999999"', UTC_MICROS, dt.datetime(2020, 1, 1, 23, 59, 59, 999_999, dt.UTC)),
        ("0.00000000000000000000000000000000000001", pa.decimal128(38, 38), Decimal("1e-38")),
        ("99999999.994", pa.decimal128(10, 2), Decimal("99999999.99")),
        ("-0.125e2", pa.decimal128(10, 0), Decimal(-13)),
        ("12e3", pa.decimal128(10, 2), Decimal("12000.00")),
        ('"aGk="', pa.binary(), b"hi"),
        ('"/+9hYQ=="', pa.binary(), b"\xff\xefaa"),
        ('"AAECA/7/"', pa.binary(), b"\0\1\2\3\xfe\xff"),
        ('""', pa.binary(), b""),
    ],
)
def test_it_is_sure_of_plain_values(reader: Reader, text: str, kind: pa.DataType, value: object) -> None:
    payload = f' {{"skipped": [{{"a": "\\ud83d"}}, -1.5e3], "a": {text} }}\r\n'.encode()
    assert read(reader, [None, payload, b"", payload], a=kind) == (
        [None, {"a": value}, None, {"a": value}],
        [],
    )


@pytest.mark.parametrize(
    "payload",
    [
        *(b'null [] "x" {"a":1}x {"a":1,} {,} { {"a" {"a": {"a":1 {"a":1}{"a":1} \xef\xbb\xbf{}'.split()),
        *(b'{"a":1,"a":1} {"a":1,"\\u0061":1} {"a":"1"} {"a":1.0} {"a":1e1} {"a":01} {"a":-}'.split()),
        *(b'{"a":9223372036854775808} {"a":-9223372036854775809} {"a":[1]} {"a":nul} {"a":NaN}'.split()),
        *(b'{"b":NaN} {"b":01} {"b":"\\x"} {"b":"\\u12g4"} {"b":[1,]} {"b":[1} {"b":{"c"}}'.split()),
        *(b'{"a":true} {"b":tru} {"b":1.} {"b":.5} {"b":+1} {"b":1e} {"b":[} {"b":]}'.split()),
        *(b'{"b":"\xff"} {"b":"\xed\xa0\x80"} {"\xc0\x80":1} {"\\ud83d":1} {"b":-Inf} {"b":{1:1}}'.split()),
        b'{"b":"\xf4\x90\x80\x80"}',
        b'{"b":[1}}',
        b'{"b":[[1}]}',
        b'{"b":{"c":1]}',
        b'{"b":[{"c":1]]}',
        b'{"b":"\n"}',
        b'{"b":"\0"}',
        b'{"a":1}\0',
        b'{"b":' + b"[" * 65 + b"]" * 65 + b"}",
        b'{"b":"' + b"x" * 40,
        b'{"\\u0061' + b"x" * 256 + b'":1}',
    ],
)
def test_it_is_not_sure_of_anything_else(reader: Reader, payload: bytes) -> None:
    good = b'{"a":1,"b":"2"}'
    rows = [{"a": 1}, None, {"a": 1}]
    assert read(reader, [good, payload, good], a=pa.int64()) == (rows, [1])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('"0001-01-01T00:00:00+02:00"', UTC_MICROS),
        ('"9999-12-31T23:59:59-02:00"', UTC_MICROS),
        *[
            (f'"2020-01-01{clock}"', UTC_MICROS)
            for clock in ("T24:00:00Z", "T00:60:00Z", "T00:00:60Z", "t00:00:00Z", "T00.00:00Z", "T00:00.00Z")
        ],
        *[
            (f'"2020-01-01T00:00:00{zone}"', UTC_MICROS)
            for zone in ("+24:00", "+00:60", "-00.30", "+0:30", "z", " Z")
        ],
        ("253402300800", UTC_MICROS),
        ("-62135596801", UTC_MICROS),
        ('"2020-01-01T00:00:00Z"', pa.timestamp("us")),
        ("1577836800", pa.timestamp("us")),
        ('"2021-02-29"', pa.date32()),
        ('"0000-01-01"', pa.date32()),
        ("99999999.995", pa.decimal128(10, 2)),
        ("0." + "0" * 200, pa.decimal128(10, 2)),
        ("1e400", pa.float64()),
        ("5e-324", pa.float64()),
        ("1e1000", pa.float64()),
        ("1e18446744073709551617", pa.float64()),
        ("1e-18446744073709551617", pa.float64()),
        ("nulx", pa.int64()),
        ("truf", pa.bool_()),
        ("[1}", pa.list_(pa.int64())),
        ("[1}2]", pa.list_(pa.int64())),
        ('{"x":{}]', MAPS),
        ("1.00000017881393432617187499", pa.float32()),
        ("1e-40", pa.float32()),
        ("3.41e38", pa.float32()),
        ("128", pa.int8()),
        ("-129", pa.int8()),
        ("32768", pa.int16()),
        ("-32769", pa.int16()),
        (f"{2**31}", pa.int32()),
        (f"{-(2**31) - 1}", pa.int32()),
        ("10000000000000000000", pa.int64()),
        ("12345678901234567890", pa.int64()),
        ("-12345678901234567890", pa.int64()),
        ("1.0", pa.int64()),
        ("1e39", pa.decimal128(38, 0)),
        ('"1.25x', pa.decimal128(10, 2)),
        ('"2020-01-01T00:00:00+02:00"', pa.timestamp("us")),
        ('"2020-01-01T00:00:00x', UTC_MICROS),
        ('"2020-01-01T00:00:00+02:00x', UTC_MICROS),
        ("1e-200", pa.decimal128(10, 2)),
        (f"{2**128 + 1}", pa.decimal128(38, 0)),
        ('"1x', pa.decimal128(38, 2)),
        ('"2020-01-01T00:00:00."', UTC_MICROS),
        ("3.40282366920938463463374607431768211457", pa.decimal128(38, 37)),
        (f"{2**126}", pa.decimal128(38, 2)),
        *[
            (text, pa.string())
            for text in (r'"\udc00"', r'"\ud83d\ue000"', r'"\ud83d\ud83d"', r'"\ud83dx\udc00"')
        ],
        *[
            (text, pa.binary())
            for text in ('"a"', '"aGk"', '"aGl="', '"aG=="', '"===="', '"a=Gk"', '"aG k"', "1")
        ],
        *[(text, pa.binary()) for text in ('"=A=="', '"AA=A"', '"aGk=aGk="', '"aG\\/="', '"=="', '"aGk-"')],
        ('{"x":{},"x":{}}', MAPS),
        ('{"":{},"":{}}', MAPS),
        ('{"x":{},"\\u0078":{}}', MAPS),
        ('{"\\ud83d":{}}', MAPS),
        ('{"x":{}', MAPS),
        ('{"x":{},}', MAPS),
        ('{"x"}', MAPS),
        ("[]", MAPS),
        ("{" + ",".join(f'"{i}":null' for i in range(65)) + "}", MAPS),
    ],
)
def test_nor_of_values_that_may_not_fit(reader: Reader, text: str, kind: pa.DataType) -> None:
    assert read(reader, [b'{"a":' + text.encode() + b"}"], a=kind) == ([None], [0])


@pytest.mark.parametrize(
    "text",
    [
        *[
            f"\\u{unit:04x}"
            for unit in (1, 0x7F, 0x80, 0x7FE, 0x7FF, 0x800, 0xFFF, 0x1000, 0x8000, 0xD7FF, 0xE000, 0xFFFF)
        ],
        *[
            f"\\u{high}\\u{low}"
            for high in ("d800", "D801", "d840", "dbff")
            for low in ("dc00", "dc01", "DFFE", "dfff")
        ],
        *[f"\\{letter}" for letter in 'bfnrt/"\\\\'],
    ],
)
def test_escaped_characters_up_to_each_limit(reader: Reader, text: str) -> None:
    """In values and in names: both have the text that they have in Python."""
    payload = f'{{"a": "{text}", "m": {{"{text}x": "x{text}"}}}}'
    kinds = {"a": pa.string(), "m": pa.map_(pa.string(), pa.string())}
    wanted = json.loads(payload)
    assert read(reader, [payload.encode()], **kinds) == ([{**wanted, "m": [*wanted["m"].items()]}], [])


@pytest.mark.parametrize(
    "text", [r"\ud800", r"\udbff", r"\udc00", r"\udfff", r"\ud800\udbff", r"\udbff\ue000"]
)
def test_half_a_surrogate_pair_is_no_character(reader: Reader, text: str) -> None:
    assert read(reader, [f'{{"a":"{text}"}}'.encode()], a=pa.string()) == ([None], [0])


@pytest.mark.parametrize(
    ("whole", "kind"),
    [
        (b'{"a":"2020-01-01"}', pa.date32()),
        (b'{"a":"2020-01-01"}', UTC_MICROS),
        (b'{"a":"2020-01-01T00:00:00.5+02:00"}', UTC_MICROS),
        (b'{"a":"2020-01-01T00:00:00.5"}', pa.timestamp("us")),
        (rb'{"a":"\ud83d\ude00 \u00e9\n"}', pa.string()),
        (b'{"a":false}', pa.bool_()),
        (b'{"a":true}', pa.bool_()),
        (b'{"a":null}', pa.bool_()),
        (b'{"a":"aGk="}', pa.binary()),
        (b'{"a":[1, 2]}', pa.list_(pa.int8())),
        (b'{"a":{"x": 1}}', pa.map_(pa.string(), pa.int8())),
        (b'{"a":"-1.5e1"}', pa.decimal128(5, 2)),
    ],
)
def test_a_payload_that_breaks_off_is_not_completed_by_the_next_one(
    reader: Reader, whole: bytes, kind: pa.DataType
) -> None:
    """The payloads of a batch are one behind the other in memory."""
    parts = [part for at in range(1, len(whole)) for part in (whole[:at], whole[at:])]
    rows, unsure = read(reader, [whole, *parts], a=kind)
    assert rows[1:] == [None] * len(parts)
    assert unsure == [*range(1, len(parts) + 1)]


def test_doubles_are_exact(reader: Reader) -> None:
    draw = random.Random(20)
    doubles = [struct.unpack("<d", draw.randbytes(8))[0] for _ in range(20_000)]
    texts = [repr(one) for one in doubles if one == one and abs(one) != float("inf")]
    texts += [f"{draw.getrandbits(draw.randint(1, 80))}e{draw.randint(-330, 300)}" for _ in range(20_000)]
    # Half-way between two doubles, and a little more and less.
    halves = [(2 * draw.getrandbits(52) + 2**53 + 1) << draw.randint(0, 9) for _ in range(5_000)]
    texts += [f"{half + more}" for half in halves for more in (-1, 0, 1)]
    # The powers of ten below 1 are not exact.
    texts += [
        f"{half}.{more:0{digits}}" for half in halves[:500] for digits in (1, 2, 3, 4) for more in (0, 1)
    ]
    texts += [f"{2**52 + draw.getrandbits(51)}.5{'0' * digits}" for digits in range(4) for _ in range(500)]
    texts += [f"{2**50 + draw.getrandbits(49)}.{draw.choice((125, 375, 625, 875))}" for _ in range(500)]
    sixteenths = [f"{one * 625:04}" for one in range(1, 16, 2)]
    texts += [f"{2**49 + draw.getrandbits(48)}.{draw.choice(sixteenths)}" for _ in range(500)]
    texts += ["0", "-0", "0.0", "-0.0", "-0e5", "-0.000e-400"]
    rows, unsure = read(reader, [b'{"a":%s}' % text.encode() for text in texts], a=pa.float64())
    wrong = [
        text for text, row in zip(texts, rows, strict=True) if row and repr(row["a"]) != repr(float(text))
    ]
    assert wrong == []
    assert len(unsure) < len(texts) // 20


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_zeros_around_the_point_are_as_many_as_the_exponent_or_not(reader: Reader, kind: pa.DataType) -> None:
    zeros = b"0" * 99_999
    parts = [(b"0.%s1", b"1000000"), (b"10%s", b"-1000000"), (b"0.%s1", b"100000"), (b"10%s", b"-100000")]
    payloads: list[bytes | None] = [b'{"a":%se%s}' % (digits % zeros, exponent) for digits, exponent in parts]
    assert read(reader, payloads, a=kind) == ([None, None, {"a": 1.0}, {"a": 1.0}], [0, 1])


def test_each_day_of_odd_years_and_none_that_does_not_exist(reader: Reader) -> None:
    texts = [
        f"{year:04}-{month:02}-{day:02}"
        for year in (1, 4, 100, 400, 1600, 1800, 1899, 1900, 1968, 1969, 1970, 2000, 2023, 2024, 2100, 9999)
        for month in range(14)
        for day in range(33)
    ]
    rows, _ = read(
        reader, [f'{{"d":"{one}","t":"{one}"}}'.encode() for one in texts], d=pa.date32(), t=UTC_MICROS
    )
    for text, row in zip(texts, rows, strict=True):
        try:
            day = dt.date.fromisoformat(text)
        except ValueError:
            assert row is None, text
        else:
            assert row == {"d": day, "t": dt.datetime.combine(day, dt.time(), dt.UTC)}


def test_a_member_without_a_name_behind_members_that_differ(reader: Reader) -> None:
    part = pa.struct([("x", pa.int64())])
    before = [b'{"a":{"x":1}}', b'{"b":1}', b'{"c":1}'] * 30  # the first member is another one each time
    rows, unsure = read(reader, [*before, b'{"a":{"x":1},"":{"a":{"x":7}}}'], a=part)
    assert unsure == []
    assert rows[-1] == {"a": {"x": 1}}
    rows, unsure = read(reader, [*before, b'{"a":{"x":1},"":{"x":7}}'], **{"a": part, "": part})
    assert unsure == []
    assert rows[-1] == {"a": {"x": 1}, "": {"x": 7}}


def test_members_in_any_order_and_number(reader: Reader) -> None:
    names = [f"f{i}" for i in range(100)]
    draw = random.Random(3)
    rows = [
        {name: draw.randrange(100) for name in draw.sample(names, draw.randint(0, 100))} for _ in range(300)
    ]
    payloads = [str({**row, "other": 1}).replace("'", '"').encode() for row in rows]
    wanted = [dict.fromkeys(names) | row for row in rows]
    assert read(reader, payloads, **dict.fromkeys(names, pa.int64())) == (wanted, [])


@pytest.mark.parametrize("before", [63, 64, 65, 200])
def test_an_object_within_one_of_many_members(reader: Reader, before: int) -> None:
    """Each has members in an order of its own, which is remembered for the first 64 of them."""
    others = "".join(f'"f{i}":0,' for i in range(before))
    payloads = [f'{{{others}"p":{{"x":{row}}},"y":{row}}}'.encode() for row in range(3)]
    wanted = [{"p": {"x": row}, "y": row} for row in range(3)]
    assert read(reader, payloads, p=pa.struct([("x", pa.int64())]), y=pa.int64()) == (wanted, [])


def test_nulls_stay_at_their_rows_in_slices_and_in_many_rows(reader: Reader) -> None:
    values = [None if row % 7 == 3 or row % 11 == 0 else {"a": row} for row in range(5_000)]
    payloads = pa.array([None if one is None else json.dumps(one).encode() for one in values], pa.binary())
    program = compile_read(pa.struct([("a", pa.int64())]), naive_is_utc=True)
    assert program is not None
    for start, end in ((0, 5_000), (1, 5_000), (3, 20), (8, 9), (13, 4_000)):
        array, unsure = reader(program, payloads[start:end])
        array.validate(full=True)
        assert (array.to_pylist(), unsure.tolist()) == (values[start:end], [])


def test_what_it_leaves_is_read_and_put_in_place() -> None:
    payloads = pa.array([b'{"a":1}', b'{"a":2,"a":3}', b"x", None, b'{"a":4}', b'{"a":"5"}'], pa.binary())
    decoded = JsonDecoder(type=pa.struct([("a", pa.int64())]), zone=dt.UTC).decode(payloads.slice(1))
    assert decoded.array.to_pylist() == [{"a": 3}, {"a": None}, None, {"a": 4}, {"a": None}]
    assert decoded.bad.rows == (1, 4)
    assert "not a JSON object" in decoded.bad.reasons[0]
    assert "is not an integer" in decoded.bad.reasons[1]


@pytest.mark.parametrize(
    "kind",
    [pa.map_(pa.int32(), pa.int64()), pa.struct([("m", pa.list_(pa.uint8()))]), pa.decimal256(50, 2)],
)
def test_types_that_it_does_not_know(kind: pa.DataType) -> None:
    assert compile_read(pa.struct([("a", kind)]), naive_is_utc=True) is None


def test_timestamps_in_a_zone_by_name_are_not_for_it() -> None:
    assert compile_read(pa.struct([("a", UTC_MICROS)]), naive_is_utc=False) is None
    assert compile_read(pa.struct([("a", pa.timestamp("us"))]), naive_is_utc=False) is not None


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_KAFKA_NATIVE_KERNEL", raising=False)
    assert choose_reader() is not None
    monkeypatch.setenv("SPARK_KAFKA_NATIVE_KERNEL", "numpy")
    assert choose_reader() is None


STRUCT, INTEGER, LIST = 9, 1, 8


def test_the_powers_of_five_that_fit_are_exact() -> None:
    for power in range(55):
        high, low = (int(word) for word in powers_of_five()[power - LEAST_POWER])
        assert high << 64 | low == 5**power << (128 - (5**power).bit_length())


@pytest.mark.parametrize(
    ("nodes", "offsets"),
    [
        ([[INTEGER, 0, 0, 0, 0, 8, 0]], [0, 2]),
        ([[STRUCT, 0, 1, 0, 0, 0, 0]], [0, 2]),
        ([[STRUCT, 1, 1, 0, 0, 0, 0]], [0, 2]),
        ([[STRUCT, 1, 1, 0, 0, 0, 0], [INTEGER, 0, 0, 0, 9, 8, 0]], [0, 2]),
        ([[STRUCT, 1, 1, 0, 0, 0, 0], [INTEGER, 0, 0, 0, 1, 3, 0]], [0, 2]),
        ([[STRUCT, 1, 1, 0, 0, 0, 0], [77, 0, 0, 0, 1, 8, 0]], [0, 2]),
        ([[STRUCT, 1, 1, 0, 0, 0, 0], [LIST, 1, 1, 0, 1, 0, 0]], [0, 2]),
        ([[STRUCT, 1, 1, 0, 0, 0, 0], [INTEGER, 0, 0, 0, 1, 8, 0]], [0, 3]),
        ([[STRUCT, 1, 1, 0, 0, 0, 0], [INTEGER, 0, 0, 0, 1, 8, 0]], [2, 0]),
        ([[STRUCT, 1, 1, 0, 0, 0, 0], [INTEGER, 0, 0, 0, 1, 8, 0]], [-1, 2]),
    ],
)
def test_it_checks_its_own_arguments(nodes: list[list[int]], offsets: list[int]) -> None:
    from spark_kafka_native.formats.json import _read_kernel

    program = np.array(nodes, np.int32)
    edges = np.array(offsets, np.int32)
    with pytest.raises(ValueError, match="a broken program, or payloads that leave their data"):
        _read_kernel.decode(program, len(nodes), b"a", powers_of_five(), edges, None, 0, b"{}", 1)
