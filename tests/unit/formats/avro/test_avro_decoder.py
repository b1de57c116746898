"""Avro's payloads: values under one schema or two, and payloads that are bad."""

import datetime as dt
import itertools
import json
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from support.avro_cases import write

from spark_kafka_native.formats import BadRows, Decoded, FormatError, avro
from spark_kafka_native.formats.avro.decoder import AvroDecoder
from spark_kafka_native.formats.avro.defaults import varint
from spark_kafka_native.formats.avro.fingerprint import single_object_prefix
from spark_kafka_native.formats.avro.kernel import AvroKernel, PythonKernel, choose, load_compiled
from spark_kafka_native.formats.avro.schema import parse_schema
from spark_kafka_native.formats.avro.types import arrow_type
from spark_kafka_native.kernel_choice import ENVIRONMENT_VARIABLE

UTC = pa.timestamp("us", "UTC")


def record(*fields: dict[str, Any] | tuple[str, Any], name: str = "R") -> dict[str, Any]:
    made = [one if isinstance(one, dict) else {"name": one[0], "type": one[1]} for one in fields]
    return {"type": "record", "name": name, "fields": made}


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.fixture(params=["compiled", "python"])
def kernel(request: pytest.FixtureRequest) -> AvroKernel:
    found = load_compiled() if request.param == "compiled" else PythonKernel()
    if found is None:
        pytest.skip("there is no C compiler")
    return found


def decode(
    kernel: AvroKernel, payloads: list[bytes | None], written: Any, read: Any = None, kind: Any = None
) -> Decoded:
    reader = parse_schema(json.dumps(written if read is None else read))
    decoder = AvroDecoder(parse_schema(json.dumps(written)), reader, kind or arrow_type(reader), kernel)
    decoded = decoder.decode(pa.array(payloads, pa.binary()))
    decoded.array.validate(full=True)
    assert decoded.array.type == decoder.type
    return decoded


LONG_MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
E1 = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
PART = record(
    {"name": "x", "type": "int", "default": 7},
    {"name": "y", "type": "int", "default": 8},
    {"name": "n", "type": ["int", "null"], "default": 5},
    name="P",
)
AT = dt.datetime(1969, 12, 31, 23, 59, 59, 999000, dt.UTC)


