"""Exactly-once writes of rows that name their topics, which are deleted while it is half committed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.cluster.router import router_for
from spark_kafka_native.kafka.errors import ConfigError, DeadlineExceededError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.errors import TransactionAbortableError
from spark_kafka_native.kafka.producer.transactional_producer import TransactionalProducer
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write import marker_store, topics
from spark_kafka_native.spark.write.commit_markers import BatchIntent, CommitMarker, ReplayError
from spark_kafka_native.spark.write.driver.atomic_write import abort_atomic, begin_atomic, commit_atomic
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
from spark_kafka_native.spark.write.marker_store import FoundMarker, GroupMarkers, places_of_last
from spark_kafka_native.spark.write.worker.transactional_task import (
    BatchTask,
    write_atomic,
    write_once,
    write_resumable,
)
from spark_kafka_native.spark.write.worker.write_rows import WriteFailedError
from spark_kafka_native.spark.write.write_options import ExactlyOnce, WriteOptions
from spark_kafka_native.spark.write.write_task import KafkaCommitMessage, ResumableWrite, RowColumns
from spark_kafka_native.testing import MockBroker, MockRequest
from spark_kafka_native.testing.mock.script import Fault

Rows = Sequence[tuple[bytes, str]]
"""Values and their topics."""


def refuse(broker: MockBroker, name: str) -> None:
    """The coordinator refuses the next commit of a transactional id."""
    broker.on(
        "EndTxn", when=lambda one: one.fields["transactional_id"] == name and one.fields["committed"]
    ).fail("PRODUCER_FENCED")


class Job:
    """A micro-batch 5 of the query q, or a write with the name w: one run of it after another."""

    def __init__(self, broker: MockBroker, kind: str, **given: str) -> None:
        self.broker, self.is_stream, self._given = broker, kind == "stream", given
        self.topic: str | None = None
        self.batch_id = 5
        self.max_block_ms = 60_000
        self._run: ResumableWrite | None = None

    @property
    def options(self) -> WriteOptions:
        fixed = {"kafka.bootstrap.servers": self.broker.bootstrap_servers, "transactionTimeout": "20s"}
        quick = {"kafka.retry.backoff.ms": "5", "kafka.linger.ms": "0"}
        quick["kafka.max.block.ms"] = str(self.max_block_ms)
        topic = {} if self.topic is None else {"topic": self.topic}
        once = {"deliveryGuarantee": "exactly-once"}
        return WriteOptions.parse(OptionValues.parse(fixed | quick | once | topic | self._given, Scope.WRITE))

    @property
    def once(self) -> ExactlyOnce:
        found = self.options.exactly_once
        assert found is not None
        return found

    @property
    def name(self) -> str:
        """The group of the intents."""
        return "pykafka-q" if self.is_stream else "pykafka-write/w"

    def task_name(self, task: int) -> str:
        return f"pykafka-q-{task}" if self.is_stream else f"pykafka-write/w/{task}"

    def write(self, *parts: Rows) -> list[KafkaCommitMessage]:
        if not self.is_stream:
            self._run = begin_resumable(router_for(self.options.client), self.options, self.once, "w")
        return [self.write_one(task, rows) for task, rows in enumerate(parts)]

    def write_one(self, task: int, rows: Rows) -> KafkaCommitMessage:
        names = ("value",) if self.topic else ("value", "topic")
        columns = RowColumns(names=names, topic=self.topic)
        values, topics = zip(*rows, strict=True)
        kinds = {"value": pa.array(values, pa.binary()), "topic": pa.array(topics)}
        batches = iter([pa.record_batch({name: kinds[name] for name in names})])
        if self._run is not None:
            return write_resumable(self._run, batches, columns, self.options, task)
        identity = BatchTask(query_id="q", batch_id=self.batch_id, partition=task)
        return write_once(batches, columns, self.options, self.once, identity)

    def commit(self, messages: Sequence[KafkaCommitMessage]) -> None:
        """As Spark does: where it fails, open transactions are aborted."""
        try:
            if self._run is not None:
                commit_resumable(self._run, messages, self.options)
            else:
                commit_transactions(messages, self.batch_id, self.options, self.once)
        except Exception:
            if self._run is not None:
                abort_resumable(self._run, messages, self.options)
            else:
                abort_transactions(messages, self.options)
            raise

    def half_commit(self, *parts: Rows, but: int = 1) -> None:
        """All but one task."""
        refuse(self.broker, self.task_name(but))
        with pytest.raises(WriteCommitFailedError, match=f"1 of {len(parts)} transactions"):
            self.commit(self.write(*parts))

    def renewed(self, before: int) -> list[str]:
        """The groups of the commits in transactions after the first ones."""
        return [one.fields["group_id"] for one in self.broker.asked("TxnOffsetCommit")[before:]]

    def places(self, group: str) -> set[str]:
        return {where.topic for where in self.broker.committed(group)}

    def seen(self, topic: str) -> list[bytes | None]:
        return sorted(one.value for one in self.broker.records(topic, committed=True))


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker() as running:
        for topic in "abc":
            running.create_topic(topic)
        yield running


@pytest.fixture(params=["stream", "named"])
def job(request: pytest.FixtureRequest, broker: MockBroker) -> Job:
    return Job(broker, request.param)


def delete(broker: MockBroker, topic: str) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        admin.delete_topics([topic])


def lag(broker: MockBroker, topic: str, times: int | None = 1, asked: str = "") -> Fault:
    """A broker that is asked for a topic (or for just those in ``asked``) has heard that it was deleted, and
    not that it is there again."""

    def deny(response: dict[str, Any]) -> None:
        for one in response["topics"]:
            if one["name"] == topic:
                one.update(error_code=3, topic_id=UUID(int=0), partitions=[])

    def is_meant(request: MockRequest) -> bool:
        names = {one["name"] for one in request.fields["topics"] or []}
        return names == {*asked} if asked else topic in names

    return broker.on("Metadata", times=times, when=is_meant).change(deny)


@pytest.mark.parametrize("gone", ["a", "b"])
def test_what_is_committed_is_known_where_one_of_its_topics_is_made_anew(
    job: Job, broker: MockBroker, gone: str
) -> None:
    """The intent is kept wherever rows are, so that tasks that are cut otherwise are noticed."""
    kept = {"a": "b", "b": "a"}[gone]
    job.half_commit([(b"x", "a")], [(b"y", "a"), (b"z", "b")], but=0)
    delete(broker, gone)
    broker.create_topic(gone)
    before = job.seen(kept)
    assert before
    with pytest.raises(ReplayError, match="tasks"):
        job.commit(job.write([(b"x", "a"), (b"y", "a"), (b"z", "b")]))
    assert job.seen(kept) == before


@pytest.mark.parametrize("is_back", [False, True])
def test_a_topic_that_is_deleted_before_the_commit_fails_it_at_once(
    job: Job, broker: MockBroker, monkeypatch: pytest.MonkeyPatch, is_back: bool
) -> None:
    """Not once the transactions expire: coordinators retry for a topic that they do not know."""
    messages = job.write([(b"x", "a")], [(b"y", "b")])
    delete(broker, "a")
    if is_back:
        broker.create_topic("a")
    monkeypatch.setattr(topics, "_LAGGING_BROKER_MS", 50)
    again = " and created again" if is_back else ""
    with pytest.raises(WriteCommitFailedError, match=f"topic a was deleted{again} after this run"):
        job.commit(messages)
    assert job.seen("b") == []
    assert not [one for one in broker.asked("EndTxn") if one.fields["committed"]]


@pytest.mark.parametrize("kind", ["stream", "named"])
def test_rows_are_not_committed_without_their_markers(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Those are records of a topic that is created anew before the commit: a restart would not find them."""
    monkeypatch.setattr(topics, "_LAGGING_BROKER_MS", 50)
    compacted = {"cleanup.policy": "compact"}
    broker.create_topic("m", configs=compacted)
    job = Job(broker, kind, transactionMarkerTopic="m")
    parts: list[Rows] = [[(b"x", "a")], [(b"y", "b")]]
    messages = job.write(*parts)
    delete(broker, "m")
    broker.create_topic("m", configs=compacted)
    with pytest.raises(WriteCommitFailedError, match="topic m was deleted and created again after this run"):
        job.commit(messages)
    assert job.seen("a") == []
    job.commit(job.write(*parts))
    assert (job.seen("a"), job.seen("b")) == ([b"x"], [b"y"])


