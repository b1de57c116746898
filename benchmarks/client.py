"""Consuming four partitions into Arrow and producing from Arrow, one process, next to the other Python
clients on the same broker.

    python benchmarks/client.py [--rounds 5] [--bootstrap-servers HOST:PORT]

Ours is `Fetcher` over known ranges and ends with RecordColumns: numpy offsets and timestamps, Arrow keys,
values and headers, checksums verified; so does `Consumer.read_columns`. The others end with their own record
objects, which no code looks into, as does iteration over `Consumer`. librdkafka is given its largest fetches
and queues; iteration, aiokafka and kafka-python read a part of the topic, for they would take long.
Interleaved rounds, the best counts. "raw socket" asks for the same bytes and drops them: what broker and
loopback give when a client does nothing; when producing, it sends record batches that exist already.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pyarrow as pa
from harness import raw
from harness.cluster import open_broker
from harness.rounds import best_of_rounds
from harness.table import Target, print_table, rate
from harness.topics import (
    TopicSpec,
    build_batches,
    create_topic,
    delete_topic,
    load_topic,
    warm_up_broker,
)
from harness.values import VALUES

from spark_kafka_native.kafka import (
    ClientConfig,
    Consumer,
    ConsumerConfig,
    Fetcher,
    ProducerConfig,
    TopicPartition,
    router_for,
)
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.records import kernel

OURS = "spark-kafka-native"
LIBRDKAFKA = "confluent-kafka"
FETCH_BYTES = 8 << 20
PRODUCED_BYTES = 200_000_000
ARROW_BATCH_RECORDS = 10_000
"""What Spark hands a writer by default (spark.sql.execution.arrow.maxRecordsPerBatch)."""
OURS_ROWS = f"{OURS}, Consumer"
"""Record by record: ``for record in consumer``."""
OURS_COLUMNS = f"{OURS}, read_columns"
"""The consumer's columns: a thread fetches ahead, and the caller gets what `Fetcher` yields."""
PART = {"aiokafka": 4, "kafka-python": 64, f"{OURS}, send()": 4, OURS_ROWS: 2}
"""The part of the records that the slow ones read and write: one in this number."""
WANTED = {"100 B": 5.0}
"""How many times as fast as librdkafka we must be when consuming."""
WANTED_OF_CONSUMERS = (
    (OURS_ROWS, "aiokafka", 2.0),
    (OURS_ROWS, "kafka-python", 8.0),
    (OURS_COLUMNS, OURS, 1 / 1.1),
)
"""How many times as fast as another one a consumer must be, at 100 B."""
WANTED_PRODUCING = {"100 B": 5.0, "1 KiB": 2.0}
"""The same for producing columns."""
RAW = "raw socket"
OURS_SINGLY = f"{OURS}, send()"
"""Record by record, as the others do: must be as fast as the other two in Python, at least."""
MILLION = TopicSpec(
    label="1 KB", topic="client-million", values="incompressible", value_bytes=1_000, records=1_000_000
)
PUBLISHED_RATE = 191_975
"""Messages of 1 KB per second that a published run reached on four brokers with 24 cores."""

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


def consume_rows(bootstrap_servers: str, topic: str, ends: dict[int, int]) -> int:
    wanted = sum(ends.values())
    with Consumer(bootstrap_servers, topic, partitions=ends) as consumer:
        for count, _ in enumerate(consumer, 1):
            if count == wanted:
                break
    return wanted


def consume_columns(bootstrap_servers: str, topic: str, ends: dict[int, int]) -> int:
    wanted, count = sum(ends.values()), 0
    with Consumer(bootstrap_servers, topic, partitions=ends) as consumer:
        while count < wanted and (fetched := consumer.read_columns(60)) is not None:
            count += len(fetched.columns)
    return count


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
    RAW: consume_raw,
    OURS: consume_ours,
    OURS_COLUMNS: consume_columns,
    OURS_ROWS: consume_rows,
    LIBRDKAFKA: consume_confluent,
    "aiokafka": consume_aiokafka,
    "kafka-python": consume_kafka_python,
}


