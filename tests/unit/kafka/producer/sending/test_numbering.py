"""Producer ids, epochs and sequence numbers on their way to a broker that checks them."""

import threading
import time
from dataclasses import replace
from uuid import uuid4

import pytest
from support.brokers.produce_cluster import (
    refused,
)
from support.brokers.transaction_cluster import TransactionCluster
from support.producer.producing import TP, numbers, producing, send, wait_until
from support.waiting import eventually

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.config.client_config import ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.errors import (
    ConfigError,
)
from spark_kafka_native.kafka.model import Acks
from spark_kafka_native.kafka.producer.errors import (
    DeliveryError,
    DeliveryStatus,
    ProducerClosedError,
    TransactionAbortableError,
)
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.producer.sending.idempotence import MAX_EPOCH
from spark_kafka_native.kafka.producer.sending.transaction import State
from spark_kafka_native.kafka.producer.transactional_producer import TransactionalProducer
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest
from spark_kafka_native.kafka.protocol.api.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.testing import MockBroker

pytestmark = pytest.mark.timed(0.1)


def test_a_recreated_topic_starts_at_sequence_0(cluster):
    with producing(cluster) as producer:
        send(producer, 10)
        producer.flush(60)
        with cluster.lock:
            del cluster.topic_ids["t"]
            cluster.create("t")
        send(producer, 10)
        producer.flush(60)
    assert cluster.values(TP) == numbers(10)


def test_a_record_that_a_recreated_topic_refuses_is_in_no_other_records_way():
    with MockBroker() as broker:
        broker.create_topic("t")
        with Producer(broker.bootstrap_servers, linger_ms=0, batch_records=1, max_in_flight=3) as producer:
            producer.send("t", b"former", partition=0).result(20)
            created = threading.Event()
            broker.on("Produce", topic="t", times=3).fail("UNKNOWN_TOPIC_OR_PARTITION").hold(created)
            waiting = [producer.send("t", b"%d" % i, partition=0) for i in range(3)]
            queue = producer._sender.loop.queues.of(TP)
            eventually(lambda: len(queue.in_flight) == 3, "all are under way")
            recreate(broker, producer)
            broker.on("Produce", topic="t", after=1, times=1).fail("INVALID_RECORD")
            created.set()
            errors = [one.exception(20) for one in waiting]
            codes = [error and error.__cause__.error_code for error in errors]
            assert codes == [None, ErrorCode.INVALID_RECORD, None]
            producer.send("t", b"3", partition=0).result(20)
        assert [one.value for one in broker.records("t", 0)] == [b"0", b"2", b"3"]