@pytest.mark.parametrize("kind", ["stream", "named", "atomic"])
@pytest.mark.parametrize("lags", [False, True])
def test_the_id_of_a_topic_is_noted_where_a_broker_lags(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, kind: str, lags: bool
) -> None:
    """Without the id its recreation would not be noticed, and the rows would be gone."""
    monkeypatch.setattr(topics, "_LAGGING_BROKER_MS", 50)
    job = Job(broker, kind)
    job.topic = "a"
    run = None
    if kind == "atomic":
        run = begin_atomic(router_for(job.options.client), job.options, job.once)
    router_for(job.options.client).metadata(("a",))  # a worker knows it from the last micro-batch
    fault = lag(broker, "a", times=int(lags))
    if run is None:
        message = job.write([(b"x", "")])[0]
    else:
        columns = RowColumns(names=("value",), topic="a")
        rows = pa.record_batch({"value": pa.array([b"x"], pa.binary())})
        message = write_atomic(run, iter([rows]), columns, job.options, 0)
    assert fault.used == int(lags)
    assert message.topic_ids == {"a": broker.cluster.topics["a"].topic_id.hex}
    delete(broker, "a")
    broker.create_topic("a")
    commit = (
        partial(job.commit, [message]) if run is None else partial(commit_atomic, run, [message], job.options)
    )
    with pytest.raises(WriteCommitFailedError, match="topic a was deleted and created again after this"):
        commit()


