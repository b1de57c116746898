"""A task of an exactly-once write that runs again: what its marker says decides what becomes of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from support.brokers.scripted_broker import properties
from support.brokers.transaction_cluster import TransactionCluster

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, DeadlineExceededError, NetworkError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write import write_task
from spark_kafka_native.spark.write.commit_markers import CommitMarker, ReplayError
from spark_kafka_native.spark.write.worker import transactional_task
from spark_kafka_native.spark.write.worker.transactional_task import BatchTask, RowDigest, write_once
from spark_kafka_native.spark.write.worker.write_rows import WriteFailedError
from spark_kafka_native.spark.write.write_options import WriteOptions
from spark_kafka_native.spark.write.write_task import KafkaCommitMessage, RowColumns

BATCH = 7
ROWS = pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary()), "topic": ["t", "t"]})


def marker_of(batch_id: int) -> CommitMarker:
    digest = RowDigest()
    digest.add(ROWS)
    return CommitMarker(batch_id=batch_id, rows=digest.rows, hash=digest.hash)


class Remembered:
    """Markers of one task: what each look finds, and what the broker has that takes the task's in."""

    needs_place = True

    def __init__(
        self, *looks: CommitMarker | DeadlineExceededError | None, taken_in: CommitMarker | None = None
    ) -> None:
        self.looks = list(looks)
        self.taken_in = taken_in
        self.added: list[CommitMarker] = []
        self.put_at: list[TopicPartition] = []
        self.kept_at: list[TopicPartition] = []

    def check(self) -> None: ...

    def last(self, _name: str, _where: Sequence[TopicPartition]) -> CommitMarker | None:
        if isinstance(found := self.looks.pop(0), DeadlineExceededError):
            raise found
        return found

    def places(self, _name: str) -> list[TopicPartition]:
        return self.kept_at

    def add(self, _producer: Any, _name: str, marker: CommitMarker, where: Any) -> CommitMarker | None:
        self.added.append(marker)
        self.put_at.extend(where)
        return self.taken_in


@pytest.fixture
def cluster() -> Iterator[TransactionCluster]:
    with TransactionCluster() as running:
        running.create("t")
        yield running


def write(
    cluster: TransactionCluster, patch: pytest.MonkeyPatch, markers: Remembered, rows: pa.RecordBatch = ROWS
) -> KafkaCommitMessage:
    client = {f"kafka.{name}": value for name, value in properties(cluster.bootstrap_servers).items()}
    quick = {"kafka.retry.backoff.ms": "5", "kafka.linger.ms": "0", "deliveryGuarantee": "exactly-once"}
    options = WriteOptions.parse(OptionValues.parse(client | quick, Scope.WRITE))
    assert options.exactly_once is not None
    patch.setattr(transactional_task, "find_markers", lambda *_: markers)
    columns = RowColumns(names=("value", "topic"), topic=None)
    task = BatchTask(query_id="q", batch_id=BATCH, partition=0)
    return write_once(iter([rows]), columns, options, options.exactly_once, task)


@pytest.mark.parametrize("before", [None, marker_of(BATCH - 1)])
def test_rows_of_which_nothing_is_committed_are_written(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch, before: CommitMarker | None
) -> None:
    markers = Remembered(before, before, taken_in=before)
    message = write(cluster, monkeypatch, markers)
    assert (message.records, message.skipped) == (2, 0)
    assert message.transaction is not None
    assert markers.added == [marker_of(BATCH)]


