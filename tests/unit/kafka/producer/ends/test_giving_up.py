"""Batches that are not delivered in time: reported as they are, and no trouble for others."""

import logging
import threading

import pytest
from support.brokers.produce_cluster import LOST_ANSWER, NO_ANSWER_NOT_APPLIED, Step, refused
from support.brokers.scripted_broker import Late
from support.producer.producing import TP, numbers, producing, send, wait_until

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.network.connection import Connection
from spark_kafka_native.kafka.producer.accumulating.topic_buffer import TopicBuffer
from spark_kafka_native.kafka.producer.errors import DeliveryError, DeliveryStatus, ProducerClosedError
from spark_kafka_native.kafka.producer.sending.partition_queue import PartitionQueue
from spark_kafka_native.kafka.producer.transactional_producer import TransactionalProducer
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.testing import MockBroker

pytestmark = pytest.mark.timed(0.1)


def test_a_batch_that_times_out_under_way_is_possibly_persisted_and_the_rest_goes_on(cluster):
    config = {"delivery_timeout_ms": 400, "client": {"request_timeout_ms": 5_000}}
    with producing(cluster, **config) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster.script(TP, NO_ANSWER_NOT_APPLIED)
        lost = send(producer, 1, start=1)[0]
        with pytest.raises(DeliveryError, match=r"possibly written.*delivery\.timeout\.ms=400") as caught:
            lost.result(60)
        assert caught.value.status is DeliveryStatus.POSSIBLY_PERSISTED
        assert caught.value.retriable
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster.script(TP, NO_ANSWER_NOT_APPLIED)
    assert cluster.values(TP)[0] == b"0"


def test_what_was_never_sent_is_not_persisted(cluster):
    with producing(cluster, delivery_timeout_ms=1_500) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster[1].stop()
        lost = send(producer, 2, start=1)
        statuses = {d.exception(60).status for d in lost}
        assert statuses == {DeliveryStatus.NOT_PERSISTED}
        assert "connect" in str(lost[0].exception())


@pytest.mark.parametrize("hears", ["nothing", "on_error", "undelivered", "on_delivery"])
def test_a_program_that_looks_at_no_delivery_hears_of_losses(cluster, caplog, hears):
    """With all of them refused its log was empty."""
    given = {"on_error": lambda *_: None} if hears == "on_error" else {}
    caplog.set_level(logging.WARNING, "spark_kafka_native")
    cluster.script(TP, *[refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)] * 3)
    # Nothing is sent before `flush`: by then the callback is there.
    with producing(cluster, linger_ms=60_000, keep_undelivered=hears == "undelivered", **given) as producer:
        for start in range(3):
            on_delivery = (lambda _: None) if hears == "on_delivery" else None
            producer.send(TP.topic, value=b"%d" % start, partition=TP.partition, on_delivery=on_delivery)
            producer.flush(60)
    said = [one.getMessage() for one in caplog.records if "not written" in one.getMessage()]
    assert len(said) == (hears == "nothing")
    assert all(one.startswith("t-0: 1 record not written: Produce to t-0: TOPIC_AUTHORIZ") for one in said)


def test_a_transaction_says_losses_where_it_ends(cluster, caplog):
    caplog.set_level(logging.WARNING, "spark_kafka_native")
    with MockBroker() as broker:
        broker.create_topic("t")
        with TransactionalProducer(broker.bootstrap_servers, "x") as producer:
            producer.begin()
            producer.send("t", b"x")
            producer.abort()
    assert caplog.records == []


