"""Writes in a transaction, against a scripted coordinator: where a task looks for its marker, and how long a
job that is committed waits for its readers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pytest
from support.brokers.scripted_broker import properties
from support.brokers.transaction_cluster import TransactionCluster

from spark_kafka_native.kafka.cluster.router import router_for
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.transaction_admin import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write.driver import atomic_write
from spark_kafka_native.spark.write.driver.atomic_write import begin_atomic, commit_atomic
from spark_kafka_native.spark.write.marker_store import GroupMarkers, MarkerTopic
from spark_kafka_native.spark.write.worker import transactional_task
from spark_kafka_native.spark.write.worker.transactional_task import BatchTask, write_atomic, write_once
from spark_kafka_native.spark.write.write_options import WriteOptions
from spark_kafka_native.spark.write.write_task import RowColumns

TP = TopicPartition("t", 0)
ROWS = pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary()), "topic": ["t", "t"]})


@pytest.fixture
def cluster() -> Iterator[TransactionCluster]:
    with TransactionCluster() as running:
        running.create("t")
        yield running


def options(cluster: TransactionCluster, **given: str) -> WriteOptions:
    client = {f"kafka.{name}": value for name, value in properties(cluster.bootstrap_servers).items()}
    quick = {"kafka.retry.backoff.ms": "5", "kafka.linger.ms": "0", "deliveryGuarantee": "exactly-once"}
    return WriteOptions.parse(OptionValues.parse(client | quick | given, Scope.WRITE))


@pytest.mark.parametrize(
    ("markers", "topic", "looked_at"),
    [
        # Only the topic that rows have been written to says where a marker would be that is not decided yet.
        (GroupMarkers, None, [[], [TP]]),
        (GroupMarkers, "t", [[TP]]),
        (MarkerTopic, None, [[]]),
        (MarkerTopic, "t", [[TP]]),
    ],
)
def test_a_marker_is_looked_for_a_second_time_only_where_the_first_look_may_have_missed_it(
    cluster: TransactionCluster, markers: Any, topic: str | None, looked_at: list[Any], monkeypatch: Any
) -> None:
    looked: list[list[TopicPartition]] = []

    class Markers:
        needs_place = markers.needs_place

        def check(self) -> None: ...

        def last(self, _name: str, where: Collection[TopicPartition]) -> None:
            looked.append(list(where))

        def add(self, *_arguments: Any) -> None: ...

    monkeypatch.setattr(transactional_task, "find_markers", lambda *_arguments: Markers())
    given = options(cluster, **({} if topic is None else {"topic": topic}))
    assert given.exactly_once is not None
    task = BatchTask(query_id="q", batch_id=0, partition=0)
    columns = RowColumns(names=("value",) if topic else ("value", "topic"), topic=topic)
    message = write_once(iter([ROWS]), columns, given, given.exactly_once, task)
    assert (message.records, looked) == (2, looked_at)


def state(name: str, error: ErrorCode = ErrorCode.NONE) -> DescribeTransactionsResponse:
    """The state of the job's transaction, from its coordinator."""
    told = TransactionState(
        error_code=error,
        transactional_id="jobs-batch",
        transaction_state=name,
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=0,
        producer_id=1,
        producer_epoch=0,
        topics=[],
    )
    return DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=[told])


def commit_job(cluster: TransactionCluster) -> int:
    """Write and commit one; how often the coordinator was asked for its state."""
    given = options(cluster, topic="t", transactionalIdPrefix="jobs")
    assert given.exactly_once is not None
    job = begin_atomic(router_for(given.client), given, given.exactly_once)
    message = write_atomic(job, iter([ROWS]), RowColumns(names=("value",), topic="t"), given, 0)
    assert not cluster.committed[TP]
    commit_atomic(job, [message], given)
    assert cluster.committed[TP] == [b"a", b"b"]
    return len(cluster[1].requests(DescribeTransactionsRequest))


@pytest.mark.parametrize("preparing", [0, 3])
def test_a_job_is_committed_once_its_readers_can_see_it(cluster: TransactionCluster, preparing: int) -> None:
    cluster[1].push(DescribeTransactionsRequest, *[state("PrepareCommit")] * preparing)
    cluster[1].on(DescribeTransactionsRequest, state("CompleteCommit"))
    assert commit_job(cluster) == preparing + 1


def test_a_job_that_is_committed_does_not_wait_for_ever_for_its_readers(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_write, "_VISIBLE_MS", 200)
    cluster[1].on(DescribeTransactionsRequest, state("PrepareCommit"))
    assert commit_job(cluster) > 1


def test_a_job_that_is_committed_does_not_fail_where_nobody_can_say_what_its_readers_see(
    cluster: TransactionCluster,
) -> None:
    cluster[1].on(DescribeTransactionsRequest, state("", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    assert commit_job(cluster) == 1
