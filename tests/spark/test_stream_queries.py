"""What users do with streams: windows, joins, two sinks, many partitions; stopped, failed and ended early."""

import threading
import time
from functools import partial

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812
from support.consumer.reading import wait_until

from spark_kafka_native import StreamMetrics

pytestmark = [pytest.mark.broker, pytest.mark.spark]

wait_until = partial(wait_until, seconds=240)
BASE_MS = 1_700_000_000_000


def records(*seconds, key=b"k"):
    return [(0, key, b"v%d" % second, BASE_MS + second * 1000, []) for second in seconds]


@pytest.fixture
def collect(tmp_path):
    """``collect(frame, name)``: run a streaming DataFrame to the end of its topic; its new rows."""

    def run(frame, name="query", **trigger):
        seen = []
        query = (
            frame.writeStream.foreachBatch(lambda rows, _: seen.extend(rows.collect()))
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        try:
            assert query.awaitTermination(240), query.lastProgress
        finally:
            query.stop()
        return seen

    return run


@pytest.fixture
def to_topic(kafka, tmp_path):
    """``to_topic(frame, copy, name)``: start a query from a stream to a topic, in the same partitions."""
    started = []

    def start(frame, copy, name="copying", **trigger):
        query = (
            frame.select("key", "value", "partition")
            .writeStream.format("pykafka")
            .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
            .option("topic", copy)
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(**(trigger or {"processingTime": "0 seconds"}))
            .start()
        )
        started.append(query)
        return query

    yield start
    for query in started:
        query.stop()


@pytest.fixture
def written(kafka):
    """``written(topic)``: how many records are in its two partitions."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "ends", "log_level": 0})

    def count(topic):
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=60)[1] for index in (0, 1)
        )

    yield count
    consumer.close()


def is_alive(query):
    assert query.isActive, query.exception()
    return True


def first_occurrences(rows):
    """The numbers in a topic's values by partition, in order, without those written again."""
    found = {}
    for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
        found.setdefault(row.partition, {})[int(bytes(row.value)[1:])] = None
    return {partition: list(numbers) for partition, numbers in found.items()}


def test_windows_close_when_the_watermark_of_timestamp_passes_them(peer, kafka, topic, stream, collect):
    peer.create(kafka, topic)
    peer.write(kafka.bootstrap_servers, topic, records(*range(20), 60))
    frame = stream(maxOffsetsPerTrigger="21").frame().withWatermark("timestamp", "10 seconds")
    counts = frame.groupBy(F.window("timestamp", "10 seconds")).count().select("window.start", "count")
    first = collect(counts)
    # One of them is late: its window was closed by the record of second 60.
    peer.write(kafka.bootstrap_servers, topic, records(1, 120))
    found = first + collect(counts)
    assert {(int(row.start.timestamp()) - BASE_MS // 1000, row["count"]) for row in found} == {
        (0, 10), (10, 10), (60, 1),
    }  # fmt: skip


def test_two_streams_are_joined_whichever_comes_first(peer, kafka, topic, stream, collect):
    orders, payments = f"{topic}-orders", f"{topic}-payments"
    for name in (orders, payments):
        peer.create(kafka, name, 2)
    frames = [
        stream(name).frame().select("key", F.expr("cast(value as string)").alias(name[-6:]))
        for name in (orders, payments)
    ]
    joined = frames[0].join(frames[1], "key")
    peer.write(kafka.bootstrap_servers, orders, peer.numbered(6, 2))
    assert collect(joined) == []
    peer.write(kafka.bootstrap_servers, payments, peer.numbered(10, 2))
    assert sorted(bytes(row.key) for row in collect(joined)) == [b"k%d" % number for number in range(6)]
    peer.write(kafka.bootstrap_servers, orders, peer.numbered(4, 2, start=6))
    assert sorted(bytes(row.key) for row in collect(joined)) == [b"k%d" % number for number in range(6, 10)]


def test_two_queries_at_once_from_one_dataframe(peer, spark, kafka, topic, stream, to_topic, written):
    copies = [f"{topic}-left", f"{topic}-right"]
    for name in (topic, *copies):
        peer.create(kafka, name, 2)
    frame = stream(maxOffsetsPerTrigger="50").frame()
    queries = [to_topic(frame, name, name) for name in copies]
    for start in (0, 100):
        peer.write(kafka.bootstrap_servers, topic, peer.numbered(100, 2, start=start))
        for query, name in zip(queries, copies, strict=True):
            wait_until(
                f"{name} has all",
                lambda query=query, name=name, start=start: is_alive(query) and written(name) >= start + 100,
            )
    for name in copies:
        found = first_occurrences(peer.read(spark, kafka, name).collect())
        assert found == {0: list(range(0, 200, 2)), 1: list(range(1, 200, 2))}


def test_a_thousand_partitions_in_few_tasks(peer, kafka, topic, stream):
    peer.create(kafka, topic, 1000)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(2000, 1000))
    reading = stream(maxPartitions="2", maxOffsetsPerTrigger="1500")
    assert [len(batch) for batch in reading.run()] == [1000, 1000]
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(10, 1000, start=2000))
    assert [len(batch) for batch in reading.run()] == [10]
    assert reading.values() == [f"v{number}" for number in range(2010)]


