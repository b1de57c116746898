from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructType

from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.producer.accumulating.records_in import columns_by_topic
from spark_kafka_native.spark.error_conditions import KafkaConditionError
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.read.schema import HEADERS
from spark_kafka_native.spark.write.write_options import WriteOptions
from spark_kafka_native.spark.write.write_task import RowColumns


def test_beside_the_option_nobody_looks_at_the_topic_column():
    schema = StructType().add("topic", "integer").add("value", "string")
    columns, warnings = RowColumns.check(schema, "t")
    assert (columns.names, warnings) == (("value",), ())
    batch = pa.record_batch({"topic": pa.array([1, None], pa.int32()), "value": ["a", "b"]})
    (part,) = columns_by_topic(columns.select(batch), "t")
    assert (part.topic, part.columns.value.to_pylist()) == ("t", [b"a", b"b"])


def test_without_the_option_the_topic_column_has_to_be_a_string():
    with pytest.raises(ConfigError, match=r"topic must be a\(n\) string"):
        RowColumns.check(StructType().add("topic", "integer").add("value", "string"), None)
    with pytest.raises(ConfigError, match="topic option required when no 'topic' attribute is present"):
        RowColumns.check(StructType().add("value", "string"), None)


def test_a_timestamp_is_written_only_where_it_is_asked_for():
    schema = StructType().add("value", "string").add("timestamp", "timestamp").add("at", "timestamp")
    columns, warnings = RowColumns.check(schema, "t")
    assert columns.names == ("value",)
    assert [w for w in warnings if "column 'timestamp' is not written" in w and "timestampColumn" in w]
    assert RowColumns.check(StructType().add("value", "string").add("timestamp", "long"), "t")[1] == warnings
    batch = pa.record_batch(
        {
            "value": ["a"],
            "timestamp": pa.array([1_000_000], pa.timestamp("us")),
            "at": pa.array([2_000_000], pa.timestamp("us")),
        }
    )
    for name, milliseconds in {"timestamp": 1_000, "at": 2_000}.items():
        columns, warnings = RowColumns.check(schema, "t", name)
        assert warnings == ()
        (part,) = columns_by_topic(columns.select(batch), "t")
        assert part.columns.timestamp_ms.tolist() == [milliseconds]


def test_a_column_of_timestamps_has_to_be_there_and_of_that_type():
    schema = StructType().add("value", "string").add("at", "long")
    with pytest.raises(ConfigError, match="timestampColumn: there is no column 'when' among value, at"):
        RowColumns.check(schema, "t", "when")
    with pytest.raises(
        ConfigError, match=r"'at' is bigint, and must be a timestamp; .*cast\(\"timestamp\"\)"
    ):
        RowColumns.check(schema, "t", "at")


@pytest.mark.parametrize("name", ["key", "value"])
def test_a_key_or_value_that_is_encoded_is_not_the_timestamp_too(name):
    given = {"kafka.bootstrap.servers": "a:1", "topic": "t", "key.format": "json", "value.format": "json"}
    formats = WriteOptions.parse(OptionValues.parse(given, Scope.WRITE)).formats
    schema = StructType().add("key", "timestamp").add("value", "timestamp")
    words = (
        rf'{name}\.format encodes; copy it: .*"timestamp", col\("{name}"\)\), with timestampColumn=timestamp'
    )
    with pytest.raises(ConfigError, match=words):
        RowColumns.check(schema, "t", name, formats=formats)
    columns, _ = RowColumns.check(schema.add("timestamp", "timestamp"), "t", "timestamp", formats=formats)
    assert columns.names == ("key", "value", "timestamp")


COL = r"""col\("value"\)"""


@pytest.mark.parametrize(
    ("schema", "hint"),
    [
        (StructType().add("key", "string"), r"""value' not found; .*\.select\(to_json\(struct\("\*"\)\)"""),
        (StructType().add("value", "integer"), rf"""\.withColumn\("value", {COL}\.cast\("string"\)\)"""),
        (StructType().add("value", ArrayType(IntegerType())), rf"""\("value", to_json\({COL}\)\)"""),
        (StructType().add("value", "string").add("key", "long"), r"""key .*\.cast\("string"\)"""),
    ],
)
def test_a_column_that_can_not_be_written_comes_with_what_to_do(schema, hint):
    with pytest.raises(ConfigError, match=hint):
        RowColumns.check(schema, "t")


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("partition", LongType(), r"partition must be a\(n\) int"),
        ("headers", StringType(), "headers must be"),
        ("headers", ArrayType(StringType()), "headers must be"),
        ("headers", ArrayType(StructType().add("key", "string").add("value", "string")), "headers must be"),
        ("headers", ArrayType(StructType().add("value", "binary").add("key", "string")), "headers must be"),
        ("headers", ArrayType(StructType().add("name", "string").add("data", "binary")), "headers must be"),
        ("headers", HEADERS, None),
        (
            "headers",
            ArrayType(
                StructType().add("key", "string", nullable=False).add("value", "binary", nullable=False)
            ),
            None,
        ),
        ("partition", IntegerType(), None),
    ],
)
def test_headers_and_partitions_have_the_types_of_spark(name, kind, words):
    schema = StructType().add("value", "string").add(name, kind)
    if words is None:
        assert set(RowColumns.check(schema, "t")[0].names) == {"value", name}
        return
    with pytest.raises(ConfigError, match=words):
        RowColumns.check(schema, "t")


