import pickle
import subprocess
import sys
from dataclasses import replace
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, StructType

from spark_kafka_native.formats import Decoded
from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.model import BadRecordMode, TopicPartition
from spark_kafka_native.kafka.records.columns import HEADERS_TYPE, RecordColumns
from spark_kafka_native.spark import payload_formats
from spark_kafka_native.spark.error_conditions import KafkaConditionError
from spark_kafka_native.spark.read.offset_range import At, OffsetRange
from spark_kafka_native.spark.read.schema import HEADERS, DecodedPayload, RowSchema, full_schema
from spark_kafka_native.spark.read.worker import arrow_rows, read_partition
from spark_kafka_native.spark.read.worker.arrow_rows import (
    MAX_ROWS,
    KafkaColumn,
    PartitionRuns,
    RowLayout,
    _relabel,
)
from spark_kafka_native.spark.read.worker.decoded_columns import DecodedColumns
from spark_kafka_native.spark.read.worker.offset_binding import BoundRange

TP = TopicPartition("t", 3)


def layout_of(schema):
    return RowLayout.of(RowSchema.from_schema(schema))


def struct(**columns):
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    return schema


def records(**changes):
    columns = {
        "length": 3,
        "offset": np.array([10, 11, 15]),
        "timestamp_ms": np.array([-1, 0, 1_700_000_000_123]),
        "timestamp_type": np.array([-1, 0, 1], np.int8),
        "key": pa.array([None, b"", b"k"], pa.binary()),
        "value": pa.array([b"a", None, "ü".encode()], pa.binary()),
        "headers": pa.array([None, [("h", b"1"), ("h", None)], [("x", b"")]], HEADERS_TYPE),
    }
    return RecordColumns(**(columns | changes))


def test_the_full_schema_is_sparks():
    schema = full_schema(True)
    assert schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert all(field.nullable for field in schema)
    assert full_schema(False).names == schema.names[:-1]


def test_a_record_batch_has_exactly_the_schema_that_spark_wants():
    schema = full_schema(True)
    batch = layout_of(schema).to_record_batch(records(), TP)
    in_utc = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    assert batch.schema.equals(to_arrow_schema(schema, **in_utc), check_metadata=True)
    batch.validate(full=True)
    rows = batch.to_pylist()
    assert [row["offset"] for row in rows] == [10, 11, 15]
    assert [row["key"] for row in rows] == [None, b"", b"k"]
    assert [row["topic"] for row in rows] == ["t"] * 3
    assert [row["partition"] for row in rows] == [3] * 3
    assert [row["timestampType"] for row in rows] == [-1, 0, 1]
    assert batch.column(5).cast(pa.int64()).to_pylist() == [-1000, 0, 1_700_000_000_123_000]
    assert rows[0]["headers"] is None
    assert rows[1]["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]


def test_any_subset_in_any_order_decodes_only_what_it_shows():
    schema = layout_of(struct(TIMESTAMP="timestamp", value="string", partition="integer"))
    assert [source.name for source in schema.sources] == ["timestamp", "value", "partition"]
    assert schema.record_fields == {"timestamp_ms", "value", "offset"}
    batch = schema.to_record_batch(records(key=None, headers=None), TP)
    assert batch.schema.names == ["TIMESTAMP", "value", "partition"]
    assert batch.column(1).to_pylist() == ["a", None, "ü"]
    assert layout_of(struct(topic="string")).record_fields == frozenset()
    plain = RowSchema.from_schema(struct(TIMESTAMP="timestamp", value="string"))
    assert pickle.loads(pickle.dumps(plain)) == plain


def test_slices_of_arrow_columns_keep_their_place():
    headers = pa.array([[("z", b"9")], None, [("a", None)], [("b", b"2")]], HEADERS_TYPE).slice(1)
    batch = layout_of(StructType().add("headers", HEADERS)).to_record_batch(records(headers=headers), TP)
    batch.validate(full=True)
    assert batch.column(0).to_pylist() == [None, [{"key": "a", "value": None}], [{"key": "b", "value": b"2"}]]


@pytest.mark.parametrize("nulls", [None, pa.array([False, False, True])])
def test_headers_whose_structs_are_a_slice_keep_their_place(nulls):
    key, value = pa.array(["z", "a", "b"]), pa.array([b"0", b"1", b"2"])
    fields = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
    structs = pa.StructArray.from_arrays([key, value], fields=fields, mask=nulls).slice(1)
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 1, 2], pa.int32()), structs)
    wanted = [("key", pa.string()), pa.field("value", pa.binary(), nullable=False)]
    given = _relabel(headers, pa.list_(pa.struct(wanted)))
    given.validate(full=True)
    assert given.to_pylist() == headers.to_pylist()
    assert given.values.field(0).buffers()[2].address == key.buffers()[2].address


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (struct(), "has no columns; give at least one of key, value, topic"),
        (struct(ofset="long"), "has no column `ofset`; did you mean `offset`"),
        (struct(offset="integer"), "Column `offset` can be read as bigint, not as int"),
        (struct(value="integer"), "Column `value` can be read as binary or string, not as int"),
        (struct(key="string", KEY="binary"), "names a column twice"),
        (struct(headers="string"), "can be read as array<struct<key:string,value:binary>>"),
    ],
)
def test_a_wrong_schema_says_what_is_allowed(schema, why):
    with pytest.raises(ConfigError, match=why):
        RowSchema.from_schema(schema)


