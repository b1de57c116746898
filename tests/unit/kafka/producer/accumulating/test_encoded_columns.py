"""Typed keys and values that a producer encodes, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.formats import ColumnFormat
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.producer.accumulating.encoded_columns import ColumnEncoding
from spark_kafka_native.kafka.producer.errors import RecordError
from spark_kafka_native.kafka.records.columns import HEADERS_TYPE, RecordColumns

STRUCTS = pa.array([{"id": 1}, None, {"id": 3}])
JSON = [b'{"id":1}', None, b'{"id":3}']
HEADERS = pa.array([[("a", b"1")], [], [("b", None)]], HEADERS_TYPE)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """Each time that a schema is looked up: for which payload, topic and type."""
    made: list[tuple[Any, ...]] = []
    encoder = ColumnFormat.encoder

    def look_up(given: ColumnFormat, kind: pa.DataType, payload: str, topic: str | None) -> Any:
        made.append((payload, topic, kind))
        return encoder(given, kind, payload, topic)

    monkeypatch.setattr(ColumnFormat, "encoder", look_up)
    return made


def test_only_the_named_payloads_are_encoded_and_all_other_columns_stay() -> None:
    given = pa.table(
        {
            "partition": [0, 1, 0],
            "value": pa.chunked_array([STRUCTS[:1], STRUCTS[1:]]),
            "key": ["a", None, "c"],
            "headers": HEADERS,
        }
    )
    encoded = ColumnEncoding().encode(given, "t", {"key": None, "value": "json"})
    assert isinstance(encoded, pa.Table)
    assert encoded.column_names == ["partition", "value", "key", "headers"]
    assert encoded["value"].to_pylist() == JSON
    for name in ("partition", "key", "headers"):
        assert encoded[name].to_pylist() == given[name].to_pylist()


def test_record_columns_keep_their_timestamps_and_headers() -> None:
    given = RecordColumns(
        length=3, timestamp_ms=np.array([5, 6, 7]), key=STRUCTS, value=STRUCTS, headers=HEADERS
    )
    encoded = ColumnEncoding().encode(given, "t", {"key": "json", "value": "json"})
    assert isinstance(encoded, RecordColumns)
    assert encoded.key is not None
    assert encoded.value is not None
    assert (encoded.key.to_pylist(), encoded.value.to_pylist()) == (JSON, JSON)
    assert encoded.timestamp_ms is not None
    assert encoded.timestamp_ms.tolist() == [5, 6, 7]
    assert encoded.headers == HEADERS


@pytest.mark.parametrize("headers", [None, HEADERS], ids=["no headers", "headers"])
def test_ids_of_schemas_are_added_to_the_headers(
    headers: pa.Array | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Marking:
        header = b"id"

        def encode(self, rows: pa.Array) -> pa.Array:
            return rows.cast(pa.binary())

    monkeypatch.setattr(ColumnFormat, "encoder", lambda *_: Marking())
    columns = {"value": pa.array(["a", None, "c"])} | ({} if headers is None else {"headers": headers})
    batch = ColumnEncoding().encode(pa.record_batch(columns), "t", {"value": "json"})
    assert isinstance(batch, pa.RecordBatch)
    own = [[("a", b"1")], [], [("b", None)]] if headers is not None else [[], [], []]
    marks = [[("__value_schema_id", b"id")], [], [("__value_schema_id", b"id")]]
    given = RecordColumns(length=3, value=columns["value"], headers=headers)
    records = ColumnEncoding().encode(given, "t", {"value": "json"})
    assert isinstance(records, RecordColumns)
    assert records.headers is not None
    for lists in (batch["headers"], records.headers):
        found = [[(one["key"], one["value"]) for one in row or ()] for row in lists.to_pylist()]
        assert found == [before + mark for before, mark in zip(own, marks, strict=True)]


def test_a_payload_of_nulls_alone_needs_no_schema(lookups: list[tuple[Any, ...]]) -> None:
    encoding, formats = ColumnEncoding(), {"key": "json", "value": "json"}
    records = encoding.encode(RecordColumns(length=3, value=STRUCTS), "t", formats)
    assert isinstance(records, RecordColumns)
    assert records.key is None
    assert records.value is not None
    assert records.value.to_pylist() == JSON
    batch = encoding.encode(pa.record_batch({"key": pa.nulls(3), "value": STRUCTS}), "t", formats)
    assert isinstance(batch, pa.RecordBatch)
    assert (batch["key"].null_count, batch["value"].to_pylist()) == (3, JSON)
    assert [payload for payload, _, _ in lookups] == ["value"]


def test_each_topic_payload_and_type_has_a_schema_of_its_own(lookups: list[tuple[Any, ...]]) -> None:
    encoding, other = ColumnEncoding(), pa.array([{"name": "x"}])
    both = pa.record_batch({"key": STRUCTS, "value": STRUCTS})
    for topic in ("t", "u", "t"):
        encoding.encode(both, topic, {"key": "json", "value": "json"})
    changed = encoding.encode(pa.record_batch({"value": other}), "t", {"value": "json"})
    assert isinstance(changed, pa.RecordBatch)
    assert changed["value"].to_pylist() == [b'{"name":"x"}']
    assert lookups == [
        ("key", "t", STRUCTS.type),
        ("value", "t", STRUCTS.type),
        ("key", "u", STRUCTS.type),
        ("value", "u", STRUCTS.type),
        ("value", "t", other.type),
    ]


@pytest.mark.parametrize("name", ["json", "avro", "csv"])
def test_a_column_without_values_has_the_type_that_is_given(
    name: str, lookups: list[tuple[Any, ...]]
) -> None:
    """Data frames call it null, and another batch has its type."""
    ddl = "id bigint, n string" + (
        "" if name == "csv" else ", s struct<a: bigint, b: date>, l array<struct<x: int>>, m map<string, int>"
    )
    kind = ColumnFormat(name, ddl).type
    assert kind is not None
    of_nulls = {
        "id": pa.int64(), "n": pa.null(), "s": pa.struct([("a", pa.int64()), ("b", pa.null())]),
        "l": pa.list_(pa.struct([("x", pa.null())])), "m": pa.map_(pa.string(), pa.null()),
    }  # fmt: skip
    row = {"id": 1, "n": None, "s": {"a": 2, "b": None}, "l": [{"x": None}, None], "m": [("k", None)]}
    row = {one.name: row[one.name] for one in kind}
    given = pa.array([row, None, {**row, "id": 3}], pa.struct([(one, of_nulls[one]) for one in row]))
    encoding = ColumnEncoding()
    for start in (0, 1):
        rows = [given[start:], pa.array(given.to_pylist(), kind)[start:]]
        made = [
            encoding.encode(pa.table({"value": one}), "t", {"value": ColumnFormat(name, ddl)})["value"]
            for one in rows
        ]
        assert made[0].to_pylist() == made[1].to_pylist()
        assert made[0].null_count == 1
    assert lookups == [("value", "t", kind)]


def test_a_column_without_values_where_no_null_may_be() -> None:
    given = pa.table({"value": pa.array([{"n": None}], pa.struct([("n", pa.null())]))})
    for kind in (pa.struct([pa.field("n", pa.int64(), nullable=False)]), pa.struct([("other", pa.int64())])):
        with pytest.raises(ConfigError, match="the rows are struct<n: null>, and the schema says struct<"):
            ColumnEncoding().encode(given, "t", {"value": ColumnFormat("json", kind)})


@pytest.mark.parametrize("place", ["struct", "list", "map"])
def test_chunks_with_more_words_than_their_dictionaries_can_number(place: str) -> None:
    """It was said that the column has more than 2 GiB."""

    def chunk(number: int) -> pa.Array:
        words = pa.array([f"{number}-{word}" for word in range(100)])
        column = pa.DictionaryArray.from_arrays(pa.array([*range(99), None], pa.int8()), words)
        ends = pa.array(range(101), pa.int32())
        if place == "list":
            column = pa.ListArray.from_arrays(ends, column)
        if place == "map":
            column = pa.MapArray.from_arrays(ends, pa.array(["k"] * 100), column)
        return pa.StructArray.from_arrays([column, pa.nulls(100)], names=["w", "n"])[number:]

    chunks = [chunk(number) for number in range(3)]
    column = pa.chunked_array(chunks)
    with pytest.raises(pa.ArrowInvalid):
        column.combine_chunks()
    encoded = ColumnEncoding().encode(pa.table({"value": column}), "t", {"value": "json"})
    alone = [
        ColumnEncoding().encode(pa.table({"value": one}), "t", {"value": "json"})["value"].to_pylist()
        for one in chunks
    ]
    assert encoded["value"].to_pylist() == [row for rows in alone for row in rows]
    assert b"2-98" in encoded["value"].to_pylist()[-2]


def test_a_column_in_chunks_that_can_not_be_taken_says_why_and_which_it_is() -> None:
    """It was joined as it is, and the formats got what they do not take."""
    views = pa.array([[1]] * 100, pa.list_view(pa.int8()))
    words = [pa.array([f"{number}-{word}" for word in range(100)]) for number in range(2)]
    indices = pa.array(range(100), pa.int8())
    chunks = [
        pa.StructArray.from_arrays([pa.DictionaryArray.from_arrays(indices, one), views], names=["w", "v"])
        for one in words
    ]
    with pytest.raises(RecordError, match=r"^column 'value': list_view<item: int8> is not supported: make"):
        ColumnEncoding().encode(pa.table({"value": pa.chunked_array(chunks)}), "t", {"value": "json"})


def test_two_columns_of_the_name_are_refused() -> None:
    twice = pa.record_batch([STRUCTS, STRUCTS], names=["value", "value"])
    with pytest.raises(RecordError, match="value_format: there are 2 columns 'value'"):
        ColumnEncoding().encode(twice, "t", {"value": "json"})
    with pytest.raises(RecordError, match="key_format: there are 0 columns 'key' among value"):
        ColumnEncoding().encode(pa.record_batch({"value": STRUCTS}), "t", {"key": "json"})


def test_a_type_that_the_format_can_not_write_names_the_payload() -> None:
    with pytest.raises(ConfigError, match="value_format=string"):
        ColumnEncoding().encode(pa.record_batch({"value": STRUCTS}), "t", {"value": "string"})


@pytest.mark.parametrize("payload", ["key", "value"])
def test_a_row_that_can_not_be_encoded_is_named(payload: str) -> None:
    rows = pa.array([{"text": "x"}, {"text": "x,y"}])
    given = ColumnFormat("csv", settings={"quote": ""})
    with pytest.raises(RecordError, match=f"row 1: the {payload} can't be encoded: a text has") as raised:
        ColumnEncoding().encode(RecordColumns(length=2, key=rows, value=rows), "t", {payload: given})
    assert raised.value.row == 1
