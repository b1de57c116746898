"""Batch reads on a real broker give the written records."""

from datetime import UTC, datetime, timedelta

import pytest
from chispa import assert_df_equality

from spark_kafka_native import KafkaDataSource
from spark_kafka_native.spark.read.schema import full_schema

pytestmark = [pytest.mark.broker, pytest.mark.spark]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_every_column_of_every_kind_of_record(peer, spark, kafka, topic):
    peer.create(kafka, topic, 2)
    big = bytes(range(250)) * 4000
    records = [
        (0, b"k", b"v", 1_700_000_000_123, [("h", b"1"), ("h", None), ("ключ", b"")]),
        (0, None, b"", 2, []),
        (0, b"", None, 1_700_000_000_000, []),
        (0, None, None, 1, [("only", b"\xff")]),
        (1, "schlüssel".encode(), big, 1_700_000_000_002, []),
        (1, b"\x00", b"x", 1_700_000_000_001, []),
    ]
    peer.write(kafka.bootstrap_servers, topic, records, message_max_bytes=2_000_000)
    expected = [
        (
            key if key is None else bytearray(key),
            value if value is None else bytearray(value),
            topic,
            partition,
            offset,
            EPOCH + timedelta(milliseconds=timestamp_ms),
            0,
            [(name, data) for name, data in headers] or None,
        )
        for (partition, key, value, timestamp_ms, headers), offset in zip(
            records, (0, 1, 2, 3, 0, 1), strict=True
        )
    ]
    frame = peer.read(spark, kafka, topic, includeHeaders="true")
    assert frame.schema == full_schema(True)
    wanted = spark.createDataFrame(expected, full_schema(True))
    assert_df_equality(frame.orderBy("partition", "offset"), wanted.orderBy("partition", "offset"))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(peer, spark, kafka, topic, codec):
    peer.create(kafka, topic, 3)
    records = [(i % 3, b"k%d" % i, b"value " * 20 + b"%d" % i, 1_700_000_000_000, []) for i in range(3000)]
    peer.write(kafka.bootstrap_servers, topic, records, compression_type=codec)
    frame = peer.read(spark, kafka, topic)
    assert {bytes(row.value) for row in frame.select("value").collect()} == {record[2] for record in records}
    assert peer.offsets(frame) == {partition: list(range(1000)) for partition in range(3)}


def test_log_append_time_shows_its_type(peer, spark, kafka, topic):
    peer.create(kafka, topic, message_timestamp_type="LogAppendTime")
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10))
    rows = peer.read(spark, kafka, topic).select("timestampType", "timestamp").collect()
    assert {row.timestampType for row in rows} == {1}
    assert all(row.timestamp.year > 2023 for row in rows)


def test_an_empty_topic_is_an_empty_frame(peer, spark, kafka, topic):
    peer.create(kafka, topic, 3)
    frame = peer.read(spark, kafka, topic)
    assert frame.schema == full_schema(False)
    assert frame.count() == 0


def test_no_topic_at_all_is_an_empty_frame(peer, spark, kafka, topic):
    assert peer.read(spark, kafka, subscribePattern=f"^nothing-like-{topic}$").count() == 0


def test_several_topics_by_list_pattern_and_assignment(peer, spark, kafka, topic):
    for name in ("a", "b", "c"):
        peer.create(kafka, f"{topic}-{name}", 2)
        peer.write(kafka.bootstrap_servers, f"{topic}-{name}", peer.numbered(20, 2))

    def counts(**options):
        rows = peer.read(spark, kafka, **options).groupBy("topic", "partition").count().collect()
        return {(row.topic.removeprefix(f"{topic}-"), row.partition): row["count"] for row in rows}

    assert counts(subscribe=f" {topic}-a , {topic}-c") == {(n, p): 10 for n in "ac" for p in (0, 1)}
    # Found anywhere in the name, as Java's find does; internal topics never match.
    assert counts(subscribePattern=topic[2:] + "-[ab]") == {(n, p): 10 for n in "ab" for p in (0, 1)}
    assigned = f'{{"{topic}-a":[1,7],"{topic}-b":[0]}}'
    assert counts(assign=assigned) == {("a", 1): 10, ("b", 0): 10}


def test_offsets_as_json(peer, spark, kafka, topic):
    peer.create(kafka, topic, 3)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(30, 3))
    frame = peer.read(
        spark,
        kafka,
        topic,
        startingOffsets=f'{{"{topic}":{{"0":-2,"1":4,"2":10}}}}',
        endingOffsets=f'{{"{topic}":{{"0":3,"1":-1,"2":10}}}}',
    )
    assert peer.offsets(frame) == {0: [0, 1, 2], 1: [4, 5, 6, 7, 8, 9]}


