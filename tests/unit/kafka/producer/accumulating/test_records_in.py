"""What a caller hands over as columns: taken as it is meant, or refused by row."""

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.kafka.producer.accumulating.records_in import (
    columns_by_topic,
    first_wrong_partition,
)
from spark_kafka_native.kafka.producer.errors import RecordError
from spark_kafka_native.kafka.records.columns import RecordColumns


def batch(n=2, **columns):
    return pa.record_batch({"value": pa.array([b"v"] * n, pa.binary()), **columns})


@pytest.mark.parametrize("name", ["value", "key", "topic", "partition", "timestamp", "headers"])
def test_a_name_that_occurs_twice_is_refused(name):
    column = pa.array([b"a"])
    names = ["value", name, name] if name != "value" else [name, name]
    twice = pa.RecordBatch.from_arrays([column] * len(names), names=names)
    with pytest.raises(RecordError, match=f"there are 2 columns '{name}'"):
        columns_by_topic(twice, None if name == "topic" else "t")
    others = pa.RecordBatch.from_arrays([column] * 3, names=["value", "other", "other"])
    assert len(columns_by_topic(others, "t")) == 1


@pytest.mark.parametrize(
    ("times", "kind", "expected"),
    [
        ([1_500_999], pa.timestamp("us"), [1_500]),
        ([0, 999], pa.timestamp("us"), [0, 0]),
        ([7], pa.timestamp("s", "UTC"), [7_000]),
        ([7_999_999], pa.timestamp("ns"), [7]),
        ([7], pa.timestamp("ms"), [7]),
        ([-1, 5], pa.int64(), [-1, 5]),
        ([5, 6], pa.uint32(), [5, 6]),
    ],
)
def test_times(times, kind, expected):
    (part,) = columns_by_topic(batch(len(times), timestamp=pa.array(times, kind)), "t")
    assert part.columns.timestamp_ms.tolist() == expected
    assert part.columns.timestamp_ms.dtype == np.int64


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        ([0, -1], pa.timestamp("us")),
        ([0, -999], pa.timestamp("us")),
        ([0, -1_000], pa.timestamp("us")),
        ([0, -1], pa.timestamp("ms")),
        ([0, -1], pa.timestamp("s")),
        ([0, -1], pa.timestamp("ns")),
        ([0, 2**62], pa.timestamp("s")),
        ([0, -2], pa.int64()),
        ([0, 2**63], pa.uint64()),
    ],
)
def test_times_that_no_record_can_carry(times, kind):
    with pytest.raises(RecordError, match="row 1: the timestamp"):
        columns_by_topic(batch(timestamp=pa.array(times, kind)), "t")


def test_times_that_are_missing_become_now():
    (part,) = columns_by_topic(batch(timestamp=pa.array([None, 5], pa.timestamp("ms"))), "t")
    assert part.columns.timestamp_ms[0] > 1_600_000_000_000
    assert part.columns.timestamp_ms[1] == 5
    (part,) = columns_by_topic(batch(timestamp=pa.array([None, None], pa.timestamp("ms"))), "t")
    assert part.columns.timestamp_ms is None


@pytest.mark.parametrize("name", ["timestamp_ms", "key", "value", "headers"])
def test_record_columns_of_unequal_lengths_are_refused(name):
    column = np.zeros(3, np.int64) if name == "timestamp_ms" else pa.array([b"a"] * 3)
    with pytest.raises(RecordError, match=f"column '{name}' has 3 rows, and there are 2 records"):
        columns_by_topic(RecordColumns(length=2, **{name: column}), "t")


def test_record_columns_with_times_that_no_record_can_carry():
    columns = RecordColumns(length=2, timestamp_ms=np.array([-1, -2]), value=pa.array([b"a", b"b"]))
    with pytest.raises(RecordError, match="row 1: the timestamp -2 ms"):
        columns_by_topic(columns, "t")


