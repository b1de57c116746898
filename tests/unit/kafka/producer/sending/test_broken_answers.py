"""Answers that are cut off, late, wrong or final."""

import time
from dataclasses import replace

import pyarrow as pa
import pytest
from support.brokers.produce_cluster import (
    refused,
)
from support.brokers.scripted_broker import Cut, Dribble, Late, Raw
from support.producer.producing import TP, numbers, producing, send, wait_until

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import Acks
from spark_kafka_native.kafka.producer.errors import (
    DeliveryError,
    DeliveryStatus,
)
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest, ProduceResponse
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.testing import MockBroker

pytestmark = pytest.mark.timed(0.1)


def test_an_unknown_code_is_final(cluster):
    cluster.script(TP, refused(ErrorCode(999)))
    with producing(cluster) as producer:
        first, second = send(producer, 2)
        with pytest.raises(DeliveryError, match="UNKNOWN_CODE_999"):
            first.result(60)
        assert second.result(60).offset == 0
    assert len(cluster.batches(TP)) == 2


@pytest.mark.parametrize(
    "code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_REQUIRED_ACKS]
)
def test_a_permanent_refusal_fails_at_once_and_the_rest_goes_on(cluster, code):
    errors = []
    told = lambda tp, records, error, retriable: errors.append((tp, records, error, retriable))  # noqa: E731
    with producing(cluster, on_error=told, keep_undelivered=True) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster.script(TP, refused(code))
        deliveries = send(producer, 10, start=1)
        producer.flush(60)
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


