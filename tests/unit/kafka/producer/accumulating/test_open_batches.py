"""Records that came one by one become columns: pyarrow's own constructors are the oracle."""

import random

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.kafka.config.client_config import ProducerConfig
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.accumulating.batch import BatchEncoder, Origin
from spark_kafka_native.kafka.producer.accumulating.open_batches import (
    BatchLimits,
    Chunk,
    SingleRecords,
    WaitingRows,
)
from spark_kafka_native.kafka.producer.delivery import DeliveryBlock, Waiters
from spark_kafka_native.kafka.records.columns import (
    HEADERS_TYPE,
    RecordColumns,
    build_binary,
    build_headers,
    build_index,
    wrap_numpy,
)


@pytest.mark.parametrize("seed", range(20))
def test_arrays_are_what_pyarrow_makes(seed):
    rng = random.Random(seed)
    n = rng.choice([0, 1, 7, 8, 9, 100])
    cells = [None if rng.random() < 0.3 else rng.randbytes(rng.choice([0, 1, 20])) for _ in range(n)]
    if seed % 2:
        cells = [cell or b"" for cell in cells]
    array = build_binary(cells)
    array.validate(full=True)
    assert array.equals(pa.array(cells, pa.binary()))
    assert array.null_count == cells.count(None)
    headers = [
        rng.choice([None, (), [(f"k{i}", rng.choice([None, b"", b"v"])) for i in range(rng.randrange(4))]])
        for _ in range(n)
    ]
    lists = build_headers(headers)
    lists.validate(full=True)
    assert lists.equals(pa.array([list(one or ()) for one in headers], HEADERS_TYPE))


def test_an_index_takes():
    taken = pa.array([b"a", b"b", b"c"]).take(build_index(np.array([2, 0])))
    assert taken.to_pylist() == [b"c", b"a"]


@pytest.mark.parametrize(
    "values",
    [np.zeros(4, np.int32), np.zeros(4, ">i8"), np.zeros((2, 2), np.int64), np.zeros(4, np.bool_)],
    ids=["too narrow", "another byte order", "two dimensions", "bytes for bits"],
)
def test_memory_of_another_shape_is_not_taken_for_an_array(values):
    with pytest.raises(TypeError, match="is no array of"):
        wrap_numpy(values, pa.bool_() if values.dtype == np.bool_ else pa.int64())


def test_memory_is_shared_where_it_is_contiguous_and_outlives_its_owner():
    values = np.arange(1000, dtype=np.int64)
    array = wrap_numpy(values, pa.timestamp("us"))
    strided = wrap_numpy(values[::2], pa.int64())
    values[0] = 7
    assert array.cast(pa.int64())[0].as_py() == 7
    assert strided.to_pylist() == list(range(0, 1000, 2))
    del values
    assert array.cast(pa.int64())[999].as_py() == 999
    assert wrap_numpy(np.array([], np.int32), pa.int32()).to_pylist() == []


def single(*records):
    found = SingleRecords(None, 0.0, 1)
    found.fields = [
        field for record in records for field in (*record, *(None, None, 9.75, None)[len(record) - 1 :])
    ]
    return found.columns()


def test_what_nobody_gave_is_no_column():
    columns, partition = single((None, b"a"), (None, b"b"))
    assert (columns.key, columns.headers, partition) == (None, None, None)
    assert columns.timestamp_ms.tolist() == [9, 9]
    assert columns.value.to_pylist() == [b"a", b"b"]
    columns, _ = single((b"k", None), (b"l", None))
    assert columns.value is None
    assert columns.length == 2


def test_what_is_empty_is_not_what_nobody_gave():
    """As null, values would delete their keys in a compacted topic."""
    columns, _ = single((b"", b""), (b"", b""))
    assert columns.key.to_pylist() == columns.value.to_pylist() == [b"", b""]


def test_what_only_some_gave_is_filled():
    columns, partition = single(
        (b"k", b"a", 3, 9.99, [("h", None)]), (None, None, None, 2**63 - 1, None), (b"", b"")
    )
    assert columns.key.to_pylist() == [b"k", None, b""]
    assert columns.value.to_pylist() == [b"a", None, b""]
    assert partition.tolist() == [3, -1, -1]
    assert partition.dtype == np.int32
    assert columns.timestamp_ms.tolist() == [9, 2**63 - 1, 9]
    assert columns.headers.to_pylist() == [[{"key": "h", "value": None}], [], []]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_key_and_a_value_among_nulls_are_kept_wherever_they_stand(place):
    records = [(None, None)] * 3
    records[place] = (b"k", b"v")
    columns, _ = single(*records)
    assert list(zip(columns.key.to_pylist(), columns.value.to_pylist(), strict=True)) == records


@pytest.mark.parametrize("how", ["lingered", "filled"])
def test_the_delivery_timeout_counts_from_the_first_record_that_waited(how):
    """From ``send()``, not from when its batch was closed."""
    rows = WaitingRows(TopicPartition("t", 0), BatchEncoder(ProducerConfig()))
    origin = Origin(DeliveryBlock(2, Waiters(), lambda: None))
    columns = RecordColumns(length=2, value=pa.array([b"one", b"two"], pa.binary()))
    for since in (5.0, 6.0):
        rows.hold(Chunk(columns, [origin.part(np.arange(2))], 60), since)
    if how == "lingered":
        batches = [rows.close_chunks(9.0)]
    else:
        limits = BatchLimits(size=150, records=5, direct=150)
        batches, _ = rows.cut(columns, np.arange(2), np.full(2, 30), origin, limits, 9.0)
    assert [batch.sending.since for batch in batches] == [5.0]
