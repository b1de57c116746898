"""Everything at once, at random, against a broker that keeps a log: every accepted record is in it exactly
once, or its delivery failed."""

import random
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from support.brokers.produce_cluster import LOST_ANSWER, LOST_REQUEST, ProduceCluster, refused
from support.brokers.scripted_broker import properties
from support.producer.producing import buffered

from spark_kafka_native.kafka import (
    ClientConfig,
    DeadlineExceededError,
    PartlyTakenError,
    Producer,
    ProducerClosedError,
    ProducerConfig,
    TopicPartition,
)
from spark_kafka_native.kafka.error_code import ErrorCode

pytestmark = pytest.mark.timed(0.1)

PARTITIONS = [TopicPartition(topic, index) for topic in ("t", "u") for index in range(3)]
TROUBLE = [
    LOST_ANSWER,
    LOST_REQUEST,
    refused(ErrorCode.NOT_ENOUGH_REPLICAS),
    refused(ErrorCode.INVALID_RECORD),
]


class Caller(threading.Thread):
    """One of the threads that use the producer."""

    def __init__(self, producer, name, seed, until):
        super().__init__(daemon=True)
        self.producer, self.prefix, self.rng, self.until = producer, name, random.Random(seed), until
        self.sent = []
        """The accepted records: values and how to ask for their statuses."""
        self.numbers = 0
        self.closed = False

    def values(self, count):
        start, self.numbers = self.numbers, self.numbers + count
        return [f"{self.prefix}{i:06d}".encode() for i in range(start, self.numbers)]

    def run(self):
        try:
            while time.monotonic() < self.until:
                self.step()
        except ProducerClosedError:
            self.closed = True

    def step(self):
        rng, producer = self.rng, self.producer
        kind = rng.randrange(12)
        if kind == 0:
            try:
                producer.flush(rng.choice([0.001, 0.02, 20]))
            except DeadlineExceededError:
                return
        elif kind < 5:
            self.columns(self.values(rng.choice([1, 10, 400])))
        else:
            for value in self.values(rng.choice([1, 30])):
                topic = rng.choice("tu")
                partition = rng.choice([None, 0, 1])
                headers = [("h", None)] if rng.random() < 0.2 else ()
                delivery = producer.send(topic, value=value, partition=partition, headers=headers)
                self.sent.append(([value], lambda d=delivery: [d.status]))

    def columns(self, values):
        topics = [self.rng.choice("tu") for _ in values]
        batch = pa.record_batch({"value": pa.array(values, pa.binary()), "topic": topics})
        try:
            delivery = self.producer.send_columns(batch)
        except PartlyTakenError as error:
            delivery = error.delivery
        except ZeroDivisionError:  # the partitioner's, and nothing was taken
            return
        self.sent.append((values, lambda: delivery.status().tolist()))


@pytest.mark.parametrize("seed", range(4))
def test_chaos_in_front_and_behind(seed):
    rng = random.Random(seed)
    chance = random.Random(seed + 1000)

    def partitioner(_topic, keys, count):
        if chance.random() < 0.02:
            raise ZeroDivisionError("the partitioner's own bug")
        return np.array([chance.randrange(count) for _ in range(len(keys))], np.int32)

    with ProduceCluster(2) as cluster:
        for topic in ("t", "u"):
            cluster.create(topic, 3)
        config = ProducerConfig(
            linger_ms=rng.choice([0, 2]),
            batch_size=rng.choice([300, 5_000]),
            buffer_memory=rng.choice([20_000, 1 << 20]),
            delivery_timeout_ms=60_000,
        )
        client = ClientConfig.from_properties(properties(cluster.bootstrap_servers))
        producer = Producer(client, config, partitioner=partitioner)
        until = time.monotonic() + 1.5
        callers = [Caller(producer, name, seed * 10 + i, until) for i, name in enumerate("abc")]
        for caller in callers:
            caller.start()
        while time.monotonic() < until - (0.5 if seed % 2 else 0):
            cluster.script(rng.choice(PARTITIONS), rng.choice(TROUBLE))
            time.sleep(0.02)
        if seed % 2:  # while they go on
            closers = [threading.Thread(target=producer.close, args=(20,), daemon=True) for _ in range(2)]
            for closer in closers:
                closer.start()
        for caller in callers:
            caller.join(60)
            assert not caller.is_alive()
        producer.flush(60)
        assert buffered(producer) == (0, 0)
        producer.close(60)
        check(cluster, callers)


def check(cluster, callers):
    found = [value for tp in PARTITIONS for value in cluster.values(tp)]
    assert len(found) == len(set(found)), "written twice"
    log = set(found)
    accepted = 0
    for caller in callers:
        for values, statuses in caller.sent:
            for value, status in zip(values, statuses(), strict=True):
                assert status in (0, 1, 2), f"{value} never ended"
                accepted += 1
                if status == 2:
                    assert value in log, f"{value} is lost"
                if status == 0:
                    assert value not in log, f"{value} was written, and told as not written"
    assert accepted
