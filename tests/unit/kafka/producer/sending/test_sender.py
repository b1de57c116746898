"""The sender's thread and its callers: nothing that they ask for is missed."""

import threading
import time
from collections import deque

import pytest
from produce_cluster import ProduceCluster
from scripted_broker import properties

from spark_kafka_native.kafka.config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.errors import DeadlineExceededError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.producer.sending.sender import Sender

TP = TopicPartition("t", 0)


@pytest.fixture
def producer():
    with ProduceCluster() as cluster:
        cluster.create("t", 1)
        client = ClientConfig.from_properties(properties(cluster.bootstrap_servers))
        with Producer(client, ProducerConfig(linger_ms=600_000)) as running:
            running.cluster = cluster
            yield running


def wait_until(ended):
    deadline = time.monotonic() + 60
    while not ended() and time.monotonic() < deadline:
        time.sleep(0.002)
    assert ended()


def test_a_topic_that_is_busy_when_somebody_hurries_is_sent_a_moment_later(producer):
    delivery = producer.send("t", value=b"a")
    buffer, tried = producer._buffers["t"], threading.Event()
    close_waiting = buffer.close_waiting

    def close(due):
        closed = close_waiting(due)
        if not closed:
            tried.set()
        return closed

    buffer.close_waiting = close
    with buffer.lock:
        producer._sender.hurry()
        assert tried.wait(60)
    wait_until(delivery.done)
    assert producer.cluster.values(TP) == [b"a"]


def test_each_hurry_counts(producer):
    for i in range(5):
        delivery = producer.send("t", value=b"%d" % i)
        producer._sender.hurry()
        wait_until(delivery.done)


def test_a_batch_is_incomplete_before_it_leaves_the_inbox(producer):
    expect, seen = producer._completion.expect, []

    def expected(batches):
        seen.extend(batch in producer._sender.inbox for batch in batches)
        expect(batches)

    producer._completion.expect = expected
    producer.send("t", value=b"a")
    producer.flush(60_000)
    assert seen == [True]


def test_a_flush_waits_for_a_batch_that_is_taken_in_while_it_looks(producer, monkeypatch):
    # The sender takes it in between the two looks, whichever comes first.
    monkeypatch.setattr(Sender, "start", lambda _sender: None)
    client = ClientConfig.from_properties(properties(producer.cluster.bootstrap_servers))
    still = Producer(client, ProducerConfig())
    sender, completion = still._sender, still._completion
    delivery = still.send("t", value=b"a")
    assert still._buffers["t"].close_waiting(lambda _queue: True)

    class Inbox(deque):
        def copy(self):
            seen = deque(self)
            sender._take_in()
            return seen

    class Incomplete(dict):
        def __iter__(self):
            seen = list(self.keys())
            sender._take_in()
            return iter(seen)

    (batch,) = sender.inbox
    sender.inbox, completion.incomplete = Inbox(sender.inbox), Incomplete()
    with pytest.raises(DeadlineExceededError, match="1 records are still under way"):
        still.flush(50)
    assert not sender.inbox
    assert list(completion.incomplete) == [batch]
    monkeypatch.undo()
    sender.start()
    still.flush(60_000)
    assert delivery.exception(0) is None
    still.close()
    assert producer.cluster.values(TP) == [b"a"]
