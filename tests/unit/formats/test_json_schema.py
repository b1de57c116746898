"""JSON Schema as types, and types as JSON Schema."""

import json
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_native.formats import FormatError
from spark_kafka_native.formats.json.json_schema import json_schema_of, type_of_json_schema

UTC = pa.timestamp("us", "UTC")


def field_type(schema: Any, **more: Any) -> pa.DataType:
    """The type of the field ``a`` with this schema."""
    kind = type_of_json_schema(json.dumps({"type": "object", "properties": {"a": schema}} | more))
    return kind.field("a").type


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": "boolean"}, pa.bool_()),
        ({"type": "string"}, pa.string()),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "string", "format": "date-time"}, UTC),
        ({"type": "string", "format": "email"}, pa.string()),
        ({"type": "string", "contentEncoding": "base64"}, pa.binary()),
        ({"type": "string", "contentEncoding": "base64url"}, pa.string()),
        ({"type": ["null", "integer"]}, pa.int64()),
        ({"type": ["integer", "number", "null"]}, pa.float64()),
        ({"type": ["integer", "string"]}, pa.string()),
        ({"type": [{"type": "string"}, "null"]}, pa.string()),
        ({"type": "null"}, pa.string()),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, pa.int64()),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, pa.int64()),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, pa.string()),
        ({"type": "integer", "anyOf": [{"minimum": 10}, {"maximum": 0}]}, pa.int64()),
        ({"anyOf": [{"minimum": 10}, {"maximum": 0}]}, pa.string()),
        ({"type": "string", "oneOf": [{"format": "date"}, {"minLength": 3}]}, pa.string()),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            pa.struct([("a", pa.int64())]),
        ),
        (
            {
                "properties": {"a": {"type": "integer"}},
                "oneOf": [{"properties": {"b": {"type": "string"}}}, {"properties": {"c": {}}}],
            },
            pa.string(),
        ),
        ({"enum": ["a", "b"]}, pa.string()),
        ({"enum": [1, "b"]}, pa.string()),
        ({"type": "array", "items": {"type": "integer"}}, pa.list_(pa.int64())),
        ({"type": "array"}, pa.list_(pa.string())),
        ({"type": "array", "items": [{"type": "integer"}]}, pa.list_(pa.string())),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, pa.map_(pa.string(), pa.int64())),
        ({"type": "object"}, pa.string()),
        ({"type": "object", "additionalProperties": False}, pa.string()),
        ({"properties": {"b": {"type": "integer"}}}, pa.struct([("b", pa.int64())])),
        ({"allOf": [{"properties": {"b": {}}}, {"type": "object"}]}, pa.struct([("b", pa.string())])),
        (True, pa.string()),
        ({}, pa.string()),
        ({"type": 7}, pa.string()),
    ],
)  # fmt: skip
def test_types_of_fields(schema: Any, kind: pa.DataType) -> None:
    assert field_type(schema) == kind


def test_references() -> None:
    point = {"type": "object", "properties": {"x": {"type": "number"}}}
    wanted = pa.struct([("x", pa.float64())])
    assert field_type({"$ref": "#/definitions/p"}, definitions={"p": point}) == wanted
    assert field_type({"$ref": "#/$defs/a~1b~0"}, **{"$defs": {"a/b~": point}}) == wanted
    outer = {
        "type": "object",
        "properties": {"a": {"$ref": "http://x/p.json"}, "b": {"$ref": "p#/properties/x"}},
    }
    kind = type_of_json_schema(
        json.dumps(outer), {"http://x/p.json": json.dumps(point), "p": json.dumps(point)}
    )
    assert kind == pa.struct([("a", wanted), ("b", pa.float64())])


@pytest.mark.parametrize(
    ("draft", "count"), [("http://json-schema.org/draft-07/schema#", 1), (None, 2)], ids=["draft 7", "none"]
)
@pytest.mark.parametrize("siblings", ["properties", "allOf"])
def test_fields_beside_a_reference_count_since_draft_2019(
    draft: str | None, count: int, siblings: str
) -> None:
    more: Any = {"y": {"type": "integer"}}
    schema = {
        "$ref": "#/$defs/base",
        "$defs": {"base": {"properties": {"x": {"type": "string"}}}},
        siblings: more if siblings == "properties" else [{"properties": more}],
    }
    kind = type_of_json_schema(json.dumps(schema if draft is None else {"$schema": draft, **schema}))
    assert kind == pa.struct([("x", pa.string()), ("y", pa.int64())][:count])


