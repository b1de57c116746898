"""What a caller hands over as columns: taken as it is meant, or refused by row."""

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.kafka.producer.accumulating.batch import concat_columns
from spark_kafka_native.kafka.producer.accumulating.records_in import (
    columns_by_topic,
    first_wrong_partition,
)
from spark_kafka_native.kafka.producer.errors import RecordError
from spark_kafka_native.kafka.records.columns import HEADERS_TYPE, RecordColumns


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
    "topics",
    [
        pa.array([1, 2]),
        pa.array([b"t", b"u"]),
        pa.array([b"t", b"u"]).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays([1, 2], ["t", "u"]),
        pa.chunked_array([pa.RunEndEncodedArray.from_arrays([1], [name]) for name in "tu"]),
    ],
    ids=lambda topics: str(topics.type),
)
def test_topics_are_text(topics):
    with pytest.raises(TypeError, match=r"column 'topic' is [a-z0-9_<:, >]+: string is needed"):
        columns_by_topic(pa.table({"value": pa.array([b"v"] * 2), "topic": topics}), None)


@pytest.mark.parametrize(
    ("times", "given"),
    [
        (np.array([np.nan, 1.0]), "float64"),
        (np.array([2.0**63, 1.0]), "float64"),
        (np.array(["2020-01-01"] * 2, "M8[ms]"), "datetime64"),
        (np.array([True, False]), "bool"),
        (np.array([1, None]), "object"),
        (np.ma.array([1, 2], mask=[False, True]), "MaskedArray"),
        ([1, 2], "list"),
        (pa.array([1, 2]), "Int64Array"),
    ],
)
def test_times_of_record_columns_are_whole_numbers(times, given):
    with pytest.raises(TypeError, match=f"column 'timestamp_ms' is {given}.*: a NumPy array of whole"):
        columns_by_topic(RecordColumns(length=2, timestamp_ms=times), "t")


def test_masked_partitions_are_the_partitioners_choice():
    masked = np.ma.array([7, -5, 2**40], mask=[False, True, True])
    (part,) = columns_by_topic(batch(3), "t", masked)
    assert part.partition.tolist() == [7, -1, -1]
    (part,) = columns_by_topic(batch(3), "t", np.ma.array([7, 8, 9]))
    assert part.partition.tolist() == [7, 8, 9]
    (part,) = columns_by_topic(batch(3), "t", np.ma.masked_all(3, np.int32))
    assert part.partition is None


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


def test_no_records_have_no_partitions():
    assert columns_by_topic(batch(0), "t", []) == []


def test_partitions_in_chunks_with_nulls():
    (part,) = columns_by_topic(batch(3), "t", pa.chunked_array([[1, None], [2]]))
    assert part.partition.tolist() == [1, -1, 2]


@pytest.mark.parametrize("topics", [["t", "t", "t"], ["t", "u", "t"]], ids=["one topic", "two topics"])
def test_rows_keep_their_partitions_by_topic(topics):
    rows = batch(3, topic=topics, partition=pa.array([2, 0, None], pa.int32()))
    parts = columns_by_topic(rows, None)
    placed = {
        (part.topic, int(row)): int(part.partition[place])
        for part in parts
        for place, row in enumerate(range(3) if part.rows is None else part.rows)
    }
    assert placed == {(topics[0], 0): 2, (topics[1], 1): 0, (topics[2], 2): -1}


def test_some_of_the_rows_of_a_topic_keep_their_partitions_and_numbers():
    (part, _) = columns_by_topic(batch(4, topic=["t", "u", "t", "t"], partition=[3, 2, 1, 0]), None)
    some = part.take(np.array([0, 2]))
    assert (some.partition.tolist(), some.rows.tolist()) == ([3, 0], [0, 3])


def test_record_columns_of_text_and_of_bytes_share_a_batch():
    text, raw = pa.array(["k"]), pa.array([b"\xff"])
    both = [
        columns_by_topic(RecordColumns(length=1, key=one, value=one), "t")[0].columns for one in (text, raw)
    ]
    together = concat_columns(both, 0)
    assert together.key.to_pylist() == together.value.to_pylist() == [b"k", b"\xff"]


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


def test_all_columns_of_a_data_frame_of_polars():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {
            "value": ["1", "2"],
            "key": polars.Series(["k", None], dtype=polars.Categorical),
            "topic": polars.Series(["t", "t"], dtype=polars.Categorical),
            "headers": [[{"key": "h", "value": b"x"}, {"key": "i", "value": None}], None],
            "timestamp": [None, None],
            "partition": [None, None],
        }
    )
    (part,) = columns_by_topic(frame, None)
    assert part.partition is None
    assert [(r.key, r.value, r.headers) for r in part.columns.records()] == [
        (b"k", b"1", (("h", b"x"), ("i", None))),
        (None, b"2", ()),
    ]


