"""A run of a write with a writeId may be committed or not, given the intent of an earlier one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_native.kafka.producer.sending.transaction_requests import OpenTransaction
from spark_kafka_native.spark.write.commit_markers import CommitMarker
from spark_kafka_native.spark.write.driver.resumable_write import intent_of, refusal
from spark_kafka_native.spark.write.write_task import KafkaCommitMessage

OPEN = OpenTransaction(transactional_id="x", producer_id=1, producer_epoch=0, version=2)


def written(rows: int, rows_hash: int) -> KafkaCommitMessage:
    return KafkaCommitMessage(rows, 0, 0, 0, (), OPEN if rows else None, "x", rows_hash=rows_hash)


def skipped(rows: int, rows_hash: int) -> KafkaCommitMessage:
    return KafkaCommitMessage.skipped_rows("x", rows, rows_hash)


ALL = [written(3, 7), written(0, 0), written(5, 8)]
INTENT = replace(intent_of(ALL, "t"), batch_id=4)


def test_an_intent_is_that_of_all_tasks_in_order_whether_written_or_skipped() -> None:
    intent = intent_of(ALL, "t")
    assert (intent.tasks, intent.rows, intent.topic) == (3, 8, "t")
    assert intent_of([skipped(3, 7), written(0, 0), written(5, 8)], "t") == intent
    others = [
        ALL[::-1],
        ALL[:1] + ALL[2:],
        [*ALL, written(0, 0)],
        [written(3, 7), written(0, 0), written(5, 9)],
        [written(4, 7), written(0, 0), written(4, 8)],
    ]
    assert len({intent_of(one, "t") for one in others} | {intent}) == len(others) + 1
    assert intent_of(ALL, None).topic == ""


def test_an_intent_is_kept_as_a_marker() -> None:
    for marker in (
        INTENT,
        replace(INTENT, is_complete=True),
        CommitMarker(batch_id=0, rows=1, hash=2**64 - 1),
    ):
        assert CommitMarker.from_json(marker.batch_id, marker.to_json()) == marker
    # As those of streams have been kept before there were names.
    assert CommitMarker(batch_id=0, rows=1, hash=2).to_json() == {"rows": 1, "hash": "0000000000000002"}


@pytest.mark.parametrize(
    ("before", "messages", "void", "words"),
    [
        (None, ALL, None, None),
        (None, [skipped(3, 7), written(0, 0), written(5, 8)], None, "those of the whole write have expired"),
        (INTENT, ALL, None, None),
        (INTENT, ALL, 4, None),
        (INTENT, [skipped(3, 7), written(0, 0), written(5, 8)], None, None),
        (INTENT, [skipped(3, 7), written(0, 0), skipped(5, 8)], None, None),
        (replace(INTENT, is_complete=True), [skipped(3, 7), written(0, 0), skipped(5, 8)], None, None),
        (replace(INTENT, is_complete=True), ALL, None, "those of some tasks have expired"),
        (
            replace(INTENT, is_complete=True),
            [skipped(3, 7), written(0, 0), written(5, 8)],
            None,
            "those of some tasks have expired",
        ),
        (
            INTENT,
            ALL[:2],
            None,
            "3 rows in 2 tasks for topic t .* began to commit 8 rows in 3 tasks for topic t",
        ),
        # As many rows in as many tasks, but others in one of which nothing is committed.
        (INTENT, [skipped(3, 7), written(0, 0), written(5, 9)], None, "began to commit 8 rows in 3 tasks"),
        (replace(INTENT, topic="u"), ALL, None, "for topic t .* for topic u"),
        (replace(INTENT, topic=""), ALL, None, r"8 rows in 3 tasks \(hash"),
        (replace(INTENT, is_complete=True), ALL[:2], None, "completed 8 rows in 3 tasks"),
        (INTENT, [written(0, 0)], None, "this run has 0 rows in 1 tasks"),
        # Nothing of it is committed, and nothing will be.
        (INTENT, ALL[:2], 4, None),
        # But of another one it may be.
        (INTENT, ALL[:2], 3, "began to commit 8 rows"),
        (INTENT, [skipped(3, 7), written(0, 0)], 4, "began to commit 8 rows"),
    ],
)
def test_what_may_be_committed(
    before: CommitMarker | None, messages: list[KafkaCommitMessage], void: int | None, words: str | None
) -> None:
    why = refusal(before, intent_of(messages, "t"), messages, void)
    if words is None:
        assert why is None
    else:
        with pytest.raises(ValueError, match=words):
            raise ValueError(why)
