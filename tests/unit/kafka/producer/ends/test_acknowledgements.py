"""The end of each batch is reported to all subscribers, before its records have ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.producer.sending_batches import TP, SendingHalf, batch

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, NetworkError
from spark_kafka_native.kafka.producer.errors import DeliveryStatus
from spark_kafka_native.kafka.producer.spill_folder import SpillFolder


def test_a_batch_that_failed_is_told_with_its_reason() -> None:
    half, told = SendingHalf(), list[Any]()
    stream = half.completion.acknowledgements.subscribe(10)
    one = half.wait_in(batch(0), told)
    size = len(one.data)
    cause = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders")
    half.completion.failed([one], "not allowed", cause, retriable=False, topic_id=None)
    (event,) = stream.drain()
    assert (event.topic_partition, event.status, event.base_offset) == (
        TP,
        DeliveryStatus.NOT_PERSISTED,
        None,
    )
    assert (event.records, event.bytes, event.last_offset) == (one.records, size, None)
    assert "not allowed" in event.error
    assert half.stats.metrics.snapshot().value(
        "kafka.producer.batches.failed", error="TOPIC_AUTHORIZATION_FAILED"
    )
    assert told


def test_a_batch_that_was_delivered_is_told_before_whoever_waits_for_it() -> None:
    half, told = SendingHalf(), list[Any]()
    stream = half.completion.acknowledgements.subscribe(10)
    one = half.wait_in(batch(0), told)
    seen_at_report: list[int] = []
    report = one.parts[0].block.report

    def look(*arguments: Any) -> None:
        seen_at_report.append(len(stream))
        report(*arguments)

    one.parts[0].block.report = look  # type: ignore[method-assign]
    half.completion.delivered(one, DeliveryStatus.PERSISTED, 7, None)
    (event,) = stream.drain()
    assert (event.status, event.base_offset, event.error) == (DeliveryStatus.PERSISTED, 7, None)
    assert event.last_offset == 7 + one.records - 1
    assert seen_at_report == [1]


def test_a_batch_that_is_only_written_late_is_not_said_to_be_in_the_log(tmp_path: Path) -> None:
    """With acks=0 no broker has confirmed it, although the folder need not keep it."""
    half = SendingHalf(SpillFolder(str(tmp_path)))
    stream = half.completion.acknowledgements.subscribe(10)
    one = half.wait_in(batch(0), [])
    half.queues.of(TP).sent(one, 1)
    half.failures.fail([one], "expired", NetworkError("the socket is full"))
    half.completion.delivered(one, DeliveryStatus.POSSIBLY_PERSISTED, None, None)
    assert [event.status for event in stream.drain()] == [DeliveryStatus.POSSIBLY_PERSISTED] * 2
    half.completion.close()


def test_the_first_batch_of_a_partition_has_an_offset_in_json() -> None:
    half = SendingHalf()
    stream = half.completion.acknowledgements.subscribe(10)
    half.completion.delivered(half.wait_in(batch(0, records=3), []), DeliveryStatus.PERSISTED, 0, None)
    (event,) = stream.drain()
    written = json.loads(json.dumps(event.to_dict()))
    assert (written["base_offset"], written["last_offset"]) == (0, 2)


def test_the_events_end_with_the_producer() -> None:
    half = SendingHalf()
    stream = half.completion.acknowledgements.subscribe(10)
    half.completion.close()
    assert stream.closed
    assert half.completion.acknowledgements.subscribe(10).closed
