"""``mode=dlq``: the bad records of a stream go to a topic, each once, however often a batch is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.kafka import ConfigResource, Consumer, TransactionalProducer
from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.cluster.router import Router, router_for
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.records.columns import RecordColumns, build_binary, build_headers
from spark_kafka_native.spark.read.offset_range import At, OffsetRange
from spark_kafka_native.spark.read.worker import dead_letters
from spark_kafka_native.spark.read.worker.bad_record_handler import UndecodedRecord
from spark_kafka_native.spark.read.worker.dead_letters import DeadLetterError, DeadLetters
from spark_kafka_native.testing import EmbeddedKafka

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SOURCE = TopicPartition("s", 0)
SCHEMA = {"value.format": "json", "value.schema": "id bigint"}


def letters_in(kafka: EmbeddedKafka, topic: str) -> list[Any]:
    """Those that read_committed readers see, with ``origin``: topic, partition and offset."""
    how = {"isolation_level": "read_committed", "stop_at_end": True}
    with Consumer(kafka.bootstrap_servers, topic, **how) as consumer:
        return sorted(consumer, key=lambda record: origin(record)[:3])


def origin(record: Any) -> tuple[Any, ...]:
    found = {name.removeprefix("__reader.errors."): value for name, value in record.headers}
    place = found["topic"].decode(), int(found["partition"]), int(found["offset"])
    return (*place, found["stage"].decode(), found["message"].decode())


def limit_size(kafka: EmbeddedKafka, topic: str, size: int) -> None:
    with Admin(kafka.bootstrap_servers) as admin:
        admin.alter_configs(ConfigResource.topic(topic), {"max.message.bytes": str(size)})


# One task, without Spark.


@pytest.fixture
def attempt(kafka: EmbeddedKafka) -> Callable[..., DeadLetters]:
    """``attempt(topic, source, until=100)``: a task that reads ``source`` up to ``until``."""
    client = ClientConfig.from_properties({"bootstrap.servers": kafka.bootstrap_servers})

    def attempt(topic: str, source: TopicPartition, until: int = 100, topic_id: str = "1") -> DeadLetters:
        planned = OffsetRange(
            topic=source.topic, partition=source.partition, start=At(0), end=At(until), topic_id=topic_id
        )
        return DeadLetters(
            router=router_for(client),
            client=client,
            topic=topic,
            name=f"pykafka-{topic}-dlq",
            query_id="q",
            ranges={source: planned},
        )

    return attempt


def bad(*offsets: int) -> tuple[list[UndecodedRecord], RecordColumns]:
    """Records at ``offsets``, all of them bad."""
    ones = [
        UndecodedRecord(row=row, offset=offset, stages=("value",), reason="why")
        for row, offset in enumerate(offsets)
    ]
    records = RecordColumns(
        length=len(offsets),
        offset=np.array(offsets, np.int64),
        timestamp_ms=np.array(offsets, np.int64),
        key=build_binary([b"k%d" % offset for offset in offsets]),
        value=build_binary([b"v%d" % offset for offset in offsets]),
        headers=pa.nulls(len(offsets), build_headers([[("a", b"b")]]).type),
    )
    return ones, records


def topics(kafka: EmbeddedKafka, name: str) -> tuple[str, TopicPartition]:
    """An empty topic for letters, and a source."""
    kafka.create_topic(f"{name}-source")
    return str(kafka.create_topic(name)), TopicPartition(f"{name}-source", 0)


def offsets_of(kafka: EmbeddedKafka, topic: str) -> list[int]:
    return [origin(record)[2] for record in letters_in(kafka, topic)]


def test_another_attempt_writes_only_what_is_missing(kafka: EmbeddedKafka, attempt: Any) -> None:
    topic, source = topics(kafka, "dlq-attempts")
    attempt(topic, source).send(source, *bad(3, 5))
    attempt(topic, source).send(source, *bad(3, 5, 8))
    attempt(topic, source).send(source, *bad(8))
    attempt(topic, source).send(source, *bad(9))
    assert offsets_of(kafka, topic) == [3, 5, 8, 9]


def test_what_an_attempt_left_open_is_aborted(kafka: EmbeddedKafka, attempt: Any) -> None:
    topic, source = topics(kafka, "dlq-open")
    task = attempt(topic, source)
    died = TransactionalProducer(kafka.bootstrap_servers, f"{task.name}-{source}")
    died.begin()
    died.send(topic, "half", headers=[("__reader.errors.offset", b"3")])
    died.send_offsets({source: 4}, f"{task.name}-{source}")
    died.flush()
    task.send(source, *bad(3))
    assert [record.value for record in letters_in(kafka, topic)] == [b"v3"]
    died.close(timeout=0)


def test_of_two_attempts_at_once_each_letter_is_seen_once(
    kafka: EmbeddedKafka, attempt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, source = topics(kafka, "dlq-speculation")
    find, others = dead_letters.find_offsets, [attempt(topic, source) for _ in range(2)]

    def overtaken(router: Router, name: str, *rest: Any) -> Any:
        found = find(router, name, *rest)
        if others:
            others.pop().send(source, *bad(3, 5))
        return found

    monkeypatch.setattr(dead_letters, "find_offsets", overtaken)
    attempt(topic, source).send(source, *bad(3, 5))
    assert not others
    assert offsets_of(kafka, topic) == [3, 5]


def test_a_marker_that_a_deposed_broker_did_not_know_doubles_nothing(
    kafka: EmbeddedKafka, attempt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, source = topics(kafka, "dlq-deposed")
    attempt(topic, source).send(source, *bad(3))
    with monkeypatch.context() as patch:
        patch.setattr(dead_letters, "find_offsets", lambda *_: {})
        with pytest.raises(DeadLetterError, match="letters were committed while others were written"):
            attempt(topic, source).send(source, *bad(3, 5))
    attempt(topic, source).send(source, *bad(3, 5))
    assert offsets_of(kafka, topic) == [3, 5]


def test_a_marker_of_another_range_or_topic_hides_no_letter(kafka: EmbeddedKafka, attempt: Any) -> None:
    topic, source = topics(kafka, "dlq-ranges")
    attempt(topic, source).send(source, *bad(50))
    attempt(topic, source, topic_id="2").send(source, *bad(3))  # created again
    attempt(topic, source, until=20, topic_id="2").send(source, *bad(2))  # an older checkpoint
    assert offsets_of(kafka, topic) == [2, 3, 50]


def test_letters_that_can_not_be_written_fail_the_task(kafka: EmbeddedKafka, attempt: Any) -> None:
    topic, source = topics(kafka, "dlq-too-large")
    limit_size(kafka, topic, 200)
    with pytest.raises(DeadLetterError, match=r"2 bad records of dlq-too-large-source-0 \(offsets 3 to 5\)"):
        attempt(topic, source).send(source, *bad(3, 5))
    with pytest.raises(DeadLetterError, match=r"does not exist|UNKNOWN_TOPIC"):
        attempt("dlq-missing", source).send(source, *bad(3))
    assert not letters_in(kafka, topic)


# Whole queries.


@pytest.fixture
def source(kafka: EmbeddedKafka, peer: Any) -> Callable[[str], str]:
    """``source(name)``: two partitions with 200 records; every tenth is bad."""

    def make(name: str) -> str:
        peer.create(kafka, name, 2)
        records = [
            (
                i % 2,
                None if i % 3 == 0 else b"k%d" % i,
                (b"bad %d" if i % 10 == 0 else b'{"id": %d}') % i,
                1_700_000_000_000 + i,
                [("h", b"%d" % i), ("n", None)] if i % 20 == 0 else [],
            )
            for i in range(200)
        ]
        peer.write(kafka.bootstrap_servers, name, records)
        return name

    return make


def stream(spark: Any, kafka: EmbeddedKafka, topic: str, **options: str) -> Any:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return (
        spark.readStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .options(subscribe=topic, startingOffsets="earliest", mode="dlq", **SCHEMA, **named)
        .load()
    )


def run(frame: Any, checkpoint: Any, each: Callable[[Any, int], None] | None = None) -> None:
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = (writer.format("noop") if each is None else writer.foreachBatch(each)).start()
    query.awaitTermination()


BAD = sorted(("", i % 2, i // 2) for i in range(0, 200, 10))


def places(kafka: EmbeddedKafka, letters: str) -> list[tuple[str, int, int]]:
    return [("", *origin(record)[1:3]) for record in letters_in(kafka, letters)]


def test_a_batch_that_is_read_twice_and_fails_and_runs_again_has_each_letter_once(
    spark: Any, kafka: EmbeddedKafka, source: Any, tmp_path: Any
) -> None:
    topic, letters = source("dlq-stream"), kafka.create_topic("dlq-stream-letters", 2)
    frame = stream(spark, kafka, topic, dlq__topic=letters, maxOffsetsPerTrigger="80", maxPartitions="1")
    seen: dict[int, set[int]] = {}
    failures = [2, 0]

    def each(batch: Any, batch_id: int) -> None:
        assert batch.count() == batch.count()
        seen[batch_id] = {row.value.id for row in batch.select("value").collect()}
        if failures and failures[-1] == batch_id:
            failures.pop()
            raise RuntimeError("the sink is away")

    for _ in range(2):
        with pytest.raises(Exception, match="the sink is away"):
            run(frame, tmp_path / "checkpoint", each)
    run(frame, tmp_path / "checkpoint", each)
    assert not failures
    assert len(seen) == 3
    assert set().union(*seen.values()) == {i for i in range(200) if i % 10}
    assert places(kafka, letters) == BAD
    for record in letters_in(kafka, letters):
        place = origin(record)
        i = place[2] * 2 + place[1]
        assert place[0] == topic
        assert place[3] == "value"
        assert record.key == (None if i % 3 == 0 else b"k%d" % i)
        assert record.value == b"bad %d" % i
        own = [pair for pair in record.headers if not pair[0].startswith("__reader.")]
        assert own == ([("h", b"%d" % i), ("n", None)] if i % 20 == 0 else [])
        assert ("__reader.errors.timestamp", b"%d" % (1_700_000_000_000 + i)) in record.headers
    # Another query has letters of its own. Both of its scans read the same records at the same time.
    run(frame.union(frame), tmp_path / "other")
    assert sorted(places(kafka, letters)) == sorted(BAD * 2)


def test_what_does_not_fit_fails_the_batch_and_goes_on_elsewhere(
    spark: Any, kafka: EmbeddedKafka, source: Any, tmp_path: Any
) -> None:
    topic, small = source("dlq-small"), kafka.create_topic("dlq-small-letters")
    limit_size(kafka, small, 100)
    with pytest.raises(Exception, match=r"dlq.topic=dlq-small-letters: \d+ bad records"):
        run(stream(spark, kafka, topic, dlq__topic=small), tmp_path)
    large = kafka.create_topic("dlq-large-letters")
    run(stream(spark, kafka, topic, dlq__topic=large), tmp_path)
    assert places(kafka, large) == BAD
    assert places(kafka, small) == []


def test_queries_that_can_not_be_are_refused(
    spark: Any, kafka: EmbeddedKafka, source: Any, tmp_path: Any
) -> None:
    topic = source("dlq-refused")
    with pytest.raises(Exception, match=r"topic dlq-nowhere does not exist: create it first"):
        run(stream(spark, kafka, topic, dlq__topic="dlq-nowhere"), tmp_path / "a")
    with pytest.raises(Exception, match=r"dlq\.topic=dlq-refused is among the topics that are read"):
        run(stream(spark, kafka, topic, dlq__topic=topic), tmp_path / "b")
    read = spark.read.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    options = {"subscribe": topic, "mode": "dlq", "dlq.topic": "x", **SCHEMA}
    with pytest.raises(Exception, match="mode=dlq is for streams"):
        read.options(**options).load().collect()


def test_the_number_of_bad_records_can_be_in_the_progress(
    spark: Any, kafka: EmbeddedKafka, source: Any, tmp_path: Any
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    topic = source("dlq-observed")
    frame = (
        spark.readStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .options(subscribe=topic, startingOffsets="earliest", mode="permissive", **SCHEMA)
        .load()
        .observe("records", F.count(F.lit(1)).alias("read"), F.count("_error").alias("bad"))
    )
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    observed = [json.loads(progress.json)["observedMetrics"]["records"] for progress in query.recentProgress]
    assert sum(one["bad"] for one in observed) == 20
    assert sum(one["read"] for one in observed) == 200
