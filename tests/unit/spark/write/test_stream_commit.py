"""What the driver of a micro-batch decides before it commits anything, and what it aborts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafka_native.kafka.errors import UnsupportedVersionError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.sending.transaction_requests import OpenTransaction
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write.commit_markers import BatchIntent, CommitMarker, ReplayError
from spark_kafka_native.spark.write.driver import many_transactions, stream_commit
from spark_kafka_native.spark.write.marker_store import FoundMarker
from spark_kafka_native.spark.write.write_options import WriteOptions
from spark_kafka_native.spark.write.write_task import KafkaCommitMessage, hash_of_tasks, written_topics

OPTIONS = WriteOptions.parse(
    OptionValues.parse(
        {"kafka.bootstrap.servers": "a:1", "topic": "t", "deliveryGuarantee": "exactly-once"}, Scope.WRITE
    )
)


def written(task: int, rows_hash: int = 1) -> KafkaCommitMessage:
    open_ = OpenTransaction(transactional_id=f"q-{task}", producer_id=1, producer_epoch=0, version=2)
    rows = (("t", 0, 1, 1, 0, 0),)
    return KafkaCommitMessage(1, 1, 1, 0, rows, open_, "q", rows_hash=rows_hash, task=task)


def skipped(task: int) -> KafkaCommitMessage:
    return replace(KafkaCommitMessage.skipped_rows("q", 1, 1), task=task)


def empty(task: int) -> KafkaCommitMessage:
    return replace(KafkaCommitMessage.skipped_rows("q", 0), task=task)


class Cluster:
    """The requests, and the commits."""

    def __init__(
        self, patch: pytest.MonkeyPatch, before: BatchIntent | None, committed: Sequence[int]
    ) -> None:
        self.checked: list[str] = []
        self.fenced: list[str] = []
        self.looked_at: list[set[str]] = []
        self.committed: list[str] = []
        self.kept: list[BatchIntent] = []
        self.renewed: list[BatchIntent] = []
        self.places: list[TopicPartition] = []
        self._before = before
        names = {f"q-{task}" for task in committed}
        marker = CommitMarker(batch_id=7, rows=1, hash=1)
        intents = SimpleNamespace(
            last=self._last,
            replace=lambda _before, intent, _where: self.kept.append(intent),
            renew=self.renewed.append,
            close=lambda: None,
        )
        markers = SimpleNamespace(
            needs_place=False,
            take_intents=lambda *_: intents,
            take_over=lambda name, where, *_: FoundMarker(
                [self._take_over(name, where), marker if name in names else None][1], True
            ),
            last=lambda name, *_: marker if name in names else None,
        )
        router = SimpleNamespace(deadline=lambda _ms: None)
        patch.setattr(stream_commit, "router_for", lambda _config: router)
        patch.setattr(stream_commit, "check_written_topics", lambda *_: None)
        patch.setattr(many_transactions, "find_coordinators", lambda *_: None)
        patch.setattr(stream_commit, "find_markers", lambda *_: markers)
        patch.setattr(stream_commit, "add_partitions", lambda _r, one, *_: self._check(one))
        patch.setattr(stream_commit, "end_transaction", lambda _r, one, **_: self._end(one))

    def _last(self, where: Sequence[TopicPartition]) -> BatchIntent | None:
        self.places.extend(where)
        return self._before

    def _take_over(self, name: str, where: Sequence[TopicPartition]) -> None:
        self.fenced.append(name)
        self.looked_at.append({tp.topic for tp in where})

    def _check(self, one: OpenTransaction) -> None:
        self.checked.append(one.transactional_id)

    def _end(self, one: OpenTransaction) -> None:
        assert self.kept
        self.committed.append(one.transactional_id)

    def commit(self, messages: Sequence[KafkaCommitMessage]) -> None:
        assert OPTIONS.exactly_once is not None
        stream_commit.commit_transactions(messages, 7, OPTIONS, OPTIONS.exactly_once, is_first=False)


TWO = [written(0), written(1, 2)]
INTENT = BatchIntent(batch_id=7, tasks=2, hash=hash_of_tasks(TWO), topic="t", change=3)


@pytest.mark.parametrize(
    ("before", "messages", "checked", "fenced"),
    [
        (None, TWO, [], []),
        (replace(INTENT, batch_id=6, tasks=9), TWO, [], []),
        (INTENT, TWO, [], []),
        (INTENT, [skipped(0), written(1, 2)], [], []),
        (INTENT, TWO[::-1], ["q-0", "q-1"], []),
        # An earlier version has not said which rows these were, nor where they went.
        (replace(INTENT, hash=0), TWO, ["q-0", "q-1"], []),
        (replace(INTENT, topic=""), TWO, ["q-0", "q-1"], []),
        (replace(INTENT, topic=""), [skipped(0), written(1, 2)], ["q-1"], []),
        (replace(INTENT, topic="u"), TWO, ["q-0", "q-1"], []),
        (replace(INTENT, tasks=4), [skipped(0), written(1, 2)], ["q-1"], ["q-2", "q-3"]),
        (INTENT, [*TWO, empty(2), written(3)], ["q-0", "q-1", "q-3"], ["q-2"]),
    ],
)
def test_who_is_asked_before_an_intent_is_replaced(
    monkeypatch: pytest.MonkeyPatch, before: Any, messages: Any, checked: list[str], fenced: list[str]
) -> None:
    cluster = Cluster(monkeypatch, before, [])
    cluster.commit(messages)
    assert (sorted(cluster.checked), sorted(cluster.fenced)) == (checked, fenced)
    assert sorted(cluster.committed) == sorted(f"q-{one.task}" for one in messages if one.transaction)
    same = before is not None and before.batch_id == 7
    wanted = replace(INTENT, tasks=len(messages), hash=hash_of_tasks(messages), change=4 * same)
    assert cluster.kept == [wanted]


def test_the_last_intent_is_waited_for_at_a_topic_that_was_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked for no place, a coordinator leaves out an intent that is being committed."""
    cluster = Cluster(monkeypatch, INTENT, [])
    elsewhere = replace(written(0), partitions=(("a", 3, 1, 1, 0, 0), ("b", 0, 1, 1, 0, 0)))
    cluster.commit(TWO)
    cluster.commit([elsewhere])
    cluster.commit([skipped(0)])
    assert cluster.places == [TopicPartition(topic, 0) for topic in ("t", "a", "b", "t")]
    assert len(cluster.kept) == 2  # there is none of a replay that has nothing to commit


