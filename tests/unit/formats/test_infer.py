"""Types for payloads without a schema. tests/spark/test_formats.py compares with Spark's own inference."""

import json

import pyarrow as pa
import pytest

from spark_kafka_native.formats import FormatError, InferringFormat, load_format
from spark_kafka_native.formats.infer import MAX_DEPTH, MAX_FIELDS, infer_csv, infer_json


def json_type(*payloads: str | bytes) -> str:
    return str(
        infer_json(pa.array([one.encode() if isinstance(one, str) else one for one in payloads], pa.binary()))
    )


@pytest.mark.parametrize(
    ("payloads", "kind"),
    [
        (['{"b":1,"a":"x","c":true,"d":1.5}'], "struct<a: string, b: int64, c: bool, d: double>"),
        (['{"a":1}', '{"a":2.5}'], "struct<a: double>"),
        (['{"a":1}', '{"a":99999999999999999999}'], "struct<a: decimal128(20, 0)>"),
        (['{"a":1}', '{"a":9999999999999999999999}'], "struct<a: decimal128(22, 0)>"),
        (['{"a":9999999999999999999999}', '{"a":99999999999999999999}'], "struct<a: decimal128(22, 0)>"),
        (['{"a":-9223372036854775808}'], "struct<a: int64>"),
        (['{"a":9223372036854775808}'], "struct<a: decimal128(19, 0)>"),
        (['{"a":-9223372036854775809}'], "struct<a: decimal128(19, 0)>"),
        (['{"a":9223372036854775808}', '{"a":1}'], "struct<a: decimal128(20, 0)>"),
        (['{"a":9223372036854775808}', '{"a":1.5}'], "struct<a: double>"),
        ([f'{{"a":-{"9" * 38}}}'], "struct<a: decimal128(38, 0)>"),
        ([f'{{"a":{"9" * 39}}}'], "struct<a: double>"),
        (['{"a":1}', '{"a":"x"}'], "struct<a: string>"),
        (['{"a":true}', '{"a":1}'], "struct<a: string>"),
        (['{"a":null}', '{"a":""}'], "struct<a: string>"),
        (['{"a":null}', '{"a":1}'], "struct<a: int64>"),
        (['{"a":[]}', '{"a":[1,2.5]}', '{"a":null}'], "struct<a: list<item: double>>"),
        (['{"a":[1,"x"]}'], "struct<a: list<item: string>>"),
        (['{"a":[]}'], "struct<a: list<item: string>>"),
        (['{"a":[{"x":1}]}', '{"a":[{"y":2}]}'], "struct<a: list<item: struct<x: int64, y: int64>>>"),
        (
            ['{"a":{"x":1}}', '{"a":{"x":null,"y":[true]}}'],
            "struct<a: struct<x: int64, y: list<item: bool>>>",
        ),
        (['{"a":{"x":1}}', '{"a":[1]}'], "struct<a: string>"),
        (['{"a":1}', '{"a":{"x":1}}'], "struct<a: string>"),
        (['{"a":[1]}', '{"a":{"x":1}}'], "struct<a: string>"),
        (['{"a":{}}'], "struct<a: string>"),
        (['{"a":{}}', '{"a":1}'], "struct<a: string>"),  # an object is no number, with or without fields
        (['{"a":[{},null]}', '{"a":[{"b":1}]}'], "struct<a: list<item: struct<b: int64>>>"),
        (['{"a":[{}]}', '{"a":null}'], "struct<a: list<item: string>>"),
        (['{"a":1}', '{"A":2}'], "struct<A: int64, a: int64>"),
        (['{"a":1}', "bad", "[1]", '"x"', "", b"\xff", "[" * 100_000], "struct<a: int64>"),
    ],
)
def test_json(payloads: list[str], kind: str) -> None:
    assert json_type(*payloads) == kind


@pytest.mark.parametrize(
    ("payloads", "text"),
    [
        ([], "none of 0 sampled payloads is a JSON object"),
        (["bad", "12"], "none of 2 sampled payloads is a JSON object"),
        (["{}"], "none of 1 sampled payloads is a JSON object with a field"),
    ],
)
def test_nothing_to_infer_from(payloads: list[str], text: str) -> None:
    with pytest.raises(FormatError, match=text):
        json_type(*payloads)


@pytest.mark.parametrize(
    "payload",
    [b'{"\\ud800": 1}', b'{"x": [{"\\udfff": 1}]}', b'\xef\xbb\xbf{"x": 1}', '{"x": 1}'.encode("utf-16")],
)
def test_what_a_read_refuses_does_not_count(payload: bytes) -> None:
    assert json_type(payload, '{"a": 1}') == "struct<a: int64>"


