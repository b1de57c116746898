"""Streaming writes on a real broker: at least once, and one line for each batch."""

import json

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def sink(kafka, tmp_path):
    """``sink(frame, topic, mode, **options)``: run a write with Trigger.AvailableNow to its end."""

    def run(frame, topic, mode="append", name="sink", **options):
        writer = frame.writeStream.format("pykafka").outputMode(mode)
        query = (
            writer.option("kafka.bootstrap.servers", kafka.bootstrap_servers)
            .option("topic", topic)
            .options(**options)
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(300), f"it still runs: {query.lastProgress}"
        finally:
            query.stop()
        return query

    return run


def test_from_topic_to_topic_and_on_after_a_restart(peer, spark, kafka, topic, stream, sink, tmp_path):
    copy = f"{topic}-copy"
    for name in (topic, copy):
        peer.create(kafka, name, 2)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(20, 2))
    frame = stream(maxOffsetsPerTrigger="8", includeHeaders="true").frame()
    frame = frame.select("key", "value", "partition", "headers", "timestamp")
    summary = tmp_path / "summary.json"
    sink(frame, copy, summaryPath=str(summary), timestampColumn="timestamp")
    told = json.loads(summary.read_text())
    assert (told["batchId"], told["records"]) == (2, 4)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10, 2, start=20))
    sink(frame, copy, timestampColumn="timestamp")
    rows = [peer.read(spark, kafka, name).collect() for name in (topic, copy)]
    found = [
        sorted((row.partition, row.offset, row.key, row.value, row.timestamp) for row in some)
        for some in rows
    ]
    assert len(found[0]) == 30
    assert found[0] == found[1]


def test_complete_mode_appends_its_whole_result_each_time(peer, spark, kafka, topic, stream, sink):
    counts = f"{topic}-counts"
    for name in (topic, counts):
        peer.create(kafka, name)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(6))
    frame = stream(maxOffsetsPerTrigger="3").frame().groupBy("topic").count()
    frame = frame.selectExpr("topic as key", "cast(count as string) as value")
    sink(frame, counts, "complete")
    assert [bytes(row.value) for row in peer.read(spark, kafka, counts).orderBy("offset").collect()] == [
        b"3",
        b"6",
    ]


def test_a_batch_that_fails_is_written_again(peer, spark, kafka, topic, stream, sink):
    copy = f"{topic}-copy"
    for name in (topic, copy):
        peer.create(kafka, name)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10))
    bad = stream().frame().selectExpr("if(offset = 7, raise_error('broken row'), key) as key", "value")
    with pytest.raises(Exception, match="broken row"):
        sink(bad, copy)
    sink(stream().frame().select("key", "value"), copy)
    found = {bytes(row.value) for row in peer.read(spark, kafka, copy).collect()}
    assert found == {b"v%d" % number for number in range(10)}


def test_two_sinks_and_foreach_batch_with_the_batch_writer(peer, spark, kafka, topic, stream, sink, tmp_path):
    copies = [f"{topic}-{name}" for name in ("left", "right", "each")]
    for name in (topic, *copies):
        peer.create(kafka, name)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10))
    frame = stream().frame().select("key", "value")
    for number in range(2):
        sink(frame, copies[number], name=f"sink-{number}")

    def write(batch, _id):
        batch.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers).option(
            "topic", copies[2]
        ).mode("append").save()

    query = (
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "each"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300), query.lastProgress
    for name in copies:
        assert sorted(bytes(row.value) for row in peer.read(spark, kafka, name).collect()) == sorted(
            b"v%d" % number for number in range(10)
        )


def test_what_cannot_be_written_is_told(peer, kafka, topic, stream, sink):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(1))
    with pytest.raises(Exception, match="Required attribute 'value' not found"):
        sink(stream().frame().select("key"), topic)
    with pytest.raises(Exception, match=f"topic {topic}-nowhere does not exist"):
        sink(stream().frame().select("value"), f"{topic}-nowhere", name="nowhere")
    # A topic that is created on the way.
    new = f"{topic}-new"
    sink(stream().frame().select("value"), new, name="new", createTopics="true")


def test_update_mode_is_refused_by_spark_in_the_words_of_the_docs(peer, kafka, topic, stream, sink):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(1))
    frame = stream().frame().groupBy("key").count().selectExpr("cast(count as string) as value")
    with pytest.raises(Exception, match="requirement failed: pykafka does not support Update mode"):
        sink(frame, topic, "update")