VIEWS = pa.struct([("key", pa.string_view()), ("value", pa.binary_view())])


@pytest.mark.parametrize("kind", [pa.large_list(VIEWS), pa.list_(VIEWS)], ids=str)
def test_headers_of_views(kind):
    rows = [
        [{"key": "skipped", "value": b"x"}],
        [{"key": "k", "value": None}, {"key": "l", "value": b"v"}],
        None,
    ]
    (part,) = columns_by_topic(batch(headers=pa.array(rows, kind)[1:]), "t")
    assert [r.headers for r in part.columns.records()] == [(("k", None), ("l", b"v")), ()]
    wrong = pa.array([None, [{"key": None, "value": b"v"}]], kind)
    with pytest.raises(RecordError, match="row 1: column 'headers' has a header with a null key"):
        columns_by_topic(batch(headers=wrong), "t")


def test_a_header_that_never_has_a_value():
    headers = pa.array([[{"key": "k", "value": None}], []])
    (part,) = columns_by_topic(batch(headers=headers), "t")
    assert [r.headers for r in part.columns.records()] == [(("k", None),), ()]


@pytest.mark.parametrize(
    "headers",
    [pa.nulls(2), pa.array([[], None]), pa.array([[], []]), pa.array([[], None], pa.large_list(pa.null()))],
    ids=["null", "list", "empty", "large list"],
)
def test_no_headers_at_all(headers):
    (part,) = columns_by_topic(batch(headers=headers), "t")
    assert part.columns.headers is None


@pytest.mark.parametrize(
    "headers", [pa.array([1, 2]), pa.array([[None], []]), pa.array([[{"a": 1, "b": 2}]] * 2)]
)
def test_headers_of_another_type_are_refused(headers):
    with pytest.raises(TypeError, match="column 'headers': headers must be list"):
        columns_by_topic(batch(headers=headers), "t")


@pytest.mark.parametrize("words", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_dictionaries(words):
    def of(*names):
        coded = pa.array(names).dictionary_encode()
        return pa.DictionaryArray.from_arrays(coded.indices, coded.dictionary.cast(words))

    table = pa.table(
        {
            "topic": pa.chunked_array([of("t", "u"), of("u", "u")]),
            "value": pa.chunked_array([of("a", None), of("b", "c")]),
            "partition": pa.array([0, None, 1, 0], pa.int32()).dictionary_encode(),
            "timestamp": pa.array([5, 6, 7, 5], pa.timestamp("ms")).dictionary_encode(),
        }
    )
    first, second = columns_by_topic(table, None)
    assert (first.topic, first.columns.value.to_pylist(), first.partition.tolist()) == ("t", [b"a"], [0])
    assert (second.topic, second.columns.value.to_pylist()) == ("u", [None, b"b", b"c"])
    assert second.partition.tolist() == [-1, 1, 0]
    assert second.columns.timestamp_ms.tolist() == [6, 7, 5]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
def test_views_become_binary_with_offsets_for_more_than_2_gib(kind):
    # Arrow's cast to 32-bit offsets wraps where rows that share a value have more than 2 GiB.
    (part,) = columns_by_topic(pa.record_batch({"value": pa.array([b"abc", None]).cast(kind)}), "t")
    assert part.columns.value.type == pa.large_binary()
    assert part.columns.value.to_pylist() == [b"abc", None]


def test_headers_of_more_than_2_gib_are_refused():
    headers = pa.array([[{"key": "k", "value": b"x" * 2**20}]], HEADERS_TYPE)
    table = pa.table({"value": [b""] * 2_048, "headers": pa.chunked_array([headers] * 2_048)})
    with pytest.raises(RecordError, match="column 'headers' has more than 2 GiB: send fewer rows at once"):
        columns_by_topic(table, "t")


@pytest.mark.soak  # 2 GiB of memory for each
@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.string(), pa.dictionary(pa.int8(), pa.binary()), pa.binary(2**20)]
)
def test_chunks_of_more_than_2_gib(kind):
    chunk = pa.array([b"x" * 2**20]).cast(kind)
    (part,) = columns_by_topic(pa.table({"value": pa.chunked_array([chunk] * 2_049)}), "t")
    assert part.columns.value.type == pa.large_binary()
    assert part.columns.value[2_048].as_py() == b"x" * 2**20


@pytest.mark.parametrize("columns", [[b"1"], {"value": [b"1"]}, None])
def test_what_has_no_columns_is_refused(columns):
    with pytest.raises(TypeError, match="data frame with __arrow_c_stream__"):
        columns_by_topic(columns, "t")
