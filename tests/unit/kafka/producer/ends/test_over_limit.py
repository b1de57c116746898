"""Records over a limit that are not to fail: skipped, or handed to the dead-letter topic."""

import pickle
import random

import numpy as np
import pyarrow as pa
import pytest
from support.brokers.produce_cluster import refused
from support.producer.producing import TP, producing, wait_until

from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import BrokerError, ConfigError, DeadlineExceededError
from spark_kafka_native.kafka.model import Acks, TopicPartition
from spark_kafka_native.kafka.producer.delivery import PartlyTakenError
from spark_kafka_native.kafka.producer.errors import (
    DeadLetteredError,
    DeliveryError,
    DeliveryStatus,
    RecordSkippedError,
    RecordTooLargeError,
)
from spark_kafka_native.kafka.producer.transactional_producer import TransactionalProducer
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest

DEAD = TopicPartition("dead", 0)
SKIP = {"over_limit": "skip"}
LETTERS = {"over_limit": "dead_letter", "dead_letter_topic": "dead"}
LARGE = random.Random(1).randbytes(5_000)


@pytest.fixture
def cluster(cluster):
    cluster.create("dead")
    cluster.limits = {"t": 2_000}
    return cluster


def at_send(cluster):
    return {}


def once_encoded(cluster):
    return {"compression_type": "gzip"}


def by_the_broker(cluster):
    cluster.told_max_message_bytes = 1_000_000
    return {}


PLACES = pytest.mark.parametrize(
    "place", [at_send, once_encoded, by_the_broker], ids=lambda one: one.__name__
)


@pytest.mark.parametrize("settings", [SKIP, LETTERS], ids=lambda one: one["over_limit"])
def test_a_record_too_large_for_a_partition_is_of_none(cluster, settings):
    with producing(cluster, **settings, **at_send(cluster)) as producer:
        error = producer.send("t", value=LARGE).exception(60)
    assert error.topic_partition == TopicPartition("t", -1)
    assert str(error).startswith("t: 1 record not written: it ")


def told(record):
    prefix = "__producer.errors."
    return {name.removeprefix(prefix): value.decode() for name, value in record.headers if prefix in name}


@PLACES
def test_a_record_over_the_limit_is_skipped_and_the_rest_delivered_in_order(cluster, place, caplog):
    settings = SKIP | place(cluster)
    called = []
    with producing(cluster, batch_records=10, linger_ms=50, **settings) as producer:
        values = [b"%d" % i if i != 4 else LARGE for i in range(20)]
        deliveries = [producer.send("t", value=v, partition=0, on_delivery=called.append) for v in values]
        producer.flush(60)
        error = deliveries[4].exception(0)
        assert isinstance(error, RecordSkippedError)
        assert error.topic_partition == TP
        assert deliveries[4].status is DeliveryStatus.NOT_PERSISTED
        with pytest.raises(RecordSkippedError, match="t-0: 1 record not written: it was skipped: "):
            deliveries[4].result(0)
        assert [d.result(0).offset for i, d in enumerate(deliveries) if i != 4] == list(range(19))
        assert len(called) == 20
        stats = producer.stats()
        assert (stats.skipped_records, stats.failed_records, stats.errors) == (1, 0, 0)
        assert (stats.records, stats.buffered_records, stats.buffered_bytes) == (19, 0, 0)
        assert producer.metrics().value("kafka.producer.records.skipped") == 1
        assert producer.send("t", value=b"next", partition=0).result(60).offset == 19
    assert cluster.values(TP) == [*values[:4], *values[5:], b"next"]
    assert [r.levelname for r in caplog.records if "is skipped" in r.message] == ["WARNING"]