def headers_of(*, name="headers", element=True, key=True, value=True):
    pair = StructType().add("key", "string", key).add("value", "binary", value)
    return StructType().add(name, ArrayType(pair, element))


@pytest.mark.parametrize("name", ["headers", "Headers"])
def test_a_header_value_must_be_nullable_as_spark_would_believe_that_it_is_never_null(name):
    with pytest.raises(
        ConfigError, match=f"Column `{name}`: the value of a header can be null, so the schema"
    ):
        RowSchema.from_schema(headers_of(name=name, value=False))
    # Neither a header nor its key is ever null.
    batch = layout_of(headers_of(name=name, element=False, key=False)).to_record_batch(records(), TP)
    batch.validate(full=True)
    assert batch.column(0).to_pylist()[1] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]


def test_what_is_kept_of_constant_columns_has_a_bound_in_bytes():
    layout = layout_of(struct(topic="string"))
    for topic in range(40):
        name = f"{topic}-".ljust(249, "x")
        rows = RecordColumns(length=20_000)
        batch = layout.to_record_batch(rows, TopicPartition(name, 0))
        assert batch.column(0).unique().to_pylist() == [name]
        assert arrow_rows.kept_bytes() <= arrow_rows.MAX_KEPT_BYTES
    layout.to_record_batch(RecordColumns(length=200_000), TopicPartition("y" * 249, 0))
    assert arrow_rows.kept_bytes() <= arrow_rows.MAX_KEPT_BYTES
    # It is counted along, through arrays that are kept again, grow and are dropped.
    for length in (10, 2_000, 10):
        layout.to_record_batch(RecordColumns(length=length), TopicPartition("z", 0))
        assert arrow_rows.kept_bytes() == sum(array.nbytes for array, _ in arrow_rows._kept.values())


def test_rows_bring_no_pandas():
    """It would be 0.7 s of each new worker's first task, and 25 MB of each worker."""
    script = """
import pickle, sys
import numpy as np
import pyarrow as pa
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.records.columns import HEADERS_TYPE, RecordColumns
from spark_kafka_native.spark.read.worker.arrow_rows import RowLayout
layout = RowLayout.of(pickle.load(sys.stdin.buffer))
def rows(offset):
    return RecordColumns(length=2, offset=np.arange(offset, offset + 2), timestamp_ms=np.arange(2),
        timestamp_type=np.zeros(2, np.int8), key=pa.nulls(2, pa.binary()), value=pa.nulls(2, pa.binary()),
        headers=pa.nulls(2, HEADERS_TYPE))
here, there = TopicPartition("t", 1), TopicPartition("u", 2)
batches = [layout.to_record_batch(rows(5), here), layout.join([(rows(5), here), (rows(8), there)])]
print([batch.num_rows for batch in batches], "pandas" in sys.modules)
"""
    schema = pickle.dumps(RowSchema.from_schema(full_schema(True)))
    ran = subprocess.run([sys.executable, "-c", script], input=schema, capture_output=True, check=True)
    assert ran.stdout.split(b"\n")[0] == b"[2, 4] False"


