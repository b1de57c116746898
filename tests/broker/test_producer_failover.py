"""The producer on three real brokers that are killed, paused and outvoted: each record once, in order, and
honest words about the others."""

from __future__ import annotations

import threading
import time
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.errors import DeliveryStatus
from spark_kafka_native.kafka.producer.producer import Producer

pytestmark = pytest.mark.broker


def client(cluster: Any, **changed: Any) -> ClientConfig:
    return ClientConfig(bootstrap_servers=tuple(cluster.bootstrap_servers.split(",")), **changed)


def leader_of(cluster: Any, topic: str, partition: int = 0) -> int:
    router = Router(client(cluster))
    try:
        return router.leader(TopicPartition(topic, partition)).node_id
    finally:
        router.close()


def read_all(cluster: Any, topic: str, partitions: int, count: int) -> dict[int, list[bytes]]:
    """Every value in order, by an independent client."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": f"g-{time.monotonic()}", "log_level": 0}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(partitions)])
    found: dict[int, list[bytes]] = {p: [] for p in range(partitions)}
    deadline, quiet = time.monotonic() + 60, 0
    while time.monotonic() < deadline and quiet < 3:
        messages = consumer.consume(50_000, 1.0)
        for message in messages:
            assert message.error() is None, message.error()
            found[message.partition()].append(message.value())
        quiet = quiet + 1 if not messages and sum(map(len, found.values())) >= count else 0
    consumer.close()
    return found


@pytest.mark.parametrize("graceful", [False, True], ids=["killed", "stopped"])
def test_a_leader_that_goes_and_comes_back_costs_nothing(
    kafka_cluster: Any, topic: str, graceful: bool
) -> None:
    kafka_cluster.create_topic(topic, partitions=4, replication_factor=3, config={"min.insync.replicas": "2"})
    sent: dict[int, list[bytes]] = {p: [] for p in range(4)}
    stop = threading.Event()

    def disturb() -> None:
        for partition in range(2):
            if stop.wait(1.5):
                return
            node_id = leader_of(kafka_cluster, topic, partition)
            kafka_cluster.stop(node_id) if graceful else kafka_cluster.kill(node_id)
            stop.wait(1.5)
            kafka_cluster.restart(node_id)

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    settings = ProducerConfig(batch_records=500)
    with Producer(client(kafka_cluster, request_timeout_ms=5_000), settings) as producer:
        number = 0
        try:
            while disturbing.is_alive() or number < 20_000:
                values = [b"%d" % i for i in range(number, number + 400)]
                chosen = [i % 4 for i in range(400)]
                rows = pa.record_batch({"value": pa.array(values, pa.binary()), "partition": chosen})
                producer.send_columns(rows, topic)
                for value, partition in zip(values, chosen, strict=True):
                    sent[partition].append(value)
                number += 400
                time.sleep(0.02)
        finally:
            stop.set()
            disturbing.join()
        producer.flush(90_000)
        stats = producer.stats()
    assert (stats.records, stats.errors) == (number, 0)
    assert read_all(kafka_cluster, topic, 4, number) == sent


def test_a_paused_leader_holds_up_only_its_own_partitions(kafka_cluster: Any, topic: str) -> None:
    kafka_cluster.create_topic(topic, partitions=3, replication_factor=3)
    leaders = [leader_of(kafka_cluster, topic, p) for p in range(3)]
    if len(set(leaders)) < 2:
        pytest.skip("one broker leads everything")
    other = next(p for p in range(3) if leaders[p] != leaders[0])
    with Producer(client(kafka_cluster, request_timeout_ms=4_000), ProducerConfig(linger_ms=0)) as producer:
        for p in range(3):
            producer.send(topic, value=b"before", partition=p).result(10)
        kafka_cluster.pause(leaders[0])
        try:
            held = producer.send(topic, value=b"held", partition=0)
            started = time.monotonic()
            producer.send(topic, value=b"free", partition=other).result(20)
            took = time.monotonic() - started
        finally:
            kafka_cluster.resume(leaders[0])
        held.result(60)
        assert took < 20
    found = read_all(kafka_cluster, topic, 3, 5)
    assert found[0] == [b"before", b"held"]
    assert found[other] == [b"before", b"free"]


def test_too_few_replicas_are_waited_for_and_then_said(kafka_cluster: Any, topic: str) -> None:
    kafka_cluster.create_topic(topic, partitions=1, replication_factor=3, config={"min.insync.replicas": "3"})
    leader = leader_of(kafka_cluster, topic)
    victim = next(node_id for node_id in (1, 2, 3) if node_id != leader)
    with Producer(client(kafka_cluster), ProducerConfig(linger_ms=0, delivery_timeout_ms=6_000)) as producer:
        producer.send(topic, value=b"0").result(20)
        kafka_cluster.kill(victim)
        try:
            # Until the broker is fenced the write waits for it; afterwards it is refused.
            deadline = time.monotonic() + 40
            while time.monotonic() < deadline:
                error = producer.send(topic, value=b"lost?").exception(30)
                if error is not None and "NOT_ENOUGH_REPLICAS" in str(error):
                    break
            assert error is not None
            assert error.retriable
            assert error.status in (DeliveryStatus.NOT_PERSISTED, DeliveryStatus.POSSIBLY_PERSISTED)
            patient = Producer(client(kafka_cluster), ProducerConfig(linger_ms=0, delivery_timeout_ms=90_000))
            waiting = patient.send(topic, value=b"patient")
            time.sleep(1)
            assert not waiting.done()
        finally:
            kafka_cluster.restart(victim)
        assert waiting.result(60).offset is not None
        patient.close()
    assert b"patient" in read_all(kafka_cluster, topic, 1, 2)[0]


def test_partitions_that_are_added_are_used(kafka_cluster: Any, topic: str) -> None:
    from spark_kafka_native.kafka.admin import Admin

    kafka_cluster.create_topic(topic, partitions=1, replication_factor=3)
    with Producer(client(kafka_cluster), ProducerConfig(linger_ms=0)) as producer:
        producer.send(topic, value=b"0", partition=0).result(20)
        router = Router(client(kafka_cluster))
        Admin(router).create_partitions({topic: 2})
        router.close()
        deadline = time.monotonic() + 20
        while True:
            try:
                told = producer.send(topic, value=b"1", partition=1).result(20)
                break
            except ValueError:  # the brokers don't all know of it yet
                assert time.monotonic() < deadline
                time.sleep(0.2)
        assert told.topic_partition.partition == 1
