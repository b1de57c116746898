"""Two drivers on one checkpoint, with different numbers of tasks: whichever of them stands still, and where,
no row is written twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.exactly_once.transactional_sink import PARTITIONS, Crash, Sink, complaints, read

from spark_kafka_native.spark.write import marker_store
from spark_kafka_native.spark.write.commit_markers import ReplayError
from spark_kafka_native.spark.write.driver import stream_commit
from spark_kafka_native.spark.write.driver.stream_commit import WriteCommitFailedError, abort_transactions

pytestmark = pytest.mark.broker
MARKERS = pytest.mark.parametrize("markers", ["groups", "topic"])


@pytest.fixture
def target(kafka: Any, topic: str) -> str:
    kafka.create_topic(topic, PARTITIONS)
    return topic


@contextlib.contextmanager
def meanwhile(owner: Any, name: str, happens: Callable[[], Any]) -> Iterator[None]:
    """A driver stands still before it calls ``name`` for the first time; this happens, then it goes on."""
    original, left = getattr(owner, name), [happens]

    def called(*arguments: Any, **named: Any) -> Any:
        if left:
            left.pop()()
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, called)
        yield


def refuse(sink: Sink, messages: list[Any], words: str) -> None:
    """The commit raises, and Spark aborts."""
    with pytest.raises((WriteCommitFailedError, ReplayError), match=words):
        sink.commit(messages, 0)
    abort_transactions(messages, sink.options)


def wrong(kafka: Any, sink: Sink, tasks: int) -> list[str]:
    """Lost and doubled records; the order of rows is that of other tasks. ``tasks``: of the replay that ends
    a commit that is still open."""
    assert all(one.skipped for one in sink.run_tasks(0, tasks=tasks))
    return [one for one in complaints(read(kafka, sink.topic), 1) if "reordered" not in one]


@MARKERS
@pytest.mark.parametrize(("first", "second"), [(4, 2), (2, 4)])
def test_a_driver_that_wakes_after_another_has_committed_commits_nothing(
    kafka: Any, target: str, markers: str, first: int, second: int
) -> None:
    sink = Sink(kafka, target, markers=markers)
    messages = sink.run_tasks(0, tasks=first)
    sink.commit(sink.run_tasks(0, tasks=second), 0)
    refuse(sink, messages, "committed")
    assert not wrong(kafka, sink, second)


@MARKERS
@pytest.mark.parametrize(("first", "second"), [(4, 2), (2, 4)])
def test_a_driver_that_stood_still_after_it_read_the_intent_commits_nothing(
    kafka: Any, target: str, markers: str, first: int, second: int
) -> None:
    sink = Sink(kafka, target, markers=markers)
    messages = sink.run_tasks(0, tasks=first)
    intents = marker_store.GroupIntents if markers == "groups" else marker_store.TopicIntents
    with meanwhile(intents, "replace", lambda: sink.commit(sink.run_tasks(0, tasks=second), 0)):
        refuse(sink, messages, "Another driver of the same query")
    assert not wrong(kafka, sink, second)


@MARKERS
@pytest.mark.parametrize(("first", "second"), [(4, 2), (2, 4)])
def test_a_driver_that_stood_still_after_it_wrote_its_intent_commits_nothing(
    kafka: Any, target: str, markers: str, first: int, second: int
) -> None:
    sink = Sink(kafka, target, markers=markers)
    messages = sink.run_tasks(0, tasks=first)
    other = lambda: sink.commit(sink.run_tasks(0, tasks=second), 0)  # noqa: E731
    with meanwhile(stream_commit, "_end_all", other):
        refuse(sink, messages, f"{first} of {first} transactions could not be committed")
    assert not wrong(kafka, sink, second)


def test_a_driver_whose_tasks_another_one_took_over_does_not_commit_the_rest(kafka: Any, target: str) -> None:
    # Its own tasks 2 and 3 are still open, and the other one's tasks 0 and 1 have all rows.
    sink = Sink(kafka, target)
    messages = sink.run_tasks(0, tasks=4)
    other = sink.run_tasks(0, tasks=2)

    grow = lambda: refuse(sink, messages, "this driver has committed nothing")  # noqa: E731
    with meanwhile(stream_commit, "_end_all", grow):
        sink.commit(other, 0)
    assert not wrong(kafka, sink, 2)


def test_a_task_without_rows_of_one_driver_may_have_some_of_the_other(kafka: Any, target: str) -> None:
    sink = Sink(kafka, target)
    empty = [sink.run_task(0, task, []) for task in range(2)]
    rest = [sink.run_task(0, 2 + task, sink.rows(0, task, 2)) for task in range(2)]
    sink.commit(sink.run_tasks(0, tasks=2), 0)
    refuse(sink, [*empty, *rest], f"it had 2, of which pykafka-{target}-0 is committed")
    assert not wrong(kafka, sink, 2)


@MARKERS
def test_more_tasks_than_before_write_what_nobody_has_committed(
    kafka: Any, target: str, markers: str
) -> None:
    sink = Sink(kafka, target, markers=markers)
    sink.die_in_commit(sink.run_tasks(0, tasks=2), 0, [])
    sink.commit(sink.run_tasks(0, tasks=4), 0)
    assert not wrong(kafka, sink, 4)


def test_of_more_tasks_one_that_has_the_rows_it_had_is_left_out(kafka: Any, target: str) -> None:
    sink = Sink(kafka, target)
    # Of three tasks' rows two tasks have these; the second of them is not committed.
    messages = [sink.run_task(0, 0), sink.run_task(0, 1, [*sink.rows(0, 1), *sink.rows(0, 2)])]
    sink.die_in_commit(messages, 0, messages[:1])
    more = sink.run_tasks(0)
    assert [bool(one.skipped) for one in more] == [True, False, False]
    sink.commit(more, 0)
    assert not wrong(kafka, sink, 3)


def test_a_crash_between_the_intent_and_the_end_of_its_transaction_is_harmless(
    kafka: Any, target: str
) -> None:
    sink = Sink(kafka, target)

    def dies(*_arguments: Any, **_named: Any) -> Any:
        raise Crash

    messages = sink.run_tasks(0, tasks=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marker_store, "end_transaction", dies)
        with pytest.raises(Crash):
            sink.commit(messages, 0)
    sink.commit(sink.run_tasks(0, tasks=2), 0)  # and ends what tasks 2 and 3 have left
    assert not wrong(kafka, sink, 2)


@MARKERS
def test_as_many_tasks_with_other_rows_are_another_intent(kafka: Any, target: str, markers: str) -> None:
    # An old driver that still lives, and a new version of its query that puts the rows into other tasks.
    sink = Sink(kafka, target, markers=markers)
    others = lambda task: sink.run_task(0, task, sink.rows(0, (task + 1) % 3))  # noqa: E731
    first = [sink.run_task(0, task) for task in range(2)]
    second = [others(task) for task in range(3)]
    first.append(sink.run_task(0, 2))
    refuse(sink, first, "2 of 3 transactions could not be committed")
    refuse(sink, second, "this driver has committed nothing")
    sink.commit(sink.run_tasks(0), 0)
    assert not wrong(kafka, sink, 3)
