"""Columns of other libraries as the types that formats take."""

import datetime as dt
from typing import Any

import polars
import pyarrow as pa
import pytest

from spark_kafka_native.formats import FormatError
from spark_kafka_native.formats.plain_types import as_plain

UNION = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])])


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (pa.array(["a", None], pa.large_string()), pa.string()),
        (pa.array(["a"], pa.string_view()), pa.string()),
        (pa.array([b"abc"], pa.binary(3)), pa.binary()),
        (pa.array(["a", "a"]).dictionary_encode(), pa.string()),
        (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0)),
        (pa.array([2**32 - 1], pa.uint32()), pa.int64()),
        (pa.array([1_000], pa.timestamp("ns", "UTC")), pa.timestamp("us", "UTC")),
        (pa.array([[1]], pa.list_(pa.uint8(), 1)), pa.list_(pa.int16())),
        (
            pa.array([[("k", "v")]], pa.map_(pa.string(), pa.large_string())),
            pa.map_(pa.string(), pa.string()),
        ),
        (pa.array([{"a": "x"}], pa.struct([("a", pa.large_string())])), pa.struct([("a", pa.string())])),
        (UNION, UNION.type),
    ],
    ids=lambda one: str(one.type if isinstance(one, pa.Array) else one),
)
def test_a_type_that_formats_take(given: pa.Array, kind: pa.DataType) -> None:
    made = as_plain(given)
    assert made.type == kind
    assert made.to_pylist() == given.to_pylist()


def test_a_data_frame_of_polars() -> None:
    rows: list[dict[str, Any]] = [
        {"a": 1, "b": "x", "c": [dt.datetime(2024, 1, 1)]},
        {"a": 2, "b": None, "c": None},
    ]
    column = pa.table(polars.DataFrame({"value": rows})).column("value").combine_chunks()
    assert as_plain(column).to_pylist() == rows


def test_values_that_would_be_lost() -> None:
    with pytest.raises(FormatError, match=r"timestamp\[ns\] can't be taken as timestamp\[us\]"):
        as_plain(pa.array([1_001], pa.timestamp("ns")))


@pytest.mark.parametrize("kind", [pa.list_view(pa.int8()), pa.large_list_view(pa.int8())], ids=str)
def test_views_of_lists_which_arrow_casts_wrongly(kind: pa.DataType) -> None:
    views = pa.array([[1, None], None, [2, 3], [4]], kind)
    for column in (views, views[1:], pa.StructArray.from_arrays([views], names=["a"])):
        with pytest.raises(FormatError, match="list_view<item: int8> is not supported: make it a list<int8>"):
            as_plain(column)