class Written:
    """What every producer writes: keys of 8 bytes, values of ``value_bytes``; in Arrow, and as
    Python's bytes.
    """

    def __init__(self, spec: TopicSpec, most: int | None = None) -> None:
        count = min(spec.records, most or PRODUCED_BYTES // spec.value_bytes)
        self.topic = f"{spec.topic}-write"
        self.codec = spec.codec
        self.values = list(VALUES[spec.values](count, spec.value_bytes))
        self.keys = [number.to_bytes(8, "big") for number in range(count)]
        table = pa.table(
            {"key": pa.array(self.keys, pa.binary()), "value": pa.array(self.values, pa.binary())}
        )
        self.batches = table.to_batches(ARROW_BATCH_RECORDS)

    def records(self, part: int) -> Iterator[tuple[bytes, bytes]]:
        """One in ``part`` of the records."""
        count = len(self.values) // part
        return zip(self.keys[:count], self.values[:count], strict=True)


def produce_ours(bootstrap_servers: str, written: Written, _part: int) -> int:
    client = ClientConfig(bootstrap_servers=(bootstrap_servers,))
    with Producer(client, ProducerConfig(compression_type=written.codec)) as producer:
        for batch in written.batches:
            producer.send_columns(batch, written.topic)
        producer.flush()
    return len(written.values)


def produce_ours_singly(bootstrap_servers: str, written: Written, part: int) -> int:
    client = ClientConfig(bootstrap_servers=(bootstrap_servers,))
    count = 0
    with Producer(client, ProducerConfig(compression_type=written.codec, linger_ms=20)) as producer:
        for key, value in written.records(part):
            producer.send(written.topic, value, key=key)
            count += 1
        producer.flush()
    return count


def produce_confluent(bootstrap_servers: str, written: Written, _part: int) -> int:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": written.codec,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
            "log_level": 0,
        }
    )
    for number, (key, value) in enumerate(written.records(1)):
        producer.produce(written.topic, value, key)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()
    return len(written.values)


def produce_aiokafka(bootstrap_servers: str, written: Written, part: int) -> int:
    async def produce() -> int:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap_servers,
            acks="all",
            compression_type=None if written.codec == "none" else written.codec,
            linger_ms=20,
            max_batch_size=1_000_000,
        )
        await producer.start()
        count = 0
        for key, value in written.records(part):
            await producer.send(written.topic, value, key)
            count += 1
        await producer.stop()
        return count

    return asyncio.run(produce())


def produce_kafka_python(bootstrap_servers: str, written: Written, part: int) -> int:
    producer = kafka_python.KafkaProducer(
        bootstrap_servers=bootstrap_servers,
        acks="all",
        compression_type=None if written.codec == "none" else written.codec,
        linger_ms=20,
        batch_size=1_000_000,
    )
    count = 0
    for key, value in written.records(part):
        producer.send(written.topic, value, key)
        count += 1
    producer.close()
    return count


def produce_raw(bootstrap_servers: str, written: Written, batches: list[bytes]) -> int:
    """The same number of records in batches that librdkafka made before."""
    connection = raw.connect(bootstrap_servers)
    try:
        return raw.produce_batches(connection, written.topic, 4, batches, len(written.values))
    finally:
        connection.close()


Produce = Callable[[str, Written, int], int]
PRODUCERS: dict[str, Produce] = {
    OURS: produce_ours,
    OURS_SINGLY: produce_ours_singly,
    LIBRDKAFKA: produce_confluent,
    "aiokafka": produce_aiokafka,
    "kafka-python": produce_kafka_python,
}


def timed(work: Callable[[], int]) -> float:
    """Seconds per record."""
    began = time.perf_counter()
    count = work()
    return (time.perf_counter() - began) / count


