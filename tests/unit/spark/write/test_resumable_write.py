"""`begin_resumable`: what an earlier run of a write may have left open is ended before the tasks run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafka_native.kafka.errors import UnsupportedVersionError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write.commit_markers import CommitMarker
from spark_kafka_native.spark.write.driver import many_transactions, resumable_write
from spark_kafka_native.spark.write.marker_store import FoundMarker
from spark_kafka_native.spark.write.write_options import WriteOptions
from spark_kafka_native.spark.write.write_task import ResumableWrite

GIVEN = {
    "kafka.bootstrap.servers": "a:1",
    "topic": "t",
    "deliveryGuarantee": "exactly-once",
    "transactionalIdPrefix": "jobs",
    "writeId": "nightly",
}
JOB = "jobs-write/nightly"
INTENT = CommitMarker(batch_id=4, rows=9, hash=1, tasks=3, topic="t")
MARKER = CommitMarker(batch_id=0, rows=3, hash=1)


def begin(
    patch: pytest.MonkeyPatch,
    before: CommitMarker | None,
    *,
    open_: list[str] | None = None,
    committed: tuple[int, ...] = (),
    needs_place: bool = True,
    not_renewed: tuple[str, ...] = (),
) -> tuple[list[str], ResumableWrite]:
    """The transactional ids that are fenced, and the run. ``open_``: None where no broker lists them."""
    fenced: list[str] = []
    renewed: list[str] = []
    checked: list[bool] = []
    done = {f"{JOB}/{task}" for task in committed}
    is_half_done = before is not None and not before.is_complete
    places = sorted({"t", before.topic or "t"} if before is not None and is_half_done else {"t"})

    def last(name: str, where: Sequence[TopicPartition], _deadline: Any) -> CommitMarker | None:
        if name == JOB:
            assert fenced == [JOB]  # else an intent might be committed after this look
            assert where == [TopicPartition("t", 0)]  # a pending first intent is waited for at its place only
            return before
        assert name in fenced
        return MARKER if name in done else None

    def listed(_deadline: Any, *, states: Any) -> list[Any]:
        assert set(states) == {"Ongoing", "PrepareCommit", "PrepareAbort"}
        if open_ is None:
            raise UnsupportedVersionError("ListTransactions: the broker is too old")
        return [SimpleNamespace(transactional_id=name) for name in open_]

    def take_over(name: str, where: Sequence[TopicPartition], _timeout_ms: int, deadline: Any) -> FoundMarker:
        if name == JOB:
            renewed.append(name)
            return FoundMarker(before, True)
        fenced.append(name)
        # Asked for no place, or another one, a coordinator leaves out a marker that is being committed.
        assert where == [TopicPartition(topic, 0) for topic in places]
        return FoundMarker(last(name, where, deadline), name not in not_renewed)

    markers = SimpleNamespace(
        check=lambda: checked.append(True), last=last, take_over=take_over, needs_place=needs_place
    )
    patch.setattr(resumable_write, "find_version", lambda *_: 2)
    patch.setattr(many_transactions, "find_coordinators", lambda *_: None)
    patch.setattr(resumable_write, "find_markers", lambda *_: markers)
    patch.setattr(resumable_write, "init_producer_id", lambda _router, name, *_: fenced.append(name))
    patch.setattr(resumable_write, "Admin", lambda _router: SimpleNamespace(list_transactions=listed))
    options = WriteOptions.parse(OptionValues.parse(GIVEN, Scope.WRITE))
    assert options.exactly_once is not None
    router: Any = SimpleNamespace(deadline=lambda _ms: None)
    run = resumable_write.begin_resumable(router, options, options.exactly_once, "nightly")
    assert run.transactional_id == JOB
    assert renewed == [JOB] * (is_half_done and not not_renewed)  # no marker expires before the intent
    assert checked  # else a topic that loses markers is refused by the tasks only
    return sorted(fenced), run


def test_all_tasks_of_an_intent_that_is_not_complete_are_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [f"{JOB}/{task}" for task in range(3)]
    fenced, run = begin(monkeypatch, INTENT)
    assert fenced == [JOB, *tasks]
    assert run.void == 4  # nothing of it is committed, and nothing can be any more
    fenced, run = begin(monkeypatch, INTENT, committed=(1,))
    assert fenced == [JOB, *tasks]
    assert run.void is None
    begin(monkeypatch, INTENT, committed=(1,), not_renewed=(tasks[1],))
    fenced, run = begin(monkeypatch, replace(INTENT, topic="s"))
    assert (fenced, run.void) == ([JOB, *tasks], 4)


def test_a_transaction_that_is_open_beside_those_of_an_intent_is_none_of_its_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the order of names 10 comes before 2."""
    fenced, run = begin(monkeypatch, INTENT, open_=[f"{JOB}/10"], committed=(2,))
    assert fenced == [JOB, *(f"{JOB}/{task}" for task in (0, 1, 10, 2))]
    assert run.void is None
    _, run = begin(monkeypatch, INTENT, open_=[f"{JOB}/10"], committed=(10,))
    assert run.void == 4


