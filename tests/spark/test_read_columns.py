"""Reading some columns, in any order; filters that prune; the topic as a table in SQL."""

from datetime import UTC, datetime

import pytest
from chispa import assert_df_equality
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

pytestmark = [pytest.mark.broker, pytest.mark.spark]

START_MS = 1_700_000_000_000
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def numbers(peer, kafka):
    topic = peer.create(kafka, "read-columns-numbers", 4)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(400, 4))
    return topic


@pytest.fixture
def pushdown(spark):
    before = spark.conf.get(PUSHDOWN, "false")
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.set(PUSHDOWN, before)


@pytest.mark.parametrize(
    "schema",
    [
        "offset long",
        "timestampType int, value binary",
        "partition int, topic string",
        "value string, key string, offset bigint",
        "headers array<struct<key:string,value:binary>>, timestamp timestamp",
    ],
)
def test_any_columns_in_any_order_are_the_same_records(peer, spark, kafka, numbers, schema):
    pruned = peer.read(spark, kafka, numbers, schema)
    whole = peer.read(spark, kafka, numbers, includeHeaders="true")
    expected = whole.selectExpr(
        *(f"cast({field.name} as {field.dataType.simpleString()}) {field.name}" for field in pruned.schema)
    )
    order = pruned.columns if "headers" not in pruned.columns else ["timestamp"]
    assert_df_equality(pruned.orderBy(*order), expected.orderBy(*order), ignore_nullable=True)
    assert pruned.count() == 400


def test_a_column_that_is_not_null_stays_so(peer, spark, kafka, numbers):
    frame = peer.read(spark, kafka, numbers, "offset long not null")
    assert frame.count() == 400
    assert sorted({row.offset for row in frame.collect()}) == list(range(100))


def test_text_that_is_not_utf8_names_the_offset(peer, spark, kafka, topic):
    peer.create(kafka, topic)
    peer.write(
        kafka.bootstrap_servers, topic, [(0, None, value, START_MS, []) for value in (b"a", b"b", b"\xff")]
    )
    assert peer.read(spark, kafka, topic, "value binary").count() == 3
    with pytest.raises(Exception) as caught:
        peer.read(spark, kafka, topic, "value string").collect()
    assert f"{topic}-0 at offset 2: the value is not UTF-8; read the column as binary" in peer.message_of(
        caught
    )


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("ofset long", "has no column `ofset`; did you mean `offset`?"),
        ("value int", "Column `value` can be read as binary or string, not as int"),
    ],
)
def test_a_wrong_schema_says_what_is_allowed(peer, spark, kafka, numbers, schema, why):
    with pytest.raises(Exception) as caught:
        peer.read(spark, kafka, numbers, schema).count()
    assert why in peer.message_of(caught)


FILTERS = [
    "partition = 2",
    "partition in (0, 3) and offset >= 40",
    "offset between 10 and 19 and partition <> 1",
    "topic = 'read-columns-numbers' and offset < 5",
    "topic like 'nothing%'",
    "timestamp >= timestamp '2023-11-14 22:13:20.350'",
    "timestamp < timestamp '2023-11-14 22:13:20.020'",
    "timestamp = timestamp '2023-11-14 22:13:20.123'",
    "partition > 7",
    "value = 'v17' and partition = 1",
]


@pytest.mark.parametrize("condition", FILTERS)
def test_a_pushed_filter_changes_nothing_but_the_work(peer, spark, kafka, numbers, condition, pushdown):
    pushed = peer.read(spark, kafka, numbers, filterPushdown="true").where(condition)
    plain = peer.read(spark, kafka, numbers).where(condition)
    assert_df_equality(pushed.orderBy("partition", "offset"), plain.orderBy("partition", "offset"))


def test_pruned_partitions_are_never_fetched(peer, spark, kafka, numbers, pushdown):
    frame = peer.read(spark, kafka, numbers, filterPushdown="true")
    assert frame.where("partition = 2").rdd.getNumPartitions() == 1
    frame = peer.read(spark, kafka, numbers, filterPushdown="true")
    assert frame.where("partition in (0, 1)").rdd.getNumPartitions() == 2


def test_late_records_pass_a_pushed_filter_too(peer, spark, kafka, topic, pushdown):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10))
    since = datetime.fromtimestamp((START_MS + 8) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    recent = peer.read(spark, kafka, topic, filterPushdown="true").where(f"timestamp >= timestamp '{since}'")
    far = peer.read(spark, kafka, topic, filterPushdown="true").where(
        "timestamp >= timestamp '2023-11-14 22:13:20.015'"
    )
    assert (recent.count(), far.count()) == (2, 0)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10, start=10))
    assert (recent.count(), far.count()) == (12, 5)


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_an_upper_time_bound_loses_no_record_that_comes_late(
    peer, spark, kafka, topic, pushdown, timestamp_type
):
    """Timestamps set by producers may be out of order, also in a topic that has log-append time by now."""
    peer.create(kafka, topic, message_timestamp_type="CreateTime")
    times = (5, 90, 3, 80, 1)
    peer.write(kafka.bootstrap_servers, topic, [(0, None, b"v", START_MS + t, []) for t in times])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    entry = ConfigEntry("message.timestamp.type", timestamp_type, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
    frame = peer.read(spark, kafka, topic, filterPushdown="true")
    early = frame.where("timestamp < timestamp '2023-11-14 22:13:20.010'")
    assert sorted(row.offset for row in early.collect()) == [0, 2, 4]


def test_without_the_option_a_frame_can_be_used_with_several_filters(peer, spark, kafka, numbers, pushdown):
    """Spark keeps the partitions of the last pushed filter attached to a DataFrame: pushing is asked for by
    name.
    """
    frame = peer.read(spark, kafka, numbers)
    assert frame.where("partition = 2").count() == 100
    assert frame.count() == 400
    assert frame.where("partition = 2").union(frame.where("partition = 3")).count() == 200


def test_with_the_option_but_without_the_conf_nothing_is_pushed(peer, spark, kafka, numbers):
    frame = peer.read(spark, kafka, numbers, filterPushdown="true")
    assert frame.where("partition = 2").rdd.getNumPartitions() == 4
    assert (frame.where("partition = 2").count(), frame.count()) == (100, 400)


def test_spark_still_keeps_pushed_filters_attached(peer, spark, kafka, numbers, pushdown):
    """Why `filterPushdown` is an option. Once this fails, Spark has mended it, and the option can be on by
    default.
    """
    frame = peer.read(spark, kafka, numbers, filterPushdown="true")
    assert frame.where("partition = 2").count() == 100
    assert frame.count() == 100


def test_a_topic_is_a_table_in_sql(peer, spark, kafka, numbers):
    spark.sql(
        f"""CREATE OR REPLACE TEMPORARY VIEW numbers USING pykafka OPTIONS (
            kafka.bootstrap.servers '{kafka.bootstrap_servers}', subscribe '{numbers}')"""
    )
    try:
        row = spark.sql("SELECT count(*) n, max(offset) top FROM numbers WHERE partition < 2").collect()[0]
        assert (row.n, row.top) == (200, 99)
        assert spark.read.table("numbers").count() == 400
        spark.sql(
            f"""CREATE OR REPLACE TEMPORARY VIEW numbers (offset BIGINT, value STRING) USING pykafka OPTIONS (
                kafka.bootstrap.servers '{kafka.bootstrap_servers}', subscribe '{numbers}')"""
        )
        assert spark.table("numbers").where("value = 'v399'").collect()[0].offset == 99
    finally:
        spark.catalog.dropTempView("numbers")
