"""The end of a batch: once, with all that it held given back."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.producer.sending_batches import TP, SendingHalf, batch, numbers

from spark_kafka_native.kafka.config.client_config import ProducerConfig
from spark_kafka_native.kafka.errors import NetworkError
from spark_kafka_native.kafka.model import Record, TopicPartition
from spark_kafka_native.kafka.producer.accumulating.batch import Batch, BatchEncoder, Origin, split_batch
from spark_kafka_native.kafka.producer.accumulating.memory import BufferMemory, Room
from spark_kafka_native.kafka.producer.delivery import Delivery, DeliveryBlock, Outcome
from spark_kafka_native.kafka.producer.errors import DeliveryStatus, RecordTooLargeError
from spark_kafka_native.kafka.producer.oversized import DeadLetterWriter, OverLimit, OversizedBatches
from spark_kafka_native.kafka.producer.spill_folder import NewEntry, SpillFolder
from spark_kafka_native.kafka.records.encode import set_producer

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


def test_the_outcome_of_a_batch_has_what_the_broker_said_of_its_records() -> None:
    half, outcomes = SendingHalf(), list[Any]()
    one = half.wait_in(batch(0), outcomes)
    half.completion.delivered(one, DeliveryStatus.PERSISTED, 7, 1_234)
    expected = Outcome(
        topic_partition=TP, status=DeliveryStatus.PERSISTED, base_offset=7, log_append_time_ms=1_234
    )
    assert outcomes == [(one, expected)]


def test_rows_that_came_into_no_batch_fail_with_their_cause_and_may_be_sent_again() -> None:
    half, cause = SendingHalf(), ValueError("the partitioner is broken")
    block = DeliveryBlock(3, half.completion.waiters, lambda: None)
    half.completion.refuse("t", block, np.array([0, 2]), cause)
    first, second, third = (Delivery(block, row) for row in range(3))
    error = first.exception(0)
    assert error is not None
    assert (error.topic_partition, error.records, error.status, error.retriable) == (
        TopicPartition("t", -1),
        2,
        DeliveryStatus.NOT_PERSISTED,
        True,
    )
    assert error.__cause__ is cause
    assert third.exception(0) is error
    assert not second.done()
    assert half.stats.snapshot(0, 0).failed_records == 2


def test_a_batch_ends_once() -> None:
    half, outcomes = SendingHalf(), list[Any]()
    half.completion._memory = memory = BufferMemory(10_000, 10)
    first, second = half.wait_in(batch(0), outcomes), half.wait_in(batch(1), outcomes)
    for one in (first, second):
        one.reserved = len(one.data)
        memory.reserve(Room(), one.reserved, 1, 0)
    half.completion.failed([first], "late", LOST, retriable=True, topic_id=None)
    half.completion.failed([first, second], "lost", LOST, retriable=True, topic_id=None)
    assert [(one, outcome.error.reason) for one, outcome in outcomes] == [(first, "late"), (second, "lost")]
    assert half.stats.snapshot(0, 0).failed_records == 2
    assert memory.used == (0, 0)


@pytest.mark.parametrize(("is_reported_before", "counted"), [(True, 0), (False, 1)])
def test_the_dead_letter_of_a_batch_of_the_folder_is_reported_where_the_batch_was_not(
    is_reported_before: bool, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the place of the batch: a flush waits for it."""
    half, one, letter = SendingHalf(), batch(0), batch(1)
    monkeypatch.setattr(half.spilling, "replace_by_letter", lambda *_: None)
    one.reported_before = is_reported_before
    half.completion.expect([one])
    half.completion.replace_by_letter(one, letter, None)
    assert list(half.completion.incomplete) == [letter]
    half.completion.failed([letter], "lost", LOST, retriable=True, topic_id=None)
    assert half.stats.snapshot(0, 0).failed_records == counted
    assert not half.completion.incomplete


