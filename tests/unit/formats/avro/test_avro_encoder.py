"""Rows as Avro: by a schema that is given, and by one that is derived."""

import datetime as dt
import json
import mmap
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.avro_cases import read
from support.broken_arrays import with_offsets
from support.http_server import Asked, serving

from spark_kafka_native.formats import EncodeError, FormatError, load_format
from spark_kafka_native.formats.avro.derived_schema import derive_schema
from spark_kafka_native.formats.avro.encoder import AvroEncoder
from spark_kafka_native.formats.avro.kernel import AvroKernel, PythonKernel, load_compiled
from spark_kafka_native.formats.avro.schema import parse_schema

E1 = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


def record(*fields: dict[str, Any] | tuple[str, Any]) -> dict[str, Any]:
    made = [one if isinstance(one, dict) else {"name": one[0], "type": one[1]} for one in fields]
    return {"type": "record", "name": "R", "fields": made}


@pytest.fixture(params=["compiled", "python"])
def kernel(request: pytest.FixtureRequest) -> AvroKernel:
    found = load_compiled() if request.param == "compiled" else PythonKernel()
    if found is None:
        pytest.skip("there is no C compiler")
    return found


def encode(kernel: AvroKernel, rows: pa.Array, schema: Any) -> list[bytes | None]:
    encoder = AvroEncoder(parse_schema(json.dumps(schema)), rows.type, kernel)
    return encoder.encode(rows).to_pylist()


