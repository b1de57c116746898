"""What we write, the other clients read: every codec, every odd value, headers, timestamps; and keys land
where the Java client puts them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import kafka as kafka_python
import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_native.kafka import Cluster
from spark_kafka_native.kafka.config.client_config import ClientConfig, ProducerConfig
from spark_kafka_native.kafka.model import Acks
from spark_kafka_native.kafka.producer.accumulating.partitioner import place_as_java
from spark_kafka_native.kafka.producer.errors import DeliveryStatus, RecordTooLargeError
from spark_kafka_native.kafka.producer.producer import Producer
from spark_kafka_native.kafka.records.columns import HEADERS_TYPE
from spark_kafka_native.kafka.records.hashing import Hash, hash_keys
from spark_kafka_native.testing import console
from spark_kafka_native.testing.java import run_java

pytestmark = pytest.mark.broker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Headers = list[tuple[str, bytes | None]]
ODD: list[tuple[bytes | None, bytes | None, Headers]] = [
    (b"first", b"", []),
    (None, b"v", []),
    (b"", b"", []),
    (b"k", None, [("a", b"1")]),
    (None, b"\x00", [("a", b""), ("a", None), ("a", b"again")]),
    (b"\xff\xfe", b"x", [("Ünïcødé ☃ 😀", "wörld".encode())]),
    (b"x" * 1_000, b"y" * 100_000, []),
    (b"big", bytes(range(256)) * 3_900, []),
]


@pytest.fixture
def config(kafka: Any) -> ClientConfig:
    return ClientConfig(bootstrap_servers=tuple(kafka.bootstrap_servers.split(",")))


@pytest.fixture
def producer(config: ClientConfig) -> Iterator[Producer]:
    with Producer(config) as running:
        yield running


def read_confluent(kafka: Any, topic: str, count: int, partitions: int = 1) -> list[Any]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"g-{random.random()}",
            "check.crcs": True,
            "fetch.message.max.bytes": 4_000_000,
            "log_level": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(partitions)])
    found: list[Any] = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records in 60 s"
        for message in consumer.consume(10_000, 0.5):
            assert message.error() is None, message.error()
            found.append(message)
    consumer.close()
    return found


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("way", ["single", "columns"])
def test_odd_records_are_read_as_they_were_written(
    kafka: Any, config: ClientConfig, topic: str, codec: str, way: str
) -> None:
    kafka.create_topic(topic, partitions=1)
    with Producer(config, ProducerConfig(compression_type=codec)) as producer:
        if way == "single":
            for i, (key, value, headers) in enumerate(ODD):
                producer.send(
                    topic, value, key=key, partition=0, timestamp_ms=1_700_000_000_000 + i, headers=headers
                )
        else:
            rows = pa.record_batch(
                {
                    "key": pa.array([key for key, _, _ in ODD], pa.binary()),
                    "value": pa.array([value for _, value, _ in ODD], pa.large_binary()),
                    "headers": pa.array([headers for _, _, headers in ODD], HEADERS_TYPE),
                    "timestamp": pa.array([1_700_000_000_000 + i for i in range(len(ODD))]),
                }
            )
            producer.send_columns(rows, topic)
        producer.flush(30)
        assert producer.stats().records == len(ODD)
    for message, (key, value, headers) in zip(read_confluent(kafka, topic, len(ODD)), ODD, strict=True):
        assert (message.key(), message.value()) == (key, value)
        assert (message.headers() or []) == headers
        assert message.timestamp() == (1, 1_700_000_000_000 + message.offset())
    if codec in ("lz4", "zstd"):
        return  # kafka-python needs more packages for those
    theirs = kafka_python.KafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
        max_partition_fetch_bytes=4_000_000,
    )
    for (key, value, headers), record in zip(ODD, theirs, strict=False):
        assert (record.key, record.value) == (key, value)
        assert [(name, content) for name, content in record.headers] == headers
        if record.offset == len(ODD) - 1:
            break
    theirs.close()


@pytest.mark.parametrize("codec", CODECS)
def test_java_reads_what_was_written(kafka: Any, config: ClientConfig, topic: str, codec: str) -> None:
    kafka.create_topic(topic, partitions=2)
    rows = pa.record_batch(
        {
            "key": [None if i % 7 == 0 else f"key {i}" for i in range(3_000)],
            "value": [None if i % 11 == 1 else f"value {i} " + "ä" * (i % 50) for i in range(3_000)],
            "partition": pa.array([i % 2 for i in range(3_000)], pa.int32()),
            "timestamp": pa.array(range(1_600_000_000_000, 1_600_000_003_000)),
        }
    )
    with Producer(config, ProducerConfig(compression_type=codec, batch_records=500)) as producer:
        producer.send_columns(rows, topic).result(60)
    found = console.consume(kafka.bootstrap_servers, topic, max_records=3_000, timeout_ms=30_000)
    keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
    for record in found:
        i = 2 * record.offset + record.partition
        assert record.key == (keys[i].encode() if keys[i] is not None else None)
        assert record.value == (values[i].encode() if values[i] is not None else None)
        assert (record.timestamp_type, record.timestamp_ms) == ("CreateTime", 1_600_000_000_000 + i)
    assert len(found) == 3_000


JAVA_PARTITIONS = """
import java.util.*;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
public class Oracle {
    public static void main(String[] args) throws Exception {
        var in = new Scanner(System.in);
        var out = new StringBuilder();
        while (in.hasNextLine()) {
            byte[] key = HexFormat.of().parseHex(in.nextLine());
            for (int count : new int[] {1, 3, 4, 64, 1000})
                out.append(BuiltInPartitioner.partitionForKey(key, count)).append(' ');
            out.append('\\n');
        }
        System.out.print(out);
    }
}
"""


def test_keys_of_every_length_go_where_java_puts_them() -> None:
    rng = random.Random(11)
    keys = [rng.randbytes(i % 130) for i in range(5_000)] + [rng.randbytes(5_000)]
    told = run_java(JAVA_PARTITIONS, input_text="\n".join(key.hex() for key in keys))
    theirs = np.array([[int(p) for p in line.split()] for line in told.strip().split("\n")])
    hashes = hash_keys(pa.array(keys, pa.binary()), Hash.MURMUR2)
    ours = np.stack([place_as_java(hashes, count) for count in (1, 3, 4, 64, 1000)], axis=1)
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("partitioner", "theirs"), [("consistent_random", "consistent_random"), ("murmur2", "murmur2_random")]
)
def test_keys_go_where_librdkafka_puts_them(
    kafka: Any, config: ClientConfig, topic: str, partitioner: str, theirs: str
) -> None:
    kafka.create_topic(topic, partitions=7)
    rng = random.Random(3)
    keys = [rng.randbytes(1 + i % 60) for i in range(1_000)]
    other = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "partitioner": theirs, "log_level": 0}
    )
    for key in keys:
        other.produce(topic, key=key, value=b"theirs")
    other.flush()
    with Producer(config, ProducerConfig(partitioner=partitioner)) as producer:
        for key in keys:
            producer.send(topic, b"ours", key=key)
    places: dict[bytes, set[int]] = {}
    for message in read_confluent(kafka, topic, 2_000, partitions=7):
        places.setdefault(message.key(), set()).add(message.partition())
    assert len(places) == len(set(keys))
    assert all(len(found) == 1 for found in places.values())


def test_columns_know_where_each_row_went(kafka: Any, producer: Producer, topic: str) -> None:
    kafka.create_topic(topic, partitions=3)
    rows = pa.record_batch(
        {"key": [f"{i}" for i in range(20_000)], "value": [f"v{i}" for i in range(20_000)]}
    )
    told = producer.send_columns(rows, topic).result(60)
    again = producer.send_columns(rows.slice(5_000, 10), topic).result(60)
    assert again.partition.tolist() == told.partition[5_000:5_010].tolist()
    for message in read_confluent(kafka, topic, 20_010, partitions=3):
        if message.offset() < 5_000:
            row = int(message.value()[1:])
            assert (told.partition[row], told.offset[row]) == (message.partition(), message.offset())


def test_rows_of_many_topics_and_both_ways_in_keep_their_order(
    kafka: Any, producer: Producer, topic: str
) -> None:
    names = [f"{topic}-{i}" for i in range(3)]
    for name in names:
        kafka.create_topic(name, partitions=1)
    for i in range(0, 900, 9):
        rows = pa.record_batch(
            {"topic": [names[j % 3] for j in range(9)], "value": [f"{i + j}" for j in range(9)]}
        )
        producer.send_columns(rows)
        producer.send(names[0], value=f"single {i}")
    producer.flush(30)
    for k, name in enumerate(names):
        found = [message.value().decode() for message in read_confluent(kafka, name, 300 + 100 * (k == 0))]
        expected = []
        for i in range(0, 900, 9):
            expected += [f"{i + j}" for j in range(9) if j % 3 == k]
            expected += [f"single {i}"] if k == 0 else []
        assert found == expected


def test_log_append_time_is_the_brokers(kafka: Any, producer: Producer, topic: str) -> None:
    kafka.create_topic(topic, partitions=1, config={"message.timestamp.type": "LogAppendTime"})
    before = time.time() * 1000
    told = producer.send(topic, value=b"x", timestamp_ms=5).result(60)
    assert told.timestamp_ms >= before - 1_000


def test_the_topics_own_limit_is_learnt(kafka: Any, config: ClientConfig, topic: str) -> None:
    kafka.create_topic(topic, partitions=1, config={"max.message.bytes": "20000"})
    with Producer(config) as producer:
        with pytest.raises(
            RecordTooLargeError, match=rf"row 1 for topic {topic}: the record takes 300\d\d bytes"
        ):
            producer.send_columns(pa.record_batch({"value": ["a", "x" * 30_000]}), topic)
        producer.send_columns(pa.record_batch({"value": [f"{i:100}" for i in range(2_000)]}), topic).result(
            10
        )
        stats = producer.stats()
        assert (stats.records, stats.errors, stats.splits) == (2_000, 0, 0)
        assert stats.batch_bytes.max <= 20_000
        assert stats.batches <= 15
    with Producer(config, ProducerConfig(compression_type="lz4")) as producer:
        # Compressed it fits; incompressible it does not, and says so.
        assert producer.send(topic, value=b"x" * 100_000).result(60).offset is not None
        lost = producer.send(topic, value=random.Random(1).randbytes(30_000))
        assert isinstance(lost.exception(60).__cause__, RecordTooLargeError)
        assert lost.status is DeliveryStatus.NOT_PERSISTED
        rng = random.Random(2)
        rows = pa.record_batch({"value": [rng.randbytes(500) for _ in range(500)]})
        producer.send_columns(rows, topic).result(60)
        assert producer.stats().splits > 0


@pytest.mark.parametrize("acks", list(Acks), ids=lambda acks: acks.name)
def test_every_acks_writes_everything(kafka: Any, config: ClientConfig, topic: str, acks: Acks) -> None:
    kafka.create_topic(topic, partitions=4)
    rows = pa.record_batch({"key": [f"{i}" for i in range(50_000)], "value": [f"{i}" for i in range(50_000)]})
    with Cluster.connect(kafka.bootstrap_servers) as cluster:
        # Metadata name a leader before it has begun, and what it refuses until then is lost without a word.
        assert [cluster.offsets(topic, partition).end for partition in range(4)] == [0] * 4
    with Producer(config, ProducerConfig(acks=acks)) as producer:
        producer.send_columns(rows, topic)
        producer.flush(30)
    found = read_confluent(kafka, topic, 50_000, partitions=4)
    by_partition: dict[int, list[int]] = {}
    for message in found:
        by_partition.setdefault(message.partition(), []).append(int(message.value()))
    assert sum(map(len, by_partition.values())) == 50_000
    assert all(values == sorted(values) for values in by_partition.values())


def test_100_partitions_and_little_data(kafka: Any, producer: Producer, topic: str) -> None:
    kafka.create_topic(topic, partitions=100)
    for start in range(0, 20_000, 1_000):
        rows = pa.record_batch({"key": [f"{start + i}" for i in range(1_000)], "value": ["x"] * 1_000})
        producer.send_columns(rows, topic)
    producer.flush(30)
    stats = producer.stats()
    assert (stats.records, len(stats.partitions)) == (20_000, 100)
