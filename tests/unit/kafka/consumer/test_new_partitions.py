"""Partitions that are added to a topic while it is read."""

from __future__ import annotations

import time
from types import SimpleNamespace

from support.brokers.scripted_broker import Log, ScriptedCluster

from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.config.reader_config import ReaderConfig
from spark_kafka_native.kafka.consumer import prefetch_thread
from spark_kafka_native.kafka.consumer.consumer import Consumer
from spark_kafka_native.kafka.consumer.prefetch_buffer import PrefetchBuffer
from spark_kafka_native.kafka.consumer.prefetch_thread import PrefetchThread
from spark_kafka_native.kafka.model import TopicPartition


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
