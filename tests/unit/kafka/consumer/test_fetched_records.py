"""Records of one partition out of a response that is decoded in several pieces."""

from __future__ import annotations

import pytest
from support.record_batches import batch, control, record

from spark_kafka_native.kafka.config.client_config import ConsumerConfig
from spark_kafka_native.kafka.consumer import fetched_records
from spark_kafka_native.kafka.consumer.fetched_records import decode_fetched
from spark_kafka_native.kafka.consumer.partition_state import ENDLESS, FetchPosition
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import IsolationLevel, TopicPartition
from spark_kafka_native.kafka.protocol.api.fetch import FetchedAbortedTransaction, PartitionData

ABORT, COMMIT = 0, 1
TRANSACTIONAL = 0x10


def transactional(offset: int) -> bytes:
    return batch([record(0)], base_offset=offset, attributes=TRANSACTIONAL, producer_id=7)


def test_a_transaction_that_was_aborted_in_one_piece_hides_nothing_in_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetched_records, "DECODED_BYTES", 1)  # a batch for each piece
    log = [
        batch([record(0)], base_offset=0),
        transactional(1),
        control(2, 7, ABORT),
        transactional(3),
        transactional(4),
        control(5, 7, COMMIT),
    ]
    data = PartitionData(
        partition_index=0,
        error_code=ErrorCode.NONE,
        high_watermark=6,
        last_stable_offset=6,
        log_start_offset=0,
        aborted_transactions=[FetchedAbortedTransaction(producer_id=7, first_offset=1)],
        records=memoryview(b"".join(log)),
    )
    position = FetchPosition(TopicPartition("t", 0), 0, ENDLESS)
    position.receive(6, 0)
    config = ConsumerConfig(isolation_level=IsolationLevel.READ_COMMITTED)
    pieces = [
        [] if one.columns.offset is None else one.columns.offset.tolist()
        for one in decode_fetched(position, data, config, None)
    ]
    assert pieces == [[0], [3], [4]]
    assert position.offset == 6
