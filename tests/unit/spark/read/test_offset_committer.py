import logging

from spark_kafka_native.kafka.errors import KafkaError
from spark_kafka_native.kafka.group import committed_offsets
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.read.driver.micro_batch import StreamOffset
from spark_kafka_native.spark.read.read_options import StreamOptions
from spark_kafka_native.spark.read.schema import full_schema
from spark_kafka_native.spark.read.stream_reader import (
    INTERVAL_S,
    PAUSE_S,
    REPEAT_S,
    TIMEOUT_MS,
    KafkaStreamReader,
    OffsetCommitter,
)

T0 = TopicPartition("t", 0)


class Group:
    """The offsets that the coordinator got; it fails while ``fails`` is set."""

    def __init__(self):
        self.told, self.fails, self.now, self.attempts = [], False, 50.0, 0
        self.commits = OffsetCommitter(self.commit, group_id="g", clock=lambda: self.now)

    def commit(self, positions):
        self.attempts += 1
        if self.fails:
            self.now += TIMEOUT_MS / 1_000
            raise KafkaError("no coordinator")
        self.told.append(positions[T0])

    def completed(self, offset, **how):
        self.commits.completed(StreamOffset(positions={T0: offset}), {}, **how)


def test_each_completed_batch_once_and_not_more_often_than_useful():
    group = Group()
    group.completed(5)
    group.completed(5, is_idle=True)
    group.completed(6)
    assert group.told == [5]
    # A quiet stream, or the end of AvailableNow: there may be no later chance.
    group.completed(6, is_idle=True)
    group.now += INTERVAL_S
    group.completed(7)
    assert group.told == [5, 6, 7]


def test_a_start_is_no_completed_batch():
    group = Group()
    group.commits.completed(StreamOffset(positions={T0: 5}, start={T0: 5}), {}, is_idle=True)
    assert group.told == []
    group.commits.completed(StreamOffset(positions={T0: 6}, start={T0: 5}), {})
    assert group.told == [6]


def test_positions_in_a_former_topic_are_not_committed_in_the_one_that_has_its_name():
    group, former, now = Group(), "a" * 32, "b" * 32
    read = StreamOffset(positions={T0: 5}, topic_ids={"t": former})
    group.commits.completed(read, {"t": now}, is_idle=True)
    assert group.attempts == 0
    group.commits.completed(read, {"t": former}, is_idle=True)
    group.commits.completed(StreamOffset(positions={T0: 6}, topic_ids={"t": now}), {"t": now}, is_idle=True)
    assert group.told == [5, 6]


def test_the_same_position_in_a_topic_that_was_created_again_is_another_one():
    """With a topic, its committed offsets are deleted."""
    group = Group()
    for topic_id in ("a" * 32, "b" * 32, "b" * 32):
        read = StreamOffset(positions={T0: 5}, topic_ids={"t": topic_id})
        group.commits.completed(read, {"t": topic_id}, is_idle=True)
    assert group.told == [5, 5]


def test_the_positions_in_other_topics_are_committed_without_those_in_a_former_one():
    committed, u0 = [], TopicPartition("u", 0)
    commits = OffsetCommitter(committed.append, group_id="g", clock=lambda: 50.0)
    read = StreamOffset(positions={T0: 5, u0: 7}, topic_ids={"t": "a" * 32, "u": "c" * 32})
    commits.completed(read, {"t": "b" * 32, "u": "c" * 32})
    assert committed == [{u0: 7}]


def test_a_commit_that_fails_is_a_warning_and_not_repeated_at_once(caplog):
    group = Group()
    group.fails = True
    with caplog.at_level(logging.WARNING, "spark_kafka_native"):
        for offset in (5, 6, 7):
            group.completed(offset, is_idle=True)
    assert group.attempts == 1
    assert "could not be committed to group g; the stream goes on" in caplog.text
    group.fails = False
    group.now += PAUSE_S - 1  # from the end of the attempt, which took its time
    group.completed(7, is_idle=True)
    assert group.told == []
    group.now += 1
    group.completed(7)
    assert group.told == [7]
    # And all is as it was before: the end of a quiet stream is committed at once.
    group.completed(8, is_idle=True)
    assert group.told == [7, 8]


def test_the_offsets_of_a_quiet_stream_do_not_expire():
    group = Group()
    group.completed(5, is_idle=True)
    group.now += REPEAT_S - 1
    group.completed(5, is_idle=True)
    assert group.told == [5]
    group.now += 1
    group.completed(5, is_idle=True)
    group.completed(5, is_idle=True)
    assert group.told == [5, 5]


def test_a_coordinator_that_is_silent_holds_a_stream_up_for_seconds_only(monkeypatch):
    given = {
        "kafka.bootstrap.servers": "h:1",
        "subscribe": "t",
        "kafka.group.id": "g",
        "commitOffsets": "true",
    }
    options = StreamOptions.parse(OptionValues.parse(given, Scope.STREAM))
    asked = []

    def commit_offsets(_router, group_id, positions, deadline=None):
        asked.append((group_id, positions, deadline is not None and deadline.remaining_ms <= TIMEOUT_MS))

    monkeypatch.setattr(committed_offsets, "commit_offsets", commit_offsets)
    reader = KafkaStreamReader(options, full_schema(include_headers=False))
    reader.commit(StreamOffset(positions={T0: 6}, start={T0: 5}).to_json())
    assert asked == [("g", {T0: 6}, True)]
