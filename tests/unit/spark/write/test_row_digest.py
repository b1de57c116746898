"""The digest of a task's rows: the same for the same rows in any order and any cut, else another."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_native.spark.write.worker.transactional_task import RowDigest

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ROWS: list[dict[str, object]] = [
    {"key": b"k", "value": b"v", "headers": [{"key": "a", "value": b"1"}], "partition": 0, "timestamp": 7},
    {"key": None, "value": b"", "headers": [], "partition": None, "timestamp": None},
    {"key": b"", "value": None, "headers": None, "partition": 1, "timestamp": 8},
    {
        "key": b"k",
        "value": b"v",
        "headers": [{"key": "a", "value": None}, {"key": "b", "value": b""}],
        "partition": 1,
        "timestamp": 8,
    },
]
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


def digest(rows: list[dict[str, object]], cut: int = 100, names: list[str] | None = None) -> tuple[int, int]:
    told = RowDigest()
    whole = pa.RecordBatch.from_pylist(rows, SCHEMA).select(names or SCHEMA.names)
    for start in range(0, len(rows), cut):
        told.add(whole.slice(start, cut))
    return told.rows, told.hash


def test_order_and_cuts_do_not_count() -> None:
    expected = digest(ROWS)
    assert expected[0] == 4
    assert digest(ROWS[::-1]) == expected
    assert {digest(ROWS, cut) for cut in (1, 2, 3)} == {expected}


@pytest.mark.parametrize(
    ("row", "changed"),
    [
        (0, {"key": b"K"}),
        (0, {"value": b"w"}),
        (0, {"value": None}),
        (1, {"value": None}),
        (1, {"headers": None}),
        (2, {"key": None}),
        (2, {"partition": 2}),
        (0, {"timestamp": 9}),
        (1, {"timestamp": 0}),
        (0, {"headers": [{"key": "a", "value": b"2"}]}),
        (0, {"headers": [{"key": "b", "value": b"1"}]}),
        (0, {"headers": [{"key": "a", "value": b"1"}] * 2}),
        (3, {"headers": [{"key": "b", "value": b""}, {"key": "a", "value": None}]}),
        (0, {"key": b"v", "value": b"k"}),
    ],
)
def test_anything_else_does(row: int, changed: dict[str, object]) -> None:
    rows = [dict(one) for one in ROWS]
    rows[row] |= changed
    assert digest(rows) != digest(ROWS)


def test_a_row_that_comes_twice_counts_twice() -> None:
    assert digest([ROWS[0]] * 2) != digest([ROWS[0]])
    assert digest([ROWS[0]] * 2)[1] != digest([ROWS[1]] * 2)[1]


def test_strings_are_their_bytes() -> None:
    texts, data = RowDigest(), RowDigest()
    texts.add(pa.record_batch({"value": pa.array(["ä", None, ""], pa.string())}))
    data.add(pa.record_batch({"value": pa.array(["ä".encode(), None, b""], pa.large_binary())}))
    assert (texts.rows, texts.hash) == (data.rows, data.hash)


def test_large_offsets_do_not_count() -> None:
    """They come with spark.sql.execution.arrow.useLargeVarTypes, which may be set before a replay."""
    large = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    kinds = {"key": pa.large_binary(), "value": pa.large_string(), "headers": large}
    schema = pa.schema([(one.name, kinds.get(one.name, one.type)) for one in SCHEMA])
    found = RowDigest()
    whole = pa.RecordBatch.from_pylist(ROWS, SCHEMA)
    wide = pa.RecordBatch.from_arrays(
        [column.cast(kind) for column, kind in zip(whole, schema.types, strict=True)], schema=schema
    )
    for start in (0, 1):
        found.add(wide.slice(start * 3, 3))
    assert (found.rows, found.hash) == digest(ROWS)


def test_no_rows_and_no_columns() -> None:
    told = RowDigest()
    told.add(pa.record_batch({"value": pa.array([], pa.binary()), "headers": pa.array([], HEADERS)}))
    assert (told.rows, told.hash) == (0, 0)


def test_the_digest_is_that_of_earlier_versions() -> None:
    # It is kept in markers: a replay by a newer version must know the rows again.
    digest = RowDigest()
    digest.add(pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA))
    assert (digest.rows, digest.hash) == (4, 0x511B5AC2D23DFD62)