@pytest.mark.parametrize("version", [12, 13])
def test_behind_a_refused_record_of_a_topic_that_was_denied_only_an_id_gives_certainty(version):
    with MockBroker(versions={"Produce": (3, version)}) as broker:
        broker.create_topic("t")
        with Producer(broker.bootstrap_servers, linger_ms=0, batch_records=1, max_in_flight=3) as producer:
            producer.send("t", b"first", partition=0).result(20)
            decided = threading.Event()
            broker.on("Produce", topic="t", times=2).fail("UNKNOWN_TOPIC_OR_PARTITION").hold(decided)
            broker.on("Produce", topic="t", times=1).fail("NOT_ENOUGH_REPLICAS_AFTER_APPEND")
            broker.on("Produce", topic="t", times=1).fail("INVALID_RECORD")
            sent = [producer.send("t", b"%d" % i, partition=0) for i in range(3)]
            queue = producer._sender.loop.queues.of(TP)
            eventually(lambda: len(queue.in_flight) == 3, "all are under way")
            decided.set()
            errors = [one.exception(20) for one in sent]
        codes = [error and error.__cause__.error_code for error in errors]
        values = [one.value for one in broker.records("t", 0)]
        if version == 12:
            assert codes == [ErrorCode.INVALID_RECORD, *[ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 2]
            assert values == [b"first"]
        else:
            assert codes == [ErrorCode.INVALID_RECORD, None, None]
            assert values == [b"first", b"1", b"2"]


def test_out_of_order_at_the_head_of_the_line_is_fatal(cluster):
    # The broker misses what it confirmed: going on would hide the hole.
    with producing(cluster) as producer:
        send(producer, 3)
        producer.flush(60)
        cluster.script(TP, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
        delivery = send(producer, 1)[0]
        with pytest.raises(DeliveryError, match="OUT_OF_ORDER"):
            delivery.result(60)
        with pytest.raises(ProducerClosedError, match="OUT_OF_ORDER"):
            producer.send("t", value=b"x", partition=0)


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_fenced_producer_ends(cluster, code):
    cluster.script(TP, refused(code))
    with producing(cluster) as producer:
        deliveries = send(producer, 3)
        assert all(d.exception(60) is not None for d in deliveries)
        assert len(cluster.batches(TP)) == 1


def test_a_forgotten_producer_goes_on_under_a_new_epoch(cluster):
    with producing(cluster) as producer:
        send(producer, 3)
        producer.flush(60)
        cluster.script(TP, refused(ErrorCode.UNKNOWN_PRODUCER_ID))
        send(producer, 3, start=3)
        producer.flush(60)
    assert cluster.values(TP) == numbers(6)
    last = cluster.batches(TP)[-1]
    assert (last.header("producer_epoch"), last.header("base_sequence")) == (1, 2)


def test_after_a_gap_the_numbers_start_anew(cluster):
    # The first of three is given up though the broker never had it; those behind it must not be refused
    # for that.
    with producing(cluster, client={"request_timeout_ms": 10_000}, delivery_timeout_ms=2_000) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster.delay_s = 2.2
        cluster.script(TP, refused(ErrorCode.NOT_ENOUGH_REPLICAS))
        first = send(producer, 1, start=1)[0]
        wait_until(lambda: cluster[1].requests(ProduceRequest)[1:])
        time.sleep(1.5)  # those behind it have their own two seconds
        later = send(producer, 2, start=2)
        assert first.exception(60).status is DeliveryStatus.POSSIBLY_PERSISTED
        cluster.delay_s = 0
        assert [d.exception(60) for d in later] == [None, None]
        assert [d.exception(60) for d in send(producer, 2, start=4)] == [None, None]
    assert cluster.values(TP) == [b"0", b"2", b"3", b"4", b"5"]
    assert {one.header("producer_epoch") for one in cluster.batches(TP)} == {0, 1}


def test_a_gap_is_not_closed_by_a_batch_before_it(cluster):
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster.delay_s = 0.1
        cluster.script(TP, refused(ErrorCode.NOT_ENOUGH_REPLICAS), refused(ErrorCode.INVALID_RECORD))
        deliveries = send(producer, 5, start=1)
        producer.flush(60)
        assert [d.exception(0) is None for d in deliveries] == [True, False, True, True, True]
    assert cluster.values(TP) == [b"0", b"1", b"3", b"4", b"5"]


def test_sequences_wrap(cluster):
    with producing(cluster, batch_records=10, linger_ms=20) as producer:
        send(producer, 1)
        producer.flush(60)
        sequence = producer._sender.loop.queues.of(TP)._sequence
        sequence.next_sequence = 2**31 - 5
        state = next(iter(cluster.states.values()))
        state.last.append((2**31 - 6, 2**31 - 6, 0))
        send(producer, 30, start=1)
        producer.flush(60)
        assert sequence.next_sequence == 25
    assert cluster.values(TP) == numbers(31)


def test_used_up_epochs_bring_a_new_producer_id(cluster):
    last = InitProducerIdResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, producer_id=77, producer_epoch=MAX_EPOCH
    )
    cluster[1].push(InitProducerIdRequest, last)
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster.script(TP, refused(ErrorCode.INVALID_RECORD))
        assert producer.send("t", value=b"a gap", partition=0).exception(60) is not None
        send(producer, 2, start=1)
        producer.flush(60)
        assert len(cluster[1].requests(InitProducerIdRequest)) == 2
    first, refused_one, *later = [one.header("producer_id") for one in cluster.batches(TP)]
    assert first == refused_one == 77
    assert len(later) == 2
    assert 77 not in later
    assert cluster.values(TP) == numbers(3)


@pytest.mark.parametrize(
    ("settings", "refusal", "why_not"),
    [
        ({}, None, None),
        ({"max_in_flight": 5, "retries": 1}, None, None),
        ({"acks": Acks.LEADER}, "acks must be all", "acks=1"),
        ({"acks": Acks.NONE}, "acks must be all", "acks=0"),
        (
            {"max_in_flight": 6},
            "max.in.flight.requests.per.connection must be at most 5",
            "max.in.flight.requests.per.connection=6 is over 5",
        ),
        ({"retries": 0}, "retries must be at least 1", "retries=0"),
    ],
)
def test_idempotence_and_its_conditions(settings, refusal, why_not):
    """Asked for, an unmet condition is refused; by default it turns idempotence off."""
    by_default = ProducerConfig(**settings)
    assert (by_default.why_not_idempotent, by_default.idempotent) == (why_not, why_not is None)
    if refusal is None:
        assert ProducerConfig(**settings, enable_idempotence=True).idempotent
    else:
        with pytest.raises(ConfigError, match=f"^{refusal} when enable.idempotence=true$"):
            ProducerConfig(**settings, enable_idempotence=True)
    off = ProducerConfig(**settings, enable_idempotence=False)
    assert off.why_not_idempotent == "enable.idempotence=false"


def test_a_producer_id_is_asked_for_until_there_is_one(cluster):
    loading = InitProducerIdResponse(
        throttle_time_ms=0, error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1
    )
    cluster[1].push(InitProducerIdRequest, loading, loading)
    with producing(cluster) as producer:
        assert send(producer, 1)[0].result(60).offset == 0


def test_without_the_right_to_a_producer_id_the_way_out_is_named(cluster):
    forbidden = InitProducerIdResponse(
        throttle_time_ms=0, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, producer_epoch=-1
    )
    cluster[1].push(InitProducerIdRequest, forbidden)
    told = r"enable\.idempotence=false.*CLUSTER_AUTHORIZATION_FAILED"
    with producing(cluster) as producer, pytest.raises(DeliveryError, match=told):
        send(producer, 1)[0].result(60)


@pytest.mark.parametrize("produce", [11, 13])
def test_a_transaction_outlives_metadata_of_a_broker_that_knows_the_former_topic(produce):
    """Each record has a number of its own: one that came twice would be confirmed, and lost."""
    with MockBroker(versions={"Produce": (3, produce)}) as broker:
        broker.create_topic("t")
        former = broker.cluster.topics["t"].topic_id
        with TransactionalProducer(broker.bootstrap_servers, "tx", metadata_max_age_ms=100) as producer:

            def write(value, wanted):
                assert producer.send("t", value).result(20).offset == wanted

            def learn():
                asked = len(broker.asked("Metadata"))
                eventually(lambda: len(broker.asked("Metadata")) > asked + 1, "metadata")

            with producer.transaction():
                write(b"former", 0)
            with Admin(broker.bootstrap_servers) as admin:
                admin.delete_topics(["t"])
            broker.create_topic("t")
            learn()
            with producer.transaction():
                write(b"0", 0)
            with producer.transaction():
                write(b"1", 2)
                lag = broker.on("Metadata", topic="t", times=None).change(
                    lambda fields: [one.update(topic_id=former) for one in fields["topics"]]
                )
                learn()
                if produce == 13:  # a broker takes nothing for an id that is gone
                    lag.withdraw()
                write(b"2", 3)
                lag.withdraw()
                learn()
                write(b"3", 4)
        assert [one.value for one in broker.records("t", committed=True)] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("produce", [11, 13])
@pytest.mark.parametrize("then", ["record for the same partition", "record for another", "commit"])
def test_a_transaction_that_has_written_to_a_recreated_topic_can_only_be_aborted(produce, then):
    """Its commit would be one of the records that were sent to the present topic alone."""
    with MockBroker(versions={"Produce": (3, produce)}) as broker:
        broker.create_topic("t", partitions=2)
        with TransactionalProducer(broker.bootstrap_servers, "tx") as producer:
            producer.begin()
            producer.send("t", b"first", partition=0).result(20)
            recreate(broker, producer)
            again = "topic t has another id than at the begin of the transaction: it was created again"
            if then != "commit":
                late = producer.send("t", b"second", partition=int(then == "record for another"))
                with pytest.raises(DeliveryError, match=again):
                    late.result(20)
            with pytest.raises(TransactionAbortableError, match=again):
                producer.commit()
            producer.abort()
            with producer.transaction():
                producer.send("t", b"anew", partition=0)
        assert [one.value for n in (0, 1) for one in broker.records("t", n, committed=True)] == [b"anew"]


def test_a_transaction_fails_as_soon_as_metadata_show_that_its_topic_was_recreated():
    with MockBroker() as broker:
        broker.create_topic("t")
        with TransactionalProducer(broker.bootstrap_servers, "tx", metadata_max_age_ms=100) as producer:
            producer.begin()
            producer.send("t", b"first").result(20)
            with broker.cluster.changed:
                broker.cluster.delete_topic("t")
            broker.create_topic("t")
            eventually(lambda: producer.state is State.ABORTABLE, "the transaction fails")


def test_a_transaction_goes_on_in_a_topic_that_was_recreated_before_its_first_record_there():
    with MockBroker() as broker:
        broker.create_topic("t", partitions=2)
        broker.create_topic("other")
        with TransactionalProducer(broker.bootstrap_servers, "tx") as producer:
            with producer.transaction():
                producer.send("t", b"former", partition=0)
            with producer.transaction():
                producer.send("other", b"0").result(20)
                recreate(broker, producer)
                for partition in (0, 1):
                    producer.send("t", b"present", partition=partition)
        seen = [one.value for n in (0, 1) for one in broker.records("t", n, committed=True)]
        assert seen == [b"present"] * 2


def test_a_transaction_outlives_a_first_answer_with_the_id_of_the_former_topic():
    """A leader takes nothing for an id that is gone: no record was written to the former topic."""
    with TransactionCluster() as cluster:
        cluster.create("t")
        former, attempts = uuid4(), []

        def lag(request, version):
            answer = cluster.metadata(request, version)
            return answer if attempts else with_id(answer, former)

        def produce(request, version):
            attempts.append([topic.topic_id for topic in request.topic_data])
            return cluster.handlers[ProduceRequest](request, version)

        cluster[1].on(MetadataRequest, lag)
        cluster[1].on(ProduceRequest, produce)
        with TransactionalProducer(cluster.bootstrap_servers, "tx") as producer, producer.transaction():
            producer.send("t", b"present", partition=0)
        *first, last = attempts  # the same again while newer metadata are on their way
        assert first == [[former]] * max(1, len(first))
        assert last == [cluster.topic_ids["t"]]
        assert cluster.committed[TP] == [b"present"]


@pytest.mark.parametrize("then", ["record", "commit"])
def test_a_transaction_that_was_confirmed_for_an_id_goes_on_under_no_other(then):
    with TransactionCluster() as cluster:
        cluster.create("t")
        with TransactionalProducer(cluster.bootstrap_servers, "tx") as producer:
            producer.begin()
            producer.send("t", b"first", partition=0).result(20)
            present = uuid4()
            cluster[1].on(MetadataRequest, lambda *asked: with_id(cluster.metadata(*asked), present))
            producer._router.refresh(("t",), Deadline.after_ms(20_000))
            producer._topics.refreshed(["t"])
            if then == "record":
                with pytest.raises(DeliveryError, match="created again"):
                    producer.send("t", b"second", partition=0).result(20)
            with pytest.raises(TransactionAbortableError, match="created again"):
                producer.commit()
            producer.abort()
        assert not cluster.committed[TP]


def with_id(metadata, topic_id):
    return replace(metadata, topics=[replace(one, topic_id=topic_id) for one in metadata.topics])


def recreate(broker, producer):
    with broker.cluster.changed:
        broker.cluster.delete_topic("t")
    broker.create_topic("t", partitions=2)
    producer._router.refresh(("t",), Deadline.after_ms(20_000))
    producer._topics.refreshed(["t"])