@pytest.mark.soak
def test_a_thousand_partitions_in_a_thousand_tasks(peer, kafka, topic, stream):
    peer.create(kafka, topic, 1000)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(3000, 1000))
    reading = stream()
    reading.run()
    assert reading.values() == [f"v{number}" for number in range(3000)]


def test_a_compacted_topic_has_gaps_and_loses_nothing(peer, spark, kafka, topic, stream):
    settings = {"cleanup_policy": "compact", "segment_ms": 100, "max_compaction_lag_ms": 100}
    peer.create(kafka, topic, min__cleanable__dirty__ratio=0.01, file__delete__delay__ms=100, **settings)
    # Of a hundred records of two keys in each segment, the log cleaner leaves the last ones.
    peer.write(kafka.bootstrap_servers, topic, [(0, b"%d" % (i % 2), b"v%d" % i, 0, []) for i in range(100)])
    reading = stream(maxOffsetsPerTrigger="30")

    def compacted():
        peer.write(kafka.bootstrap_servers, topic, [(0, b"roll", b"v1000", 0, [])])  # closes the segment
        time.sleep(0.2)
        rows = peer.read(spark, kafka, topic, "value string, offset long").orderBy("offset").collect()
        return [row.value for row in rows if row.value != "v1000"] == ["v98", "v99"]

    wait_until("compaction", compacted)
    reading.run()
    assert [value for value in reading.values() if value != "v1000"] == ["v98", "v99"]


def test_a_read_that_spark_ends_early_leaves_workers_as_they_were(
    peer, spark, kafka, topic, stream, tmp_path
):
    peer.create(kafka, topic, 2)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(20_000, 2))
    frame = peer.read(spark, kafka, topic, kafka__max__partition__fetch__bytes=5_000)
    whole = {partition: list(range(10_000)) for partition in (0, 1)}
    for _ in range(3):
        assert len(frame.limit(3).collect()) == 3
    assert peer.offsets(frame) == whole

    in_the_middle, gate = tmp_path / "in-the-middle", tmp_path / "gate"

    def held(batches):
        for batch in batches:
            yield batch
            in_the_middle.touch()
            while not gate.exists():
                time.sleep(0.05)

    # A job that is cancelled in the middle of its tasks.
    context = spark.sparkContext
    failed = []

    def job():
        context.setJobGroup(topic, "to be cancelled", interruptOnCancel=True)
        try:
            frame.select("offset").mapInPandas(held, "offset long").write.format("noop").mode(
                "overwrite"
            ).save()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    wait_until("a task is in the middle", in_the_middle.exists)
    context.cancelJobGroup(topic)
    thread.join(240)
    gate.touch()
    assert failed, "the job was not cancelled"
    assert peer.offsets(frame) == whole
    # Micro-batches of which a part is looked at only.
    reading, looked = stream(maxOffsetsPerTrigger="5000"), []
    query = (
        reading.frame()
        .writeStream.foreachBatch(lambda rows, _: looked.append(len(rows.limit(2).collect())))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240), query.lastProgress
    assert looked == [2, 2, 2, 2]
    reading.run()
    assert len(reading.values()) == len(set(reading.values())) == 20_000