@pytest.mark.parametrize("kind", ["stream", "named"])
@pytest.mark.parametrize("answers", [1, 3])
def test_an_id_that_a_lagging_broker_confirms_is_not_believed(kind: str, answers: int) -> None:
    """The leader knows better: the topic was created again, and the rows are gone."""
    with MockBroker(brokers=2) as broker:
        broker.create_topic("a")
        job = Job(broker, kind)
        job.topic = "a"
        former = broker.cluster.topics["a"].topic_id
        messages = job.write([(b"x", "")])
        delete(broker, "a")
        broker.create_topic("a")
        leader = broker.cluster.topics["a"].partitions[0].leader
        lagging = broker.on("Metadata", topic="a", node_id=3 - leader, times=answers)
        lagging.change(lambda response: response["topics"][0].update(topic_id=former))
        first = broker.on("Metadata", topic="a")  # at the commit, whichever broker is asked
        first.change(lambda response: response["topics"][0].update(topic_id=former))
        with pytest.raises(WriteCommitFailedError, match="topic a was deleted and created again after this"):
            job.commit(messages)
        assert first.used
        assert not [one for one in broker.asked("EndTxn") if one.fields["committed"]]


def test_an_answer_about_a_former_topic_does_not_fail_a_commit(job: Job, broker: MockBroker) -> None:
    job.topic = "a"
    messages = job.write([(b"x", "")])
    lagging = broker.on("Metadata", topic="a", times=2)
    lagging.change(lambda response: response["topics"][0].update(topic_id=UUID(int=7)))
    job.commit(messages)
    assert lagging.used == 2
    assert job.seen("a") == [b"x"]


def test_tasks_that_have_seen_a_topic_change_are_not_committed(job: Job, broker: MockBroker) -> None:
    job.topic = "a"
    messages = job.write([(b"x", "")], [(b"y", "")])
    messages[0] = replace(messages[0], topic_ids={"a": UUID(int=7).hex})
    with pytest.raises(WriteCommitFailedError, match="topic a was deleted and created again after this"):
        job.commit(messages)


@pytest.mark.parametrize("order", [1, -1])
def test_two_ids_of_a_topic_are_a_change_in_any_order(broker: MockBroker, order: int) -> None:
    there = broker.cluster.topics["a"].topic_id.hex
    ids = [UUID(int=7).hex, there][::order]
    router = router_for(Job(broker, "stream").options.client)
    with pytest.raises(ConfigError, match="topic a was deleted and created again"):
        topics.check_written_topics(router, {"a": ids}, Deadline.after_ms(20_000))


def test_a_task_fails_where_the_id_of_its_topic_can_not_be_learnt(broker: MockBroker) -> None:
    job = Job(broker, "stream")
    job.topic = "a"
    job.max_block_ms = 300
    lag(broker, "a", times=None)
    with pytest.raises(DeadlineExceededError, match="asking for the ids of topic a did not succeed"):
        job.write([(b"x", "a")])
    assert not broker.asked("Produce")


def test_the_id_of_a_marker_topic_is_noted_where_a_broker_lags(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "_LAGGING_BROKER_MS", 50)
    compacted = {"cleanup.policy": "compact"}
    broker.create_topic("m", configs=compacted)
    job = Job(broker, "stream", transactionMarkerTopic="m")
    job.topic = "a"
    job.commit(job.write([(b"w", "a")]))
    job.batch_id += 1
    fault = lag(broker, "m", times=2, asked="am")
    messages = job.write([(b"x", "a")])
    assert fault.used == 2
    assert {*messages[0].topic_ids} == {"a", "m"}
    delete(broker, "m")
    broker.create_topic("m", configs=compacted)
    with pytest.raises(WriteCommitFailedError, match="topic m was deleted and created again after this run"):
        job.commit(messages)
    assert job.seen("a") == [b"w"]


