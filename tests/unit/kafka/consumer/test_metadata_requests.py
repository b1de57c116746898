"""How often a consumer asks for the leaders of many partitions if the topic is gone, or has no leaders."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from support.brokers.scripted_broker import ScriptedCluster

from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest

PARTITIONS = [TopicPartition("t", index) for index in range(200)]
OTHER = TopicPartition("other", 0)
WITHIN_S = 60
NOBODY = -1


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(1) as running:
        running.create("t", len(PARTITIONS))
        running.create("other")
        for topic_partition in PARTITIONS:
            running.logs[topic_partition].append([b"before"])
        yield running


@pytest.fixture
def consumer(cluster: ScriptedCluster) -> Iterator[Consumer]:
    """It has read everything."""
    with Consumer(cluster.bootstrap_servers, ["t", "other"], start=0, fetch_max_wait_ms=50) as consumer:
        count = 0
        while count < len(PARTITIONS):
            found = len(consumer.poll(WITHIN_S, 500))
            assert found
            count += found
        yield consumer


def requests_per_second(cluster: ScriptedCluster, consumer: Consumer, seconds: float) -> float:
    """How often it asks while it reads for this time; other records are read meanwhile."""
    before = len(cluster[1].requests(MetadataRequest))
    began, seen = time.monotonic(), 0
    while (passed_s := time.monotonic() - began) < seconds or seen < 10:
        assert passed_s < WITHIN_S
        cluster.logs[OTHER].append([b"other"])
        seen += len(consumer.poll(0.1, 1))
    return (len(cluster[1].requests(MetadataRequest)) - before) / passed_s


def test_a_deleted_topic_is_asked_for_once_each_time_and_not_for_each_partition(
    cluster: ScriptedCluster, consumer: Consumer
) -> None:
    topic_id = cluster.topic_ids.pop("t")
    assert requests_per_second(cluster, consumer, 3) <= 4
    cluster.topic_ids["t"] = topic_id  # it was only not seen
    cluster.logs[PARTITIONS[7]].append([b"after"])
    read_on(consumer)


def test_partitions_without_leaders_are_asked_for_together(
    cluster: ScriptedCluster, consumer: Consumer
) -> None:
    for topic_partition in PARTITIONS:
        cluster.logs[topic_partition].leader = NOBODY
    assert requests_per_second(cluster, consumer, 2) <= 20
    for topic_partition in PARTITIONS:
        cluster.logs[topic_partition].leader = 1
    cluster.logs[PARTITIONS[7]].append([b"after"])
    read_on(consumer)


def read_on(consumer: Consumer) -> None:
    until = time.monotonic() + WITHIN_S
    while True:
        assert time.monotonic() < until
        if [one.value for one in consumer.poll(1, 1) if one.topic == "t"] == [b"after"]:
            return
