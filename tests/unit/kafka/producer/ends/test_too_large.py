"""Batches and records over a limit: split, named, and no trouble for others."""

import os
from contextlib import nullcontext

import pyarrow as pa
import pytest
from support.brokers.produce_cluster import LOST_ANSWER, LOST_REQUEST, refused
from support.producer.producing import TP, numbers, producing, send

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    CorruptRecordError,
)
from spark_kafka_native.kafka.producer.accumulating import batch as batches
from spark_kafka_native.kafka.producer.errors import (
    DeliveryStatus,
    ProducerClosedError,
    RecordTooLargeError,
)


def test_a_batch_that_is_too_large_is_split_in_order(cluster):
    cluster.max_message_bytes, cluster.told_max_message_bytes = 2_000, 100_000
    with producing(cluster, batch_records=100, linger_ms=50) as producer:
        values = [b"%04d" % i + b"x" * 96 for i in range(500)]
        deliveries = [producer.send("t", value=value, partition=0) for value in values]
        producer.flush(60)
        assert [d.result(0).offset for d in deliveries] == list(range(500))
        assert producer.stats().splits >= 5
    assert cluster.values(TP) == values


def test_a_batch_that_may_be_in_the_log_is_split_with_a_warning(cluster, caplog):
    """As where ``max.message.bytes`` is lowered between two attempts: brokers look at the size first."""
    cluster.script(TP, LOST_ANSWER, refused(ErrorCode.MESSAGE_TOO_LARGE))
    settings = {"enable_idempotence": False, "batch_records": 4, "linger_ms": 1_000}
    with producing(cluster, **settings) as producer:
        for value in numbers(4):
            producer.send("t", value=value, partition=0)
        producer.flush(60)
    assert cluster.values(TP) == numbers(4) * 2
    assert "may have been written already" in caplog.text


@pytest.mark.parametrize(
    ("first", "status", "goes_on"),
    [
        (LOST_ANSWER, DeliveryStatus.POSSIBLY_PERSISTED, pytest.raises(ProducerClosedError, match="ORDER")),
        (LOST_REQUEST, DeliveryStatus.PERSISTED, nullcontext()),
    ],
    ids=["in the log", "not in the log"],
)
def test_halves_of_a_batch_that_may_be_in_the_log_are_written_once(cluster, caplog, first, status, goes_on):
    """The broker does not recognise halves of a batch that it has: the producer ends."""
    with producing(cluster, batch_records=4, linger_ms=1_000) as producer:
        producer.send("t", value=b"first", partition=0)
        producer.flush(60)
        cluster.script(TP, first, refused(ErrorCode.MESSAGE_TOO_LARGE))
        deliveries = [producer.send("t", value=value, partition=0) for value in numbers(4)]
        producer.flush(60)
        assert {one.status for one in deliveries} == {status}
        with goes_on:
            producer.send("t", value=b"last", partition=0).result(60)
    last = [b"last"] if status is DeliveryStatus.PERSISTED else []
    assert cluster.values(TP) == [b"first", *numbers(4), *last]
    assert "may have been written already" in caplog.text


def test_the_halves_of_a_refused_batch_are_overtaken_by_nothing_where_retries_are_off(cluster):
    cluster.max_message_bytes, cluster.told_max_message_bytes = 2_000, 100_000
    cluster.delay_s = 0.05  # for a second batch to be there before the first is refused
    settings = {"retries": 0, "enable_idempotence": False, "batch_records": 10, "linger_ms": 5}
    with producing(cluster, **settings) as producer:
        values = [b"%02d" % i + b"x" * (300 if i < 10 else 0) for i in range(30)]
        deliveries = [producer.send("t", value=value, partition=0) for value in values]
        assert [d.result(60).offset for d in deliveries] == list(range(30))
        assert producer.stats().splits
    assert cluster.values(TP) == values


@pytest.mark.parametrize("buffered", [500_000, 16], ids=["in one piece", "in slices of 4 rows"])
def test_a_record_that_stays_too_large_compressed_is_named_by_its_callers_row(cluster, buffered):
    cluster.create("u")
    cluster.max_message_bytes = 2_000
    values = [b"x"] * 7 + [os.urandom(5_000)] + [b"x"] * 2
    config = {"batch_records": 100, "linger_ms": 10, "compression_type": "gzip"}
    with producing(cluster, max_buffered_records=buffered, **config) as producer:
        whole = producer.send_columns(pa.record_batch({"value": values}), "t", 0)
        of_two = producer.send_columns(pa.record_batch({"topic": ["u"] * 5 + ["t"] * 5, "value": values}))
        for delivery in (whole, of_two):
            assert len(delivery.exceptions(5)) == 1
            assert delivery.first_failure()[0] == 7
        assert "row 7 for topic t" in str(whole.first_failure()[1])
        assert "row 2" not in str(of_two.first_failure()[1])


