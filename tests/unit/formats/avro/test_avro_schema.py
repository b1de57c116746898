"""Schemas of Avro: their types, those that are refused, and their fingerprints."""

import json
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_native.formats import FormatError
from spark_kafka_native.formats.avro.avro_format import _name_of
from spark_kafka_native.formats.avro.fingerprint import canonical_form, fingerprint
from spark_kafka_native.formats.avro.schema import MAX_DEPTH, MAX_TEXT, parse_schema
from spark_kafka_native.formats.avro.types import arrow_type


def record(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields], **more}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ("int", pa.int32()),
        ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("us", "UTC")),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.timestamp("us")),
        ({"type": "long", "logicalType": "timestamp-nanos"}, pa.int64()),
        ({"type": "int", "logicalType": "date"}, pa.date32()),
        ({"type": "int", "logicalType": "time-millis"}, pa.int32()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, pa.decimal128(9, 2)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 38}, pa.decimal128(38, 38)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 2}, pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": -1}, pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, pa.decimal128(9, 0)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 9}, pa.binary()),
        ({"type": "string", "logicalType": "uuid"}, pa.string()),
        ({"type": "int", "logicalType": "no-such"}, pa.int32()),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string()),
        ({"type": "fixed", "name": "F", "size": 12, "logicalType": "duration"}, pa.binary()),
        (["null", "string"], pa.string()),
        (["string"], pa.string()),
        (["null"], pa.null()),
        (["int", "long"], pa.int64()),
        (["float", "null", "double"], pa.float64()),
        (["null", "int", "string"], pa.struct([("member0", pa.int32()), ("member1", pa.string())])),
        ({"type": "array", "items": "int"}, pa.list_(pa.field("element", pa.int32()))),
        ({"type": "map", "values": ["null", "int"]}, pa.map_(pa.string(), pa.int32())),
        (record(("a", "int"), ("b", "bytes")), pa.struct([("a", pa.int32()), ("b", pa.binary())])),
    ],
)
def test_types_are_those_of_from_avro(schema: Any, kind: pa.DataType) -> None:
    assert arrow_type(parse_schema(json.dumps(schema))) == kind


@pytest.mark.parametrize(
    ("logical", "of", "holds"),
    [
        ("uuid", {"type": "fixed", "name": "F", "size": 16}, True),
        ("uuid", {"type": "fixed", "name": "F", "size": 15}, False),
        ("uuid", {"type": "string"}, True),
        ("uuid", {"type": "bytes"}, False),
        ("duration", {"type": "fixed", "name": "F", "size": 12}, True),
        ("duration", {"type": "fixed", "name": "F", "size": 16}, False),
        ("date", {"type": "long"}, False),
        ("timestamp-millis", {"type": "int"}, False),
        ("time-micros", {"type": "int"}, False),
        ("time-millis", {"type": "long"}, False),
        ("decimal", {"type": "string", "precision": 4}, False),
        (7, {"type": "int"}, False),
    ],
)
def test_a_logical_type_that_does_not_fit_its_type_is_ignored(logical: Any, of: Any, holds: bool) -> None:
    parsed = parse_schema(json.dumps({**of, "logicalType": logical}))
    assert (parsed.kind, parsed.logical) == (of["type"], logical if holds else "")


def test_names_have_namespaces() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    schema = record(("a", inner), ("b", "E"), ("c", "x.y.E"), namespace="x.y")
    parsed = parse_schema(json.dumps(schema))
    assert [field.type.name for field in parsed.fields] == ["x.y.E"] * 3
    # An empty one is none, and not that around it.
    schema = record(("a", {**inner, "namespace": ""}), ("b", {**inner, "namespace": "z"}), namespace="x.y")
    parsed = parse_schema(json.dumps(schema))
    assert [field.type.name for field in parsed.fields] == ["E", "z.E"]


@pytest.mark.parametrize(
    ("defined", "means"),
    [(["", "x.y"], "x.y.E"), (["x.y", ""], "x.y.E"), (["", "z"], "E"), (["x.y", "z"], "x.y.E")],
)
def test_a_short_name_means_the_type_in_its_namespace_before_one_without(
    defined: list[str], means: str
) -> None:
    """As in Java's parser, which takes one without a namespace where its own has none."""
    enums = [{"type": "enum", "name": "E", "symbols": ["A"], "namespace": one} for one in defined]
    fields = [(f"f{number}", one) for number, one in enumerate(enums)]
    parsed = parse_schema(json.dumps(record(*fields, ("used", "E"), namespace="x.y")))
    assert parsed.fields[-1].type.name == means
    # So it is with a name that another schema defines.
    references = map(json.dumps, enums)
    parsed = parse_schema(json.dumps(record(("used", "E"), namespace="x.y")), references)
    assert parsed.fields[-1].type.name == means


@pytest.mark.parametrize(
    "named", [{"name": "R", "namespace": "a.b"}, {"name": "a.b.R"}, {"name": "a.b.R", "namespace": "z"}]
)
def test_aliases_are_in_the_namespace_of_the_type_that_has_them(named: dict[str, str]) -> None:
    inner = record(("v", "int")) | named | {"aliases": ["Q", "y.P"]}
    parsed = parse_schema(json.dumps(record(("r", inner), namespace="x")))
    assert parsed.fields[0].type.name == "a.b.R"
    assert parsed.fields[0].type.aliases == ("a.b.Q", "y.P")


