"""`fetch_once`, without a socket."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from support.brokers.scripted_broker import offsets_of
from support.consumer.simulated_fetch import ID, ONE, World, records, told
from support.record_batches import batch, control, record

from spark_kafka_native.kafka.cluster.router import Leader
from spark_kafka_native.kafka.config.client_config import ClientConfig, ConsumerConfig
from spark_kafka_native.kafka.consumer import fetch_once as module
from spark_kafka_native.kafka.consumer.fetch_once import FetchedOnce, fetch_once
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, CorruptRecordError, KafkaError, OffsetOutOfRangeError
from spark_kafka_native.kafka.model import HeaderKeys, IsolationLevel
from spark_kafka_native.kafka.protocol.api.fetch import FetchedAbortedTransaction, FetchResponse
from spark_kafka_native.kafka.runtime.deadline import Deadline


def answering(result: Callable[[float], Any]) -> Any:
    """A router to a leader that responds with this ``result``."""
    connection = SimpleNamespace(version_of=lambda *_: 13, submit=lambda *_: SimpleNamespace(result=result))
    return SimpleNamespace(
        config=ClientConfig(bootstrap_servers=("a:1",), request_timeout_ms=3_000),
        leader=lambda *_: Leader(1, 5, ID),
        connection=lambda *_: connection,
        retry=lambda attempt, **_: attempt(),
    )


@pytest.mark.parametrize(
    ("left_ms", "least", "most"), [(60_000, 12_000, 12_000), (5_000, 1_000, 5_000)], ids=["long", "short"]
)
def test_the_time_for_which_the_broker_waits_for_records_is_no_delay(
    left_ms: float, least: float, most: float
) -> None:
    limits: list[float] = []

    def result(limit_ms: float) -> Any:
        limits.append(limit_ms)
        return told(p0=records(10))

    config = ConsumerConfig(fetch_max_wait_ms=9_000)
    fetched = fetch_once(answering(result), ONE, 10, config, Deadline.after_ms(left_ms))
    assert (offsets_of(fetched.columns), fetched.next_offset) == ([10, 11], 12)
    [limit] = limits
    assert least <= limit <= most


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_an_error_of_the_partition_is_not_taken_for_an_empty_response(code: ErrorCode) -> None:
    router = answering(lambda _: told(p0=code))
    with pytest.raises(BrokerError, match=rf"at offset 10: {code.name}"):
        fetch_once(router, ONE, 10, ConsumerConfig(), Deadline.after_ms(60_000))


def fetched_with(response: FetchResponse, offset: int = 10, **config: Any) -> FetchedOnce:
    """The result of a fetch that the leader answers with ``response``."""
    router = answering(lambda _: response)
    return fetch_once(router, ONE, offset, ConsumerConfig(**config), Deadline.after_ms(60_000))


@pytest.mark.parametrize("sent", [b"", None], ids=["empty", "null"])
@pytest.mark.parametrize("check_crcs", [True, False])
def test_a_response_without_records_leaves_the_offset_where_it_is(
    sent: bytes | None, check_crcs: bool
) -> None:
    """Old brokers answer with a null record set at the end of the log, newer ones with an empty one."""
    response = told(p0=ErrorCode.NONE if sent is None else sent)
    fetched = fetched_with(response, check_crcs=check_crcs)
    assert (offsets_of(fetched.columns), fetched.valid.tolist(), fetched.next_offset) == ([], [], 10)


def test_the_whole_batches_before_one_that_was_cut_off_are_returned() -> None:
    fetched = fetched_with(told(p0=records(10) + records(12)[:-1]))
    assert (offsets_of(fetched.columns), fetched.next_offset) == ([10, 11], 12)


def test_a_batch_that_did_not_come_whole_is_not_taken_for_the_end_of_the_log() -> None:
    with pytest.raises(KafkaError, match="t-0 at offset 10: its batch of 77 bytes did not come whole"):
        fetched_with(told(p0=records(10)[:-1]))


def test_an_error_of_the_whole_response_is_raised_as_such() -> None:
    """And not as one of a response that lacks the partition."""
    response = replace(told(), error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    with pytest.raises(BrokerError, match="fetching t-0 at offset 10: KAFKA_STORAGE_ERROR"):
        fetched_with(response)


def test_an_offset_that_is_out_of_range_is_raised_with_the_bounds_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_bounds(_router: Any, refused: OffsetOutOfRangeError, *_: Any) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(refused.topic_partition, refused.offset, 20, 30)

    monkeypatch.setattr(module, "with_bounds", with_bounds)
    with pytest.raises(OffsetOutOfRangeError) as refused:
        fetched_with(told(p0=ErrorCode.OFFSET_OUT_OF_RANGE))
    error = refused.value
    assert (error.topic_partition, error.offset) == (ONE, 10)
    assert (error.log_start_offset, error.high_watermark) == (20, 30)


@pytest.mark.parametrize(("topic_id", "version"), [(ID, 13), (None, 12)], ids=["id", "name"])
def test_a_topic_without_an_id_is_asked_for_by_its_name(topic_id: UUID | None, version: int) -> None:
    """Later versions of the request have no name."""
    connection = World().brokers[1]
    response = told(p0=records(10))
    by_name = replace(response, responses=[replace(response.responses[0], topic="t")])
    asked: list[int] = []

    def submit(_request: Any, version: int, *_: Any) -> Any:
        asked.append(version)
        return SimpleNamespace(result=lambda _: response if topic_id else by_name)

    connection.submit = submit
    router = answering(lambda _: None)
    router.leader = lambda *_: Leader(1, 5, topic_id)
    router.connection = lambda *_: connection
    fetched = fetch_once(router, ONE, 10, ConsumerConfig(), Deadline.after_ms(60_000))
    assert (fetched.next_offset, asked) == (12, [version])


def test_each_record_has_the_validity_of_its_own_batch() -> None:
    damaged = bytearray(records(12, count=1))
    damaged[-2] ^= 1
    response = told(p0=records(9) + records(11, count=1) + bytes(damaged) + records(13))
    with pytest.raises(CorruptRecordError, match="t-0 at offset 12"):
        fetched_with(response)
    fetched = fetched_with(response, check_crcs=False)
    assert offsets_of(fetched.columns) == [10, 11, 12, 13, 14]
    assert fetched.valid.tolist() == [True, True, False, True, True]


def test_a_batch_may_not_decompress_to_more_than_the_setting_allows() -> None:
    body = gzip.compress(record(0, bytes(100_000)))
    response = told(p0=batch(body=body, count=1, attributes=1, base_offset=10))
    assert offsets_of(fetched_with(response, max_batch_bytes=200_000).columns) == [10]
    with pytest.raises(CorruptRecordError, match="t-0 at offset 10"):
        fetched_with(response, max_batch_bytes=50_000)


@pytest.mark.parametrize(
    ("level", "shown"), [(IsolationLevel.READ_COMMITTED, [10]), (IsolationLevel.READ_UNCOMMITTED, [10, 11])]
)
def test_records_of_an_aborted_transaction_are_for_an_uncommitted_reader_alone(
    level: IsolationLevel, shown: list[int]
) -> None:
    aborted = batch([record(0)], base_offset=11, attributes=0x10, producer_id=7)
    response = told(p0=records(10, count=1) + aborted + control(12, 7, 0))
    [topic] = response.responses
    [data] = topic.partitions
    data = replace(data, aborted_transactions=[FetchedAbortedTransaction(producer_id=7, first_offset=11)])
    response = replace(response, responses=[replace(topic, partitions=[data])])
    fetched = fetched_with(response, isolation_level=level)
    assert (offsets_of(fetched.columns), fetched.next_offset) == (shown, 13)


@pytest.mark.parametrize(
    ("settings", "key"),
    [({}, "\ufffd"), ({"header_keys": HeaderKeys.BYTES}, b"\xff")],
    ids=["default", "bytes"],
)
def test_a_header_key_that_is_not_utf8_is_returned_as_the_setting_says(
    settings: dict[str, Any], key: str | bytes
) -> None:
    response = told(p0=batch([record(0, headers=[(b"\xff", b"1")])], base_offset=10))
    headers = fetched_with(response, **settings).columns.headers
    assert headers is not None
    assert [one["key"] for of_record in headers.to_pylist() for one in of_record] == [key]