TIME = {"type": "long", "logicalType": "time-micros"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


def decimal(precision: int, scale: int, size: int | None = None) -> dict[str, Any]:
    of = {"type": "bytes"} if size is None else {"type": "fixed", "name": "D", "size": size}
    return {**of, "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("values", "kind", "schema", "wanted"),
    [
        ([1, None], pa.int64(), "long", [b"\x02", None]),
        ([-1], pa.int8(), "int", [b"\x01"]),
        ([200], pa.uint8(), "int", [b"\x90\x03"]),
        ([-300, 300], pa.int16(), "int", [b"\xd7\x04", b"\xd8\x04"]),
        ([-70_000, 70_000], pa.int32(), "int", [b"\xdf\xc5\x08", b"\xe0\xc5\x08"]),
        ([1 << 31], pa.uint32(), "long", [b"\x80\x80\x80\x80\x10"]),
        ([7], pa.int32(), "long", [b"\x0e"]),
        ([1.0], pa.float32(), "double", [b"\0\0\0\0\0\0\xf0\x3f"]),
        ([True, False], pa.bool_(), "boolean", [b"\x01", b"\x00"]),
        ([1], pa.time64("us"), TIME, [b"\x02"]),
        ([1_000], pa.time64("ns"), TIME, [b"\x02"]),
        (["a"], pa.string(), "string", [b"\x02a"]),
        (["a"], pa.large_string(), "string", [b"\x02a"]),
        (["a"], pa.string(), "bytes", [b"\x02a"]),
        (["a", None], pa.string(), ["null", "string"], [b"\x02\x02a", None]),
        # Of the types of a union that take the values the one that takes all of them counts, or the first.
        (["a"], pa.string(), ["null", "bytes", "string"], [b"\x04\x02a"]),
        (["x"], pa.string(), ["null", E1, "string"], [b"\x04\x02x"]),
        (["A"], pa.dictionary(pa.int8(), pa.string()), ["bytes", E1], [b"\x02\x00"]),
        ([b"ab"], pa.binary(), ["null", {"type": "fixed", "name": "F", "size": 3}, "bytes"],
         [b"\x04\x04ab"]),
        ([b"ab"], pa.binary(2), ["bytes", {"type": "fixed", "name": "F", "size": 3},
         {"type": "fixed", "name": "G", "size": 2}], [b"\x04ab"]),
        ([{"b": 2}], pa.struct([("b", pa.int32())]),
         [record(("a", "int")), {**record(("b", "int")), "name": "Second"}], [b"\x02\x04"]),
        ([{"b": 2}], pa.struct([("b", pa.int32())]),
         [record(("a", "int"), ("b", "int")), {**record(("b", "int")), "name": "Second"}], [b"\x02\x04"]),
        ([{"b": 2}], pa.struct([("b", pa.int32())]),
         [record(("b", "int"), ("n", ["null", "int"])), {**record(("b", "int")), "name": "Second"}],
         [b"\x02\x04"]),
        ([{"b": 2}], pa.struct([("b", pa.int32())]),
         [record(("a", "int"), ("b", "int")),
          {**record(("b", "int"), ("n", ["null", "int"])), "name": "Second"}], [b"\x02\x04\x00"]),
        # A record takes a struct if all fields take theirs, also within.
        ([{"b": 2}], pa.struct([("b", pa.int32())]),
         [record(("b", "int"), ("n", ["null", "int"])), {**record(("b", "string")), "name": "Second"}],
         [b"\x00\x04\x00"]),
        ([{"b": 2}], pa.struct([("b", pa.int32())]),
         [record(("b", "string")), {**record(("b", "long"), ("n", ["null", "int"])), "name": "Second"}],
         [b"\x02\x04\x00"]),
        ([{"b": [2]}], pa.struct([("b", pa.list_(pa.int32()))]),
         [record(("b", {"type": "array", "items": "string"})),
          {**record(("b", {"type": "array", "items": "int"})), "name": "Second"}], [b"\x02\x02\x04\x00"]),
        ([{"b": [("k", 2)]}], pa.struct([("b", pa.map_(pa.string(), pa.int32()))]),
         [record(("b", {"type": "map", "values": "string"})),
          {**record(("b", {"type": "map", "values": ["null", "int"]})), "name": "Second"}],
         [b"\x02\x02\x02k\x02\x04\x00"]),
        ([{"b": {"c": 2}}], pa.struct([("b", pa.struct([("c", pa.int32())]))]),
         [record(("b", {**record(("c", "string")), "name": "In1"})),
          {**record(("b", {**record(("c", "int")), "name": "In2"})), "name": "Second"}], [b"\x02\x04"]),
        ([{"b": b"ab"}], pa.struct([("b", pa.binary(2))]),
         [record(("b", {"type": "fixed", "name": "F", "size": 3})),
          {**record(("b", {"type": "fixed", "name": "G", "size": 2})), "name": "Second"}], [b"\x02ab"]),
        ([{"b": None}], pa.struct([("b", pa.null())]),
         [record(("b", "int")), {**record(("b", ["int", "null"])), "name": "Second"}], [b"\x02\x02"]),
        ([{"b": {"member0": 1, "member1": None}}],
         pa.struct([("b", pa.struct([("member0", pa.int32()), ("member1", pa.string())]))]),
         [record(("b", "int")), {**record(("b", ["int", "string"])), "name": "Second"}], [b"\x02\x00\x02"]),
        ([7], pa.int32(), ["null", "long", "int"], [b"\x02\x0e"]),
        ([7], pa.int32(), ["null", "string", "int", "long"], [b"\x04\x0e"]),
        (["a"], pa.string(), ["string", "null", "bytes"], [b"\x00\x02a"]),
        ([b"ab"], pa.binary(2), {"type": "fixed", "name": "F", "size": 2}, [b"ab"]),
        (["B", "A"], pa.string(), E1, [b"\x02", b"\x00"]),
        (["B"], pa.dictionary(pa.int8(), pa.string()), E1, [b"\x02"]),
        ([-1001], pa.timestamp("us", "UTC"), MILLIS, [b"\x03"]),
        ([-1], pa.timestamp("ms", "UTC"), MICROS, [b"\xcf\x0f"]),
        ([1], pa.date32(), {"type": "int", "logicalType": "date"}, [b"\x02"]),
        ([Decimal("-1.28")], pa.decimal128(5, 2), decimal(5, 2), [b"\x02\x80"]),
        ([Decimal("1.28")], pa.decimal128(5, 2), decimal(5, 2), [b"\x04\x00\x80"]),
        ([Decimal("1.28")], pa.decimal128(5, 2), decimal(40, 2), [b"\x04\x00\x80"]),
        ([{"a": None}, {"a": 1}], pa.struct([("a", pa.int32())]), record(("a", ["null", "int"])),
         [b"\x00", b"\x02\x02"]),
        ([{"a": None}, {"a": 1}], pa.struct([("a", pa.int32())]), record(("a", ["int", "null"])),
         [b"\x02", b"\x00\x02"]),
        ([[None, 1]], pa.list_(pa.int32()), {"type": "array", "items": ["null", "int"]},
         [b"\x04\x00\x02\x02\x00"]),
        ([Decimal("-1.28")], pa.decimal128(5, 2), decimal(5, 2, 3), [b"\xff\xff\x80"]),
        ([Decimal("1.5")], pa.decimal128(5, 1), decimal(6, 2), [b"\x04\x00\x96"]),
        ([Decimal("-1.5")], pa.decimal128(5, 1), decimal(40, 2), [b"\x04\xff\x6a"]),
        ([Decimal(1), None], pa.decimal128(38, 0), ["null", decimal(40, 2)], [b"\x02\x02\x64", None]),
        ([Decimal(1 - 10**38), Decimal(10**38 - 1)], pa.decimal128(38, 0), decimal(40, 2),
         [b"\x22" + (100 - 10**40).to_bytes(17, "big", signed=True),
          b"\x22" + (10**40 - 100).to_bytes(17, "big", signed=True)]),
        ([Decimal(10**38 - 1)], pa.decimal128(38, 0), decimal(76, 38),
         [b"\x40" + (10**76 - 10**38).to_bytes(32, "big")]),
        ([Decimal(-1), Decimal(0)], pa.decimal128(38, 0), decimal(40, 2, 40),
         [b"\xff" * 39 + b"\x9c", bytes(40)]),
        ([[1, 2], []], pa.list_(pa.int32()), {"type": "array", "items": "int"}, [b"\x04\x02\x04\x00", b"\0"]),
        ([[1, 2]], pa.list_(pa.int32(), 2), {"type": "array", "items": "int"}, [b"\x04\x02\x04\x00"]),
        ([[("k", 1)]], pa.map_(pa.string(), pa.int32()), {"type": "map", "values": "int"},
         [b"\x02\x02k\x02\x00"]),
        ([{"b": 1, "a": 2}], pa.struct([("b", pa.int32()), ("a", pa.int32())]),
         record(("a", "int"), ("b", "int")), [b"\x04\x02"]),
        ([{"a": 2}], pa.struct([("a", pa.int32())]),
         record(("a", "int"), {"name": "s", "type": "string", "default": "x"}, ("n", ["int", "null"])),
         [b"\x04\x02x\x02"]),
        ([{"a": 2}], pa.struct([("a", pa.int32())]),
         record(("a", "int"), {"name": "s", "type": ["string", "null"], "default": "x"},
                {"name": "t", "type": ["null", "string"], "default": "x"},
                {"name": "n", "type": ["int", "null"], "default": None}),
         [b"\x04\x00\x02x\x02\x02x\x02"]),
        ([{"a": 2}], pa.struct([("a", pa.int32())]),
         record(("a", "int"), {"name": "m", "type": {"type": "map", "values": "int"}, "default": {"k": 1}}),
         [b"\x04\x02\x02k\x02\x00"]),
        ([{"member0": 1, "member1": None}, {"member0": None, "member1": "a"},
          {"member0": None, "member1": None}],
         pa.struct([("member0", pa.int32()), ("member1", pa.string())]), ["null", "int", "string"],
         [b"\x02\x02", b"\x04\x02a", b"\x00"]),
        ([{"n": None}], pa.struct([("n", pa.null())]), record(("n", ["int", "null"])), [b"\x02"]),
        ([{"n": None, "a": 1}], pa.struct([("n", pa.null()), ("a", pa.int32())]),
         record(("n", "null"), ("a", "int")), [b"\x02"]),
    ],
)  # fmt: skip
def test_values_are_written(
    kernel: AvroKernel, values: list[Any], kind: pa.DataType, schema: Any, wanted: list[bytes | None]
) -> None:
    array = pa.array(values, pa.int32() if pa.types.is_date32(kind) else kind).cast(kind)
    assert encode(kernel, array, schema) == wanted
    longer = pa.concat_arrays([pa.nulls(3, array.type), array, array]).slice(3, len(array))
    assert encode(kernel, longer, schema) == wanted


@pytest.mark.parametrize(
    ("values", "kind", "schema", "reason"),
    [
        ([{"a": 1}, {"a": None}], pa.struct([("a", pa.int32())]), record(("a", "int")), "`a` is null"),
        (["A", "A", "Z"], pa.string(), E1, "'Z', which is none of the symbols"),
        ([None, "A", "Z"], pa.string(), ["null", E1], "'Z', which is none of the symbols"),
        ([b"ab", b"c"], pa.binary(), {"type": "fixed", "name": "F", "size": 2}, "another size"),
        ([b"ab", b"abc"], pa.binary(), {"type": "fixed", "name": "F", "size": 2}, "another size"),
        ([[1], [None]], pa.list_(pa.int32()), {"type": "array", "items": "int"}, r"`\[\]` is null"),
        ([Decimal(1), Decimal(99999)], pa.decimal128(5, 0), decimal(5, 0, 2), "too large for the fixed"),
        ([Decimal(1), Decimal(10**37)], pa.decimal128(38, 0), decimal(40, 2, 16), "too large for the fixed"),
        ([0, 1 << 62], pa.timestamp("ms", "UTC"), MICROS, "too large for the unit"),
        ([0, -(1 << 62)], pa.timestamp("ms", "UTC"), MICROS, "too large for the unit"),
        ([{"member0": 1, "member1": None}, {"member0": 1, "member1": "a"}],
         pa.struct([("member0", pa.int32()), ("member1", pa.string())]), ["int", "string"], "exactly one"),
        ([{"member0": 1, "member1": None}, {"member0": None, "member1": None}],
         pa.struct([("member0", pa.int32()), ("member1", pa.string())]), ["int", "string"], "exactly one"),
    ],
)  # fmt: skip
def test_a_row_that_the_schema_does_not_have_is_named(
    kernel: AvroKernel, values: list[Any], kind: pa.DataType, schema: Any, reason: str
) -> None:
    with pytest.raises(EncodeError, match=reason) as caught:
        encode(kernel, pa.array(values, kind), schema)
    assert caught.value.row == len(values) - 1


@pytest.mark.parametrize("schema", ["null", "int", ["null"], ["null", "int"], ["null", "int", "string"]])
def test_a_column_without_values_is_refused(kernel: AvroKernel, schema: Any) -> None:
    """A null row is a null payload, of any schema: nothing of Avro would be in it."""
    with pytest.raises(FormatError, match="All rows are null"):
        encode(kernel, pa.nulls(2), schema)


SYMBOLS_IN = [
    ({"type": "array", "items": E1}, pa.list_(pa.string()), lambda *texts: list(texts)),
    (
        {"type": "map", "values": E1},
        pa.map_(pa.string(), pa.string()),
        lambda *texts: [("k", t) for t in texts],
    ),
    (
        {"type": "array", "items": record(("e", ["null", E1]))},
        pa.list_(pa.struct([("e", pa.string())])),
        lambda *texts: [{"e": one} for one in texts],
    ),
]


@pytest.mark.parametrize(("schema", "kind", "of"), SYMBOLS_IN, ids=["array", "map", "records"])
def test_an_item_that_its_schema_does_not_have_is_that_of_its_row(
    kernel: AvroKernel, schema: Any, kind: pa.DataType, of: Any
) -> None:
    rows = pa.array([of("A"), None, of("B"), of("A"), of(), of("Z"), of("B"), of("Y")], kind)
    for start in (0, 2, 5):
        with pytest.raises(EncodeError, match="'Z', which is none of the symbols") as caught:
            encode(kernel, rows.slice(start), schema)
        assert caught.value.row == 5 - start
    for start, count in ((0, 5), (2, 3), (6, 1), (4, 1), (1, 1)):
        good = pa.array(rows.slice(start, count).to_pylist(), kind)
        assert encode(kernel, rows.slice(start, count), schema) == encode(kernel, good, schema)


@pytest.mark.parametrize(("schema", "kind", "of"), SYMBOLS_IN, ids=["array", "map", "records"])
def test_items_under_a_null_are_not_looked_at(
    kernel: AvroKernel, schema: Any, kind: pa.DataType, of: Any
) -> None:
    whole = pa.array([of("A"), of("Z", "Z"), of("B"), of("Y")], kind)
    _, offsets, *_ = whole.buffers()
    inner = whole.values
    if pa.types.is_map(kind):
        inner = pa.StructArray.from_arrays(
            [whole.keys, whole.items], fields=[kind.key_field, kind.item_field]
        )
    rows = pa.Array.from_buffers(kind, 4, [pa.py_buffer(b"\x05"), offsets], children=[inner])
    wanted = encode(kernel, pa.array([of("A"), None, of("B"), None], kind), schema)
    assert encode(kernel, rows, schema) == wanted
    assert encode(kernel, rows.slice(1, 2), schema) == wanted[1:3]


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (pa.string(), "string"),
        (pa.binary(), {"type": "bytes"}),
        (pa.list_(pa.int8()), {"type": "array", "items": "int"}),
    ],
    ids=["string", "bytes", "array"],
)
@pytest.mark.parametrize(("edges", "row"), [([0, 3, 2], 1), ([-1, 0, 1], 0), ([0, 1, 5], 1)])
def test_offsets_that_go_backwards_or_leave_the_data_are_refused(
    kernel: AvroKernel, kind: pa.DataType, schema: Any, edges: list[int], row: int
) -> None:
    with pytest.raises(EncodeError, match="has offsets that leave its data") as caught:
        encode(kernel, with_offsets(kind, edges), schema)
    assert caught.value.row == row


