"""The producer against brokers that fail on cue: nothing lost, nothing twice, nothing out of order, and
every record ends in a state that is true."""

import os
import random
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pyarrow as pa
import pytest
from produce_cluster import (
    LOST_ANSWER,
    LOST_REQUEST,
    NO_ANSWER,
    NO_ANSWER_NOT_APPLIED,
    ProduceCluster,
    Step,
    refused,
)
from scripted_broker import Cut, Dribble, Late, Log, Raw, properties

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    BrokerError,
    ConfigError,
    CorruptRecordError,
    DeadlineExceededError,
)
from spark_kafka_native.kafka.model import Acks, TopicPartition
from spark_kafka_native.kafka.producer import inquiries, splitting
from spark_kafka_native.kafka.producer.errors import (
    BufferFullError,
    DeliveryError,
    DeliveryStatus,
    ProducerClosedError,
    RecordTooLargeError,
)
from spark_kafka_native.kafka.producer.idempotence import MOST_EPOCH, ProducerIdentity
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.protocol.api.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest, ProduceResponse

TP = TopicPartition("t", 0)


@pytest.fixture
def cluster():
    with ProduceCluster() as running:
        running.create("t")
        yield running


@pytest.fixture
def two_brokers():
    with ProduceCluster(2) as running:
        running.create("t")
        yield running


@contextmanager
def producing(cluster, *, client=None, on_error=None, close_ms=5_000, **config):
    """A producer that sends every record as a batch of its own, at once."""
    config = {"batch_records": 1, "linger_ms": 0, "delivery_timeout_ms": 10_000} | config
    settings = ClientConfig.from_properties(properties(cluster.bootstrap_servers, **(client or {})))
    producer = Producer(settings, ProducerConfig(**config), on_error=on_error)
    try:
        yield producer
    finally:
        producer.close(close_ms)


def send(producer, count, start=0, topic="t"):
    return [producer.send(topic, value=b"%d" % i, partition=0) for i in range(start, start + count)]


def wait_until(true, timeout_s=10):
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.002)


def numbers(count):
    return [b"%d" % i for i in range(count)]


def test_records_arrive_in_order_and_know_where(cluster):
    with producing(cluster) as producer:
        deliveries = send(producer, 50)
        assert [d.result(5).offset for d in deliveries] == list(range(50))
        assert {d.status for d in deliveries} == {DeliveryStatus.PERSISTED}
    assert cluster.values(TP) == numbers(50)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_partition_keeps_to_one_of_the_connections(cluster, most):
    cluster.create("many", 4)
    with producing(cluster, connections_per_broker=most) as producer:
        sent = [producer.send("many", value=b"%d" % i, partition=i % 4) for i in range(200)]
        assert {delivery.result(5).status for delivery in sent} == {DeliveryStatus.PERSISTED}
    for partition in range(4):
        values = cluster.values(TopicPartition("many", partition))
        assert values == [b"%d" % i for i in range(200) if i % 4 == partition]
    taken = {
        (batch.index, asked.connection)
        for asked in cluster[1].asked
        if isinstance(asked.request, ProduceRequest)
        for topic in asked.request.topic_data
        for batch in topic.partition_data
    }
    assert len(taken) == 4
    assert len({connection for _, connection in taken}) == most


def test_all_connections_to_a_broker_are_used_where_it_leads_every_other_partition(two_brokers):
    two_brokers.create("many", 4)
    with producing(two_brokers) as producer:
        sent = [producer.send("many", value=b"x", partition=i % 4) for i in range(40)]
        assert {delivery.result(5).status for delivery in sent} == {DeliveryStatus.PERSISTED}
    for broker in two_brokers.brokers.values():
        assert len({one.connection for one in broker.asked if isinstance(one.request, ProduceRequest)}) == 2


RETRIABLE = [
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.FENCED_LEADER_EPOCH,
]


@pytest.mark.parametrize("code", RETRIABLE, ids=lambda code: code.name)
@pytest.mark.parametrize("applied", [False, True])
def test_a_retriable_refusal_is_retried_in_order(cluster, code, applied):
    with producing(cluster) as producer:
        send(producer, 3)
        producer.flush(5_000)
        cluster.script(TP, Step(applied, code), Step(False, code))
        send(producer, 20, start=3)
        producer.flush(5_000)
        assert producer.stats().errors == 0
    assert cluster.values(TP) == numbers(23)


