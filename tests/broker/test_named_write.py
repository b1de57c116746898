"""A batch write with a `writeId`, without Spark: its tasks and its driver on a real broker, which die at each
step, run twice at once and make other rows. What a reader with read_committed sees is each row once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from support.exactly_once.killed_producer import close_as_killed
from support.exactly_once.read_committed import read_committed

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.cluster.router import Router, router_for
from spark_kafka_native.kafka.config.client_config import TransactionConfig
from spark_kafka_native.kafka.errors import KafkaError
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write.commit_markers import ReplayError
from spark_kafka_native.spark.write.driver import many_transactions, resumable_write
from spark_kafka_native.spark.write.driver.resumable_write import (
    abort_resumable,
    begin_resumable,
    commit_resumable,
)
from spark_kafka_native.spark.write.driver.stream_commit import WriteCommitFailedError
from spark_kafka_native.spark.write.marker_store import GroupMarkers, MarkerTopic
from spark_kafka_native.spark.write.worker import transactional_task
from spark_kafka_native.spark.write.worker.transactional_task import write_resumable
from spark_kafka_native.spark.write.write_options import WriteOptions
from spark_kafka_native.spark.write.write_task import KafkaCommitMessage, RowColumns

pytestmark = pytest.mark.broker
PARTITIONS, ROWS, TASKS = 2, 24, 3
ROUNDS = int(os.environ.get("NAMED_WRITE_ROUNDS", "6"))
SEED = int(os.environ.get("NAMED_WRITE_SEED", "1"))
WRITE_ID = "nightly-2026-11-22"


class Crash(Exception):  # noqa: N818
    """The process dies here."""


def rows_of(task: int, tasks: int, word: bytes = b"row") -> list[pa.RecordBatch]:
    mine = [i for i in range(ROWS) if i % tasks == task]
    return [
        pa.record_batch(
            {
                "partition": pa.array([i % PARTITIONS for i in part], pa.int32()),
                "value": pa.array([b"%s %d" % (word, i) for i in part], pa.binary()),
            }
        )
        for part in (mine[:3], mine[3:])
    ]


def every(word: bytes = b"row") -> list[bytes]:
    return sorted(b"%s %d" % (word, i) for i in range(ROWS))


class Run:
    """One run of a write: what Spark does with it, without Spark."""

    def __init__(
        self, kafka: Any, target: str, *, word: bytes = b"row", tasks: int = TASKS, **given: str
    ) -> None:
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "topic": target,
            "deliveryGuarantee": "exactly-once",
            "transactionalIdPrefix": target,
            "transactionTimeout": "1m",
            "writeId": WRITE_ID,
            "kafka.retry.backoff.ms": "10",
            "kafka.linger.ms": "0",
        }
        self.options = WriteOptions.parse(OptionValues.parse(options | given, Scope.WRITE))
        once = self.options.exactly_once
        assert once is not None
        assert once.write_id is not None
        self.columns = RowColumns(names=("partition", "value"), topic=self.options.topic)
        self.word, self.tasks = word, tasks
        self.messages: list[KafkaCommitMessage] = []
        router = Router(self.options.client)
        try:
            self.job = begin_resumable(router, self.options, once, once.write_id)
        finally:
            router.close()

    def task(self, task: int, rows: Any = None) -> KafkaCommitMessage:
        given = rows_of(task, self.tasks, self.word) if rows is None else rows
        return write_resumable(self.job, iter(given), self.columns, self.options, task)

    def write(self) -> list[KafkaCommitMessage]:
        self.messages = [self.task(task) for task in range(self.tasks)]
        return self.messages

    def commit(self, messages: Any = None) -> None:
        commit_resumable(self.job, self.messages if messages is None else messages, self.options)

    def abort(self, messages: Any = None) -> None:
        abort_resumable(self.job, self.messages if messages is None else messages, self.options)

    def whole(self) -> list[int]:
        """Rows that its tasks have skipped."""
        skipped = [one.skipped for one in self.write()]
        self.commit()
        return skipped

    def killed_task(self, task: int) -> None:
        """Nothing is aborted, nothing said: the connections go, and the transaction stays open."""

        def cut_short() -> Iterator[pa.RecordBatch]:
            yield rows_of(task, self.tasks, self.word)[0]
            raise Crash

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transactional_task, "close_producer", partial(close_as_killed, timeout=10_000))
            with contextlib.suppress(Crash):
                self.task(task, cut_short())

    def killed_commit(self, at: Callable[[pytest.MonkeyPatch], None]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resumable_write, "close_producer", partial(close_as_killed, timeout=10_000))
            at(patch)
            with pytest.raises(Crash):
                self.commit()

    def open_transactions(self) -> list[str]:
        found = Admin(router_for(self.options.client)).list_transactions(states=["Ongoing"])
        return [
            one.transactional_id
            for one in found
            if one.transactional_id.startswith(self.job.transactional_id)
        ]


def in_the_intent(patch: pytest.MonkeyPatch) -> None:
    def commit(*_arguments: Any, **_named: Any) -> None:
        raise Crash

    patch.setattr(resumable_write.TransactionalProducer, "commit", commit)


def after_ends(count: int) -> Callable[[pytest.MonkeyPatch], None]:
    def at(patch: pytest.MonkeyPatch) -> None:
        original, ended = resumable_write._commit, iter(range(count))

        def commit(*arguments: Any) -> Any:
            if next(ended, None) is None:
                raise Crash
            return original(*arguments)

        patch.setattr(many_transactions, "AT_ONCE", 1)
        patch.setattr(resumable_write, "_commit", commit)

    return at


def before_the_note(patch: pytest.MonkeyPatch) -> None:
    def complete(*_arguments: Any) -> None:
        raise Crash

    patch.setattr(resumable_write._Intent, "complete", complete)


def seen(kafka: Any, topic: str) -> list[bytes]:
    """What another client's read_committed consumer sees now."""
    found = read_committed(kafka.bootstrap_servers, topic, PARTITIONS, timeout_s=90)
    return sorted(value for values in found.values() for value in values)