def test_the_offset_that_comes_with_a_duplicate_is_not_taken_for_its_own(cluster):
    def duplicate(request, version):
        told = cluster.producer(1)(request, version)
        for topic in told.responses:
            topic.partition_responses[:] = [
                replace(part, error_code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
                for part in topic.partition_responses
            ]
        return told

    with producing(cluster) as producer:
        cluster[1].push(ProduceRequest, duplicate)
        (delivery,) = send(producer, 1)
        assert (delivery.result(60).offset, delivery.status) == (None, DeliveryStatus.PERSISTED)
    assert len(cluster.batches(TP)) == 1


def test_acks_0_expects_nothing(cluster):
    with producing(cluster, acks=Acks.NONE) as producer:
        deliveries = send(producer, 20)
        told = deliveries[-1].result(60)
        assert (told.offset, told.status) == (None, DeliveryStatus.POSSIBLY_PERSISTED)
        producer.flush(60)
        deadline = time.monotonic() + 60
        while len(cluster.values(TP)) < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert cluster.values(TP) == numbers(20)


def test_a_new_leader_gets_what_follows_where_no_broker_answers(two_brokers):
    """A batch with acks=0 is in flight no more once it is written: no answer would end its wait."""
    log = two_brokers.logs[TP]
    with producing(two_brokers, acks=Acks.NONE) as producer:
        send(producer, 1)[0].result(60)
        wait_until(lambda: two_brokers.values(TP) == numbers(1))
        log.leader = 3 - log.leader
        log.leader_epoch += 1
        producer._router.refresh(("t",), Deadline.after_ms(10_000))
        assert send(producer, 1, start=1)[0].result(20).status is DeliveryStatus.POSSIBLY_PERSISTED
        wait_until(lambda: two_brokers.values(TP) == numbers(2))


def test_each_record_of_a_refused_batch_raises_an_error_of_its_own(cluster):
    """Of one object, each call would lengthen the traceback, and keep the frames of all callers."""
    cluster.script(TP, refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with producing(cluster, linger_ms=50_000, batch_records=100) as producer:
        deliveries = send(producer, 3)
        producer.flush(60)
        raised = []
        for delivery in [*deliveries, deliveries[0]]:
            with pytest.raises(DeliveryError, match="TOPIC_AUTHORIZATION_FAILED") as caught:
                delivery.result(0)
            raised.append(caught.value)
        assert len({id(error) for error in raised}) == 4
        kept = deliveries[0].exception(0)
        assert kept.__traceback__ is None
        assert raised[0].__cause__ is kept.__cause__
        cluster.script(TP, refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        columns = producer.send_columns(pa.record_batch({"value": [b"a", b"b"]}), "t")
        producer.flush(60)
        with pytest.raises(DeliveryError, match="TOPIC_AUTHORIZATION_FAILED") as caught:
            columns.result(0)
        assert caught.value not in columns.exceptions(0)


@pytest.mark.parametrize("change", ["moved", "recreated"])
def test_a_connection_that_ends_is_the_error_where_no_broker_answers(change):
    """The broker closes it, so that the client looks up the leader (KafkaApis.handleProduceRequest)."""
    with MockBroker(brokers=2) as broker:
        broker.create_topic("t")
        with Producer(broker.bootstrap_servers, acks=0, linger_ms=0) as producer:
            producer.send("t", value=b"before")
            wait_until(lambda: broker.records("t"))
            if change == "moved":
                broker.move_leader("t", 0, 3 - broker.leader("t", 0))
            else:
                with Admin(broker.bootstrap_servers) as admin:
                    admin.delete_topics(["t"])
                broker.create_topic("t")

            def arrives():
                producer.send("t", value=b"?")
                return any(record.value == b"?" for record in broker.records("t"))

            wait_until(arrives, 20)
            producer.flush(60)
            for number in range(50):
                producer.send("t", value=b"%d" % number)
            wait_until(lambda: [one.value for one in broker.records("t")][-50:] == numbers(50))


def test_a_topic_that_was_denied_once_is_asked_about_again():
    with MockBroker() as broker:
        broker.create_topic("t")
        with Producer(broker.bootstrap_servers, linger_ms=0) as producer:
            producer.send("t", value=b"0").result(60)
            denied = broker.on("Metadata", topic="t", times=1).fail("TOPIC_AUTHORIZATION_FAILED")
            broker.on("Produce", times=3).fail("NOT_LEADER_OR_FOLLOWER")  # the denial comes before the last
            error = producer.send("t", value=b"1").exception(60)
            assert "TOPIC_AUTHORIZATION_FAILED" in str(error)
            assert not error.retriable
            assert denied.used
            wait_until(lambda: producer.send("t", value=b"2").exception(60) is None, 20)


@pytest.mark.parametrize("length", [0, 3, 4, 9, 30])
def test_an_answer_that_is_cut_off_is_no_answer(cluster, length):
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster[1].push(ProduceRequest, Cut(cluster.producer(1), length))
        deliveries = send(producer, 5, start=1)
        assert [d.result(60).offset for d in deliveries] == [1, 2, 3, 4, 5]
    assert cluster.values(TP) == numbers(6)


def test_an_answer_in_dribbles_does_not_outlast_the_request_timeout(cluster):
    with producing(cluster, client={"request_timeout_ms": 400}) as producer:
        cluster[1].push(ProduceRequest, Dribble(cluster.producer(1), 1, 0.1))
        assert send(producer, 1)[0].result(60).offset == 0
        assert producer.stats().retries == 1
    assert cluster.values(TP) == numbers(1)


def test_an_answer_that_comes_too_late_answers_nothing(cluster):
    with producing(cluster, client={"request_timeout_ms": 300}) as producer:
        cluster[1].push(ProduceRequest, Late(0.6, cluster.producer(1)))
        deliveries = send(producer, 3)
        assert [d.result(60).offset for d in deliveries] == [0, 1, 2]
        time.sleep(0.5)
        assert send(producer, 1, start=3)[0].result(60).offset == 3
    assert cluster.values(TP) == numbers(4)


def test_garbage_instead_of_an_answer_closes_the_connection(cluster):
    with producing(cluster) as producer:
        cluster[1].push(ProduceRequest, Raw(b"\xff\xff\xff\xffgarbage"), Raw(b"\x7f\xff\xff\xff"))
        assert send(producer, 1)[0].result(60).offset == 0
    assert cluster.values(TP) == numbers(1)


def test_an_answer_that_leaves_a_partition_out_is_not_believed(cluster):
    with producing(cluster) as producer:
        cluster[1].push(ProduceRequest, ProduceResponse(responses=[]))
        assert send(producer, 1)[0].result(60).offset == 0
    assert cluster.values(TP) == numbers(1)
