"""Topics for the benchmarks, loaded in seconds: a librdkafka producer writes a part of the records once,
and the very record batches it wrote are then sent again, unopened, until the topic is as large as asked
for.
"""

from __future__ import annotations

import sys
import time
import uuid
from dataclasses import dataclass, replace

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from . import raw
from .values import VALUES

TEMPLATE_BYTES = 48_000_000
TEMPLATE_FETCH_BYTES = 1 << 20
KEY_BYTES = 8
WARM_UP_TOPICS = 8
WARM_UP_BYTES = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """Records of one kind: key of 8 bytes, value of ``value_bytes``, in ``partitions`` partitions."""

    label: str
    topic: str
    values: str
    value_bytes: int
    records: int
    codec: str = "none"
    partitions: int = 4
    batch_bytes: int = 1_000_000

    @property
    def record_bytes(self) -> int:
        """Key and value of all records, uncompressed."""
        return self.records * (self.value_bytes + KEY_BYTES)

    def of(self, records: int) -> TopicSpec:
        """The same kind of topic with another number of records, under a name that no broker has yet."""
        return replace(self, records=records, topic=unique(self.topic))


def unique(topic: str) -> str:
    """A name for a topic that is there for one run only."""
    return f"{topic}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTopic:
    """A topic as it lies on the broker."""

    spec: TopicSpec
    ends: dict[int, int]
    log_bytes: int

    @property
    def records(self) -> int:
        return sum(self.ends.values())


def create_topic(
    bootstrap_servers: str, topic: str, partitions: int, properties: dict[str, str] | None = None
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    new = NewTopic(topic, partitions, 1, config={"retention.ms": "-1", **(properties or {})})
    admin.create_topics([new])[topic].result()
    deadline = time.monotonic() + 30
    while True:
        try:
            # A leader is known before it leads: it does once it answers with the end of its log.
            end_offsets(bootstrap_servers, topic, partitions)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def delete_topic(bootstrap_servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})  # must outlive its futures
    admin.delete_topics([topic])[topic].result()


def end_offsets(bootstrap_servers: str, topic: str, partitions: int) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "benchmark", "log_level": 0})
    try:
        marks = {p: consumer.get_watermark_offsets(TopicPartition(topic, p)) for p in range(partitions)}
        return {partition: high for partition, (_, high) in marks.items()}
    finally:
        consumer.close()


def build_batches(bootstrap_servers: str, spec: TopicSpec) -> list[bytes]:
    """Record batches of such records as a librdkafka producer makes them, 48 MB before compression."""
    template = f"{spec.topic}-template"
    create_topic(bootstrap_servers, template, 1)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "compression.type": spec.codec,
            "linger.ms": 200,
            "batch.size": spec.batch_bytes,
            "batch.num.messages": 100_000,
            "queue.buffering.max.kbytes": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    count = max(1, min(spec.records, TEMPLATE_BYTES // spec.value_bytes))
    for number, value in enumerate(VALUES[spec.values](count, spec.value_bytes)):
        producer.produce(template, value, key=number.to_bytes(KEY_BYTES, "big"))
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()
    connection = raw.connect(bootstrap_servers)
    try:
        record_sets = raw.fetch_record_sets(connection, template, {0: count}, TEMPLATE_FETCH_BYTES)
        # A batch's base offset is not under its CRC: 0 is what a producer sends.
        return [
            bytes(8) + bytes(batch[8:])
            for record_set in record_sets
            for batch in raw.split_batches(record_set)
        ]
    finally:
        connection.close()
        delete_topic(bootstrap_servers, template)


def load_topic(bootstrap_servers: str, spec: TopicSpec) -> LoadedTopic:
    """Create the topic and fill it with at least ``spec.records`` records."""
    batches = build_batches(bootstrap_servers, spec)
    create_topic(bootstrap_servers, spec.topic, spec.partitions)
    connection = raw.connect(bootstrap_servers)
    try:
        raw.produce_batches(connection, spec.topic, spec.partitions, batches, spec.records)
        ends = end_offsets(bootstrap_servers, spec.topic, spec.partitions)
        record_sets = raw.fetch_record_sets(connection, spec.topic, ends, 8 << 20)
        return LoadedTopic(spec=spec, ends=ends, log_bytes=sum(map(len, record_sets)))
    finally:
        connection.close()


def warm_up_broker(bootstrap_servers: str) -> None:
    """Have the broker compile itself: its CPU time per record falls to a third over its first gigabytes."""
    spec = TopicSpec(
        label="warm-up",
        topic=unique("warm-up"),
        values="incompressible",
        value_bytes=100,
        records=WARM_UP_BYTES // 108,
    )
    batches = build_batches(bootstrap_servers, spec)
    connection = raw.connect(bootstrap_servers)
    for number in range(WARM_UP_TOPICS):
        print(f"\r  warming up the broker {number + 1}/{WARM_UP_TOPICS}", end="", file=sys.stderr, flush=True)
        topic = f"{spec.topic}-{number}"
        create_topic(bootstrap_servers, topic, spec.partitions)
        raw.produce_batches(connection, topic, spec.partitions, batches, spec.records)
        delete_topic(bootstrap_servers, topic)
    connection.close()


def load_small_topic(
    bootstrap_servers: str, topic: str, partitions: int, per_partition: dict[int, int]
) -> None:
    """A topic with a few records: ``per_partition`` says how many in which."""
    create_topic(bootstrap_servers, topic, partitions)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 20, "log_level": 0})
    for partition, records in per_partition.items():
        for number in range(records):
            producer.produce(topic, b"v" * 100, key=number.to_bytes(KEY_BYTES, "big"), partition=partition)
    producer.flush()
