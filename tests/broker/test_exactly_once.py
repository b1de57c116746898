"""The exactly-once sink without Spark: its tasks and its driver on a real broker, which crash, run twice,
repeat themselves and let transactions expire, as the seed says. What readers see is each row once.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from support.exactly_once.transactional_sink import BATCHES, PARTITIONS, ROWS, TASKS, Sink, complaints, read

from spark_kafka_native.kafka import Admin
from spark_kafka_native.kafka.cluster.router import router_for
from spark_kafka_native.kafka.config.client_config import TransactionConfig
from spark_kafka_native.kafka.errors import ConfigError, DeadlineExceededError
from spark_kafka_native.kafka.group.committed_offsets import all_committed_offsets
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.spark.write import marker_store
from spark_kafka_native.spark.write.commit_markers import BatchIntent, CommitMarker, ReplayError
from spark_kafka_native.spark.write.driver.stream_commit import WriteCommitFailedError, abort_transactions
from spark_kafka_native.spark.write.marker_store import GroupIntents, GroupMarkers
from spark_kafka_native.spark.write.worker import transactional_task
from spark_kafka_native.spark.write.worker.write_rows import WriteFailedError
from spark_kafka_native.spark.write.write_task import KafkaCommitMessage, RowColumns

pytestmark = pytest.mark.broker


@pytest.fixture
def target(kafka: Any, topic: str) -> str:
    kafka.create_topic(topic, PARTITIONS)
    return topic


BOTH = pytest.mark.parametrize("markers", ["groups", "topic"])


@pytest.mark.parametrize(
    ("version", "markers"),
    [
        (1, "groups"),
        (2, "groups"),
        pytest.param(1, "topic", marks=pytest.mark.soak),
        (2, "topic"),
    ],
)
def test_whatever_dies_each_row_counts_once(
    kafka: Any, target: str, version: int, markers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        transactional_task, "TransactionConfig", partial(TransactionConfig, transaction_version=version)
    )
    sink = Sink(kafka, target, seed=version, markers=markers)
    sink.run(BATCHES)
    sink.run_tasks(BATCHES - 1)  # ends the open commit
    assert not complaints(read(kafka, target), BATCHES), sink.counts
    assert sink.counts["replays"] > 1
    assert sum(n for what, n in sink.counts.items() if what.startswith("a task")) > 2


def test_the_harness_sees_what_happens_without_markers(
    kafka: Any, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommitMarker, "newest", classmethod(lambda *_arguments: None))
    sink = Sink(kafka, target, seed=3)
    sink.run(BATCHES)
    found = read(kafka, target)
    assert any("2 times" in one for one in complaints(found, BATCHES))


def test_a_transaction_that_expires_is_written_again(kafka: Any, target: str) -> None:
    sink = Sink(kafka, target, timeout="1s")
    messages: list[KafkaCommitMessage] = []
    deadline = time.monotonic() + 120
    while not messages:
        assert time.monotonic() < deadline
        with contextlib.suppress(WriteFailedError):  # where a task takes a second: Spark runs it again
            messages = sink.run_tasks(0)
    assert messages[0].transaction is not None
    probe = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "x", "log_level": 0}
    consumer = confluent_kafka.Consumer(probe | {"isolation.level": "read_committed"})
    where = confluent_kafka.TopicPartition(target, 0)
    while consumer.get_watermark_offsets(where, timeout=60)[1] < ROWS + 1:
        assert time.monotonic() < deadline  # the abort marker takes an offset too
        time.sleep(0.1)
    consumer.close()
    with pytest.raises(
        WriteCommitFailedError,
        match=r"longer than transactionTimeout \(1000 ms\): raise it .* stay as they are",
    ):
        sink.commit(messages, 0)
    abort_transactions(messages, sink.options)
    sink.once = Sink(kafka, target).once
    sink.commit(sink.run_tasks(0), 0)
    sink.run_tasks(0)
    assert not complaints(read(kafka, target), 1)


def test_a_micro_batch_that_took_half_of_its_timeout_is_a_warning(
    kafka: Any, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink(kafka, target, timeout="10m")
    sink.commit(sink.run_tasks(0), 0)
    assert "maxOffsetsPerTrigger" not in caplog.text
    first, *others = sink.run_tasks(1)
    assert first.began_s is not None
    sink.commit([replace(first, began_s=first.began_s - 305), *others], 1)
    assert "open for 305 of the 600 seconds that transactionTimeout allows" in caplog.text
    assert "Limit what one reads (maxOffsetsPerTrigger, maxBytesPerTrigger)" in caplog.text


@BOTH
def test_a_replay_skips_what_is_committed_and_refuses_other_rows(
    kafka: Any, target: str, markers: str
) -> None:
    sink = Sink(kafka, target, markers=markers)
    sink.commit(sink.run_tasks(0), 0)
    again = sink.run_tasks(0)
    assert [(one.transaction, one.records, one.skipped) for one in again] == [(None, 0, ROWS)] * TASKS
    sink.commit(again, 0)
    with pytest.raises(ReplayError, match="the query makes other rows of the same input"):
        sink.run_task(0, 0, list(sink.rows(0, 0))[:1])
    with pytest.raises(ReplayError, match=r"hash .* were committed before the restart"):
        sink.run_task(0, 0, sink.rows(0, 1))
    sink.commit(sink.run_tasks(1), 1)
    with pytest.raises(ReplayError, match="has committed micro-batch 1 already"):
        sink.run_task(0, 0)
    assert not complaints(read(kafka, target), 2)


@BOTH
def test_a_replay_with_fewer_tasks_is_refused_where_one_that_is_gone_is_committed(
    kafka: Any, target: str, markers: str
) -> None:
    sink = Sink(kafka, target, markers=markers)
    messages = sink.run_tasks(0)
    sink.die_in_commit(messages, 0, messages[2:])
    fewer = sink.run_tasks(0, tasks=2)
    with pytest.raises(ReplayError, match=f"it had 3, of which pykafka-{target}-2 is committed"):
        sink.commit(fewer, 0)
    abort_transactions(fewer, sink.options)
    sink.commit(sink.run_tasks(0), 0)
    sink.run_tasks(0)
    assert not complaints(read(kafka, target), 1)


def test_tasks_count_that_have_no_rows_or_are_skipped(kafka: Any, target: str) -> None:
    sink = Sink(kafka, target)
    messages = [sink.run_task(0, 0), sink.run_task(0, 1, []), sink.run_task(0, 2)]
    sink.die_in_commit(messages, 0, messages[::2])
    fewer = [sink.run_task(0, 0), sink.run_task(0, 1, sink.rows(0, 2))]
    with pytest.raises(ReplayError, match=f"it had 3, of which pykafka-{target}-2 is committed"):
        sink.commit(fewer, 0)


@BOTH
def test_a_replay_with_fewer_tasks_is_refused_also_where_all_of_them_are_skipped(
    kafka: Any, target: str, markers: str
) -> None:
    sink = Sink(kafka, target, markers=markers)
    sink.commit(sink.run_tasks(0), 0)
    fewer = sink.run_tasks(0)[:2]
    assert [one.skipped for one in fewer] == [ROWS, ROWS]
    with pytest.raises(ReplayError, match=f"it had 3, of which pykafka-{target}-2 is committed"):
        sink.commit(fewer, 0)


def test_a_replay_with_fewer_tasks_ends_what_those_that_are_gone_left_open(kafka: Any, target: str) -> None:
    sink = Sink(kafka, target)
    messages = sink.run_tasks(0)
    sink.die_in_commit(messages, 0, [])
    sink.commit(sink.run_tasks(0, tasks=2), 0)
    sink.end(messages[2], commit=True)  # the ghost of the first driver
    assert sink.counts["refused EndTxn"] == 1
    sink.run_tasks(0, tasks=2)
    assert not [one for one in complaints(read(kafka, target), 1) if "reordered" not in one]


def test_tasks_without_rows_leave_nothing_to_commit(kafka: Any, target: str) -> None:
    sink = Sink(kafka, target)
    message = sink.run_task(0, 0, [])
    assert (message.transaction, message.records) == (None, 0)
    sink.commit([message], 0)
    assert read(kafka, target) == {p: [] for p in range(PARTITIONS)}


def test_a_marker_that_is_still_being_committed_is_waited_for(kafka: Any, target: str) -> None:
    sink = Sink(kafka, target)
    message = sink.run_task(0, 0)
    assert message.transaction is not None
    where, name = TopicPartition(target, 0), message.transaction.transactional_id
    router = router_for(sink.options.client)
    said, until = "", time.monotonic() + 120
    while "UNSTABLE_OFFSET_COMMIT" not in said:  # nothing is known of a second in which all stood still
        assert time.monotonic() < until, said
        with pytest.raises(DeadlineExceededError) as caught:
            GroupMarkers(router).last(name, [where], Deadline.after_ms(1_000))
        said = str(caught.value)
    sink.commit([message], 0)
    marker = GroupMarkers(router).last(name, [where])
    assert (marker.batch_id, marker.rows) == (0, ROWS) if marker else False


def test_a_marker_behind_the_open_transaction_of_another_task_is_found(kafka: Any, target: str) -> None:
    # What reads read_committed stops at the other's transaction, which may wait for this very task.
    sink = Sink(kafka, target, markers="topic")
    messages = sink.run_tasks(0)
    sink.die_in_commit(messages, 0, messages[1:])
    assert [sink.run_task(0, 2).skipped, sink.run_task(0, 1).skipped] == [ROWS, ROWS]
    sink.commit(sink.run_tasks(0), 0)
    assert not complaints(read(kafka, target), 1)


def test_markers_are_kept_where_nothing_is_deleted(kafka: Any, target: str) -> None:
    sink = Sink(kafka, target)
    for policy, words in (
        (None, "does not exist: create it with cleanup.policy=compact"),
        ("delete", "has cleanup.policy=delete, so that markers"),
        ("compact,delete", "has cleanup.policy=compact,delete, so that markers"),
    ):
        topic = f"{target}-{policy}".replace(",", "-")
        if policy is not None:
            kafka.create_topic(topic, 1, config={"cleanup.policy": policy})
        once = replace(sink.once, marker_topic=topic)
        sink.options = replace(sink.options, exactly_once=once)
        with pytest.raises(ConfigError, match=words):
            sink.run_task(0, 0)


def test_a_record_in_the_marker_topic_that_is_no_marker_stops_the_task(kafka: Any, target: str) -> None:
    sink = Sink(kafka, target, markers="topic")
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    producer.produce(f"{target}-markers", b"something else", f"pykafka-{target}-0", 0)
    assert producer.flush(60) == 0
    with pytest.raises(ReplayError, match="that is no commit marker"):
        sink.run_task(0, 0)


@pytest.mark.parametrize("topic_in_rows", [False, True])
def test_a_marker_that_is_not_told_at_first_is_found(
    kafka: Any, target: str, topic_in_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An old coordinator, asked for all offsets, leaves out what it is about to apply.
    sink = Sink(kafka, target)
    sink.commit(sink.run_tasks(0), 0)
    asked: Counter[str] = Counter()

    def late(router: Any, group_id: str, deadline: Any = None, **named: Any) -> Any:
        asked[group_id] += 1
        return {} if asked[group_id] == 1 else all_committed_offsets(router, group_id, deadline, **named)

    monkeypatch.setattr(marker_store, "all_committed_offsets", late)
    if topic_in_rows:
        sink.columns = RowColumns(names=("partition", "value", "topic"), topic=None)
        rows = [
            one.append_column("topic", pa.array([target] * one.num_rows, pa.string()))
            for one in sink.rows(0, 0)
        ]
        sink.options = replace(sink.options, topic=None)
        with pytest.raises(WriteFailedError, match="micro-batch 0 has become committed while"):
            sink.run_task(0, 0, rows)
    else:
        assert sink.run_task(0, 0).skipped == ROWS
    assert not complaints(read(kafka, target), 1)


@pytest.mark.parametrize("deleted", ["first", "last"])
def test_a_marker_outlives_one_of_the_topics_that_were_written_to(
    kafka: Any, target: str, deleted: str
) -> None:
    """Kafka deletes the committed offsets of a topic together with it."""
    sink = Sink(kafka, target)
    sink.columns = RowColumns(names=("partition", "value", "topic"), topic=None)
    sink.options = replace(sink.options, topic=None)
    topics = [f"{target}-{name}" for name in ("first", "last")]
    for topic in topics:
        kafka.create_topic(topic, PARTITIONS)
    rows = [
        one.append_column("topic", pa.array([topics[i % 2] for i in range(one.num_rows)], pa.string()))
        for one in sink.rows(0, 0)
    ]
    message = sink.run_task(0, 0, rows)
    assert message.transaction is not None
    sink.commit([message], 0)

    gone, router = f"{target}-{deleted}", router_for(sink.options.client)
    with Admin(kafka.bootstrap_servers) as admin:
        admin.delete_topics([gone])
    until = time.monotonic() + 120
    while {tp.topic for tp in all_committed_offsets(router, message.transaction.transactional_id)} & {gone}:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert sink.run_task(0, 0, rows).skipped == message.records


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_intents_of_a_batch_the_later_one_counts(kafka: Any, target: str, first: int) -> None:
    router, deadline = router_for(Sink(kafka, target).options.client), Deadline.after_ms(60_000)
    before: BatchIntent | None = None
    for batch_id, tasks, partition in ((4, 9, 2), (5, 3, first), (5, 2, 1 - first)):
        where = TopicPartition(target, partition)
        intents = GroupIntents(router, target, 60_000, deadline)
        last = intents.last([where])
        assert last == before
        before = BatchIntent(batch_id=batch_id, tasks=tasks).follows(before)
        intents.replace(last, before, [where])
    assert before is not None
    assert (before.tasks, before.change) == (2, 1)
    assert GroupIntents(router, target, 60_000, deadline).last(()) == before