def test_rows_without_a_topic_are_refused_and_counted():
    columns, _ = RowColumns.check(StructType().add("value", "string").add("topic", "string"), None)
    rows = pa.record_batch({"value": ["a", "b", "c"], "topic": ["t", None, None]})
    with pytest.raises(KafkaConditionError, match=r"^\[KAFKA_NULL_TOPIC_IN_DATA\] .*\(2 of 3 rows\)$"):
        columns.select(rows)
    assert columns.select(rows[:1]).to_pydict() == {"value": ["a"], "topic": ["t"]}


@pytest.mark.parametrize("name", ["key", "value", "topic", "partition", "headers", "at"])
def test_two_columns_of_a_name_that_is_written_are_ambiguous(name):
    kinds = {"partition": "integer", "headers": HEADERS, "at": "timestamp"}
    schema = StructType()
    for one in ("key", "value", "topic", "partition", "headers", "at", name):
        schema = schema.add(one, kinds.get(one, "string"))
    with pytest.raises(ConfigError, match=rf"^Reference `{name}` is ambiguous: .* has 2 columns .* rename"):
        RowColumns.check(schema, None, "at")


def test_two_columns_of_a_name_that_is_not_written_are_ignored():
    """So are those in another case: names match exactly, as with Spark's own connector."""
    others = ["topic", "topic", "at", "at", "Value", "VALUE"]
    schema = StructType().add("value", "string")
    for name in others:
        schema = schema.add(name, "string")
    columns, _ = RowColumns.check(schema, "t")
    batch = pa.RecordBatch.from_arrays([pa.array([name]) for name in schema.names], names=schema.names)
    assert columns.select(batch).to_pydict() == {"value": ["value"]}


def test_a_format_of_keys_without_keys_is_warned_of():
    given = {"kafka.bootstrap.servers": "a:1", "topic": "t", "key.format": "json", "value.format": "json"}
    formats = WriteOptions.parse(OptionValues.parse(given, Scope.WRITE)).formats
    schema = StructType().add("value", StructType().add("id", "long"))
    columns, warnings = RowColumns.check(schema, "t", formats=formats)
    assert (columns.names, len(warnings)) == (("value",), 1)
    assert "no column `key`: the records have no key" in warnings[0]
    assert columns.select(pa.record_batch({"value": [{"id": 7}]})).to_pydict() == {"value": [b'{"id":7}']}
    with pytest.raises(ConfigError, match="no column `key`, but `Key`: rename it"):
        RowColumns.check(schema.add("Key", "string"), "t", formats=formats)
    assert RowColumns.check(schema.add("key", "string"), "t", formats=formats)[1] == ()


@pytest.mark.parametrize("has_headers", [False, True])
def test_headers_that_a_format_adds_are_written_with_and_without_a_column_of_them(has_headers):
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    added = pa.array([[{"key": "id", "value": b"7"}]], kind)
    given = []

    def encode(batch, headers):
        given.append(headers)
        return batch.column("value"), added

    encoded = SimpleNamespace(format=SimpleNamespace(payload="value"), encode=encode)
    own = {"headers": pa.array([[]], kind)} if has_headers else {}
    columns = RowColumns(names=("value", *own), topic="t", encoded=(encoded,))
    (part,) = columns_by_topic(columns.select(pa.record_batch({"value": [b"v"]} | own)), "t")
    assert part.columns.headers.to_pylist() == added.to_pylist()
    assert given == [own.get("headers")]


def test_headers_that_the_formats_of_key_and_value_add_are_written_together():
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

    def encoded(payload):
        def encode(batch, headers):
            pairs = [*headers.to_pylist()[0], {"key": f"id of the {payload}", "value": b"7"}]
            return batch.column(payload), pa.array([pairs], kind)

        return SimpleNamespace(format=SimpleNamespace(payload=payload), encode=encode)

    columns = RowColumns(
        names=("key", "value", "headers"), topic="t", encoded=(encoded("key"), encoded("value"))
    )
    own = pa.array([[{"key": "own", "value": b"1"}]], kind)
    rows = columns.select(pa.record_batch({"key": [b"k"], "value": [b"v"], "headers": own}))
    names = [pair["key"] for pair in rows.column("headers")[0].as_py()]
    assert names == ["own", "id of the key", "id of the value"]
