"""Ids of schemas among the headers of records."""

import pyarrow as pa
import pytest

from spark_kafka_native.formats import header_ids
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
    assert found.to_pylist() == [None, b"1", None, b"2", None, None]
    assert found.type == pa.binary()
    sliced = header_ids(columns.slice(3), "value")
    assert sliced is not None
    assert sliced.to_pylist() == [b"2", None, None]
    key = header_ids(columns, "key")
    assert key is not None
    assert key.to_pylist() == [None, b"k", None, None, None, None]


def test_records_without_any() -> None:
    assert header_ids(None, "value") is None
    assert header_ids(pa.array([None, None], HEADERS_TYPE), "value") is None
    assert header_ids(pa.array([[{"key": "x", "value": b""}], []], HEADERS_TYPE), "value") is None
    assert header_ids(pa.array([], HEADERS_TYPE), "value") is None
