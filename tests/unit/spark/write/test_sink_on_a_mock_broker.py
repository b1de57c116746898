"""Whole micro-batches of the exactly-once sink, named writes and atomic ones, on a broker with transactions:
what readers with read_committed see, and which transactions stay open."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.types import StructType

from spark_kafka_native.kafka.cluster import describe_configs, retry_policy
from spark_kafka_native.kafka.cluster.router import Router, router_for
from spark_kafka_native.kafka.errors import (
    ConfigError,
    DeadlineExceededError,
    KafkaError,
    NetworkError,
    UnsupportedVersionError,
)
from spark_kafka_native.kafka.group.committed_offsets import commit_offsets
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.errors import TransactionAbortableError
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.producer.sending.transaction_requests import OpenTransaction, init_producer_id
from spark_kafka_native.kafka.producer.transactional_producer import TransactionalProducer
from spark_kafka_native.kafka.runtime.deadline import Deadline, Timeout
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write import marker_store
from spark_kafka_native.spark.write.batch_writer import KafkaBatchWriter
from spark_kafka_native.spark.write.commit_markers import CommitMarker, ReplayError
from spark_kafka_native.spark.write.driver import atomic_write, resumable_write, stream_commit
from spark_kafka_native.spark.write.driver.atomic_write import (
    CommitInDoubtError,
    abort_atomic,
    begin_atomic,
    commit_atomic,
)
from spark_kafka_native.spark.write.driver.resumable_write import (
    abort_resumable,
    begin_resumable,
    commit_resumable,
)
from spark_kafka_native.spark.write.driver.stream_commit import (
    WriteCommitFailedError,
    abort_transactions,
    commit_transactions,
)
from spark_kafka_native.spark.write.marker_store import (
    GroupIntents,
    GroupMarkers,
    TopicIntents,
    decided_offsets,
)
from spark_kafka_native.spark.write.stream_writer import KafkaStreamWriter
from spark_kafka_native.spark.write.worker import transactional_task
from spark_kafka_native.spark.write.worker.transactional_task import (
    BatchTask,
    write_atomic,
    write_once,
    write_resumable,
)
from spark_kafka_native.spark.write.worker.write_rows import WriteFailedError, write_rows
from spark_kafka_native.spark.write.write_options import ExactlyOnce, WriteOptions
from spark_kafka_native.spark.write.write_task import (
    AtomicWrite,
    KafkaCommitMessage,
    ResumableWrite,
    RowColumns,
)
from spark_kafka_native.testing import MockBroker

T0 = TopicPartition("t", 0)
COLUMNS = RowColumns(names=("value",), topic="t")


class Sink:
    """What Spark does with tasks and messages: two tasks of two rows for each micro-batch."""

    def __init__(self, broker: MockBroker, **given: str) -> None:
        servers = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "t"}
        quick = {"kafka.retry.backoff.ms": "5", "kafka.linger.ms": "0", "transactionTimeout": "20s"}
        all_ = servers | quick | {"deliveryGuarantee": "exactly-once"} | given
        self.options = WriteOptions.parse(OptionValues.parse(all_, Scope.WRITE))
        assert self.options.exactly_once is not None
        self.once: ExactlyOnce = self.options.exactly_once
        self.broker = broker

    @property
    def router(self) -> Router:
        return router_for(self.options.client)

    def run_task(self, batch_id: int, task: int, values: Sequence[bytes] | None = None) -> KafkaCommitMessage:
        identity = BatchTask(query_id="q", batch_id=batch_id, partition=task)
        return write_once(
            rows(values or values_of(batch_id, task)), COLUMNS, self.options, self.once, identity
        )

    def run_tasks(self, batch_id: int, tasks: int = 2) -> list[KafkaCommitMessage]:
        return [self.run_task(batch_id, task) for task in range(tasks)]

    def commit(self, messages: Sequence[object], batch_id: int) -> None:
        commit_transactions(messages, batch_id, self.options, self.once)

    def write(self, batch_id: int) -> list[KafkaCommitMessage]:
        messages = self.run_tasks(batch_id)
        self.commit(messages, batch_id)
        return messages

    def named(self, values: Sequence[Sequence[bytes]]) -> tuple[ResumableWrite, list[KafkaCommitMessage]]:
        run = begin_resumable(self.router, self.options, self.once, "nightly")
        messages = [
            write_resumable(run, rows(one), COLUMNS, self.options, task) for task, one in enumerate(values)
        ]
        return run, messages

    def seen(self) -> list[bytes | None]:
        return sorted(record.value for record in self.broker.records("t", committed=True))

    def open(self) -> list[str]:
        with self.broker.cluster.changed:
            return sorted(name for name, one in self.broker.transactions.by_id.items() if one.is_open)


def rows(values: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"value": pa.array(values, pa.binary())})


def values_of(batch_id: int, task: int) -> list[bytes]:
    return [b"%d-%d-%d" % (batch_id, task, row) for row in range(2)]


def values_in(*batch_ids: int) -> list[bytes]:
    return sorted(one for batch_id in batch_ids for task in range(2) for one in values_of(batch_id, task))


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker() as running:
        running.create_topic("t")
        yield running


@pytest.fixture
def sink(broker: MockBroker) -> Sink:
    return Sink(broker)


def test_rows_are_seen_when_the_driver_has_committed_them(sink: Sink) -> None:
    messages = sink.run_tasks(0)
    assert (sink.seen(), sink.open()) == ([], ["pykafka-q-0", "pykafka-q-1"])
    sink.commit(messages, 0)
    assert (sink.seen(), sink.open()) == (values_in(0), [])


def test_rows_are_encoded_once(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash in the marker is that of the bytes that are written."""
    select, taken = RowColumns.select, []

    def counted(columns: RowColumns, batch: pa.RecordBatch) -> pa.RecordBatch:
        taken.append(batch.num_rows)
        return select(columns, batch)

    monkeypatch.setattr(RowColumns, "select", counted)
    messages = sink.run_tasks(0)
    assert taken == [2, 2]
    sink.commit(messages, 0)
    assert [one.skipped for one in sink.run_tasks(0)] == [2, 2]
    assert taken == [2] * 4


def refuse_commit(broker: MockBroker, name: str) -> None:
    """The coordinator refuses the next commit of a transactional id."""
    broker.on(
        "EndTxn", when=lambda one: one.fields["transactional_id"] == name and one.fields["committed"]
    ).fail("PRODUCER_FENCED")


def test_a_batch_that_runs_again_writes_only_what_is_not_committed(sink: Sink, broker: MockBroker) -> None:
    sink.write(0)
    refuse_commit(broker, "pykafka-q-1")
    messages = sink.run_tasks(1)
    words = r"micro-batch 1: 1 of 2 transactions could not be committed; pykafka-q-1: .*\(20000 ms\)"
    with pytest.raises(WriteCommitFailedError, match=words):
        sink.commit(messages, 1)
    abort_transactions(messages, sink.options)  # as Spark does
    assert (sink.seen(), sink.open()) == (sorted([*values_in(0), *values_of(1, 0)]), [])
    again = sink.run_tasks(1)
    assert [(one.skipped, one.transaction is None) for one in again] == [(2, True), (0, False)]
    sink.commit(again, 1)
    assert (sink.seen(), sink.open()) == (values_in(0, 1), [])
    third = sink.run_tasks(1)
    assert [one.skipped for one in third] == [2, 2]
    sink.commit(third, 1)
    assert sink.seen() == values_in(0, 1)


def test_the_intent_is_committed_before_any_row(sink: Sink, broker: MockBroker) -> None:
    sink.write(4)
    committed = [one.fields["transactional_id"] for one in broker.asked("EndTxn") if one.fields["committed"]]
    assert committed[0] == "pykafka-q-driver"
    assert sorted(committed[1:]) == ["pykafka-q-0", "pykafka-q-1"]
    assert broker.committed("pykafka-q") == {T0: 4}


