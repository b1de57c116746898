"""Spark's text for columns, read without Spark."""

import json

import pyarrow as pa
import pytest

from spark_kafka_native.formats import ColumnFormat, FormatError
from spark_kafka_native.formats.ddl import MAX_DEPTH, parse_ddl

UTC = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("id bigint, name string", pa.struct([("id", pa.int64()), ("name", pa.string())])),
        ("ID: LONG", pa.struct([("ID", pa.int64())])),
        ("`a b``c` int COMMENT 'it\\'s, a <name>'", pa.struct([("a b`c", pa.int32())])),
        ("string", pa.string()),
        ("decimal", pa.decimal128(10, 0)),
        ("\n  id bigint,\n  name string\n", pa.struct([("id", pa.int64()), ("name", pa.string())])),
        ("x decimal(12, 2), y dec(5)", pa.struct([("x", pa.decimal128(12, 2)), ("y", pa.decimal128(5, 0))])),
        ("rate decimal(4,4)", pa.struct([("rate", pa.decimal128(4, 4))])),
        (
            "a decimal(38,38), b numeric(1)",
            pa.struct([("a", pa.decimal128(38, 38)), ("b", pa.decimal128(1))]),
        ),
        (
            "a byte, b short, c integer, d real, e timestamp_ltz",
            pa.struct(
                list(zip("abcde", (pa.int8(), pa.int16(), pa.int32(), pa.float32(), UTC), strict=True))
            ),
        ),
        ("array<map<string, timestamp>>", pa.list_(pa.map_(pa.string(), UTC))),
        (
            "s struct<a: date, b timestamp_ntz>, map map<string,binary>",
            pa.struct(
                [
                    ("s", pa.struct([("a", pa.date32()), ("b", pa.timestamp("us"))])),
                    ("map", pa.map_(pa.string(), pa.binary())),
                ]
            ),
        ),
        (
            "b boolean, t tinyint, s smallint, f float, d double",
            pa.struct(
                [
                    ("b", pa.bool_()),
                    ("t", pa.int8()),
                    ("s", pa.int16()),
                    ("f", pa.float32()),
                    ("d", pa.float64()),
                ]
            ),
        ),
    ],
)
def test_a_text_as_a_type(text: str, kind: pa.DataType) -> None:
    assert parse_ddl(text) == kind


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a type is missing at the end"),
        ("id", "'id' is no type"),
        ("id bigintt", "'bigintt' is no type"),
        ("id bigint name string", "'name' does not follow a column"),
        ("id bigint,", "it breaks off"),
        ("a array<int", "'>' is expected"),
        ("a decimal(39,2)", r"there is no decimal\(39,2\)"),
        ("a decimal(3,5)", r"there is no decimal\(3,5\)"),
        ("a decimal(0)", r"there is no decimal\(0,0\)"),
        ("a decimal(x)", "a number is expected, not 'x'"),
        ("a int NOT NULL", "leave out NOT NULL"),
        ("a int > b", "'>' does not follow a column"),
        ("array<int> garbage", "the end is expected, not 'garbage'"),
        ("decimal(10,2), name string", "the end is expected, not ','"),
        ("a int; drop", "'; drop' has no meaning"),
        ('{"type": "struct"}', "has no meaning"),
        ("array<" * (MAX_DEPTH + 2), "nested more than 100 deep"),
        ("map<int," * (MAX_DEPTH + 2), "nested more than 100 deep"),
        ("struct<a:" * 10_000, "nested more than 100 deep"),
    ],
)
def test_a_text_that_is_no_type(text: str, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        parse_ddl(text)


def test_a_format_takes_arrows_schema_or_its_text() -> None:
    schema = pa.schema([("id", pa.int64())])
    assert (
        ColumnFormat("json", schema)
        == ColumnFormat("json", "id bigint")
        == ColumnFormat("json", pa.struct(schema))
    )
    assert ColumnFormat("json", "id bigint", {"timeZone": "UTC"}).settings == (("timezone", "UTC"),)
    zone = ColumnFormat("json", "id bigint", {"timeZone": "UTC"})
    other = zone.with_settings(lambda given: {**given, "a": "b"})
    assert (other.settings, other.type) == ((("a", "b"), ("timezone", "UTC")), zone.type)
    assert zone.settings == (("timezone", "UTC"),)
    with pytest.raises(FormatError, match="not int"):
        ColumnFormat("json", 5)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="no format 'jsn'; did you mean 'json'"):
        ColumnFormat("jsn")
    assert "geheim" not in repr(ColumnFormat("json", None, {"registry.password": "geheim"}))


def test_the_type_that_the_caller_gave_is_that_of_the_records() -> None:
    """The schema of the records may have more fields, or others."""
    written = {"type": "record", "name": "R", "fields": [{"name": n, "type": "int"} for n in ("id", "more")]}
    given = ColumnFormat("avro", "id bigint", {"schema": json.dumps(written)})
    decoder, kind = given.decoder("value", "t")
    assert kind == pa.struct([("id", pa.int64())])
    decoded = decoder.decode(pa.array([b"\x02\x04"], pa.binary()))
    assert decoded.array.to_pylist() == [{"id": 1}]