def test_a_batch_of_foreach_batch_that_fails_in_the_middle_is_written_again(
    peer, spark, kafka, topic, stream, tmp_path
):
    copy = f"{topic}-copy"
    for name in (topic, copy):
        peer.create(kafka, name, 2)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(60, 2))
    is_broken = [True]

    def write(batch, number):
        broken = "raise_error('broken row')" if is_broken[0] and number == 1 else "value"
        rows = batch.selectExpr("key", f"if(offset = 15, {broken}, value) as value", "partition")
        writer = rows.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        writer.option("topic", copy).mode("append").save()

    def run():
        frame = stream(maxOffsetsPerTrigger="20").frame().select("key", "value", "partition", "offset")
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "each"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(240), query.lastProgress

    with pytest.raises(Exception, match="broken row"):
        run()
    is_broken[0] = False
    run()
    found = first_occurrences(peer.read(spark, kafka, copy).collect())
    # In order, too: what the failed try wrote is a beginning of what the next one writes.
    assert {partition: sorted(numbers) for partition, numbers in found.items()} == {
        0: list(range(0, 60, 2)), 1: list(range(1, 60, 2)),
    }  # fmt: skip
    assert found == {0: list(range(0, 60, 2)), 1: list(range(1, 60, 2))}


def test_metrics_of_queries(peer, spark, kafka, topic, stream, tmp_path):
    peer.create(kafka, topic, 2)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(60, 2))
    metrics = StreamMetrics()
    held = threading.Event()

    def write(batch, number):
        batch.collect()
        if number == 1:
            held.wait(240)
            raise RuntimeError("no")

    def is_read(records):
        return metrics.metrics().value("kafka.stream.records", query=topic) == records

    spark.streams.addListener(metrics)
    try:
        frame = stream(maxOffsetsPerTrigger="20").frame()
        query = (
            frame.writeStream.queryName(topic)
            .foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "metrics"))
        )
        query = query.start()
        wait_until("the first batch is counted", lambda: is_read(20))
        found = metrics.metrics()
        assert found.value("kafka.stream.lag", query=topic, topic=topic) == 40
        assert found.value("kafka.stream.running", query=topic) == 1
        assert found.value("kafka.stream.failures", query=topic) == 0
        held.set()
        failed = "kafka.stream.failures"
        wait_until("the failure is counted", lambda: metrics.metrics().value(failed, query=topic) == 1)
        assert query.exception() is not None
        assert is_read(20)
        assert metrics.metrics().value("kafka.stream.running", query=topic) == 0
    finally:
        held.set()
        spark.streams.removeListener(metrics)


def test_stopped_in_the_middle_of_a_batch_and_started_again(
    peer, spark, kafka, topic, stream, to_topic, written
):
    copy = f"{topic}-copy"
    for name in (topic, copy):
        peer.create(kafka, name, 2)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(2_000, 2))
    columns = stream(maxOffsetsPerTrigger="1000").frame().select("key", "value", "partition")

    def held_after_a_part(batches):
        for number, batch in enumerate(batches):
            if number == 5:
                time.sleep(300)  # until killed: the batch does not get through, however slow the machine is
            # Long keys, or all of it would wait in the worker's buffer on its way to the sink's task.
            yield batch.assign(key=b"k" * 10_000)

    # Small ones, or the sink's task would see no row before the held one has all of its own.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    try:
        for _ in range(2):
            before = written(copy)
            query = to_topic(columns.mapInPandas(held_after_a_part, columns.schema), copy)
            wait_until(
                "a batch is being written",
                lambda query=query, before=before: is_alive(query) and written(copy) > before,
            )
            query.stop()
            assert query.exception() is None
            assert written(copy) < 2_000, "it was not in the middle"
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    query = to_topic(columns, copy, availableNow=True)
    assert query.awaitTermination(240), query.lastProgress
    found = first_occurrences(peer.read(spark, kafka, copy).collect())
    assert found == {0: list(range(0, 2_000, 2)), 1: list(range(1, 2_000, 2))}


