"""Producers that fail, restart and share a spill folder: in every case, each record is in the log once, in
order."""

import random
import time

import pytest
from support.brokers.produce_cluster import LOST_ANSWER, LOST_REQUEST, ProduceCluster, Step, refused
from support.brokers.scripted_broker import properties

from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.producer import Producer

pytestmark = pytest.mark.timed(0.1)

TP = TopicPartition("t", 0)
FAULTS = (
    LOST_ANSWER,
    LOST_REQUEST,
    refused(ErrorCode.NOT_ENOUGH_REPLICAS),
    refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    Step(True, ErrorCode.REQUEST_TIMED_OUT),
)


def open_producer(cluster, folder, **config):
    client = ClientConfig.from_properties(properties(cluster.bootstrap_servers))
    return Producer(client, ProducerConfig(spill_dir=str(folder), linger_ms=0, **config))


def send_some(cluster, producer, rng, start):
    """A few records with pauses; the broker may stop in between. The number of the next record."""
    stops = rng.random() < 0.3
    stopped = False
    for turn in range(rng.randint(1, 6)):
        for _ in range(rng.randint(1, 5)):
            producer.send("t", value=b"%04d" % start + b"x" * 90, partition=0)
            start += 1
        time.sleep(rng.random() * 0.03)
        if stops and turn == 2:
            cluster[1].stop()
            stopped = True
    producer.close(rng.choice([0.001, 0.05, 0.3, 2]))
    if stopped:
        cluster[1].start()
    return start


@pytest.mark.parametrize("seed", range(15))
def test_each_record_is_there_once_and_in_order(seed, tmp_path):
    rng = random.Random(seed)
    with ProduceCluster() as cluster:
        cluster.create("t", 1)
        if rng.random() < 0.4:
            cluster.max_message_bytes, cluster.told_max_message_bytes = 400, 100_000
        sent = 0
        for _ in range(rng.randint(2, 5)):
            cluster.scripts[TP].clear()
            cluster.script(TP, *rng.choices(FAULTS, k=rng.randint(0, 8)))
            cluster.delay_s = rng.choice([0, 0.005, 0.02])
            limits = {"delivery_timeout_ms": rng.choice([300, 3000]), "retries": rng.choice([1, 3, 100])}
            producer = open_producer(cluster, tmp_path, batch_records=rng.choice([1, 3]), **limits)
            sent = send_some(cluster, producer, rng, sent)
        cluster.scripts[TP].clear()
        cluster.delay_s = 0
        for _ in range(2):
            last = open_producer(cluster, tmp_path, delivery_timeout_ms=60_000)
            last.flush(60)
            last.close(5)
        assert [value[:4] for value in cluster.values(TP)] == [b"%04d" % i for i in range(sent)]