@PLACES
def test_a_record_over_the_limit_leaves_a_dead_letter(cluster, place):
    settings = LETTERS | place(cluster)
    called = []
    with producing(cluster, batch_records=10, linger_ms=50, **settings) as producer:
        values = [b"%d" % i if i != 4 else LARGE for i in range(20)]
        deliveries = [
            producer.send(
                "t",
                v,
                key=b"key",
                partition=0,
                timestamp_ms=1_234,
                headers={"own": b"1"},
                on_delivery=called.append,
            )
            for v in values
        ]
        producer.flush(60)
        error = deliveries[4].exception(0)
        assert isinstance(error, DeadLetteredError)
        assert (error.dead_letter, error.offset, error.topic_partition) == (DEAD, 0, TP)
        assert not error.retriable
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        assert [d.result(0).offset for i, d in enumerate(deliveries) if i != 4] == list(range(19))
        assert len(called) == 20
        stats = producer.stats()
        assert (stats.dead_lettered_records, stats.skipped_records, stats.failed_records) == (1, 0, 0)
        assert (stats.records, stats.buffered_records, stats.buffered_bytes) == (20, 0, 0)
        assert producer.metrics().value("kafka.producer.records.dead_lettered") == 1
        producer.send("t", value=b"next", partition=0).result(60)
    assert cluster.values(TP) == [*values[:4], *values[5:], b"next"]
    (letter,) = cluster.records(DEAD)
    assert (letter.key, letter.value, letter.timestamp_ms) == (b"key", LARGE, 1_234)
    assert letter.headers[0] == ("own", b"1")
    headers = told(letter)
    assert (headers["topic"], headers["partition"]) == ("t", "0")
    assert (headers["value.size"], headers["value.truncated"]) == ("5000", "false")
    assert headers["exception"] in ("RecordTooLargeError", "BrokerError")
    assert "2000" in headers["message"] or "MESSAGE_TOO_LARGE" in headers["message"]


@PLACES
@pytest.mark.parametrize("settings", [SKIP, LETTERS], ids=lambda one: one["over_limit"])
def test_columns_are_sent_without_the_rows_over_the_limit(cluster, place, settings):
    cluster.create("u")
    cluster.limits["u"] = 2_000
    values = [LARGE if i in (0, 5, 11) else b"%d" % i for i in range(12)]
    rows = pa.record_batch(
        {
            "value": values,
            "topic": ["t" if i < 6 else "u" for i in range(12)],
            "partition": pa.array([0] * 12, pa.int32()),
        }
    )
    with producing(cluster, batch_records=10, linger_ms=10, **settings, **place(cluster)) as producer:
        delivery = producer.send_columns(rows)
        errors = delivery.exceptions(60)
        assert len(errors) == 3
        assert {type(error) for error in errors} == {RecordSkippedError, DeadLetteredError} & {
            RecordSkippedError if settings is SKIP else DeadLetteredError
        }
        assert [i for i, status in enumerate(delivery.status()) if status == 0] == [0, 5, 11]
        assert delivery.first_failure() is None
        with pytest.raises(DeliveryError):
            delivery.result(0)
    assert cluster.values(TP) == [b"1", b"2", b"3", b"4"]
    assert cluster.values(TopicPartition("u", 0)) == [b"6", b"7", b"8", b"9", b"10"]
    assert cluster.values(DEAD) == ([] if settings is SKIP else [LARGE] * 3)
    assert sorted(told(r)["topic"] for r in cluster.records(DEAD)) == (
        [] if settings is SKIP else ["t", "t", "u"]
    )


def test_dead_letters_of_columns_have_the_order_of_their_rows(cluster):
    """Rows over the topic's limit and rows over that of the buffer are found one kind after the other."""
    sizes = [5_000, 50_000, 1, 6_000, 60_000]
    rows = pa.record_batch({"value": [bytes(size) for size in sizes]})
    with producing(cluster, buffer_memory=40_000, **LETTERS) as producer:
        errors = producer.send_columns(rows, "t", 0).exceptions(60)
    letters = [told(record)["value.size"] for record in cluster.records(DEAD)]
    assert letters == ["5000", "50000", "6000", "60000"]
    assert [error.offset for error in errors] == [0, 1, 2, 3]
    assert cluster.values(TP) == [bytes(1)]


