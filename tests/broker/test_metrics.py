"""What the clients say they did on a real broker."""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import Any

import pytest

from spark_kafka_native.kafka import AsyncConsumer, ClientConfig, Consumer, Producer, Router, TopicPartition
from spark_kafka_native.kafka.consumer.fetched_records import WorkStatus
from spark_kafka_native.kafka.errors import KafkaError
from spark_kafka_native.kafka.group.group_consumer import GroupConsumer
from spark_kafka_native.kafka.observe import catalogue
from spark_kafka_native.kafka.observe.metrics import MetricsSnapshot
from spark_kafka_native.kafka.producer.errors import DeliveryStatus

pytestmark = pytest.mark.broker

WAIT_S = 60.0
DECLARED = {one.name: one for one in catalogue.ALL_METRICS}


@pytest.fixture
def topic(kafka: Any) -> str:
    name = f"metrics-{uuid.uuid4().hex}"
    kafka.create_topic(name, 2)
    return name


def check(told: MetricsSnapshot) -> None:
    """Every value is declared, with the tags that it has."""
    for key, _ in told:
        assert tuple(name for name, _ in key.tags) == DECLARED[key.name].tags


def test_a_producer_tells_what_it_delivered_and_how_long_callers_waited(kafka: Any, topic: str) -> None:
    # Nothing is sent before a caller waits for it.
    with Producer(kafka.bootstrap_servers, linger_ms=600_000, delivery_timeout_ms=600_000) as producer:
        for number in range(100):
            producer.send(topic, value=b"x" * 100, partition=number % 2)
        assert producer.metrics().value("kafka.producer.buffered.records") == 100
        producer.flush()
        first = producer.metrics()
        check(first)
        assert first.value("kafka.producer.records", topic=topic) == 100
        assert first.value("kafka.producer.records") == producer.stats().records
        assert first.value("kafka.producer.bytes") == producer.stats().bytes > 0
        assert first.distribution("kafka.producer.batch.records").sum == 100
        assert first.distribution("kafka.producer.wait.duration", on="flush").count == 1
        assert first.distribution("kafka.producer.queue.duration").count == producer.stats().batches
        assert first.value("kafka.producer.buffered.records") == 0
        assert first.value("kafka.producer.queue.batches") == 0
        assert first.value("kafka.client.requests", api="Produce") == first.value("kafka.producer.requests")
        assert first.value("kafka.client.bytes.sent", api="Produce") > first.value("kafka.producer.bytes")
        assert first.distribution("kafka.client.request.duration", api="Produce").min > 0
        assert first.value("kafka.client.bytes.received", api="Metadata") > 0
        assert first.distribution("kafka.client.dial.duration", outcome="connected").count == first.value(
            "kafka.client.dials"
        )
        assert first.value("kafka.client.connections") >= 1

        producer.send(topic, value=b"y").result(WAIT_S)
        between = producer.metrics().since(first)
        assert between.value("kafka.producer.records") == 1
        assert between.distribution("kafka.producer.wait.duration", on="delivery").count == 1
        assert between.distribution("kafka.producer.wait.duration", on="flush").count == 0
        assert between.value("kafka.client.dials", outcome="failed") == 0
    assert producer.metrics().value("kafka.client.connections") == 0


def test_a_consumer_tells_what_it_read_and_how_far_it_is(kafka: Any, topic: str) -> None:
    with Producer(kafka.bootstrap_servers) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(40)], partition=0)
        producer.flush()
        assert producer.stats().batches == 1
    with Consumer(kafka.bootstrap_servers, topic, start="earliest", fetch_max_wait_ms=50) as consumer:
        assert consumer.poll(WAIT_S, max_records=10)
        told = consumer.metrics()
        check(told)
        assert told.value("kafka.consumer.records", topic=topic) == 40
        assert told.value("kafka.consumer.lag", topic=topic, partition="0") == 30
        assert told.value("kafka.consumer.partitions", state="reading") == 2
        assert told.distribution("kafka.consumer.batch.records").max == 40
        assert told.distribution("kafka.consumer.fetch.size").max > 40
        assert told.value("kafka.client.requests", api="Fetch") >= 1
        assert told.value("kafka.client.requests", api="ListOffsets") >= 1

        while told.value("kafka.consumer.lag"):
            assert consumer.poll(WAIT_S)
            told = consumer.metrics()
        assert consumer.poll(0.2) == []
        consumer.pause(TopicPartition(topic, 1))
        told = consumer.metrics()
        assert told.value("kafka.consumer.partitions", state="paused") == 1
        assert told.value("kafka.consumer.queue.batches") == 0
        assert told.value("kafka.consumer.queue.bytes") == 0