@pytest.mark.parametrize("step", [LOST_REQUEST, LOST_ANSWER], ids=["request lost", "answer lost"])
def test_a_connection_that_dies_costs_nothing(cluster, step):
    with producing(cluster) as producer:
        send(producer, 3)
        producer.flush(5_000)
        cluster.script(TP, step)
        deliveries = send(producer, 20, start=3)
        producer.flush(5_000)
        assert [d.result(0).offset for d in deliveries] == list(range(3, 23))
    assert cluster.values(TP) == numbers(23)


@pytest.mark.parametrize("step", [NO_ANSWER, NO_ANSWER_NOT_APPLIED], ids=["applied", "not applied"])
def test_a_broker_that_does_not_answer_is_hung_up_on_and_tried_again(cluster, step):
    with producing(cluster, client={"request_timeout_ms": 300}) as producer:
        cluster.script(TP, step)
        send(producer, 5)
        producer.flush(5_000)
    assert cluster.values(TP) == numbers(5)


def test_a_retry_sends_the_same_bytes(cluster):
    with producing(cluster, batch_records=100, linger_ms=20) as producer:
        cluster.script(TP, LOST_ANSWER, refused(ErrorCode.NOT_ENOUGH_REPLICAS), LOST_REQUEST)
        send(producer, 100)
        producer.flush(5_000)
    sent = cluster.batches(TP)
    assert len(sent) == 4
    assert len({one.data for one in sent}) == 1


def test_a_duplicate_is_a_delivery_without_offset(cluster):
    cluster.duplicates_without_offset = True
    with producing(cluster) as producer:
        cluster.script(TP, LOST_ANSWER)
        delivery = send(producer, 1)[0]
        assert delivery.result(5).offset is None
        assert delivery.status is DeliveryStatus.PERSISTED
    assert cluster.values(TP) == numbers(1)


def test_requests_are_pipelined_up_to_the_limit(cluster):
    cluster.delay_s = 0.05
    with producing(cluster, max_in_flight=5) as producer:
        send(producer, 1)
        producer.flush(5_000)
        cluster.arrived.clear()
        send(producer, 30, start=1)
        time.sleep(0.2)
        lane = next(iter(producer._sender._state.lanes.values()))
        assert 2 <= len(lane.sent) <= 5
        producer.flush(10_000)
    assert cluster.values(TP) == numbers(31)


def test_the_first_batch_of_a_partition_goes_alone(cluster):
    # A broker that has no state of a producer accepts any sequence: were the first batch lost and the
    # second taken, the first could only come after it.
    cluster.delay_s = 0.05
    with producing(cluster) as producer:
        cluster.script(TP, refused(ErrorCode.NOT_ENOUGH_REPLICAS))
        send(producer, 5)
        producer.flush(5_000)
    sent = [one.header("base_sequence") for one in cluster.batches(TP)]
    assert sent[:2] == [0, 0]
    assert cluster.values(TP) == numbers(5)


def test_a_new_leader_gets_nothing_before_the_old_one_is_drained(two_brokers):
    cluster = two_brokers
    log = cluster.logs[TP]
    cluster.delay_s = 0.01
    with producing(cluster) as producer:
        for i in range(6):
            send(producer, 20, start=20 * i)
            wait_until(lambda i=i: log.end_offset >= 20 * i + 3)
            with cluster.lock:
                log.leader = 3 - log.leader
                log.leader_epoch += 1
        producer.flush(10_000)
        assert producer.stats().retries > 0
    assert cluster.values(TP) == numbers(120)


def test_a_topic_that_is_denied_for_a_while_keeps_its_numbering(cluster):
    # librdkafka 1.9.0 started again at sequence 0 and lost what the broker then took for duplicates.
    topic_id = cluster.topic_ids["t"]
    with producing(cluster) as producer:
        send(producer, 10)
        producer.flush(5_000)
        del cluster.topic_ids["t"]
        log = cluster.logs.pop(TP)
        deliveries = send(producer, 10, start=10)
        time.sleep(0.3)
        assert not any(d.done() for d in deliveries)
        cluster.logs[TP] = log
        cluster.topic_ids["t"] = topic_id
        producer.flush(5_000)
    assert cluster.values(TP) == numbers(20)
    stored = [one.header("base_sequence") for one in cluster.batches(TP)]
    assert 0 not in stored[10:]


def test_a_topic_that_stays_away_fails_by_name(cluster, monkeypatch):
    from spark_kafka_native.kafka.producer import answers

    monkeypatch.setattr(answers, "TOPIC_PROPAGATION_S", 0.3)
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(5_000)
        cluster.topic_ids.clear()
        cluster.logs.clear()
        delivery = send(producer, 1)[0]
        with pytest.raises(DeliveryError, match="UNKNOWN_TOPIC"):
            delivery.result(5)
        assert delivery.status is DeliveryStatus.NOT_PERSISTED