def test_a_value_that_does_not_fit_the_dead_letter_topic_is_truncated(cluster):
    cluster.limits["dead"] = 3_000
    with producing(cluster, **LETTERS) as producer:
        assert isinstance(producer.send("t", LARGE, key=b"k", partition=0).exception(60), DeadLetteredError)
    (letter,) = cluster.records(DEAD)
    headers = told(letter)
    assert (headers["value.size"], headers["value.truncated"]) == ("5000", "true")
    assert (headers["limit"], headers["limit.name"]) == ("2000", "the topic's max.message.bytes")
    assert LARGE.startswith(letter.value)
    assert 2_950 < len(cluster.logs[DEAD].batches[0]) <= 3_000


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd"])
def test_a_truncated_value_fits_however_badly_it_compresses(cluster, codec):
    cluster.limits["dead"] = 3_000
    with producing(cluster, compression_type=codec, **LETTERS) as producer:
        assert isinstance(producer.send("t", LARGE, partition=0).exception(60), DeadLetteredError)
        whole = b"x" * 5_000 + LARGE[:2_000]  # too large for its topic, and not for the other one
        assert isinstance(producer.send("t", whole, partition=0).exception(60), DeadLetteredError)
    first, second = cluster.records(DEAD)
    assert 2_300 < len(first.value) < 3_000
    assert (second.value, told(second)["value.truncated"]) == (whole, "false")


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd"])
def test_a_truncated_value_of_many_compressed_blocks_fits_too(cluster, codec):
    """Each block of what can't be compressed grows: the larger the limit, the more room that takes."""
    cluster.limits["dead"] = 1_000_000
    value = random.Random(1).randbytes(1_005_000)
    with producing(cluster, compression_type=codec, **LETTERS) as producer:
        assert isinstance(producer.send("t", value, partition=0).exception(60), DeadLetteredError)
    (letter,) = cluster.records(DEAD)
    assert value.startswith(letter.value)
    assert len(letter.value) > 980_000


def test_a_record_over_max_request_size_or_the_buffer_is_truncated_to_it(cluster):
    cluster.limits = {}
    for settings, limit in (({"max_request_size": 2_000}, 2_000), ({"buffer_memory": 1_500}, 1_500)):
        with producing(cluster, **LETTERS, **settings) as producer:
            assert isinstance(producer.send("t", LARGE).exception(60), DeadLetteredError)
            assert producer.send("t", value=b"x").result(60)
        letter = cluster.records(DEAD)[-1]
        assert limit - 100 < len(cluster.logs[DEAD].batches[-1]) <= limit
        assert told(letter)["value.truncated"] == "true"
        assert "partition" not in told(letter)  # it was not given one


@pytest.mark.parametrize("settings", [{"max_request_size": 2_000}, {"buffer_memory": 2_000}])
def test_a_dead_letter_is_truncated_to_limits_that_count_before_compression(cluster, settings):
    cluster.limits = {}
    with producing(cluster, compression_type="gzip", **LETTERS, **settings) as producer:
        assert isinstance(producer.send("t", b"x" * 5_000).exception(60), DeadLetteredError)
    (letter,) = cluster.records(DEAD)
    assert told(letter)["value.truncated"] == "true"
    assert 1_000 < len(letter.value) < 2_000


def test_a_null_value_stays_null(cluster):
    with producing(cluster, **LETTERS) as producer:
        assert isinstance(producer.send("t", key=LARGE, partition=0).exception(60), DeadLetteredError)
    (letter,) = cluster.records(DEAD)
    assert (letter.key, letter.value) == (LARGE, None)
    assert "value.size" not in told(letter)


def test_letters_keep_their_partition_as_far_as_there_are_as_many(cluster):
    cluster.create("many", 5)
    cluster.create("two", 2)
    settings = {"over_limit": "dead_letter", "dead_letter_topic": "two", "partitioner": "explicit"}
    cluster.limits["many"] = 2_000
    with producing(cluster, **settings) as producer:
        found = [producer.send("many", value=LARGE, partition=p).exception(60) for p in range(5)]
    assert [error.dead_letter.partition for error in found] == [0, 1, 0, 1, 0]