def test_a_member_of_a_group_tells_its_rebalances_and_commits(kafka: Any, topic: str) -> None:
    with Producer(kafka.bootstrap_servers) as producer:
        for number in range(10):
            producer.send(topic, value=b"%d" % number, partition=number % 2)
    group = f"group-{uuid.uuid4().hex}"
    with GroupConsumer(kafka.bootstrap_servers, topic, group, enable_auto_commit=False) as consumer:
        for _ in range(10):
            assert consumer.fetch_record(WAIT_S) is not None
        consumer.commit()
        told = consumer.metrics()
        check(told)
        assert told.value("kafka.group.rebalances") >= 1
        assert told.value("kafka.group.partitions") == 2
        assert told.value("kafka.group.partition.changes", change="assigned") == 2
        assert told.value("kafka.group.commits", outcome="committed") == 1
        assert told.distribution("kafka.group.commit.duration", outcome="committed").count == 1
        assert told.value("kafka.consumer.records", topic=topic) == 10
        assert told.value("kafka.client.requests", api="OffsetCommit") == 1


def test_a_broker_that_is_not_there_is_a_failed_dial_and_a_retry() -> None:
    router = Router(ClientConfig(bootstrap_servers=("127.0.0.1:1",), default_api_timeout_ms=1_000))
    with pytest.raises(KafkaError):
        router.metadata()
    told = router.metrics.snapshot(router.observed())
    assert told.value("kafka.client.dials", outcome="failed") >= 1
    assert told.value("kafka.client.dials", outcome="connected") == 0
    assert told.value("kafka.client.connections") == 0


def test_clients_of_one_router_count_their_own_records(kafka: Any, topic: str) -> None:
    with (
        Consumer(kafka.bootstrap_servers, topic) as consumer,
        Producer(consumer._router.config, router=consumer._router) as producer,
        Producer(consumer._router.config, router=consumer._router) as other,
    ):
        producer.send(topic, value=b"1").result(WAIT_S)
        assert producer.metrics().value("kafka.producer.records") == 1
        assert other.metrics().value("kafka.producer.records") == 0
        assert other.metrics().value("kafka.client.requests", api="Produce") == 1


def test_a_forked_child_counts_from_zero(kafka: Any, topic: str) -> None:
    with Producer(kafka.bootstrap_servers) as producer:
        producer.send(topic, value=b"1").result(WAIT_S)
        child = os.fork()
        if not child:
            told = producer.metrics()
            counted = told.value("kafka.client.requests") + told.value("kafka.producer.records")
            os._exit(1 if counted or told.value("kafka.client.connections") else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert producer.metrics().value("kafka.producer.records") == 1


def test_each_batch_is_acknowledged_before_its_records_are(kafka: Any, topic: str) -> None:
    with Producer(kafka.bootstrap_servers, linger_ms=600_000, delivery_timeout_ms=600_000) as producer:
        stream = producer.acknowledgements()
        producer.send_many(topic, [b"1", b"2", b"3"], partition=1).result(WAIT_S)
        (first,) = stream.drain()
        assert (first.topic_partition, first.status) == (TopicPartition(topic, 1), DeliveryStatus.PERSISTED)
        assert (first.records, first.base_offset, first.last_offset, first.error) == (3, 0, 2, None)
        assert first.bytes == producer.stats().bytes
    assert list(stream) == []


def test_a_range_of_offsets_is_followed_from_fetch_to_commit(kafka: Any, topic: str) -> None:
    with Producer(kafka.bootstrap_servers) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(6)], partition=0).result(WAIT_S)
    group = f"group-{uuid.uuid4().hex}"
    with GroupConsumer(kafka.bootstrap_servers, topic, group, enable_auto_commit=False) as consumer:
        stream = consumer.work_units()
        for _ in range(4):
            record = consumer.fetch_record(WAIT_S)
        assert record is not None
        consumer.commit(record)
        consumer.pause(TopicPartition(topic, 0))
        told = [(one.status, one.from_offset, one.until_offset, one.records) for one in stream.drain()]
        assert told == [
            (WorkStatus.FETCHED, 0, 6, 6),
            (WorkStatus.HANDED_OUT, 0, 6, 6),
            (WorkStatus.COMMITTED, 0, 4, None),
            (WorkStatus.GIVEN_BACK, 4, 6, 2),
        ]
        consumer.seek(TopicPartition(topic, 0), 5)
        (dropped,) = stream.drain()
        assert (dropped.status, dropped.from_offset, dropped.length) == (WorkStatus.DROPPED, 4, 2)
    assert [one.status for one in stream if one.status is WorkStatus.COMMITTED] == []
    assert stream.closed


def test_streams_of_a_consumer_end_with_it(kafka: Any, topic: str) -> None:
    consumer = Consumer(kafka.bootstrap_servers, topic)
    stream = consumer.work_units(1)
    consumer.close()
    assert list(stream) == []


def test_a_consumer_for_asyncio_tells_the_same(kafka: Any, topic: str) -> None:
    with Producer(kafka.bootstrap_servers) as producer:
        producer.send_many(topic, [b"1", b"2"], partition=0).result(WAIT_S)

    async def read() -> None:
        async with AsyncConsumer(kafka.bootstrap_servers, topic, start="earliest") as consumer:
            stream = consumer.work_units()
            assert await consumer.poll(WAIT_S)
            assert consumer.metrics().value("kafka.consumer.records", topic=topic) == 2
            assert stream.drain()[-1].status is WorkStatus.HANDED_OUT

    asyncio.run(read())
