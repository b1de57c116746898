"""A producer under test, and the records that it sends."""

import time
from contextlib import contextmanager

from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.producer import Producer
from support.brokers.scripted_broker import properties

TP = TopicPartition("t", 0)


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


@contextmanager
def producing(cluster, *, client=None, on_error=None, partitioner=None, close_ms=5_000, **config):
    """A producer that sends every record as a batch of its own, at once."""
    config = {"batch_records": 1, "linger_ms": 0, "delivery_timeout_ms": 60_000} | config
    settings = ClientConfig.from_properties(properties(cluster.bootstrap_servers, **(client or {})))
    producer = Producer(settings, ProducerConfig(**config), on_error=on_error, partitioner=partitioner)
    try:
        yield producer
    finally:
        producer.close(close_ms / 1000)


def send(producer, count, start=0, topic="t"):
    return [producer.send(topic, value=b"%d" % i, partition=0) for i in range(start, start + count)]


def wait_until(true, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.002)


def numbers(count):
    return [b"%d" % i for i in range(count)]


def buffered(producer):
    """Bytes and records of buffer memory in use; not 0 at the end if some of it was never given back."""
    stats = producer.stats()
    return stats.buffered_bytes, stats.buffered_records