def measure_consuming(bootstrap_servers: str, spec: TopicSpec, rounds: int) -> None:
    topic = load_topic(bootstrap_servers, spec)
    runs = {}
    for name, consume in CONSUMERS.items():
        ends = {partition: end // PART.get(name, 1) for partition, end in topic.ends.items()}
        runs[name] = partial(timed, partial(consume, bootstrap_servers, spec.topic, ends))
    best = best_of_rounds(runs, rounds, warm_up=1)
    kind = "compiled" if kernel.COMPILED else "NumPy"
    size = f"{topic.records} records, 4 partitions, {topic.log_bytes / 1e6:.0f} MB"
    print_rates(f"consume {spec.label}: {size} ({kind} kernel)", spec, best, WANTED.get(spec.label))
    if spec.label in WANTED:
        rows = [
            [name, str(Target(against=other, ratio=best[other] / best[name], wanted=wanted))]
            for name, other, wanted in WANTED_OF_CONSUMERS
        ]
        print_table(f"consumers {spec.label}", ["", "ratio"], rows)


def measure_producing(bootstrap_servers: str, spec: TopicSpec, rounds: int) -> None:
    written = Written(spec)
    create_topic(bootstrap_servers, written.topic, 4)
    runs = {
        name: partial(timed, partial(produce, bootstrap_servers, written, PART.get(name, 1)))
        for name, produce in PRODUCERS.items()
    }
    batches = build_batches(bootstrap_servers, spec)
    runs = {RAW: partial(timed, partial(produce_raw, bootstrap_servers, written, batches)), **runs}
    best = best_of_rounds(runs, rounds, warm_up=1)
    delete_topic(bootstrap_servers, written.topic)
    wanted = WANTED_PRODUCING.get(spec.label)
    print_rates(f"produce {spec.label}: {len(written.values)} records, acks=all", spec, best, wanted)


def measure_million(bootstrap_servers: str, rounds: int) -> None:
    """A million messages of 1 KB, handed over in columns: one broker and this process on one machine."""
    written = Written(MILLION, MILLION.records)
    create_topic(bootstrap_servers, written.topic, 4)
    best = best_of_rounds(
        {OURS: partial(timed, partial(produce_ours, bootstrap_servers, written, 1))}, rounds, warm_up=1
    )
    delete_topic(bootstrap_servers, written.topic)
    ratio = Target(against=f"{PUBLISHED_RATE} msg/s", ratio=1 / best[OURS] / PUBLISHED_RATE)
    rows = [[OURS, rate(1, best[OURS]), f"{MILLION.value_bytes / best[OURS] / 1e6:.0f}", str(ratio)]]
    print_table("produce 1,000,000 x 1 KB, acks=all", ["client", "records/s", "MB/s", "published"], rows)


def print_rates(title: str, spec: TopicSpec, best: dict[str, float], wanted: float | None) -> None:
    rows = []
    for name, seconds in best.items():
        ratio = Target(
            against=LIBRDKAFKA,
            ratio=best[LIBRDKAFKA] / seconds,
            wanted=wanted if name == OURS else None,
        )
        megabytes = f"{spec.value_bytes / seconds / 1e6:.0f}"
        rows.append([name, rate(1, seconds), megabytes, "" if name == LIBRDKAFKA else str(ratio)])
    print_table(title, ["client", "records/s", "MB/s of values", "ratio"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap-servers", help="a broker that is there; default: an embedded one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="a label, as 100 B")
    parser.add_argument("--what", choices=("both", "consume", "produce"), default="both")
    arguments = parser.parse_args()
    with open_broker(arguments.bootstrap_servers) as address:
        warm_up_broker(address)
        for spec in SPECS:
            if arguments.only in (None, spec.label):
                if arguments.what != "produce":
                    measure_consuming(address, spec, arguments.rounds)
                if arguments.what != "consume":
                    measure_producing(address, spec, arguments.rounds)
        if arguments.only in (None, MILLION.label):
            measure_million(address, arguments.rounds)


if __name__ == "__main__":
    main()
