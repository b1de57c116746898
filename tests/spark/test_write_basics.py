"""Batch writes on a real broker: the written records come back, and save() names records that can't be
written."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import confluent_kafka
import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

import spark_kafka_native

pytestmark = [pytest.mark.broker, pytest.mark.spark]

HEADERS = "array<struct<key:string,value:binary>>"


@pytest.fixture
def save(spark, kafka):
    def run(frame, topic=None, mode="append", **options):
        writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        if topic is not None:
            writer = writer.option("topic", topic)
        for name, value in options.items():
            writer = writer.option(name.replace("__", "."), value)
        writer.mode(mode).save()

    return run


@pytest.fixture
def load(spark, kafka):
    def run(topic, **options):
        reader = spark.read.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        return reader.option("subscribe", topic).options(**options).load()

    return run


def refusal(call):
    with pytest.raises(Exception) as caught:  # Spark's own, of any class
        call()
    return str(caught.value)


def test_a_thread_that_begins_with_a_write_registers_the_source(spark, kafka, topic, save, load):
    """Spark looks for Python sources in the active session of the thread; `register` is to make it one."""
    kafka.create_topic(topic)
    frame = spark.range(1).selectExpr("'x' AS value")

    def write():
        spark_kafka_native.register(spark)
        save(frame, topic)

    with ThreadPoolExecutor(1) as thread:
        assert "[DATA_SOURCE_NOT_FOUND]" in refusal(thread.submit(save, frame, topic).result)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(write).result()
    assert [bytes(row.value) for row in load(topic).collect()] == [b"x"]


def test_what_is_written_is_read(spark, kafka, topic, save, load):
    kafka.create_topic(topic, partitions=3)
    frame = spark.createDataFrame(
        [
            (b"k", b"v", 0, [("h", b"1"), ("h", None)], datetime(2024, 5, 6, 7, 8, 9, 123000, UTC)),
            (None, b"", 0, [], datetime(2020, 1, 1, tzinfo=UTC)),
            (b"", None, 2, None, datetime(2020, 1, 1, tzinfo=UTC)),
        ],
        f"key binary, value binary, partition int, headers {HEADERS}, timestamp timestamp",
    )
    save(frame.coalesce(1), topic, timestampColumn="timestamp")
    names = ["key", "value", "partition", "headers", "timestamp"]
    found = load(topic, includeHeaders="true").select(*names)
    wanted = frame.withColumn("headers", F.when(F.size("headers") > 0, F.col("headers")))
    assert_df_equality(found, wanted, ignore_row_order=True, ignore_nullable=True)


def test_a_copy_has_the_time_of_its_writing(spark, kafka, topic, save, load):
    names = (topic, f"{topic}-copy")
    for name in names:
        kafka.create_topic(name, partitions=1)
    old = datetime(2020, 1, 1, tzinfo=UTC)
    before = datetime.now(UTC) - timedelta(hours=1)
    save(
        spark.createDataFrame([("v", old)], "value string, at timestamp").coalesce(1), topic,
        timestampColumn="at",
    )  # fmt: skip
    save(load(topic).drop("topic", "partition"), names[1])
    counts = [load(name).where(F.col("timestamp") > F.lit(before)).count() for name in names]
    assert counts == [0, 1]
    said = refusal(lambda: save(load(topic), names[1], timestampColumn="At"))
    assert "timestampColumn: there is no column 'At' among key, value, topic" in said


def test_strings_and_many_rows(spark, kafka, topic, save, load):
    kafka.create_topic(topic, partitions=4)
    frame = spark.range(0, 200_000, 1, 4).select(
        F.col("id").cast("string").alias("key"), F.concat(F.lit("wörld "), "id").alias("value")
    )
    save(frame, topic)
    found = load(topic).select(F.col("key").cast("string"), F.col("value").cast("string"))
    assert found.count() == 200_000
    assert found.exceptAll(frame).count() == 0


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_and_another_reader(spark, kafka, topic, save, codec):
    kafka.create_topic(topic, partitions=1)
    frame = spark.range(0, 5_000, 1, 1).select(F.col("id").cast("string").alias("value"))
    save(frame, topic, **{"kafka.compression.type": codec})
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "log_level": 0}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    values = []
    while len(values) < 5_000:
        values += [message.value() for message in consumer.consume(5_000, 5)]
    consumer.close()
    assert values == [b"%d" % i for i in range(5_000)]


def test_rows_may_say_their_topic_and_the_option_goes_before(spark, kafka, topic, save, load):
    for name in (topic, f"{topic}-b"):
        kafka.create_topic(name, partitions=1)
    frame = spark.createDataFrame(
        [(topic, "1"), (f"{topic}-b", "2"), (topic, "3")], "topic string, value string"
    )
    save(frame.coalesce(1))
    assert [bytes(r.value) for r in load(topic).orderBy("offset").collect()] == [b"1", b"3"]
    save(frame.coalesce(1), f" {topic}-b ")
    assert [bytes(r.value) for r in load(f"{topic}-b").orderBy("offset").collect()] == [
        b"2",
        b"1",
        b"2",
        b"3",
    ]


def test_beside_the_option_a_topic_column_may_be_anything(spark, kafka, topic, save, load):
    kafka.create_topic(topic, partitions=1)
    save(spark.createDataFrame([(7, "1"), (None, "2")], "topic int, value string").coalesce(1), topic)
    assert [bytes(r.value) for r in load(topic).orderBy("offset").collect()] == [b"1", b"2"]


def test_the_partition_column_goes_before_the_partitioner(spark, kafka, topic, save, load):
    kafka.create_topic(topic, partitions=4)
    rows = [("same", "a", 1), ("same", "b", 3), ("same", "c", None), ("same", "d", None)]
    frame = spark.createDataFrame(rows, "key string, value string, partition int")
    save(frame.coalesce(1), topic, **{"kafka.partitioner.class": "murmur2"})
    where = {bytes(r.value): r.partition for r in load(topic).collect()}
    assert (where[b"a"], where[b"b"]) == (1, 3)
    assert where[b"c"] == where[b"d"]


def test_the_summary_says_where_everything_is(spark, kafka, topic, save, tmp_path):
    kafka.create_topic(topic, partitions=2)
    frame = spark.range(0, 1_000, 1, 3).select(
        F.col("id").cast("string").alias("value"), (F.col("id") % 2).cast("int").alias("partition")
    )
    path = tmp_path / "deep" / "summary.json"
    for times in (1, 2):
        save(frame, topic, summaryPath=str(path))
        told = json.loads(path.read_text())
        assert (told["records"], told["retries"], told["tasks"]) == (1_000, 0, 3)
        assert told["bytes"] > 5_000
        assert told["partitions"] == [
            {
                "topic": topic,
                "partition": p,
                "records": 500,
                "bytes": told["partitions"][p]["bytes"],
                "firstOffset": 500 * (times - 1),
                "lastOffset": 500 * times - 1,
            }
            for p in (0, 1)
        ]


def test_rows_over_the_topics_limit_end_as_they_were_told_to(spark, kafka, topic, save, load, tmp_path):
    kafka.create_topic(topic, partitions=1, config={"max.message.bytes": "2000"})
    frame = spark.createDataFrame([("a",), ("b" * 3_000,), ("c",)], "value string").coalesce(1)
    path = tmp_path / "summary.json"
    assert "row 1 for topic" in refusal(lambda: save(frame, topic))
    save(frame, topic, summaryPath=str(path), kafka__over__limit="skip")
    told = json.loads(path.read_text())
    assert (told["records"], told["skippedRecords"], told["deadLetteredRecords"]) == (2, 1, 0)
    letters = {"kafka__over__limit": "dead_letter", "kafka__dead__letter__topic": f"{topic}.dead"}
    assert f"topic {topic}.dead" in refusal(
        lambda: save(frame, topic, kafka__max__block__ms="3000", **letters)
    )
    save(frame, topic, summaryPath=str(path), createTopics="true", **letters)
    told = json.loads(path.read_text())
    assert (told["records"], told["skippedRecords"], told["deadLetteredRecords"]) == (3, 0, 1)
    assert [bytes(r.value) for r in load(topic).orderBy("offset").collect()] == [b"a", b"c"] * 2
    assert [bytes(r.value) for r in load(f"{topic}.dead").collect()] == [b"b" * 3_000]


def test_nothing_to_write_is_fine(spark, kafka, topic, save, load):
    kafka.create_topic(topic, partitions=1)
    save(spark.createDataFrame([], "value string"), topic)
    assert load(topic).count() == 0


def test_a_missing_topic_is_named_at_save(spark, topic, save):
    frame = spark.createDataFrame([("a",)], "value string")
    said = refusal(lambda: save(frame, topic))
    assert f"topic {topic} does not exist: create it first, or set createTopics=true" in said


def test_topics_are_created_on_request(spark, topic, save, load):
    frame = spark.createDataFrame([("a", topic), ("b", f"{topic}-2")], "value string, topic string")
    options = {"createTopics": "true", "createTopics.partitions": "3", "createTopics.replicationFactor": "1"}
    save(frame.drop("topic"), topic, **options)
    save(frame.repartition(2), **options)
    assert load(topic).count() == 3
    assert load(f"{topic}-2").count() == 1


@pytest.mark.parametrize(
    ("schema", "topic_option", "message"),
    [
        (
            "value string",
            None,
            "topic option required when no 'topic' attribute is present. "
            "Use the topic option for setting a topic.",
        ),
        ("value string, topic int", None, "topic must be a(n) string"),
        ("key string", "t", "Required attribute 'value' not found"),
        ("value int", "t", "value attribute unsupported type int. value must be a(n) string or binary"),
        (
            "value string, key double",
            "t",
            "key attribute unsupported type double. key must be a(n) string or binary",
        ),
        (
            "value string, headers array<string>",
            "t",
            "headers must be a(n) array<struct<key:string,value:binary>>",
        ),
        ("value string, partition bigint", "t", "partition must be a(n) int"),
        # The order of the checks: topic, key, value, headers, partition.
        ("value int, key int, partition string", "t", "key attribute unsupported type int"),
        ("VALUE string", "t", "Required attribute 'value' not found"),
    ],
)
def test_columns_are_checked_at_save_in_the_words_of_the_jvm(spark, save, schema, topic_option, message):
    frame = spark.createDataFrame([], StructType.fromDDL(schema))
    assert message in refusal(lambda: save(frame, topic_option))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        (
            "kafka.key.serializer",
            "x",
            "Kafka option 'key.serializer' is not supported as keys are serialized with",
        ),
        (
            "kafka.value.serializer",
            "x",
            "Kafka option 'value.serializer' is not supported as value are serialized",
        ),
        ("kafka.transactional.id", "x", "Kafka option 'transactional.id' is not supported"),
        ("kafka.acks", "7", "acks must be all (or -1), 1 or 0, not '7'"),
        ("kafka.compression.type", "brotli", "compression.type must be one of none, gzip, snappy, lz4, zstd"),
        (
            "kafka.partitioner.class",
            "com.acme.Mine",
            "partitioner.class='com.acme.Mine' is not a partitioner",
        ),
        ("createTopics.partitions", "3", "has no effect without createTopics=true"),
    ],
)
def test_options_are_checked_at_save(spark, save, option, value, message):
    frame = spark.createDataFrame([("a",)], "value string")
    assert message in refusal(lambda: save(frame, "t", **{option: value}))


def test_only_append(spark, save):
    frame = spark.createDataFrame([("a",)], "value string")
    assert "Save mode Overwrite not allowed for Kafka" in refusal(lambda: save(frame, "t", mode="overwrite"))
    assert '"Append"' in refusal(lambda: save(frame, "t", mode="errorifexists"))


def test_a_null_topic_is_the_jvms_condition(spark, kafka, topic, save):
    kafka.create_topic(topic, partitions=1)
    frame = spark.createDataFrame([(topic, "a"), (None, "b")], "topic string, value string")
    said = refusal(lambda: save(frame.coalesce(1)))
    assert "KAFKA_NULL_TOPIC_IN_DATA" in said
    assert "contains a null topic" in said


def test_a_task_that_fails_says_which_row(spark, kafka, topic, save):
    kafka.create_topic(topic, partitions=2, config={"max.message.bytes": "50000"})
    rows = spark.range(0, 30_000, 1, 1)
    large = F.when(F.col("id") == 25_000, F.repeat(F.lit("x"), 60_000)).otherwise(F.lit("y"))
    said = refusal(lambda: save(rows.select(large.alias("value")), topic))
    assert f"partition 0 of the DataFrame, row 25000 for topic {topic}: the record takes 600" in said
    assert "the topic's max.message.bytes allows 50000" in said

    outside = F.when(F.col("id") == 12_345, 9).otherwise(1)
    said = refusal(lambda: save(rows.select(F.lit("v").alias("value"), outside.alias("partition")), topic))
    assert f"row 12345 for topic {topic}: there is no partition 9: the topic has 2 partitions, 0 to 1" in said

    headers = F.when(
        F.col("id") == 7,
        F.array(F.struct(F.lit(None).cast("string").alias("key"), F.lit(b"").alias("value"))),
    )
    said = refusal(lambda: save(rows.select(F.lit("v").alias("value"), headers.alias("headers")), topic))
    assert "row 7" in said
    assert "a header with a null key" in said


def test_what_the_broker_refuses_is_said_with_the_row(spark, kafka, topic, save):
    kafka.create_topic(topic, partitions=1, config={"cleanup.policy": "compact"})
    frame = spark.range(0, 100, 1, 1).select(
        F.when(F.col("id") != 50, F.col("id").cast("string")).alias("key"), F.lit("v").alias("value")
    )
    said = refusal(lambda: save(frame, topic))
    assert "INVALID_RECORD" in said
    assert f"topic {topic}" in said


def test_other_columns_are_ignored(spark, kafka, topic, save, load):
    kafka.create_topic(topic, partitions=1)
    frame = spark.createDataFrame(
        [("v", 1.5, {"a": 1}, "soon")], "value string, x double, y map<string,int>, timestamp string"
    )
    save(frame, topic)
    assert [bytes(row.value) for row in load(topic).collect()] == [b"v"]