def test_markers_of_tasks_are_also_waited_for_at_the_topic_of_the_run_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked for another place, a coordinator leaves out one that is being committed there."""
    cluster = Cluster(monkeypatch, replace(INTENT, topic="u", tasks=4), [])
    cluster.commit(TWO)
    assert sorted(cluster.fenced) == ["q-2", "q-3"]
    assert cluster.looked_at == [{"t", "u"}] * 2


@pytest.mark.parametrize(
    ("before", "messages", "committed", "words"),
    [
        (replace(INTENT, batch_id=8), TWO, [], "has begun to commit micro-batch 8"),
        (replace(INTENT, tasks=4), TWO, [3], "has 2 tasks, and before the restart it had 4, of which q-3 is"),
        (INTENT, [*TWO, empty(2), written(3)], [2], "had 2, of which q-2 is committed"),
        (INTENT, [empty(0), written(1)], [0], "it had 2 with other rows, of which q-0 is committed"),
    ],
)
def test_nothing_is_committed_where_an_intent_cannot_be_replaced(
    monkeypatch: pytest.MonkeyPatch, before: Any, messages: Any, committed: list[int], words: str
) -> None:
    cluster = Cluster(monkeypatch, before, committed)
    with pytest.raises(ReplayError, match=words):
        cluster.commit(messages)
    assert not cluster.committed
    assert not cluster.kept


def test_a_marker_topic_counts_as_written_to_by_transactions_only() -> None:
    """A run without any has nothing to commit, and need not fail where that topic is gone."""
    assert written_topics([skipped(0), empty(1)], "m") == {}
    assert written_topics([skipped(0), written(1)], "m") == {"t": set(), "m": set()}
    assert written_topics([written(1)]) == {"t": set()}


@pytest.mark.parametrize(("messages", "ended"), [(TWO, []), ([*TWO, None], [("q", 0, 3)]), ([None], [])])
def test_an_abort_ends_what_is_left_only_where_a_task_has_said_nothing(
    monkeypatch: pytest.MonkeyPatch, messages: Any, ended: list[Any]
) -> None:
    found: list[Any] = []

    def end(_router: Any, job: str, _once: Any, *, tasks: int, known: int) -> None:
        found.append((job, tasks, known))

    cluster = Cluster(monkeypatch, None, [])
    cluster.kept.append(INTENT)
    monkeypatch.setattr(stream_commit, "abort_abandoned", end)
    stream_commit.abort_transactions(messages, OPTIONS)
    assert found == ended


@pytest.mark.parametrize("is_listed", [True, False])
def test_only_tasks_of_the_same_query_that_no_task_takes_over_are_ended(
    monkeypatch: pytest.MonkeyPatch, is_listed: bool
) -> None:
    there = ["q-0", "q-2", "q-3", "q-driver", "qq-4", "q-a-5", "q", "q-", "q-6/7", "q2-8"]

    def listed(_deadline: Any, *, states: Any) -> list[Any]:
        assert states == ["Ongoing"]
        if not is_listed:
            raise UnsupportedVersionError("ListTransactions: the broker is too old")
        return [SimpleNamespace(transactional_id=name) for name in there]

    ended: list[str] = []
    monkeypatch.setattr(
        "spark_kafka_native.kafka.admin.Admin", lambda _router: SimpleNamespace(list_transactions=listed)
    )
    monkeypatch.setattr(stream_commit, "init_producer_id", lambda _r, name, *_: ended.append(name))
    monkeypatch.setattr(many_transactions, "find_coordinators", lambda *_: None)
    router: Any = SimpleNamespace(deadline=lambda _ms: None)
    stream_commit.abort_abandoned(router, "q", OPTIONS.exactly_once, tasks=2, known=5)
    assert sorted(ended) == (["q-2", "q-3"] if is_listed else ["q-2", "q-3", "q-4"])
