"""Partitions that are added to a topic while it is read."""

from __future__ import annotations

from support.brokers.scripted_broker import Log, ScriptedCluster

from spark_kafka_native.kafka.consumer.consumer import Consumer
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
