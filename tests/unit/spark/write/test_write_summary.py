"""The file of ``summaryPath``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.stats import PartitionStats, ProducerStats
from spark_kafka_native.spark.write.driver.write_summary import WriteSummary
from spark_kafka_native.spark.write.write_task import KafkaCommitMessage


def test_a_summary_that_can_not_be_put_in_its_place_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "replace", refuse)
    target = tmp_path / "summary.json"
    WriteSummary.of([]).save(str(target))
    assert "could not be written" in caplog.text
    assert list(tmp_path.iterdir()) == []
    target.write_text("of an earlier write")
    WriteSummary.of([]).save(str(target))
    assert target.read_text() == "of an earlier write"
    assert list(tmp_path.iterdir()) == [target]


def test_the_folder_of_a_summary_is_created(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "today" / "summary.json"
    for batch_id in (1, 2):  # the second one takes the place of the first
        WriteSummary.of([]).save(str(target), batchId=batch_id)
        assert json.loads(target.read_text())["batchId"] == batch_id
    assert list(target.parent.iterdir()) == [target]


def test_a_partition_of_several_tasks_is_added_up() -> None:
    rows = (
        *(("t", 0, 3, 30, 7, 9), ("t", 0, 2, 21, 4, 12), ("t", 0, 1, 10, -1, -1)),
        ("t", 1, 1, 5, -1, -1),
        *(("t", 2, 2, 20, 3, 4), ("t", 2, 3, 30, 0, 2)),
    )
    messages = [
        KafkaCommitMessage(records=0, bytes=0, batches=0, retries=0, partitions=(row,)) for row in rows
    ]
    found = WriteSummary.of([*messages, None])
    assert found.partitions == (("t", 0, 6, 61, 4, 12), ("t", 1, 1, 5, -1, -1), ("t", 2, 5, 50, 0, 4))
    assert found.tasks == 6


def test_rows_over_a_limit_are_counted_by_what_became_of_them() -> None:
    message = KafkaCommitMessage(
        records=3,
        bytes=30,
        batches=1,
        retries=0,
        partitions=(),
        over_limit_skipped=1,
        over_limit_dead_lettered=2,
    )
    found = WriteSummary.of([message, message])
    assert (found.as_json()["skippedRecords"], found.as_json()["deadLetteredRecords"]) == (2, 4)
    assert "2 rows are left out, as they are over a limit; 4 rows are over a limit and in" in str(found)


def test_the_file_and_the_line_of_two_tasks(tmp_path: Path) -> None:
    """Monitoring goes by these names."""
    first = KafkaCommitMessage(
        records=3, bytes=30, batches=2, retries=1, partitions=(("a", 0, 2, 20, 5, 6), ("b", 1, 1, 10, 0, 0))
    )
    second = KafkaCommitMessage(
        records=3, bytes=31, batches=3, retries=4, over_limit_skipped=5,
        partitions=tuple((topic, 0, 1, 10, -1, -1) for topic in "cde"),
    )  # fmt: skip
    found = WriteSummary.of([first, None, second])
    target = tmp_path / "summary.json"
    found.save(str(target), writeId="w")
    names = ("topic", "partition", "records", "bytes", "firstOffset", "lastOffset")
    rows = [("a", 0, 2, 20, 5, 6), ("b", 1, 1, 10, 0, 0), *(row for row in second.partitions)]
    counts = {"tasks": 2, "records": 6, "bytes": 61, "batches": 5, "retries": 5}
    assert json.loads(target.read_text()) == {
        "writeId": "w",
        **counts,
        "skippedRecords": 5,
        "deadLetteredRecords": 0,
        "partitions": [dict(zip(names, row, strict=True)) for row in rows],
    }
    assert str(found) == (
        "wrote 6 records (61 bytes in 5 batches, 5 retries) to 5 partitions of a, b, c and 2 more topics "
        "in 2 tasks; 5 rows are left out, as they are over a limit"
    )


def test_each_number_of_a_producer_has_its_own_place_in_the_summary() -> None:
    """The first offset of a new topic is 0, which is one."""
    partitions = {
        TopicPartition("t", 0): PartitionStats(records=3, bytes=30, first_offset=0, last_offset=4),
        TopicPartition("t", 1): PartitionStats(records=2, bytes=20),
    }
    stats = ProducerStats(
        records=5,
        bytes=50,
        batches=7,
        retries=8,
        skipped_records=9,
        dead_lettered_records=10,
        partitions=partitions,
    )
    message = KafkaCommitMessage.of(stats, None, "job", 11)
    assert (message.job, message.rows_hash, message.skipped) == ("job", 11, 0)
    names = ("topic", "partition", "records", "bytes", "firstOffset", "lastOffset")
    assert WriteSummary.of([message, None]).as_json() == {
        "tasks": 1,
        "records": 5,
        "bytes": 50,
        "batches": 7,
        "retries": 8,
        "skippedRecords": 9,
        "deadLetteredRecords": 10,
        "partitions": [
            dict(zip(names, row, strict=True)) for row in (("t", 0, 3, 30, 0, 4), ("t", 1, 2, 20, -1, -1))
        ],
    }
    replayed = KafkaCommitMessage.skipped_rows("job", 6, 12)
    assert (replayed.records, replayed.skipped, replayed.rows_hash, replayed.job) == (0, 6, 12, "job")
