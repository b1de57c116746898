"""JSON payloads into structs and back: reading values together or one by one gives the same rows."""

import datetime as dt
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_native.formats import Decoded, FormatError, load_format
from spark_kafka_native.formats.arrays import check_values
from spark_kafka_native.formats.json.json_format import JsonDecoder
from spark_kafka_native.formats.json.json_text import JsonText

MANY = 200
"""More than are read one by one."""


@pytest.fixture(autouse=True, scope="module", params=["compiled", "numpy"])
def _kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the compiled reader, where it was built, and without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_KAFKA_NATIVE_KERNEL", request.param)
        yield


def decoder(settings: dict[str, str] | None = None, **fields: pa.DataType) -> JsonDecoder:
    return load_format("json").decoder(pa.struct(list(fields.items())), settings or {})


def decode(payloads: list[bytes | None], **fields: pa.DataType) -> Decoded:
    return decoder(**fields).decode(pa.array(payloads, pa.binary()))


def rows_of(decoded: Decoded) -> list[dict | None]:
    return decoded.array.to_pylist()


def read_both_ways(payload: bytes | None, **fields: pa.DataType) -> tuple[dict | None, str | None]:
    """What one payload is, alone among good ones and by itself; both must agree."""
    good = b"{}"
    together = decode([good] * MANY + [payload] + [good] * MANY, **fields)
    alone = decode([payload], **fields)
    assert len(together.array) == 2 * MANY + 1
    assert together.array.slice(MANY, 1).to_pylist() == alone.array.to_pylist()
    assert together.bad.rows in ((), (MANY,))
    assert together.bad.reasons == alone.bad.reasons
    assert all(row == dict.fromkeys(fields) for i, row in enumerate(rows_of(together)) if i != MANY)
    return alone.array.to_pylist()[0], alone.bad.reasons[0] if alone.bad.reasons else None