@pytest.fixture
def target(kafka: Any, topic: str) -> str:
    kafka.create_topic(topic, PARTITIONS)
    return topic


@pytest.fixture(params=["groups", "topic"])
def markers(request: pytest.FixtureRequest, kafka: Any, target: str) -> dict[str, str]:
    if request.param == "groups":
        return {}
    kafka.create_topic(f"{target}-markers", 1, config={"cleanup.policy": "compact"})
    return {"transactionMarkerTopic": f"{target}-markers"}


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "spark_kafka_native")
    return caplog


@pytest.mark.parametrize("version", [1, 2])
def test_many_tasks_write_and_a_second_run_writes_nothing(
    kafka: Any, target: str, markers: dict[str, str], version: int, monkeypatch: Any, told: Any
) -> None:
    config = partial(TransactionConfig, transaction_version=version)
    for module in (transactional_task, resumable_write):
        monkeypatch.setattr(module, "TransactionConfig", config)
    run = Run(kafka, target, **markers)
    run.write()
    assert seen(kafka, target) == []
    run.commit()
    assert seen(kafka, target) == every()  # at once, for every reader
    assert "nightly-2026-11-22 is complete; 0 of its 24 rows were committed before" in told.text
    told.clear()
    again = Run(kafka, target, **markers)
    assert "was completed by an earlier run" in told.text
    assert again.whole() == [8, 8, 8]
    assert all(one.transaction is None for one in again.messages)
    assert "all of its 24 rows were committed before: nothing was written" in told.text
    assert seen(kafka, target) == every()


@pytest.mark.parametrize(
    ("at", "skipped"),
    [(in_the_intent, 0), (after_ends(0), 0), (after_ends(1), 8), (after_ends(2), 16), (before_the_note, 24)],
)
def test_a_run_whose_driver_died_in_its_commit_is_finished_by_the_next(
    kafka: Any, target: str, markers: dict[str, str], at: Any, skipped: int
) -> None:
    run = Run(kafka, target, **markers)
    run.write()
    run.killed_commit(at)
    assert sum(Run(kafka, target, **markers).whole()) == skipped
    assert seen(kafka, target) == every()
    assert sum(Run(kafka, target, **markers).whole()) == ROWS


def test_a_run_that_died_before_its_commit_leaves_nothing_open_to_the_next(kafka: Any, target: str) -> None:
    run = Run(kafka, target, tasks=4)
    run.task(0)
    run.task(3)
    run.killed_task(1)
    assert len(run.open_transactions()) == 3
    following = Run(kafka, target)
    assert following.open_transactions() == []
    assert following.whole() == [0, 0, 0]
    assert seen(kafka, target) == every()


