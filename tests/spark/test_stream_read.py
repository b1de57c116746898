"""Streaming reads on a real broker: batches, triggers, restarts. Nothing lost, nothing twice."""

import json
import time

import pytest
from pyspark.sql import functions as F  # noqa: N812

from spark_kafka_native.spark.source import KafkaDataSource

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def values(start, stop):
    return [f"v{number}" for number in range(start, stop)]


def wait_for(query, done, seconds=240):
    deadline = time.monotonic() + seconds
    while not done():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)


def latest_of(query):
    told = json.loads(query.lastProgress["sources"][0]["latestOffset"])
    return {topic: partitions for topic, partitions in told.items() if not topic.startswith("#bytes")}


def test_batches_restart_and_progress(peer, kafka, topic, stream):
    peer.create(kafka, topic, 3)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(101 + 11 + 1))
    reading = stream(maxOffsetsPerTrigger="30")
    assert [len(batch) for batch in reading.run()] == [30, 30, 30, 23]
    assert reading.values() == values(0, 113)
    assert reading.run() == []
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(20, 3, start=113))
    # Another trigger, other limits: the position is the checkpoint's.
    assert [len(batch) for batch in reading.run({"once": True}, maxOffsetsPerTrigger="3")] == [20]
    assert reading.values() == values(0, 133)
    assert [name for name in reading.offsets_log(4) if not name.startswith("#id")] == [topic]


def test_a_running_query_sees_new_records_partitions_and_its_latest_offsets(
    peer, kafka, topic, stream, admin
):
    peer.create(kafka, topic, 1)
    reading = stream(startingOffsets="latest")
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(5))
    query = reading.start()
    try:
        wait_for(query, lambda: reading.ids == [0])
        assert reading.values() == []
        peer.write(kafka.bootstrap_servers, topic, peer.numbered(5, start=5))
        wait_for(query, lambda: len(reading.values()) == 5)
        admin.create_partitions({topic: 2})
        peer.write(kafka.bootstrap_servers, topic, peer.numbered(6, 2, start=10))
        wait_for(query, lambda: len(reading.values()) == 11)
        assert reading.values() == values(5, 16)
        wait_for(query, lambda: latest_of(query) == {topic: {"0": 13, "1": 3}})
        # Idle triggers write nothing down.
        written = reading.ids[-1]
        time.sleep(0.5)
        assert reading.ids[-1] == written
    finally:
        query.stop()


@pytest.mark.parametrize("start", ["latest-3", '{"TOPIC":{"0":7}}'])
def test_a_first_batch_that_crashed_is_the_same_again(peer, kafka, topic, stream, start):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10))
    reading = stream(startingOffsets=start.replace("TOPIC", topic))
    reading.crash = lambda batch: batch == 0
    with pytest.raises(Exception, match="crash in batch 0"):
        reading.run()
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(5, start=10))
    reading.crash = lambda batch: batch == 1
    with pytest.raises(Exception, match="crash in batch 1"):
        reading.run()
    assert reading.batches == [values(7, 10)]
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(5, start=15))
    reading.crash = lambda _: False
    assert reading.run() == [values(10, 15), values(15, 20)]


def test_latest_loses_nothing_when_the_first_batch_crashes(peer, spark, kafka, topic, stream):
    """Records arrive between the question where the stream starts and the one how far the first batch goes:
    that batch has rows, is logged, and crashes. By the restart, latest is another place."""
    servers = kafka.bootstrap_servers

    class SlowSource(KafkaDataSource):
        @classmethod
        def name(cls):
            return "slow_pykafka"

        def streamReader(self, schema):
            from spark_kafka_native.spark.read.stream_reader import KafkaStreamReader

            class SlowReader(KafkaStreamReader):
                def initialOffset(self):
                    found = super().initialOffset()
                    if not getattr(self, "written", False):
                        from confluent_kafka import Producer

                        self.written = True
                        producer = Producer({"bootstrap.servers": servers})
                        for number in range(5):
                            producer.produce(topic, f"v{number}")
                        producer.flush(60)
                    return found

            reader = super().streamReader(schema)
            reader.__class__ = SlowReader
            return reader

    spark.dataSource.register(SlowSource)
    peer.create(kafka, topic)
    peer.write(servers, topic, peer.numbered(3, start=90))
    reading = stream(startingOffsets="latest")
    reading.frame = lambda **o: (
        spark.readStream.format("slow_pykafka").options(**(reading.options | o)).load()
    )
    reading.crash = lambda _: True
    with pytest.raises(Exception, match="crash in batch 0"):
        reading.run()
    assert reading.offsets_log(0)[topic] == {"0": 8}
    peer.write(servers, topic, peer.numbered(5, start=5))
    del reading.frame
    reading.crash = lambda _: False
    assert reading.run() == [values(0, 5), values(5, 10)]


def test_union_and_self_join(peer, spark, kafka, topic, stream, tmp_path):
    peer.create(kafka, topic, 2)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10, 2))
    reading = stream()
    seen = []
    both = reading.frame().union(reading.frame())
    joined = (
        reading.frame()
        .select("key", F.col("offset").alias("a"))
        .join(reading.frame().select("key", F.col("offset").alias("b")), "key")
    )
    for number, (frame, count) in enumerate([(both, 20), (joined, 10)]):
        seen.clear()
        query = (
            frame.writeStream.foreachBatch(lambda df, _: seen.extend(df.collect()))
            .option("checkpointLocation", str(tmp_path / f"multi-{number}"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300), query.lastProgress
        assert len(seen) == count
    assert all(row.a == row.b for row in seen)


def test_pruned_columns_headers_packing_and_splitting(peer, kafka, topic, stream, spark, tmp_path):
    peer.create(kafka, topic, 4)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(40, 4))
    reading = stream()
    for options in ({"maxPartitions": "1"}, {"minPartitions": "8"}, {"maxRecordsPerPartition": "3"}):
        again = stream(**options)
        assert sorted(again.run()[0]) == sorted(values(0, 40))
    seen = []
    frame = (
        spark.readStream.format("pykafka")
        .schema("offset long, value string")
        .options(**reading.options)
        .load()
    )
    query = (
        frame.writeStream.foreachBatch(lambda df, _: seen.extend(df.collect()))
        .option("checkpointLocation", str(tmp_path / "pruned"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300), query.lastProgress
    assert sorted(row.value for row in seen) == sorted(values(0, 40))
    assert stream(includeHeaders="true").frame().columns[-1] == "headers"


def test_read_committed_goes_past_batches_without_any_record(kafka, topic, peer, stream):
    from confluent_kafka import Producer

    peer.create(kafka, topic)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions(60)
    for number, commit in enumerate([False, False, True]):
        producer.begin_transaction()
        for index in range(3):
            producer.produce(topic, f"v{number * 3 + index}")
        producer.flush(60)
        producer.commit_transaction(60) if commit else producer.abort_transaction(60)
    reading = stream(kafka__isolation__level="read_committed", maxOffsetsPerTrigger="4")
    assert [batch for batch in reading.run() if batch] == [values(6, 9)]
    assert reading.offsets_log(2)[topic] == {"0": 12}
    assert [sorted(batch) for batch in stream(maxOffsetsPerTrigger="100").run()] == [values(0, 9)]


def test_options_that_cannot_be_are_told(peer, kafka, topic, stream):
    peer.create(kafka, topic)
    for options, words in [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be positive"),
    ]:
        with pytest.raises(Exception, match=words):
            stream(**options).run()