def test_brokers_without_topic_ids_are_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Kafka 2.8. A marker topic that is deleted is noticed there, too."""
    monkeypatch.setattr(topics, "_LAGGING_BROKER_MS", 50)
    with MockBroker(versions={"Metadata": (0, 9), "Produce": (3, 12)}) as broker:
        for topic in "ab":
            broker.create_topic(topic)
        broker.create_topic("m", configs={"cleanup.policy": "compact"})
        job = Job(broker, "stream", transactionMarkerTopic="m")
        job.topic = "a"
        messages = job.write([(b"x", "a")])
        assert messages[0].topic_ids == {}
        job.commit(messages)
        assert job.seen("a") == [b"x"]
        job.batch_id += 1
        messages = job.write([(b"y", "a")])
        delete(broker, "m")
        with pytest.raises(WriteCommitFailedError, match="topic m was deleted after this run"):
            job.commit(messages)


def test_a_marker_topic_that_is_created_anew_has_to_keep_its_records_too(broker: MockBroker) -> None:
    broker.create_topic("m", configs={"cleanup.policy": "compact"})
    job = Job(broker, "stream", transactionMarkerTopic="m")
    job.commit(job.write([(b"x", "a")]))
    delete(broker, "m")
    broker.create_topic("m", configs={"cleanup.policy": "delete"})
    job.batch_id += 1
    with pytest.raises(ConfigError, match=r"topic m has cleanup\.policy=delete"):
        job.write([(b"y", "a")])


@pytest.mark.parametrize("topic", ["a", None])
@pytest.mark.parametrize("when", ["deleted", "made anew", "made anew between rows"])
def test_a_job_in_one_transaction_is_not_committed_without_its_first_rows(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, when: str, topic: str | None
) -> None:
    job = Job(broker, "stream")
    job.topic = topic
    monkeypatch.setattr(topics, "_LAGGING_BROKER_MS", 50)

    def change() -> None:
        delete(broker, "a")
        if when != "deleted":
            broker.create_topic("a")

    def rows() -> Iterator[pa.RecordBatch]:
        kinds = {"value": pa.array([b"x"], pa.binary()), "topic": pa.array(["a"])}
        yield pa.record_batch({name: kinds[name] for name in columns.names})
        if when == "made anew between rows":
            producers[0].flush()
            change()
        yield pa.record_batch({name: kinds[name] for name in columns.names})

    producers: list[TransactionalProducer] = []
    began = TransactionalProducer.begin
    monkeypatch.setattr(
        TransactionalProducer, "begin", lambda self, **how: (producers.append(self), began(self, **how))
    )
    columns = RowColumns(names=("value",) if topic else ("value", "topic"), topic=topic)
    run = begin_atomic(router_for(job.options.client), job.options, job.once)
    message = write_atomic(run, rows(), columns, job.options, 0)
    if when != "made anew between rows":
        change()
    again = "" if when == "deleted" else " and created again"
    with pytest.raises(
        WriteCommitFailedError, match=f"nothing of it .* topic a was deleted{again} after this"
    ):
        commit_atomic(run, [message], job.options)
    abort_atomic(run, [message], job.options)
    assert not [one for one in broker.asked("EndTxn") if one.fields["committed"]]
    assert when == "deleted" or job.seen("a") == []


def test_a_marker_is_renewed_where_a_topic_has_no_leader_for_a_while(broker: MockBroker) -> None:
    """Or it would expire before an intent that is renewed beside it."""
    job = Job(broker, "stream")
    job.half_commit([(b"x", "a")], [(b"y", "b")], but=0)
    broker.on("Metadata", topic="b").fail("LEADER_NOT_AVAILABLE")
    before = len(broker.asked("TxnOffsetCommit"))
    assert places_of_last(router_for(job.options.client), job.task_name(1)) == [TopicPartition("b", 0)]
    with pytest.raises(ReplayError, match="tasks"):
        job.commit(job.write([(b"x", "a"), (b"y", "b")]))
    assert job.task_name(1) in job.renewed(before)


def test_a_marker_without_a_topic_is_nothing_to_renew(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty commit is an error in the second protocol of transactions."""
    job = Job(broker, "stream")
    job.half_commit([(b"x", "a")], [(b"y", "b")], but=0)
    monkeypatch.setattr(marker_store, "places_of_last", lambda *_: [])
    before = len(broker.asked("TxnOffsetCommit"))
    markers = GroupMarkers(router_for(job.options.client))
    found = markers.take_over(job.task_name(1), [TopicPartition("b", 0)], 20_000, Deadline.after_ms(5_000))
    assert found.is_renewed
    assert found.marker is not None
    assert job.renewed(before) == []