@pytest.mark.parametrize(
    ("written", "read", "kind", "data", "wanted"),
    [
        ("int", "long", None, b"\x03", -2),
        ("int", "double", None, b"\x03", -2.0),
        ("int", "int", pa.int8(), b"\x03", -2),
        ("long", "float", None, b"\x03", -2.0),
        ("float", "double", None, b"\0\0\x80\x3f", 1.0),
        ("string", "bytes", None, b"\x02a", b"a"),
        ("bytes", "string", None, b"\x02a", "a"),
        ("string", "string", pa.binary(), b"\x02\xff", b"\xff"),
        (LONG_MILLIS, LONG_MILLIS, None, b"\x01", AT),
        (LONG_MILLIS, {"type": "long", "logicalType": "timestamp-micros"}, None, b"\x01", AT),
        (LONG_MILLIS, {"type": "long", "logicalType": "timestamp-micros"}, pa.int64(), b"\x01", -1000),
        (LONG_MILLIS, "long", None, b"\x01", -1),
        ("long", LONG_MILLIS, UTC, b"\x01", AT),
        (record(("a", "int"), ("b", "int")), None, pa.struct([("b", pa.int32())]), b"\x02\x04", {"b": 2}),
        (NANOS, NANOS, None, b"\x01", -1),
        # Rounded down, as Java's Math.floorDiv.
        (NANOS, NANOS, UTC, b"\x01", dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC)),
        (NANOS, NANOS, UTC, b"\xd1\x0f", dt.datetime(1969, 12, 31, 23, 59, 59, 999998, dt.UTC)),
        (NANOS, NANOS, UTC, b"\x9e\x1f", dt.datetime(1970, 1, 1, 0, 0, 0, 1, dt.UTC)),
        (
            {"type": "long", "logicalType": "time-micros"}, {"type": "long", "logicalType": "time-micros"},
            pa.time64("us"), b"\x02", dt.time(0, 0, 0, 1),
        ),
        (E1, {**E1, "symbols": ["C", "A"], "default": "A"}, None, b"\x02", "A"),
        (E1, {**E1, "symbols": ["C", "A"], "default": "A"}, None, b"\x04", "C"),
        ("int", ["null", "string", "long"], pa.struct([("member1", pa.int64())]), b"\x04", {"member1": 2}),
        ("int", ["null", "string", "long"], pa.struct([("member0", pa.string())]), b"\x04",
         {"member0": None}),
        # The whole name counts before its last part.
        (record(("x", "int"), name="b.R"), [record(("x", "int"), name=f"{one}.R") for one in "ab"], None,
         b"\x02", {"member0": None, "member1": {"x": 1}}),
        # Of several types that it can be promoted to the first of the union counts.
        ("int", ["null", "double", "long"], None, b"\x03", {"member0": -2.0, "member1": None}),
        ("int", ["null", "long", "double"], None, b"\x03", {"member0": -2, "member1": None}),
        ("int", ["float", "string", "long"], None, b"\x03",
         {"member0": -2.0, "member1": None, "member2": None}),
        (["string", "long"], ["double", "null", "float", "bytes"], pa.struct(
            [("member0", pa.float64()), ("member1", pa.float32()), ("member2", pa.binary())]),
         b"\x02\x03", {"member0": -2.0, "member1": None, "member2": None}),
        # The same type counts before all of these.
        ("long", ["null", "double", "long"], None, b"\x03", {"member0": None, "member1": -2}),
        (["null", "int"], ["null", "long"], None, b"\x02\x04", 2),
        (["null", "int"], "int", None, b"\x02\x04", 2),
        (["null", "int", "string"], ["null", "int", "string"], None, b"\x00", None),
        (["null", "int", "string"], ["null", "int", "string"], None, b"\x04\x02a",
         {"member0": None, "member1": "a"}),
        (["string", "int"], ["int", "long"], None, b"\x02\x04", 2),
        # Namespaces do not count for an alias either.
        ({**E1, "name": "a.Old"}, {**E1, "name": "a.New", "aliases": ["Old"]}, None, b"\x02", "B"),
        ({**fixed(1), "name": "b.Old"}, {**fixed(1), "name": "a.New", "aliases": ["c.Old"]}, None,
         b"x", b"x"),
        (
            {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
            {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
            pa.string(), bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f",
        ),
        (record(("a", "int"), ("b", "int")), record({"name": "c", "type": "int", "aliases": ["b"]}), None,
         b"\x02\x04", {"c": 2}),
        (record(("b", "int"), ("c", "int")), record({"name": "c", "type": "int", "aliases": ["b"]}), None,
         b"\x02\x04", {"c": 2}),
        (record(("a", "int")), record(("a", "int"), {"name": "s", "type": "string", "default": "x"}), None,
         b"\x02", {"a": 1, "s": "x"}),
        (record(("a", "int")), record(("a", "int"), ("n", ["null", "int"])), None, b"\x02",
         {"a": 1, "n": None}),
        (record(("a", "int")), record(("a", "int"), {"name": "n", "type": ["null", "int"], "default": 7}),
         None, b"\x02", {"a": 1, "n": 7}),
        # A default of a record need not name the fields that have one themselves.
        (record(("a", "int")), record({"name": "p", "type": PART, "default": {"y": 1}}), None, b"\x02",
         {"p": {"x": 7, "y": 1, "n": 5}}),
        (record(("a", "int")), record({"name": "p", "type": PART, "default": {"x": 0, "n": None}}), None,
         b"\x02", {"p": {"x": 0, "y": 8, "n": None}}),
        ({"type": "array", "items": "int"}, None, None, b"\x03\x04\x02\x04\x02\x06\x00", [1, 2, 3]),
        # As many elements as the bytes can hold: of some types one has none at all.
        ({"type": "array", "items": fixed(0)}, None, None, b"\x06\x00", [b""] * 3),
        ({"type": "array", "items": record(("n", "null"), ("f", fixed(0)))}, None, None, b"\x04\x00",
         [{"n": None, "f": b""}] * 2),
        ({"type": "array", "items": fixed(2)}, None, None, b"\x04abcd\x00", [b"ab", b"cd"]),
        ({"type": "array", "items": ["null", "float"]}, None, None, b"\x06\0\0\0\0", [None] * 3),
        *(({"type": "array", "items": items}, None, None, b"\x06\0\0\0\0", [empty] * 3)
          for items, empty in (
              ("boolean", False), ("int", 0), ("long", 0), ("string", ""), ("bytes", b""), (E1, "A"),
              ({"type": "array", "items": "double"}, []), ({"type": "map", "values": "double"}, []),
              (record(("n", "null"), ("a", {"type": "array", "items": "int"})), {"n": None, "a": []}),
          )),
        ({"type": "map", "values": "null"}, None, None, b"\x02\0\0", [("", None)]),
        ("null", None, None, b"", None),
        (record(), None, None, b"", {}),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, None, None,
         b"\x06\xff\xff\x85", Decimal("-1.23")),
    ],
)  # fmt: skip
def test_values_are_resolved(
    kernel: AvroKernel, written: Any, read: Any, kind: Any, data: bytes, wanted: Any
) -> None:
    decoded = decode(kernel, [data], written, read, kind)
    assert decoded.bad == BadRows()
    assert decoded.array.to_pylist() == [wanted]


