"""What makes a producer easy to use: many records at once, callbacks, offsets, one producer for all."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.produce_cluster import ProduceCluster, refused

from spark_kafka_native.kafka import (
    Delivery,
    DeliveryError,
    Producer,
    ProducerClosedError,
    Record,
    RecordError,
    TopicPartition,
    per_record,
    producer_for,
)
from spark_kafka_native.kafka.error_code import ErrorCode
from spark_kafka_native.kafka.producer import producer as producer_module
from spark_kafka_native.kafka.producer.accumulating.records_in import columns_of
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest

TP = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> Iterator[ProduceCluster]:
    with ProduceCluster() as running:
        running.create("t", 2)
        yield running


@pytest.fixture
def produce(cluster: ProduceCluster) -> Iterator[Callable[..., Producer]]:
    made: list[Producer] = []

    def make(**settings: Any) -> Producer:
        made.append(Producer(cluster.bootstrap_servers, linger_ms=0, **settings))
        return made[-1]

    yield make
    for producer in made:
        producer.close(1)


def test_the_value_comes_second(cluster: ProduceCluster, produce: Callable[..., Producer]) -> None:
    producer = produce()
    producer.send("t", b"payload").result(60)
    assert cluster.values(TP) + cluster.values(TopicPartition("t", 1)) == [b"payload"]
    with pytest.raises(TypeError, match="positional"):
        producer.send("t", b"key", b"value")  # type: ignore[misc]


def test_many_records_come_as_records_mappings_or_values() -> None:
    headers = (("h", b"1"), ("h", None))
    columns = columns_of(
        [Record("x", 9, 7, b"k", None, headers, 5), {"key": "key", "value": b"v"}, "value", None], 77
    )
    assert [(r.key, r.value, r.headers, r.timestamp_ms) for r in columns] == [
        (b"k", None, headers, 5),
        (b"key", b"v", (), 77),
        (None, b"value", (), 77),
        (None, None, (), 77),
    ]
    whole = {"value": "v", "headers": headers, "timestamp_ms": 6, "key": None}
    assert [record.headers for record in columns_of([whole], 77)] == [headers]
    assert [record.timestamp_ms for record in columns_of([whole, {}], 77)] == [6, 77]
    first = {"value": "v", "timestamp_ms": 0}  # the begin of 1970 is a time, too
    assert [record.timestamp_ms for record in columns_of([first, {"timestamp_ms": None}], 77)] == [0, 77]
    plain = columns_of(["a", "b"], 77)
    assert (plain.key, plain.headers, plain.timestamp_ms) == (None, None, None)
    assert columns_of([], 77).length == 0


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (5, "bytes, str or None, not int"),
        (("k", "v"), "which part is the key"),
        ({"payload": "v"}, "not 'payload'"),
        ({"value": 5}, "value"),
        ({"key": 5}, "key"),
    ],
)
def test_what_is_no_record_is_named_with_its_row(bad: Any, says: str) -> None:
    with pytest.raises(RecordError, match=says) as caught:
        columns_of(["fine", bad], 0)
    assert caught.value.row == 1


def test_many_records_are_sent_in_their_order(
    cluster: ProduceCluster, produce: Callable[..., Producer]
) -> None:
    producer = produce()
    delivery = producer.send_many("t", [b"%d" % i for i in range(100)], partition=1)
    assert delivery.result(60).offset.tolist() == list(range(100))
    assert cluster.values(TopicPartition("t", 1)) == [b"%d" % i for i in range(100)]
    with pytest.raises(RecordError, match="row 1"):
        producer.send_many("t", ["fine", 5], partition=1)  # type: ignore[list-item]
    producer.flush(60)
    assert producer.stats().records == 100


def test_each_record_may_have_a_callback(cluster: ProduceCluster, produce: Callable[..., Producer]) -> None:
    producer = produce(retries=0, enable_idempotence=False)
    ended: list[Delivery] = []
    threads = set()

    def called(delivery: Delivery) -> None:
        threads.add(threading.current_thread().name)
        ended.append(delivery)

    producer.send("t", value=b"1", partition=0, on_delivery=called)
    producer.flush(60)
    cluster.script(TP, refused(ErrorCode.INVALID_RECORD))
    producer.send("t", value=b"2", partition=0, on_delivery=called)
    producer.send("t", value=b"3", partition=1)
    producer.flush(60)
    assert [delivery.done() for delivery in ended] == [True, True]
    assert ended[0].result(0).offset == 0
    assert isinstance(ended[1].exception(0), DeliveryError)


@pytest.mark.parametrize("counts", [(3, 2), (1, 2)])
def test_offsets_tell_how_far_brokers_have_acknowledged(
    produce: Callable[..., Producer], counts: tuple[int, int]
) -> None:
    producer = produce()
    assert (producer.offset().sum, producer.offset().partitions) == (0, {})
    for partition, count in enumerate(counts):
        producer.send_many("t", ["x"] * count, partition=partition)
    producer.flush(60)
    found = producer.offset()
    assert found.sum == sum(counts)
    assert found.partitions == {TP: counts[0], TopicPartition("t", 1): counts[1]}


def test_a_function_chooses_for_each_record(
    cluster: ProduceCluster, produce: Callable[..., Producer]
) -> None:
    producer = produce(partitioner=per_record(lambda _topic, key, count: int(key or b"0") % count))
    for key in ("0", "1", "2", None):
        producer.send("t", key, key=key)
    producer.flush(60)
    assert cluster.values(TP) == [b"0", b"2", None]
    assert cluster.values(TopicPartition("t", 1)) == [b"1"]


def test_all_who_ask_for_the_same_share_a_producer(cluster: ProduceCluster) -> None:
    servers = cluster.bootstrap_servers
    shared = producer_for(servers, linger_ms=0)
    try:
        assert producer_for(servers, linger_ms=0) is shared
        assert producer_for({"bootstrap.servers": servers, "linger.ms": "0"}) is shared
        others = [producer_for(servers, "mine", linger_ms=0), producer_for(servers, linger_ms=1)]
        assert len({shared, *others}) == 3
        for other in others:
            other.close(60)
    finally:
        shared.close(60)
    assert shared.closed
    again = producer_for(servers, linger_ms=0)
    assert again is not shared
    again.send("t", value=b"1").result(60)
    again.close(60)


def test_a_shared_producer_that_was_closed_is_not_kept(cluster: ProduceCluster) -> None:
    """A program may close each and ask for one with other settings."""
    servers = cluster.bootstrap_servers
    closed = [producer_for(servers, name) for name in ("a", "b", "c")]
    for one in closed:
        one.close(60)
    kept = producer_for(servers, "d")
    try:
        assert not set(closed) & set(producer_module._SHARED.values())
        assert producer_for(servers, "d") is kept
    finally:
        kept.close(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_has_a_shared_producer_of_its_own(cluster: ProduceCluster) -> None:
    shared = producer_for(cluster.bootstrap_servers, linger_ms=0)
    shared.send("t", value=b"parent").result(60)
    child = os.fork()
    if child == 0:
        own = producer_for(cluster.bootstrap_servers, linger_ms=0)
        try:
            shared.send("t", value=b"lost")
        except ProducerClosedError:
            own.send("t", value=b"child").result(60)
            own.close(60)
            os._exit(0 if own is not shared and shared.closed else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert not shared.closed
    shared.close(60)
    assert sorted(cluster.values(TP) + cluster.values(TopicPartition("t", 1))) == [b"child", b"parent"]


@pytest.mark.parametrize("allowed", [False, True])
def test_brokers_are_asked_to_create_topics_only_where_that_is_allowed(
    cluster: ProduceCluster, produce: Callable[..., Producer], allowed: bool
) -> None:
    producer = produce(allow_auto_create_topics=allowed)
    producer.send("t", value=b"1").result(60)
    asked = [request for request in cluster[1].requests(MetadataRequest) if request.topics]
    assert asked
    assert asked[0].allow_auto_topic_creation is allowed


def test_a_delivery_is_awaited(cluster: ProduceCluster) -> None:
    async def send() -> list[int | None]:
        with Producer(cluster.bootstrap_servers, linger_ms=60_000) as producer:
            sent = [producer.send("t", b"%d" % i, partition=0) for i in range(3)]
            cancelled = asyncio.ensure_future(sent[1])
            await asyncio.sleep(0)  # it has begun to wait
            cancelled.cancel()
            found = [where.offset for where in await asyncio.gather(*sent)]
            assert (await sent[0]).offset == 0  # any number of times
            cluster.script(TP, *[refused(ErrorCode.INVALID_RECORD)] * 5)
            with pytest.raises(DeliveryError, match="INVALID_RECORD"):
                await producer.send("t", b"bad", partition=0)
            return found

    assert asyncio.run(send()) == [0, 1, 2]
    assert cluster.values(TP) == [b"0", b"1", b"2"]