def test_names_that_are_data() -> None:
    keys = [json.dumps({"by_user": {f"u{i}": 1}}) for i in range(MAX_FIELDS + 1)]
    with pytest.raises(FormatError, match="more than 2,000 fields: names seem to be data"):
        json_type(*keys)


@pytest.mark.parametrize("count", [MAX_FIELDS, MAX_FIELDS + 1])
@pytest.mark.parametrize(
    ("before", "after"),
    [('{"a": ', "}"), ('{"a": [', "]}"), ('{"a": [[], [', "]]}"), ('{"a": {"b": [', "]}}")],
)
def test_fields_count_wherever_they_stand(count: int, before: str, after: str) -> None:
    around = before.count('"') // 2
    fields = json.dumps({f"u{i}": 1 for i in range(count - around)})
    payload = f"{before}{fields}{after}"
    if count <= MAX_FIELDS:
        assert json_type(payload).count(": int64") == count - around
        return
    with pytest.raises(FormatError, match="more than 2,000 fields: names seem to be data"):
        json_type(payload)


@pytest.mark.parametrize("count", [MAX_FIELDS, MAX_FIELDS + 1, MAX_FIELDS + 9])
def test_a_line_of_too_many_values_has_no_type(count: int) -> None:
    line = pa.array([b",".join([b"1"] * count)])
    if count <= MAX_FIELDS:
        assert infer_csv(line, {}).num_fields == count
        return
    with pytest.raises(FormatError, match="more than 2,000 fields"):
        infer_csv(line, {})


def test_a_deep_type_is_bounded() -> None:
    for depth in (MAX_DEPTH, MAX_DEPTH + 1, MAX_DEPTH + 2, 100):
        deep = '{"a":' * depth + "1" + "}" * depth
        assert json_type('{"b":1}', deep).count("struct<a") == min(depth, MAX_DEPTH + 1)
        assert json_type('{"a":' + "[" * depth + "1" + "]" * depth + "}").count("list<") == MAX_DEPTH
    for depth in (500, 900, 5_000, 100_000):  # Python's own parser gives up somewhere in between
        deep = '{"a":' * depth + "1" + "}" * depth
        assert json_type('{"b":1}', deep).count("struct<a") <= MAX_DEPTH + 1
        assert json_type('{"b":1}', '{"a":' + "[" * depth + "]" * depth + "}").count("list<") <= MAX_DEPTH + 1


@pytest.mark.parametrize(
    ("lines", "options", "kinds"),
    [
        (
            ["1,1.5,x,true,2024-01-01,2024-01-01T00:00:00Z,"],
            {},
            "int64 double string bool date32[day] T string",
        ),
        (["1,1,1", "2.5,x,99999999999999999999"], {}, "double string decimal128(20, 0)"),
        (["2024-01-01", "2024-01-01 10:00"], {}, "T"),
        (["2024-01-01 10:00", "2024-01-01"], {}, "T"),
        (["1,Inf", "-Inf,2"], {}, "double double"),
        (["2024-01-01", "1"], {}, "string"),
        (['"a,b",1', "c", "", "1,2,3"], {}, "string int64 int64"),
        (["NA;1", "2;NA"], {"sep": ";", "nullvalue": "NA"}, "int64 int64"),
        (['"broken,1', "1"], {}, "int64"),
        (["+1,NaN"], {}, "int64 double"),
    ],
)
def test_csv(lines: list[str], options: dict[str, str], kinds: str) -> None:
    found = infer_csv(pa.array([line.encode() for line in lines], pa.binary()), options)
    assert " ".join(str(field.type) for field in found).replace("timestamp[us, tz=UTC]", "T") == kinds
    assert found.names == [f"_c{place}" for place in range(len(found.names))]


def test_an_inferred_type_reads_its_sample() -> None:
    payloads = pa.array([b"1,2.5,x,2024-01-01,true", b"2,3,,,FALSE"], pa.binary())
    csv = load_format("csv")
    assert isinstance(csv, InferringFormat)
    kind = csv.infer(payloads, {})
    assert csv.decoder(kind, {}).decode(payloads).bad.rows == ()


def test_no_line_of_csv() -> None:
    with pytest.raises(FormatError, match="none of 1 sampled payloads is a line of CSV"):
        infer_csv(pa.array([b""], pa.binary()), {})
    with pytest.raises(FormatError, match="more than 2,000 fields"):
        infer_csv(pa.array([b"," * 100_000], pa.binary()), {})