@pytest.mark.parametrize(
    "partition", [1, np.int32(1), np.array(1), [1, 1], np.array([1, 1]), pa.array([1, 1])]
)
def test_partitions_of_any_shape(partition):
    (part,) = columns_by_topic(batch(), "t", partition)
    assert part.partition.tolist() == [1, 1]
    assert part.partition.dtype == np.int32


@pytest.mark.parametrize(
    "partition", [pa.nulls(3), pa.nulls(3, pa.int32()), pa.array([1, 1, 1]), [1], np.zeros((2, 2), np.int32)]
)
def test_as_many_partitions_as_records(partition):
    with pytest.raises(ValueError, match="partitions for 2 records"):
        columns_by_topic(batch(), "t", partition)


@pytest.mark.parametrize("partition", [1.7, [1.0, 2.0], "x", pa.array([1.5, 2.5])])
def test_partitions_are_whole_numbers(partition):
    with pytest.raises(TypeError, match="whole number"):
        columns_by_topic(batch(), "t", partition)


@pytest.mark.parametrize(
    ("partition", "told"),
    [
        (pa.array([0, 2**64 - 1], pa.uint64()), 2**64 - 1),
        (np.array([0, 2**64 - 1], np.uint64), 2**64 - 1),
        (pa.array([0, -1]), -1),
        (pa.array([0, 2**31]), 2**31),
    ],
)
def test_partitions_out_of_range_are_told_as_they_are(partition, told):
    with pytest.raises(RecordError, match=f"row 1: partition {told} is not"):
        columns_by_topic(batch(), "t", partition)


def test_the_first_wrong_partition():
    def part(partition):
        (found,) = columns_by_topic(batch(3), "t", partition)
        return found

    assert first_wrong_partition(part(None), 2, explicit=False) is None
    assert first_wrong_partition(part(None), 2, explicit=True) == 0
    some = pa.array([0, None, 1], pa.int32())
    assert first_wrong_partition(part(some), 2, explicit=False) is None
    assert first_wrong_partition(part(some), 2, explicit=True) == 1
    assert first_wrong_partition(part(some), 1, explicit=False) == 2


class Frame:
    """Columns of another library."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


class OneBatch:
    def __init__(self, table):
        self._table = table

    def __arrow_c_array__(self, requested_schema=None):
        return self._table.to_batches()[0].__arrow_c_array__(requested_schema)


def records_of(columns, topic=None):
    (part,) = columns_by_topic(columns, topic)
    return [(part.topic, r.key, r.value) for r in part.columns.records(part.topic)]


@pytest.mark.parametrize(
    "strings", [pa.string(), pa.large_string(), pa.string_view(), pa.binary_view()], ids=str
)
@pytest.mark.parametrize("frame", [Frame, OneBatch, pa.Table.to_reader])
def test_columns_of_other_libraries(frame, strings):
    table = pa.table(
        {
            "topic": ["t", "t"],
            "key": pa.array(["k", None] if "string" in str(strings) else [b"k", None], strings),
            "value": [b"1", b"2"],
        }
    )
    assert records_of(frame(table)) == [("t", b"k", b"1"), ("t", None, b"2")]


def test_a_data_frame_of_pandas():
    pandas = pytest.importorskip("pandas", minversion="2.2")
    frame = pandas.DataFrame({"key": ["k", None], "value": [b"1", b"2"]}, index=[7, 9])
    assert records_of(frame, "t") == [("t", b"k", b"1"), ("t", None, b"2")]
    with pytest.raises(TypeError, match="the DataFrame can't be read as Arrow columns"):
        columns_by_topic(pandas.DataFrame({"value": [b"1", 2]}), "t")


def test_a_data_frame_of_polars():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"key": ["k", None], "value": [b"1", b"2"]})
    assert records_of(frame, "t") == [("t", b"k", b"1"), ("t", None, b"2")]


@pytest.mark.parametrize("columns", [[b"1"], {"value": [b"1"]}, None])
def test_what_has_no_columns_is_refused(columns):
    with pytest.raises(TypeError, match="data frame with __arrow_c_stream__"):
        columns_by_topic(columns, "t")