def letter_writer(compression: str) -> tuple[DeadLetterWriter, BatchEncoder, SimpleNamespace]:
    """Its encoder, and the limits of the topic of dead letters, which may be changed."""
    config = ProducerConfig(over_limit="dead_letter", dead_letter_topic="dead", compression_type=compression)
    limits = SimpleNamespace(max_bytes=0)
    buffers: Any = {"dead": SimpleNamespace(limits=limits)}
    encoder = BatchEncoder(config)
    return DeadLetterWriter("dead", config, encoder, buffers), encoder, limits


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_dead_letter_as_large_as_its_topic_allows_is_not_truncated(compression: str) -> None:
    writer, encoder, limits = letter_writer(compression)
    limits.max_bytes = 1_000_000
    value = random.Random(1).randbytes(1_000)
    record = Record("t", 0, 0, None, value, timestamp_ms=1_000)
    cause = RecordTooLargeError.of("t", 0, 10, 5, "the topic's max.message.bytes")
    whole = writer.write(record, cause)
    limits.max_bytes = len(encoder.encode(whole, None, 0))
    assert whole.value is not None
    for limit, kept in ((limits.max_bytes, value), (limits.max_bytes - 1, None)):
        limits.max_bytes = limit
        letter = writer.write(record, cause)
        assert letter.value is not None
        (found,) = letter.value.to_pylist()
        assert found == kept if kept is not None else 0 < len(found) < 1_000


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_dead_letter_fits_or_is_refused_at_any_limit_of_its_topic(compression: str) -> None:
    writer, encoder, limits = letter_writer(compression)
    value, key = random.Random(1).randbytes(500), random.Random(2).randbytes(50)
    record = Record("t", 0, 0, key, value, timestamp_ms=1_000)
    cause = RecordTooLargeError.of("t", 0, 10, 5, "the topic's max.message.bytes")
    written = []
    for limit in range(450, 650):
        limits.max_bytes = limit
        try:
            letter = writer.write(record, cause)
        except RecordTooLargeError:
            continue
        assert letter.value is not None
        assert value.startswith(letter.value[0].as_py())
        assert len(encoder.encode(letter, None, 0)) <= limit
        written.append(limit)
    assert written == list(range(written[0], 650)), "what fits one limit fits a higher one"


def test_the_folder_has_the_halves_of_a_batch_with_their_numbers(tmp_path: Path) -> None:
    """A crash may end the producer before they are sent: a broker that has them must recognise them."""
    folder, config = SpillFolder(str(tmp_path)), ProducerConfig()
    half, whole = SendingHalf(folder), batch(0, 4)
    set_producer(memoryview(whole.data), 7, 3, 20)
    (entry,) = folder.keep([NewEntry(TP, None, 4, False, "why", whole.data)])
    one, queue = Batch.from_folder(entry, (0, 0)), half.queues.of(TP)
    half.queues.add(one)
    queue.loaded(one, entry.read())
    over = OverLimit(config, {}, BatchEncoder(config), BufferMemory(0, 0), half.completion, half.stats)
    oversized = OversizedBatches(
        half.topics, half.queues, half.completion, half.spilling, half.failures, over
    )
    oversized.split(one)
    folder.close()
    again = SpillFolder(str(tmp_path))
    found: list[Any] = [SimpleNamespace(data=left.read()) for left in again.entries]
    assert [numbers(left) for left in found] == [(7, 3, 20), (7, 3, 22)]
    again.close()


def test_a_record_that_is_skipped_need_not_be_sent_again_and_says_which_limit_it_was_over() -> None:
    config, half, outcomes = ProducerConfig(over_limit="skip"), SendingHalf(), list[Any]()
    over = OverLimit(config, {}, BatchEncoder(config), BufferMemory(0, 0), half.completion, half.stats)
    cause = RecordTooLargeError.of("t", 0, 10, 5, "the topic's max.message.bytes")
    over.skip_batch(half.wait_in(batch(0), outcomes), cause)
    ((_, outcome),) = outcomes
    assert (outcome.error.retriable, outcome.error.by_choice) == (False, True)
    assert outcome.error.__cause__ is cause


@pytest.mark.parametrize(("left", "waiting", "failed"), [(0, 2, []), (-1, 0, [False, False])])
def test_halves_as_large_as_the_limit_are_sent_and_larger_records_need_not_be_sent_again(
    left: int, waiting: int, failed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, half, outcomes = ProducerConfig(), SendingHalf(), list[Any]()
    over = OverLimit(config, {}, BatchEncoder(config), BufferMemory(0, 0), half.completion, half.stats)
    oversized = OversizedBatches(
        half.topics, half.queues, half.completion, half.spilling, half.failures, over
    )
    monkeypatch.setattr(half.topics, "max_bytes", lambda _topic: len(batch(0).data) + left)
    oversized.split(half.wait_in(batch(0, 2), outcomes))
    assert len(half.queues.of(TP).waiting) == waiting
    assert [outcome.error.retriable for _, outcome in outcomes] == failed


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