def test_attempts_that_died_half_way_or_ran_twice_count_once(kafka: Any, target: str) -> None:
    run = Run(kafka, target)
    run.killed_task(1)
    run.write()
    late = run.task(2)
    with pytest.raises(WriteCommitFailedError, match="1 of 3 transactions could not be committed"):
        run.commit()  # Spark counted the attempt that was fenced
    run.abort([*run.messages[:2], late])
    assert Run(kafka, target).whole() == [8, 8, 0]
    assert seen(kafka, target) == every()


def test_a_failed_job_ends_what_its_tasks_left(kafka: Any, target: str) -> None:
    run = Run(kafka, target)
    message = run.task(0)
    run.killed_task(1)
    assert len(run.open_transactions()) == 2
    run.abort([message, None, None])
    assert run.open_transactions() == []
    assert seen(kafka, target) == []


def test_a_commit_without_a_tasks_message_is_refused(kafka: Any, target: str) -> None:
    run = Run(kafka, target)
    run.write()
    with pytest.raises(WriteCommitFailedError, match="1 tasks have said nothing"):
        run.commit([*run.messages[:2], None])
    run.abort()
    assert seen(kafka, target) == []


def half_committed(kafka: Any, target: str, **given: Any) -> None:
    """Task 0 of three is."""
    run = Run(kafka, target, **given)
    run.write()
    run.killed_commit(after_ends(1))


def test_other_rows_of_a_committed_task_are_refused_by_the_task(
    kafka: Any, target: str, markers: dict[str, str]
) -> None:
    half_committed(kafka, target, **markers)
    run = Run(kafka, target, **markers)
    with pytest.raises(ReplayError, match=r"partition 0 .* has 7 rows .*writeId=nightly.* committed 8 "):
        run.task(0, [rows_of(0, TASKS)[0], rows_of(0, TASKS)[1].slice(1)])
    with pytest.raises(ReplayError, match="has committed 8"):
        run.task(0, rows_of(0, TASKS, b"other"))
    assert run.task(0, rows_of(0, TASKS)[::-1]).skipped == 8  # their order is no other rows


def test_other_rows_of_the_other_tasks_are_refused_by_the_driver(
    kafka: Any, target: str, markers: dict[str, str]
) -> None:
    half_committed(kafka, target, **markers)
    run = Run(kafka, target, **markers)
    messages = [run.task(0), run.task(1), run.task(2, rows_of(2, TASKS, b"other"))]
    with pytest.raises(ReplayError, match=r"this run has 24 rows in 3 tasks .* began to commit 24 rows in 3"):
        run.commit(messages)
    run.abort(messages)
    assert len(seen(kafka, target)) == 8
    assert Run(kafka, target, **markers).whole() == [8, 0, 0]
    assert seen(kafka, target) == every()


def test_a_driver_that_a_deposed_broker_told_of_no_intent_commits_nothing(
    kafka: Any, target: str, markers: dict[str, str]
) -> None:
    first = Run(kafka, target, **markers)
    first.write()
    first.killed_commit(after_ends(0))
    with pytest.MonkeyPatch.context() as patch:
        for store in (GroupMarkers, MarkerTopic):
            patch.setattr(store, "last", lambda *_: None)
        run = Run(kafka, target, word=b"other", **markers)
        run.write()
        with pytest.raises(WriteCommitFailedError, match="a broker answered that was deposed"):
            run.commit()
    run.abort()
    assert seen(kafka, target) == []
    Run(kafka, target, **markers).whole()
    assert seen(kafka, target) == every()


@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_another_number_of_tasks_is_refused(kafka: Any, target: str, tasks: int) -> None:
    half_committed(kafka, target)
    run = Run(kafka, target, tasks=tasks)
    messages = [run.task(0, rows_of(0, TASKS)), *(run.task(task, []) for task in range(1, tasks))]
    with pytest.raises(ReplayError, match=f"this run has 8 rows in {tasks} tasks"):
        run.commit(messages)
    run.abort(messages)
    assert len(seen(kafka, target)) == 8


def test_the_same_rows_for_another_topic_are_refused(kafka: Any, target: str) -> None:
    Run(kafka, target).whole()
    kafka.create_topic(f"{target}-2", PARTITIONS)
    run = Run(kafka, target, topic=f"{target}-2")
    run.write()
    with pytest.raises(ReplayError, match=f"for topic {target}-2 .* completed 24 rows in 3 tasks for topic"):
        run.commit()
    run.abort()
    assert seen(kafka, f"{target}-2") == []