UTC_MICROS = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("payload", "kind", "expected"),
    [
        (b'{"a":1}', pa.int64(), 1),
        (b'{"a":9223372036854775807}', pa.int64(), 2**63 - 1),
        (b'{"a":-128}', pa.int8(), -128),
        (b'{"a":1.5}', pa.float64(), 1.5),
        (b'{"a":5e-324}', pa.float64(), 5e-324),
        (b'{"a":"-Infinity"}', pa.float64(), -math.inf),
        *((b'{"a":"%s"}' % text, pa.float64(), math.inf) for text in (b"+Infinity", b"INF", b"+INF")),
        (b'{"a":"-INF"}', pa.float64(), -math.inf),
        (b'{"a":1e400}', pa.float64(), math.inf),
        (b'{"a":1.00000017881393432617187499}', pa.float32(), 1.0000001192092896),
        (b'{"a":12345678901234567890.5}', pa.decimal128(38, 18), Decimal("12345678901234567890.5")),
        (b'{"a":true}', pa.bool_(), True),
        (b'{"a":"x"}', pa.string(), "x"),
        (b'{"a":"\\ud83d\\ude00\\u0000"}', pa.string(), "\U0001f600\0"),
        (b'{"a":1.50}', pa.string(), "1.50"),
        (b'{"a":{"b": [1, 2]}}', pa.string(), '{"b": [1, 2]}'),
        (b'{"a":true}', pa.string(), "true"),
        (b'{"a":null}', pa.string(), None),
        (b'{"b":{"a":1}}', pa.int64(), None),
        (b'{"A":1}', pa.int64(), None),
        (b'{"a":1,"a":2}', pa.int64(), 2),
        (b'{"a":"aGk="}', pa.binary(), b"hi"),
        (b'{"a":"2020-02-29"}', pa.date32(), dt.date(2020, 2, 29)),
        (b'{"a":1.255}', pa.decimal128(10, 2), Decimal("1.26")),
        (b'{"a":1.245}', pa.decimal128(10, 2), Decimal("1.25")),
        (b'{"a":"-1.245"}', pa.decimal128(10, 2), Decimal("-1.25")),
        (b'{"a":"1.2"}', pa.decimal128(10, 2), Decimal("1.20")),
        (b'{"a":7}', pa.decimal128(10, 2), Decimal("7.00")),
        (
            b'{"a":"2020-01-01T00:00:00.123456Z"}',
            UTC_MICROS,
            dt.datetime(2020, 1, 1, 0, 0, 0, 123456, dt.UTC),
        ),
        (b'{"a":"2020-01-01 02:00:00+02:00"}', UTC_MICROS, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        (b'{"a":"2020-01-01 01:00:00 Europe/Berlin"}', UTC_MICROS, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        *(
            (b'{"a":"2020-01-01T01:00:00.1234567%s"}' % zone, UTC_MICROS, moment)
            for zone in (b" Europe/Berlin", b"+0100")
            for moment in [dt.datetime(2020, 1, 1, 0, 0, 0, 123456, dt.UTC)]
        ),
        (b'{"a":"2020-01-01"}', UTC_MICROS, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        (b'{"a":1577836800}', UTC_MICROS, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        (b'{"a":"2020-01-01 00:00:00"}', pa.timestamp("us"), dt.datetime(2020, 1, 1)),
        (b'{"a":[1,null]}', pa.list_(pa.int32()), [1, None]),
        (b'{"a":[]}', pa.list_(pa.int32()), []),
        (b'{"a":["aGk="]}', pa.list_(pa.binary()), [b"hi"]),
        (b'{"a":["2020-02-29"]}', pa.list_(pa.date32()), [dt.date(2020, 2, 29)]),
        (b'{"a":{"x":1,"y":null}}', pa.map_(pa.string(), pa.int32()), [("x", 1), ("y", None)]),
        (b'{"a":[{"b":"1"}, {}]}', pa.list_(pa.struct([("b", pa.string())])), [{"b": "1"}, {"b": None}]),
        (b' \r\n\t{"a" :\n1 } ', pa.int64(), 1),
    ],
)
def test_values(payload: bytes, kind: pa.DataType, expected: object) -> None:
    assert read_both_ways(payload, a=kind) == ({"a": expected}, None)


@pytest.mark.parametrize("payload", [None, b"", b" \n"])
def test_a_payload_without_anything_is_null(payload: bytes | None) -> None:
    assert read_both_ways(payload, a=pa.int64()) == (None, None)


@pytest.mark.parametrize(
    ("payload", "kind", "value", "reason"),
    [
        (b"null", pa.int64(), None, "not a JSON object, it begins with 'null'"),
        (b"[1]", pa.int64(), None, "not a JSON object, it begins with '[1]'"),
        (b'"text"', pa.int64(), None, "not a JSON object"),
        (b'\xef\xbb\xbf{"a":1}', pa.int64(), None, "not a JSON object"),
        (b'{"a":"\xff"}', pa.string(), None, "not UTF-8 at byte 6"),
        (b'{"b":"\xff"}', pa.string(), None, "not UTF-8 at byte 6"),
        (b'{"a":1', pa.int64(), None, "malformed JSON at character 6"),
        (b'{"a":12x}', pa.int64(), None, "malformed JSON at character 7"),
        (b'{"a":1.', pa.float64(), None, "malformed JSON at character 6"),
        (b'{"a": 1 ,', pa.int64(), 1, "malformed JSON at character 9"),
        (b'{"a":"x"', pa.string(), "x", "malformed JSON at character 8"),
        (b'{"a":[1]', pa.list_(pa.int64()), [1], "malformed JSON at character 8"),
        (b'{"a":1}{"a":2}', pa.int64(), 1, "malformed JSON at character 7: something follows the object"),
        (b'{"a":1} x', pa.int64(), 1, "something follows the object"),
        (b'{"a":1}}', pa.int64(), 1, "something follows the object"),
        (b"{}}", pa.int64(), None, "something follows the object"),
        (b'{"a":1,}', pa.int64(), 1, "expected a member's name"),
        (b'{"a"}', pa.int64(), None, "expected ':'"),
        (b'{"a":}', pa.int64(), None, "expected a value"),
        (b'{"a":1 "b":2}', pa.int64(), 1, "expected ',' or '}'"),
        (b'{"a":1,"b":[-NaN 2]}', pa.int64(), 1, "expected ',' or ']'"),
        (b'{"a":"\n"}', pa.string(), None, "malformed JSON at character 6"),
        (b'{"a":01}', pa.int64(), None, "malformed JSON"),
        (b'{"a":"1"}', pa.int64(), None, '`a` is not an integer of 64 bits: "1"'),
        (b'{"a":1.0}', pa.int64(), None, "`a` is not an integer of 64 bits: 1.0"),
        (b'{"a":9223372036854775808}', pa.int64(), None, "`a` is not an integer of 64 bits"),
        (b'{"a":128}', pa.int8(), None, "`a` is not an integer of 8 bits: 128"),
        (b'{"a":"x"}', pa.float64(), None, '`a` is not a number: "x"'),
        (b'{"a":"true"}', pa.bool_(), None, '`a` is not a boolean: "true"'),
        (b'{"a":"hi!"}', pa.binary(), None, '`a` is not Base64: "hi!"'),
        (b'{"a":"aG!k="}', pa.binary(), None, '`a` is not Base64: "aG!k="'),
        (b'{"a":"2020-02-30"}', pa.date32(), None, '`a` is not a date: "2020-02-30"'),
        (b'{"a":20200101}', pa.date32(), None, "`a` is not a date: 20200101"),
        (b'{"a":"20240229"}', pa.date32(), None, '`a` is not a date: "20240229"'),
        (b'{"a":"2024-W09"}', pa.date32(), None, '`a` is not a date: "2024-W09"'),
        (b'{"a":"2024-W09-4"}', pa.date32(), None, '`a` is not a date: "2024-W09-4"'),
        (b'{"a":123456789}', pa.decimal128(4, 2), None, "`a` is not a decimal(4,2): 123456789"),
        (b'{"a":"NaN"}', pa.decimal128(4, 2), None, '`a` is not a number: "NaN"'),
        (b'{"a":"1_0"}', pa.decimal128(4, 2), None, '`a` is not a number: "1_0"'),
        (b'{"a":"2020-01-01 00:00:00 America"}', UTC_MICROS, None, "`a` is not a timestamp"),
        (b'{"a":123456789012345678901234567890}', pa.decimal128(38, 18), None, "`a` is not a decimal(38,18)"),
        (b'{"a":"soon"}', UTC_MICROS, None, '`a` is not a timestamp: "soon"'),
        (b'{"a":99999999999999999}', UTC_MICROS, None, "`a` is out of range"),
        (b'{"a":"2020-01-01 00:00:00Z"}', pa.timestamp("us"), None, "`a` is not a timestamp"),
        (b'{"a":1577836800}', pa.timestamp("us"), None, "`a` is not a timestamp: 1577836800"),
        (b'{"a":"\\ud83d"}', pa.string(), None, "`a` has half of a surrogate pair"),
        (b'{"a":1}', pa.list_(pa.int64()), None, "`a` is not an array: 1"),
        (b'{"a":[1,"x",3]}', pa.list_(pa.int64()), [1, None, 3], "`a` has an element that is not an integer"),
        (b'{"a":[1]}', pa.map_(pa.string(), pa.int64()), None, "`a` is not an object: [1]"),
        (
            b'{"a":{"k":"x"}}',
            pa.map_(pa.string(), pa.int64()),
            [("k", None)],
            "`a` has a member `k` that is not",
        ),
        (
            b'{"a":{"k":1,"\\ud83d":2}}',
            pa.map_(pa.string(), pa.int64()),
            [("k", 1)],
            "`a` has a name that has half of a surrogate pair",
        ),
        # The members behind one that does not fit are kept, and the first one's reason.
        (
            b'{"a":{"\\ud83d":2,"k":1}}',
            pa.map_(pa.string(), pa.int64()),
            [("k", 1)],
            "`a` has a name that has half of a surrogate pair",
        ),
        (
            b'{"a":{"j":"x","k":1,"l":"y"}}',
            pa.map_(pa.string(), pa.int64()),
            [("j", None), ("k", 1), ("l", None)],
            "`a` has a member `j` that is not",
        ),
        (b'{"a":[]}', pa.struct([("b", pa.int64())]), None, "`a` is not an object"),
        (b'{"a":{"b":"x"}}', pa.struct([("b", pa.int64())]), {"b": None}, "`a` `b` is not an integer"),
        # Of members with one name the last counts, also if it does not fit.
        (b'{"a":1,"a":"x"}', pa.int64(), None, '`a` is not an integer of 64 bits: "x"'),
        (b'{"a":"x","a":1}', pa.int64(), 1, '`a` is not an integer of 64 bits: "x"'),
        (b'{"a":[1],"a":[2,"x"]}', pa.list_(pa.int64()), [2, None], "`a` has an element that is not"),
        (b'{"a":[2,"x"],"a":3}', pa.list_(pa.int64()), None, "`a` has an element that is not"),
        (b'{"a":{"b":1,"b":"x"}}', pa.struct([("b", pa.int64())]), {"b": None}, "`a` `b` is not an integer"),
        (
            b'{"a":{"k":1,"k":"x"}}',
            pa.map_(pa.string(), pa.int64()),
            [("k", None)],
            "`a` has a member `k` that is not",
        ),
        (b'{"b":' + b"[" * 100_000 + b"]" * 100_000 + b'"a":1}', pa.int64(), None, "malformed JSON at"),
    ],
)
def test_bad_payloads_keep_what_can_be_read(
    payload: bytes, kind: pa.DataType, value: object, reason: str
) -> None:
    row, why = read_both_ways(payload, a=kind)
    assert row == {"a": value}
    assert why is not None
    assert reason in why


def test_payloads_that_make_sense_only_together_do_not_shift_rows() -> None:
    # As many objects as payloads, one after the other; none of them is where its payload is.
    parts = [b'{"a":1', b',"b":2}', b'{"a":3}{"a":4}'] * 100
    decoded = decode(parts, a=pa.int64())
    assert len(decoded.bad.rows) == 300
    assert rows_of(decoded)[:3] == [{"a": None}, {"a": None}, {"a": 3}]


def test_a_good_payload_stays_beside_an_empty_one_and_a_double_one() -> None:
    decoded = decode([b'{"a":1}{"a":2}', b"", b'{"a":3}'] * 100, a=pa.int64())
    assert rows_of(decoded) == [{"a": 1}, None, {"a": 3}] * 100
    assert decoded.bad.rows == tuple(range(0, 300, 3))


def test_slices_are_read_from_their_own_start() -> None:
    payloads = pa.array([b'{"a":%d}' % i for i in range(1000)] + [b"x"], pa.binary())
    assert rows_of(decoder(a=pa.int64()).decode(payloads.slice(300, 500))) == [
        {"a": i} for i in range(300, 800)
    ]
    assert decoder(a=pa.int64()).decode(payloads.slice(900)).bad.rows == (100,)
    assert rows_of(decoder(a=pa.int64()).decode(payloads.slice(5, 0))) == []


def test_only_nulls() -> None:
    assert rows_of(decode([None] * MANY, a=pa.int64())) == [None] * MANY


def test_a_zone_for_timestamps_without_one() -> None:
    kind = decoder({"timezone": "Asia/Tokyo"}, a=UTC_MICROS)
    for n in (1, MANY):
        payloads = pa.array([b'{"a":"2020-01-01 09:00:00"}'] * n, pa.binary())
        assert rows_of(kind.decode(payloads))[-1] == {"a": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}


@pytest.mark.parametrize("name", ["Nowhere/Town", "../../etc/passwd", ""])
def test_a_zone_that_does_not_exist(name: str) -> None:
    with pytest.raises(FormatError, match=f"timeZone: there is no time zone '{name}'"):
        decoder({"timezone": name}, a=UTC_MICROS)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), "JSON needs a struct, not int64"),
        (pa.struct([]), "at least one field"),
        (pa.struct([("a", pa.int64()), ("a", pa.int64())]), "A field appears twice: a, a"),
        (pa.struct([("a", pa.struct([("b", pa.uint8())]))]), "the type uint8 of `a.b`"),
        (pa.struct([("a", pa.list_(pa.time32("s")))]), r"of `a\[\]`"),
        (pa.struct([("a", pa.map_(pa.int32(), pa.int32()))]), "the type map<int32, int32> of `a`"),
        (pa.struct([("a", pa.map_(pa.string(), pa.timestamp("ns")))]), r"of `a\{\}`"),
    ],
)
def test_types_that_json_can_not_hold(kind: pa.DataType, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        load_format("json").decoder(kind, {})
    with pytest.raises(FormatError, match=text):
        load_format("json").encoder(kind, {})


ALL_KINDS = pa.struct(
    [
        ("a", pa.int32()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("ok", pa.bool_()),
        ("m", pa.map_(pa.string(), pa.float64())),
        ("b", pa.binary()),
        ("d", pa.date32()),
        ("x", pa.decimal128(10, 2)),
        ("t", UTC_MICROS),
        ("l", pa.list_(pa.struct([("q", pa.string())]))),
        ('odd "name', pa.int64()),
    ]
)

values = st.fixed_dictionaries(
    {},
    optional={
        "a": st.none() | st.integers(-(2**31), 2**31 - 1),
        "s": st.none() | st.text(),
        "f": st.none() | st.floats(allow_nan=False),
        "ok": st.none() | st.booleans(),
        "m": st.none()
        | st.lists(st.tuples(st.text(), st.none() | st.floats(allow_nan=False)), unique_by=lambda p: p[0]),
        "b": st.none() | st.binary(),
        "d": st.none() | st.dates(),
        "x": st.none() | st.decimals(-(10**7), 10**7, places=2),
        "t": st.none() | st.datetimes(timezones=st.just(dt.UTC)),
        "l": st.none() | st.lists(st.none() | st.fixed_dictionaries({"q": st.none() | st.text()})),
        'odd "name': st.none() | st.integers(-(2**63), 2**63 - 1),
    },
)


@given(st.lists(st.none() | values, max_size=8))
def test_what_is_written_is_read_again(rows: list[dict | None]) -> None:
    array = pa.array(rows, ALL_KINDS)
    written = load_format("json").encoder(ALL_KINDS, {}).encode(array)
    for text in written.drop_null().to_pylist():
        json.loads(text)
    one_by_one = load_format("json").decoder(ALL_KINDS, {}).decode(written)
    assert one_by_one.bad.rows == ()
    assert one_by_one.array.equals(array)
    # The same without maps and binary values, which are never read together.
    fast = pa.struct([f for f in ALL_KINDS if f.name not in "mb"])
    many = pa.concat_arrays([written] * 80) if rows else written
    together = load_format("json").decoder(fast, {}).decode(many)
    assert together.bad.rows == ()
    columns = [array.field(f.name) for f in fast]
    wanted = pa.StructArray.from_arrays(columns, fields=list(fast), mask=array.is_null())
    assert together.array.slice(0, len(rows)).equals(wanted)


def test_written_texts() -> None:
    kind = pa.struct([("f", pa.float64()), ("s", pa.string()), ("t", UTC_MICROS)])
    rows = pa.array(
        [
            {"f": math.nan, "s": 'x"\\/\n\x01\x7f'},
            None,
            {},
            {"f": -math.inf, "t": dt.datetime(1969, 12, 31, 23, 59, 59, 5, dt.UTC)},
            {"f": 1.0, "s": ","},
            {"f": 1e100},
        ],
        kind,
    )
    assert load_format("json").encoder(kind, {}).encode(rows).to_pylist() == [
        b'{"f":"NaN","s":"x\\"\\\\/\\n\\u0001\x7f"}',
        None,
        b"{}",
        b'{"f":"-Infinity","t":"1969-12-31T23:59:59.000005Z"}',
        b'{"f":1.0,"s":","}',
        b'{"f":1e+100}',
    ]


def test_slices_are_written_from_their_own_start() -> None:
    kind = pa.struct([("l", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.int32()))])
    rows = pa.array([{"l": [i, None], "m": [(str(i), i)]} for i in range(5)] + [None], kind)
    assert load_format("json").encoder(kind, {}).encode(rows.slice(3)).to_pylist() == [
        b'{"l":[3,null],"m":{"3":3}}',
        b'{"l":[4,null],"m":{"4":4}}',
        None,
    ]


def test_good_payloads_are_read_without_pandas() -> None:
    script = """
import sys
import numpy as np, pyarrow as pa
from spark_kafka_native.formats import load_format
data = b'{"a":"x","d":"2020-01-01"}' * 100 + b"{}"
ends = np.array([*range(0, 2601, 26), 2600, 2602], np.int32)
kind = pa.struct([("a", pa.string()), ("d", pa.date32())])
valid = pa.py_buffer(b"\\xfe" + b"\\xff" * 12)
payloads = pa.Array.from_buffers(pa.binary(), 102, [valid, pa.py_buffer(ends), pa.py_buffer(data)])
decoded = load_format("json").decoder(kind, {}).decode(payloads)
assert len(decoded.array) == 102 and decoded.array.null_count == 2 and not decoded.bad.rows, decoded
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_map_with_a_null_for_a_struct_that_has_no_nulls_inside() -> None:
    inner = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    items = pa.StructArray.from_arrays(
        [pa.array([1, None], pa.int32())], fields=list(inner), mask=pa.array([False, True])
    )
    maps = pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), pa.array(["k", "n"]), items)
    rows = pa.StructArray.from_arrays([maps], ["m"])
    assert load_format("json").encoder(rows.type, {}).encode(rows).to_pylist() == [
        b'{"m":{"k":{"x":1},"n":null}}'
    ]


def test_a_null_map_over_entries_is_null() -> None:
    whole = pa.array([[("a", 1)], [("b", 2)], [("c", 3)]], pa.map_(pa.string(), pa.int32()))
    _, offsets = whole.buffers()[:2]
    masked = pa.Array.from_buffers(
        whole.type,
        3,
        [pa.py_buffer(b"\5"), offsets],
        children=[
            pa.StructArray.from_arrays(
                [whole.keys, whole.items],
                fields=[pa.field("key", pa.string(), False), pa.field("value", pa.int32())],
            )
        ],
    )
    rows = pa.StructArray.from_arrays([masked], ["m"])
    assert load_format("json").encoder(rows.type, {}).encode(rows).to_pylist() == [
        b'{"m":{"a":1}}',
        b"{}",
        b'{"m":{"c":3}}',
    ]


def test_json_without_a_schema_is_checked_text() -> None:
    decoder, kind = JsonText().decoder("value", "t")
    assert kind == decoder.type == pa.string()
    payloads = [b'{"a": 1}', None, b" ", b"{", b"[1]", b"\xff", b"[" * 100_000]
    decoded = decoder.decode(pa.array(payloads, pa.binary()))
    assert decoded.array.to_pylist() == ['{"a": 1}', None, None, None, "[1]", None, None]
    assert decoded.bad.rows == (3, 5, 6)
    said = zip(
        ("malformed JSON at character 1", "not UTF-8 at byte 0", "nested"), decoded.bad.reasons, strict=True
    )
    assert all(reason.startswith(text) for text, reason in said)


def test_json_without_a_schema_may_have_numbers_of_any_length() -> None:
    decoder, _ = JsonText().decoder("value", "t")
    text = f'{{"a": [{"1" * 5000}]}}'
    decoded = decoder.decode(pa.array([text.encode()], pa.binary()))
    assert (decoded.array.to_pylist(), decoded.bad.rows) == ([text], ())


def test_huge_exponents_do_not_end_the_process() -> None:
    """Arrow looks the power of ten up in a table, at any place; in a child, since that is a crash."""
    script = r"""
import pyarrow as pa
from spark_kafka_native.formats import load_format
kind = pa.list_(pa.decimal128(10, 2))
decoder = load_format("json").decoder(pa.struct([("o", pa.struct([("l", kind)]))]), {})
texts = "0e-999999999 0.0e-99999999 -0E-99999999 1e-999999999 0e999999999 1e999999999".split()
quoted = [f'"{text}"' for text in texts]
escaped = [r'"0\u0065-999999999"', r'"\u0030e-999999999"', r'"0e\u002d999999999"', r'"0e-99\u00399999"']
for number in [*texts, *quoted, *escaped]:
    for before in (0, 100):
        payloads = ['{"o":{"l":[1.5]}}'] * before + ['{"o": {"l" :[ 1.5,\r\n\t%s ]}}' % number]
        decoded = decoder.decode(pa.array(payloads).cast(pa.binary()))
        found = decoded.array[before]["o"]["l"][1].as_py(), decoded.bad.rows
        assert found == ((None, (before,)) if "1e999" in number else (0, ())), (number, found)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("text", ["5e-18", "5e-19", "-5e-25", "1.5e-009", "0.1e-100", f"1.{'0' * 36}e-18"])
@pytest.mark.parametrize("kind", [pa.decimal128(10, 2), pa.decimal128(38, 0), pa.decimal128(38, 19)], ids=str)
def test_small_decimals(text: str, kind: pa.DataType) -> None:
    wanted = Decimal(text).quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP)
    for number in (text, f'"{text}"', '"' + text.replace("e", "\\u0065") + '"'):
        assert read_both_ways(b'{"a":%s}' % number.encode(), a=kind) == ({"a": wanted}, None)


def test_decimals_with_more_digits_than_their_type() -> None:
    number = pa.py_buffer((12_345).to_bytes(16, "little"))
    check_values(pa.Array.from_buffers(pa.decimal128(5, 0), 1, [None, number]))
    with pytest.raises(pa.ArrowInvalid):
        check_values(pa.Array.from_buffers(pa.decimal128(4, 0), 1, [None, number]))


@pytest.mark.parametrize("text", ["9007199254740993.0", "9007199254740995.0", "9007199254740994.99", "1e23"])
def test_a_number_between_two_doubles_is_the_nearer_one_or_the_even_one(text: str) -> None:
    kind = pa.struct([("x", pa.float64())])
    payloads = pa.array([b'{"x": ' + text.encode() + b"}"])
    found = load_format("json").decoder(kind, {}).decode(payloads)
    assert found.array.to_pylist() == [{"x": float(text)}]
