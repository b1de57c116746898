"""A batch write that is all or nothing, without Spark: its task and its driver on a real broker, which die,
run twice and lose answers. What a reader with read_committed sees is all rows, once, or none.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from support.exactly_once.killed_producer import close_as_killed
from support.exactly_once.read_committed import read_committed

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.cluster.router import Router, router_for
from spark_kafka_native.kafka.config.client_config import TransactionConfig
from spark_kafka_native.kafka.errors import ConfigError, DeadlineExceededError, NetworkError
from spark_kafka_native.kafka.protocol.api.transactions import EndTxnRequest
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write.batch_writer import KafkaBatchWriter
from spark_kafka_native.spark.write.driver import atomic_write
from spark_kafka_native.spark.write.driver.atomic_write import (
    CommitInDoubtError,
    abort_atomic,
    begin_atomic,
    commit_atomic,
)
from spark_kafka_native.spark.write.driver.stream_commit import WriteCommitFailedError
from spark_kafka_native.spark.write.worker import transactional_task
from spark_kafka_native.spark.write.worker.transactional_task import write_atomic
from spark_kafka_native.spark.write.worker.write_rows import WriteFailedError
from spark_kafka_native.spark.write.write_options import WriteOptions
from spark_kafka_native.spark.write.write_task import AtomicWrite, KafkaCommitMessage, RowColumns

pytestmark = pytest.mark.broker
PARTITIONS, ROWS = 2, 20
ALL = sorted(b"%d" % i for i in range(ROWS))


class Crash(Exception):  # noqa: N818
    """The process dies here."""


class Run:
    """One run of a job: what Spark does with it, without Spark."""

    def __init__(self, kafka: Any, topic: str, timeout: str = "1m", prefix: str | None = None) -> None:
        given = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "topic": topic,
            "deliveryGuarantee": "exactly-once",
            "transactionTimeout": timeout,
            "kafka.retry.backoff.ms": "10",
            "kafka.linger.ms": "0",
        }
        named = {} if prefix == "" else {"transactionalIdPrefix": prefix or topic}
        self.options = WriteOptions.parse(OptionValues.parse(given | named, Scope.WRITE))
        assert self.options.exactly_once is not None
        self.columns = RowColumns(names=("partition", "value"), topic=topic)
        self.router = router_for(self.options.client)
        self.job = begin_atomic(self.router, self.options, self.options.exactly_once)

    @staticmethod
    def rows() -> Iterator[pa.RecordBatch]:
        for part in (range(5), range(5, ROWS)):
            values = pa.array([b"%d" % i for i in part], pa.binary())
            yield pa.record_batch({"partition": pa.array([i % 2 for i in part], pa.int32()), "value": values})

    def task(self, rows: Any = None, partition: int = 0) -> KafkaCommitMessage:
        given = iter(self.rows() if rows is None else rows)
        return write_atomic(self.job, given, self.columns, self.options, partition)

    def killed_task(self) -> None:
        """Nothing is aborted, nothing said: the connections go, and the transaction stays open."""

        def cut_short() -> Iterator[pa.RecordBatch]:
            yield next(self.rows())
            raise Crash

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transactional_task, "close_producer", partial(close_as_killed, timeout=10_000))
            with contextlib.suppress(Crash):
                self.task(cut_short())

    def commit(self, *messages: KafkaCommitMessage | None) -> None:
        commit_atomic(self.job, messages, self.options)

    def abort(self, *messages: KafkaCommitMessage | None) -> None:
        abort_atomic(self.job, messages, self.options)

    def state(self) -> str:
        """The coordinator's, once its decision is carried out."""
        name, deadline = self.job.transactional_id, time.monotonic() + 90
        while (found := Admin(self.router).describe_transactions([name])[name].state).startswith("Prepare"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return found


def seen(kafka: Any, topic: str) -> list[bytes]:
    """What another client's read_committed consumer sees now."""
    found = read_committed(kafka.bootstrap_servers, topic, PARTITIONS, timeout_s=90)
    return sorted(value for values in found.values() for value in values)


@pytest.fixture
def target(kafka: Any, topic: str) -> str:
    kafka.create_topic(topic, PARTITIONS)
    return topic


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of Kafka's two protocols of transactions."""
    config = partial(TransactionConfig, transaction_version=request.param)
    monkeypatch.setattr(transactional_task, "TransactionConfig", config)
    return int(request.param)


def test_nothing_is_seen_before_the_commit_and_everything_right_after_it(
    kafka: Any, target: str, version: int
) -> None:
    run = Run(kafka, target)
    messages = [run.task(), run.task([], 1), run.task([next(run.rows()).slice(0, 0)], 2)]
    assert messages[0].transaction is not None
    assert messages[0].transaction.version == version
    assert seen(kafka, target) == []
    run.commit(*messages)
    assert seen(kafka, target) == ALL


def test_a_second_task_with_rows_fails_the_job(kafka: Any, target: str) -> None:
    run = Run(kafka, target)
    message = run.task()
    with pytest.raises(ConfigError, match=r"partition 1 of the DataFrame has rows.*repartition\(1\)"):
        run.task([next(run.rows()).slice(0, 1)], 1)  # one row is one too many
    run.abort(message, None)
    assert run.state() == "CompleteAbort"
    assert seen(kafka, target) == []


@pytest.mark.parametrize("lacking", [False, True])
def test_what_one_task_did_not_say_is_not_committed(kafka: Any, target: str, lacking: bool) -> None:
    run = Run(kafka, target)
    message = run.task()
    with pytest.raises(WriteCommitFailedError, match="nothing of it will be seen"):
        run.commit(message, None if lacking else message)
    run.abort(message)
    assert seen(kafka, target) == []


def test_an_attempt_that_died_half_way_counts_for_nothing(kafka: Any, target: str, version: int) -> None:
    run = Run(kafka, target)
    run.killed_task()
    assert run.state() == "Ongoing"
    run.commit(run.task())
    assert seen(kafka, target) == ALL


def test_an_attempt_without_rows_ends_what_the_one_before_it_left(kafka: Any, target: str) -> None:
    run = Run(kafka, target)
    run.killed_task()
    run.commit(run.task([]))
    assert run.state() == "Empty"
    assert seen(kafka, target) == []


def test_a_zombie_that_goes_on_late_is_fenced(kafka: Any, target: str, version: int) -> None:
    run = Run(kafka, target)
    second: list[KafkaCommitMessage] = []

    def slow() -> Iterator[pa.RecordBatch]:
        rows = run.rows()
        yield next(rows)
        second.append(run.task())
        yield from rows

    with pytest.raises(WriteFailedError):
        run.task(slow())
    run.commit(*second)
    assert seen(kafka, target) == ALL


def test_a_zombie_that_takes_over_fails_the_job_and_is_never_committed(
    kafka: Any, target: str, version: int
) -> None:
    run = Run(kafka, target)
    message = run.task()
    run.task()
    with pytest.raises(WriteCommitFailedError, match="another job with the same transactionalIdPrefix"):
        run.commit(message)
    run.abort(message)
    Run(kafka, target)
    assert seen(kafka, target) == []


@pytest.mark.parametrize("killed", [False, True])
def test_what_a_dead_driver_left_is_aborted_by_the_next_run_at_once(
    kafka: Any, target: str, version: int, killed: bool
) -> None:
    run = Run(kafka, target)
    message = None if killed else run.task()
    if killed:
        run.killed_task()
    assert run.state() == "Ongoing"
    again = Run(kafka, target)
    assert again.state() == "Empty"
    assert seen(kafka, target) == []
    again.commit(again.task())
    if message is not None:  # the ghost of the first driver
        with pytest.raises(WriteCommitFailedError):
            run.commit(message)
    assert seen(kafka, target) == ALL


def test_what_a_dead_driver_has_committed_stays(kafka: Any, target: str) -> None:
    run = Run(kafka, target)
    message = run.task()
    run.commit(message)
    run.abort(message)
    assert run.state() == "CompleteCommit"
    Run(kafka, target)
    assert seen(kafka, target) == ALL


def test_abort_ends_what_tasks_left_that_were_killed(kafka: Any, target: str) -> None:
    run = Run(kafka, target)
    run.killed_task()
    run.abort(None, None)
    assert run.state() == "Empty"
    assert seen(kafka, target) == []


def test_without_a_prefix_each_run_has_a_name_of_its_own(kafka: Any, target: str) -> None:
    first, second = Run(kafka, target, prefix=""), Run(kafka, target, prefix="")
    assert first.job.transactional_id != second.job.transactional_id
    assert first.job.transactional_id.startswith("pykafka-batch-")
    message = first.task()
    second.commit(second.task())
    first.commit(message)
    assert seen(kafka, target) == sorted(2 * ALL)


def test_an_answer_to_the_commit_that_is_lost_is_asked_for_again(
    kafka: Any, target: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = Run(kafka, target), []
    message = run.task()
    send_to = Router.send_to

    def lossy(self: Router, node_id: int, request: Any, *arguments: Any) -> Any:
        answer = send_to(self, node_id, request, *arguments)
        if isinstance(request, EndTxnRequest):
            asked.append(request)
            if len(asked) < 3:
                raise NetworkError("the answer is lost")
        return answer

    monkeypatch.setattr(Router, "send_to", lossy)
    run.commit(message)
    assert len(asked) == 3
    assert seen(kafka, target) == ALL


def test_a_refusal_after_an_answer_that_was_lost_does_not_say_that_nothing_is_committed(
    kafka: Any, target: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(kafka, target)
    message = run.task()
    send_to, lost = Router.send_to, []

    def lossy(self: Router, node_id: int, request: Any, *arguments: Any) -> Any:
        answer = send_to(self, node_id, request, *arguments)
        if isinstance(request, EndTxnRequest) and not lost:
            lost.append(request)
            Run(
                kafka, target
            )  # which takes the transactional id, so that the commit is refused when repeated
            raise NetworkError("the answer is lost")
        return answer

    monkeypatch.setattr(Router, "send_to", lossy)
    with pytest.raises(CommitInDoubtError, match="may have committed it"):
        run.commit(message)
    assert seen(kafka, target) == ALL


@pytest.mark.parametrize("applied", [False, True])
def test_where_no_answer_comes_the_error_says_how_to_find_out(
    kafka: Any, target: str, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(kafka, target)
    message = run.task()
    end = atomic_write.end_transaction

    def silent(*arguments: Any, **named: Any) -> Any:
        if applied:
            end(*arguments, **named)
        raise DeadlineExceededError("nobody answers")

    with monkeypatch.context() as patch:
        patch.setattr(atomic_write, "end_transaction", silent)
        with pytest.raises(CommitInDoubtError, match="not known whether the job is committed") as caught:
            run.commit(message)
    assert f"describe --transactional-id {target}-batch" in str(caught.value)
    assert f"read {target}-0 from offset 0 with read_committed" in str(caught.value)
    run.abort(message)
    # The coordinator still says which of the two it is.
    assert run.state() == ("CompleteCommit" if applied else "CompleteAbort")
    assert seen(kafka, target) == (ALL if applied else [])


def test_a_job_that_takes_longer_than_its_timeout_fails(kafka: Any, target: str, version: int) -> None:
    run = Run(kafka, target, timeout="1s")
    message = run.task()
    deadline = time.monotonic() + 90
    while run.state() == "Ongoing":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(WriteCommitFailedError, match=r"than transactionTimeout \(1000 ms\)"):
        run.commit(message)
    run.abort(message)
    assert seen(kafka, target) == []


def test_a_summary_that_cannot_be_written_does_not_fail_a_job_that_is_committed(
    kafka: Any, target: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    given = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "topic": target,
        "summaryPath": str(tmp_path / "file" / "summary.json"),
    }

    def writer(**named: str) -> KafkaBatchWriter:
        values = OptionValues.parse(given | named, Scope.WRITE)
        return KafkaBatchWriter(values, StructType([StructField("value", BinaryType())]), overwrite=False)

    once = writer(deliveryGuarantee="exactly-once")
    assert isinstance(once._job, AtomicWrite)
    once.commit([write_atomic(once._job, Run.rows(), once._columns, once._options, 0)])
    assert "the rows are written; the summary of them could not be written" in caplog.text
    assert seen(kafka, target) == ALL
    caplog.clear()
    writer().commit([])  # an error would write the rows again
    assert "the rows are written; the summary of them could not be written" in caplog.text