def test_a_write_that_was_completed_with_other_rows_is_refused(kafka: Any, target: str) -> None:
    Run(kafka, target).whole()
    run = Run(kafka, target, word=b"next")
    with pytest.raises(ReplayError, match="if it is another write, give it another writeId"):
        run.task(0)
    with pytest.raises(ReplayError, match="this run has 0 rows in 1 tasks"):
        run.commit([run.task(7, [])])
    assert Run(kafka, target, word=b"next", writeId="nightly-2026-11-23").whole() == [0, 0, 0]
    assert seen(kafka, target) == sorted(every() + every(b"next"))


def test_an_intent_of_which_nothing_is_committed_binds_nobody(
    kafka: Any, target: str, markers: dict[str, str]
) -> None:
    first = Run(kafka, target, tasks=4, **markers)
    first.write()
    first.killed_commit(after_ends(0))
    second = Run(kafka, target, word=b"other", tasks=2, **markers)
    assert second.open_transactions() == []
    assert second.whole() == [0, 0]
    with pytest.raises(KafkaError):  # the first driver was only asleep
        first.commit()
    first.abort()
    assert seen(kafka, target) == every(b"other")


def test_a_driver_that_wakes_up_late_commits_nothing_of_its_own(kafka: Any, target: str) -> None:
    asleep = Run(kafka, target, tasks=4)
    asleep.write()
    Run(kafka, target, tasks=2).whole()
    with pytest.raises(ReplayError, match="this run has 24 rows in 4 tasks"):
        asleep.commit()
    asleep.abort()
    assert seen(kafka, target) == every()


def test_an_intent_binds_again_once_another_run_commits_the_same_rows(kafka: Any, target: str) -> None:
    first = Run(kafka, target)
    first.write()
    first.killed_commit(after_ends(0))
    # Neither finds anything of it committed; then one does it, and the other has fenced two of its tasks.
    other, same = Run(kafka, target, word=b"other", tasks=2), Run(kafka, target)
    same.write()
    other.write()
    with pytest.raises(WriteCommitFailedError, match="2 of 3 transactions could not be committed"):
        same.commit()
    with pytest.raises(ReplayError, match="began to commit 24 rows in 3 tasks"):
        other.commit()
    other.abort()
    same.abort()
    assert Run(kafka, target).whole() == [0, 0, 8]
    assert seen(kafka, target) == every()


def test_what_has_expired_is_written_again(kafka: Any, target: str) -> None:
    run = Run(kafka, target, transactionTimeout="1s")
    run.messages = [run.task(0)]
    run.tasks = 1
    deadline = time.monotonic() + 120
    while run.open_transactions():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(WriteCommitFailedError, match=r"longer .* than transactionTimeout \(1000 ms\)"):
        run.commit()
    run.abort()
    assert Run(kafka, target).whole() == [0, 0, 0]
    assert seen(kafka, target) == every()


@pytest.mark.parametrize(("complete", "gone"), [(True, "/1"), (True, ""), (False, "")])
def test_a_write_that_is_remembered_only_in_part_is_refused(
    kafka: Any, target: str, complete: bool, gone: str
) -> None:
    run = Run(kafka, target)
    run.write()
    if complete:
        run.commit()
    else:
        run.killed_commit(after_ends(1))
    before = seen(kafka, target)
    Admin(router_for(run.options.client)).delete_groups([f"{run.job.transactional_id}{gone}"])
    again = Run(kafka, target)
    again.write()
    with pytest.raises(ReplayError, match="its markers are there only in part"):
        again.commit()
    again.abort()
    assert seen(kafka, target) == before


def test_a_write_without_rows_is_remembered_by_nobody(kafka: Any, target: str) -> None:
    run = Run(kafka, target)
    run.commit([run.task(task, []) for task in range(TASKS)])
    assert Run(kafka, target).whole() == [0, 0, 0]
    assert seen(kafka, target) == every()