def one_of_zeros(size: int) -> pa.Array:
    """A value that takes no memory, as no page of it is written."""
    edges = np.array([0, size], np.int32)
    return pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(edges), pa.py_buffer(mmap.mmap(-1, size))]
    )


@contextmanager
def memory_left(size: int) -> Iterator[None]:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_a_lack_of_memory_is_one(kernel: AvroKernel) -> None:
    rows = one_of_zeros(1 << 30)
    with pytest.raises(MemoryError), memory_left(1 << 28):
        encode(kernel, rows, "bytes")


def test_rows_of_more_than_arrow_has_place_for_are_too_large() -> None:
    found = load_compiled()
    if found is None:
        pytest.skip("there is no C compiler")
    with pytest.raises(OverflowError, match="more than 2 GiB as Avro"):
        encode(found, one_of_zeros(2**31 - 1), "bytes")


def test_of_several_rows_that_do_not_fit_the_first_one_is_named_with_its_own_field(
    kernel: AvroKernel,
) -> None:
    rows = pa.array([{"a": "A", "b": "A"}, {"a": "A", "b": "Y"}, {"a": "Z", "b": "A"}])
    with pytest.raises(EncodeError, match="row 1: `b` is 'Y'"):
        encode(kernel, rows, record(("a", E1), ("b", "E")))