def test_a_topic_that_was_denied_twice_long_apart_is_not_taken_for_gone(cluster, monkeypatch):
    from spark_kafka_native.kafka.producer import answers

    monkeypatch.setattr(answers, "TOPIC_PROPAGATION_S", 0.5)
    unknown = refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(5_000)
        cluster.script(TP, unknown, *[LOST_REQUEST] * 15, unknown)
        assert send(producer, 1, start=1)[0].exception(9) is None
    assert cluster.values(TP) == numbers(2)


def test_a_topic_that_is_denied_in_spite_of_the_metadata_fails_too(cluster, monkeypatch):
    from spark_kafka_native.kafka.producer import answers

    monkeypatch.setattr(answers, "TOPIC_PROPAGATION_S", 0.3)
    with producing(cluster) as producer:
        cluster.script(TP, *[refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)] * 1_000)
        assert "UNKNOWN_TOPIC" in str(send(producer, 1)[0].exception(5))


def test_a_recreated_topic_starts_at_sequence_0(cluster):
    with producing(cluster) as producer:
        send(producer, 10)
        producer.flush(5_000)
        with cluster.lock:
            cluster.create("t")
        send(producer, 10)
        producer.flush(5_000)
    assert cluster.values(TP) == numbers(10)


def test_a_batch_that_is_too_large_is_split_in_order(cluster):
    cluster.max_message_bytes, cluster.told_max_message_bytes = 2_000, 100_000
    with producing(cluster, batch_records=100, linger_ms=50) as producer:
        values = [b"%04d" % i + b"x" * 96 for i in range(500)]
        deliveries = [producer.send("t", value=value, partition=0) for value in values]
        producer.flush(10_000)
        assert [d.result(0).offset for d in deliveries] == list(range(500))
        assert producer.stats().splits >= 5
    assert cluster.values(TP) == values


def test_a_record_that_stays_too_large_compressed_is_named_by_its_callers_row(cluster):
    cluster.create("u")
    cluster.max_message_bytes = 2_000
    values = [b"x"] * 7 + [os.urandom(5_000)] + [b"x"] * 2
    with producing(cluster, batch_records=100, linger_ms=10, compression_type="gzip") as producer:
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
        monkeypatch.setattr(splitting, "decode_record_set", decode)
        deliveries = [producer.send("t", value=b"x" * 300, partition=0) for _ in range(10)]
        error = deliveries[0].exception(5)
        assert "MESSAGE_TOO_LARGE" in str(error)
        assert "not UTF-8" in str(error)
        assert not error.retriable
        assert producer.send("t", value=b"next", partition=0).result(5).offset == 0
        producer.flush(5_000)


def test_a_single_record_that_the_broker_finds_too_large_fails_alone(cluster):
    cluster.max_message_bytes, cluster.told_max_message_bytes = 2_000, 100_000
    with producing(cluster, batch_records=10, linger_ms=50) as producer:
        values = [b"%d" % i if i != 4 else b"x" * 5_000 for i in range(10)]
        deliveries = [producer.send("t", value=value, partition=0) for value in values]
        producer.flush(10_000)
        assert deliveries[4].status is DeliveryStatus.NOT_PERSISTED
        assert not deliveries[4].exception().retriable
        assert "MESSAGE_TOO_LARGE" in str(deliveries[4].exception()) or "takes" in str(
            deliveries[4].exception()
        )
        assert sum(d.status is DeliveryStatus.PERSISTED for d in deliveries) == 9
        send(producer, 5, start=100)
        producer.flush(5_000)
    assert cluster.values(TP) == [v for v in values if len(v) < 10] + [b"%d" % i for i in range(100, 105)]


def test_a_record_over_the_known_limit_is_refused_before_it_is_taken(cluster):
    cluster.max_message_bytes = 2_000
    with producing(cluster) as producer:
        with pytest.raises(
            RecordTooLargeError, match=r"topic t: the record takes 30\d\d bytes .*allows 2000"
        ):
            producer.send("t", value=b"x" * 3_000)
        send(producer, 1)
        producer.flush(5_000)
    assert cluster.values(TP) == numbers(1)


def test_max_request_size_counts_before_compression(cluster):
    config = {"max_request_size": 2_000, "compression_type": "gzip"}
    with (
        producing(cluster, **config) as producer,
        pytest.raises(RecordTooLargeError, match=r"max\.request\.size allows 2000"),
    ):
        producer.send("t", value=b"x" * 3_000)


