"""`Sink`: the exactly-once sink without Spark. Its tasks and its driver run on a real broker, and crash, run
twice, repeat themselves and let transactions expire, as the seed says."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_native.kafka.cluster.router import router_for
from spark_kafka_native.kafka.errors import KafkaError
from spark_kafka_native.kafka.producer.sending.transaction_requests import end_transaction
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write.driver import stream_commit
from spark_kafka_native.spark.write.driver.stream_commit import (
    WriteCommitFailedError,
    abort_transactions,
    commit_transactions,
)
from spark_kafka_native.spark.write.worker import transactional_task
from spark_kafka_native.spark.write.worker.transactional_task import BatchTask, write_once
from spark_kafka_native.spark.write.write_options import WriteOptions
from spark_kafka_native.spark.write.write_task import KafkaCommitMessage, RowColumns
from support.exactly_once.killed_producer import close_as_killed
from support.exactly_once.read_committed import read_committed

TASKS, ROWS, PARTITIONS = 3, 12, 3
BATCHES = int(os.environ.get("EXACTLY_ONCE_BATCHES", "14"))


class Crash(Exception):  # noqa: N818
    """A simulated process dies here."""


class Sink:
    """One query: what Spark does with tasks, messages and batches, without Spark."""

    def __init__(
        self, kafka: Any, topic: str, seed: int = 0, timeout: str = "1m", markers: str = "groups"
    ) -> None:
        given = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "topic": topic,
            "deliveryGuarantee": "exactly-once",
            "transactionTimeout": timeout,
            "kafka.retry.backoff.ms": "10",
            "kafka.linger.ms": "0",
        }
        if markers == "topic":
            given["transactionMarkerTopic"] = f"{topic}-markers"
            kafka.create_topic(f"{topic}-markers", 1, config={"cleanup.policy": "compact"})
        self.topic = topic
        self.options = WriteOptions.parse(OptionValues.parse(given, Scope.WRITE))
        assert self.options.exactly_once is not None
        self.once = self.options.exactly_once
        self.columns = RowColumns(names=("partition", "value"), topic=topic)
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()

    def rows(self, batch_id: int, task: int, tasks: int = TASKS) -> Iterator[pa.RecordBatch]:
        every = range(TASKS * ROWS)
        mine = [i for i in every if i % tasks == task]
        for part in (mine[:5], mine[5:]):
            values = [b"%d-%d" % (batch_id, i) for i in part]
            yield pa.record_batch(
                {
                    "partition": pa.array([i % PARTITIONS for i in part], pa.int32()),
                    "value": pa.array(values, pa.binary()),
                }
            )

    def run_task(self, batch_id: int, task: int, rows: Any = None, tasks: int = TASKS) -> KafkaCommitMessage:
        given = self.rows(batch_id, task, tasks) if rows is None else rows
        identity = BatchTask(query_id=self.topic, batch_id=batch_id, partition=task)
        return write_once(given, self.columns, self.options, self.once, identity)

    def run_tasks(self, batch_id: int, tasks: int = TASKS) -> list[KafkaCommitMessage]:
        return [self.run_task(batch_id, task, tasks=tasks) for task in range(tasks)]

    def commit(self, messages: list[KafkaCommitMessage], batch_id: int) -> None:
        commit_transactions(messages, batch_id, self.options, self.once)

    # With faults.

    def disturbed_task(self, batch_id: int, task: int) -> KafkaCommitMessage:
        fate = self.rng.random()
        if fate < 0.1:
            self.counts["a task raises"] += 1
            with contextlib.suppress(Crash):
                self.run_task(batch_id, task, self.cut_short(batch_id, task))
        elif fate < 0.22:
            self.counts["a task is killed"] += 1
            with pytest.MonkeyPatch.context() as patch:
                # Nothing is aborted, nothing said: the connections go, and the transaction stays open.
                patch.setattr(transactional_task, "close_producer", partial(close_as_killed, timeout=0))
                rows = self.cut_short(batch_id, task) if self.rng.random() < 0.5 else None
                with contextlib.suppress(Crash):
                    self.run_task(batch_id, task, rows)
        message = self.run_task(batch_id, task)
        if self.rng.random() < 0.08:
            self.counts["a task runs twice"] += 1
            message = self.rng.choice([message, self.run_task(batch_id, task)])
        return message

    def cut_short(self, batch_id: int, task: int) -> Iterator[pa.RecordBatch]:
        for one in self.rows(batch_id, task):
            yield one
            raise Crash

    def disturbed_commit(self, messages: list[KafkaCommitMessage], batch_id: int) -> None:
        fate = self.rng.random()
        if fate < 0.08:
            self.counts["the driver dies before the commit"] += 1
            raise Crash
        if fate < 0.25:
            self.counts["the driver dies in the commit"] += 1
            left = [message for message in messages if message.transaction is not None]
            some = self.rng.sample(left, min(len(left), self.rng.randint(0, 2)))
            self.die_in_commit(messages, batch_id, some)
            raise Crash
        if fate < 0.33:
            self.counts["commit raises after its effect, and Spark aborts"] += 1
            self.commit(messages, batch_id)
            abort_transactions(messages, self.options)
            raise Crash
        if fate < 0.4:
            self.counts["EndTxn arrives twice"] += 1
            for message in messages:
                if message.transaction is not None and self.rng.random() < 0.5:
                    self.end(message, commit=True)
        self.commit(messages, batch_id)
        if self.rng.random() < 0.1:
            self.counts["the driver dies before its commit log"] += 1
            raise Crash
        if self.rng.random() < 0.1:
            self.counts["a ghost of an EndTxn arrives late"] += 1
            for message in messages:
                self.end(message, commit=self.rng.random() < 0.5)

    def die_in_commit(
        self, messages: list[KafkaCommitMessage], batch_id: int, ended: list[KafkaCommitMessage]
    ) -> None:
        """The driver dies when it has committed these."""

        def dies(*_transactions: Any, **_how: Any) -> Any:
            for message in ended:
                self.end(message, commit=True)
            raise Crash

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream_commit, "_end_all", dies)
            with contextlib.suppress(Crash):
                self.commit(messages, batch_id)

    def end(self, message: KafkaCommitMessage, *, commit: bool) -> None:
        """One of a task that ran twice may be fenced."""
        if message.transaction is None:
            return
        router = router_for(self.options.client)
        try:
            end_transaction(router, message.transaction, commit=commit, deadline=Deadline.after_ms(60_000))
        except KafkaError:
            self.counts["refused EndTxn"] += 1

    def run(self, batches: int) -> None:
        """Each batch until Spark would write it to its commit log."""
        for batch_id in range(batches):
            for _ in range(30):
                try:
                    messages = [self.disturbed_task(batch_id, task) for task in range(TASKS)]
                    self.disturbed_commit(messages, batch_id)
                    break
                except Crash:
                    self.counts["replays"] += 1
                except WriteCommitFailedError:
                    self.counts["refused commits"] += 1
                    abort_transactions(messages, self.options)
            else:
                raise AssertionError(f"batch {batch_id} does not end")


def read(kafka: Any, topic: str) -> dict[int, list[bytes]]:
    """What another client's read_committed consumer sees."""
    return read_committed(kafka.bootstrap_servers, topic, PARTITIONS, timeout_s=180)


def complaints(found: dict[int, list[bytes]], batches: int) -> list[str]:
    """The defects in the records that a reader has seen."""
    wrong = []
    times = Counter(value for values in found.values() for value in values)
    wanted = {b"%d-%d" % (b, i) for b in range(batches) for i in range(TASKS * ROWS)}
    wrong += [f"{value!r} is lost" for value in sorted(wanted - times.keys())]
    wrong += [f"{value!r} is there {n} times" for value, n in times.items() if n > 1]
    wrong += [f"{value!r} is nobody's" for value in times.keys() - wanted]
    for partition, values in found.items():
        for task in range(TASKS):
            mine = [tuple(map(int, value.split(b"-"))) for value in values]
            mine = [one for one in mine if one[1] % TASKS == task]
            if mine != sorted(mine):
                wrong.append(f"rows of task {task} are reordered in partition {partition}")
    return wrong
