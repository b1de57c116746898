"""Committed offsets out of an answer, in literals."""

from __future__ import annotations

import pytest

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, IncompleteResponseError
from spark_kafka_native.kafka.group.committed_offsets import (
    build_offset_fetch,
    read_all_offsets,
    read_offset_fetch,
)
from spark_kafka_native.kafka.model import OffsetToCommit, TopicPartition
from spark_kafka_native.kafka.protocol.api.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def answer(
    *found: tuple[TopicPartition, int, ErrorCode], error: ErrorCode = ErrorCode.NONE
) -> OffsetFetchResponse:
    topics = [
        OffsetFetchResponseTopics(
            name=tp.topic,
            partitions=[
                OffsetFetchResponsePartitions(
                    partition_index=tp.partition, committed_offset=offset, metadata=None, error_code=code
                )
            ],
        )
        for tp, offset, code in found
    ]
    return OffsetFetchResponse(
        groups=[OffsetFetchResponseGroup(group_id="g", topics=topics, error_code=error)]
    )


def test_the_request_names_each_topic_once_and_waits_for_transactions() -> None:
    request = build_offset_fetch("g", [A0, B0, A1])
    [group] = request.groups
    assert group.group_id == "g"
    assert [(t.name, t.partition_indexes) for t in group.topics or []] == [("a", [0, 1]), ("b", [0])]
    assert request.require_stable


def test_offset_0_is_committed_and_minus_1_is_none() -> None:
    told = answer((A0, 0, ErrorCode.NONE), (A1, -1, ErrorCode.NONE), (B0, 7, ErrorCode.NONE))
    assert read_offset_fetch(told, "g", [A0, A1]) == {A0: 0, A1: None}


def test_a_partition_left_out_is_not_told_as_none_committed() -> None:
    with pytest.raises(IncompleteResponseError, match="committed offset of a-1 in group g"):
        read_offset_fetch(answer((A0, 5, ErrorCode.NONE)), "g", [A0, A1])


def test_errors_of_the_group_and_of_a_partition_are_raised() -> None:
    with pytest.raises(BrokerError, match="committed offsets of group g: GROUP_AUTHORIZATION_FAILED"):
        read_offset_fetch(answer(error=ErrorCode.GROUP_AUTHORIZATION_FAILED), "g", [A0])
    refused = answer((A0, -1, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="committed offset of a-0 in group g: TOPIC_AUTHORIZATION_FAILED"):
        read_offset_fetch(refused, "g", [A0])


def test_all_offsets_of_a_group_leave_out_what_has_none() -> None:
    told = answer((A0, 0, ErrorCode.NONE), (A1, -1, ErrorCode.NONE), (B0, 7, ErrorCode.NONE))
    assert read_all_offsets(told, "g") == {A0: OffsetToCommit(offset=0), B0: OffsetToCommit(offset=7)}
    assert read_all_offsets(answer(), "g") == {}


def test_an_answer_about_another_group_is_not_told_as_none_committed() -> None:
    with pytest.raises(IncompleteResponseError, match="does not name it"):
        read_all_offsets(answer(), "other")
    with pytest.raises(BrokerError, match="a-0 in group g: UNSTABLE_OFFSET_COMMIT"):
        read_all_offsets(answer((A0, 5, ErrorCode.UNSTABLE_OFFSET_COMMIT)), "g")