def test_records_of_the_dead_letter_topic_itself_fail(cluster):
    cluster.limits["dead"] = 2_000
    with producing(cluster, **LETTERS) as producer:
        with pytest.raises(RecordTooLargeError):
            producer.send("dead", value=LARGE)
        with pytest.raises(RecordTooLargeError, match="row 1 for topic dead"):
            producer.send_columns(pa.record_batch({"value": [b"x", LARGE]}), "dead")
        assert producer.send("dead", value=b"x").result(60)
    assert cluster.values(DEAD) == [b"x"]


def test_a_dead_letter_that_the_broker_finds_too_large_fails_and_leaves_none(cluster):
    cluster.told_max_message_bytes, cluster.limits["dead"] = 1_000_000, 2_000
    handed_back = []
    with producing(cluster, on_error=lambda *told: handed_back.append(told), **LETTERS) as producer:
        delivery = producer.send("t", LARGE, key=b"k", partition=0)
        error = delivery.exception(60)
        assert not isinstance(error, DeadLetteredError)
        assert str(error).count("MESSAGE_TOO_LARGE") == 2
        assert "its dead letter failed, too: dead-0: 1 record not written" in str(error)
        assert isinstance(error.__cause__, BrokerError)
        assert producer.send("t", value=b"x", partition=0).result(60)
        stats = producer.stats()
        assert (stats.failed_records, stats.dead_lettered_records, stats.buffered_bytes) == (1, 0, 0)
    assert [(where, records.value.to_pylist()) for where, records, *_ in handed_back] == [(DEAD, [LARGE])]
    assert len(cluster.batches(DEAD)) == 1


@PLACES
def test_a_record_whose_dead_letter_fits_nowhere_fails_clearly(cluster, place):
    settings = place(cluster)
    cluster.limits["dead"] = 2_000
    cluster.told_max_message_bytes = None if place is not by_the_broker else 4_000
    with producing(cluster, batch_records=10, linger_ms=10, **LETTERS, **settings) as producer:
        if place is at_send:
            with pytest.raises(RecordTooLargeError, match="the dead-letter topic allows 2000"):
                producer.send("t", b"x", key=LARGE, partition=0)
        else:
            error = producer.send("t", b"x", key=LARGE[:3_900], partition=0).exception(60)
            assert not error.by_choice
            assert "dead letter" in str(error)
        assert producer.send("t", value=b"x", partition=0).result(60)