def test_a_column_that_is_not_written_is_not_in_the_marker(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay is compared by the columns that are written: with others in the marker it would be refused."""
    rows = pa.record_batch({**{name: ROWS.column(name) for name in ROWS.schema.names}, "note": ["x", "y"]})
    markers = Remembered(None, None)
    write(cluster, monkeypatch, markers, rows)
    assert markers.added == [marker_of(BATCH)]
    assert write(cluster, monkeypatch, Remembered(*markers.added), rows).skipped == 2


@pytest.mark.parametrize("most", [100, 2])
def test_each_topic_keeps_the_marker_up_to_a_number_of_them(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    topics = ["t", "c", "a", "b"]
    for topic in topics[1:]:
        cluster.create(topic)
    monkeypatch.setattr(write_task, "MARKED_TOPICS", most)
    markers = Remembered(None, None)
    write(cluster, monkeypatch, markers, pa.record_batch({"value": [b"1"] * 4, "topic": topics}))
    assert markers.put_at == [TopicPartition(topic, 0) for topic in sorted(topics)[:most]]


def test_the_marker_is_looked_for_once_no_earlier_attempt_can_be_committed_any_more(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could be, between the two, and these rows would be written beside it."""
    markers = Remembered(None, None)
    fenced, look = [], markers.last

    def last(name: str, where: Sequence[TopicPartition]) -> CommitMarker | None:
        fenced.append(name in cluster.held)
        return look(name, where)

    monkeypatch.setattr(markers, "last", last)
    write(cluster, monkeypatch, markers)
    assert fenced == [True, True]


def test_rows_that_are_committed_are_skipped(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = write(cluster, monkeypatch, Remembered(marker_of(BATCH)))
    assert (message.records, message.skipped, message.transaction) == (0, 2, None)
    assert message.rows_hash == marker_of(BATCH).hash


@pytest.mark.parametrize("other", [{"rows": 3}, {"hash": 0}, {"hash": 5}, {"rows": 0, "hash": 0}])
def test_other_rows_than_those_that_are_committed_are_refused(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch, other: dict[str, int]
) -> None:
    with pytest.raises(
        ReplayError,
        match=r"partition 0 of micro-batch 7 has 2 rows .* were committed before .* minPartitions, maxPart",
    ):
        write(cluster, monkeypatch, Remembered(replace(marker_of(BATCH), **other)))
    assert not cluster.logs[TopicPartition("t", 0)].batches


@pytest.mark.parametrize("ahead", [1, 5])
def test_a_batch_behind_one_that_is_committed_is_refused(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    with pytest.raises(ReplayError, match=f"has committed micro-batch {BATCH + ahead} already"):
        write(cluster, monkeypatch, Remembered(marker_of(BATCH + ahead)))
    assert not cluster.logs[TopicPartition("t", 0)].batches


@pytest.mark.parametrize("where", ["the second look", "the broker that takes the marker in"])
@pytest.mark.parametrize(("ahead", "words"), [(0, "micro-batch 7 has become"), (1, "micro-batch 8 has")])
def test_what_becomes_committed_meanwhile_ends_the_attempt(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch, where: str, ahead: int, words: str
) -> None:
    now = marker_of(BATCH + ahead)
    is_second_look = where == "the second look"
    markers = Remembered(None, now if is_second_look else None, taken_in=None if is_second_look else now)
    with pytest.raises(WriteFailedError, match=words):
        write(cluster, monkeypatch, markers)
    assert [name for name, _, commit in cluster.ended if not commit] == ["pykafka-q-0"]


@pytest.mark.parametrize("before", [(), (None,)], ids=["the first look", "the second look"])
@pytest.mark.parametrize(
    ("cause", "raised"),
    [
        (BrokerError(ErrorCode.UNSTABLE_OFFSET_COMMIT, "t-0"), WriteFailedError),
        (BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "t-0"), DeadlineExceededError),
        (NetworkError("closed"), DeadlineExceededError),
    ],
)
def test_another_attempt_is_named_only_where_it_keeps_the_marker_undecided(
    cluster: TransactionCluster,
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[None, ...],
    cause: Exception,
    raised: type[Exception],
) -> None:
    late = DeadlineExceededError("in time")
    late.__cause__ = cause
    with pytest.raises(raised):
        write(cluster, monkeypatch, Remembered(*before, late))