def test_text_that_is_not_utf8_names_its_offset():
    values = pa.array([b"fine", b"\xff\xfe", b"\xff"], pa.binary())
    schema = layout_of(struct(value="string", offset="long"))
    with pytest.raises(ConfigError, match="t-3 at offset 11: the value is not UTF-8"):
        schema.to_record_batch(records(value=values), TP)
    for row in range(3):
        bad = [b"a", b"b", b"c"]
        bad[row] = b"\xff"
        with pytest.raises(ConfigError, match=f"t-3 at offset {(10, 11, 15)[row]}: the value is not UTF-8"):
            schema.to_record_batch(records(value=pa.array(bad, pa.binary())), TP)
    assert layout_of(struct(value="string")).record_fields == {"value", "offset"}
    required = StructType().add("key", "binary", False)
    assert layout_of(required).record_fields == {"key", "offset"}  # the error for a null names it
    assert layout_of(struct(value="binary")).record_fields == {"value"}


@pytest.mark.parametrize("sign", [1, -1])
def test_a_timestamp_beyond_spark_names_its_offset(sign):
    last = sign * 9_223_372_036_854_775
    times = np.array([last, last + sign, 1])
    schema = layout_of(full_schema(False))
    with pytest.raises(KafkaConditionError, match=r"KAFKA_MALFORMED_RECORD_TIMESTAMP.* at t-3 offset 11 "):
        schema.to_record_batch(records(timestamp_ms=times), TP)
    batch = schema.to_record_batch(records(timestamp_ms=np.array([last, 0, 0])), TP)
    assert batch.column(5)[0].value == last * 1000


def test_a_null_where_the_schema_says_not_null_is_an_error():
    schema = StructType().add("value", "binary", nullable=False).add("offset", "long", nullable=False)
    read = layout_of(schema)
    with pytest.raises(ConfigError, match="t-3 at offset 11: `value` is null"):
        read.to_record_batch(records(), TP)
    fine = read.to_record_batch(records(value=pa.array([b"a"] * 3, pa.binary())), TP)
    assert not fine.schema.field(0).nullable


def test_constant_columns_share_their_memory():
    schema = layout_of(struct(topic="string", partition="integer"))
    first, second = schema.to_record_batch(records(), TP), schema.to_record_batch(records(), TP)
    assert first.column(0).buffers()[2].address == second.column(0).buffers()[2].address


def test_many_tiny_records_come_in_batches_that_the_topics_name_fits(monkeypatch):
    assert MAX_ROWS * 249 < 2**31
    n = MAX_ROWS + 2
    headers = pa.array([None] * MAX_ROWS + [[("h", b"1")], [("h", b"2")]], HEADERS_TYPE)
    columns = RecordColumns(length=n, offset=np.arange(n), headers=headers)
    fetched = SimpleNamespace(columns=columns, topic_partition=TP, next_offset=n)
    run = SimpleNamespace(next=iter([fetched, None]).__next__, add=lambda *_: None, broken=dict)
    monkeypatch.setattr(read_partition, "FetchRun", lambda *_arguments, **_options: run)
    schema = RowSchema.from_schema(struct(topic="string", offset="long").add("headers", HEADERS))
    task = SimpleNamespace(consumer=None, schema=schema)
    planned = OffsetRange(topic="t", partition=3, start=At(0), end=At(n))
    left = {TP: BoundRange(planned=planned, position=0, until_offset=n)}
    first, second = read_partition.RangeFetch(None, task).read(left, {})
    assert (first.num_rows, second.num_rows) == (MAX_ROWS, 2)
    assert [row["offset"] for row in second.to_pylist()] == [MAX_ROWS, MAX_ROWS + 1]
    assert [row["headers"][0]["value"] for row in second.to_pylist()] == [b"1", b"2"]
    assert second.column(0).to_pylist() == ["t", "t"]
    assert left[TP].position == n


def pieces():
    """Of two topics; the second has no headers, the last is a view of more."""
    later = records(offset=np.array([3, 4, 5]), headers=pa.nulls(3, HEADERS_TYPE))
    return [
        (records(), TopicPartition("a", 3)),
        (later, TopicPartition("a", 0)),
        (records().slice(1, 3), TopicPartition("b", 3)),
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_joined_pieces_are_what_each_is_alone(count):
    layout = layout_of(full_schema(True))
    joined = layout.join(pieces()[:count])
    assert joined.schema.equals(layout.arrow, check_metadata=True)
    joined.validate(full=True)
    alone = [layout.to_record_batch(*piece) for piece in pieces()[:count]]
    assert joined.to_pylist() == [row for batch in alone for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"value": pa.array([b"a", b"b", b"\xff"], pa.binary())}, "b-1 at offset 15: the value is not UTF-8"),
        ({"key": pa.array([b"a", None, b"b"], pa.binary())}, "b-1 at offset 11: `key` is null"),
        ({"timestamp_ms": np.array([2**62, 0, 0])}, "at b-1 offset 10 "),
    ],
)
def test_an_error_in_joined_pieces_names_the_partition_and_offset(changed, said):
    layout = layout_of(
        StructType().add("value", "string").add("key", "binary", nullable=False).add("timestamp", "timestamp")
    )
    good = {"key": pa.array([b"k"] * 3, pa.binary()), "timestamp_ms": np.zeros(3, np.int64)}
    given = [records(**good), records(**(good | changed)), records(**good)]
    places = [TopicPartition("a", 0), TopicPartition("b", 1), TopicPartition("c", 2)]
    with pytest.raises((ConfigError, KafkaConditionError), match=said):
        layout.join(list(zip(given, places, strict=True)))