@pytest.mark.parametrize(
    ("kind", "schema", "reason"),
    [
        (pa.int64(), "int", "int64; it can't be written as int"),
        (pa.struct([("x", pa.int32())]), record(), "has no field `x`"),
        (
            pa.struct([("b", pa.int64())]),
            ["null", record(("a", "int")), {**record(("b", "int")), "name": "Second"}],
            "`b` is int64; it can't be written as int",
        ),
        (pa.struct([("a", pa.int32())] * 2), record(("a", "int")), "has no two fields of one name"),
        (pa.struct([]), record(("a", "int")), "`a` without a default"),
        (pa.struct([]), record({"name": "a", "type": "int", "default": True}), "default of `a` .* is no int"),
        (
            pa.struct([]),
            record({"name": "a", "type": "int", "default": 2**31}),
            "default of `a` .* is no int",
        ),
        (
            pa.struct([("member0", pa.int32()), ("member2", pa.string())]),
            ["int", "string"],
            "a union of 2 types: no `member2`",
        ),
        (
            pa.struct([("member0", pa.string()), ("member1", pa.string())]),
            ["int", "string"],
            "`.member0` is string; it can't be written as int",
        ),
        (pa.timestamp("us"), MICROS, "can't be written as long"),
        (pa.time64("us"), MICROS, "can't be written as long"),
        (pa.timestamp("us", "UTC"), "long", "can't be written as long"),
        (
            pa.timestamp("us", "UTC"),
            {"type": "long", "logicalType": "local-timestamp-micros"},
            "can't be written as long",
        ),
        (pa.time64("us"), {"type": "int", "logicalType": "time-millis"}, "can't be written as int"),
        (pa.date32(), "int", "can't be written as int"),
        (pa.float64(), "float", "can't be written as float"),
        (pa.uint32(), "int", "can't be written as int"),
        (pa.string(), {"type": "fixed", "name": "F", "size": 3}, "can't be written as F"),
        (pa.decimal128(10, 2), decimal(5, 2), "can't be written as bytes"),
        (pa.decimal128(5, 3), decimal(5, 2), "can't be written as bytes"),
        (pa.map_(pa.int32(), pa.int32()), {"type": "map", "values": "int"}, "a key"),
        (pa.binary(), "string", "can't be written as string"),
        (pa.binary(), decimal(5, 2), "can't be written as bytes"),
        (pa.decimal128(5, 2), decimal(5, 4), "can't be written as bytes"),
        (pa.string(), decimal(5, 2), "can't be written as bytes"),
        (pa.decimal128(38, 0), decimal(80, 39), "can't be written as bytes"),
        (pa.decimal128(5, 2), decimal(200, 100), "can't be written as bytes"),
        (pa.binary(3), decimal(5, 2, 3), "can't be written as D"),
        (pa.uint64(), "long", "can't be written as long"),
    ],
)
def test_types_that_do_not_fit_are_refused(kind: pa.DataType, schema: Any, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        AvroEncoder(parse_schema(json.dumps(schema)), kind)


def test_a_derived_schema_is_that_of_to_avro() -> None:
    kind = pa.struct(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("geo", pa.struct([pa.field("at", pa.timestamp("us", "UTC"))])),
        ]
    )
    at = {"type": "long", "logicalType": "timestamp-micros"}
    assert derive_schema(kind) == {
        "type": "record",
        "name": "topLevelRecord",
        "fields": [
            {"name": "id", "type": "long"},
            {
                "name": "price",
                "type": [
                    {
                        "type": "fixed", "name": "topLevelRecord.price.fixed", "size": 5,
                        "logicalType": "decimal", "precision": 10, "scale": 2,
                    },
                    "null",
                ],
            },
            {
                "name": "geo",
                "type": [
                    {
                        "type": "record", "name": "geo", "namespace": "topLevelRecord",
                        "fields": [{"name": "at", "type": [at, "null"]}],
                    },
                    "null",
                ],
            },
        ],
    }  # fmt: skip