@pytest.mark.parametrize(("needs_place", "void"), [(True, None), (False, 4)])
def test_an_intent_is_not_void_where_a_marker_may_be_pending_at_an_unknown_place(
    monkeypatch: pytest.MonkeyPatch, needs_place: bool, void: int | None
) -> None:
    """Rows that say their topic: a marker of a task that has just been committed may not be seen yet."""
    fenced, run = begin(monkeypatch, replace(INTENT, topic=""), needs_place=needs_place)
    assert fenced == [JOB, *(f"{JOB}/{task}" for task in range(3))]
    assert run.void == void


def test_tasks_of_a_write_that_is_complete_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = CommitMarker(batch_id=5, rows=9, hash=1, tasks=3, topic="t", is_complete=True)
    for open_ in (None, []):
        fenced, run = begin(monkeypatch, complete, open_=open_, committed=(0, 1, 2))
        assert fenced == [JOB]
        assert run.void is None


@pytest.mark.parametrize(
    ("before", "committed", "line"),
    [
        (replace(INTENT, is_complete=True), (), "was completed by an earlier run: its 9 rows"),
        (INTENT, (1,), "committed 3 of its 9 rows in 1 of its 3 tasks"),
        (INTENT, (), None),
        (None, (), None),
    ],
)
def test_a_user_hears_what_an_earlier_run_has_committed(
    monkeypatch: pytest.MonkeyPatch, before: CommitMarker | None, committed: tuple[int, ...], line: str | None
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(resumable_write, "inform", lines.append)
    begin(monkeypatch, before, committed=committed)
    assert len(lines) == (line is not None)
    assert line is None or line in lines[0]


def test_what_is_open_of_the_write_is_ended_and_nothing_of_other_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = [f"{JOB}/0", f"{JOB}/12"]
    others = [
        JOB,
        f"{JOB}/",
        f"{JOB}2/0",
        f"{JOB}-2/0",
        f"other-{JOB}/0",
        "jobs-write/night/0",
        "jobs-0",
        "7",
        # Of another application, or of another prefix: jobs-write/nightly/1-write/daily
        f"{JOB}/1-write/daily",
        f"{JOB}/1-write/daily/0",
        f"{JOB}/x",
        f"{JOB}/0/1",
        f"{JOB}/+1",
    ]
    fenced, run = begin(monkeypatch, None, open_=[*others, *mine])
    assert fenced == [JOB, *mine]
    assert run.void is None


@pytest.mark.parametrize(
    ("topic", "ends"),
    [
        ("t", "running it again settles that, too"),
        ("", "settles that, too, with transactionMarkerTopic only, as the rows name their topics"),
    ],
)
def test_a_refusal_of_other_rows_says_when_to_run_it_again(topic: str, ends: str) -> None:
    before = replace(INTENT, topic=topic)
    said = resumable_write.refusal(before, replace(before, rows=8), [], None)
    assert said is not None
    assert said.endswith(ends)
