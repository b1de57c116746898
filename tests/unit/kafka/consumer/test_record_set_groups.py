"""Which record sets of an answer are decoded together."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_native.kafka.consumer import fetched_records
from spark_kafka_native.kafka.consumer.fetched_records import ReceivedRecords, group_small_sets
from spark_kafka_native.kafka.consumer.partition_state import PartitionState
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import FetchedAbortedTransaction, PartitionData

BIG = fetched_records.SMALL_BYTES + 1


def taken(partition: int, size: int | None, aborted: Any = None) -> ReceivedRecords:
    data = PartitionData(
        partition_index=partition,
        error_code=ErrorCode.NONE,
        high_watermark=9,
        last_stable_offset=9,
        log_start_offset=0,
        aborted_transactions=aborted,
        records=None if size is None else memoryview(bytes(size)),
    )
    return ReceivedRecords(PartitionState(TopicPartition("t", partition), 0, 9, 1), data, 0)


def groups(*found: ReceivedRecords) -> list[list[int]]:
    return [[one.data.partition_index for one in group] for group in group_small_sets(found)]


def test_small_neighbours_are_together_in_their_order() -> None:
    sizes = [90, 80, BIG, 70, None, 60, 50, BIG - 1]
    assert groups(*map(taken, range(8), sizes)) == [[0, 1], [2], [3], [4], [5, 6, 7]]
    assert groups() == []


def test_what_aborted_transactions_may_hide_is_decoded_alone() -> None:
    aborted = [FetchedAbortedTransaction(producer_id=1, first_offset=0)]
    assert groups(taken(0, 90, []), taken(1, 90, aborted), taken(2, 90), taken(3, 90)) == [[0], [1], [2, 3]]


def test_a_group_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched_records, "GROUP_BYTES", 250)
    assert groups(*(taken(partition, 100) for partition in range(5))) == [[0, 1], [2, 3], [4]]