@pytest.mark.parametrize("by", ["task", "driver"])
def test_a_marker_is_renewed_where_a_broker_lags(broker: MockBroker, by: str) -> None:
    """One answer is not enough to leave its topic out: the marker would expire before the intent."""
    job = Job(broker, "stream")
    job.topic = "a"
    job.half_commit([(b"x", "")], [(b"y", "")])
    name = job.task_name(0)
    before = len(broker.asked("TxnOffsetCommit"))
    fault = lag(broker, "a", times=1, asked="a")
    if by == "task":
        assert job.write_one(0, [(b"x", "")]).skipped == 1
    else:
        markers = GroupMarkers(router_for(job.options.client))
        found = markers.take_over(name, [TopicPartition("a", 0)], 20_000, Deadline.after_ms(20_000))
        assert found.is_renewed
    assert fault.used == 1
    assert job.renewed(before) == [name]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_topic_counts_as_gone_once_it_was_denied_for_long(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """Without the time for that the marker is not renewed, and neither is the intent."""
    monkeypatch.setattr(topics, "_LAGGING_BROKER_MS", 200)
    monkeypatch.setattr(marker_store, "_PLACES_MS", 100 if is_late else 5_000)
    job = Job(broker, "stream")
    job.half_commit([(b"x", "a")], [(b"y", "a")])
    before = len(broker.asked("TxnOffsetCommit"))
    lag(broker, "a", times=None)
    markers = GroupMarkers(router_for(job.options.client))
    found = markers.take_over(job.task_name(0), (), 20_000, Deadline.after_ms(20_000))
    assert found.marker is not None
    assert found.is_renewed is not is_late
    assert job.renewed(before) == []


def test_a_topic_is_not_gone_where_brokers_are_away(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "_LAGGING_BROKER_MS", 100)
    router = router_for(Job(broker, "stream").options.client)
    router.metadata(("a",))
    lag(broker, "a", times=1)
    broker.on("Metadata", times=None).hang_up()
    with pytest.raises(DeadlineExceededError):
        topics.gone_topics(router, ["a"], Deadline.after_ms(400))


@pytest.mark.parametrize(("error_code", "gone"), [(3, {"a"}), (5, set()), (29, set())])
def test_only_a_topic_that_no_broker_knows_is_gone(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, error_code: int, gone: set[str]
) -> None:
    """Without a leader for now, or without the right to describe it, a topic may be there."""

    def refuse(response: dict[str, Any]) -> None:
        for one in response["topics"]:
            if one["name"] == "a":
                one.update(error_code=error_code, partitions=[])

    monkeypatch.setattr(topics, "_LAGGING_BROKER_MS", 100)
    router = router_for(Job(broker, "stream").options.client)
    broker.on("Metadata", times=None).change(refuse)
    assert topics.gone_topics(router, ["a", "b"], Deadline.after_ms(20_000)) == gone


def test_a_topic_of_the_option_that_is_made_anew_fails_the_commit(
    job: Job, broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.topic = "a"
    messages = job.write([(b"x", "")])
    delete(broker, "a")
    broker.create_topic("a")
    monkeypatch.setattr(topics, "_LAGGING_BROKER_MS", 50)
    with pytest.raises(WriteCommitFailedError, match="topic a was deleted and created again after this"):
        job.commit(messages)


def test_a_commit_with_topics_that_no_leader_confirms_says_that_nothing_is_committed(
    job: Job, broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: object, **__: object) -> None:
        raise DeadlineExceededError("asking for the ids of a took too long")

    messages = job.write([(b"x", "a")])
    monkeypatch.setattr(topics, "find_recreated", late)
    with pytest.raises(
        WriteCommitFailedError, match=r"the ids of a took too long; this run has committed noth"
    ):
        job.commit(messages)
    assert not [one for one in broker.asked("EndTxn") if one.fields["committed"]]


def test_a_marker_that_is_found_again_is_committed_again(job: Job, broker: MockBroker) -> None:
    """Each run writes the intent: a marker that expires before it would have its rows written twice."""
    parts: list[Rows] = [[(b"y", "b"), (b"z", "c")], [(b"x", "a")]]
    job.half_commit(*parts)
    first = broker.committed(job.task_name(0))
    before = len(broker.asked("TxnOffsetCommit"))
    messages = job.write(*parts)
    assert [one.skipped for one in messages] == [2, 0]
    renewed = [one for one in broker.asked("TxnOffsetCommit")[before:] if len(one.places) == 2][-1]
    assert (renewed.fields["group_id"], renewed.fields["transactional_id"]) == (job.task_name(0),) * 2
    assert {TopicPartition(*place) for place in renewed.places} == set(first)
    assert {where.topic for where in first} == {"b", "c"}
    job.commit(messages)
    assert broker.committed(job.task_name(0)) == first
    assert (job.seen("a"), job.seen("b"), job.seen("c")) == ([b"x"], [b"y"], [b"z"])
    with broker.cluster.changed:
        assert not [name for name, one in broker.transactions.by_id.items() if one.is_open]


@pytest.mark.parametrize("now", [None, CommitMarker(batch_id=6, rows=1, hash=1)])
def test_a_marker_that_changes_under_a_task_that_renews_it_fails_the_task(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch, now: CommitMarker | None
) -> None:
    job = Job(broker, "stream")
    job.half_commit([(b"y", "b")], [(b"x", "a")])
    monkeypatch.setattr(GroupMarkers, "add", lambda *_: now)
    with pytest.raises(WriteFailedError, match=r"pykafka-q-0: .* was committed before, and now it is"):
        job.write([(b"y", "b")])


def test_a_marker_that_changes_under_a_driver_that_renews_it_is_an_error(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decided by the one that a deposed broker said, a run might write rows twice."""
    job = Job(broker, "stream")
    job.half_commit([(b"y", "b")], [(b"x", "a")])
    before, router = broker.committed(job.task_name(0)), router_for(job.options.client)
    monkeypatch.setattr(GroupMarkers, "last", lambda *_: CommitMarker(batch_id=4, rows=1, hash=1))
    with pytest.raises(TransactionAbortableError, match="last marker of pykafka-q-0 was said to be"):
        GroupMarkers(router).take_over(job.task_name(0), (), 20_000, Deadline.after_ms(20_000))
    assert broker.committed(job.task_name(0)) == before


def test_a_marker_is_renewed_where_the_last_micro_batch_has_put_it(broker: MockBroker) -> None:
    job = Job(broker, "stream")
    job.batch_id = 4
    job.commit(job.write([(b"w", "b")]))
    job.batch_id = 5
    job.half_commit([(b"x", "a")], [(b"y", "c")])
    before = len(broker.asked("TxnOffsetCommit"))
    assert job.write_one(0, [(b"x", "a")]).skipped == 1
    assert [one.places for one in broker.asked("TxnOffsetCommit")[before:]] == [(("a", 0),)]


def test_the_note_of_a_write_is_renewed_with_its_markers(broker: MockBroker) -> None:
    """Else it would be forgotten before them, and the next run refused."""
    job = Job(broker, "named")
    parts: list[Rows] = [[(b"y", "b")], [(b"x", "a")]]
    job.commit(job.write(*parts))
    before = len(broker.asked("TxnOffsetCommit"))
    messages = job.write(*parts)
    assert [one.skipped for one in messages] == [1, 1]
    job.commit(messages)
    name = "pykafka-write/w"
    assert job.renewed(before) == [f"{name}/0", f"{name}/1", name]
    assert (job.seen("a"), job.seen("b")) == ([b"x"], [b"y"])


@pytest.mark.parametrize("kind", ["stream", "named"])
def test_a_half_committed_write_goes_to_one_topic(broker: MockBroker, kind: str) -> None:
    job = Job(broker, kind)
    job.topic = "a"
    parts: list[Rows] = [[(b"x", "")], [(b"y", "")]]
    job.half_commit(*parts)
    job.topic = "b"
    with pytest.raises(ReplayError, match=r"topic.* a\b"):
        job.commit(job.write(*parts))
    assert (job.seen("a"), job.seen("b")) == ([b"x"], [])
    job.topic = "a"
    job.commit(job.write(*parts))
    assert (job.seen("a"), job.seen("b")) == ([b"x", b"y"], [])


def test_a_batch_of_which_nothing_is_committed_may_go_to_another_topic(broker: MockBroker) -> None:
    job = Job(broker, "stream")
    job.topic = "a"
    refuse(broker, "pykafka-q-0")
    with pytest.raises(WriteCommitFailedError):
        job.commit(job.write([(b"x", "")]))
    job.topic = "b"
    job.commit(job.write([(b"x", "")]))
    assert (job.seen("a"), job.seen("b")) == ([], [b"x"])


def test_a_run_that_is_refused_renews_what_refuses_it(job: Job, broker: MockBroker) -> None:
    """Else the same run is let through once that has expired, and writes rows twice."""
    job.half_commit([(b"x", "a")], [(b"y", "b")], but=0)
    before = len(broker.asked("TxnOffsetCommit"))
    with pytest.raises(ReplayError):
        job.commit(job.write([(b"x", "a"), (b"y", "b")]))
    assert {job.name, job.task_name(1)} <= {*job.renewed(before)}
    before = len(broker.asked("TxnOffsetCommit"))
    with pytest.raises(ReplayError, match="partition 1 of"):
        job.write([(b"x", "a")], [(b"other", "b")])
    assert job.task_name(1) in job.renewed(before)
    assert (job.seen("a"), job.seen("b")) == ([], [b"y"])


def test_a_run_that_fails_before_its_commit_renews_what_it_knows(broker: MockBroker) -> None:
    job = Job(broker, "stream")
    job.half_commit([(b"x", "a")], [(b"y", "b")], [(b"z", "c")], but=0)
    found = job.write_one(1, [(b"y", "b")])
    before = len(broker.asked("TxnOffsetCommit"))
    abort_transactions([None, found, None], job.options, 4)
    assert job.renewed(before) == []
    abort_transactions([None, found, None], job.options, 5)
    assert job.renewed(before) == [job.task_name(2), job.name]
    job.commit(job.write([(b"x", "a")], [(b"y", "b")], [(b"z", "c")]))
    assert (job.seen("a"), job.seen("b"), job.seen("c")) == ([b"x"], [b"y"], [b"z"])


def test_a_run_that_finds_all_committed_renews_the_intent(broker: MockBroker) -> None:
    job = Job(broker, "stream")
    parts: list[Rows] = [[(b"x", "a")], [(b"y", "b")]]
    job.commit(job.write(*parts))
    messages = job.write(*parts)
    before = len(broker.asked("TxnOffsetCommit"))
    job.commit(messages)
    assert job.renewed(before) == [job.name]


def test_an_intent_stays_where_an_earlier_run_has_written(job: Job, broker: MockBroker) -> None:
    parts: list[Rows] = [[(b"x", "a")], [(b"y", "b")]]
    job.half_commit(*parts)
    broker.create_topic("d")
    job.commit(job.write(*parts))
    assert job.places(job.name) == {"a", "b"}
    newest = {where.topic: offset for where, offset in broker.committed(job.name).items()}
    assert newest["a"] == newest["b"]
    with broker.cluster.changed:
        changes = {one["committed_metadata"] for one in broker.groups.group(job.name).committed.values()}
    assert len(changes) == 1


def test_an_intent_is_also_kept_where_only_this_run_has_written(job: Job, broker: MockBroker) -> None:
    """Else it goes with the topics of an earlier run, and rows are written twice."""
    job.topic = "a"
    refuse(broker, job.task_name(0))
    with pytest.raises(WriteCommitFailedError):
        job.commit(job.write([(b"x", "")]))
    job.topic = "b"
    job.commit(job.write([(b"x", "")]))
    assert job.places(job.name) == {"a", "b"}
    assert (job.seen("a"), job.seen("b")) == ([], [b"x"])


def test_a_marker_is_not_renewed_at_a_topic_that_is_gone(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator may not have heard of its deletion: it would take nothing in there, and hold the task."""
    monkeypatch.setattr(topics, "_LAGGING_BROKER_MS", 50)
    job = Job(broker, "stream")
    job.half_commit([(b"y", "b")], [(b"x", "a")])
    decided = marker_store.decided_offsets

    def with_another(*arguments: Any) -> Any:
        found = decided(*arguments)
        return found | {TopicPartition("gone", 0): one for one in found.values()}

    monkeypatch.setattr(marker_store, "decided_offsets", with_another)
    before = len(broker.asked("TxnOffsetCommit"))
    assert job.write_one(0, [(b"y", "b")]).skipped == 1
    assert [one.places for one in broker.asked("TxnOffsetCommit")[before:]] == [(("b", 0),)]


def test_a_commit_waits_for_brokers_that_are_away(job: Job, broker: MockBroker) -> None:
    """Longer than kafka.max.block.ms, which limits other waits: until the transactions expire."""
    messages = job.write([(b"x", "a")])
    job.max_block_ms = 300
    broker.stop(1)
    timer = threading.Timer(0.7, broker.start, [1])
    timer.start()
    job.commit(messages)
    timer.join()
    assert job.seen("a") == [b"x"]


def test_a_complete_batch_is_none_of_another_topic(broker: MockBroker) -> None:
    """The query may be one with a copy of the checkpoint: it took rows that were in the other's topic for its
    own, and its topic never had them."""
    job = Job(broker, "stream")
    job.topic = "a"
    job.commit(job.write([(b"x", "")]))
    job.topic = "b"
    with pytest.raises(ReplayError, match=r"rows of it are committed to topic a, and .* with topic=a until"):
        job.commit(job.write([(b"x", "")]))
    job.topic = "a"
    job.commit(job.write([(b"x", "")]))
    assert (job.seen("a"), job.seen("b")) == ([b"x"], [])


def test_a_task_of_another_topic_does_not_wait_for_its_own_transaction(broker: MockBroker) -> None:
    """It has a marker that is not committed yet, in the group that has the former topic's."""
    job = Job(broker, "stream")
    job.topic, job.batch_id = "b", 4
    job.commit(job.write([(b"w", "")]))
    job.topic, job.batch_id = "a", 5
    refuse(broker, "pykafka-q-0")
    with pytest.raises(WriteCommitFailedError):
        job.commit(job.write([(b"x", "")]))
    job.topic = "b"
    job.commit(job.write([(b"x", "")]))
    assert (job.seen("a"), job.seen("b")) == ([], [b"w", b"x"])


@pytest.mark.parametrize("moment", ["begin", "abort", "refusal"])
def test_an_intent_is_not_renewed_beside_a_marker_that_is_not(broker: MockBroker, moment: str) -> None:
    """The marker expires first then, and its rows are written twice. An intent that does so is missed."""
    job = Job(broker, "named" if moment == "begin" else "stream")
    job.half_commit([(b"x", "a")], [(b"y", "b")], [(b"z", "c")], but=0)
    found = None if moment == "begin" else job.write_one(1, [(b"y", "b")])
    refuse(broker, job.task_name(2))
    before = len(broker.asked("TxnOffsetCommit"))
    if moment == "begin":
        begin_resumable(router_for(job.options.client), job.options, job.once, "w")
    elif moment == "abort":
        abort_transactions([None, found, None], job.options, 5)
    else:
        with pytest.raises(ReplayError, match="has 2 tasks, and before the restart it had 3"):
            job.commit([job.write_one(0, [(b"x", "a"), (b"z", "c")]), found])
    assert job.name not in job.renewed(before)
    assert job.task_name(2) in job.renewed(before)


def test_an_intent_that_another_driver_has_replaced_is_not_renewed(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal would put it in the place of the newer one, where that is not to be seen yet."""
    job = Job(broker, "stream")
    job.half_commit([(b"x", "a")], [(b"y", "b")], [(b"z", "c")], but=0)
    found = job.write_one(1, [(b"y", "b")])
    look = GroupMarkers.take_over

    def taken_over(*arguments: Any) -> FoundMarker:
        with broker.cluster.changed:
            for one in broker.groups.group(job.name).committed.values():
                newer = BatchIntent.from_json(job.batch_id, json.loads(one["committed_metadata"]))
                one["committed_metadata"] = newer.follows(newer).offset().metadata
        return look(*arguments)

    monkeypatch.setattr(GroupMarkers, "take_over", taken_over)
    before = len(broker.asked("TxnOffsetCommit"))
    abort_transactions([None, found, None], job.options, 5)
    assert job.renewed(before) == [job.task_name(2)]


@pytest.mark.parametrize("why", ["a task is not taken over", "another topic"])
def test_an_intent_is_not_renewed_beside_tasks_that_are_not_looked_at(broker: MockBroker, why: str) -> None:
    """The intent would outlive a marker of theirs."""
    job = Job(broker, "stream")
    job.topic = "a"
    job.half_commit([(b"x", "")], [(b"y", "")], [(b"z", "")])
    if why == "another topic":
        job.topic = "b"
        messages = job.write([(b"x", "")], [(b"y", "")])
    else:
        messages = [job.write_one(1, [(b"y", "")])]
        broker.on("InitProducerId", when=lambda one: one.fields["transactional_id"] == job.task_name(2)).fail(
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
        )
    before = len(broker.asked("TxnOffsetCommit"))
    with pytest.raises(ReplayError):
        job.commit(messages)
    assert job.name not in job.renewed(before)
    assert (job.seen("a"), job.seen("b")) == ([b"x", b"z"], [])


def test_a_marker_that_goes_with_its_topics_needs_no_renewal(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator forgets it between two looks at the group."""
    job = Job(broker, "stream")
    job.half_commit([(b"x", "a")], [(b"y", "b")])
    markers, name, look = GroupMarkers(router_for(job.options.client)), job.task_name(0), GroupMarkers.last

    def last_seen(*arguments: Any) -> CommitMarker | None:
        found = look(*arguments)
        with broker.cluster.changed:
            broker.groups.group(name).committed.clear()
        return found

    monkeypatch.setattr(GroupMarkers, "last", last_seen)
    before = len(broker.asked("TxnOffsetCommit"))
    found = markers.take_over(name, (), 20_000, Deadline.after_ms(20_000))
    assert found.marker is not None
    assert found.is_renewed
    assert job.renewed(before) == []


def test_a_refusal_is_said_where_the_intent_cannot_be_renewed(broker: MockBroker) -> None:
    job = Job(broker, "stream")
    job.half_commit([(b"x", "a")], [(b"y", "b")], but=0)
    refuse(broker, "pykafka-q-driver")
    with pytest.raises(ReplayError, match="has 1 tasks, and before the restart it had 2"):
        job.commit(job.write([(b"x", "a"), (b"y", "b")]))


def test_a_batch_that_is_complete_needs_no_renewal(broker: MockBroker) -> None:
    job = Job(broker, "stream")
    parts: list[Rows] = [[(b"x", "a")], [(b"y", "b")]]
    job.commit(job.write(*parts))
    messages = job.write(*parts)
    refuse(broker, "pykafka-q-driver")
    job.commit(messages)
    assert (job.seen("a"), job.seen("b")) == ([b"x"], [b"y"])


def test_a_renewal_of_the_intent_is_waited_for_shortly(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not until the transactions expire, as a coordinator that takes nothing in may stay like that."""
    job = Job(broker, "stream")
    job.commit(job.write([(b"x", "a")]))
    messages = job.write([(b"x", "a")])
    broker.on("TxnOffsetCommit", times=None).fail("COORDINATOR_NOT_AVAILABLE")
    monkeypatch.setattr(marker_store, "_RENEWAL_MS", 100)
    began = time.monotonic()
    job.commit(messages)
    assert time.monotonic() - began < 10  # of the 20 s until they expire


def test_a_renewal_of_a_marker_is_waited_for_shortly(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tasks, and the commit, wait for it."""
    job = Job(broker, "stream")
    job.half_commit([(b"x", "a")], [(b"y", "a")])
    broker.on("TxnOffsetCommit", times=None).fail("COORDINATOR_NOT_AVAILABLE")
    monkeypatch.setattr(marker_store, "_RENEWAL_MS", 100)
    markers, limit = GroupMarkers(router_for(job.options.client)), Deadline.after_ms(20_000)
    found = markers.take_over(job.task_name(0), [TopicPartition("a", 0)], 20_000, limit)
    assert (found.marker is not None, found.is_renewed) == (True, False)
    assert limit.remaining_ms > 10_000


def test_markers_without_the_intent_are_refused(broker: MockBroker) -> None:
    """It has expired: others may have, too."""
    job = Job(broker, "stream")
    parts: list[Rows] = [[(b"x", "a")], [(b"y", "b")], [(b"z", "c")]]
    job.half_commit(*parts, but=0)
    messages = job.write(*parts)
    with broker.cluster.changed:
        broker.groups.group(job.name).committed.clear()
    with pytest.raises(ReplayError, match="the intent that says which tasks there were has expired"):
        job.commit(messages)
    assert (job.seen("a"), job.seen("b"), job.seen("c")) == ([], [b"y"], [b"z"])


def test_a_complete_batch_is_accepted_without_its_intent(broker: MockBroker) -> None:
    """It has expired; nothing is left to commit, so that no row can be written twice."""
    job = Job(broker, "stream")
    parts: list[Rows] = [[(b"x", "a")], [(b"y", "b")]]
    job.commit(job.write(*parts))
    messages = job.write(*parts)
    with broker.cluster.changed:
        broker.groups.group(job.name).committed.clear()
    job.commit(messages)
    assert (job.seen("a"), job.seen("b")) == ([b"x"], [b"y"])