def test_an_unknown_code_is_final(cluster):
    cluster.script(TP, refused(ErrorCode(999)))
    with producing(cluster) as producer:
        first, second = send(producer, 2)
        with pytest.raises(DeliveryError, match="UNKNOWN_CODE_999"):
            first.result(5)
        assert second.result(5).offset == 0
    assert len(cluster.batches(TP)) == 2


@pytest.mark.parametrize(
    "code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_REQUIRED_ACKS]
)
def test_a_permanent_refusal_fails_at_once_and_the_rest_goes_on(cluster, code):
    errors = []
    told = lambda tp, records, error, retriable: errors.append((tp, records, error, retriable))  # noqa: E731
    with producing(cluster, on_error=told, keep_undelivered=True) as producer:
        send(producer, 1)
        producer.flush(5_000)
        cluster.script(TP, refused(code))
        deliveries = send(producer, 10, start=1)
        producer.flush(5_000)
        assert deliveries[0].status is DeliveryStatus.NOT_PERSISTED
        assert [d.result(0).offset for d in deliveries[1:]] == list(range(1, 10))
        ((where, records, error, retriable),) = errors
        assert (where, retriable) == (TP, False)
        assert records.value.to_pylist() == [b"1"]
        assert code.name in str(error)
        (back,) = producer.undelivered()
        assert back.records.value.to_pylist() == [b"1"]
        assert producer.undelivered() == []
    assert cluster.values(TP) == [b"0", *[b"%d" % i for i in range(2, 11)]]


