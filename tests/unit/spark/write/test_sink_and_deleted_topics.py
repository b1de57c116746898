"""Exactly-once writes of rows that name their topics, which are deleted while it is half committed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.cluster.router import router_for
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write.commit_markers import ReplayError
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
from spark_kafka_native.spark.write.marker_store import GroupMarkers
from spark_kafka_native.spark.write.worker.transactional_task import BatchTask, write_once, write_resumable
from spark_kafka_native.spark.write.worker.write_rows import WriteFailedError
from spark_kafka_native.spark.write.write_options import ExactlyOnce, WriteOptions
from spark_kafka_native.spark.write.write_task import KafkaCommitMessage, ResumableWrite, RowColumns
from spark_kafka_native.testing import MockBroker

Rows = Sequence[tuple[bytes, str]]
"""Values and their topics."""


class Job:
    """A micro-batch 5 of the query q, or a write with the name w: one run of it after another."""

    def __init__(self, broker: MockBroker, kind: str, **given: str) -> None:
        self.broker, self.is_stream, self._given = broker, kind == "stream", given
        self.topic: str | None = None
        self._run: ResumableWrite | None = None

    @property
    def options(self) -> WriteOptions:
        fixed = {"kafka.bootstrap.servers": self.broker.bootstrap_servers, "transactionTimeout": "20s"}
        quick = {"kafka.retry.backoff.ms": "5", "kafka.linger.ms": "0", "kafka.max.block.ms": "300"}
        topic = {} if self.topic is None else {"topic": self.topic}
        once = {"deliveryGuarantee": "exactly-once"}
        return WriteOptions.parse(OptionValues.parse(fixed | quick | once | topic | self._given, Scope.WRITE))

    @property
    def once(self) -> ExactlyOnce:
        found = self.options.exactly_once
        assert found is not None
        return found

    def task_name(self, task: int) -> str:
        return f"pykafka-q-{task}" if self.is_stream else f"pykafka-write/w/{task}"

    def write(self, *parts: Rows) -> list[KafkaCommitMessage]:
        if not self.is_stream:
            self._run = begin_resumable(router_for(self.options.client), self.options, self.once, "w")
        return [self._write(task, rows) for task, rows in enumerate(parts)]

    def _write(self, task: int, rows: Rows) -> KafkaCommitMessage:
        names = ("value",) if self.topic else ("value", "topic")
        columns = RowColumns(names=names, topic=self.topic)
        values, topics = zip(*rows, strict=True)
        kinds = {"value": pa.array(values, pa.binary()), "topic": pa.array(topics)}
        batches = iter([pa.record_batch({name: kinds[name] for name in names})])
        if self._run is not None:
            return write_resumable(self._run, batches, columns, self.options, task)
        identity = BatchTask(query_id="q", batch_id=5, partition=task)
        return write_once(batches, columns, self.options, self.once, identity)

    def commit(self, messages: Sequence[KafkaCommitMessage]) -> None:
        """As Spark does: where it fails, open transactions are aborted."""
        try:
            if self._run is not None:
                commit_resumable(self._run, messages, self.options)
            else:
                commit_transactions(messages, 5, self.options, self.once)
        except Exception:
            if self._run is not None:
                abort_resumable(self._run, messages, self.options)
            else:
                abort_transactions(messages, self.options)
            raise

    def half_commit(self, *parts: Rows, but: int = 1) -> None:
        """All but one task."""
        name = self.task_name(but)
        self.broker.on(
            "EndTxn", when=lambda one: one.fields["transactional_id"] == name and one.fields["committed"]
        ).fail("PRODUCER_FENCED")
        with pytest.raises(WriteCommitFailedError, match=f"1 of {len(parts)} transactions"):
            self.commit(self.write(*parts))

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


def test_a_topic_that_is_deleted_before_the_commit_fails_it_at_once(job: Job, broker: MockBroker) -> None:
    """Not once the transactions expire: coordinators retry for a topic that they do not know."""
    messages = job.write([(b"x", "a")], [(b"y", "b")])
    delete(broker, "a")
    words = r"rows were written to topic a, which can't be found any more: .*nothing"
    with pytest.raises(WriteCommitFailedError, match=words):
        job.commit(messages)
    assert job.seen("b") == []
    assert not [one for one in broker.asked("EndTxn") if one.fields["committed"]]


def test_a_marker_that_is_found_again_is_committed_again(job: Job, broker: MockBroker) -> None:
    """Each run writes the intent: a marker that expires before it would have its rows written twice."""
    parts: list[Rows] = [[(b"y", "b"), (b"z", "c")], [(b"x", "a")]]
    job.half_commit(*parts)
    first = broker.committed(job.task_name(0))
    before = len(broker.asked("TxnOffsetCommit"))
    messages = job.write(*parts)
    assert [one.skipped for one in messages] == [2, 0]
    renewed = broker.asked("TxnOffsetCommit")[before]
    assert (renewed.fields["group_id"], renewed.fields["transactional_id"]) == (job.task_name(0),) * 2
    assert (
        {TopicPartition(*place) for place in renewed.places}
        == set(first)
        == {
            TopicPartition("b", 0),
            TopicPartition("c", 0),
        }
    )
    job.commit(messages)
    assert broker.committed(job.task_name(0)) == first
    assert (job.seen("a"), job.seen("b"), job.seen("c")) == ([b"x"], [b"y"], [b"z"])
    with broker.cluster.changed:
        assert not [name for name, one in broker.transactions.by_id.items() if one.is_open]


def test_a_marker_that_changes_under_a_task_that_renews_it_fails_the_task(
    broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(broker, "stream")
    job.half_commit([(b"y", "b")], [(b"x", "a")])
    monkeypatch.setattr(GroupMarkers, "add", lambda *_: None)
    with pytest.raises(WriteFailedError, match=r"pykafka-q-0: .* was committed before, and now it is None"):
        job.write([(b"y", "b")])


def test_the_note_of_a_write_is_renewed_with_its_markers(broker: MockBroker) -> None:
    """Else it would be forgotten before them, and the next run refused."""
    job = Job(broker, "named")
    parts: list[Rows] = [[(b"y", "b")], [(b"x", "a")]]
    job.commit(job.write(*parts))
    before = len(broker.asked("TxnOffsetCommit"))
    messages = job.write(*parts)
    assert [one.skipped for one in messages] == [1, 1]
    job.commit(messages)
    groups = [one.fields["group_id"] for one in broker.asked("TxnOffsetCommit")[before:]]
    assert groups == [job.task_name(0), job.task_name(1), "pykafka-write/w"]
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
    broker.on("EndTxn", when=lambda one: one.fields["transactional_id"] == "pykafka-q-0").fail(
        "PRODUCER_FENCED"
    )
    with pytest.raises(WriteCommitFailedError):
        job.commit(job.write([(b"x", "")]))
    job.topic = "b"
    job.commit(job.write([(b"x", "")]))
    assert (job.seen("a"), job.seen("b")) == ([], [b"x"])
