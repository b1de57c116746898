"""The end of a batch: once, with all that it held given back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.producer.sending_batches import TP, SendingHalf, batch

from spark_kafka_native.kafka.config.client_config import ProducerConfig
from spark_kafka_native.kafka.errors import NetworkError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.accumulating.batch import BatchEncoder, Origin, split_batch
from spark_kafka_native.kafka.producer.accumulating.memory import BufferMemory, Room
from spark_kafka_native.kafka.producer.delivery import Outcome
from spark_kafka_native.kafka.producer.errors import DeliveryStatus, RecordTooLargeError
from spark_kafka_native.kafka.producer.oversized import OverLimit

LOST = NetworkError("the connection was lost")


@pytest.mark.parametrize("reserved", [1_000, 1_001, 7])
@pytest.mark.parametrize("records", [2, 3, 7, 10])
def test_the_parts_of_a_split_batch_share_its_memory_to_the_last_byte(records: int, reserved: int) -> None:
    encoder = BatchEncoder(ProducerConfig())
    whole = batch(0, records)
    whole.reserved = reserved
    parts, ended = [whole], []
    while parts:
        one = parts.pop()
        if one.records == 1:
            ended.append(one)
        else:
            parts += split_batch(one, encoder)
    assert sum(one.records for one in ended) == records
    assert sum(one.reserved for one in ended) == reserved
    assert {one.sending.since for one in ended} == {whole.sending.since}, "the delivery timeout goes on"
    orders = [one.order for one in reversed(ended)]
    assert orders == sorted(set(orders)), "each has a place of its own"


@pytest.mark.parametrize("is_delivered", [True, False])
def test_an_ended_batch_keeps_no_bytes(is_delivered: bool) -> None:
    """It may be in flight for long: its answer is still to come."""
    half, outcomes = SendingHalf(), list[Any]()
    one = half.wait_in(batch(0), outcomes)
    assert len(one.data)
    if is_delivered:
        half.completion.delivered(one, DeliveryStatus.PERSISTED, 7, None)
    else:
        half.completion.failed([one], "lost", LOST, retriable=True, topic_id=None)
    assert len(outcomes) == 1
    assert one.ended
    assert not len(one.data)


@pytest.mark.parametrize(("is_reported_before", "counted"), [(True, 0), (False, 2)])
def test_the_halves_of_a_batch_that_was_reported_before_are_not_reported_again(
    is_reported_before: bool, counted: int
) -> None:
    """It came from the spill folder: its records counted as failed when they went there."""
    half, whole = SendingHalf(), batch(0, 2)
    whole.reported_before = is_reported_before
    half.completion.expect([whole])
    halves = split_batch(whole, BatchEncoder(ProducerConfig()))
    half.completion.replace(whole, halves)
    half.completion.failed(halves, "lost", LOST, retriable=True, topic_id=None)
    assert half.stats.snapshot(0, 0).failed_records == counted
    assert not half.completion.incomplete


def test_the_dead_letter_of_a_batch_that_has_ended_changes_nothing() -> None:
    """The batch was given up while its dead letter was under way, as at the end of the sender."""
    half, outcomes, letters = SendingHalf(), list[Any](), list[Origin]()
    memory, room = BufferMemory(10_000, 10), Room()
    half.completion._memory = memory

    def append(_columns: Any, _sizes: Any, _partition: Any, origin: Origin, *_room: Any, **_how: Any) -> None:
        letters.append(origin)

    buffers: Any = {
        "dead": SimpleNamespace(
            targets=SimpleNamespace(count=1),
            limits=SimpleNamespace(max_bytes=1_000_000),
            append_columns=append,
        )
    }
    config = ProducerConfig(over_limit="dead_letter", dead_letter_topic="dead")
    over = OverLimit(config, buffers, BatchEncoder(config), memory, half.completion, half.stats)
    one = batch(0)
    memory.reserve(room, len(one.data), 1, 0)
    one.reserved = len(one.data)
    half.wait_in(one, outcomes)
    over.write_letter_of(one, RecordTooLargeError.of("t", 0, 10, 5, "the topic's max.message.bytes"))
    half.completion.failed([one], "lost", LOST, retriable=True, topic_id=None)
    assert memory.used == (0, 0)
    letter = Outcome(
        topic_partition=TopicPartition("dead", 0), status=DeliveryStatus.PERSISTED, base_offset=3
    )
    letters[0].block.report(np.array([0]), 0, letter)
    assert memory.used == (0, 0)
    assert [outcome.error.reason for _, outcome in outcomes] == ["lost"]
    assert outcomes[0][1].topic_partition == TP
