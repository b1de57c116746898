"""Requests that fail in between: sent again, in order, each record once."""

import random
import threading
import time

import pytest
from support.brokers.produce_cluster import (
    LOST_ANSWER,
    LOST_REQUEST,
    NO_ANSWER,
    NO_ANSWER_NOT_APPLIED,
    ProduceCluster,
    Step,
    refused,
)
from support.producer.producing import RETRIABLE, TP, numbers, producing, send, wait_until

from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import Acks, TopicPartition
from spark_kafka_native.kafka.producer.errors import (
    DeliveryError,
    DeliveryStatus,
)
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest

pytestmark = pytest.mark.timed(0.1)


def test_records_arrive_in_order_and_know_where(cluster):
    with producing(cluster) as producer:
        deliveries = send(producer, 50)
        assert [d.result(60).offset for d in deliveries] == list(range(50))
        assert {d.status for d in deliveries} == {DeliveryStatus.PERSISTED}
    assert cluster.values(TP) == numbers(50)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_partition_keeps_to_one_of_the_connections(cluster, most):
    cluster.create("many", 4)
    with producing(cluster, connections_per_broker=most) as producer:
        sent = [producer.send("many", value=b"%d" % i, partition=i % 4) for i in range(200)]
        assert {delivery.result(60).status for delivery in sent} == {DeliveryStatus.PERSISTED}
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
        assert {delivery.result(60).status for delivery in sent} == {DeliveryStatus.PERSISTED}
    for broker in two_brokers.brokers.values():
        assert len({one.connection for one in broker.asked if isinstance(one.request, ProduceRequest)}) == 2


@pytest.mark.parametrize("code", RETRIABLE, ids=lambda code: code.name)
@pytest.mark.parametrize("applied", [False, True])
def test_a_retriable_refusal_is_retried_in_order(cluster, code, applied):
    with producing(cluster) as producer:
        send(producer, 3)
        producer.flush(60)
        cluster.script(TP, Step(applied, code), Step(False, code))
        send(producer, 20, start=3)
        producer.flush(60)
        assert producer.stats().errors == 0
    assert cluster.values(TP) == numbers(23)


@pytest.mark.parametrize("step", [LOST_REQUEST, LOST_ANSWER], ids=["request lost", "answer lost"])
def test_a_connection_that_dies_costs_nothing(cluster, step):
    with producing(cluster) as producer:
        send(producer, 3)
        producer.flush(60)
        cluster.script(TP, step)
        deliveries = send(producer, 20, start=3)
        producer.flush(60)
        assert [d.result(0).offset for d in deliveries] == list(range(3, 23))
    assert cluster.values(TP) == numbers(23)


@pytest.mark.parametrize("step", [NO_ANSWER, NO_ANSWER_NOT_APPLIED], ids=["applied", "not applied"])
def test_a_broker_that_does_not_answer_is_hung_up_on_and_tried_again(cluster, step):
    with producing(cluster, client={"request_timeout_ms": 300}) as producer:
        cluster.script(TP, step)
        send(producer, 5)
        producer.flush(60)
    assert cluster.values(TP) == numbers(5)


def test_a_retry_sends_the_same_bytes(cluster):
    with producing(cluster, batch_records=100, linger_ms=20) as producer:
        cluster.script(TP, LOST_ANSWER, refused(ErrorCode.NOT_ENOUGH_REPLICAS), LOST_REQUEST)
        send(producer, 100)
        producer.flush(60)
    sent = cluster.batches(TP)
    assert len(sent) == 4
    assert len({one.data for one in sent}) == 1


def test_a_duplicate_is_a_delivery_without_offset(cluster):
    cluster.duplicates_without_offset = True
    with producing(cluster) as producer:
        cluster.script(TP, LOST_ANSWER)
        delivery = send(producer, 1)[0]
        assert delivery.result(60).offset is None
        assert delivery.status is DeliveryStatus.PERSISTED
    assert cluster.values(TP) == numbers(1)


def test_requests_are_pipelined_up_to_the_limit(cluster):
    cluster.delay_s = 0.05
    with producing(cluster, max_in_flight=5) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster.arrived.clear()
        send(producer, 30, start=1)
        broker = next(iter(producer._sender.loop.connections))
        wait_until(lambda: len(broker.in_flight) >= 2)
        assert len(broker.in_flight) <= 5
        producer.flush(60)
    assert cluster.values(TP) == numbers(31)


def test_the_first_batch_of_a_partition_goes_alone(cluster):
    # A broker that has no state of a producer accepts any sequence: were the first batch lost and the
    # second taken, the first could only come after it.
    cluster.delay_s = 0.05
    with producing(cluster) as producer:
        cluster.script(TP, refused(ErrorCode.NOT_ENOUGH_REPLICAS))
        send(producer, 5)
        producer.flush(60)
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
        producer.flush(60)
        assert producer.stats().retries > 0
    assert cluster.values(TP) == numbers(120)


def test_without_idempotence_a_retry_overtakes_nothing(cluster):
    with producing(cluster, acks=Acks.LEADER) as producer:
        cluster.script(TP, refused(ErrorCode.NOT_ENOUGH_REPLICAS), LOST_REQUEST)
        send(producer, 20)
        producer.flush(60)
    assert cluster.values(TP) == numbers(20)
    assert cluster.batches(TP)[0].header("producer_id") == -1


def test_retries_are_counted(cluster):
    cluster.script(TP, *[refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 5)
    with producing(cluster, retries=2) as producer:
        delivery = send(producer, 1)[0]
        with pytest.raises(DeliveryError, match=r"NOT_ENOUGH_REPLICAS .*after 3 attempts"):
            delivery.result(60)
    assert len(cluster.batches(TP)) == 3


def test_a_throttled_connection_is_left_alone(cluster):
    cluster.throttle_ms = 300
    with producing(cluster) as producer:
        send(producer, 1)
        producer.flush(60)
        cluster.throttle_ms = 0
        send(producer, 1, start=1)
        producer.flush(60)
    first, second = cluster.batches(TP)
    assert second.at - first.at > 0.25


def test_the_broker_may_be_away_at_first(cluster):
    cluster[1].stop()
    timer = threading.Timer(0.5, cluster[1].start)
    timer.start()
    with producing(cluster) as producer:
        assert send(producer, 1)[0].result(60).offset == 0
    timer.join()


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
                cluster, batch_records=rng.choice([1, 7, 50]), delivery_timeout_ms=600_000
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
                with cluster.lock:  # of these a slow machine has left many
                    cluster.scripts.clear()
                producer.flush(300)
                stats = producer.stats()
        finally:
            stop.set()
            thread.join()
        assert stats.errors == 0
        for tp in tps:
            assert cluster.values(tp) == sent[tp]
