"""Requests for offsets and what their answers say, in literals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spark_kafka_native.kafka.cluster import offsets
from spark_kafka_native.kafka.cluster.offsets import (
    FoundOffset,
    build_list_offsets,
    offset_or_at,
    read_list_offsets,
    try_resolve_offsets,
)
from spark_kafka_native.kafka.cluster.router import Leader
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    IncompleteResponseError,
    NetworkError,
    ProtocolError,
)
from spark_kafka_native.kafka.model import IsolationLevel, OffsetAt, TopicPartition
from spark_kafka_native.kafka.protocol.api.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
B1, B2 = TopicPartition("b", 1), TopicPartition("b", 2)


@pytest.mark.parametrize("level", list(IsolationLevel))
def test_a_request_says_where_for_whom_and_how_long(level: IsolationLevel) -> None:
    """With READ_COMMITTED the broker returns the last stable offset for latest."""
    places = {
        A0: OffsetAt.EARLIEST,
        B0: OffsetAt.LATEST,
        A1: OffsetAt.timestamp(0),
        TopicPartition("b", 1): OffsetAt.MAX_TIMESTAMP,
    }
    leaders = {tp: Leader(1, 3 + index, None) for index, tp in enumerate(places)}
    request = build_list_offsets(places, leaders, level, Deadline(7.0, lambda: 5.0))
    assert (request.isolation_level, request.replica_id, request.timeout_ms) == (level, -1, 2_000)
    assert {
        (topic.name, one.partition_index): (one.timestamp, one.current_leader_epoch)
        for topic in request.topics
        for one in topic.partitions
    } == {("a", 0): (-2, 3), ("b", 0): (-1, 4), ("a", 1): (0, 5), ("b", 1): (-3, 6)}
    assert [topic.name for topic in request.topics] == ["a", "b"]


@pytest.mark.parametrize("timestamp_ms", [-1, -2, -3])
def test_a_time_before_1970_is_none_of_the_places_that_have_such_numbers(timestamp_ms: int) -> None:
    with pytest.raises(ValueError, match=f"a timestamp must not be negative: {timestamp_ms}"):
        OffsetAt.timestamp(timestamp_ms)


def told(*partitions: tuple[TopicPartition, int, int, int]) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=tp.topic,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=tp.partition,
                        error_code=ErrorCode(code),
                        offset=offset,
                        timestamp=timestamp,
                        leader_epoch=0,
                    )
                ],
            )
            for tp, offset, timestamp, code in partitions
        ]
    )


def test_an_answer_is_sorted_into_found_and_failed() -> None:
    found: dict[TopicPartition, FoundOffset] = {}
    places = {A0: OffsetAt.LATEST, A1: OffsetAt.timestamp(5), B0: OffsetAt.LATEST}
    answer = told((A0, 0, 9, 0), (A0, 7, 9, 0), (A1, -1, -1, 0), (TopicPartition("z", 0), 1, 1, 0))
    [missing] = read_list_offsets(answer, places, found).values()
    assert isinstance(missing, IncompleteResponseError)
    assert str(missing) == "latest offset of b-0: the leader's response lacks it"
    assert found == {
        A0: FoundOffset(offset=0, timestamp_ms=None, leader_epoch=0),
        A1: FoundOffset(offset=None, timestamp_ms=None, leader_epoch=0),
    }
    [refused] = read_list_offsets(told((A1, -1, -1, 3)), {A1: OffsetAt.EARLIEST}, found).values()
    assert isinstance(refused, BrokerError)
    assert str(refused).startswith("earliest offset of a-1: UNKNOWN_TOPIC_OR_PARTITION")


def test_a_time_is_found_with_its_record_and_a_negative_end_is_none() -> None:
    found: dict[TopicPartition, FoundOffset] = {}
    assert read_list_offsets(told((A1, 0, 0, 0)), {A1: OffsetAt.timestamp(0)}, found) == {}
    assert found[A1] == FoundOffset(offset=0, timestamp_ms=0, leader_epoch=0)
    for offset, place in ((-1, OffsetAt.EARLIEST), (-1, OffsetAt.LATEST), (-2, OffsetAt.timestamp(0))):
        with pytest.raises(ProtocolError, match=rf"a-0 answered with offset {offset} for"):
            read_list_offsets(told((A0, offset, -1, 0)), {A0: place}, found)


@pytest.mark.parametrize("level", list(IsolationLevel))
def test_each_place_has_an_offset_or_a_failure(
    level: IsolationLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition with neither would not be read. The ends are those of before the other questions; of
    committed records it is the last stable offset: an open transaction begins there, and may commit."""
    no_end, no_start = NetworkError("no end"), NetworkError("no start")
    rounds: list[tuple[dict[TopicPartition, FoundOffset], dict[TopicPartition, NetworkError]]] = [
        ({A0: FoundOffset(50), B2: FoundOffset(60)}, {B1: no_end}),
        ({A0: FoundOffset(None), B2: FoundOffset(55)}, {A1: no_start}),
    ]
    asked: list[dict[TopicPartition, OffsetAt]] = []

    def ask(
        _router: Any, places: dict[TopicPartition, OffsetAt], asked_level: IsolationLevel, _: Deadline
    ) -> Any:
        assert asked_level is level
        asked.append(dict(places))
        return rounds[len(asked) - 1]

    monkeypatch.setattr(offsets, "try_offsets", ask)
    late, none = OffsetAt.timestamp(5), OffsetAt.MAX_TIMESTAMP
    places: dict[TopicPartition, int | OffsetAt] = {
        A0: late,
        A1: OffsetAt.EARLIEST,
        B0: 7,
        B1: late,
        B2: none,
    }
    router: Any = None
    found, failures = try_resolve_offsets(router, places, level, Deadline.after_ms(60_000))
    assert found == {A0: 50, B0: 7, B2: 55}
    assert failures == {B1: no_end, A1: no_start}
    assert asked == [
        {A0: OffsetAt.LATEST, B1: OffsetAt.LATEST, B2: OffsetAt.LATEST},
        {A0: late, A1: OffsetAt.EARLIEST, B2: none},
    ]


@pytest.mark.parametrize(("microseconds", "timestamp_ms"), [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2)])
def test_a_time_between_two_milliseconds_is_the_later_one(microseconds: int, timestamp_ms: int) -> None:
    """A record of the earlier one is not at or after it."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    assert offset_or_at(moment) == OffsetAt.timestamp(timestamp_ms)
    assert offset_or_at(timedelta(hours=1), moment + timedelta(hours=1)) == OffsetAt.timestamp(timestamp_ms)