@pytest.mark.parametrize("precision", range(1, 39))
def test_a_derived_schema_has_room_for_the_largest_decimals(precision: int) -> None:
    avro, kind = load_format("avro"), pa.struct([("a", pa.decimal128(precision, 0))])
    values = [Decimal(sign + "9" * precision) for sign in ("", "-")]
    rows = pa.array([{"a": value} for value in values], kind)
    settings = avro.resolve_write(kind, {}).settings
    payloads = avro.encoder(kind, settings).encode(rows)
    schema = json.loads(settings["schema"])
    assert [read(payload, schema)["a"] for payload in payloads.to_pylist()] == values


@pytest.mark.parametrize("kind", [pa.uint64(), pa.duration("us"), pa.map_(pa.int32(), pa.int32())])
def test_types_that_avro_lacks_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(FormatError, match=r"is .*, for which Avro has no type|keys of a map"):
        derive_schema(pa.struct([("a", kind)]))


def test_the_format_writes_what_it_reads() -> None:
    avro: Any = load_format("avro")
    rows = pa.array([{"a": 1, "at": dt.datetime(2024, 2, 29)}, None, {"a": None, "at": None}])
    resolved = avro.resolve_write(rows.type, {})
    payloads = avro.encoder(rows.type, resolved.settings).encode(rows)
    assert payloads.to_pylist()[1] is None
    assert read(payloads.to_pylist()[0], json.loads(resolved.settings["schema"]))["a"] == 1
    found = avro.resolve_read({"schema": resolved.settings["schema"]})
    assert found.type == rows.type
    decoded = avro.decoder(found.type, found.settings).decode(payloads)
    assert decoded.array.equals(rows)
    older = json.dumps({"type": "record", "name": "topLevelRecord",
                        "fields": [{"name": "b", "type": "int", "default": 5}]})  # fmt: skip
    settings = {"schema": resolved.settings["schema"], "avroschema": older}
    assert avro.resolve_read(settings).type == pa.struct([("b", pa.int32())])
    other = avro.decoder(pa.struct([("b", pa.int32())]), settings).decode(payloads)
    assert other.array.to_pylist() == [{"b": 5}, None, {"b": 5}]