def test_a_success_after_the_timeout_changes_nothing_that_was_told(cluster):
    with producing(cluster, delivery_timeout_ms=400, client={"request_timeout_ms": 10_000}) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster[1].push(ProduceRequest, Late(1.2, cluster.producer(1)))
        late = send(producer, 1, start=1)[0]
        assert late.exception(60).status is DeliveryStatus.POSSIBLY_PERSISTED
        connections = producer._sender.loop.connections
        wait_until(lambda: not any(connection.in_flight for connection in connections))
        stats = producer.stats()
        assert (stats.records, stats.failed_records, stats.errors) == (1, 1, 1)
        assert (stats.buffered_records, stats.buffered_bytes) == (0, 0)
        assert producer._memory.used[0] >= 0
        assert late.status is DeliveryStatus.POSSIBLY_PERSISTED
        assert send(producer, 1, start=2)[0].exception(60) is None
    assert cluster.values(TP) == numbers(3)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, DeliveryStatus.POSSIBLY_PERSISTED),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, DeliveryStatus.POSSIBLY_PERSISTED),
        (ErrorCode.KAFKA_STORAGE_ERROR, DeliveryStatus.POSSIBLY_PERSISTED),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, DeliveryStatus.POSSIBLY_PERSISTED),
        (ErrorCode.UNKNOWN_SERVER_ERROR, DeliveryStatus.POSSIBLY_PERSISTED),
        (ErrorCode.NOT_ENOUGH_REPLICAS, DeliveryStatus.NOT_PERSISTED),
        (ErrorCode.LEADER_NOT_AVAILABLE, DeliveryStatus.NOT_PERSISTED),
        (ErrorCode.INVALID_RECORD, DeliveryStatus.NOT_PERSISTED),
    ],
    ids=lambda value: value.name,
)
def test_what_a_refusal_leaves_open_is_told(cluster, code, status):
    reported = []

    def report(_topic_partition, _records, error, retriable):
        reported.append((error.status, retriable))

    with producing(cluster, retries=1, on_error=report) as producer:
        cluster.script(TP, Step(status is DeliveryStatus.POSSIBLY_PERSISTED, code), *[refused(code)] * 3)
        error = send(producer, 1)[0].exception(60)
        producer.flush(60)
    may_help = code not in (ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert (error.status, error.retriable) == (status, may_help)
    assert reported == [(status, may_help)]


def test_a_connection_that_is_lost_leaves_it_open(cluster):
    with producing(cluster, retries=1) as producer:
        cluster.script(TP, LOST_ANSWER, refused(ErrorCode.NOT_ENOUGH_REPLICAS))
        assert send(producer, 1)[0].exception(60).status is DeliveryStatus.POSSIBLY_PERSISTED


@pytest.mark.parametrize("where", ["answered", "sent", "next"])
def test_whatever_ends_the_sender_every_record_ends_and_the_truth_is_told(cluster, monkeypatch, where):
    real, failing = getattr(PartitionQueue, where), threading.Event()

    def fail(*args, **kwargs):
        result = real(*args, **kwargs)
        if failing.is_set():
            raise SystemExit(where)
        return result

    monkeypatch.setattr(PartitionQueue, where, fail)
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(60)
        failing.set()
        deliveries = send(producer, 5, start=1)
        statuses = [delivery.exception(60).status for delivery in deliveries]
        assert statuses[1:] == [DeliveryStatus.NOT_PERSISTED] * 4 or where == "answered"
        if where == "answered":  # it was delivered, and no broker knows any more
            assert statuses[0] is DeliveryStatus.POSSIBLY_PERSISTED
        producer.flush(60)
        assert producer.stats().buffered_records == 0
        with pytest.raises(ProducerClosedError, match="the sender thread failed"):
            send(producer, 1, start=6)


def test_a_topic_that_cannot_be_closed_is_in_the_way_of_no_other(cluster, monkeypatch):
    real = TopicBuffer.shut

    def shut(buffer):
        if buffer.topic == "t":
            raise SystemExit("shut")
        real(buffer)

    def close_waiting(*_):
        raise SystemExit("close")

    cluster.create("u")
    with producing(cluster, linger_ms=60_000, batch_records=100) as producer:
        monkeypatch.setattr(TopicBuffer, "shut", shut)
        monkeypatch.setattr(TopicBuffer, "close_waiting", close_waiting)
        send(producer, 1)
        (other,) = send(producer, 1, topic="u")
        with pytest.raises(ProducerClosedError, match="the sender thread failed"):
            producer.flush(60)
        assert "the sender thread failed" in str(other.exception(60))


def test_a_request_that_breaks_off_between_writing_and_noting_it_may_be_in_the_log(cluster, monkeypatch):
    real = Connection.post

    def post(*args, **kwargs):
        real(*args, **kwargs)
        raise SystemExit("between two steps")

    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(60)
        monkeypatch.setattr(Connection, "post", post)
        assert send(producer, 1, start=1)[0].exception(60).status is DeliveryStatus.POSSIBLY_PERSISTED
        wait_until(lambda: cluster.values(TP) == numbers(2))
