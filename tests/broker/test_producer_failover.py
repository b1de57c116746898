"""The producer on three real brokers that are killed, paused and outvoted: each record once, in order, and
honest words about the others."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.producer.delivery import Delivery
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
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": f"g-{time.monotonic()}",
        "enable.partition.eof": True,
        "log_level": 0,
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(partitions)])
    found: dict[int, list[bytes]] = {p: [] for p in range(partitions)}
    deadline, at_end = time.monotonic() + 120, set[int]()
    while sum(map(len, found.values())) < count or len(at_end) < partitions:
        assert time.monotonic() < deadline, {p: len(values) for p, values in found.items()}
        for message in consumer.consume(50_000, 0.2):
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                at_end.add(message.partition())
            else:
                at_end.discard(message.partition())
                found[message.partition()].append(message.value())
    consumer.close()
    return found


def test_a_leader_that_goes_and_comes_back_costs_nothing(kafka_cluster: Any, topic: str) -> None:
    """The leader of one partition is killed, then that of another is stopped in good order."""
    kafka_cluster.create_topic(topic, partitions=4, replication_factor=3, config={"min.insync.replicas": "2"})
    sent: dict[int, list[bytes]] = {p: [] for p in range(4)}
    stop = threading.Event()

    def disturb() -> None:
        for partition, go in enumerate((kafka_cluster.kill, kafka_cluster.stop)):
            if stop.wait(1.0):
                return
            node_id = leader_of(kafka_cluster, topic, partition)
            go(node_id)
            stop.wait(1.0)
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
        producer.flush(90)
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
            producer.send(topic, value=b"before", partition=p).result(60)
        kafka_cluster.pause(leaders[0])
        try:
            held = producer.send(topic, value=b"held", partition=0)
            # The other waits for nothing but that its leader goes on without the paused replica.
            producer.send(topic, value=b"free", partition=other).result(90)
        finally:
            kafka_cluster.resume(leaders[0])
        held.result(120)
    found = read_all(kafka_cluster, topic, 3, 5)
    assert found[0] == [b"before", b"held"]
    assert found[other] == [b"before", b"free"]


def test_a_paused_leader_whose_socket_is_full_holds_up_nobody_else(kafka_cluster: Any, topic: str) -> None:
    kafka_cluster.create_topic(topic, partitions=3)
    leaders = [leader_of(kafka_cluster, topic, p) for p in range(3)]
    if len(set(leaders)) < 2:
        pytest.skip("one broker leads everything")
    other = next(p for p in range(3) if leaders[p] != leaders[0])
    config = client(kafka_cluster, request_timeout_ms=200_000, send_buffer_bytes=8_192)
    settings = ProducerConfig(linger_ms=0, batch_records=1, delivery_timeout_ms=300_000)
    producer = Producer(config, settings)
    try:
        for p in range(3):
            producer.send(topic, value=b"before", partition=p).result(60)
        kafka_cluster.pause(leaders[0])
        try:
            held = [producer.send(topic, value=bytes(800_000), partition=0) for _ in range(8)]
            free = [producer.send(topic, value=b"%d" % i, partition=other) for i in range(50)]
            assert [delivery.exception(90) for delivery in free] == [None] * 50
            assert not held[0].done()
            closing = threading.Thread(target=producer.close, args=(1,))
            closing.start()
            closing.join(90)
            assert not closing.is_alive()
        finally:
            kafka_cluster.resume(leaders[0])
        statuses = [delivery.exception(0).status for delivery in held]
        assert statuses[0] is DeliveryStatus.POSSIBLY_PERSISTED
        assert statuses[-1] is DeliveryStatus.NOT_PERSISTED
    finally:
        producer.close(1)
    found = read_all(kafka_cluster, topic, 3, 53)
    assert found[other] == [b"before", *[b"%d" % i for i in range(50)]]
    assert found[0] in ([b"before", *[bytes(800_000)] * n] for n in range(6))


def test_too_few_replicas_are_waited_for_and_then_said(kafka_cluster: Any, topic: str) -> None:
    kafka_cluster.create_topic(topic, partitions=1, replication_factor=3, config={"min.insync.replicas": "3"})
    leader = leader_of(kafka_cluster, topic)
    victim = next(node_id for node_id in (1, 2, 3) if node_id != leader)
    with Producer(client(kafka_cluster), ProducerConfig(linger_ms=0, delivery_timeout_ms=6_000)) as producer:
        kafka_cluster.kill(victim)
        try:
            # Until the broker is fenced the write waits for it; afterwards it is refused.
            deadline = time.monotonic() + 120
            error = None
            while "NOT_ENOUGH_REPLICAS" not in str(error):
                assert time.monotonic() < deadline, error
                error = producer.send(topic, value=b"lost?").exception(60)
            assert error is not None
            assert error.retriable
            assert error.status in (DeliveryStatus.NOT_PERSISTED, DeliveryStatus.POSSIBLY_PERSISTED)
            patient = Producer(
                client(kafka_cluster), ProducerConfig(linger_ms=0, delivery_timeout_ms=300_000)
            )
            waiting = patient.send(topic, value=b"patient")
            time.sleep(1)
            assert not waiting.done()
        finally:
            kafka_cluster.restart(victim)
        assert waiting.result(240).offset is not None
        patient.close()
    assert b"patient" in read_all(kafka_cluster, topic, 1, 2)[0]


@pytest.mark.parametrize("how", ["paused", "killed"])
def test_a_spill_folder_heals_itself_when_the_leader_is_back(
    kafka_cluster: Any, topic: str, how: str, tmp_path: Path
) -> None:
    """The topic has one replica, so no broker takes over. A paused leader has requests in its sockets, which
    it will still apply when it goes on, before or after they are sent again."""
    kafka_cluster.create_topic(topic, partitions=1, replication_factor=1)
    leader, folder = leader_of(kafka_cluster, topic), tmp_path / "spill"
    settings = ProducerConfig(linger_ms=0, batch_records=3, delivery_timeout_ms=2_000, spill_dir=str(folder))
    number = 0

    def send(count: int) -> list[Delivery]:
        nonlocal number
        number += count
        return [producer.send(topic, value=b"%d" % i) for i in range(number - count, number)]

    def send_until_one_is_there() -> None:
        """A machine that stands still for longer than the delivery timeout makes one spill, and heals."""
        deadline = time.monotonic() + 120
        while (error := (delivery := send(1)[0]).exception(60)) is not None:
            assert error.spilled
            assert time.monotonic() < deadline, error
        assert delivery.result(0).offset == number - 1

    with Producer(client(kafka_cluster, request_timeout_ms=1_000), settings) as producer:
        send_until_one_is_there()
        kafka_cluster.pause(leader) if how == "paused" else kafka_cluster.kill(leader)
        try:
            errors = [delivery.exception(60) for delivery in send(40)]
            assert all(error is not None and error.spilled for error in errors)
            send(10)
        finally:
            kafka_cluster.resume(leader) if how == "paused" else kafka_cluster.restart(leader)
        deadline = time.monotonic() + 180
        while sorted(path.name for path in folder.iterdir()) != ["owner.lock"]:
            assert time.monotonic() < deadline, producer
            send(1)
            time.sleep(0.05)
        producer.flush(60)
        send_until_one_is_there()
        producer.flush(60)
    assert read_all(kafka_cluster, topic, 1, number)[0] == [b"%d" % i for i in range(number)]


def test_partitions_that_are_added_are_used(kafka_cluster: Any, topic: str) -> None:
    kafka_cluster.create_topic(topic, partitions=1, replication_factor=3)
    with Producer(client(kafka_cluster), ProducerConfig(linger_ms=0)) as producer:
        producer.send(topic, value=b"0", partition=0).result(60)
        router = Router(client(kafka_cluster))
        Admin(router).create_partitions({topic: 2})
        router.close()
        deadline = time.monotonic() + 120
        while True:
            try:
                told = producer.send(topic, value=b"1", partition=1).result(60)
                break
            except ValueError:  # the brokers don't all know of it yet
                assert time.monotonic() < deadline
                time.sleep(0.2)
        assert told.topic_partition.partition == 1


def test_a_topic_that_is_recreated_gets_what_follows_where_no_broker_answers(
    kafka_cluster: Any, topic: str
) -> None:
    """With acks=0 a broker says nothing of an error: it closes the connection."""
    kafka_cluster.create_topic(topic, partitions=1, replication_factor=3)
    with (
        Producer(client(kafka_cluster), acks=0, linger_ms=0) as producer,
        Admin(kafka_cluster.bootstrap_servers) as admin,
    ):
        producer.send(topic, value=b"before")
        read_all(kafka_cluster, topic, 1, 1)
        admin.delete_topics([topic])
        deadline = time.monotonic() + 120
        while topic in admin.list_topics():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        kafka_cluster.create_topic(topic, partitions=1, replication_factor=3)
        while not read_all(kafka_cluster, topic, 1, 0)[0]:
            assert time.monotonic() < deadline
            producer.send(topic, value=b"?")
            producer.flush(60)
        for number in range(50):
            producer.send(topic, value=b"%d" % number)
        producer.flush(60)
        while (found := read_all(kafka_cluster, topic, 1, 51)[0])[-1] != b"49":
            assert time.monotonic() < deadline
    assert found[-50:] == [b"%d" % number for number in range(50)]
