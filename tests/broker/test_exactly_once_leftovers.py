"""What a run of an exactly-once query leaves open is aborted by the next one, and by a stop, as far as it is
known; readers wait for it otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from support.exactly_once.killed_producer import close_as_killed
from support.exactly_once.transactional_sink import PARTITIONS, Sink, complaints, read

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.errors import DeadlineExceededError, UnsupportedVersionError
from spark_kafka_native.spark.write.driver import stream_commit
from spark_kafka_native.spark.write.driver.stream_commit import abort_transactions, commit_transactions
from spark_kafka_native.spark.write.worker import transactional_task

pytestmark = pytest.mark.broker


@pytest.fixture
def sink(kafka: Any, topic: str) -> Sink:
    kafka.create_topic(topic, PARTITIONS)
    return Sink(kafka, topic, timeout="10m")


def left_open(kafka: Any, sink: Sink) -> list[str]:
    with Admin(kafka.bootstrap_servers) as admin:
        found = admin.list_transactions(states=["Ongoing"])
    names = [
        one.transactional_id for one in found if one.transactional_id.startswith(f"pykafka-{sink.topic}-")
    ]
    return [name.removeprefix(f"pykafka-{sink.topic}-") for name in names]


def kill_task(sink: Sink, task: int, tasks: int) -> None:
    """It has written rows: nothing is said of it, and nothing aborted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactional_task, "close_producer", partial(close_as_killed, timeout=0))
        sink.run_task(0, task, tasks=tasks)


def no_list(*_arguments: Any, **_named: Any) -> Any:
    raise UnsupportedVersionError("ListTransactions: the broker is too old")


def test_a_restart_with_fewer_tasks_ends_what_the_others_have_left(kafka: Any, sink: Sink) -> None:
    sink.run_tasks(0, tasks=12)
    assert len(left_open(kafka, sink)) == 12
    sink.commit(sink.run_tasks(0, tasks=2), 0)
    sink.run_tasks(0, tasks=2)
    assert left_open(kafka, sink) == []
    assert not [one for one in complaints(read(kafka, sink.topic), 1) if "reordered" not in one]


def test_old_brokers_are_told_the_names_that_the_last_intent_knows(
    kafka: Any, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.commit([sink.run_task(0, task, sink.rows(0, task % 3) if task < 3 else []) for task in range(5)], 0)
    sink.run_tasks(1, tasks=5)
    monkeypatch.setattr(Admin, "list_transactions", no_list)
    sink.commit(sink.run_tasks(1, tasks=2), 1)
    monkeypatch.undo()
    sink.run_tasks(1, tasks=2)
    assert left_open(kafka, sink) == []


def test_a_later_micro_batch_of_a_run_asks_nobody(
    kafka: Any, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admin, "list_transactions", no_list)
    monkeypatch.setattr(stream_commit, "abort_abandoned", None)
    commit_transactions(sink.run_tasks(0), 0, sink.options, sink.once, is_first=False)


def test_a_failure_to_end_them_is_a_warning(
    kafka: Any, sink: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def too_late(*_arguments: Any, **_named: Any) -> Any:
        raise DeadlineExceededError("broker 2 does not answer")

    monkeypatch.setattr(Admin, "list_transactions", too_late)
    sink.commit(sink.run_tasks(0), 0)
    assert "readers with read_committed wait for them until transactionTimeout: broker 2" in caplog.text


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_stop_ends_what_tasks_that_were_killed_have_left(
    kafka: Any, sink: Sink, is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: Sequence[Any] = [sink.run_task(0, 0), None, None]
    kill_task(sink, 1, 3)
    kill_task(sink, 2, 3)
    assert left_open(kafka, sink) == ["0", "1", "2"]
    if not is_listed:
        monkeypatch.setattr(Admin, "list_transactions", no_list)
    abort_transactions(messages, sink.options)
    monkeypatch.undo()
    assert left_open(kafka, sink) == []
