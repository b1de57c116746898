"""What the encoder accepts, refuses and foretells; every case with both kernels."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from support.record_batches import EACH_KERNEL, batch, record, using_kernel

from spark_kafka_native.kafka.records import numpy_kernel
from spark_kafka_native.kafka.records.batch import read_batch_headers
from spark_kafka_native.kafka.records.columns import HEADERS_TYPE, RecordColumns
from spark_kafka_native.kafka.records.compression import Codec
from spark_kafka_native.kafka.records.crc32c import crc32c
from spark_kafka_native.kafka.records.decode import decode_record_set
from spark_kafka_native.kafka.records.encode import (
    BATCH_OVERHEAD_BYTES,
    encode_record_batch,
    record_sizes,
    set_producer,
)

pytestmark = EACH_KERNEL


@pytest.fixture(autouse=True)
def _kernel(kernel):
    with using_kernel(kernel):
        yield


def of_values(*values: bytes | None, **more) -> RecordColumns:
    return RecordColumns(length=len(values), value=pa.array(values, pa.binary()), **more)


def test_the_bytes_are_those_written_by_hand():
    headers = pa.array([[{"key": "a", "value": None}, {"key": "", "value": b"xy"}], None], HEADERS_TYPE)
    columns = of_values(b"v" * 70, None, timestamp_ms=np.array([1000, 990]), headers=headers)
    data = encode_record_batch(columns)
    expected = batch(
        [record(0, b"v" * 70, headers=[(b"a", None), (b"", b"xy")]), record(1, None, timestamp_delta=-10)]
    )
    # The leader epoch, which no producer knows, is not -1 in the hand-written batch.
    assert bytes(data[:12]) + bytes(4) + bytes(data[16:]) == expected
    assert isinstance(data, memoryview)
    assert not data.readonly


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_every_binary_kind_and_slices(kind):
    array = pa.array(["zero", "one", None, "", "ünf", "six"], kind).slice(1, 4)
    columns = RecordColumns(length=4, key=array, value=array)
    got = decode_record_set(encode_record_batch(columns, now_ms=3), fetch_offset=0).columns
    assert got.value.to_pylist() == got.key.to_pylist() == [b"one", None, b"", "ünf".encode()]
    assert got.timestamp_ms.tolist() == [3] * 4


@pytest.mark.parametrize(
    "rows", [None, slice(None), slice(1, 3), slice(-2, None), np.array([3, 0]), np.array([2], np.int32)]
)
def test_rows(rows):
    columns = of_values(b"0", b"1", None, b"3", timestamp_ms=np.array([5, 6, 7, 8]))
    got = decode_record_set(encode_record_batch(columns, rows=rows), fetch_offset=0).columns
    picked = (
        list(range(4)) if rows is None else list(range(4))[rows] if isinstance(rows, slice) else rows.tolist()
    )
    assert got.value.to_pylist() == [[b"0", b"1", None, b"3"][row] for row in picked]
    assert got.timestamp_ms.tolist() == [[5, 6, 7, 8][row] for row in picked]


def test_no_columns_at_all_are_null_records():
    got = decode_record_set(
        encode_record_batch(RecordColumns(length=9), rows=np.array([8, 1]), now_ms=0), fetch_offset=0
    ).columns
    assert (got.key.to_pylist(), got.value.to_pylist()) == ([None, None], [None, None])


def test_large_lists_and_nulls_over_data():
    inner = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": None}], HEADERS_TYPE.value_type)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), inner, mask=pa.array([False, True]))
    large = pa.array([[], [{"key": "k", "value": b""}]], pa.large_list(HEADERS_TYPE.value_type))
    for headers, expected in (
        (lists, [[{"key": "a", "value": b"1"}], None]),
        (large, [None, large[1].as_py()]),
    ):
        columns = RecordColumns(length=2, headers=headers)
        got = decode_record_set(encode_record_batch(columns, now_ms=0), fetch_offset=0).columns
        assert got.headers.to_pylist() == expected


@pytest.mark.parametrize(
    ("first", "second", "swapped"),
    [("key", "value", False), ("value", "key", True), ("value", "name", False)],
)
def test_header_fields_go_by_their_names_or_else_by_their_order(first, second, swapped):
    fields = [pa.field(first, pa.binary()), pa.field(second, pa.string())]
    headers = pa.array([[{first: b"1", second: "2"}]], pa.list_(pa.struct(fields)))
    columns = RecordColumns(length=1, headers=headers)
    got = decode_record_set(encode_record_batch(columns, now_ms=0), fetch_offset=0).columns
    expected = {"key": "2", "value": b"1"} if swapped else {"key": "1", "value": b"2"}
    assert got.headers.to_pylist() == [[expected]]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_header_keys_that_are_not_utf8_are_refused(kind):
    # Made of buffers: that is how a string column comes by bytes that are no text.
    large = "large" in str(kind)
    edges = np.array([0, 1, 3, 5], np.int64 if large else np.int32)
    keys = pa.Array.from_buffers(kind, 3, [None, pa.py_buffer(edges), pa.py_buffer(b"k\xc3\xbc\xff\xfe")])
    structs = pa.StructArray.from_arrays([keys, pa.array([b"1", b"2", b"3"])], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 1, 2, 3], pa.int32()), structs)
    columns = RecordColumns(length=4, headers=headers)
    for refuse in (record_sizes, lambda columns: encode_record_batch(columns, now_ms=0)):
        with pytest.raises(ValueError, match=r"row 3 has a header whose key b'\\xff\\xfe' is not UTF-8"):
            refuse(columns)
    fine = RecordColumns(length=3, headers=headers.slice(0, 3))
    got = decode_record_set(encode_record_batch(fine, now_ms=0), fetch_offset=0).columns
    assert [None if row is None else row[0]["key"] for row in got.headers.to_pylist()] == ["k", None, "ü"]


@pytest.mark.parametrize("column", ["key", "value", "headers", "timestamp_ms"])
def test_sizes_are_bounds_and_close(column):
    n = 300
    cells = {
        "key": pa.array([b"k" * (i % 200) for i in range(n)]),
        "value": pa.array([None if i % 3 else b"v" * i for i in range(n)], pa.large_binary()),
        "headers": pa.array(
            [[{"key": "h", "value": b"x" * i}] * (i % 3) or None for i in range(n)], HEADERS_TYPE
        ),
        "timestamp_ms": np.arange(n) * -1000,
    }
    columns = RecordColumns(length=n, **{column: cells[column]})
    sizes = record_sizes(columns)
    assert (sizes.shape, sizes.dtype) == ((n,), np.int64)
    real = len(encode_record_batch(columns, now_ms=0)) - BATCH_OVERHEAD_BYTES
    assert real <= sizes.sum() <= real + 4 * n
    for row in (0, 17, n - 1):
        one = len(encode_record_batch(columns, rows=np.array([row]), now_ms=0)) - BATCH_OVERHEAD_BYTES
        assert one <= sizes[row]
    assert len(record_sizes(RecordColumns(length=0))) == 0


@pytest.mark.parametrize("at_most", [0, 5, 300, 10_000])
def test_a_bound_changes_nothing_even_a_wrong_one(at_most):
    columns = of_values(b"v" * 100, None, b"")
    rows = np.array([2, 0])
    expected = bytes(encode_record_batch(columns, rows=rows, now_ms=7))
    assert bytes(encode_record_batch(columns, rows=rows, now_ms=7, at_most=at_most)) == expected


def test_a_checksum_is_renewed_by_what_changed(kernel):
    rng = random.Random(1)
    for length in (1, 14, 60):
        for behind in (0, 1, 7, 8, 4_095, 70_001, 1_000_003):
            head, old, new = (rng.randbytes(n) for n in (22, length, length))
            tail = rng.randbytes(behind)
            before, after = head + old + tail, head + new + tail
            assert kernel.renew_crc32c(memoryview(after), crc32c(before), old, 22) == crc32c(after)


def test_set_producer_changes_nothing_else():
    plain = encode_record_batch(of_values(b"x"), now_ms=1)
    before = bytes(plain)
    assert set_producer(plain, 12, 3, 2**31 - 1) is plain
    expected = encode_record_batch(
        of_values(b"x"), now_ms=1, producer_id=12, producer_epoch=3, base_sequence=2**31 - 1
    )
    assert bytes(plain) == bytes(expected) != before
    patched = set_producer(bytearray(before), 12, 3, 2**31 - 1)
    assert bytes(patched) == bytes(expected)


@pytest.mark.parametrize(
    ("columns", "options", "match"),
    [
        (of_values(), {}, "at least one record"),
        (of_values(b"x"), {"now_ms": None}, "need now_ms"),
        (of_values(b"x"), {"rows": np.array([1])}, "rows from 1 to 1 of 1 records"),
        (of_values(b"x"), {"rows": np.array([-1])}, "rows from -1"),
        (of_values(b"x", b"y"), {"rows": slice(None, None, 2)}, "step 1"),
        (RecordColumns(length=2, key=pa.array([b"x"])), {}, "column key has 1 rows"),
        (RecordColumns(length=1, key=pa.array([1])), {}, "column key is int64; cast it"),
        (RecordColumns(length=1, headers=pa.array([["x"]])), {}, "headers must be list"),
        (RecordColumns(length=1, headers=pa.array([{"a": 1}])), {}, "headers must be list"),
        (
            RecordColumns(length=2, headers=pa.array([None, [{"key": None, "value": b""}]], HEADERS_TYPE)),
            {},
            "row 1 has a header with a null key",
        ),
        (
            RecordColumns(length=1, headers=pa.array([[None]], HEADERS_TYPE)),
            {},
            "row 0 has a header with a null",
        ),
        (of_values(b"a", b"b", timestamp_ms=np.array([-(2**62), 2**62])), {}, "more than 64 bits apart"),
        (of_values(b"a", b"b", timestamp_ms=np.array([2**63 - 1, -2])), {}, "more than 64 bits apart"),
        (of_values(b"a"), {"codec": Codec.GZIP, "level": 12}, "gzip has no compression level 12"),
    ],
)
def test_refused(columns, options, match):
    if "more than 64" in match:
        columns = RecordColumns(length=2, timestamp_ms=columns.timestamp_ms * 1)
        columns.timestamp_ms[:] = [2**63 - 1, -2]
    with pytest.raises(ValueError, match=match):
        encode_record_batch(columns, **{"now_ms": 0, **options})


def test_a_batch_of_numpy_is_no_longer_than_its_length_can_say(kernel, monkeypatch):
    if kernel is not numpy_kernel:
        pytest.skip("the compiled kernel has the limit in C")
    columns = of_values(b"x" * 300, b"y")
    size = len(encode_record_batch(columns, now_ms=0))
    monkeypatch.setattr(numpy_kernel, "MAX_ENCODED_BYTES", size + 1)
    assert len(encode_record_batch(columns, now_ms=0)) == size
    monkeypatch.setattr(numpy_kernel, "MAX_ENCODED_BYTES", size)
    with pytest.raises(ValueError, match="cannot encode 2 records as one batch"):
        encode_record_batch(columns, now_ms=0)


@pytest.mark.parametrize(
    ("rows", "stamps"),
    [(None, [10, 30, 50]), (np.array([2, 0]), [50, 10]), (np.array([1, 0]), [30, 10])],
)
def test_timestamps_need_not_lie_side_by_side(rows, stamps):
    columns = of_values(b"a", b"b", b"c", timestamp_ms=np.arange(10, 70, 10)[::2])
    data = encode_record_batch(columns, rows=rows)
    assert decode_record_set(data, fetch_offset=0).columns.timestamp_ms.tolist() == stamps
    headers = read_batch_headers(data)
    assert (headers.base_timestamp.tolist(), headers.max_timestamp.tolist()) == ([stamps[0]], [max(stamps)])


def test_extreme_timestamps_that_fit():
    stamps = np.array([-(2**62), 2**62 - 1, -(2**63) + 2**62, 0])
    got = decode_record_set(
        encode_record_batch(RecordColumns(length=4, timestamp_ms=stamps)), fetch_offset=0
    ).columns
    assert got.timestamp_ms.tolist() == stamps.tolist()
