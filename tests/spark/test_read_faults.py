"""Brokers that go, come back, hang or lose their lead in the middle of a task."""

import threading
import time

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RECORDS = 60_000
# Small fetches: the read takes many of them, so that a fault falls between two.
SLOW = {
    "kafka.max.partition.fetch.bytes": 20_000,
    "kafka.fetch.max.bytes": 60_000,
    "kafka.request.timeout.ms": 5_000,
    "kafka.retry.backoff.ms": 20,
}


@pytest.fixture(scope="module")
def numbers(peer, kafka_cluster):
    topic = peer.create(kafka_cluster, "read-faults-numbers", 3)
    peer.write(kafka_cluster.bootstrap_servers, topic, peer.numbered(RECORDS, 3))
    return topic


def read_during(peer, spark, kafka_cluster, topic, fault):
    """Every offset once and in order, whatever ``fault`` does half a second into the job."""
    frame = peer.read(spark, kafka_cluster, topic, **SLOW)
    frame.limit(1).collect()
    breaker = threading.Timer(0.5, fault)
    breaker.start()
    try:
        found = peer.offsets(frame)
    finally:
        breaker.join()
    assert found == {partition: list(range(RECORDS // 3)) for partition in range(3)}


def test_a_leader_is_killed(peer, spark, kafka_cluster, numbers):
    try:
        read_during(peer, spark, kafka_cluster, numbers, lambda: kafka_cluster.kill(1))
    finally:
        kafka_cluster.restart(1)


def test_brokers_restart_one_after_another(peer, spark, kafka_cluster, numbers):
    read_during(
        peer, spark, kafka_cluster, numbers, lambda: [kafka_cluster.restart(node_id) for node_id in (2, 3)]
    )


def test_a_broker_hangs_for_a_while(peer, spark, kafka_cluster, numbers):
    def hang():
        kafka_cluster.pause(3)
        time.sleep(3)
        kafka_cluster.resume(3)

    read_during(peer, spark, kafka_cluster, numbers, hang)


def test_a_dead_cluster_fails_inside_the_poll_timeout(peer, spark, kafka_cluster, numbers):
    frame = peer.read(spark, kafka_cluster, numbers, **SLOW, kafkaConsumer__pollTimeoutMs=4_000)
    frame.limit(1).collect()
    began = time.monotonic()
    for node_id in (1, 2, 3):
        kafka_cluster.pause(node_id)
    try:
        with pytest.raises(Exception) as caught:
            frame.count()
        assert time.monotonic() - began < 30
        assert numbers in peer.message_of(caught)
    finally:
        for node_id in (1, 2, 3):
            kafka_cluster.resume(node_id)
