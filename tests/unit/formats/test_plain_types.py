"""Columns of other libraries as the types that formats take."""

import datetime as dt
from typing import Any

import polars
import pyarrow as pa
import pytest

from spark_kafka_native.formats import FormatError, plain_types
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


NULL = pa.struct([("n", pa.null())])


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (pa.struct([("a", NULL), ("b", pa.string_view())]), {"a": {"n": None}, "b": "x"}),
        (pa.list_(pa.struct([("s", pa.large_string()), ("n", pa.null())])), [{"s": "x", "n": None}]),
        (pa.list_(pa.struct([("s", pa.uint8()), ("n", pa.null())]), 1), [{"s": 1, "n": None}]),
        (pa.struct([("a", pa.list_(pa.null())), ("b", pa.string_view())]), {"a": [None, None], "b": "x"}),
        (pa.map_(pa.large_string(), NULL), [("k", {"n": None})]),
    ],
    ids=str,
)
def test_a_slice_with_a_field_without_values(kind: pa.DataType, row: Any) -> None:
    column = pa.array([{"c": row}, {"c": None}, None, {"c": row}] * 2, pa.struct([("c", kind)]))
    for start in range(len(column)):
        made = as_plain(column[start:])
        made.validate(full=True)
        assert made.to_pylist() == column[start:].to_pylist()


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
def test_views_that_share_more_than_2_gib(kind: pa.DataType) -> None:
    one = pa.array([b"x" * 2**20]).cast(kind)
    column = pa.concat_arrays([one] * 2_049)
    for given in (column, pa.StructArray.from_arrays([column], names=["a"])):
        with pytest.raises(FormatError, match=f"{kind} has more than 2 GiB: write fewer rows at once"):
            as_plain(given)
    assert len(as_plain(column[2_040:])) == 9


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
def test_bytes_of_views_are_those_of_the_slice(kind: pa.DataType) -> None:
    column = pa.array([b"a", b"bb", b"", b"x" * 100]).cast(kind)
    found = [plain_types._view_bytes(column[start:stop]) for start, stop in [(0, 4), (0, 2), (1, 3), (3, 4)]]
    assert found == [103, 3, 2, 100]
    assert plain_types._view_bytes(column[4:]) == 0
    shared = pa.concat_arrays([pa.array([b"x" * 2**20]).cast(kind)] * 4_097)
    assert plain_types._view_bytes(shared) == 4_097 * 2**20  # 32 bits do not count them


def test_a_slice_far_inside_of_large_strings() -> None:
    offsets = pa.array([2**31 + 2, 2**31 + 5, 2**31 + 5], pa.int64()).buffers()[1]
    abc = pa.py_buffer(b"abc")
    text = pa.foreign_buffer(abc.address - 2**31 - 2, 2**31 + 5, abc)
    column = pa.Array.from_buffers(pa.large_string(), 2, [None, offsets, text])
    assert as_plain(column).to_pylist() == ["abc", ""]
    assert as_plain(column[1:]).to_pylist() == [""]


def test_a_dictionary_without_words_below_a_null() -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    for given in (
        pa.array([None], pa.struct([("c", kind)])),
        pa.array([None], pa.list_(pa.struct([("c", kind)]), 2)),
        pa.array([[None], None, []], pa.list_(pa.struct([("c", kind)]))),
    ):
        assert as_plain(given).to_pylist() == given.to_pylist()


@pytest.mark.parametrize("words", [pa.string_view(), pa.large_string()], ids=str)
def test_words_of_any_type(words: pa.DataType) -> None:
    column = pa.DictionaryArray.from_arrays(
        pa.array([0, None, 1, 2], pa.uint32()), pa.array(["a", "b", None], words)
    )
    for given in (column, column[1:], pa.StructArray.from_arrays([column], names=["c"])):
        assert as_plain(given).to_pylist() == given.to_pylist()