def test_out_of_order_at_the_head_of_the_line_is_fatal(cluster):
    # The broker misses what it confirmed: going on would hide the hole.
    with producing(cluster) as producer:
        send(producer, 3)
        producer.flush(5_000)
        cluster.script(TP, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
        delivery = send(producer, 1)[0]
        with pytest.raises(DeliveryError, match="OUT_OF_ORDER"):
            delivery.result(5)
        with pytest.raises(ProducerClosedError, match="OUT_OF_ORDER"):
            producer.send("t", value=b"x", partition=0)


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_fenced_producer_ends(cluster, code):
    cluster.script(TP, refused(code))
    with producing(cluster) as producer:
        deliveries = send(producer, 3)
        assert all(d.exception(5) is not None for d in deliveries)
        assert len(cluster.batches(TP)) == 1


def test_a_forgotten_producer_goes_on_under_a_new_epoch(cluster):
    with producing(cluster) as producer:
        send(producer, 3)
        producer.flush(5_000)
        cluster.script(TP, refused(ErrorCode.UNKNOWN_PRODUCER_ID))
        send(producer, 3, start=3)
        producer.flush(5_000)
    assert cluster.values(TP) == numbers(6)
    last = cluster.batches(TP)[-1]
    assert (last.header("producer_epoch"), last.header("base_sequence")) == (1, 2)


def test_a_batch_that_times_out_under_way_is_possibly_persisted_and_the_rest_goes_on(cluster):
    config = {"delivery_timeout_ms": 400, "client": {"request_timeout_ms": 5_000}}
    with producing(cluster, **config) as producer:
        send(producer, 1)
        producer.flush(5_000)
        cluster.script(TP, NO_ANSWER_NOT_APPLIED)
        lost = send(producer, 1, start=1)[0]
        with pytest.raises(DeliveryError, match=r"possibly written.*delivery\.timeout\.ms=400") as caught:
            lost.result(5)
        assert caught.value.status is DeliveryStatus.POSSIBLY_PERSISTED
        assert caught.value.retriable
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(5_000)
        cluster.script(TP, NO_ANSWER_NOT_APPLIED)
    assert cluster.values(TP)[0] == b"0"


def test_what_was_never_sent_is_not_persisted(cluster):
    with producing(cluster, delivery_timeout_ms=300) as producer:
        send(producer, 1)
        producer.flush(5_000)
        cluster[1].stop()
        lost = send(producer, 2, start=1)
        statuses = {d.exception(5).status for d in lost}
        assert statuses == {DeliveryStatus.NOT_PERSISTED}
        assert "connect" in str(lost[0].exception())


def test_after_a_gap_the_numbers_start_anew(cluster):
    # The first of three is given up though the broker never had it; those behind it must not be refused
    # for that.
    with producing(cluster, delivery_timeout_ms=600) as producer:
        send(producer, 1)
        producer.flush(5_000)
        cluster.delay_s = 1.0
        cluster.script(TP, refused(ErrorCode.NOT_ENOUGH_REPLICAS))
        first = send(producer, 1, start=1)[0]
        wait_until(lambda: cluster[1].requests(ProduceRequest)[1:])
        time.sleep(0.5)
        later = send(producer, 2, start=2)
        assert first.exception(5).status is DeliveryStatus.POSSIBLY_PERSISTED
        cluster.delay_s = 0
        assert [d.exception(5) for d in later] == [None, None]
        assert [d.exception(5) for d in send(producer, 2, start=4)] == [None, None]
    assert cluster.values(TP) == [b"0", b"2", b"3", b"4", b"5"]
    assert {one.header("producer_epoch") for one in cluster.batches(TP)} == {0, 1}


def test_a_gap_is_not_closed_by_a_batch_before_it(cluster):
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(5_000)
        cluster.delay_s = 0.1
        cluster.script(TP, refused(ErrorCode.NOT_ENOUGH_REPLICAS), refused(ErrorCode.INVALID_RECORD))
        deliveries = send(producer, 5, start=1)
        producer.flush(8_000)
        assert [d.exception(0) is None for d in deliveries] == [True, False, True, True, True]
    assert cluster.values(TP) == [b"0", b"1", b"3", b"4", b"5"]


def test_sequences_wrap(cluster):
    with producing(cluster, batch_records=10, linger_ms=20) as producer:
        send(producer, 1)
        producer.flush(5_000)
        sequence = next(iter(producer._sender._state.idempotence._sequences.values()))
        sequence.next_sequence = 2**31 - 5
        state = next(iter(cluster.states.values()))
        state.last.append((2**31 - 6, 2**31 - 6, 0))
        send(producer, 30, start=1)
        producer.flush(5_000)
        assert sequence.next_sequence == 25
    assert cluster.values(TP) == numbers(31)


def test_used_up_epochs_bring_a_new_producer_id(cluster):
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(5_000)
        idempotence = producer._sender._state.idempotence
        old = idempotence.identity.producer_id
        idempotence.identity = ProducerIdentity(old, MOST_EPOCH)
        next(iter(idempotence._sequences.values())).gap = True
        send(producer, 2, start=1)
        producer.flush(5_000)
        assert idempotence.identity.producer_id == old + 1
    assert cluster.values(TP) == numbers(3)


def test_acks_0_expects_nothing(cluster):
    with producing(cluster, acks=Acks.NONE) as producer:
        deliveries = send(producer, 20)
        told = deliveries[-1].result(5)
        assert (told.offset, told.status) == (None, DeliveryStatus.POSSIBLY_PERSISTED)
        producer.flush(5_000)
        deadline = time.monotonic() + 5
        while len(cluster.values(TP)) < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert cluster.values(TP) == numbers(20)


def test_without_idempotence_a_retry_overtakes_nothing(cluster):
    with producing(cluster, acks=Acks.LEADER) as producer:
        cluster.script(TP, refused(ErrorCode.NOT_ENOUGH_REPLICAS), LOST_REQUEST)
        send(producer, 20)
        producer.flush(5_000)
    assert cluster.values(TP) == numbers(20)
    assert cluster.batches(TP)[0].header("producer_id") == -1


def test_retries_are_counted(cluster):
    cluster.script(TP, *[refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 5)
    with producing(cluster, retries=2) as producer:
        delivery = send(producer, 1)[0]
        with pytest.raises(DeliveryError, match=r"NOT_ENOUGH_REPLICAS .*after 3 attempts"):
            delivery.result(5)
    assert len(cluster.batches(TP)) == 3


def test_a_throttled_connection_is_left_alone(cluster):
    cluster.throttle_ms = 300
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(5_000)
        cluster.throttle_ms = 0
        send(producer, 1, start=1)
        producer.flush(5_000)
    first, second = cluster.batches(TP)
    assert second.at - first.at > 0.25


def test_a_full_buffer_blocks_and_then_raises(cluster):
    cluster.delay_s = 0.5
    with producing(cluster, max_buffered_records=10, max_block_ms=200) as producer:
        send(producer, 10)
        started = time.monotonic()
        with pytest.raises(
            BufferFullError, match=r"10 records and \d+ bytes wait .*queue\.buffering\.max\.messages"
        ):
            send(producer, 2, start=10)
        assert 0.15 < time.monotonic() - started < 2
        cluster.delay_s = 0
        producer.flush(20_000)


def test_a_full_buffer_may_raise_at_once(cluster):
    cluster.delay_s = 0.3
    with producing(cluster, max_buffered_records=10, block_on_buffer_full=False) as producer:
        send(producer, 10)
        started = time.monotonic()
        with pytest.raises(BufferFullError):
            send(producer, 2, start=10)
        assert time.monotonic() - started < 0.2
        cluster.delay_s = 0
        producer.flush(20_000)


def test_a_small_buffer_passes_everything(cluster):
    with producing(cluster, buffer_memory=2_000, batch_records=1_000) as producer:
        for i in range(500):
            producer.send("t", value=b"%d" % i, partition=0)
        producer.flush(10_000)
        stats = producer.stats()
        assert (stats.records, stats.buffered_records) == (500, 0)
    assert cluster.values(TP) == numbers(500)


def test_flush_has_a_deadline_and_close_gives_up_what_is_left(cluster):
    cluster.script(TP, *[NO_ANSWER_NOT_APPLIED] * 50)
    with producing(cluster) as producer:
        deliveries = send(producer, 3)
        with pytest.raises(DeadlineExceededError, match="3 records are still under way"):
            producer.flush(200)
        started = time.monotonic()
        producer.close(200)
        assert time.monotonic() - started < 3
        errors = [d.exception(0) for d in deliveries]
    assert [e.status for e in errors] == [
        DeliveryStatus.POSSIBLY_PERSISTED,
        *[DeliveryStatus.NOT_PERSISTED] * 2,
    ]
    assert "closed before" in str(errors[0])
    with pytest.raises(ProducerClosedError):
        producer.send("t", value=b"x")


def test_close_delivers_what_lingers(cluster):
    with producing(cluster, linger_ms=60_000, batch_records=1_000) as producer:
        send(producer, 5)
        started = time.monotonic()
    assert cluster.values(TP) == numbers(5)
    assert time.monotonic() - started < 3


def test_whoever_waits_does_not_wait_for_the_linger(cluster):
    with producing(cluster, linger_ms=60_000, batch_records=1_000) as producer:
        assert send(producer, 1)[0].result(5).offset == 0


def test_linger_fills_batches(cluster):
    with producing(cluster, linger_ms=100, batch_records=1_000) as producer:
        send(producer, 50)
        time.sleep(0.4)
        assert cluster.values(TP) == numbers(50)
    assert len(cluster.batches(TP)) <= 2


def test_threads_keep_their_own_order(cluster):
    def send_some(name):
        for i in range(200):
            producer.send("t", value=b"%s-%d" % (name, i), partition=0)

    with producing(cluster, batch_records=50) as producer:
        threads = [threading.Thread(target=send_some, args=(name,)) for name in (b"a", b"b", b"c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(5_000)
    values = cluster.values(TP)
    assert len(values) == 600
    for name in (b"a", b"b", b"c"):
        mine = [int(v.split(b"-")[1]) for v in values if v.startswith(name)]
        assert mine == list(range(200))


def test_the_broker_may_be_away_at_first(cluster):
    cluster[1].stop()
    timer = threading.Timer(0.5, cluster[1].start)
    timer.start()
    with producing(cluster) as producer:
        assert send(producer, 1)[0].result(5).offset == 0
    timer.join()


def test_a_missing_topic_is_named(cluster, monkeypatch):
    from spark_kafka_native.kafka.cluster import router

    monkeypatch.setattr(router, "NEW_TOPIC_WAIT_MS", 100)
    with producing(cluster) as producer, pytest.raises(BrokerError, match="topic nowhere: UNKNOWN_TOPIC"):
        producer.send("nowhere", value=b"x")


def test_idempotence_and_its_conditions():
    with pytest.raises(ConfigError, match=r"acks must be all when enable\.idempotence=true"):
        ProducerConfig(enable_idempotence=True, acks=Acks.LEADER)
    with pytest.raises(ConfigError, match="at most 5"):
        ProducerConfig(enable_idempotence=True, max_in_flight=6)
    assert ProducerConfig().idempotent
    assert not ProducerConfig(acks=Acks.LEADER).idempotent
    assert not ProducerConfig(max_in_flight=6).idempotent


@pytest.mark.parametrize("length", [0, 3, 4, 9, 30])
def test_an_answer_that_is_cut_off_is_no_answer(cluster, length):
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(5_000)
        cluster[1].push(ProduceRequest, Cut(cluster.producer(1), length))
        deliveries = send(producer, 5, start=1)
        assert [d.result(5).offset for d in deliveries] == [1, 2, 3, 4, 5]
    assert cluster.values(TP) == numbers(6)


def test_an_answer_in_dribbles_does_not_outlast_the_request_timeout(cluster):
    with producing(cluster, client={"request_timeout_ms": 400}) as producer:
        cluster[1].push(ProduceRequest, Dribble(cluster.producer(1), 1, 0.1))
        assert send(producer, 1)[0].result(5).offset == 0
        assert producer.stats().retries == 1
    assert cluster.values(TP) == numbers(1)


def test_an_answer_that_comes_too_late_answers_nothing(cluster):
    with producing(cluster, client={"request_timeout_ms": 300}) as producer:
        cluster[1].push(ProduceRequest, Late(0.6, cluster.producer(1)))
        deliveries = send(producer, 3)
        assert [d.result(5).offset for d in deliveries] == [0, 1, 2]
        time.sleep(0.5)
        assert send(producer, 1, start=3)[0].result(5).offset == 3
    assert cluster.values(TP) == numbers(4)


def test_garbage_instead_of_an_answer_closes_the_connection(cluster):
    with producing(cluster) as producer:
        cluster[1].push(ProduceRequest, Raw(b"\xff\xff\xff\xffgarbage"), Raw(b"\x7f\xff\xff\xff"))
        assert send(producer, 1)[0].result(10).offset == 0
    assert cluster.values(TP) == numbers(1)


def test_an_answer_that_leaves_a_partition_out_is_not_believed(cluster):
    with producing(cluster) as producer:
        cluster[1].push(ProduceRequest, ProduceResponse(responses=[]))
        assert send(producer, 1)[0].result(5).offset == 0
    assert cluster.values(TP) == numbers(1)


def test_a_partition_without_leader_is_waited_for(cluster):
    log = cluster.logs[TP]
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(5_000)
        log.leader = -1
        deliveries = send(producer, 5, start=1)
        time.sleep(0.3)
        assert not deliveries[0].done()
        log.leader = 1
        log.leader_epoch += 1
        assert [d.result(5).offset for d in deliveries] == [1, 2, 3, 4, 5]


def test_a_forbidden_topic_fails_at_once_and_others_go_on(cluster):
    cluster.create("free")
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(5_000)
        forbidden = cluster.forbid("t")
        with forbidden:
            cluster.script(TP, refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            delivery = send(producer, 1)[0]
            with pytest.raises(DeliveryError, match="TOPIC_AUTHORIZATION_FAILED"):
                delivery.result(5)
            assert producer.send("free", value=b"x").result(5).offset == 0
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"), producing(cluster) as other:
                other.send("t", value=b"x")


def test_a_producer_id_is_asked_for_until_there_is_one(cluster):
    loading = InitProducerIdResponse(
        throttle_time_ms=0, error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1
    )
    cluster[1].push(InitProducerIdRequest, loading, loading)
    with producing(cluster) as producer:
        assert send(producer, 1)[0].result(5).offset == 0


def test_without_the_right_to_a_producer_id_the_way_out_is_named(cluster):
    forbidden = InitProducerIdResponse(
        throttle_time_ms=0, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, producer_epoch=-1
    )
    cluster[1].push(InitProducerIdRequest, forbidden)
    told = r"CLUSTER_AUTHORIZATION_FAILED.*enable\.idempotence=false"
    with producing(cluster) as producer, pytest.raises(DeliveryError, match=told):
        send(producer, 1)[0].result(5)


@pytest.mark.parametrize("question", ["connection", "send_any", "refresh"])
def test_a_question_that_fails_unexpectedly_is_asked_again(cluster, monkeypatch, question):
    real, failed = getattr(Router, question), []

    def ask(*args, **kwargs):
        if not failed and threading.current_thread().name.startswith("kafka-producer-"):
            failed.append(question)
            raise ZeroDivisionError(question)
        return real(*args, **kwargs)

    monkeypatch.setattr(Router, question, ask)
    cluster.script(TP, refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    with producing(cluster) as producer:
        assert send(producer, 1)[0].exception(5) is None
        wait_until(lambda: failed and not producer._sender._inquiries._refreshing)


def test_where_no_thread_can_be_started_questions_are_asked_all_the_same(cluster, monkeypatch):
    def no_thread(**_kwargs):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(inquiries, "threading", SimpleNamespace(Thread=no_thread))
    with producing(cluster) as producer:
        assert send(producer, 1)[0].exception(5) is None


def test_a_connection_in_use_is_not_replaced(cluster):
    # The metadata named another address for a moment; the one that was in use is right again.
    closed = []
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(5_000)
        cluster.delay_s = 0.3
        (lane,) = [lane for lane in producer._sender._state.lanes.values() if lane.connection]
        delivery = send(producer, 1, start=1)[0]
        wait_until(lambda: lane.sent)
        other = SimpleNamespace(close=lambda: closed.append(1))
        asking = producer._sender._inquiries
        asking.answered.append(lambda: asking._connected(lane, other))
        producer._sender.wake()
        assert delivery.exception(5) is None
    assert closed


def test_a_callback_may_send_again(cluster):
    with producing(cluster, max_buffered_records=3) as producer:
        cluster.script(TP, refused(ErrorCode.INVALID_RECORD))
        first = send(producer, 1)[0]
        again = []
        first.add_done_callback(lambda _: again.append(producer.send("t", value=b"again", partition=0)))
        wait_until(lambda: again)
        assert again[0].result(5).offset == 0
    assert cluster.values(TP) == [b"again"]


def test_partitions_that_are_added_are_learnt_without_an_error(cluster):
    with producing(cluster, client={"metadata_max_age_ms": 1_000}) as producer:
        send(producer, 1)
        producer.flush(5_000)
        cluster.logs[TopicPartition("t", 1)] = Log(leader=1)
        wait_until(lambda: producer._topics["t"].targets.count == 2)
    with producing(cluster) as producer:
        with pytest.raises(ValueError, match="topic t: there is no partition 5: the topic has 2 partitions"):
            producer.send("t", value=b"x", partition=5)
        with pytest.raises(ValueError, match="row 1 for topic t: there is no partition 9"):
            producer.send_columns(pa.record_batch({"value": ["a", "b"], "partition": [0, 9]}), "t")


@pytest.mark.parametrize(
    ("topic", "value", "error"),
    [
        ("", b"", ValueError),
        ("a b", b"", ValueError),
        ("..", b"", ValueError),
        ("x" * 250, b"", ValueError),
        ("t", 5, TypeError),
    ],
)
def test_misuse_is_named_at_once(cluster, topic, value, error):
    with producing(cluster) as producer, pytest.raises(error, match=r"topic name|a record's value is bytes"):
        producer.send(topic, value=value)


@pytest.mark.parametrize(
    "use", [lambda producer: producer.send("t", value=b"from the child"), lambda producer: producer.flush()]
)
def test_a_forked_child_is_told_to_make_its_own(cluster, use):
    with producing(cluster, batch_records=1000, linger_ms=60_000) as producer:
        send(producer, 1)
        child = os.fork()
        if not child:
            try:
                use(producer)
            except ProducerClosedError as error:
                os._exit(42 if "another process" in str(error) else 43)
            finally:
                os._exit(44)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        send(producer, 1, start=1)
    assert cluster.values(TP) == numbers(2)


@pytest.mark.parametrize("seed", range(12))
def test_chaos_loses_duplicates_and_reorders_nothing(seed):
    rng = random.Random(seed)
    with ProduceCluster(3) as cluster:
        tps = cluster.create("t", 4)
        stop = threading.Event()

        def disturb():
            steps = [LOST_REQUEST, LOST_ANSWER, *[Step(rng.random() < 0.5, code) for code in RETRIABLE]]
            while not stop.wait(0.01):
                tp = rng.choice(tps)
                with cluster.lock:
                    if rng.random() < 0.5:
                        cluster.script(tp, rng.choice(steps))
                    if rng.random() < 0.2:
                        cluster.logs[tp].leader = rng.choice([1, 2, 3])
                        cluster.logs[tp].leader_epoch += 1
                if rng.random() < 0.05:
                    cluster[rng.choice([1, 2, 3])].hang_up()

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            with producing(
                cluster, batch_records=rng.choice([1, 7, 50]), delivery_timeout_ms=30_000
            ) as producer:
                sent = {tp: [] for tp in tps}
                for i in range(1_500):
                    tp = rng.choice(tps)
                    value = b"%d" % i
                    producer.send("t", value=value, partition=tp.partition)
                    sent[tp].append(value)
                    if rng.random() < 0.01:
                        time.sleep(0.005)
                stop_at = time.monotonic() + 1
                while time.monotonic() < stop_at and producer.stats().buffered_records:
                    time.sleep(0.01)
                stop.set()
                producer.flush(25_000)
                stats = producer.stats()
        finally:
            stop.set()
            thread.join()
        assert stats.errors == 0
        for tp in tps:
            assert cluster.values(tp) == sent[tp]
