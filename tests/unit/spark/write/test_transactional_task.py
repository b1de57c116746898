"""Which micro-batch, or which part of a job, a task writes, as Spark says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark
import pytest

from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.spark.write.worker.transactional_task import (
    BatchTask,
    current_partition,
    write_atomic,
)
from spark_kafka_native.spark.write.write_task import AtomicWrite

BATCH = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7"}


def running(monkeypatch: pytest.MonkeyPatch, **properties: str | None) -> None:
    named = {name.replace("__", "."): text for name, text in properties.items()}
    context = SimpleNamespace(getLocalProperty=(BATCH | named).get, partitionId=lambda: 3)
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: context)


def test_the_names_are_those_of_the_query_and_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    running(monkeypatch, spark__speculation="false", spark__sql__adaptive__enabled="false")
    task = BatchTask.current()
    assert task == BatchTask(query_id="q", batch_id=7, partition=3)
    assert (task.job("orders"), task.name("orders")) == ("orders-q", "orders-q-3")


@pytest.mark.parametrize(
    ("version", "properties", "is_adaptive"),
    [
        ("4.1.3", {}, False),
        ("4.2.0", {}, True),
        ("4.10.0.dev1", {"spark__sql__adaptive__enabled": "true"}, True),
        ("4.3.0", {"spark__sql__adaptive__enabled": "FALSE"}, False),
        ("4.3.0", {"spark__sql__adaptive__streaming__stateless__enabled": "false"}, False),
    ],
)
def test_a_task_says_whether_spark_may_choose_the_number_of_tasks(
    monkeypatch: pytest.MonkeyPatch, version: str, properties: dict[str, str], is_adaptive: bool
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    running(monkeypatch, **properties)
    assert BatchTask.current().is_adaptive == is_adaptive


def test_speculation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    running(monkeypatch, spark__speculation="TRUE")
    with pytest.raises(ConfigError, match=r"can't be had with spark\.speculation=true"):
        BatchTask.current()


def test_nothing_is_written_where_spark_does_not_say_which_batch_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: None)
    with pytest.raises(ConfigError, match="does not say which micro-batch"):
        BatchTask.current()


@pytest.mark.parametrize("missing", ["sql__streaming__queryId", "streaming__sql__batchId"])
def test_a_query_without_an_id_and_a_batch_without_a_number_are_refused(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """All queries without an id would share their transactional ids."""
    running(monkeypatch, **{missing: None})
    with pytest.raises(ConfigError, match="does not say which micro-batch"):
        BatchTask.current()


def test_rows_of_a_job_in_one_transaction_are_in_its_first_partition_alone() -> None:
    job = AtomicWrite(transactional_id="j", transaction_timeout_ms=1)
    none, one = pa.RecordBatch.from_pydict({"value": []}), pa.RecordBatch.from_pydict({"value": [b"1"]})
    unused: Any = None
    for partition in (1, 7):
        assert write_atomic(job, iter([none, none]), unused, unused, partition).records == 0
        words = f"partition {partition} of the DataFrame has rows, and a batch write is all or nothing only"
        with pytest.raises(ConfigError, match=words):
            write_atomic(job, iter([none, one]), unused, unused, partition)


def test_a_batch_write_is_told_its_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    running(monkeypatch)
    assert current_partition() == 3
    running(monkeypatch, spark__speculation="true")
    with pytest.raises(ConfigError, match=r"can't be had with spark\.speculation=true"):
        current_partition()
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: None)
    with pytest.raises(ConfigError, match="does not say which task"):
        current_partition()