def test_a_read_needs_a_schema() -> None:
    avro: Any = load_format("avro")
    with pytest.raises(FormatError, match=r"value\.schema as Avro's JSON, or registry\.url"):
        avro.resolve_read({"payload": "value"})


def test_a_write_that_registers_its_own_schema() -> None:
    """And none that the subject has already."""
    avro, kind = load_format("avro"), pa.struct([("a", pa.int64())])
    sent: list[Any] = []

    def answer(asked: Asked) -> tuple[int, dict[str, str], Any]:
        if asked.path == "/subjects/t-value/versions":
            sent.append(json.loads(asked.body)["schema"])
            return 200, {}, {"id": 7}
        if asked.path == "/schemas/ids/7":
            return 200, {}, {"schema": sent[0]}
        return 404, {}, {"error_code": 40401, "message": "none"}

    with serving(answer) as served:
        given = {"registry.url": served.url, "topic": "t", "payload": "value", "registry.register": " True"}
        encoder = avro.encoder(kind, given)
    assert json.loads(sent[0]) == derive_schema(kind)
    assert encoder.encode(pa.array([{"a": 1}], kind)).to_pylist() == [b"\0\0\0\0\7\0\2"]


@pytest.mark.parametrize(
    ("kind", "derived"),
    [
        (pa.list_(pa.int32()), {"type": "array", "items": ["int", "null"]}),
        (pa.list_(pa.field("one", pa.int32(), nullable=False)), {"type": "array", "items": "int"}),
        (pa.list_(pa.null()), {"type": "array", "items": "null"}),
        (pa.map_(pa.string(), pa.int64()), {"type": "map", "values": ["long", "null"]}),
        (
            pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
            {"type": "map", "values": "long"},
        ),
        *(
            (pa.timestamp(unit, zone), {"type": "long", "logicalType": f"{prefix}timestamp-{name}"})
            for unit, name in (("s", "millis"), ("ms", "millis"), ("us", "micros"), ("ns", "nanos"))
            for zone, prefix in (("UTC", ""), (None, "local-"))
        ),
    ],
    ids=str,
)
def test_a_derived_schema_has_room_for_the_nulls_and_the_times_of_its_type(
    kind: pa.DataType, derived: dict[str, Any]
) -> None:
    assert derive_schema(kind) == derived