@pytest.mark.parametrize(
    ("kind", "default", "wanted"),
    [
        ("null", None, None),
        ("boolean", False, False),
        ("boolean", True, True),
        ("int", -(2**31), -(2**31)),
        ("int", 64, 64),
        ("long", 2**63 - 1, 2**63 - 1),
        ("long", -(2**63), -(2**63)),
        ("float", 1.5, 1.5),
        ("float", 2, 2.0),
        ("double", 1e300, 1e300),
        ("string", "ä€", "ä€"),
        # Of bytes each letter is one byte.
        ("bytes", "\xff\0\x80a", b"\xff\0\x80a"),
        (fixed(2), "\xff\x80", b"\xff\x80"),
        (decimal(4, 2), "\xff\x85", Decimal("-1.23")),
        (E1, "C", "C"),
        ({"type": "array", "items": "int"}, [], []),
        ({"type": "array", "items": "bytes"}, ["\xe4", ""], [b"\xe4", b""]),
        ({"type": "map", "values": "int"}, {}, []),
        ({"type": "map", "values": "bytes"}, {"ä": "\xe4", "": "b"}, [("ä", b"\xe4"), ("", b"b")]),
        (["int", "null"], None, None),
        (["int", "bytes", "string"], "\xff", {"member0": None, "member1": b"\xff", "member2": None}),
        (["int", "bytes", "string"], "€", {"member0": None, "member1": None, "member2": "€"}),
        (record(("b", "bytes"), ("e", E1), name="P"), {"e": "B", "b": "\xff"}, {"b": b"\xff", "e": "B"}),
    ],
)
def test_defaults_are_the_values_that_the_schema_says(
    kernel: AvroKernel, kind: Any, default: Any, wanted: Any
) -> None:
    read = record({"name": "d", "type": kind, "default": default}, ("a", "int"))
    decoded = decode(kernel, [b"\x02", b"\x04"], record(("a", "int")), read)
    assert decoded.bad == BadRows()
    assert decoded.array.to_pylist() == [{"d": wanted, "a": 1}, {"d": wanted, "a": 2}]


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("null", 0),
        ("boolean", 1),
        ("boolean", None),
        ("int", 2**31),
        ("int", 1.0),
        ("int", True),
        ("long", 2**63),
        ("long", -(2**63) - 1),
        ("float", True),
        ("float", 1e39),
        ("double", "1"),
        ("string", 1),
        ("bytes", "\u0100"),
        (fixed(2), "a"),
        (fixed(2), "abc"),
        (E1, "D"),
        ({"type": "array", "items": "int"}, {}),
        ({"type": "array", "items": "int"}, ["x"]),
        ({"type": "map", "values": "int"}, []),
        ({"type": "map", "values": "int"}, {"k": None}),
        (["null", "int"], "x"),
        (record(("x", "int"), name="P"), []),
        (record(("x", "int"), name="P"), {}),
    ],
)
def test_defaults_of_another_type_are_refused_at_once(kind: Any, default: Any) -> None:
    read = record({"name": "d", "type": kind, "default": default})
    with pytest.raises(FormatError, match="default of `d` in the Avro schema is no "):
        decode(PythonKernel(), [], record(), read)


HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
"""2 ** 63 - 1."""
LEAST = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ("long", b"", "ends within it"),
        ("long", b"\x80", "ends within it"),
        ("long", b"\x02\x02", "bytes behind the value"),
        ("long", b"\xff" * 10, "too many bytes"),
        ("int", b"\xff\xff\xff\xff\x7f", "too many bytes"),
        ("int", b"\x80\x80\x80\x80\x10", "too many bytes"),
        ("double", b"\0" * 7, "ends within it"),
        ("boolean", b"\x02", "neither 0 nor 1"),
        ("boolean", b"", "ends within it"),
        ("string", b"\x04a", "ends within it"),
        ("string", b"\x01", "length is negative"),
        ("string", HUGE, "ends within it"),
        ("string", b"\x02\xff", "not UTF-8"),
        ("string", b"\x06\xed\xa0\x80", "not UTF-8"),
        ("string", b"\x04\xc0\x80", "not UTF-8"),
        ("string", b"\x08\xf4\x90\x80\x80", "not UTF-8"),
        ("string", b"\x12aaaaaaaa\xc3", "not UTF-8"),
        ({"type": "map", "values": "int"}, b"\x02\x02\xff\x02\x00", "`{}.key|not UTF-8"),
        ({"type": "map", "values": "int"}, b"\x04\x02a\x02\x02a\x04\x00", "a key twice"),
        ({"type": "map", "values": "int"}, b"\x02\x02a\x02\x02\x02a\x04\x00", "a key twice"),
        (E1, b"\x06", "none of the symbols"),
        (E1, b"\x01", "none of the symbols"),
        (["null", "int"], b"\x04", "none of the types"),
        (["null", "int"], b"\x01", "none of the types"),
        ({"type": "array", "items": "int"}, HUGE + b"\x00", "more elements than bytes"),
        ({"type": "array", "items": "float"}, b"\x04" + b"\0" * 7, "more elements than bytes"),
        ({"type": "array", "items": "double"}, b"\x04" + b"\0" * 12, "more elements than bytes"),
        ({"type": "array", "items": fixed(3)}, b"\x04" + b"\0" * 5, "more elements than bytes"),
        ({"type": "array", "items": ["null", "int"]}, b"\x06" + b"\0" * 2, "more elements than bytes"),
        ({"type": "array", "items": E1}, b"\x06" + b"\0" * 2, "more elements than bytes"),
        (
            {"type": "array", "items": record(("a", "int"), ("n", "null"), ("f", fixed(2)), name="P")},
            b"\x04" + b"\0" * 5,
            "more elements than bytes",
        ),
        ({"type": "map", "values": "float"}, b"\x04" + b"\0" * 9, "more elements than bytes"),
        ({"type": "array", "items": "int"}, LEAST + b"\x00", "more elements than bytes"),
        ({"type": "array", "items": "int"}, b"\x01\x04\x02\x00", "size of a block"),
        ({"type": "array", "items": "int"}, b"\x01\x00\x02\x00", "size of a block"),
        ({"type": "array", "items": "null"}, HUGE + b"\x00", "much larger"),
        # Ten blocks of 4,000.
        ({"type": "array", "items": "null"}, b"\xc0\x3e" * 10 + b"\x00", "much larger"),
        ({"type": "array", "items": record(name="Empty")}, b"\xfe\xff\x7f\x00", "much larger"),
        ({"type": "array", "items": "int"}, b"\x02\x02", "ends within it"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, b"\x02\x64", "more digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, b"\x00", "or none"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
            b"\x24\x01" + b"\0" * 17,
            "more digits",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
            b"\x22\x00\x80" + b"\0" * 15,
            "more digits",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
            b"\x24\xff\x00" + b"\xff" * 16,
            "more digits",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
            b"\x22\xff\x7f" + b"\0" * 15,
            "more digits",
        ),
        (LONG_MILLIS, HUGE, "does not fit"),
        (LONG_MILLIS, LEAST, "does not fit"),
    ],
)
def test_bad_payloads_are_named_and_change_no_other(
    kernel: AvroKernel, schema: Any, data: bytes, reason: str
) -> None:
    written = record(("before", "string"), ("x", schema), ("after", ["null", "string"]))
    good = {"before": "b", "after": "a"}
    samples = {"long": 1, "int": 1, "double": 1.0, "boolean": True, "string": "s"}
    if isinstance(schema, str):
        good["x"] = samples[schema]
    elif isinstance(schema, list):
        good["x"] = 1
    else:
        good["x"] = {"map": {"k": 1}, "array": [], "enum": "A", "bytes": Decimal(1), "long": 0}[
            schema["type"]
        ]
    payload = write(written, good)
    alone = decode(kernel, [data], schema)
    assert alone.bad.rows == (0,)
    assert alone.array.to_pylist() == [None]
    decoded = decode(kernel, [payload, b"\x02b" + data, None, payload, payload[:-1]], written)
    assert decoded.bad.rows == (1, 4)
    rows = decoded.array.to_pylist()
    assert rows[1] is rows[2] is rows[4] is None
    assert rows[0] == rows[3]
    assert rows[0]["before"] == "b"
    assert rows[0]["after"] == "a"
    whole = record(("before", "string"), ("x", schema))
    [told] = decode(kernel, [b"\x02b" + data], whole).bad.reasons
    assert any(part in told for part in reason.split("|"))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("boolean", True),
        ("int", -300),
        ("long", 2**40),
        ("float", 1.5),
        ("double", 1.5),
        ("string", "text"),
        ("bytes", b"ab"),
        (fixed(3), b"abc"),
        (decimal(4, 2), Decimal("1.25")),
        ({**fixed(4), "logicalType": "decimal", "precision": 4, "scale": 2}, Decimal("1.25")),
        ({**fixed(16), "logicalType": "uuid"}, bytes(range(16))),
        (E1, "C"),
        (["null", "string"], "text"),
        ({"type": "array", "items": fixed(2)}, [b"ab", b"cd"]),
        ({"type": "map", "values": "string"}, {"k": "v"}),
        (record(("s", "string"), ("f", fixed(1)), name="P"), {"s": "t", "f": b"f"}),
    ],
)
def test_a_value_of_any_type_is_skipped_and_may_not_break_off(
    kernel: AvroKernel, schema: Any, value: Any
) -> None:
    written, read = record(("x", schema), ("after", "int")), record(("after", "int"))
    payload = write(written, {"x": value, "after": 7})
    cut = [payload[:end] for end in range(len(payload))]
    decoded = decode(kernel, [payload, *cut, payload], written, read)
    assert decoded.array.to_pylist() == [{"after": 7}, *[None] * len(cut), {"after": 7}]
    assert decoded.bad.rows == tuple(range(1, len(payload) + 1))
    whole = decode(kernel, [payload, *cut, payload], written)
    assert whole.bad.rows == decoded.bad.rows
    assert whole.array[0] == whole.array[-1]
    assert whole.array[-1].as_py()["after"] == 7


