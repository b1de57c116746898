"""A broker that does not read holds up its own records only."""

import threading
import time
from contextlib import contextmanager

import pytest
from support.brokers.produce_cluster import ProduceCluster
from support.brokers.scripted_broker import properties

from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.model import Acks, TopicPartition
from spark_kafka_native.kafka.producer.errors import DeliveryStatus
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.protocol.api.produce import ProduceRequest

pytestmark = pytest.mark.timed(0.1)

HEALTHY, STALLED = TopicPartition("t", 0), TopicPartition("t", 1)
SMALL = 4096
VALUE = bytes(300_000)


class StallingCluster(ProduceCluster):
    """Two brokers; the second one answers, and so reads, only while `reads` is set."""

    def __init__(self):
        super().__init__(2, socket_buffer_bytes=SMALL)
        self.reads = threading.Event()
        self.reads.set()
        produce = self.producer(2)

        def wait_and_produce(request, version):
            self.reads.wait(30)
            return produce(request, version)

        self[2].on(ProduceRequest, wait_and_produce)
        self.create("t", 2)


@pytest.fixture
def cluster():
    with StallingCluster() as running:
        try:
            yield running
        finally:
            running.reads.set()


@contextmanager
def producing(cluster, request_timeout_ms=30_000, **config):
    settings = properties(
        cluster.bootstrap_servers, send_buffer_bytes=SMALL, request_timeout_ms=request_timeout_ms
    )
    chosen = {"batch_records": 1, "linger_ms": 0, "delivery_timeout_ms": 60_000} | config
    producer = Producer(ClientConfig.from_properties(settings), ProducerConfig(**chosen))
    try:
        yield producer
    finally:
        producer.close(1)


def stall(cluster, producer):
    """Fill the way to the second broker; returns the deliveries that are on it."""
    for partition in (0, 1):
        producer.send("t", value=b"first", partition=partition)
    producer.flush(60)
    cluster.reads.clear()
    sent = [producer.send("t", value=VALUE, partition=1) for _ in range(4)]
    connections = producer._sender.loop.connections
    deadline = time.monotonic() + 60
    while not any(c.connection is not None and c.connection.has_unwritten for c in connections):
        assert time.monotonic() < deadline, "the socket never filled"
        time.sleep(0.002)
    return sent


@pytest.mark.parametrize("acks", [Acks.ALL, Acks.NONE])
def test_other_brokers_records_are_delivered_meanwhile(cluster, acks):
    with producing(cluster, acks=acks) as producer:
        stalled = stall(cluster, producer)
        healthy = [producer.send("t", value=b"%d" % i, partition=0) for i in range(20)]
        assert [delivery.exception(60) for delivery in healthy] == [None] * 20
        assert not stalled[-1].done()
        cluster.reads.set()
        producer.flush(60)
        assert [delivery.exception(0) for delivery in stalled] == [None] * 4
    deadline = time.monotonic() + 20  # with acks=0 the last may still be on its way
    while len(cluster.values(STALLED)) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cluster.values(STALLED) == [b"first", *[VALUE] * 4]
    assert cluster.values(HEALTHY) == [b"first", *[b"%d" % i for i in range(20)]]


def test_close_gives_up_in_time_and_tells_the_truth(cluster):
    with producing(cluster) as producer:
        stalled = stall(cluster, producer)
        closing = threading.Thread(target=producer.close, args=(0.5,))
        closing.start()
        closing.join(60)  # the request timeout is twice that
        assert not closing.is_alive()
        statuses = [delivery.exception(0).status for delivery in stalled]
    assert statuses[0] is DeliveryStatus.POSSIBLY_PERSISTED
    assert statuses[-1] is DeliveryStatus.NOT_PERSISTED


def test_a_broker_that_never_reads_again_is_hung_up_on(cluster):
    with producing(cluster, request_timeout_ms=500, delivery_timeout_ms=3_000) as producer:
        stalled = stall(cluster, producer)
        assert {delivery.exception(60).status for delivery in stalled} <= {
            DeliveryStatus.POSSIBLY_PERSISTED,
            DeliveryStatus.NOT_PERSISTED,
        }
        assert producer.send("t", value=b"x", partition=0).exception(60) is None