def test_rows_that_say_their_topic(kafka: Any, target: str) -> None:
    def begin() -> Run:
        run = Run(kafka, target)
        run.columns = RowColumns(names=("partition", "value", "topic"), topic=None)
        run.options = WriteOptions.parse(OptionValues.parse(given, Scope.WRITE))
        return run

    given = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "deliveryGuarantee": "exactly-once",
        "transactionalIdPrefix": target,
        "writeId": WRITE_ID,
    }
    kafka.create_topic(f"{target}-2", PARTITIONS)

    def rows(task: int) -> list[pa.RecordBatch]:
        names = [target, f"{target}-2"]
        return [
            one.append_column("topic", pa.array([names[i % 2] for i in range(one.num_rows)], pa.string()))
            for one in rows_of(task, TASKS)
        ]

    run = begin()
    run.messages = [run.task(task, rows(task)) for task in range(TASKS)]
    run.killed_commit(after_ends(2))
    again = begin()
    messages = [again.task(task, rows(task)) for task in range(TASKS)]
    assert [one.skipped for one in messages] == [8, 8, 0]
    again.commit(messages)
    assert sorted(seen(kafka, target) + seen(kafka, f"{target}-2")) == every()


WORDS = {"a": 3, "b": 2, "c": 4}
"""Rows that differ, and the number of tasks that write them."""
END, WRITE = resumable_write._commit, resumable_write._Intent._write


class Crossing:
    """Runs under one name, with steps in any order, also while one of them commits."""

    def __init__(self, begin: Callable[..., Run], name: str, rng: random.Random) -> None:
        self.begin, self.name, self.rng = begin, name, rng
        self.runs: list[Run] = []
        self.ends: Counter[str] = Counter()

    def another(self, letter: str) -> Run:
        word = f"{self.name}{letter}".encode()
        return self.begin(word=word, tasks=WORDS[letter], writeId=self.name)

    def go(self) -> None:
        """Until all have ended, and some more have begun meanwhile."""
        self.runs = [self.another(letter) for letter in self.rng.choices([*WORDS], k=3)]
        more = 2
        while self.runs:
            self.step()
            if more and self.rng.random() < 0.15:
                more -= 1
                self.runs.append(self.another(self.rng.choice([*WORDS])))

    def step(self) -> None:
        """Of one of them."""
        if not self.runs:
            return
        run = self.rng.choice(self.runs)
        try:
            if len(run.messages) < run.tasks:
                run.messages.append(run.task(len(run.messages)))
                return
            self.runs.remove(run)
            self._commit(run)
            self.ends["done"] += 1
        except (Crash, KafkaError) as error:
            self.ends[type(error).__name__] += 1
            self.runs = [one for one in self.runs if one is not run]
            if self.rng.random() < 0.5:
                run.abort([*run.messages, *[None] * (run.tasks - len(run.messages))])

    def _commit(self, run: Run) -> None:
        """Others go on before its intent and between its ends; it may die there."""

        def crossed(original: Any) -> Any:
            def called(*arguments: Any) -> Any:
                if self.rng.random() < 0.1:
                    raise Crash
                while self.rng.random() < 0.5:
                    with pytest.MonkeyPatch.context() as patch:
                        patch.setattr(resumable_write, "_commit", END)
                        patch.setattr(resumable_write._Intent, "_write", WRITE)
                        self.step()
                return original(*arguments)

            return called

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(many_transactions, "AT_ONCE", 1)
            patch.setattr(resumable_write, "_commit", crossed(END))
            patch.setattr(resumable_write._Intent, "_write", crossed(WRITE))
            run.commit()


def test_runs_that_differ_and_cross_each_other_never_mix(
    kafka: Any, target: str, markers: dict[str, str]
) -> None:
    rng = random.Random(SEED)
    rounds = [Crossing(partial(Run, kafka, target, **markers), f"{n}.", rng) for n in range(ROUNDS)]
    for one in rounds:
        one.go()
        one.another("a")  # its begin ends open transactions, and waits for those that are being committed
    ends = sum((one.ends for one in rounds), Counter[str]())
    found = Counter(value.split()[0].decode() for value in seen(kafka, target))
    for one in rounds:
        letters = [word[-1] for word in found if word[:-1] == one.name]
        assert len(letters) <= 1, (one.name, found, ends)
        one.another(*(letters or ["a"])).whole()
    words = Counter(seen(kafka, target))
    assert len(words) == ROUNDS * ROWS
    assert max(words.values()) == 1
    assert ends.keys() >= {"done", "ReplayError", "WriteCommitFailedError", "Crash"}, ends
