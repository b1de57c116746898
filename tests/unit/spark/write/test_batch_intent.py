"""What the driver keeps of the micro-batch that it is about to commit, and when two of these are one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spark_kafka_native.kafka.model import OffsetToCommit, TopicPartition
from spark_kafka_native.spark.write.commit_markers import BatchIntent, CommitMarker, ReplayError, is_marker

INTENT = BatchIntent(batch_id=7, tasks=3, hash=2**64 - 2, change=1)


def test_an_intent_is_kept_as_it_is() -> None:
    for one in (INTENT, replace(INTENT, topic="orders")):
        kept = one.offset()
        assert kept.offset == 7
        assert BatchIntent.from_json(kept.offset, json.loads(kept.metadata)) == one
    # As earlier versions have kept it.
    assert BatchIntent.from_json(7, {"tasks": 3}) == BatchIntent(batch_id=7, tasks=3)


def test_intents_are_alike_where_the_same_rows_are_in_the_same_tasks() -> None:
    assert INTENT.is_like(replace(INTENT, change=5))
    assert not INTENT.is_like(replace(INTENT, tasks=4))
    assert not INTENT.is_like(replace(INTENT, hash=0))
    assert not INTENT.is_like(replace(INTENT, topic="orders"))


@pytest.mark.parametrize(
    ("before", "change"),
    [(None, 0), (replace(INTENT, batch_id=6), 0), (INTENT, 2), (replace(INTENT, tasks=9, change=4), 5)],
)
def test_intents_of_one_micro_batch_are_counted(before: BatchIntent | None, change: int) -> None:
    assert replace(INTENT, change=9).follows(before) == replace(INTENT, change=change)


@pytest.mark.parametrize(
    ("metadata", "is_one"),
    [
        (INTENT.offset().metadata, True),
        (CommitMarker(batch_id=7, rows=3, hash=5).offset().metadata, True),
        (json.dumps({"range": "[0, 5)", "topic_id": None}), True),
        ("", False),
        ("{", False),
        ("[1]", False),
        ('{"rows": 3}', False),
        ('{"owner": "billing"}', False),
    ],
)
def test_a_marker_is_not_the_position_of_a_reader(metadata: str, is_one: bool) -> None:
    """Tools would show it as a group that hangs."""
    assert is_marker(OffsetToCommit(offset=7, metadata=metadata)) is is_one


@pytest.mark.parametrize("own", [CommitMarker(batch_id=7, rows=3, hash=5), INTENT])
@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "[1]",
        "7",
        "null",
        '{"hash": "5"}',
        '{"rows": "many", "tasks": "many", "hash": "5"}',
        '{"rows": null, "tasks": null, "hash": "5"}',
        '{"rows": 1e400, "tasks": 1e400, "hash": "5"}',
        '{"rows": 3, "tasks": 3, "hash": 5}',
        "[" * 100_000,
        '{"rows": ' * 100_000,
    ],
    ids=lambda text: text[:30],
)
def test_an_offset_that_another_program_has_left_in_the_group_is_said_to_be_one(
    own: CommitMarker | BatchIntent, metadata: str
) -> None:
    """Any other error would hide what to do."""
    offsets = {
        TopicPartition("t", 0): own.offset(),
        TopicPartition("t", 1): OffsetToCommit(offset=5, metadata=metadata),
    }
    with pytest.raises(ReplayError, match="group jobs-1 has an offset that is no commit marker"):
        type(own).newest(offsets, "jobs-1")
