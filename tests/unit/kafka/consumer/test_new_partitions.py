"""Partitions that are added to a topic while it is read."""

from __future__ import annotations

import time
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.brokers.scripted_broker import Log, ScriptedCluster

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.reader_config import ReaderConfig
from spark_kafka_native.kafka.consumer import consumer as consumer_module
from spark_kafka_native.kafka.consumer import prefetch_thread
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.consumer.prefetch_buffer import PrefetchBuffer
from spark_kafka_native.kafka.consumer.prefetch_thread import PrefetchThread
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest, MetadataResponse


def test_they_are_read_from_their_beginning_although_the_others_are_read_from_their_end() -> None:
    """Records that were written before they were noticed are new, too."""
    with ScriptedCluster(1) as cluster:
        cluster.create("a", partitions=1)
        cluster.logs[TopicPartition("a", 0)].append([b"old"])
        with Consumer(cluster.bootstrap_servers, "a", start="latest", metadata_max_age_ms=100) as consumer:
            added = cluster.logs[TopicPartition("a", 1)] = Log()
            added.append([b"0", b"1"])
            assert [record.value for record in consumer.poll(60)] == [b"0", b"1"]
            assert consumer.partitions == (TopicPartition("a", 0), TopicPartition("a", 1))


@pytest.mark.parametrize("answer", ["omitted", "unknown"])
def test_they_are_found_although_another_topic_is_gone(answer: str) -> None:
    with ScriptedCluster(1) as cluster:
        cluster.create("a", partitions=1)
        cluster.create("b", partitions=1)

        def without_b(request: MetadataRequest, version: int) -> MetadataResponse:
            found = cluster.metadata(request, version)
            return replace(found, topics=[topic for topic in found.topics if topic.name != "b"])

        with Consumer(cluster.bootstrap_servers, ["a", "b"], metadata_max_age_ms=100) as consumer:
            if answer == "omitted":
                cluster[1].on(MetadataRequest, without_b)
            else:
                del cluster.topic_ids["b"]
            added = cluster.logs[TopicPartition("a", 1)] = Log()
            added.append([b"0", b"1"])
            consumer.pause(TopicPartition("b", 0))
            assert [record.value for record in consumer.poll(60)] == [b"0", b"1"]


def test_no_look_follows_the_end_of_a_consumer_that_was_dropped() -> None:
    class Dropped:
        def look(self) -> bool:
            return True

    one = Dropped()
    watch = consumer_module._watch(weakref.WeakMethod(one.look))
    assert watch()
    del one
    assert not watch()


def test_a_look_waits_for_its_time_which_a_missing_partition_never_defers() -> None:
    router = Router(ClientConfig(bootstrap_servers=("a:1",), metadata_max_age_ms=60_000))
    buffer = PrefetchBuffer(max_bytes=1)
    begun: list[str] = []
    thread = PrefetchThread(router, ReaderConfig(), None, buffer, lambda: False)
    thread._background = SimpleNamespace(start=lambda key, *_: begun.append(key))  # type: ignore[assignment]
    thread._watch_metadata()
    assert not begun
    at = thread._watch_at = time.monotonic() - 1
    thread.watch_soon(True)
    assert thread._watch_at == at
    for _ in range(2):
        thread._watch_metadata()
        assert begun == ["watch"]
    thread.watch_soon(False)
    assert thread._watch_at > time.monotonic() + 30
    thread.watch_soon(True)
    assert thread._watch_at <= time.monotonic() + prefetch_thread.SOON_S
    buffer.wakeup.close()
