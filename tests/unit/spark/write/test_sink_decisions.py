"""What the exactly-once sink decides, without a broker: what markers and intents mean for the next commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, ConfigError, DeadlineExceededError, KafkaError
from spark_kafka_native.kafka.model import OffsetToCommit, TopicPartition
from spark_kafka_native.kafka.producer.errors import TransactionAbortableError, TransactionFatalError
from spark_kafka_native.kafka.producer.sending.transaction_requests import OpenTransaction
from spark_kafka_native.kafka.producer.stats import PartitionStats, ProducerStats
from spark_kafka_native.spark.write.commit_markers import BatchIntent, CommitMarker, ReplayError
from spark_kafka_native.spark.write.driver.atomic_write import how_to_find_out, is_definite, only_transaction
from spark_kafka_native.spark.write.driver.resumable_write import (
    describe_complete,
    describe_earlier,
    next_revision,
)
from spark_kafka_native.spark.write.driver.stream_commit import (
    WriteCommitFailedError,
    age_warning,
    check_uncommitted,
    find_unsettled,
)
from spark_kafka_native.spark.write.marker_store import check_cleanup_policy, is_by_another, replaced
from spark_kafka_native.spark.write.worker import transactional_task
from spark_kafka_native.spark.write.worker.transactional_task import (
    BatchTask,
    ResumableTask,
    RowDigest,
    check_same_rows,
    find_committed,
)
from spark_kafka_native.spark.write.worker.write_rows import WriteFailedError
from spark_kafka_native.spark.write.write_options import ExactlyOnce
from spark_kafka_native.spark.write.write_task import (
    AtomicWrite,
    KafkaCommitMessage,
    ResumableWrite,
    places_of,
    reports_of,
    task_numbers,
    transactions_of,
)

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
INTENT = BatchIntent(batch_id=7, tasks=3, hash=5)


def marker(batch_id: int, rows: int = 2, rows_hash: int = 9) -> CommitMarker:
    return CommitMarker(batch_id=batch_id, rows=rows, hash=rows_hash)


def open_transaction(task: int) -> OpenTransaction:
    return OpenTransaction(transactional_id=f"q-{task}", producer_id=task, producer_epoch=0, version=2)


def written(task: int, *, topic: str = "a", first_offset: int = 0, began_s: float | None = None) -> Any:
    rows = ((topic, 0, 1, 1, first_offset, first_offset),)
    return KafkaCommitMessage(
        1, 1, 1, 0, rows, open_transaction(task), "q", rows_hash=1, task=task, began_s=began_s
    )


def skipped(task: int, rows: int = 1) -> KafkaCommitMessage:
    return replace(KafkaCommitMessage.skipped_rows("q", rows, 1), task=task)


# What the markers of a task say about its rows.


@pytest.mark.parametrize(
    ("last", "batch_id", "is_committed"),
    [
        (None, 0, False),
        (0, 0, True),
        (0, 1, False),
        (3, 4, False),
        (3, 7, False),
        (7, 7, True),
        (7, 8, False),
    ],
)
def test_rows_are_committed_only_if_the_last_marker_is_that_of_their_batch(
    last: int | None, batch_id: int, is_committed: bool
) -> None:
    found = None if last is None else marker(last)
    task = BatchTask(query_id="q", batch_id=batch_id, partition=0)
    assert find_committed(found, task, "p-q-0") == (found if is_committed else None)


@pytest.mark.parametrize(("last", "batch_id"), [(7, 6), (7, 3), (1, 0)])
def test_a_batch_before_the_last_committed_one_is_refused(last: int, batch_id: int) -> None:
    task = BatchTask(query_id="q", batch_id=batch_id, partition=0)
    words = f"^micro-batch {batch_id} can't .* p-q-0 has committed micro-batch {last} already"
    with pytest.raises(ReplayError, match=words):
        find_committed(marker(last), task, "p-q-0")


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (None, None),
        (3, None),
        (6, None),
        (7, "p-q-0: micro-batch 7 has become committed while micro-batch 7 was written again"),
        (8, "p-q-0: micro-batch 8 has become committed while micro-batch 7 was written again"),
    ],
)
def test_a_marker_that_the_first_look_missed_ends_the_attempt(last: int | None, words: str | None) -> None:
    found = None if last is None else marker(last)
    task = BatchTask(query_id="q", batch_id=7, partition=0)
    if words is None:
        transactional_task.check_uncommitted(found, task, "p-q-0")
    else:
        with pytest.raises(WriteFailedError, match=words):
            transactional_task.check_uncommitted(found, task, "p-q-0")


def digest(rows: int, rows_hash: int) -> RowDigest:
    found = RowDigest()
    found.rows, found.hash = rows, rows_hash
    return found


@pytest.mark.parametrize(("rows", "rows_hash"), [(3, 9), (1, 9), (2, 8), (2, 0), (0, 0)])
def test_a_replay_has_as_many_rows_and_the_same(rows: int, rows_hash: int) -> None:
    stream = BatchTask(query_id="q", batch_id=7, partition=4)
    named = ResumableTask(write_id="nightly", job_name="jobs-write/nightly", partition=4)
    for task, words in (
        (stream, rf"^partition 4 of micro-batch 7 has {rows} rows .* and 2 \(hash 0000000000000009\) were"),
        (named, rf"^partition 4 of the DataFrame has {rows} rows .* writeId=nightly has committed 2 \(hash"),
    ):
        check_same_rows(marker(7), digest(2, 9), task)
        with pytest.raises(ReplayError, match=words):
            check_same_rows(marker(7), digest(rows, rows_hash), task)


def test_the_last_marker_of_a_group_is_that_of_its_last_batch() -> None:
    three, seven = marker(3), marker(7)
    for found in ({A: three.offset(), B: seven.offset()}, {A: seven.offset(), B: three.offset()}):
        assert CommitMarker.newest(found, "p-q-0") == seven
    assert CommitMarker.newest({A: three.offset()}, "p-q-0") == three
    assert CommitMarker.newest({}, "p-q-0") is None


@pytest.mark.parametrize(
    "metadata",
    [
        *("", "{}", "[]", "7", '{"rows": 1}', '{"rows": "x", "hash": "0"}'),
        *("[" * 5000, '{"rows": 1e999, "tasks": 1e999, "hash": "0"}'),
    ],
    ids=lambda text: text[:40],
)
def test_an_offset_that_is_no_marker_is_refused(metadata: str) -> None:
    found = {A: marker(7).offset(), B: OffsetToCommit(offset=3, metadata=metadata)}
    for kept in (CommitMarker, BatchIntent):
        with pytest.raises(ReplayError, match="group p-q-0 has an offset that is no commit marker"):
            kept.newest(found, "p-q-0")


def test_the_last_intent_is_the_last_change_of_the_last_batch() -> None:
    last = replace(INTENT, change=2)
    kept = [last, replace(INTENT, change=1, tasks=9), replace(INTENT, batch_id=6, change=8)]
    places = [TopicPartition(name, 0) for name in "abc"]
    for order in (kept, kept[::-1]):
        found = {tp: one.offset() for tp, one in zip(places, order, strict=True)}
        assert BatchIntent.newest(found, "q") == last
    assert BatchIntent.newest({}, "q") is None


# What the driver does before it commits.


@pytest.mark.parametrize(
    ("before", "reports", "ours", "others"),
    [
        (None, [written(0)], [], []),
        (BatchIntent(batch_id=6, tasks=9, hash=1), [written(0)], [], []),
        (INTENT, [written(0)], [], []),  # the same rows in the same tasks
        (replace(INTENT, hash=6), [written(2), written(0), written(1)], [0, 1, 2], []),
        (replace(INTENT, hash=6), [written(0), skipped(1), skipped(2, rows=0)], [0], [2]),
        (replace(INTENT, tasks=5), [written(0), skipped(1), written(2)], [0, 2], [3, 4]),
        (replace(INTENT, tasks=2), [written(0), written(1), written(2)], [0, 1, 2], []),
        (replace(INTENT, tasks=1), [skipped(0), skipped(1, rows=0)], [], [1, 2]),
    ],
)
def test_an_intent_with_other_rows_takes_the_place_of_one_whose_tasks_are_settled(
    before: BatchIntent | None, reports: Sequence[KafkaCommitMessage], ours: list[int], others: list[int]
) -> None:
    found = find_unsettled(before, INTENT, reports)
    assert list(found) == sorted(found)
    assert [task for task, report in found.items() if report is None] == others
    assert {task: report for task, report in found.items() if report is not None} == {
        one.task: one for one in reports if one.task in ours
    }


@pytest.mark.parametrize(
    ("topic", "reports", "stops"),
    [
        ("b", [skipped(0), skipped(1), skipped(2)], True),
        ("b", [skipped(0), written(1), written(2)], True),
        ("b", [written(0), written(1), written(2)], False),
        ("b", [skipped(0, rows=0), written(1), written(2)], False),
        ("", [skipped(0), skipped(1), skipped(2)], False),  # of an earlier version
        ("a", [skipped(0), skipped(1), skipped(2)], False),
    ],
)
def test_rows_that_are_in_another_topic_are_not_those_of_this_run(
    topic: str, reports: Sequence[KafkaCommitMessage], stops: bool
) -> None:
    before, intent = replace(INTENT, topic=topic), replace(INTENT, topic="a")
    if stops:
        with pytest.raises(ReplayError, match=r"committed to topic b, .* another transactionalIdPrefix"):
            find_unsettled(before, intent, reports)
    else:
        find_unsettled(before, intent, reports)


@pytest.mark.parametrize("before", [None, BatchIntent(batch_id=6, tasks=3, hash=5)])
@pytest.mark.parametrize(
    ("reports", "stops"),
    [
        ([skipped(0), written(1), written(2)], True),
        ([skipped(0), skipped(1), written(2)], True),
        ([skipped(0), skipped(1), skipped(2, rows=0)], False),
        ([skipped(0, rows=0), written(1), written(2)], False),
    ],
)
def test_nothing_is_added_to_a_batch_of_which_the_intent_is_forgotten(
    before: BatchIntent | None, reports: Sequence[KafkaCommitMessage], stops: bool
) -> None:
    """The markers of tasks that are written again may be forgotten, too."""
    if stops:
        with pytest.raises(ReplayError, match=r"some of its tasks are committed, and the intent .* expired"):
            find_unsettled(before, INTENT, reports)
    else:
        assert find_unsettled(before, INTENT, reports) == {}


@pytest.mark.parametrize("batch_id", [8, 12])
def test_an_intent_never_takes_the_place_of_that_of_a_later_batch(batch_id: int) -> None:
    words = f"^micro-batch 7 can't be committed: q has begun to commit micro-batch {batch_id}"
    with pytest.raises(ReplayError, match=words):
        find_unsettled(replace(INTENT, batch_id=batch_id), INTENT, [written(0)])


@pytest.mark.parametrize(
    ("last", "tasks", "words"),
    [
        (None, 3, None),
        (6, 3, None),
        (7, 3, "has 3 tasks, and before the restart it had 3 with other rows, of which q-2 is committed"),
        (7, 4, "has 3 tasks, and before the restart it had 4, of which q-2 is committed"),
    ],
)
def test_a_task_with_nothing_to_commit_has_committed_nothing_of_the_batch(
    last: int | None, tasks: int, words: str | None
) -> None:
    found, before = None if last is None else marker(last), replace(INTENT, tasks=tasks, hash=6)
    if words is None:
        check_uncommitted(found, "q-2", before, INTENT)
    else:
        with pytest.raises(ReplayError, match=words):
            check_uncommitted(found, "q-2", before, INTENT)


@pytest.mark.parametrize(
    ("reports", "seconds"),
    [
        ([written(0, began_s=970.0)], None),
        ([written(0, began_s=969.0)], 31),
        ([written(0, began_s=990.0), written(1, began_s=955.0), written(2, began_s=980.0)], 45),
        ([written(0, began_s=None), written(1, began_s=940.0)], 60),
        ([written(0, began_s=None)], None),
        ([replace(written(0, began_s=900.0), transaction=None)], None),
        ([], None),
    ],
)
def test_a_transaction_is_warned_of_after_half_of_its_timeout(
    reports: list[KafkaCommitMessage], seconds: int | None
) -> None:
    warning = age_warning(7, reports, 60_000, 1_000.0)
    if seconds is None:
        assert warning is None
    else:
        words = f"micro-batch 7: its first transaction was open for {seconds} of the 60 seconds that"
        assert warning is not None
        assert warning.startswith(words)


# What tasks report.


def test_only_tasks_that_ended_well_have_said_something() -> None:
    messages = [written(0), None, skipped(1), "another sink's"]
    assert reports_of(messages) == [written(0), skipped(1)]
    assert transactions_of(messages) == [open_transaction(0)]


def test_a_report_has_what_the_producer_counted() -> None:
    partitions = {
        A: PartitionStats(records=3, bytes=30, first_offset=0, last_offset=2),
        B: PartitionStats(records=1, bytes=10, first_offset=None, last_offset=None),
        TopicPartition("b", 1): PartitionStats(records=1, bytes=9, first_offset=0, last_offset=0),
    }
    stats = ProducerStats(
        records=4,
        bytes=40,
        batches=2,
        retries=5,
        skipped_records=6,
        dead_lettered_records=7,
        partitions=partitions,
    )
    report = KafkaCommitMessage.of(stats, open_transaction(0), "q", 9)
    assert (report.records, report.bytes, report.batches, report.retries) == (4, 40, 2, 5)
    assert (report.over_limit_skipped, report.over_limit_dead_lettered) == (6, 7)
    assert report.partitions == (
        ("a", 0, 3, 30, 0, 2),
        ("b", 0, 1, 10, -1, -1),
        ("b", 1, 1, 9, 0, 0),
    )
    assert (report.transaction, report.job, report.rows_hash) == (open_transaction(0), "q", 9)


def test_markers_are_kept_at_each_topic_that_was_written_to() -> None:
    assert places_of([written(0, topic="b"), written(1, topic="a")], "t") == [A, B]
    assert places_of([skipped(0)], "t") == [TopicPartition("t", 0)]
    assert places_of([skipped(0)], None) == []


def test_a_task_is_known_by_its_number_alone() -> None:
    mine = ["q-10", "q-0", "q-2"]
    others = [
        "q",
        "q-",
        "q-driver",
        "q-02",
        "q-1a",
        "q-a-1",
        "q-1/2",
        "qq-1",
        "q2-1",
        "q-+1",
        "q- 1",
        "q-\u0663",
    ]
    assert task_numbers([*others, *mine], "q-") == [0, 2, 10]
    assert task_numbers([], "q-") == []


# A write with a name.


def test_each_intent_of_a_write_has_a_revision_of_its_own() -> None:
    wanted = CommitMarker(batch_id=0, rows=8, hash=1, tasks=3)
    assert next_revision(None, wanted) == wanted
    assert next_revision(wanted, wanted) == replace(wanted, batch_id=1)
    assert next_revision(replace(wanted, batch_id=4, rows=9), wanted) == replace(wanted, batch_id=5)


def test_a_run_says_what_earlier_ones_have_committed() -> None:
    before = CommitMarker(batch_id=4, rows=9, hash=1, tasks=3)
    begun = describe_earlier("nightly", before, [marker(0), marker(0, rows=3)])
    assert "has committed 5 of its 9 rows in 2 of its 3 tasks: this run writes the rest" in begun
    complete = describe_earlier("nightly", replace(before, is_complete=True), [])
    assert "was completed by an earlier run: its 9 rows are compared" in complete


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        ([written(0), skipped(1, rows=4)], "4 of its 5 rows were committed before, and not written again"),
        ([skipped(0, rows=2), skipped(1, rows=4)], "all of its 6 rows were committed before: nothing was"),
        ([written(0)], "0 of its 1 rows were committed before"),
        ([skipped(0, rows=0)], "0 of its 0 rows were committed before"),
    ],
)
def test_a_complete_write_says_what_it_has_written_and_how_long_that_is_known(
    reports: list[KafkaCommitMessage], words: str
) -> None:
    run = ResumableWrite(write_id="nightly", transactional_id="jobs-write/nightly", void=None)
    once = ExactlyOnce(transactional_id_prefix="jobs", transaction_timeout_ms=60_000)
    line = describe_complete(run, reports, once)
    assert line.startswith("write nightly is complete; ")
    assert words in line
    assert "offsets.retention.minutes" in line
    assert "topic m are deleted" in describe_complete(run, reports, replace(once, marker_topic="m"))


# A write that is all or nothing.

JOB = AtomicWrite(transactional_id="jobs-batch", transaction_timeout_ms=60_000)


def test_only_one_task_of_an_atomic_write_has_a_transaction() -> None:
    empty = KafkaCommitMessage.skipped_rows("", 0)
    assert only_transaction(JOB, [written(0), empty]) == open_transaction(0)
    assert only_transaction(JOB, [empty, empty]) is None
    for messages, words in (
        ([written(0), written(1)], "2 tasks have a transaction, and 0 have said nothing"),
        ([written(0), None], "1 tasks have a transaction, and 1 have said nothing"),
        ([None], "0 tasks have a transaction, and 1 have said nothing"),
    ):
        with pytest.raises(WriteCommitFailedError, match=words):
            only_transaction(JOB, messages)


@pytest.mark.parametrize(
    ("error", "is_known"),
    [
        (TransactionAbortableError("aborted"), True),
        (TransactionFatalError("fenced"), True),
        (TransactionFatalError("fenced after the commit was asked for", possibly_committed=True), False),
        (DeadlineExceededError("no answer"), False),
        (KafkaError("anything"), False),
    ],
)
def test_a_commit_is_known_to_have_failed_only_if_the_coordinator_said_so(
    error: KafkaError, is_known: bool
) -> None:
    assert is_definite(error) is is_known


def test_a_commit_in_doubt_says_where_to_look() -> None:
    messages = [
        written(0, topic="b", first_offset=4),
        written(1, first_offset=8),
        written(2, first_offset=-1),
    ]
    words = how_to_find_out(open_transaction(0), messages)
    assert "describe --transactional-id q-0," in words
    assert "Or read a-0 from offset 8 with read_committed" in words
    assert "Or read" not in how_to_find_out(open_transaction(0), [written(0, first_offset=-1), None])
    assert "from offset 0 with" in how_to_find_out(open_transaction(0), [written(0)])


def wrapped(cause: KafkaError) -> KafkaError:
    error = TransactionFatalError("the transaction is over")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_another"),
    [
        (replaced("intent", None, INTENT), True),
        (wrapped(replaced("intent", None, INTENT)), True),
        (BrokerError(ErrorCode.PRODUCER_FENCED, "q-driver"), True),
        (wrapped(BrokerError(ErrorCode.INVALID_PRODUCER_EPOCH, "q-driver")), True),
        (wrapped(BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "q-driver")), False),
        (TransactionAbortableError("abort it"), False),
    ],
)
def test_another_driver_is_blamed_only_where_one_has_come_between(
    error: KafkaError, is_another: bool
) -> None:
    assert is_by_another(error) is is_another


# Where markers are kept.


@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete, compact", "", None])
def test_a_topic_that_deletes_keeps_no_markers(policy: str | None) -> None:
    check_cleanup_policy("m", "compact")
    with pytest.raises(ConfigError, match="topic m has cleanup"):
        check_cleanup_policy("m", policy)