@pytest.mark.parametrize(("kind", "of"), [("array", "items"), ("map", "values")])
def test_a_namespace_holds_in_arrays_and_maps(kind: str, of: str) -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    schema = record(("a", {"type": kind, of: inner}), ("b", {"type": kind, of: "E"}), namespace="x.y")
    parsed = parse_schema(json.dumps(schema))
    assert [field.type.items[0].name for field in parsed.fields] == ["x.y.E"] * 2


def test_a_schema_may_use_names_of_others() -> None:
    parsed = parse_schema(json.dumps(record(("a", "x.E"))), ['{"type": "fixed", "name": "x.E", "size": 3}'])
    assert parsed.fields[0].type.size == 3


def nested(depth: int, innermost: str = "int") -> Any:
    schema: Any = innermost
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def wide(levels: int) -> Any:
    """Each record has two fields of the one before: 2 ** levels types, in a short text."""
    schema: Any = "int"
    for i in range(levels):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"L{i - 1}" if i else "int"}]
        schema = {"type": "record", "name": f"L{i}", "fields": fields}
    return schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("nonsense", "does not define"),
        ({}, "without `type`"),
        (12, "where a type should be"),
        ({"type": "record", "name": "R"}, "without `fields`"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "a field without `type`"),
        ({"type": "record", "name": "R", "fields": 3}, "no list of objects"),
        ({"type": "record", "name": "", "fields": []}, "where a name should be"),
        (record(("a", "int"), ("a", "int")), "two fields of the same name"),
        (record(("a", ["null", "R"])), "contains itself"),
        (record(("a", {"type": "fixed", "name": "R", "size": 1})), "twice"),
        (["int", ["string"]], "union directly in a union"),
        (["int", "int"], "`int` twice"),
        ({"type": "enum", "name": "E", "symbols": []}, "no symbols"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "one of them twice"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "none of its symbols"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": ""}, "none of its symbols"),
        *(({"type": "fixed", "name": "F", "size": size}, "no size") for size in (-1, 2**31, True, "3", None)),
        ([{"type": "array", "items": one} for one in ("int", "long")], "`array` twice"),
        (nested(MAX_DEPTH), f"more than {MAX_DEPTH} deep"),
        (
            record(("a", {**record(("x", "int"), ("y", nested(40))), "name": "S"}), ("b", nested(40, "S"))),
            f"more than {MAX_DEPTH} deep",
        ),
        (wide(20), "more than 10,000 types"),
    ],
)
def test_schemas_that_make_no_sense_are_refused(schema: Any, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        parse_schema(json.dumps(schema))


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000, " " * 2_000_000])
def test_texts_that_are_no_json_are_refused(text: str) -> None:
    with pytest.raises(FormatError, match=r"no JSON|characters"):
        parse_schema(text)


def test_the_text_of_a_schema_has_a_limit() -> None:
    assert parse_schema('"int"'.ljust(MAX_TEXT)).kind == "int"
    with pytest.raises(FormatError, match="1,048,577 characters; at most 1,048,576 are read"):
        parse_schema('"int"'.ljust(MAX_TEXT + 1))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        # Avro's own test data, share/test/data/schema-tests.txt
        ("null", 0x63DD24E7CC258F8A),
        ("boolean", 0x9F42FC78A4D4F764),
        ("int", 0x7275D51A3F395C8F),
        ("long", 0xD054E14493F41DB7),
        ("string", 0x8F014872634503C7),
        ("bytes", 0x4FC016DAC3201965),
    ],
)
def test_fingerprints_are_those_of_avro(schema: Any, value: int) -> None:
    assert fingerprint(parse_schema(json.dumps(schema))) == value


def test_the_canonical_form_has_what_makes_the_bytes() -> None:
    schema = {
        "type": "record", "doc": "no", "namespace": "x", "aliases": ["Q"], "name": "R",
        "fields": [
            {"name": "a", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 1},
            {"name": "f", "type": {"size": 2, "type": "fixed", "name": "F"}},
            {"name": "g", "type": ["null", "F"]},
        ],
    }  # fmt: skip
    assert canonical_form(parse_schema(json.dumps(schema))) == (
        '{"name":"x.R","type":"record","fields":[{"name":"a","type":"long"},'
        '{"name":"f","type":{"name":"x.F","type":"fixed","size":2}},{"name":"g","type":["null","x.F"]}]}'
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"array","items":"int"}',
        '{"type":"map","values":{"type":"array","items":["null","string"]}}',
        '{"name":"R","type":"record","fields":[{"name":"a","type":{"type":"map","values":"long"}}]}',
    ],
)
def test_arrays_and_maps_are_in_the_canonical_form(text: str) -> None:
    assert canonical_form(parse_schema(text)) == text


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"name": "R"}, "R"),
        ({"name": "R", "namespace": "x.y"}, "x.y.R"),
        ({"name": "z.R", "namespace": "x.y"}, "z.R"),
        ({"type": "array", "items": "int"}, None),
        (None, None),
    ],
)
def test_the_name_for_a_subject_has_one_namespace(schema: Any, name: str | None) -> None:
    """Else each write would register a subject of its own, beside that of Java's producers."""
    assert _name_of(None if schema is None else json.dumps(schema)) == name


def test_the_canonical_form_has_letters_as_they_are() -> None:
    schema = {"type": "enum", "name": "E", "symbols": ["\u00e9"]}
    assert (
        canonical_form(parse_schema(json.dumps(schema))) == '{"name":"E","type":"enum","symbols":["\u00e9"]}'
    )