def test_a_reference_within_another_document_is_to_that_document() -> None:
    other = {"$ref": "#/definitions/i", "definitions": {"i": {"type": "integer"}}}
    kind = type_of_json_schema('{"properties": {"a": {"$ref": "o"}}}', {"o": json.dumps(other)})
    assert kind.field("a").type == pa.int64()


@pytest.mark.parametrize(
    "following",
    [
        {"$ref": "#"},
        {"oneOf": [{"type": "null"}, {"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    ],
    ids=["always", "or null", "any of"],
)
def test_objects_in_a_circle_end_in_their_text(following: Any) -> None:
    node = {"type": "object", "properties": {"next": following, "v": {"type": "integer"}}}
    inner = pa.struct([("next", pa.string()), ("v", pa.int64())])
    assert type_of_json_schema(json.dumps(node)) == pa.struct([("next", inner), ("v", pa.int64())])


def test_a_circle_by_way_of_another_object_ends_in_its_text_too() -> None:
    to = lambda name: {"properties": {name: {"$ref": f"#/$defs/{name}"}}}  # noqa: E731
    schema = to("a") | {"$defs": {"a": to("b"), "b": to("a")}}
    of_b = pa.struct([("a", pa.string())])
    of_a = pa.struct([("b", of_b)])
    assert type_of_json_schema(json.dumps(schema)) == pa.struct([("a", of_a)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"type": "string"}', "not that of an object"),
        ("true", "not that of an object"),
        ('{"type": "object"}', "not that of an object"),
        ('{"properties": {"a": {"$ref": "http://x"}}}', "not among its references"),
        ('{"properties": {"a": {"$ref": "#/none"}}}', "has no part '#/none'"),
        ('{"properties": {"a": {"$ref": "#/properties/a/b"}}}', "has no part"),
    ],
)
def test_schemas_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        type_of_json_schema(text)


def test_references_that_multiply_are_refused() -> None:
    levels = {f"l{i}": {"properties": {n: {"$ref": f"#/$defs/l{i + 1}"} for n in "ab"}} for i in range(40)}
    levels["l40"] = {"type": "integer"}  # type: ignore[dict-item]
    with pytest.raises(FormatError, match="more than 10000 parts"):
        field_type({"$ref": "#/$defs/l0"}, **{"$defs": levels})


def test_a_deep_schema_is_refused() -> None:
    schema: Any = {"type": "integer"}
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    with pytest.raises(FormatError, match="nested too deep"):
        field_type(schema)


def test_a_type_and_back() -> None:
    kind = pa.struct(
        [
            ("i", pa.int64()), ("f", pa.float64()), ("b", pa.bool_()), ("s", pa.string()), ("d", pa.date32()),
            ("t", UTC), ("x", pa.binary()), ("l", pa.list_(pa.struct([("y", pa.int64())]))),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )  # fmt: skip
    assert type_of_json_schema(json_schema_of(kind, "title")) == kind


def test_elements_of_arrays_and_maps_may_be_null() -> None:
    """`JsonEncoder` leaves out null fields only: other readers check the payloads against the schema."""
    kind = pa.struct([("l", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.string()))])
    properties = json.loads(json_schema_of(kind, "title"))["properties"]
    assert properties["l"]["items"] == {"oneOf": [{"type": "null"}, {"type": "integer"}]}
    assert properties["m"]["additionalProperties"] == {"oneOf": [{"type": "null"}, {"type": "string"}]}


def test_types_that_json_schema_does_not_tell_apart() -> None:
    kind = pa.struct(
        [("a", pa.int8()), ("b", pa.float32()), ("c", pa.decimal128(5, 2)), ("d", pa.timestamp("us"))]
    )
    wider = pa.struct([("a", pa.int64()), ("b", pa.float64()), ("c", pa.float64()), ("d", pa.string())])
    assert type_of_json_schema(json_schema_of(kind, "title")) == wider


@pytest.mark.parametrize(
    ("name", "pointer"), [("a/b", "a~1b"), ("a~b", "a~0b"), ("~1", "~01"), ("~0/", "~00~1")], ids=str
)
def test_a_name_in_a_reference_may_be_escaped(name: str, pointer: str) -> None:
    """RFC 6901: `~01` is the name `~1`, not one with a slash."""
    parts = {name: {"type": "integer"}, "/": {"type": "boolean"}, "a": {"type": "string"}}
    schema = {
        "type": "object",
        "properties": {"x": {"$ref": f"#/$defs/{pointer}"}},
        "$defs": parts,
    }
    assert type_of_json_schema(json.dumps(schema)) == pa.struct([("x", pa.int64())])
