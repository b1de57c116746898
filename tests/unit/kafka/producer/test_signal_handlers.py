"""`close` in a signal's handler, as every service calls it to stop: it may have interrupted its
own thread in the middle of a `send`, with locks held. Accepted records are delivered."""

import contextlib
import random
import signal
import sys
import threading

import pyarrow as pa
import pytest
from support.brokers.produce_cluster import ProduceCluster
from support.brokers.transaction_cluster import TransactionCluster
from support.interrupts.signal_steps import run_at, steps_of

from spark_kafka_native.kafka.config.client_config import TransactionConfig
from spark_kafka_native.kafka.errors import KafkaError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.errors import ProducerClosedError
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.producer.sending.transaction import State
from spark_kafka_native.kafka.producer.transactional_producer import TransactionalProducer

PATIENCE_MS = 20_000
"""A close that waits for itself gives up then, and the records with it."""


@pytest.fixture(scope="module")
def cluster():
    pa.array([b""])  # its first use imports what takes long
    with ProduceCluster() as running:
        yield running


class Client:
    """A producer for one topic of its own, and what it has accepted."""

    topics = iter(range(1_000_000))

    def __init__(self, cluster, **config):
        self.topic = f"t{next(self.topics)}"
        cluster.create(self.topic, 2)
        self.cluster = cluster
        config = {"linger_ms": 1, "batch_size": 500, "delivery_timeout_ms": PATIENCE_MS} | config
        self.producer = Producer(cluster.bootstrap_servers, **config)
        self.accepted: list[bytes] = []
        self.refused: list[bytes] = []
        self.closes = 0

    def close(self, *_):
        self.closes += 1
        self.producer.close()

    def send(self, value):
        try:
            self.producer.send(self.topic, value)
        except ProducerClosedError:
            self.refused.append(value)
        else:
            self.accepted.append(value)

    def send_columns(self, *values):
        try:
            self.producer.send_columns(pa.record_batch({"value": pa.array(values, pa.binary())}), self.topic)
        except ProducerClosedError:
            self.refused += values
        else:
            self.accepted += values

    def in_log(self):
        return [value for i in range(2) for value in self.cluster.values(TopicPartition(self.topic, i))]

    def check(self):
        assert self.closes == 1
        assert self.producer.closed
        assert sorted(self.in_log()) == sorted(self.accepted)


def test_a_handlers_close_delivers_what_a_loop_of_sends_was_told_is_accepted(cluster):
    rng = random.Random(1)
    before = signal.getsignal(signal.SIGUSR1)
    try:
        for _ in range(40):
            client = Client(cluster, linger_ms=5, batch_size=2_000)
            client.send(b"first")
            signal.signal(signal.SIGUSR1, client.close)
            timer = threading.Timer(
                rng.uniform(0.001, 0.03),
                signal.pthread_kill,
                (threading.main_thread().ident, signal.SIGUSR1),
            )
            timer.start()
            number = 0
            while not client.refused:
                number += 1
                client.send(b"%08d" % number)
            timer.join()
            client.check()
    finally:
        signal.signal(signal.SIGUSR1, before)


def send_one(client):
    client.send(b"x" * 100)


def fill_a_batch(client):
    for _ in range(3):
        client.send(b"x" * 100)


def send_some_columns(client):
    client.send(b"waits")
    client.send_columns(b"1" * 100, b"2", b"3" * 600)


def describe_itself(client):
    repr(client.producer)
    client.producer.metrics()


def wait_for_a_delivery(client):
    client.send(b"waits")
    client.producer.flush()


@pytest.mark.parametrize(
    "use", [send_one, fill_a_batch, send_some_columns, describe_itself, wait_for_a_delivery]
)
def test_it_may_come_at_any_step(cluster, use):
    client = Client(cluster)
    client.send(b"first")
    steps = steps_of(lambda: use(client))
    client.close()
    for step in range(0, steps, max(1, steps // 60)):
        client = Client(cluster)
        client.send(b"first")
        if not run_at(step, client.close, lambda client=client: use(client)):
            client.close()
        client.check()


def test_it_may_come_at_any_step_of_the_first_send(cluster):
    client = Client(cluster)
    steps = steps_of(lambda: send_one(client))
    client.close()
    for step in range(0, steps, max(1, steps // 60)):
        client = Client(cluster)
        if not run_at(step, client.close, lambda client=client: send_one(client)):
            client.close()
        client.check()


def test_it_may_come_before_a_request_on_the_senders_connection_is_written(cluster):
    """The sender writes nothing behind it: it has to write that request, too."""
    for _ in range(6):  # one of several connections is drawn for the request
        client = Client(cluster, linger_ms=PATIENCE_MS // 2)
        client.send(b"first")
        client.producer.flush()
        client.send(b"waits")

        def look(frame, event, _what, client=client):
            if event == "call" and frame.f_code.co_name == "_write_all":
                sys.setprofile(None)
                client.close()

        sys.setprofile(look)
        try:
            with contextlib.suppress(ValueError, ProducerClosedError):
                client.producer.send(client.topic, b"x", partition=9)
        finally:
            sys.setprofile(None)
        client.check()


def in_a_transaction(producer, topic):
    producer.begin()
    producer.send(topic, b"x" * 300)
    producer.send_columns(pa.record_batch({"value": pa.array([b"y"], pa.binary())}), topic)
    producer.commit()


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_that_it_falls_into_is_ended(version):
    with TransactionCluster() as cluster:
        cluster.create("t", 1)

        def open_producer():
            how = TransactionConfig(transactional_id="id", transaction_version=version)
            return TransactionalProducer(
                cluster.bootstrap_servers, how, batch_size=200, max_block_ms=5_000, delivery_timeout_ms=30_000
            )

        with open_producer() as first:
            first.initialize()
            steps = steps_of(lambda: in_a_transaction(first, "t"))
        for step in range(0, steps, max(1, steps // 50)):
            producer = open_producer()
            producer.initialize()
            with contextlib.suppress(KafkaError):
                run_at(step, producer.close, lambda producer=producer: in_a_transaction(producer, "t"))
            producer.close()
            assert producer.closed
            held = cluster.held["id"]
            assert held.state != "ongoing" or producer.state is State.COMMITTING, step