def test_a_batch_without_rows_commits_nothing(sink: Sink, broker: MockBroker) -> None:
    """Neither before the first intent of the query, nor beside that of an earlier micro-batch."""

    def commit_no_rows(batch_id: int) -> None:
        task = BatchTask(query_id="q", batch_id=batch_id, partition=0)
        sink.commit([write_once(iter(()), COLUMNS, sink.options, sink.once, task)], batch_id)

    commit_no_rows(0)
    assert broker.asked("TxnOffsetCommit") == []
    sink.write(1)
    before = len(broker.asked("TxnOffsetCommit"))
    commit_no_rows(2)
    assert len(broker.asked("TxnOffsetCommit")) == before
    assert (sink.seen(), sink.open()) == (values_in(1), [])


def test_batches_may_be_left_out_and_never_come_back(sink: Sink, broker: MockBroker) -> None:
    for batch_id in (3, 7):
        sink.write(batch_id)
        assert broker.committed("pykafka-q-1") == {T0: batch_id}
    for earlier in (0, 3, 6):
        with pytest.raises(ReplayError, match="pykafka-q-0 has committed micro-batch 7 already"):
            sink.run_task(earlier, 0)
    assert [one.skipped for one in sink.run_tasks(7)] == [2, 2]
    sink.write(8)
    assert (sink.seen(), sink.open()) == (values_in(3, 7, 8), [])


def test_a_task_reports_which_one_it_is_and_if_spark_may_choose_their_number(sink: Sink) -> None:
    task = BatchTask(query_id="q", batch_id=0, partition=3, is_adaptive=True)
    written = write_once(rows(values_of(0, 3)), COLUMNS, sink.options, sink.once, task)
    sink.commit([written], 0)
    found = write_once(rows(values_of(0, 3)), COLUMNS, sink.options, sink.once, task)
    assert (written.records, found.skipped) == (2, 2)
    for message in (written, found):
        assert (message.task, message.is_adaptive, message.job) == (3, True, "pykafka-q")
    assert written.rows_hash == found.rows_hash != 0


def test_the_time_of_a_transaction_counts_from_before_its_first_row(sink: Sink) -> None:
    """The coordinator's does, and a warning comes before it is over."""
    asked: list[float] = []

    def slow() -> Iterator[pa.RecordBatch]:
        asked.append(time.time())
        yield from rows(values_of(0, 0))

    task = BatchTask(query_id="q", batch_id=0, partition=0)
    written = write_once(slow(), COLUMNS, sink.options, sink.once, task)
    assert written.began_s is not None
    assert written.began_s <= asked[0]
    sink.commit([written], 0)
    assert write_once(slow(), COLUMNS, sink.options, sink.once, task).began_s is None


def test_a_driver_of_an_earlier_batch_commits_nothing(sink: Sink) -> None:
    left = sink.run_task(6, 5)
    sink.write(7)
    with pytest.raises(ReplayError, match="has begun to commit micro-batch 7"):
        sink.commit([left], 6)
    abort_transactions([left], sink.options)  # until then it holds up readers with read_committed
    assert (sink.seen(), sink.open()) == (values_in(7), [])


def test_other_rows_than_those_that_are_committed_are_refused(sink: Sink) -> None:
    sink.write(0)
    for values in ([b"other", b"rows"], [*values_of(0, 0), b"more"], values_of(0, 0)[:1]):
        with pytest.raises(ReplayError, match="partition 0 of micro-batch 0 has"):
            sink.run_task(0, 0, values)
    assert (sink.seen(), sink.open()) == (values_in(0), [])


def test_a_batch_that_was_partly_committed_is_refused_with_fewer_tasks(
    sink: Sink, broker: MockBroker
) -> None:
    refuse_commit(broker, "pykafka-q-0")
    messages = sink.run_tasks(0)
    with pytest.raises(WriteCommitFailedError):
        sink.commit(messages, 0)
    whole = sink.run_task(0, 0, values_in(0))
    with pytest.raises(ReplayError, match="it had 2, of which pykafka-q-1 is committed"):
        sink.commit([whole], 0)
    abort_transactions([whole], sink.options)
    assert (sink.seen(), sink.open()) == (values_of(0, 1), [])


@pytest.mark.parametrize("code", ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "PRODUCER_FENCED"])
def test_a_batch_with_fewer_tasks_is_not_committed_while_a_task_can_not_be_taken_over(
    sink: Sink, broker: MockBroker, code: str
) -> None:
    """It is not known if the rows of that task are committed: they would be written twice."""
    refuse_commit(broker, "pykafka-q-0")
    with pytest.raises(WriteCommitFailedError):
        sink.commit(sink.run_tasks(0), 0)
    whole = sink.run_task(0, 0, values_in(0))
    broker.on("InitProducerId", when=lambda one: one.fields["transactional_id"] == "pykafka-q-1").fail(code)
    with pytest.raises(WriteCommitFailedError, match=f"micro-batch 0: .* has committed nothing: .*{code}"):
        sink.commit([whole], 0)
    assert (sink.seen(), sink.open()) == (values_of(0, 1), ["pykafka-q-0"])
    with pytest.raises(ReplayError, match="it had 2, of which pykafka-q-1 is committed"):
        sink.commit([whole], 0)


def test_an_abort_ends_the_transactions_of_all_tasks(sink: Sink) -> None:
    messages: list[object] = [*sink.run_tasks(0)]
    sink.run_task(0, 2)  # the driver hears nothing of this one
    assert sink.open() == ["pykafka-q-0", "pykafka-q-1", "pykafka-q-2"]
    abort_transactions([*messages, None], sink.options)
    assert (sink.seen(), sink.open()) == ([], [])