@PLACES
def test_a_dead_letter_that_fails_is_said_with_both_reasons(cluster, place):
    settings = place(cluster)
    cluster.script(DEAD, refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with producing(cluster, keep_undelivered=True, **LETTERS, **settings) as producer:
        error = producer.send("t", LARGE, key=b"k", partition=0).exception(60)
        assert not error.by_choice
        assert "TOPIC_AUTHORIZATION_FAILED" in str(error)
        assert "2000" in str(error) or "MESSAGE_TOO_LARGE" in str(error)
        assert producer.stats().failed_records == 1
        (left,) = producer.undelivered()
        assert (left.topic_partition, left.records.value.to_pylist()) == (DEAD, [LARGE])
        assert producer.send("t", value=b"x", partition=0).result(60)


def test_columns_fail_for_what_failed_before_what_was_chosen(cluster):
    cluster.script(TP, refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with producing(cluster, **SKIP) as producer:
        delivery = producer.send_columns(pa.record_batch({"value": [LARGE, b"x"]}), "t", 0)
        with pytest.raises(DeliveryError, match="TOPIC_AUTHORIZATION_FAILED"):
            delivery.result(60)
        row, error = delivery.first_failure()
        assert (row, error.by_choice) == (1, False)


# Waiting.


@PLACES
def test_flush_waits_for_dead_letters(cluster, place):
    settings = place(cluster)
    cluster.script(DEAD, *[refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 100_000)
    with producing(cluster, **LETTERS, **settings) as producer:
        delivery = producer.send("t", LARGE, key=b"k", partition=0)
        wait_until(lambda: cluster.batches(DEAD))
        with pytest.raises(DeadlineExceededError):
            producer.flush(0.05)
        assert not delivery.done()
        cluster.scripts[DEAD].clear()
        producer.flush(60)
        assert isinstance(delivery.exception(0), DeadLetteredError)


def test_a_dead_letter_does_not_linger(cluster):
    by_the_broker(cluster)
    with producing(
        cluster, batch_records=100, linger_ms=3_600_000, delivery_timeout_ms=3_600_000, **LETTERS
    ) as producer:
        deliveries = [producer.send("t", value=v, partition=0) for v in (b"1", LARGE, b"2")]
        producer.flush(60)
        assert isinstance(deliveries[1].exception(0), DeadLetteredError)
    assert cluster.values(TP) == [b"1", b"2"]


@PLACES
def test_close_delivers_dead_letters(cluster, place):
    settings = place(cluster)
    with producing(
        cluster,
        batch_records=100,
        linger_ms=3_600_000,
        delivery_timeout_ms=3_600_000,
        close_ms=60_000,
        **LETTERS,
        **settings,
    ) as producer:
        deliveries = [producer.send("t", value=v, partition=0) for v in (b"1", LARGE, b"2", LARGE)]
    assert [type(d.exception(0)) for d in deliveries] == [type(None), DeadLetteredError] * 2
    assert cluster.values(DEAD) == [LARGE] * 2


@pytest.mark.parametrize("place", [once_encoded, by_the_broker], ids=lambda one: one.__name__)
def test_close_gives_dead_letters_up_when_its_time_is_over(cluster, place):
    settings = place(cluster)
    cluster.script(DEAD, *[refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 100_000)
    with producing(cluster, close_ms=1, **LETTERS, **settings) as producer:
        delivery = producer.send("t", value=LARGE, partition=0)
        wait_until(lambda: cluster.batches(DEAD))
    error = delivery.exception(0)
    assert "was closed" in str(error)
    assert "its dead letter failed, too" in str(error)
    assert producer.stats().buffered_bytes == 0


def test_the_sender_never_waits_for_room_for_a_dead_letter(cluster):
    by_the_broker(cluster)
    values = [b"%d" % i + LARGE if i % 3 else b"%d" % i for i in range(60)]
    with producing(
        cluster, batch_records=4, linger_ms=1, buffer_memory=11_000, max_buffered_records=3, **LETTERS
    ) as producer:
        deliveries = [producer.send("t", value=v, partition=0) for v in values]
        producer.flush(60)
        assert sum(isinstance(d.exception(0), DeadLetteredError) for d in deliveries) == 40
        assert producer.stats().buffered_bytes == 0
    assert cluster.values(TP) == values[::3]
    assert cluster.values(DEAD) == [v for v in values if len(v) > 10]


def test_where_dead_letters_find_no_room_the_columns_are_taken_in_part(cluster):
    settings = {
        "block_on_buffer_full": False,
        "buffer_memory": 9_000,
        "linger_ms": 3_600_000,
        "delivery_timeout_ms": 3_600_000,
    }
    cluster.script(TP, *[refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 100_000)
    rows = pa.record_batch({"value": [b"x" * 1_500, LARGE, b"x" * 1_500, LARGE]})
    with producing(cluster, batch_records=100, **settings, **LETTERS) as producer:
        with pytest.raises(PartlyTakenError, match="3 of 4 rows were taken") as caught:
            producer.send_columns(rows, "t", 0)
        cluster.scripts[TP].clear()
        delivery = caught.value.delivery
        (first, second) = sorted(delivery.exceptions(60), key=lambda error: not error.by_choice)
        assert isinstance(first, DeadLetteredError)
        assert "no room" in str(second)
        assert delivery.first_failure()[0] == 3
    assert cluster.values(DEAD) == [LARGE]


def test_where_columns_are_taken_in_part_each_row_has_ended_all_the_same(cluster):
    calls = []

    def fail_later(_topic, keys, _count):
        calls.append(len(keys))
        if len(calls) > 1:
            raise ZeroDivisionError("mine")
        return np.zeros(len(keys), np.int32)

    rows = pa.record_batch({"value": [LARGE, *[b"x"] * 20, LARGE]})
    with producing(cluster, partitioner=fail_later, max_buffered_records=40, **SKIP) as producer:
        with pytest.raises(PartlyTakenError) as caught:
            producer.send_columns(rows, "t")
        delivery = caught.value.delivery
        errors = delivery.exceptions(10)
        assert sum(isinstance(error, RecordSkippedError) for error in errors) == 2
        assert delivery.first_failure()[0] == 11
        assert producer.stats().skipped_records == 2
    assert cluster.values(TP) == [b"x"] * 10


def test_where_nothing_could_be_taken_nothing_is_skipped(cluster):
    settings = {
        "block_on_buffer_full": False,
        "buffer_memory": 2_500,
        "linger_ms": 3_600_000,
        "delivery_timeout_ms": 3_600_000,
    }
    # A caller that wants room hurries the first batch, because its end would make some.
    cluster.script(TP, *[refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 100_000)
    with producing(cluster, batch_records=100, **settings, **SKIP) as producer:
        producer.send("t", value=b"x" * 1_500, partition=0)
        with pytest.raises(Exception, match="no room"):
            producer.send_columns(pa.record_batch({"value": [b"x" * 1_500, LARGE]}), "t", 0)
        assert producer.stats().skipped_records == 0
        cluster.scripts[TP].clear()


# Numbers.


@pytest.mark.parametrize("settings", [SKIP, LETTERS], ids=lambda one: one["over_limit"])
def test_the_sequence_goes_on_behind_what_was_taken_out(cluster, settings):
    by_the_broker(cluster)
    rng = random.Random(7)
    values = [b"%05d" % i + (LARGE if rng.random() < 0.03 else b"") for i in range(400)]
    with producing(cluster, batch_records=20, linger_ms=1, max_in_flight=5, **settings) as producer:
        deliveries = [producer.send("t", value=v, partition=0) for v in values]
        producer.flush(120)
        kept = [v for v in values if len(v) == 5]
        assert [d.result(0).offset for v, d in zip(values, deliveries, strict=True) if len(v) == 5] == list(
            range(len(kept))
        )
        assert producer.stats().errors == 0
    assert cluster.values(TP) == kept
    assert cluster.values(DEAD) == ([] if settings is SKIP else [v for v in values if len(v) > 5])


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE])
def test_the_record_is_looked_for_in_whatever_is_refused_for_its_size(cluster, code):
    by_the_broker(cluster)
    cluster.too_large = code
    with producing(cluster, batch_records=10, linger_ms=50, **SKIP) as producer:
        values = [b"%d" % i if i != 4 else LARGE for i in range(10)]
        deliveries = [producer.send("t", value=value, partition=0) for value in values]
        producer.flush(60)
        assert [d.exception(0) is None for d in deliveries] == [i != 4 for i in range(10)]


def test_a_batch_over_the_segments_size_fails_as_a_whole_where_records_fail(cluster):
    by_the_broker(cluster)
    cluster.too_large = ErrorCode.RECORD_LIST_TOO_LARGE
    with producing(cluster, batch_records=10, linger_ms=50) as producer:
        values = [b"%d" % i if i != 4 else LARGE for i in range(10)]
        deliveries = [producer.send("t", value=value, partition=0) for value in values]
        producer.flush(60)
        assert all("RECORD_LIST_TOO_LARGE" in str(d.exception(0)) for d in deliveries)


@pytest.mark.parametrize("acks", ["0", "1"])
def test_without_sequence_numbers_the_order_holds_too(cluster, acks):
    values = [b"%d" % i if i % 5 else LARGE for i in range(50)]
    with producing(cluster, acks=acks, batch_records=10, compression_type="gzip", **LETTERS) as producer:
        for value in values:
            producer.send("t", value=value, partition=0)
        producer.flush(60)
        assert producer.stats().dead_lettered_records == 10
    written = [v for v in values if len(v) < 10]
    # With acks=0 the broker may still be reading what the producer is done with.
    wait_until(lambda: len(cluster.values(TP)) >= len(written) and len(cluster.values(DEAD)) >= 10)
    assert cluster.values(TP) == written
    assert cluster.values(DEAD) == [LARGE] * 10


# The requests.


def test_a_dead_letter_topic_that_is_not_there_is_said_before_anything_is_taken(cluster):
    with (
        cluster.forbid("dead"),
        producing(cluster, **LETTERS) as producer,
        pytest.raises(BrokerError, match="dead"),
    ):
        producer.send("t", value=b"x")


def test_each_topic_is_asked_about_once_and_the_dead_letter_topic_first(cluster):
    cluster.create("u")
    with producing(cluster, **LETTERS) as producer:
        for topics in (["dead"], ["t"], ["dead", "t", "u"]):
            rows = pa.record_batch({"value": [b"x"] * len(topics), "topic": topics})
            assert not producer.send_columns(rows).exceptions(60)
    asked = [request.topics for request in cluster[1].requests(MetadataRequest) if request.topics]
    assert [[topic.name for topic in topics] for topics in asked] == [["dead"], ["t"], ["u"]]


def test_no_topic_takes_records_before_the_dead_letter_topic_is_known(cluster):
    with producing(cluster, **LETTERS) as producer:
        producer.send("t", value=b"0", partition=0).result(60)
        assert list(producer._buffers) == ["dead", "t"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"over_limit": "drop"}, "over.limit must be one of fail, skip, dead_letter"),
        ({"over_limit": "dead_letter"}, "over.limit=dead_letter needs dead.letter.topic"),
        ({"dead_letter_topic": "dead"}, "no effect without over.limit=dead_letter"),
        ({"over_limit": "skip", "dead_letter_topic": "dead"}, "no effect without over.limit=dead_letter"),
        ({"spill_dir": "/spilled", "acks": Acks.NONE, "enable_idempotence": False}, "spill.dir needs acks=1"),
    ],
)
def test_settings_that_say_nothing_clear_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        ProducerConfig(**settings)


@pytest.mark.parametrize("acks", [Acks.LEADER, Acks.ALL])
def test_a_spill_folder_goes_with_each_acks_that_is_an_answer(acks):
    assert ProducerConfig(spill_dir="/spilled", acks=acks, enable_idempotence=False).acks is acks


def test_the_settings_as_properties():
    given = {"over.limit": "Dead.Letter", "dead.letter.topic": "dead"}
    config = ProducerConfig.from_properties(given)
    assert (config.over_limit, config.dead_letter_topic) == ("dead_letter", "dead")
    assert ProducerConfig().over_limit == "fail"


@pytest.mark.parametrize("settings", [SKIP, LETTERS], ids=lambda one: one["over_limit"])
def test_transactions_refuse_both(settings):
    with pytest.raises(ConfigError, match="can't be used in transactions"):
        TransactionalProducer(
            ClientConfig(bootstrap_servers=("localhost:1",)), "id", ProducerConfig(**settings)
        )


def test_a_letter_of_a_record_that_the_broker_finds_too_large_names_its_partition(cluster):
    cluster.create("two", 2)
    cluster.limits["two"] = 2_000
    settings = LETTERS | {"dead_letter_topic": "dead", "partitioner": "explicit"} | by_the_broker(cluster)
    with producing(cluster, **settings) as producer:
        assert isinstance(producer.send("two", value=LARGE, partition=1).exception(60), DeadLetteredError)
    (letter,) = cluster.records(DEAD)
    assert (told(letter)["topic"], told(letter)["partition"]) == ("two", "1")