class Ids:
    """Decodes each payload into the id of its schema, which a header may hold."""

    takes_headers = True
    type = pa.binary()

    def decode(self, payloads, headers=None):
        return Decoded(array=pa.nulls(len(payloads), pa.binary()) if headers is None else headers)


@pytest.mark.parametrize("payload", ["key", "value"])
def test_a_decoder_that_takes_ids_from_headers_gets_those_of_its_payload(payload):
    format_ = SimpleNamespace(payload=payload, name="ids", is_flat=False)
    decoded = DecodedColumns(
        payloads=(DecodedPayload(format=format_, columns=("id",), kind=pa.binary()),),
        decoders=(Ids(),),
        mode=BadRecordMode.FAILFAST,
        about_errors={},
    )
    assert decoded.record_fields == {payload, "offset", "headers"}
    ids = [("__key_schema_id", b"k"), ("__value_schema_id", b"v")]
    columns, kept = decoded.build(
        records(headers=pa.array([None, ids, [("h", b"1")]], HEADERS_TYPE)), PartitionRuns([TP], [3])
    )
    assert (columns["id"].to_pylist(), kept) == ([None, payload[:1].encode(), None], None)


def test_topics_and_partitions_are_those_of_the_rows_in_any_order() -> None:
    places = [TopicPartition("b", 0), TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("b", 1)]
    runs = PartitionRuns(places, [2, 1, 1, 1])
    assert runs.topics().to_pylist() == ["b", "b", "a", "a", "b"]
    assert runs.partitions().to_pylist() == [0, 0, 1, 0, 1]
    assert [runs.at(row).topic for row in range(5)] == ["b", "b", "a", "a", "b"]


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_batches_of_at_most_a_number_of_rows_have_all_records(length):
    columns = RecordColumns(length=length, offset=np.arange(length))
    layout = replace(layout_of(struct(offset="long")), max_rows=2)
    batches = layout.to_record_batches(columns, TP)
    assert [row["offset"] for batch in batches for row in batch.to_pylist()] == list(range(length))


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (full_schema(True), MAX_ROWS),
        (struct(**{f"c{i}": "long" for i in range(1_000)}), 2**26 // 8_000),
        (struct(value=struct(a=struct(**{f"c{i}": "string" for i in range(2_000)}))), 2**26 // 8_000),
        (struct(**{f"c{i}": "decimal(38,2)" for i in range(10_000)}), 1_000),
        (struct(), MAX_ROWS),
    ],
    ids=["Kafka's columns", "columns", "fields", "very many", "none"],
)
def test_batches_of_wide_rows_have_fewer_of_them(kind, rows):
    """Each column has a place for each row: a fetch of small records made batches of gigabytes."""
    layout = RowLayout.of(RowSchema(names=("",) * len(kind), arrow=payload_formats.to_arrow_schema(kind)))
    assert layout.max_rows == rows


@pytest.mark.parametrize(
    ("name", "kind", "nullable", "fields"),
    [
        ("key", pa.string(), True, {"key", "offset"}),
        ("value", pa.string(), True, {"value", "offset"}),
        ("key", pa.binary(), True, {"key"}),
        ("value", pa.binary(), False, {"value", "offset"}),
        ("timestamp", pa.timestamp("us", "UTC"), True, {"timestamp_ms", "offset"}),
        ("timestampType", pa.int32(), True, {"timestamp_type"}),
        ("topic", pa.string(), True, set()),
        ("partition", pa.int32(), True, set()),
        ("offset", pa.int64(), True, {"offset"}),
    ],
)
def test_where_a_value_may_be_refused_its_offset_is_read_too(name, kind, nullable, fields):
    """Else the error could not say which record it is about."""
    assert KafkaColumn(name=name, field=pa.field(name, kind, nullable)).record_fields == fields