@pytest.mark.parametrize("kind", ["stream", "named", "atomic"])
def test_an_abort_ends_in_time_where_the_coordinator_is_silent(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    given = {"stream": {}, "atomic": {"transactionalIdPrefix": "jobs"}, "named": {"writeId": "nightly"}}[kind]
    sink = Sink(broker, **given)
    for module in (stream_commit, resumable_write, atomic_write):
        monkeypatch.setattr(module, "ABORT_MS", 300)
    if kind == "stream":
        messages = sink.run_tasks(0)
        abort = partial(abort_transactions, messages, sink.options)
    elif kind == "named":
        run, messages = sink.named([values_of(0, 0)])
        abort = partial(abort_resumable, run, messages, sink.options)
    else:
        job = begin_atomic(sink.router, sink.options, sink.once)
        message = write_atomic(job, rows(values_in(0)), COLUMNS, sink.options, 0)
        abort = partial(abort_atomic, job, [message], sink.options)
    broker.on("EndTxn", times=None).ignore()
    abort()  # a failure is logged only: the coordinator aborts by itself when the timeout is over
    assert sink.open()


def test_a_task_that_fails_aborts_in_a_few_seconds(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other attempt begins meanwhile, and ends the transaction, too."""
    limits, close = [], TransactionalProducer.close

    def noted(producer: TransactionalProducer, timeout: Timeout = None) -> None:
        limits.append(timeout)
        close(producer, timeout)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows([b"1"])
        raise RuntimeError

    monkeypatch.setattr(TransactionalProducer, "close", noted)
    identity = BatchTask(query_id="q", batch_id=0, partition=0)
    with pytest.raises(RuntimeError):
        write_once(failing(), COLUMNS, sink.options, sink.once, identity)
    assert (limits, sink.open()) == ([5.0], [])


def test_the_first_batch_of_a_run_ends_what_an_earlier_run_with_more_tasks_has_left(sink: Sink) -> None:
    sink.commit(sink.run_tasks(0, tasks=4), 0)
    sink.run_tasks(1, tasks=4)
    assert len(sink.open()) == 4
    sink.write(1)
    of_four = [one for task in range(4) for one in values_of(0, task)]
    assert (sink.seen(), sink.open()) == (sorted([*of_four, *values_in(1)]), [])


def test_a_marker_that_is_not_decided_yet_is_waited_for(sink: Sink, broker: MockBroker) -> None:
    sink.write(0)
    messages = sink.run_tasks(1)
    markers = GroupMarkers(sink.router)
    with pytest.raises(DeadlineExceededError):
        markers.last("pykafka-q-0", [T0], sink.router.deadline(300))
    assert broker.asked("OffsetFetch")[-1].fields["require_stable"]
    decided = CommitMarker.newest(decided_offsets(sink.router, "pykafka-q-0"), "pykafka-q-0")
    assert decided is not None
    assert decided.batch_id == 0
    sink.commit(messages, 1)
    found = markers.last("pykafka-q-0", [T0])
    assert found is not None
    assert (found.batch_id, found.rows) == (1, 2)
    assert markers.last("pykafka-q-9", [T0]) is None


def test_the_first_marker_of_a_task_is_waited_for_where_it_is(sink: Sink) -> None:
    # Asked for all offsets, a coordinator does not mention a pending one without a committed one before it.
    sink.run_task(0, 0)
    markers = GroupMarkers(sink.router)
    assert markers.last("pykafka-q-0", ()) is None
    with pytest.raises(DeadlineExceededError):
        markers.last("pykafka-q-0", [T0], sink.router.deadline(300))
    # The same of a place where it has none, if it has another one elsewhere.
    elsewhere = CommitMarker(batch_id=0, rows=1, hash=1).offset()
    sink.broker.create_topic("u")
    commit_offsets(sink.router, "pykafka-q-0", {TopicPartition("u", 0): elsewhere})
    assert markers.last("pykafka-q-0", ()) is not None
    with pytest.raises(DeadlineExceededError):
        markers.last("pykafka-q-0", [T0], sink.router.deadline(300))


def test_a_task_says_that_a_later_attempt_has_its_transaction_open(
    sink: Sink, broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken_over(markers: GroupMarkers, name: str, where: Sequence[TopicPartition]) -> CommitMarker | None:
        monkeypatch.undo()
        sink.run_task(0, 0)
        before = len(broker.asked("OffsetFetch"))
        # Time is up once the coordinator has said of one place that it is undecided, and is asked again.
        limit = Deadline(30.0, lambda: 60.0 * (len(broker.asked("OffsetFetch")) > before + 2))
        return markers.last(name, where, limit)

    monkeypatch.setattr(GroupMarkers, "last", taken_over)
    words = r"pykafka-q-0: another attempt or driver has taken over .* open; .*UNSTABLE_OFFSET_COMMIT"
    with pytest.raises(WriteFailedError, match=words):
        sink.run_task(0, 0)
    assert sink.open() == ["pykafka-q-0"]  # the later one can still be committed


@pytest.mark.parametrize("beside", [[], [TopicPartition("u", 0)]], ids=["alone", "beside a place without"])
def test_a_first_marker_that_is_committed_between_two_looks_is_found(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, beside: list[TopicPartition]
) -> None:
    # The first look has not seen it, and the second one is for the places that it was looked for at.
    sink.broker.create_topic("u")
    messages, look = [sink.run_task(0, 0)], marker_store.committed_offsets

    def committed_meanwhile(*arguments: Any) -> Any:
        monkeypatch.undo()
        sink.commit(messages, 0)
        return look(*arguments)

    monkeypatch.setattr(marker_store, "committed_offsets", committed_meanwhile)
    found = GroupMarkers(sink.router).last("pykafka-q-0", [T0, *beside])
    assert found is not None
    assert (found.batch_id, found.rows) == (0, 2)


@pytest.mark.parametrize("end", ["written", "skipped", "refused", "failed", "without rows"])
def test_a_task_leaves_no_sender_behind(sink: Sink, broker: MockBroker, end: str) -> None:
    sink.write(0)
    before = set(threading.enumerate())
    match end:
        case "written":
            assert sink.run_task(1, 0).transaction is not None
        case "skipped":
            assert sink.run_task(0, 0).skipped == 2
        case "refused":
            with pytest.raises(ReplayError):
                sink.run_task(0, 0, [b"other"])
        case "failed":
            broker.on("Produce").fail("TOPIC_AUTHORIZATION_FAILED")
            with pytest.raises(WriteFailedError):
                sink.run_task(1, 0)
            assert sink.open() == []
        case _:
            identity = BatchTask(query_id="q", batch_id=1, partition=0)
            message = write_once(iter(()), COLUMNS, sink.options, sink.once, identity)
            assert (message.records, message.skipped, message.transaction) == (0, 0, None)
    left = [one.name for one in set(threading.enumerate()) - before]
    assert "kafka-producer-sender" not in left


def test_an_intent_is_seen_before_anything_that_it_speaks_of_is_committed(
    sink: Sink, broker: MockBroker
) -> None:
    # A coordinator up to Kafka 3.x answers EndTxn, and others see the offset a moment later.
    sink.commit([sink.run_task(0, 0)], 0)
    last_looks = [
        (one.api, one.fields.get("transactional_id"))
        for one in broker.requests
        if one.api == "EndTxn" or (one.api == "OffsetFetch" and one.places)
    ][-3:]
    assert last_looks == [("EndTxn", "pykafka-q-driver"), ("OffsetFetch", None), ("EndTxn", "pykafka-q-0")]


@pytest.mark.parametrize("markers", ["groups", "topic"])
def test_an_intent_that_the_first_look_missed_stops_the_commit(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, markers: str
) -> None:
    broker.create_topic("m", configs={"cleanup.policy": "compact"})
    sink = Sink(broker, **({"transactionMarkerTopic": "m"} if markers == "topic" else {}))
    sink.write(0)
    messages = sink.run_tasks(1)
    before = set(threading.enumerate())
    kept = TopicIntents if markers == "topic" else GroupIntents
    with monkeypatch.context() as patch:
        patch.setattr(kept, "last", lambda *_: None)  # the answer of a broker that was deposed
        words = r"micro-batch 1: this driver has committed nothing: the last intent was said to be None, and"
        with pytest.raises(WriteCommitFailedError, match=words):
            sink.commit(messages, 1)
    assert "kafka-producer-sender" not in {one.name for one in set(threading.enumerate()) - before}
    assert "pykafka-q-driver" not in sink.open()
    sink.commit(messages, 1)
    assert (sink.seen(), sink.open()) == (values_in(0, 1), [])


def senders() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "kafka-producer-sender"}


@pytest.mark.parametrize("fault", ["not taken", "not in the log"])
def test_an_intent_that_is_not_in_its_topic_stops_the_commit_and_leaves_nothing(
    broker: MockBroker, fault: str
) -> None:
    broker.create_topic("m", configs={"cleanup.policy": "compact"})
    sink = Sink(broker, transactionMarkerTopic="m")
    messages, before = sink.run_tasks(0), senders()
    if fault == "not taken":
        broker.on(
            "InitProducerId", when=lambda one: one.fields["transactional_id"] == "pykafka-q-driver"
        ).fail("TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    else:
        broker.on("Produce", topic="m").fail("MESSAGE_TOO_LARGE")
    with pytest.raises(WriteCommitFailedError, match="micro-batch 0: this driver has committed nothing"):
        sink.commit(messages, 0)
    assert (sink.seen(), sink.open(), senders() - before) == ([], ["pykafka-q-0", "pykafka-q-1"], set())
    sink.commit(messages, 0)
    assert (sink.seen(), sink.open(), senders() - before) == (values_in(0), [], set())


def test_rows_without_their_marker_in_its_topic_are_aborted(broker: MockBroker) -> None:
    broker.create_topic("m", configs={"cleanup.policy": "compact"})
    sink = Sink(broker, transactionMarkerTopic="m")
    before = senders()
    broker.on("Produce", topic="m").fail("MESSAGE_TOO_LARGE")
    with pytest.raises(TransactionAbortableError, match="abort the transaction and begin another"):
        sink.run_task(0, 0)
    assert (sink.seen(), sink.open(), senders() - before) == ([], [], set())
    sink.write(0)
    assert sink.seen() == values_in(0)


@pytest.mark.parametrize("partitions", [1, 5])
def test_markers_in_a_topic_show_what_is_committed(broker: MockBroker, partitions: int) -> None:
    broker.create_topic("m", partitions, configs={"cleanup.policy": "compact"})
    sink = Sink(broker, transactionMarkerTopic="m")
    for batch_id in (3, 7):
        sink.write(batch_id)
    assert [one.skipped for one in sink.run_tasks(7)] == [2, 2]
    with pytest.raises(ReplayError, match="has committed micro-batch 7 already"):
        sink.run_task(3, 0)
    assert (sink.seen(), sink.open()) == (values_in(3, 7), [])


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_marker_topic_has_to_keep_its_records(broker: MockBroker, policy: str) -> None:
    broker.create_topic("m", configs={"cleanup.policy": policy})
    sink = Sink(broker, transactionMarkerTopic="m")
    for _ in range(2):  # Spark runs a failed task again, in the same process
        with pytest.raises(ConfigError, match=f"topic m has cleanup\\.policy={policy}"):
            sink.run_task(0, 0)
    assert broker.asked("Produce") == []


@pytest.mark.parametrize("way", ["stream", "writeId"])
def test_one_answer_of_a_broker_that_lags_makes_no_marker_topic_missing(broker: MockBroker, way: str) -> None:
    broker.create_topic("m", configs={"cleanup.policy": "compact"})
    broker.on("DescribeConfigs", times=1).fail("UNKNOWN_TOPIC_OR_PARTITION")
    if way == "stream":
        sink = Sink(broker, transactionMarkerTopic="m")
        sink.write(0)
    else:
        sink = Sink(broker, transactionMarkerTopic="m", writeId="nightly")
        run, messages = sink.named([values_of(0, 0), values_of(0, 1)])
        commit_resumable(run, messages, sink.options)
    assert (sink.seen(), sink.open()) == (values_in(0), [])


def test_a_marker_topic_that_does_not_exist_is_called_missing(broker: MockBroker) -> None:
    """Also where ``kafka.max.block.ms`` ends the wait for it."""
    for given in ({}, {"kafka.max.block.ms": "300"}):
        sink = Sink(broker, transactionMarkerTopic="m", **given)
        with pytest.raises(ConfigError, match=r"topic m does not exist: create it with cleanup\.policy"):
            sink.run_task(0, 0)
    assert broker.asked("Produce") == []


def test_a_wrong_name_of_a_marker_topic_is_waited_for_as_one_that_was_never_seen(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, wait_ms in {"SAY_UNKNOWN_MS": 0, "NEW_TOPIC_WAIT_MS": 300, "KNOWN_TOPIC_WAIT_MS": 300}.items():
        monkeypatch.setattr(retry_policy, name, wait_ms)
    with pytest.raises(ConfigError, match="topic m does not exist"):
        Sink(broker, transactionMarkerTopic="m").run_task(0, 0)
    assert "No broker knows the topic m (is the name right?)" in caplog.text


def test_the_configs_of_a_marker_topic_are_asked_for_once_in_a_process(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again if the topic was created anew."""
    asked, ask = [], describe_configs.describe_topic_configs

    def noted(*given: Any, **options: Any) -> Any:
        asked.append(given[1])
        return ask(*given, **options)

    monkeypatch.setattr(describe_configs, "describe_topic_configs", noted)
    broker.create_topic("m", configs={"cleanup.policy": "compact"})
    sink = Sink(broker, transactionMarkerTopic="m")
    for batch_id in (0, 1):
        sink.write(batch_id)
    assert asked == [["m"]]
    with broker.cluster.changed:
        broker.cluster.delete_topic("m")
    broker.create_topic("m", configs={"cleanup.policy": "delete"})
    with pytest.raises(ConfigError, match=r"topic m has cleanup\.policy=delete"):
        sink.run_task(2, 0)


def test_a_marker_topic_that_a_broker_does_not_know_yet_is_not_taken_for_one_that_was_checked(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configs may come from another broker; without an id it could be any topic of that name."""
    for name in ("NEW_TOPIC_WAIT_MS", "KNOWN_TOPIC_WAIT_MS"):
        monkeypatch.setattr(retry_policy, name, 300)
    sink = Sink(broker, transactionMarkerTopic="m")
    markers = marker_store.find_markers(router_for(sink.options.client), sink.options)
    broker.create_topic("m", configs={"cleanup.policy": "compact"})
    broker.on("Metadata", topic="m", times=1).fail("UNKNOWN_TOPIC_OR_PARTITION")
    markers.check()
    with broker.cluster.changed:
        broker.cluster.delete_topic("m")
    with pytest.raises(ConfigError, match="topic m does not exist"):
        markers.check()
    broker.create_topic("m", configs={"cleanup.policy": "delete"})
    broker.on("Metadata", topic="m", times=1).fail("UNKNOWN_TOPIC_OR_PARTITION")
    with pytest.raises(ConfigError, match=r"topic m has cleanup\.policy=delete"):
        markers.check()


def test_the_driver_of_a_batch_write_creates_the_topics_that_no_row_names(broker: MockBroker) -> None:
    given = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": "new",
        "createTopics": "true",
        "kafka.over.limit": "dead_letter",
        "kafka.dead.letter.topic": "letters",
    }
    values = OptionValues.parse(given, Scope.WRITE)
    KafkaBatchWriter(values, StructType().add("value", "binary"), overwrite=False)
    assert {*broker.cluster.topics} == {"t", "new", "letters"}


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_task_of_a_stream_creates_the_topics_that_no_row_names(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    is_once = guarantee == "exactly-once"
    properties = {
        "sql.streaming.queryId": "q",
        "streaming.sql.batchId": "0",
        "spark.jobGroup.id": "run-1",
    }
    context = SimpleNamespace(getLocalProperty=properties.get, partitionId=lambda: 0)
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: context)
    given = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": "new",
        "createTopics": "true",
        "createTopics.partitions": "3",
        "deliveryGuarantee": guarantee,
    }
    letters = {} if is_once else {"kafka.over.limit": "dead_letter", "kafka.dead.letter.topic": "letters"}
    values = OptionValues.parse(given | letters, Scope.WRITE)
    writer = KafkaStreamWriter(values, StructType().add("value", "binary"))
    message = writer.write(iter(()))
    assert (message.records, message.run_id) == (0, "run-1")

    def created() -> dict[str, int]:
        return {topic: len(found.partitions) for topic, found in broker.cluster.topics.items()}

    assert created() == {"t": 1, "new": 3} | ({} if is_once else {"letters": 3})
    # A process that knows a topic which was deleted since waited for it until delivery.timeout.ms.
    with broker.cluster.changed:
        broker.cluster.delete_topic("new")
    properties["streaming.sql.batchId"] = "1"
    message = writer.write(iter([pa.record_batch({"value": pa.array([b"1"], pa.binary())})]))
    assert (message.records, created()["new"]) == (1, 3)


@pytest.mark.parametrize("create", ["true", "false"])
def test_a_topic_that_rows_name_is_created_again_after_it_was_deleted(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, create: str
) -> None:
    context = SimpleNamespace(getLocalProperty={}.get, partitionId=lambda: 0)
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: context)
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "createTopics": create}
    given |= {"kafka.delivery.timeout.ms": "1500", "kafka.request.timeout.ms": "1000", "kafka.linger.ms": "0"}
    schema = StructType().add("topic", "string").add("value", "binary")
    writer = KafkaStreamWriter(OptionValues.parse(given, Scope.WRITE), schema)
    batch = pa.record_batch({"topic": ["t"], "value": pa.array([b"1"], pa.binary())})
    writer.write(iter([batch]))
    monkeypatch.setattr(retry_policy, "KNOWN_TOPIC_WAIT_MS", 2_000)
    with broker.cluster.changed:
        broker.cluster.delete_topic("t")
    if create == "true":
        writer.write(iter([batch]))
        assert [one.value for one in broker.records("t")] == [b"1"]
    else:
        with pytest.raises(KafkaError):
            writer.write(iter([batch]))
        assert "t" not in broker.cluster.topics


def test_each_transaction_lasts_as_long_as_its_option_says(broker: MockBroker) -> None:
    Sink(broker).write(0)
    named = Sink(broker, writeId="nightly")
    run, messages = named.named([values_of(1, 0)])
    commit_resumable(run, messages, named.options)
    whole = Sink(broker)
    job = begin_atomic(whole.router, whole.options, whole.once)
    commit_atomic(job, [write_atomic(job, rows([b"x"]), COLUMNS, whole.options, 0)], whole.options)
    timeouts = {
        one.fields["transactional_id"].partition("batch-")[0]: one.fields["transaction_timeout_ms"]
        for one in broker.asked("InitProducerId")
    }
    write = "pykafka-write/nightly"
    names = ["pykafka-q-0", "pykafka-q-1", "pykafka-q-driver", write, f"{write}/0", "pykafka-"]
    assert timeouts == dict.fromkeys(names, 20_000)


def test_transactions_with_a_marker_topic_last_as_long_as_their_option_says(broker: MockBroker) -> None:
    broker.create_topic("m", configs={"cleanup.policy": "compact"})
    Sink(broker, transactionMarkerTopic="m").write(0)
    asked = [one.fields for one in broker.asked("InitProducerId")]
    timeouts = {one["transactional_id"]: one["transaction_timeout_ms"] for one in asked}
    assert timeouts == dict.fromkeys(["pykafka-q-0", "pykafka-q-1", "pykafka-q-driver"], 20_000)


def test_a_task_that_is_committed_commits_its_marker_once_more(sink: Sink, broker: MockBroker) -> None:
    """An aborted renewal would let the marker expire before the intent."""
    sink.write(0)
    before = len(broker.asked("EndTxn"))
    assert [one.skipped for one in sink.run_tasks(0)] == [2, 2]
    ends = [(one.fields["transactional_id"], one.fields["committed"]) for one in broker.asked("EndTxn")]
    assert ends[before:] == [("pykafka-q-0", True), ("pykafka-q-1", True)]


@pytest.mark.parametrize("how", ["in a stream", "whole"])
def test_a_transaction_is_written_with_the_options_of_the_producer(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    class MadeError(Exception):
        pass

    def made(*given: object, **_: object) -> None:
        raise MadeError(*given)

    job = begin_atomic(sink.router, sink.options, sink.once)
    monkeypatch.setattr(transactional_task, "TransactionalProducer", made)
    whole = partial(write_atomic, job, rows([b"x"]), COLUMNS, sink.options, 0)
    write = whole if how == "whole" else partial(sink.run_task, 0, 0)
    with pytest.raises(MadeError) as raised:
        write()
    client, _, producer = raised.value.args
    assert (client, producer) == (sink.options.client, sink.options.producer)


def test_without_transactions_rows_are_written_with_the_options_of_the_producer(broker: MockBroker) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "t", "kafka.acks": "1"}
    options = WriteOptions.parse(OptionValues.parse(given, Scope.WRITE))
    assert write_rows(rows([b"x"]), COLUMNS, options).records == 1
    assert [one.fields["acks"] for one in broker.asked("Produce")] == [1]


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_formats_and_times_are_those_of_the_options(broker: MockBroker, kind: str) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "t"}
    values = OptionValues.parse(given | {"value.format": "json", "timestampColumn": "at"}, Scope.WRITE)
    schema = StructType().add("value", StructType().add("id", "long")).add("at", "timestamp")
    writer: Any = (
        KafkaBatchWriter(values, schema, overwrite=False)
        if kind == "batch"
        else KafkaStreamWriter(values, schema)
    )
    at = pa.array([1_700_000_000_000_000], pa.timestamp("us", tz="UTC"))
    writer.write(iter([pa.record_batch({"value": [{"id": 7}], "at": at})]))
    (record,) = broker.records("t")
    assert (record.value, record.timestamp_ms) == (b'{"id":7}', 1_700_000_000_000)


@pytest.mark.parametrize("kind", ["atomic", "named", "named, with a marker topic"])
def test_a_task_writes_as_its_job_says(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Written plainly, the rows would count before the job has ended, and again with each retry."""
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "t"}
    given |= {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "jobs"}
    if kind != "atomic":
        given |= {"writeId": "nightly"}
    if kind == "named, with a marker topic":
        broker.create_topic("m", configs={"cleanup.policy": "compact"})
        given |= {"transactionMarkerTopic": "m"}
    values = OptionValues.parse(given, Scope.WRITE)
    writer = KafkaBatchWriter(values, StructType().add("value", "binary"), overwrite=False)
    monkeypatch.setattr(transactional_task, "current_partition", lambda: 0)
    message = writer.write(rows([b"1"]))
    assert broker.records("t", committed=True) == []
    writer.commit([message])
    assert [one.value for one in broker.records("t", committed=True)] == [b"1"]


@pytest.mark.parametrize("kind", ["atomic", "named"])
def test_a_job_whose_rows_name_their_topics_writes_as_it_says(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    given |= {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "jobs"}
    if kind == "named":
        given |= {"writeId": "nightly"}
    values = OptionValues.parse(given, Scope.WRITE)
    schema = StructType().add("topic", "string").add("value", "binary")
    writer = KafkaBatchWriter(values, schema, overwrite=False)
    monkeypatch.setattr(transactional_task, "current_partition", lambda: 0)
    message = writer.write(iter([pa.record_batch({"topic": ["t"], "value": pa.array([b"1"], pa.binary())})]))
    assert broker.records("t", committed=True) == []
    writer.commit([message])
    assert [one.value for one in broker.records("t", committed=True)] == [b"1"]


BLOCK_MS, TRANSACTION_MS = 7_000, 540_000


@pytest.mark.parametrize(
    ("kind", "given", "limits"),
    [
        # The version of a broker is asked for shortly: another one may know it.
        ("plain", {"kafka.compression.type": "zstd"}, ([3_000, BLOCK_MS], [BLOCK_MS], [])),
        ("atomic", {}, ([BLOCK_MS] * 2, [BLOCK_MS], [30_000, TRANSACTION_MS])),
        ("named", {"writeId": "nightly"}, ([BLOCK_MS] * 2, [BLOCK_MS], [30_000, TRANSACTION_MS])),
        (
            "named, with a marker topic",
            {"writeId": "nightly", "transactionMarkerTopic": "m"},
            # A marker is looked for before the rows and after them, an intent and its end are written.
            ([BLOCK_MS] * 3, [BLOCK_MS] * 2 + [TRANSACTION_MS] * 2, [30_000] + [TRANSACTION_MS] * 3),
        ),
        ("stream", {}, ([], [BLOCK_MS] * 3, [15_000, TRANSACTION_MS])),
    ],
)
def test_each_wait_of_a_write_has_the_limit_that_the_options_give_it(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, kind: str, given: dict[str, str], limits: Any
) -> None:
    """A commit that is given up while its transactions live is a job that is written again."""
    broker.create_topic("m", configs={"cleanup.policy": "compact"})
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": "t",
        "kafka.max.block.ms": "7000",
    }
    if kind != "plain":
        options |= {"deliveryGuarantee": "exactly-once", "transactionTimeout": "9m"}
    values, schema = OptionValues.parse(options | given, Scope.WRITE), StructType().add("value", "binary")
    asked: list[float] = []
    deadline = Router.deadline

    def noted(router: Router, timeout_ms: float | None = None) -> Deadline:
        asked.extend([] if timeout_ms is None else [timeout_ms])
        return deadline(router, timeout_ms)

    def seen_since() -> list[float]:
        found = sorted(asked)
        asked.clear()
        return found

    monkeypatch.setattr(Router, "deadline", noted)
    monkeypatch.setattr(transactional_task, "current_partition", lambda: 0)
    identity = BatchTask(query_id="q", batch_id=0, partition=0)
    monkeypatch.setattr(BatchTask, "current", lambda: identity)
    is_stream = kind == "stream"
    writer: Any = (
        KafkaStreamWriter(values, schema) if is_stream else KafkaBatchWriter(values, schema, overwrite=False)
    )
    at_first = seen_since()
    message = writer.write(rows([b"1"]))
    in_task = seen_since()
    writer.commit([message], *([0] if is_stream else []))
    assert (at_first, in_task, seen_since()) == limits


def test_the_topic_of_a_plain_write_is_created_before_its_tasks_run(broker: MockBroker) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "new"}
    given |= {"createTopics": "true", "createTopics.partitions": "3"}
    values = OptionValues.parse(given, Scope.WRITE)
    KafkaBatchWriter(values, StructType().add("value", "binary"), overwrite=False)
    assert len(broker.cluster.topics["new"].partitions) == 3


# A write with a name.


@pytest.fixture
def nightly(broker: MockBroker) -> Sink:
    return Sink(broker, transactionalIdPrefix="jobs", writeId="nightly")


def test_a_write_with_a_name_is_written_once_over_its_runs(nightly: Sink, broker: MockBroker) -> None:
    parts = [values_of(0, 0), values_of(0, 1)]
    run, messages = nightly.named(parts)
    refuse_commit(broker, "jobs-write/nightly/1")
    with pytest.raises(WriteCommitFailedError, match="1 of 2 transactions could not be committed"):
        commit_resumable(run, messages, nightly.options)
    abort_resumable(run, messages, nightly.options)
    assert (nightly.seen(), nightly.open()) == (values_of(0, 0), [])
    run, messages = nightly.named(parts)
    assert [one.skipped for one in messages] == [2, 0]
    commit_resumable(run, messages, nightly.options)
    assert (nightly.seen(), nightly.open()) == (values_in(0), [])
    noted = GroupMarkers(nightly.router).last("jobs-write/nightly", [T0])
    assert noted is not None
    assert (noted.is_complete, noted.rows, noted.tasks) == (True, 4, 2)
    assert noted.batch_id == 2  # after the intents of two runs
    run, messages = nightly.named(parts)
    commit_resumable(run, messages, nightly.options)
    assert [one.skipped for one in messages] == [2, 2]
    assert nightly.seen() == values_in(0)
    again = GroupMarkers(nightly.router).last("jobs-write/nightly", [T0])
    assert again == replace(noted, batch_id=4)


@pytest.mark.parametrize("given", [{}, {"transactionMarkerTopic": "m"}], ids=["groups", "topic"])
def test_a_run_of_a_write_ends_what_an_earlier_one_has_left_open(
    broker: MockBroker, given: dict[str, str]
) -> None:
    """A driver that died before all tasks were committed. Readers with read_committed would wait for them."""
    broker.create_topic("m", configs={"cleanup.policy": "compact"})
    sink = Sink(broker, writeId="nightly", **given)
    run, messages = sink.named([[b"1"], [b"2"]])
    refuse_commit(broker, "pykafka-write/nightly/1")
    with pytest.raises(WriteCommitFailedError, match="1 of 2 transactions could not be committed"):
        commit_resumable(run, messages, sink.options)
    assert sink.open() == ["pykafka-write/nightly/1"]
    begin_resumable(sink.router, sink.options, sink.once, "nightly")
    assert (sink.seen(), sink.open()) == ([b"1"], [])


def test_a_write_without_rows_binds_no_later_run(nightly: Sink) -> None:
    for parts in ([[], []], [values_of(0, 0)]):
        run, messages = nightly.named(parts)
        commit_resumable(run, messages, nightly.options)
    assert (nightly.seen(), nightly.open()) == (values_of(0, 0), [])


def test_a_write_notes_once_in_its_marker_topic_that_it_is_complete(broker: MockBroker) -> None:
    broker.create_topic("m", configs={"cleanup.policy": "compact"})
    sink = Sink(broker, transactionMarkerTopic="m", writeId="nightly")
    for _ in range(2):
        run, messages = sink.named([values_of(0, 0)])
        commit_resumable(run, messages, sink.options)
        noted = marker_store.find_markers(sink.router, sink.options).last(run.transactional_id, [])
        assert noted is not None
        assert (noted.is_complete, noted.batch_id, noted.rows) == (True, 1, 2)
    assert (sink.seen(), sink.open()) == (values_of(0, 0), [])


def test_the_last_intent_is_looked_for_once_no_other_run_can_replace_it(
    nightly: Sink, broker: MockBroker
) -> None:
    run, messages = nightly.named([values_of(0, 0)])
    before = len(broker.requests)
    commit_resumable(run, messages, nightly.options)
    asked = [one for one in broker.requests[before:] if one.api in ("InitProducerId", "OffsetFetch")]
    assert [one.api for one in asked[:2]] == ["InitProducerId", "OffsetFetch"]
    assert asked[0].fields["transactional_id"] == "jobs-write/nightly"


def test_a_write_goes_on_only_when_others_see_its_last_commits(
    nightly: Sink, broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator answers EndTxn, and others see the commit a moment later: nothing is committed that an
    intent speaks of before they see it, and nothing is called complete before they see its rows."""
    run, messages = nightly.named([values_of(0, 0), values_of(0, 1)])
    before, seen_after = len(broker.requests), []

    def steps() -> list[str]:
        """The commits, and the looks that wait for them."""
        asked = [one for one in broker.requests[before:] if one.api in ("EndTxn", "OffsetFetch")]
        return [
            one.fields.get("transactional_id", "look").removeprefix("jobs-write/")
            for one in asked
            if one.fields.get("require_stable", True)
        ]

    def await_readers(_router: Router, transaction: OpenTransaction) -> None:
        assert set(steps()[-2:]) == {"nightly/0", "nightly/1"}
        seen_after.append(transaction.transactional_id)

    monkeypatch.setattr(resumable_write, "await_readers", await_readers)
    commit_resumable(run, messages, nightly.options)
    assert sorted(seen_after) == ["jobs-write/nightly/0", "jobs-write/nightly/1"]
    first = steps().index("nightly")
    assert steps()[first : first + 2] == ["nightly", "look"]
    assert sorted(steps()[first + 2 : -2]) == ["nightly/0", "nightly/1"]
    assert steps()[-2:] == ["nightly", "look"]


@pytest.mark.parametrize("error", [DeadlineExceededError, NetworkError])
def test_a_write_is_complete_though_that_can_not_be_noted(
    nightly: Sink, monkeypatch: pytest.MonkeyPatch, error: type[KafkaError]
) -> None:
    """Its rows are visible: under another name its user would write them twice."""
    parts = [values_of(0, 0), values_of(0, 1)]
    commit, calls = TransactionalProducer.commit, []

    def silent_from_the_second_on(producer: TransactionalProducer, timeout: Timeout = None) -> None:
        calls.append(nightly.seen())
        if len(calls) > 1:
            raise error("the coordinator is silent")
        commit(producer, timeout)

    run, messages = nightly.named(parts)
    with monkeypatch.context() as patch:
        patch.setattr(TransactionalProducer, "commit", silent_from_the_second_on)
        commit_resumable(run, messages, nightly.options)
    assert calls == [[], values_in(0)]
    run, messages = nightly.named(parts)
    assert [one.skipped for one in messages] == [2, 2]
    commit_resumable(run, messages, nightly.options)
    assert (nightly.seen(), nightly.open()) == (values_in(0), [])


def test_all_transactions_of_a_write_share_the_time_of_its_commit(
    nightly: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[Timeout] = []
    end = resumable_write._commit

    def commit(router: Router, deadline: Deadline, transaction: OpenTransaction) -> KafkaError | None:
        deadlines.append(deadline)
        return end(router, deadline, transaction)

    def take_over(producer: TransactionalProducer, timeout: Timeout = None) -> None:
        if timeout is not None:  # else a task's
            deadlines.append(timeout)
        initialize(producer, timeout)

    initialize = TransactionalProducer.initialize
    monkeypatch.setattr(TransactionalProducer, "initialize", take_over)
    monkeypatch.setattr(resumable_write, "_commit", commit)
    run, messages = nightly.named([values_of(0, 0), values_of(0, 1)])
    commit_resumable(run, messages, nightly.options)
    [first, *others] = deadlines
    assert isinstance(first, Deadline)
    assert first.remaining_ms <= 20_000  # then the coordinators have aborted all
    assert [one is first for one in others] == [True, True]


def test_an_intent_of_another_run_that_the_first_look_missed_stops_the_commit(
    nightly: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, messages = nightly.named([values_of(0, 0)])
    commit_resumable(run, messages, nightly.options)
    noted = GroupMarkers(nightly.router).last("jobs-write/nightly", [T0])
    with monkeypatch.context() as patch:
        patch.setattr(GroupMarkers, "last", lambda *_: None)  # the answer of a broker that was deposed
        run = begin_resumable(nightly.router, nightly.options, nightly.once, "nightly")
        messages = [write_resumable(run, rows([b"other"]), COLUMNS, nightly.options, 1)]
        with pytest.raises(WriteCommitFailedError, match=r"was said to be None, and it is .* was deposed"):
            commit_resumable(run, messages, nightly.options)
    assert GroupMarkers(nightly.router).last("jobs-write/nightly", [T0]) == noted  # the other run's stays
    abort_resumable(run, messages, nightly.options)
    assert (nightly.seen(), nightly.open()) == (values_of(0, 0), [])


def test_an_intent_that_is_gone_when_the_next_one_is_written_stops_the_commit(
    nightly: Sink, broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [values_of(0, 0), values_of(0, 1)]
    run, messages = nightly.named(parts)
    refuse_commit(broker, "jobs-write/nightly/0")
    with pytest.raises(WriteCommitFailedError):
        commit_resumable(run, messages, nightly.options)
    run, messages = nightly.named(parts)
    with monkeypatch.context() as patch:
        patch.setattr(GroupMarkers, "add", lambda *_: None)
        with pytest.raises(WriteCommitFailedError, match=r"was said to be Commit.*, and it is None"):
            commit_resumable(run, messages, nightly.options)
    abort_resumable(run, messages, nightly.options)
    assert (nightly.seen(), nightly.open()) == (values_of(0, 1), [])


@pytest.mark.parametrize("kind", ["stream", "named"])
@pytest.mark.parametrize(
    ("api", "code", "is_another"),
    [
        ("TxnOffsetCommit", "TOPIC_AUTHORIZATION_FAILED", False),
        ("TxnOffsetCommit", "GROUP_AUTHORIZATION_FAILED", False),
        ("TxnOffsetCommit", "PRODUCER_FENCED", True),
        ("TxnOffsetCommit", "INVALID_PRODUCER_EPOCH", True),
        ("EndTxn", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", False),
        ("EndTxn", "PRODUCER_FENCED", True),
    ],
)
def test_another_run_is_named_only_where_there_is_one(
    broker: MockBroker, kind: str, api: str, code: str, is_another: bool
) -> None:
    """A missing ACL is said as such."""
    sink = Sink(broker, **({"writeId": "nightly"} if kind == "named" else {}))
    if kind == "named":
        run, messages = sink.named([values_of(0, 0)])
        name, commit = run.transactional_id, partial(commit_resumable, run, messages, sink.options)
    else:
        messages = [sink.run_task(0, 0)]
        name, commit = "pykafka-q-driver", partial(sink.commit, messages, 0)
    broker.on(api, when=lambda one: one.fields["transactional_id"] == name).fail(code)
    with pytest.raises(WriteCommitFailedError, match=f"has committed nothing: .*{code}") as failed:
        commit()
    assert ("Another" in str(failed.value)) == is_another
    assert sink.seen() == []


def test_another_run_is_named_where_it_has_taken_the_intents_in_a_topic(broker: MockBroker) -> None:
    broker.create_topic("m", configs={"cleanup.policy": "compact"})
    sink = Sink(broker, transactionMarkerTopic="m")
    messages = sink.run_tasks(0)
    broker.on("Produce", topic="m").fail("INVALID_PRODUCER_EPOCH")
    with pytest.raises(WriteCommitFailedError, match="Another driver of the same query"):
        sink.commit(messages, 0)
    broker.on("Produce", topic="m").fail("TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(WriteCommitFailedError, match="TOPIC_AUTHORIZATION_FAILED") as failed:
        sink.commit(messages, 0)
    assert "Another" not in str(failed.value)


def test_a_write_that_is_begun_is_not_completed_with_other_rows(nightly: Sink, broker: MockBroker) -> None:
    run, messages = nightly.named([values_of(0, 0), values_of(0, 1)])
    refuse_commit(broker, "jobs-write/nightly/0")
    with pytest.raises(WriteCommitFailedError):
        commit_resumable(run, messages, nightly.options)
    run, messages = nightly.named([[b"other"], values_of(0, 1), [b"more"]])
    words = "this run has 4 rows in 3 tasks .* began to commit 4 rows in 2"
    with pytest.raises(ReplayError, match=words):
        commit_resumable(run, messages, nightly.options)
    abort_resumable(run, messages, nightly.options)
    assert (nightly.seen(), nightly.open()) == (values_of(0, 1), [])


def test_a_write_of_which_nothing_is_committed_may_have_other_rows(nightly: Sink, broker: MockBroker) -> None:
    run, messages = nightly.named([values_of(0, 0), values_of(0, 1)])
    refuse_commit(broker, "jobs-write/nightly/0")
    refuse_commit(broker, "jobs-write/nightly/1")
    with pytest.raises(WriteCommitFailedError, match="2 of 2"):
        commit_resumable(run, messages, nightly.options)
    run, messages = nightly.named([[b"other"]])
    assert run.void == 0
    commit_resumable(run, messages, nightly.options)
    assert (nightly.seen(), nightly.open()) == ([b"other"], [])


def test_a_run_with_a_task_that_reports_nothing_commits_nothing(nightly: Sink) -> None:
    run, messages = nightly.named([values_of(0, 0), values_of(0, 1)])
    with pytest.raises(WriteCommitFailedError, match="write nightly: 1 tasks have said nothing"):
        commit_resumable(run, [messages[0], None], nightly.options)
    abort_resumable(run, [messages[0], None], nightly.options)
    assert (nightly.seen(), nightly.open()) == ([], [])


# A write that is all or nothing.


def test_an_atomic_write_is_seen_whole_or_not_at_all(broker: MockBroker) -> None:
    whole = Sink(broker, transactionalIdPrefix="jobs")
    for is_aborted in (True, False):
        job = begin_atomic(whole.router, whole.options, whole.once)
        assert job.transactional_id == "jobs-batch"
        message = write_atomic(job, rows(values_in(0)), COLUMNS, whole.options, 0)
        # Spark may hand a task of no rows a batch of none.
        empty = write_atomic(job, rows([]) if is_aborted else iter(()), COLUMNS, whole.options, 1)
        assert (whole.seen(), whole.open()) == ([], ["jobs-batch"])
        if is_aborted:
            abort_atomic(job, [message, empty], whole.options)
        else:
            commit_atomic(job, [message, empty], whole.options)
        assert (whole.seen(), whole.open()) == ([] if is_aborted else values_in(0), [])


@pytest.mark.parametrize("other", [None, KafkaCommitMessage.skipped_rows("", 0)], ids=["unheard", "done"])
def test_an_aborted_atomic_write_ends_what_a_task_leaves_that_spark_ends_late(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, other: KafkaCommitMessage | None
) -> None:
    """Or readers with read_committed would wait for the timeout of its transaction."""
    whole = Sink(broker)
    job = begin_atomic(whole.router, whole.options, whole.once)
    begun = []

    def begin_late(seconds: float) -> None:
        assert seconds > 2.0  # spark.python.task.killTimeout
        begun.append(write_atomic(job, rows([b"late"]), COLUMNS, whole.options, 0))
        assert whole.open()

    def fence(*asked: Any) -> None:
        limits.append(asked[-1])
        init_producer_id(*asked)

    limits: list[Deadline] = []
    monkeypatch.setattr(atomic_write, "init_producer_id", fence)
    monkeypatch.setattr(atomic_write, "time", SimpleNamespace(sleep=begin_late))
    abort_atomic(job, [None, other], whole.options)
    assert len(begun) == 1
    assert limits[0] is not limits[1]  # a slow coordinator may have used up the first
    assert (whole.seen(), whole.open()) == ([], [])


def test_an_atomic_write_ends_what_an_earlier_run_or_a_killed_task_has_left(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_write, "_STRAGGLERS_S", 0)
    whole = Sink(broker, transactionalIdPrefix="jobs")
    job = begin_atomic(whole.router, whole.options, whole.once)
    empty = write_atomic(job, rows([]), COLUMNS, whole.options, 1)
    for messages in ([None], [None, empty]):
        write_atomic(job, rows([b"killed"]), COLUMNS, whole.options, 0)
        abort_atomic(job, messages, whole.options)
        assert whole.open() == []
    job = begin_atomic(whole.router, whole.options, whole.once)
    write_atomic(job, rows([b"left"]), COLUMNS, whole.options, 0)
    begin_atomic(whole.router, whole.options, whole.once)
    assert (whole.seen(), whole.open()) == ([], [])


def in_doubt(sink: Sink) -> tuple[AtomicWrite, KafkaCommitMessage]:
    """A job that is written; its driver waits 300 ms for the answer to the commit."""
    job = begin_atomic(sink.router, sink.options, sink.once)
    message = write_atomic(job, rows(values_in(0)), COLUMNS, sink.options, 0)
    return replace(job, transaction_timeout_ms=300), message


@pytest.mark.parametrize("answer", ["refused", "lost, then refused", "none, done", "none, not done"])
def test_nothing_is_committed_is_said_only_where_that_is_known(broker: MockBroker, answer: str) -> None:
    whole = Sink(broker, transactionalIdPrefix="jobs")
    job, message = in_doubt(whole)
    match answer:
        case "refused":
            refuse_commit(broker, "jobs-batch")
        case "lost, then refused":
            broker.on("EndTxn").cut()
            broker.on("EndTxn").fail("PRODUCER_FENCED")
        case "none, done":
            broker.on("EndTxn", times=None).drop_reply()
        case _:
            broker.on("EndTxn", times=None).ignore()
    error: type[KafkaError] = WriteCommitFailedError
    words = "nothing of it will be seen"
    if answer != "refused":
        error = CommitInDoubtError
        words = r"not known whether .*--transactional-id jobs-batch.* read t-0 from offset 0"
    with pytest.raises(error, match=words):
        commit_atomic(job, [message], whole.options)
    is_done = answer in ("lost, then refused", "none, done")
    assert whole.seen() == (values_in(0) if is_done else [])


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, type(None)),
        ({"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "jobs"}, AtomicWrite),
        (
            {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "jobs", "writeId": "nightly"},
            ResumableWrite,
        ),
    ],
)
def test_a_batch_write_is_all_or_nothing_unless_it_has_a_name(
    broker: MockBroker, given: dict[str, str], kind: type[object]
) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "t"} | given
    writer = KafkaBatchWriter(
        OptionValues.parse(options, Scope.WRITE), StructType().add("value", "binary"), overwrite=False
    )
    assert type(writer._job) is kind
    names = {"AtomicWrite": ["jobs-batch"], "ResumableWrite": ["jobs-write/nightly"]}
    asked = [one.fields["transactional_id"] for one in broker.asked("InitProducerId")]
    assert asked == names.get(kind.__name__, [])


@pytest.mark.parametrize("given", [{}, {"writeId": "nightly"}], ids=["atomic", "named"])
def test_a_broker_that_is_too_old_is_refused_before_any_task_runs(given: dict[str, str]) -> None:
    with MockBroker(versions={"InitProducerId": (0, 2), "EndTxn": (0, 2)}) as old:
        old.create_topic("t")
        options = {"kafka.bootstrap.servers": old.bootstrap_servers, "topic": "t"}
        options |= {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "jobs"} | given
        values = OptionValues.parse(options, Scope.WRITE)
        with pytest.raises(UnsupportedVersionError, match=r"too old .* they need Kafka 2\.5 or later"):
            KafkaBatchWriter(values, StructType().add("value", "binary"), overwrite=False)
        assert old.asked("InitProducerId") == []


def test_jobs_without_a_prefix_do_not_end_each_other(broker: MockBroker) -> None:
    whole = Sink(broker)
    jobs = [begin_atomic(whole.router, whole.options, whole.once) for _ in range(2)]
    messages = [
        write_atomic(job, rows(values_of(0, task)), COLUMNS, whole.options, 0)
        for task, job in enumerate(jobs)
    ]
    for job, message in zip(jobs, messages, strict=True):
        assert job.transactional_id.startswith("pykafka-batch-")
        commit_atomic(job, [message], whole.options)
    assert (whole.seen(), whole.open()) == (values_in(0), [])


def test_a_record_in_a_marker_topic_that_is_no_marker_stops_the_write(broker: MockBroker) -> None:
    """Taken for none, a micro-batch that is committed would be written again."""
    broker.create_topic("m", configs={"cleanup.policy": "compact"})
    sink = Sink(broker, transactionMarkerTopic="m")
    sink.write(0)
    keys = {record.key for record in broker.records("m")}
    with Producer(broker.bootstrap_servers) as producer:
        for key in keys:
            producer.send("m", b'{"batch": "x"}', key=key, partition=0)
    with pytest.raises(ReplayError, match="that is no commit marker"):
        sink.run_task(0, 0)
    assert sink.seen() == values_in(0)


def test_the_topic_of_a_write_with_a_name_may_be_that_of_its_rows(broker: MockBroker) -> None:
    sink = Sink(broker, transactionalIdPrefix="jobs", writeId="nightly")
    sink.options = replace(sink.options, topic=None)
    columns = RowColumns(names=("topic", "value"), topic=None)
    for _ in range(2):
        run = begin_resumable(sink.router, sink.options, sink.once, "nightly")
        batch = pa.record_batch({"topic": ["t", "t"], "value": pa.array([b"1", b"2"], pa.binary())})
        message = write_resumable(run, iter([batch]), columns, sink.options, 0)
        commit_resumable(run, [message], sink.options)
    assert (sink.seen(), message.skipped) == ([b"1", b"2"], 2)


def test_a_row_behind_an_empty_batch_is_refused_where_one_task_writes_all(broker: MockBroker) -> None:
    """A filter leaves empty batches; the rows behind them would be left out."""
    sink = Sink(broker, transactionalIdPrefix="jobs")
    job = begin_atomic(sink.router, sink.options, sink.once)
    assert write_atomic(job, rows([]), COLUMNS, sink.options, 1).records == 0
    with pytest.raises(ConfigError, match="partition 1 of the DataFrame has rows"):
        write_atomic(job, chain(rows([]), rows([b"x"])), COLUMNS, sink.options, 1)
