import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, IncompleteResponseError
from spark_kafka_native.kafka.group.committed_offsets import build_offset_commit, read_offset_commit
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

POSITIONS = {TopicPartition("a", 0): 5, TopicPartition("b", 1): 6, TopicPartition("a", 2): 7}


def answer(*partitions):
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic,
                partitions=[OffsetCommitResponsePartition(partition_index=index, error_code=code)],
            )
            for topic, index, code in partitions
        ]
    )


def test_a_commit_without_membership():
    request = build_offset_commit("g", POSITIONS)
    assert (request.group_id, request.member_id, request.generation_id_or_member_epoch) == ("g", "", -1)
    sent = {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in request.topics
        for partition in topic.partitions
    }
    assert sent == {("a", 0): 5, ("a", 2): 7, ("b", 1): 6}
    assert [topic.name for topic in request.topics] == ["a", "b"]


def test_each_partition_must_be_confirmed():
    none = ErrorCode.NONE
    read_offset_commit(answer(("a", 0, none), ("a", 2, none), ("b", 1, none)), "g", POSITIONS)
    with pytest.raises(IncompleteResponseError, match="says nothing of b-1"):
        read_offset_commit(answer(("a", 0, none), ("a", 2, none)), "g", POSITIONS)
    with pytest.raises(BrokerError, match="committing the offset of a-2 in group g"):
        read_offset_commit(
            answer(("a", 0, none), ("a", 2, ErrorCode.UNKNOWN_MEMBER_ID), ("b", 1, none)), "g", POSITIONS
        )
