"""Ids of schemas among the headers of records."""

import random

import pyarrow as pa
import pytest

from spark_kafka_native.formats import header_ids, with_header_ids
from spark_kafka_native.kafka.records.columns import HEADERS_AS_BYTES_TYPE, HEADERS_TYPE

VALUE, KEY = "__value_schema_id", "__key_schema_id"


@pytest.mark.parametrize("kind", [HEADERS_TYPE, HEADERS_AS_BYTES_TYPE])
def test_ids_stay_with_their_records(kind: pa.DataType) -> None:
    rows = [
        [],
        [(VALUE, b"1"), (KEY, b"k")],
        None,
        [("x", b"0"), (VALUE, b"2"), (VALUE, b"3")],
        [(VALUE, None)],
        [("x", None)],
    ]
    columns = pa.array(
        [None if row is None else [{"key": name, "value": data} for name, data in row] for row in rows],
        HEADERS_TYPE,
    ).cast(kind)
    found = header_ids(columns, "value")
    assert found is not None
    assert found.to_pylist() == [None, b"1", None, b"3", None, None], "the last one, as in Java"
    assert found.type == pa.binary()
    sliced = header_ids(columns.slice(3), "value")
    assert sliced is not None
    assert sliced.to_pylist() == [b"3", None, None]
    key = header_ids(columns, "key")
    assert key is not None
    assert key.to_pylist() == [None, b"k", None, None, None, None]


def test_records_without_any() -> None:
    assert header_ids(None, "value") is None
    assert header_ids(pa.array([None, None], HEADERS_TYPE), "value") is None
    assert header_ids(pa.array([[{"key": "x", "value": b""}], []], HEADERS_TYPE), "value") is None
    assert header_ids(pa.array([], HEADERS_TYPE), "value") is None


class Marking:
    """An encoder, of which only the header matters."""

    def __init__(self, header: bytes | None) -> None:
        self.header = header

    def encode(self, rows: pa.Array) -> pa.Array:
        return rows


LARGE = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))


@pytest.mark.parametrize("kind", [HEADERS_TYPE, HEADERS_AS_BYTES_TYPE, LARGE])
@pytest.mark.parametrize("header", [b"new", None])
def test_headers_as_a_loop_would_change_them(header: bytes | None, kind: pa.DataType) -> None:
    drawn = random.Random(5)
    names = [VALUE, KEY, "x", ""]
    for _ in range(50):
        rows = [
            None if drawn.random() < 0.2 else [
                (drawn.choice(names), drawn.choice([None, b"", b"old"])) for _ in range(drawn.randrange(4))
            ]
            for _ in range(drawn.randrange(8))
        ]  # fmt: skip
        payloads = [drawn.choice([None, b"", b"p"]) for _ in rows]
        expected = [
            row if payload is None else
            [one for one in row or () if one[0] != VALUE] + ([] if header is None else [(VALUE, header)])
            for row, payload in zip(rows, payloads, strict=True)
        ]  # fmt: skip
        column = pa.array([[], *rows], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
        values = pa.array([b"before", *payloads], pa.binary())
        found = with_header_ids(Marking(header), "value", values[1:], column.cast(kind)[1:])
        assert found is not None
        found.validate(full=True)
        assert found.type == kind
        pairs = [None if one is None else [tuple(pair.values()) for pair in one] for one in found.to_pylist()]
        is_text = not pa.types.is_binary(kind.value_type[0].type)
        shown = [one and [(name if is_text else name.decode(), mark) for name, mark in one] for one in pairs]
        assert [one or None for one in shown] == [one or None for one in expected]


def test_headers_where_there_were_none() -> None:
    payloads = pa.array([b"a", None, b""], pa.binary())
    found = with_header_ids(Marking(b"1"), "key", payloads, None)
    assert found is not None
    own = [{"key": KEY, "value": b"1"}]
    assert (found.type, found.to_pylist()) == (HEADERS_TYPE, [own, [], own])
    assert with_header_ids(Marking(None), "key", payloads, None) is None


def test_headers_of_a_format_without_a_registry_stay() -> None:
    class Plain:
        def encode(self, rows: pa.Array) -> pa.Array:
            return rows

    headers = pa.array([[{"key": VALUE, "value": b"1"}]], HEADERS_TYPE)
    assert with_header_ids(Plain(), "value", pa.array([b"a"], pa.binary()), headers) is headers


def test_a_header_with_a_null_name_is_left_for_the_check_of_headers() -> None:
    headers = pa.array([[{"key": None, "value": b"1"}, None]], HEADERS_TYPE)
    found = with_header_ids(Marking(b"1"), "value", pa.array([b"a"], pa.binary()), headers)
    assert found is not None
    assert found.to_pylist() == [[{"key": None, "value": b"1"}, None, {"key": VALUE, "value": b"1"}]]


def test_a_null_list_may_have_headers_behind_it() -> None:
    pairs = pa.array(
        [{"key": name, "value": name.encode()} for name in ("a", "hidden", VALUE, "b")],
        HEADERS_TYPE.value_type,
    )
    headers = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4, 4], pa.int32()), pairs, mask=pa.array([False, True, False, False])
    )
    payloads = pa.array([b"p"] * 4, pa.binary())
    own = {"key": VALUE, "value": b"new"}
    a, b = {"key": "a", "value": b"a"}, {"key": "b", "value": b"b"}
    for first in range(3):
        found = with_header_ids(Marking(b"new"), "value", payloads[first:], headers[first:])
        assert found is not None
        assert found.to_pylist() == [[a, own], [own], [b, own], [own]][first:]
    read = pa.ListArray.from_arrays(
        pa.array([0, 2, 3, 4], pa.int32()), pairs, mask=pa.array([True, False, True])
    )
    ids = header_ids(read, "value")
    assert ids is not None
    assert ids.to_pylist() == [None, VALUE.encode(), None]
