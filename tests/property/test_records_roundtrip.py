"""Any records, codec and kernel: encoded records decode to themselves, within the predicted sizes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.record_batches import KERNELS, using_kernel, varint

from spark_kafka_native.kafka.records.columns import HEADERS_TYPE, RecordColumns
from spark_kafka_native.kafka.records.compression import Codec
from spark_kafka_native.kafka.records.decode import decode_record_set
from spark_kafka_native.kafka.records.encode import BATCH_OVERHEAD_BYTES, encode_record_batch, record_sizes
from spark_kafka_native.kafka.records.varint import (
    VARINT_BYTES,
    VARLONG_BYTES,
    read_varints,
    varint_size,
    varint_sizes,
    write_varints,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
CELLS = (
    st.none()
    | st.binary(max_size=200)
    | st.sampled_from([b"", b"x" * 63, b"x" * 64, b"x" * 8191, b"x" * 8192])
)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=9)), max_size=4)
TIMESTAMPS = st.integers(-1, 2**62)
BINARY_KINDS = [pa.binary(), pa.large_binary()]


@st.composite
def record_columns(draw: st.DrawFn) -> RecordColumns:
    n = draw(st.integers(1, 30))

    def column(elements: st.SearchStrategy) -> list:
        return draw(st.lists(elements, min_size=n, max_size=n))

    def sliced(array: pa.Array) -> pa.Array:
        """The same cells as a slice of a longer array, or not."""
        if not draw(st.booleans()):
            return array
        return pa.concat_arrays([array.slice(0, 1), array, array.slice(0, 1)]).slice(1, n)

    key = value = headers = None
    if draw(st.booleans()):
        key = sliced(pa.array(column(CELLS), draw(st.sampled_from(BINARY_KINDS))))
    if draw(st.booleans()):
        value = sliced(pa.array(column(CELLS), draw(st.sampled_from(BINARY_KINDS))))
    if draw(st.booleans()):
        lists = [h and [{"key": name, "value": v} for name, v in h] for h in column(HEADERS)]
        headers = sliced(pa.array(lists, HEADERS_TYPE))
    return RecordColumns(
        length=n,
        timestamp_ms=np.array(column(TIMESTAMPS), np.int64) if draw(st.booleans()) else None,
        key=key,
        value=value,
        headers=headers,
    )


def cells(column: pa.Array | None, rows: list[int]) -> list:
    return [None if column is None else column[row].as_py() for row in rows]


@pytest.mark.parametrize("codec", list(Codec))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(columns=record_columns(), data=st.data())
def test_records_round_trip(codec: Codec, columns: RecordColumns, data: st.DataObject) -> None:
    n = columns.length
    rows = data.draw(st.none() | st.permutations(range(n)).map(lambda order: order[: 1 + len(order) // 2]))
    picked = list(range(n)) if rows is None else list(rows)
    encoded = []
    for kernel in KERNELS:
        with using_kernel(kernel):
            batch = encode_record_batch(
                columns,
                rows=None if rows is None else np.array(rows, np.int64),
                codec=codec,
                now_ms=5,
                producer_id=7,
                producer_epoch=1,
                base_sequence=3,
            )
        encoded.append(bytes(batch))
    assert len(set(encoded)) == 1
    if codec is Codec.NONE:
        assert len(encoded[0]) <= BATCH_OVERHEAD_BYTES + int(record_sizes(columns)[picked].sum())
    for kernel in KERNELS:
        with using_kernel(kernel):
            decoded = decode_record_set(encoded[0], fetch_offset=0)
        got = decoded.columns
        assert got.offset.tolist() == list(range(len(picked)))
        timestamps = [5] * n if columns.timestamp_ms is None else columns.timestamp_ms.tolist()
        assert got.timestamp_ms.tolist() == [timestamps[row] for row in picked]
        assert got.key.to_pylist() == cells(columns.key, picked)
        assert got.value.to_pylist() == cells(columns.value, picked)
        assert got.headers.to_pylist() == [headers or None for headers in cells(columns.headers, picked)]
        for column in (got.key, got.value, got.headers):
            column.validate(full=True)


@settings(deadline=None)
@given(st.lists(INT64, max_size=50))
def test_varints_round_trip(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    sizes = varint_sizes(values)
    assert sizes.tolist() == [len(varint(number)) for number in numbers] == [varint_size(n) for n in numbers]
    ends = np.cumsum(sizes)
    out = np.zeros(int(sizes.sum()), np.uint8)
    assert write_varints(out, ends - sizes, values).tolist() == ends.tolist()
    assert out.tobytes() == b"".join(map(varint, numbers))
    read = read_varints(out, ends - sizes, max_bytes=VARLONG_BYTES)
    assert not read.too_long.size
    assert (read.value.tolist(), read.end.tolist()) == (numbers, ends.tolist())
    too_long = [row for row, number in enumerate(numbers) if not -(2**31) <= number < 2**31]
    assert read_varints(out, ends - sizes, max_bytes=VARINT_BYTES).too_long.tolist() == too_long