def test_two_queries_on_one_checkpoint_lose_nothing(peer, spark, kafka, topic, stream, to_topic, written):
    copy = f"{topic}-copy"
    for name in (topic, copy):
        peer.create(kafka, name, 2)
    reading = stream(maxOffsetsPerTrigger="20")
    first = to_topic(reading.frame(), copy)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(100, 2))
    other = spark.newSession().readStream.format("pykafka").options(**reading.options)
    # In one application Spark stops the first; one of another application fails at its next batch.
    second = to_topic(other.option("maxOffsetsPerTrigger", "20").load(), copy)
    wait_until("the first one ends", lambda: not first.isActive)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(100, 2, start=100))
    wait_until("the second one is through", lambda: is_alive(second) and written(copy) >= 200)
    second.stop()
    last = to_topic(reading.frame(), copy, availableNow=True)
    assert last.awaitTermination(240), last.lastProgress
    found = first_occurrences(peer.read(spark, kafka, copy).collect())
    assert found == {0: list(range(0, 200, 2)), 1: list(range(1, 200, 2))}


def test_two_applications_on_one_checkpoint_lose_nothing(
    peer, spark, kafka, topic, stream, to_topic, written
):
    copy = f"{topic}-copy"
    for name in (topic, copy):
        peer.create(kafka, name, 2)
    reading = stream(maxOffsetsPerTrigger="20")
    queries = [to_topic(reading.frame(), copy)]
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(100, 2))
    wait_until("the first one writes", lambda: is_alive(queries[0]) and written(copy) > 0)
    # What two drivers have in common is the checkpoint: the second is not to know what runs here.
    spark._jsparkSession.sharedState().activeStreamingQueries().clear()
    other = spark.newSession().readStream.format("pykafka").options(**reading.options)
    queries.append(to_topic(other.option("maxOffsetsPerTrigger", "20").load(), copy))
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(100, 2, start=100))
    wait_until("one of them has ended", lambda: not all(query.isActive for query in queries))
    errors = [str(query.exception()) for query in queries if query.exception() is not None]
    assert errors
    # Spark looks if the batch's file is there, and says the first; if the other driver's file comes between
    # that look and its own rename, the rename fails, and it says the second (HDFSMetadataLog).
    known = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using")
    assert all(any(words in error for words in known) for error in errors), errors
    for query in queries:
        query.stop()
    last = to_topic(reading.frame(), copy, availableNow=True)
    assert last.awaitTermination(240), last.lastProgress
    found = first_occurrences(peer.read(spark, kafka, copy).collect())
    assert found == {0: list(range(0, 200, 2)), 1: list(range(1, 200, 2))}


def test_a_copy_of_a_task_that_spark_kills_leaves_workers_as_they_were(peer, spark, kafka, topic, tmp_path):
    """What speculation does to the slower of two copies; it makes none in a local session."""
    peer.create(kafka, topic, 2)
    peer.write(kafka.bootstrap_servers, topic, peer.numbered(20_000, 2))
    frame = peer.read(spark, kafka, topic, kafka__max__partition__fetch__bytes=5_000)
    began, whole = tmp_path / "began", {partition: list(range(10_000)) for partition in (0, 1)}

    def held(batches):
        context = TaskContext.get()
        for batch in batches:
            yield batch
            if context.attemptNumber() == 0 and context.partitionId() == 0:
                began.with_suffix(".new").write_text(str(context.taskAttemptId()))
                began.with_suffix(".new").rename(began)
                threading.Event().wait(300)  # until it is killed

    def kill():
        wait_until("a task is in the middle", began.exists)
        spark.sparkContext._jsc.sc().killTaskAttempt(int(began.read_text()), True, "another copy was faster")

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    slow = frame.select("partition", "offset").mapInPandas(held, "partition int, offset long")
    assert peer.offsets(slow) == whole
    killer.join(60)
    assert began.exists()
    for _ in range(2):
        assert peer.offsets(frame) == whole
