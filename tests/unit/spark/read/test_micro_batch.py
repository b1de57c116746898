"""A batch between two offsets: what it reads, what it has lost, and what Trigger.AvailableNow allows."""

import pytest

from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.error_conditions import KafkaConditionError
from spark_kafka_native.spark.read.driver.micro_batch import (
    LogEnds,
    MicroBatch,
    StreamOffset,
    check_available_now,
)

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
OLD, NEW = "a" * 32, "b" * 32


def at(positions, topic_id=OLD, start=None):
    return StreamOffset(positions=positions, topic_ids={"t": topic_id}, start=start)


def conditions(losses):
    return [(loss.condition.rpartition(".")[2], loss.parameters) for loss in losses]


def test_ranges_are_what_lies_ahead():
    span = MicroBatch.between(at({T0: 5, T1: 7}), at({T0: 3, T1: 9, U0: 4}))
    found = [(one.shipped.topic_partition, one.from_offset, one.until_offset) for one in span.ranges({U0: 1})]
    # T0 has gone back: nothing of it, and above all no range that ends before it starts.
    assert found == [(T1, 7, 9), (U0, 1, 4)]
    assert MicroBatch.between(at({T0: 5}), at({T0: 5})).ranges({}) == []


def test_a_recreated_topic_with_fewer_partitions_has_lost_the_others():
    span = MicroBatch.between(at({T0: 5, T1: 7}), at({T0: 3}, NEW))
    assert span.former == {T0: 5, T1: 7}
    assert conditions(span.losses()) == [
        ("PARTITIONS_DELETED", {"partitions": "[t-1]"}),
        ("PARTITION_OFFSET_CHANGED", {"topicPartition": T0, "prevOffset": 5, "newOffset": 3}),
    ]


def test_a_first_batch_begins_where_its_end_says_also_if_the_topic_is_another_by_now():
    start = at({T0: 0}, NEW, start={T0: 0})
    span = MicroBatch.between(start, at({T0: 9}, OLD, start={T0: 5}))
    assert (span.begin, span.former, span.added) == ({T0: 5}, {}, [])


def test_a_new_partition_that_has_lost_one_record_has_lost_one():
    span = MicroBatch.between(at({T0: 5}), at({T0: 5, T1: 9}))
    assert conditions(span.losses_of_added({T1: 0})) == []
    assert conditions(span.losses_of_added({T1: 1})) == [
        (
            "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
            {"topicPartition": T1, "startOffset": 1},
        )
    ]


def test_ends_are_in_doubt_where_a_partition_is_missing_or_shorter_and_not_known_to_be() -> None:
    start = at({T0: 5, T1: 0})
    for latest, held, behind in (
        ({T0: 5, T1: 0}, {}, False),
        ({T0: 4, T1: 0}, {}, True),
        ({T0: 5}, {}, True),
        ({T0: 5}, {T1: 0}, False),
        ({T0: 4, T1: 0}, {T0: 5}, False),
        ({T0: 4, T1: 0}, {T0: 6}, True),
    ):
        assert LogEnds(latest=latest, topic_ids={"t": OLD}).are_behind(start, held) is behind
        assert not LogEnds(latest=latest, topic_ids={"t": NEW}).are_behind(start, held)
    ends = LogEnds(latest={T0: 4, T1: 0}, topic_ids={"t": OLD})
    assert ends.shorter_than(start) == {T0: 5}


def test_available_now_may_go_to_the_very_end():
    check_available_now({T0: 5}, {T0: 5}, {T0: 5})
    with pytest.raises(KafkaConditionError, match="THAN_PREFETCHED"):
        check_available_now({T0: 6}, {T0: 5}, {T0: 6})
    with pytest.raises(KafkaConditionError, match="THAN_LATEST"):
        check_available_now({T0: 5}, {T0: 5}, {T0: 4})


def test_ids_are_written_of_topics_that_have_partitions_only():
    both = StreamOffset(positions={T0: 1}, topic_ids={"t": OLD, "gone": NEW})
    assert both.to_json() == {"t": {"0": 1}, f"#id t {OLD}": {}}


@pytest.mark.parametrize(("end", "lost"), [(3, True), (4, True), (5, False), (6, False)])
def test_a_log_that_ends_a_single_record_earlier_is_a_loss(end, lost):
    span = MicroBatch.between(at({T0: 5}), at({T0: end}))
    assert (
        conditions(span.losses())
        == [("PARTITION_OFFSET_CHANGED", {"topicPartition": T0, "prevOffset": 5, "newOffset": end})] * lost
    )