@pytest.mark.parametrize(("kind", "bits"), [(pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32)])
def test_integers_of_a_narrow_column_are_within_its_limits(
    kernel: AvroKernel, kind: pa.DataType, bits: int
) -> None:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    payloads = [varint(one) for one in (least, most, least - 1, most + 1, least, most)]
    decoded = decode(kernel, [*payloads], "int", "int", kind)
    assert decoded.array.to_pylist() == [least, most, None, None, least, most]
    assert decoded.bad.rows == (2, 3)


@pytest.mark.parametrize(
    ("first", "last", "odd"),
    [
        (b"\xc2\x80", b"\xdf\xbf", [b"\xc1\xbf", b"\xc2\x7f", b"\xc2\xc0", b"\xc2"]),
        (b"\xe0\xa0\x80", b"\xed\x9f\xbf", [b"\xe0\x9f\xbf", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xe1\x80"]),
        (b"\xee\x80\x80", b"\xef\xbf\xbf", [b"\xee\x80\x7f", b"\xee\x7f\x80", b"\xef\xbf\xc0"]),
        (
            b"\xf0\x90\x80\x80",
            b"\xf4\x8f\xbf\xbf",
            [
                b"\xf0\x8f\xbf\xbf",
                b"\xf4\x90\x80\x80",
                b"\xf5\x80\x80\x80",
                b"\xf8\x88\x80\x80",
                b"\xf1\x80\x80\x7f",
            ],
        ),
    ],
)
@pytest.mark.parametrize("before", [0, 5, 8])
def test_text_is_utf_8_up_to_the_limits_of_each_length(
    kernel: AvroKernel, first: bytes, last: bytes, odd: list[bytes], before: int
) -> None:
    texts = [b"a" * before + one for one in (first, last, *odd, first, last)]
    decoded = decode(kernel, [varint(len(text)) + text for text in texts], "string")
    good = [text.decode() for text in texts[:2]]
    assert decoded.array.to_pylist() == [*good, *[None] * len(odd), *good]
    assert decoded.bad.rows == tuple(range(2, 2 + len(odd)))


def test_a_character_does_not_go_on_in_the_next_field(kernel: AvroKernel) -> None:
    """The length behind it looks like the rest of it."""
    written = record(("a", "string"), ("b", "string"))
    decoded = decode(kernel, [b"\x02a\x80\x01" + b"b" * 64, b"\x02\xc3\x80\x01" + b"b" * 64], written)
    assert decoded.bad.rows == (1,)
    assert "`a`: it is not UTF-8" in decoded.bad.reasons[0]


def test_nulls_stay_at_their_rows_in_slices_and_in_many_rows(kernel: AvroKernel) -> None:
    values = [None if row % 7 == 3 or row % 11 == 0 else row for row in range(5_000)]
    payloads = pa.array([None if one is None else varint(one) for one in values], pa.binary())
    avro = parse_schema('"int"')
    decoder = AvroDecoder(avro, avro, pa.int32(), kernel)
    for start, end in ((0, 5_000), (1, 5_000), (3, 20), (8, 9), (13, 4_000)):
        decoded = decoder.decode(payloads[start:end])
        decoded.array.validate(full=True)
        assert decoded.array.to_pylist() == values[start:end]
        assert decoded.bad == BadRows()


@pytest.mark.parametrize("count", [1, 2, 16, 17, 32, 33, 64, 65, 300])
def test_keys_of_a_map_differ_however_many_there_are(kernel: AvroKernel, count: int) -> None:
    """Each key begins with the next one."""
    schema = {"type": "map", "values": "int"}
    keys = ["k" * size for size in range(count, 0, -1)]
    payload = write(schema, dict.fromkeys(keys, 1))
    assert payload.endswith(b"\0")
    again = [payload[:-1] + b"\x02" + varint(len(key)) + key.encode() + b"\x04\0" for key in keys]
    decoded = decode(kernel, [payload, *again, payload], schema)
    assert decoded.bad.rows == tuple(range(1, count + 1))
    assert set(decoded.bad.reasons) == {decoded.bad.reasons[0]}
    assert "a key twice" in decoded.bad.reasons[0]
    assert decoded.array.to_pylist()[-1] == [(key, 1) for key in keys]


def slot_of(key: str, slots: int) -> int:
    """In the compiled kernel's table of keys."""
    value = 0xCBF29CE484222325
    for byte in key.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return (value ^ value >> 29) % slots


@pytest.mark.parametrize(("count", "slots"), [(32, 64), (60, 128), (100, 256)])
def test_keys_that_meet_in_one_slot_are_compared_as_others(
    kernel: AvroKernel, count: int, slots: int
) -> None:
    """Of a hash that is known, keys can be chosen so; in a table they would cost quadratic time. So the
    compiled kernel sorts them when it has looked at too many slots: here of 60 and of 100 keys, not of 32."""
    schema = {"type": "map", "values": "int"}
    drawn = (f"{i:x}" for i in itertools.count())
    keys = [*itertools.islice((key for key in drawn if slot_of(key, slots) == 0), count)]
    payload = write(schema, dict.fromkeys(keys, 1))
    again = [
        payload[:-1] + b"\x02" + varint(len(key)) + key.encode() + b"\x04\0"
        for key in (keys[0], keys[-2], keys[-1])
    ]
    decoded = decode(kernel, [payload, *again, payload], schema)
    assert decoded.bad.rows == (1, 2, 3)
    assert set(decoded.bad.reasons) == {decoded.bad.reasons[0]}
    assert "a key twice" in decoded.bad.reasons[0]
    assert [one and len(one) for one in decoded.array.to_pylist()] == [count, None, None, None, count]


@pytest.mark.parametrize(
    ("name", "aliases", "member"),
    [("x.R", [], "member1"), ("y.R", [], "member1"), ("S", [], "member0"), ("T", ["z.T"], "member1")],
)
def test_a_record_is_the_branch_of_its_name(
    kernel: AvroKernel, name: str, aliases: list[str], member: str
) -> None:
    first, second = record(("a", "int"), name="S"), record(("a", "int"), name="x.R") | {"aliases": aliases}
    decoded = decode(kernel, [b"\x02"], record(("a", "int"), name=name), ["null", first, second])
    [row] = decoded.array.to_pylist()
    assert {name for name, value in row.items() if value is not None} == {member}


def test_the_only_record_of_a_union_may_have_another_name(kernel: AvroKernel) -> None:
    """As outside of unions; of several records the writer's name says which one it is."""
    address, other, number = (record((field, "int"), name=name) for field, name in ("xA", "xB", "yC"))
    for written, data in ((address, b"\x02"), (["null", address], b"\x02\x02")):
        assert decode(kernel, [data], written, ["null", other]).array.to_pylist() == [{"x": 1}]
    for branches, reason in (
        (["null", number], "`y` is not in the schema"),
        ([other, number], "written as A; it can't be read as union"),
    ):
        with pytest.raises(FormatError, match=reason):
            decode(kernel, [b"\x02"], address, branches)
    decoded = decode(kernel, [b"\x00\x02", b"\x02\x02"], [address, other], ["null", other])
    assert decoded.array.to_pylist() == [None, {"x": 1}]
    assert decoded.bad.rows == (0,)


def test_an_alias_renames_the_branch_of_the_writer(kernel: AvroKernel) -> None:
    def union(*branches: tuple[str, ...]) -> list[Any]:
        return [record(("v", "int"), name=name) | {"aliases": aliases} for name, *aliases in branches]

    def read(written: list[str], *branches: tuple[str, ...]) -> list[str]:
        payloads: list[bytes | None] = [bytes([2 * i, 2]) for i in range(len(written))]
        decoded = decode(kernel, payloads, union(*[(one,) for one in written]), union(*branches))
        assert decoded.bad == BadRows()
        found = [{name for name, value in row.items() if value} for row in decoded.array.to_pylist()]
        return [branches[int(name.removeprefix("member"))][0] for [name] in found]

    # The type B was renamed to A; the new B is another one.
    for branches in ((("A", "B"), ("B",)), (("B",), ("A", "B"))):
        assert read(["B"], *branches) == ["A"]
        assert read(["n.B"], *branches) == ["B"]
        assert read(["A", "B"], *branches) == ["A", "B"]
        assert read(["A", "n.B"], *branches) == ["A", "B"]
    assert read(["A", "B"], ("B", "A"), ("C", "B")) == ["B", "C"]
    assert read(["A", "B"], ("B", "A"), ("A", "B")) == ["A", "B"]
    # Each takes the name of the next one, and only A had none before.
    for branches in itertools.permutations([("A", "B"), ("B", "C"), ("C", "D")]):
        assert read(["B", "C", "D"], *branches) == ["A", "B", "C"]
    # The first of two aliases that are equal counts.
    assert read(["X"], ("A", "X"), ("B", "X")) == ["A"]
    assert read(["X"], ("B", "X"), ("A", "X")) == ["B"]
    # Two types became one.
    assert read(["A", "B"], ("A", "B"), ("C",)) == ["A", "A"]
    assert read(["X", "Y"], ("A", "X", "Y"), ("C",)) == ["A", "A"]


def renamed(name: str, *aliases: str, default: int | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "type": "int", "aliases": list(aliases)}
    return made if default is None else made | {"default": default}


@pytest.mark.parametrize(
    ("written", "read", "wanted"),
    [
        ("a", [renamed("x", "a"), renamed("a", default=7)], {"x": 1, "a": 7}),
        ("a", [renamed("a", default=7), renamed("x", "a")], {"x": 1, "a": 7}),
        # The name was given away already when the data was written.
        ("ax", [renamed("x", "a"), renamed("a", default=7)], {"a": 1, "x": 2}),
        ("xa", [renamed("x", "a")], {"x": 1}),
        # Each has taken the name of the next one.
        ("abc", [renamed("b", "a"), renamed("c", "b"), renamed("d", "c")], {"b": 1, "c": 2, "d": 3}),
        ("cab", [renamed("d", "c"), renamed("c", "b"), renamed("b", "a")], {"d": 1, "b": 2, "c": 3}),
        ("ab", [renamed("a", "b"), renamed("b", "a")], {"a": 1, "b": 2}),
        ("ab", [renamed("a", "a", "b")], {"a": 1}),
        ("a", [renamed("x", "a", "a", "b")], {"x": 1}),
    ],
)
def test_an_alias_renames_the_field_of_the_writer(
    kernel: AvroKernel, written: str, read: list[dict[str, Any]], wanted: dict[str, int]
) -> None:
    data = bytes(2 * (i + 1) for i in range(len(written)))
    writer, reader = record(*[(one, "int") for one in written]), record(*read)
    assert decode(kernel, [data], writer, reader).array.to_pylist() == [wanted]
    lists = [{"type": "array", "items": one} for one in (writer, reader)]
    assert decode(kernel, [b"\x02" + data + b"\0"], *lists).array.to_pylist() == [[wanted]]


@pytest.mark.parametrize(
    ("written", "read", "reason"),
    [
        ("a", [renamed("x", "a"), renamed("a")], "`a` is not in the schema .* no default"),
        ("a", [renamed("x", "a", default=1), renamed("y", "a", default=2)], "alias of `y` and of `x`"),
        ("ab", [renamed("x", "b", "a")], "`x` has the aliases `a`, `b`"),
    ],
)
def test_aliases_that_name_no_single_field_are_refused(
    kernel: AvroKernel, written: str, read: list[dict[str, Any]], reason: str
) -> None:
    writer, reader = record(*[(one, "int") for one in written]), record(*read)
    with pytest.raises(FormatError, match=reason):
        decode(kernel, [], writer, reader)


def test_a_type_of_the_writer_that_the_reader_lacks_is_bad_where_it_is(kernel: AvroKernel) -> None:
    decoded = decode(kernel, [b"\x00\x02", b"\x02\x02a", b"\x04"], ["int", "string", "null"], "long")
    assert decoded.array.to_pylist() == [1, None, None]
    assert decoded.bad.rows == (1, 2)
    assert "does not have its type" in decoded.bad.reasons[0]
    enum = {**E1, "symbols": ["A"]}
    decoded = decode(kernel, [b"\x00", b"\x02"], E1, enum)
    assert decoded.array.to_pylist() == ["A", None]
    assert "does not have its symbol" in decoded.bad.reasons[0]


@pytest.mark.parametrize(
    ("data", "place"),
    [(b"\x00\x02\x02a", "u: P"), (b"\x02", "u.member1"), (b"\x02\x04", "v"), (b"\x02\x04\x06", "w")],
)
def test_fields_behind_a_branch_that_cannot_be_read_keep_their_names(
    kernel: AvroKernel, data: bytes, place: str
) -> None:
    """The branch turns out to be none at its second field: the steps for the first one are taken back."""
    unions = [[record(("a", "int"), ("b", kind), name="P"), "long"] for kind in ("string", "int")]
    written, read = (record(("u", one), ("v", "int"), ("w", "string")) for one in unions)
    decoded = decode(kernel, [b"\x02\x04\x06\x02c", data], written, read)
    assert decoded.array.to_pylist() == [{"u": {"member0": None, "member1": 2}, "v": 3, "w": "c"}, None]
    assert decoded.bad.rows == (1,)
    assert f"`{place}`: " in decoded.bad.reasons[0]


@pytest.mark.parametrize(
    ("written", "read", "kind", "reason"),
    [
        ("string", "int", None, "was written as string; it can't be read as int"),
        ("long", "int", None, "written as long"),
        (["string", "bytes"], "int", None, "it can't be read as int"),
        (E1, {**E1, "name": "F"}, None, "written as E"),
        (fixed(2), fixed(3), None, "written as F"),
        (fixed(2), {**fixed(2), "name": "G"}, None, "written as F"),
        (fixed(3), fixed(2), None, "written as F"),
        (E1, {**E1, "name": "G"}, None, "written as E"),
        ("string", E1, None, "written as string; it can't be read as E"),
        (fixed(16), None, pa.string(), "F in the Avro schema, .* not read as string"),
        (decimal(4, 2), None, pa.string(), "decimal.* not read as string"),
        (decimal(4, 2), None, pa.decimal128(5, 3), "not read as decimal"),
        ("long", None, pa.time64("us"), "long in the Avro schema, .* not read as time64"),
        (LONG_MILLIS, None, pa.time64("us"), "not read as time64"),
        ("double", None, pa.float32(), "not read as float"),
        ("long", "int", None, "written as long; it can't be read as int"),
        ("double", "float", None, "written as double; it can't be read as float"),
        (["null", "string"], "int", None, "written as (null|string); it can't be read as int"),
        (
            {**fixed(4), "logicalType": "uuid"},
            None,
            pa.string(),
            "F in the Avro schema, .* not read as string",
        ),
        (record(("a", decimal(4, 2))), record(("a", decimal(4, 3))), None, r"written as decimal\(4,2\)"),
        (record(("a", decimal(9, 2))), record(("a", decimal(4, 2))), None, r"written as decimal\(9,2\)"),
        (record(("a", "int")), record(("b", "int")), None, "`b` is not in the schema .* no default"),
        (record(("a", "int")), record({"name": "b", "type": "int", "default": "x"}), None, "default of `b`"),
        (record(), record(("b", {"type": "array", "items": "null"})), None, "`b` is not in the schema"),
        (record(), record(("b", {"type": "map", "values": "null"})), None, "`b` is not in the schema"),
        (
            record(("a", "int")),
            record({"name": "b", "type": "string", "default": "x" * 5000}),
            None,
            "more than 4,096 bytes",
        ),
        (record(("a", "int")), None, pa.struct([("b", pa.int32())]), "has no field `b`; it has a"),
        (record(("a", "int")), None, pa.struct([("a", pa.string())]), "`a` is int .* not read as string"),
        (record(("a", "long")), None, pa.struct([("a", UTC)]), "not read as timestamp"),
        (LONG_MILLIS, None, pa.timestamp("us"), "not read as timestamp"),
        ("long", None, pa.int32(), "not read as int32"),
        ("int", None, pa.date32(), "not read as date32"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, None, UTC, "not read as timestamp"),
        (decimal(9, 2), None, pa.decimal128(4, 2), "not read as decimal"),
        (["string", E1], None, pa.string(), "E in the Avro schema, which is not read as string beside ano"),
        ([E1, "string"], None, pa.string(), "E in the Avro schema, which is not read as string beside ano"),
        (["null", "int", "string"], None, pa.struct([("member2", pa.int32())]), "union of 2 types"),
        ("null", None, pa.map_(pa.string(), pa.int32()), "The type is null .* not read as map"),
        (
            record(("a", "null")),
            None,
            pa.struct([("a", pa.struct([("b", pa.int32())]))]),
            "`a` is null .* struct",
        ),
        (
            record(("a", ["null"])),
            None,
            pa.struct([("a", pa.list_(pa.int32()))]),
            "`a` is union .* not read as list",
        ),
        (record(("a", "int")), None, pa.struct([("a", pa.int32())] * 2), "appears twice: a, a"),
        (
            ["int", "string"],
            None,
            pa.struct([("member0", pa.int32())] * 2),
            "appears twice: member0, member0",
        ),
    ],
)
def test_what_can_never_be_read_is_refused_at_once(written: Any, read: Any, kind: Any, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        decode(PythonKernel(), [], written, read, kind)


@pytest.mark.parametrize("unit", ["us", "ns"])
@pytest.mark.parametrize(("logical", "of"), [("time-millis", "int"), ("time-micros", "long")])
def test_a_time_is_within_a_day(kernel: AvroKernel, logical: str, of: str, unit: str) -> None:
    day = 86_400_000 if of == "int" else 86_400_000_000
    written = {"type": of, "logicalType": logical}
    payloads: list[bytes | None] = [varint(one) for one in (0, day - 1, day, -1, 2**31 - 1)]
    decoded = decode(kernel, payloads, written, written, pa.time64(unit))
    rows = (2, 3, 4) if of == "int" else (2, 3)
    assert decoded.bad.rows == rows
    assert "does not fit its type" in decoded.bad.reasons[0]
    assert decoded.array[:2].cast(pa.int64()).to_pylist() == [
        0,
        (day - 1) * {"us": 86_400_000_000, "ns": 86_400_000_000_000}[unit] // day,
    ]
    assert decode(kernel, payloads, written).bad == BadRows()


def test_single_objects_are_read_without_their_head(kernel: AvroKernel) -> None:
    head = bytes.fromhex("c301c70345637248018f")
    decoded = decode(kernel, [head + b"\x02a", b"\x02a", head[:9] + b"\x00\x02a"], "string")
    assert decoded.array.to_pylist() == ["a", "a", None]
    assert "of another schema, of fingerprint 00014872634503c7" in decoded.bad.reasons[0]


def test_a_single_object_may_have_no_bytes_behind_its_head(kernel: AvroKernel) -> None:
    head = single_object_prefix(parse_schema('"null"'))
    decoded = decode(kernel, [head, b"", head + b"\0", head[:9]], "null")
    assert decoded.bad.rows == (2, 3)


def test_a_payload_with_the_head_of_a_registry_is_named(kernel: AvroKernel) -> None:
    decoded = decode(kernel, [b"\0\0\0\0\x07\x02a"], "string")
    assert "of schema 7: see registry.url" in decoded.bad.reasons[0]


def test_a_value_that_would_grow_beyond_measure_is_bad(kernel: AvroKernel) -> None:
    """Records without bytes, each of which gets a default of the reader."""
    written = {"type": "array", "items": record()}
    read = {"type": "array", "items": record({"name": "a", "type": "string", "default": "x" * 100})}
    decoded = decode(kernel, [b"\x06\x00", b"\xa0\x1f\x00"], written, read)
    assert decoded.bad.rows == (1,)
    assert decoded.array.to_pylist()[0] == [{"a": "x" * 100}] * 3


def test_the_bytes_of_a_payload_allow_no_other_to_grow(kernel: AvroKernel) -> None:
    """Three bytes allow more than 7,000 elements without bytes, and less than 8,000."""
    within, beyond = varint(7_000) + b"\0", varint(8_000) + b"\0"
    payloads: list[bytes | None] = [*[within] * 3, *[b"\0"] * 20, beyond, within]
    decoded = decode(kernel, payloads, {"type": "array", "items": "null"})
    assert decoded.bad.rows == (23,)
    assert [len(one or ()) for one in decoded.array.to_pylist()] == [*[7_000] * 3, *[0] * 21, 7_000]


@pytest.mark.parametrize("names", [[], [f"f{i}" for i in range(100)]], ids=["missing", "null"])
def test_elements_without_bytes_pay_for_all_their_values(kernel: AvroKernel, names: list[str]) -> None:
    """Three bytes and 102 columns allow 7,576 values, which are 75 records of 100 fields."""
    written = {"type": "array", "items": record(*[(name, "null") for name in names])}
    fields = [{"name": f"f{i}", "type": ["null", "long"], "default": None} for i in range(100)]
    payloads: list[bytes | None] = [varint(75) + b"\0", varint(76) + b"\0", varint(1 << 62) + b"\0"]
    decoded = decode(kernel, payloads, written, {"type": "array", "items": record(*fields)})
    assert decoded.bad.rows == (1, 2)
    assert "very much larger than its bytes" in decoded.bad.reasons[0]
    assert decoded.array.to_pylist()[0] == [{f"f{i}": None for i in range(100)}] * 75


def test_a_nullable_record_of_many_fields_may_be_null(kernel: AvroKernel) -> None:
    many = record(*[(f"f{i}", "double") for i in range(300)], name="Many")
    written = {"type": "array", "items": ["null", many]}
    payload = b"\x90\x4e" + b"\0" * 5000 + b"\0"
    decoded = decode(kernel, [payload], written)
    assert decoded.bad.rows == ()
    assert decoded.array.to_pylist() == [[None] * 5000]


def test_nulls_of_records_with_thousands_of_fields_may_not_grow_beyond_measure(kernel: AvroKernel) -> None:
    many = record(*[(f"f{i}", "double") for i in range(2_000)], name="Many")
    decoded = decode(kernel, [b"\xc8\x01" + b"\0" * 101], {"type": "array", "items": ["null", many]})
    assert decoded.bad.rows == (0,)


def test_bytes_that_are_left_over_are_of_no_field(kernel: AvroKernel) -> None:
    (reason,) = decode(kernel, [b"\x02\x04\x06"], record(("a", "int"), ("b", "int"))).bad.reasons
    assert "`" not in reason


def test_what_a_bad_payload_looks_like_is_not_read_out_of_the_next_one(kernel: AvroKernel) -> None:
    payloads: list[bytes | None] = [b"\0", b"\0\0\0\0\7\2", b"\xc3", b"\1\0\0\0\0\0\0\0\0", b"\xc3\1" * 3]
    payloads += [b"\xc3\1" + bytes(8)]
    bad = decode(kernel, payloads, record(("a", "string"), ("b", "string"))).bad
    assert bad.rows == (0, 1, 2, 3, 4, 5)
    likely = ["it begins as one" in reason for reason in bad.reasons]
    assert likely == [False, True, False, False, False, True]


def test_a_build_of_older_sources_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(avro, "_kernel", SimpleNamespace(decode=None), raising=False)  # it can't encode
    assert decode(choose(), [b"\x02a"], "string").array.to_pylist() == ["a"]
