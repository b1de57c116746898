"""Consuming four partitions into Arrow, one process, next to the other Python clients on the same broker.

    python benchmarks/client.py [--rounds 5] [--bootstrap-servers HOST:PORT]

Ours ends with RecordColumns: numpy offsets and timestamps, Arrow keys, values and headers, checksums
verified. The others end with their own record objects, which nobody looks into. librdkafka is given its
largest fetches and queues; aiokafka and kafka-python read a part of the topic, for they would take minutes.
Interleaved rounds, the best counts. "raw socket" asks for the same bytes and drops them: what broker and
loopback give when a client does nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import aiokafka
import confluent_kafka
import kafka as kafka_python
from harness import raw
from harness.cluster import open_broker
from harness.rounds import best_of_rounds
from harness.table import Target, print_table, rate
from harness.topics import LoadedTopic, TopicSpec, load_topic

from spark_kafka_native.kafka.cluster.router import router_for
from spark_kafka_native.kafka.config import ClientConfig, ConsumerConfig
from spark_kafka_native.kafka.consumer.fetcher import Fetcher
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.records import kernel

OURS = "spark-kafka-native"
LIBRDKAFKA = "confluent-kafka"
FETCH_BYTES = 8 << 20
PART = {"aiokafka": 4, "kafka-python": 16}
"""Which part of the topic the slow ones read: one in so many offsets."""
WANTED = {"100 B": 5.0}
"""How many times as fast as librdkafka we must be."""

SPECS = (
    TopicSpec(label="100 B", topic="client-100", values="incompressible", value_bytes=100, records=3_200_000),
    TopicSpec(label="1 KiB", topic="client-1024", values="incompressible", value_bytes=1024, records=480_000),
    TopicSpec(
        label="200 B lz4", topic="client-lz4", values="json", value_bytes=200, records=1_600_000, codec="lz4"
    ),
)

Consume = Callable[[str, str, dict[int, int]], int]
"""(bootstrap servers, topic, partition -> end offset) -> records consumed."""


def consume_ours(bootstrap_servers: str, topic: str, ends: dict[int, int]) -> int:
    router = router_for(ClientConfig(bootstrap_servers=(bootstrap_servers,)))
    ranges = {TopicPartition(topic, partition): (0, end) for partition, end in ends.items()}
    fetched = Fetcher(router, ConsumerConfig()).fetch(ranges)
    return sum(records.columns.length for records in fetched)


def consume_raw(bootstrap_servers: str, topic: str, ends: dict[int, int]) -> int:
    connection = raw.connect(bootstrap_servers)
    try:
        for _ in raw.fetch_record_sets(connection, topic, ends, FETCH_BYTES):
            pass
    finally:
        connection.close()
    return sum(ends.values())


def consume_confluent(bootstrap_servers: str, topic: str, ends: dict[int, int]) -> int:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": FETCH_BYTES,
            "fetch.max.bytes": 4 * FETCH_BYTES,
            "queued.max.messages.kbytes": 1_000_000,
            "queued.min.messages": 1_000_000,
            "log_level": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in ends])
    wanted, count = sum(ends.values()), 0
    while count < wanted:
        count += len(consumer.consume(100_000, timeout=1))
    consumer.close()
    return count


def consume_aiokafka(bootstrap_servers: str, topic: str, ends: dict[int, int]) -> int:
    async def consume() -> int:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap_servers,
            enable_auto_commit=False,
            max_partition_fetch_bytes=FETCH_BYTES,
        )
        partitions = [aiokafka.TopicPartition(topic, partition) for partition in ends]
        consumer.assign(partitions)
        await consumer.start()
        try:
            await consumer.seek_to_beginning(*partitions)
            wanted, count = sum(ends.values()), 0
            while count < wanted:
                count += sum(map(len, (await consumer.getmany(timeout_ms=1_000)).values()))
            return count
        finally:
            await consumer.stop()

    return asyncio.run(consume())


def consume_kafka_python(bootstrap_servers: str, topic: str, ends: dict[int, int]) -> int:
    consumer = kafka_python.KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        enable_auto_commit=False,
        max_partition_fetch_bytes=FETCH_BYTES,
        max_poll_records=100_000,
    )
    partitions = [kafka_python.TopicPartition(topic, partition) for partition in ends]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    wanted, count = sum(ends.values()), 0
    while count < wanted:
        count += sum(map(len, consumer.poll(timeout_ms=1_000).values()))
    consumer.close()
    return count


CONSUMERS: dict[str, Consume] = {
    "raw socket": consume_raw,
    OURS: consume_ours,
    LIBRDKAFKA: consume_confluent,
    "aiokafka": consume_aiokafka,
    "kafka-python": consume_kafka_python,
}


def timed(consume: Consume, bootstrap_servers: str, topic: LoadedTopic, part: int) -> float:
    """Seconds per record."""
    ends = {partition: end // part for partition, end in topic.ends.items()}
    began = time.perf_counter()
    count = consume(bootstrap_servers, topic.spec.topic, ends)
    return (time.perf_counter() - began) / count


def measure(bootstrap_servers: str, spec: TopicSpec, rounds: int) -> None:
    topic = load_topic(bootstrap_servers, spec)
    runs = {
        name: partial(timed, consume, bootstrap_servers, topic, PART.get(name, 1))
        for name, consume in CONSUMERS.items()
    }
    best = best_of_rounds(runs, rounds, warm_up=1)
    rows = []
    for name, seconds in best.items():
        wanted = WANTED.get(spec.label) if name == OURS else None
        ratio = Target(against=LIBRDKAFKA, ratio=best[LIBRDKAFKA] / seconds, wanted=wanted)
        megabytes = (spec.value_bytes / seconds) / 1e6
        rows.append([name, rate(1, seconds), f"{megabytes:.0f}", str(ratio) if name != LIBRDKAFKA else ""])
    compiled = "compiled" if kernel.COMPILED else "NumPy"
    size = f"{topic.records} records, 4 partitions, {topic.log_bytes / 1e6:.0f} MB"
    title = f"consume {spec.label}: {size} ({compiled} kernel)"
    print_table(title, ["client", "records/s", "MB/s of values", "ratio"], rows)


@contextmanager
def broker(bootstrap_servers: str | None) -> Iterator[str]:
    with open_broker(bootstrap_servers) as address:
        yield address


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap-servers", help="a broker that is there; default: an embedded one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="a label, as 100 B")
    arguments = parser.parse_args()
    with broker(arguments.bootstrap_servers) as address:
        for spec in SPECS:
            if arguments.only in (None, spec.label):
                measure(address, spec, arguments.rounds)


if __name__ == "__main__":
    main()