def test_json_must_list_exactly_the_partitions(peer, spark, kafka, topic):
    peer.create(kafka, topic, 2)
    with pytest.raises(Exception) as caught:
        peer.read(spark, kafka, topic, startingOffsets=f'{{"{topic}":{{"0":0}}}}').count()
    assert "[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED] Partitions specified" in peer.message_of(caught)
    assert f"Specified: [{topic}-0] Assigned: [{topic}-0, {topic}-1]" in peer.message_of(caught)


def test_a_frame_sees_what_arrived_between_two_jobs(peer, spark, kafka, topic):
    peer.create(kafka, topic, 2)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10, 2))
    whole = peer.read(spark, kafka, topic)
    split = peer.read(spark, kafka, topic, minPartitions=6)
    packed = peer.read(spark, kafka, topic, maxPartitions=1)
    frames = (whole, split, packed)
    assert [frame.count() for frame in frames] == [10, 10, 10]
    assert [frame.rdd.getNumPartitions() for frame in frames] == [2, 6, 1]
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(6, 2, start=10))
    assert [peer.offsets(frame) for frame in frames] == [{0: list(range(8)), 1: list(range(8))}] * 3


def test_splitting_and_packing_lose_and_repeat_nothing(peer, spark, kafka, topic):
    peer.create(kafka, topic, 5)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(997, 5))
    for options, tasks in (
        ({"maxRecordsPerPartition": 50}, 20),
        ({"minPartitions": 13}, 15),
        ({"maxPartitions": 2}, 2),
        ({"maxRecordsPerPartition": 50, "maxPartitions": 3}, 3),
    ):
        frame = peer.read(spark, kafka, topic, **options)
        assert frame.rdd.getNumPartitions() == tasks
        found = peer.offsets(frame)
        assert {p: sorted(seen) for p, seen in found.items()} == {
            p: list(range(len(found[p]))) for p in found
        }
        assert sum(map(len, found.values())) == 997


@pytest.mark.parametrize("retries", [{"fetchOffset.numRetries": 0}, {}], ids=["no-retry", "default"])
def test_a_missing_topic_is_named_with_the_nearest(peer, spark, kafka, topic, retries):
    peer.create(kafka, topic)
    with pytest.raises(Exception) as caught:
        peer.read(spark, kafka, topic + "x", **retries).count()
    assert f"the topic does not exist; did you mean '{topic}'?" in peer.message_of(caught)


def test_options_are_refused_at_load_where_spark_lets_us(peer, spark, kafka):
    with pytest.raises(Exception, match="One of the following options must be specified for Kafka source"):
        peer.read(spark, kafka)
    with pytest.raises(Exception, match="minPartitions must be positive"):
        peer.read(spark, kafka, "t", minPartitions=0)
    with pytest.raises(Exception, match="starting offset can't be latest for batch queries on Kafka"):
        peer.read(spark, kafka, "t", startingOffsets="latest").count()


def test_an_unreachable_broker_is_named_in_time(peer, spark):
    with pytest.raises(Exception) as caught:
        (
            spark.read.format("pykafka")
            .option("kafka.bootstrap.servers", "127.0.0.1:1")
            .option("kafka.default.api.timeout.ms", "2000")
            .option("subscribe", "t")
            .load()
            .count()
        )
    said = peer.message_of(caught)
    assert said.count("127.0.0.1:1") == 1
    assert "refused" in said.lower()
    assert "Traceback" not in said


def test_a_task_fails_with_a_sentence_too(peer, spark, kafka, topic):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(3))
    with pytest.raises(Exception) as caught:
        peer.read(spark, kafka, topic, endingOffsets=f'{{"{topic}": {{"0": 5}}}}').count()
    assert "KAFKA_DATA_LOSS" in peer.message_of(caught)
    assert "spark_kafka_native/" not in peer.message_of(caught)


def test_what_is_ignored_is_told_when_the_read_is_planned(peer, kafka, topic, caplog):
    """In this process: Spark passes on what its own say, to the driver's standard error."""
    peer.create(kafka, topic)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic}
    ignored = {"startingOffset": "latest", "maxOffsetsPerTrigger": "5", "kafka.fetch.min.byte": "1"}
    source = KafkaDataSource(options | ignored)
    assert len(source.reader(source.schema()).partitions()) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "Unknown option 'startingOffset' is ignored; did you mean 'startingOffsets'?",
        "maxOffsetsPerTrigger option ignored in batch queries",
        "Unknown option 'kafka.fetch.min.byte' is ignored; did you mean 'kafka.fetch.min.bytes'?",
    ]