def test_a_batch_that_is_too_large_and_cannot_be_read_fails_alone(cluster, monkeypatch):
    def decode(*_args, **_kwargs):
        raise CorruptRecordError("a header key is not UTF-8", 0)

    cluster.max_message_bytes, cluster.told_max_message_bytes = 2_000, 100_000
    with producing(cluster, batch_records=10, linger_ms=50, on_error=lambda *_: None) as producer:
        monkeypatch.setattr(batches, "decode_record_set", decode)
        deliveries = [producer.send("t", value=b"x" * 300, partition=0) for _ in range(10)]
        error = deliveries[0].exception(60)
        assert "MESSAGE_TOO_LARGE" in str(error)
        assert "not UTF-8" in str(error)
        assert not error.retriable
        assert producer.send("t", value=b"next", partition=0).result(60).offset == 0
        producer.flush(60)


def test_a_single_record_that_the_broker_finds_too_large_fails_alone(cluster):
    cluster.max_message_bytes, cluster.told_max_message_bytes = 2_000, 100_000
    with producing(cluster, batch_records=10, linger_ms=50) as producer:
        values = [b"%d" % i if i != 4 else b"x" * 5_000 for i in range(10)]
        deliveries = [producer.send("t", value=value, partition=0) for value in values]
        producer.flush(60)
        assert deliveries[4].status is DeliveryStatus.NOT_PERSISTED
        assert not deliveries[4].exception().retriable
        assert "MESSAGE_TOO_LARGE" in str(deliveries[4].exception()) or "takes" in str(
            deliveries[4].exception()
        )
        assert sum(d.status is DeliveryStatus.PERSISTED for d in deliveries) == 9
        send(producer, 5, start=100)
        producer.flush(60)
    assert cluster.values(TP) == [v for v in values if len(v) < 10] + [b"%d" % i for i in range(100, 105)]


def test_a_record_over_the_known_limit_is_refused_before_it_is_taken(cluster):
    cluster.max_message_bytes = 2_000
    with producing(cluster) as producer:
        with pytest.raises(
            RecordTooLargeError, match=r"topic t: the record takes 30\d\d bytes .*allows 2000"
        ):
            producer.send("t", value=b"x" * 3_000)
        send(producer, 1)
        producer.flush(60)
    assert cluster.values(TP) == numbers(1)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("setting", ["max.message.bytes", "max.request.size"])
def test_the_smaller_of_two_limits_counts_to_the_byte(cluster, setting, columns):
    def put(producer, value):
        if columns:
            return producer.send_columns(pa.record_batch({"value": [value]}), "t", 0)
        return producer.send("t", value=value, partition=0)

    fits = b"x" * 1_900
    with producing(cluster) as producer:
        put(producer, fits).result(60)
    (first,) = cluster.batches(TP)
    limit = len(first.data)
    cluster.max_message_bytes = limit if setting == "max.message.bytes" else 1_000_000
    own = limit if setting == "max.request.size" else 1_000_000
    with producing(cluster, max_request_size=own) as producer:
        put(producer, fits).result(60)
        with pytest.raises(RecordTooLargeError, match=f"takes {limit + 1} bytes .*{setting} allows {limit}"):
            put(producer, fits + b"x")
    assert cluster.values(TP) == [fits] * 2


@pytest.mark.parametrize("max_request_size", [None, 10_000])
def test_the_limit_of_a_topic_counts_after_compression(cluster, max_request_size):
    cluster.max_message_bytes = 2_000
    with producing(cluster, max_request_size=max_request_size, compression_type="gzip") as producer:
        producer.send("t", value=b"x" * 5_000, partition=0).result(60)
    assert cluster.values(TP) == [b"x" * 5_000]


def test_max_request_size_counts_before_compression(cluster):
    config = {"max_request_size": 2_000, "compression_type": "gzip"}
    with (
        producing(cluster, **config) as producer,
        pytest.raises(RecordTooLargeError, match=r"max\.request\.size allows 2000"),
    ):
        producer.send("t", value=b"x" * 3_000)
