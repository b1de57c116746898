"""What other clients write, we read: every codec, every odd value, as it was written and where."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import kafka as kafka_python
import pytest
from support.consumer.reading import Reading, wait_until

from spark_kafka_native.kafka.admin import Admin
from spark_kafka_native.kafka.cluster.offsets import list_offsets
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.errors import EndOfLogError, OffsetOutOfRangeError
from spark_kafka_native.kafka.group.committed_offsets import committed_offsets
from spark_kafka_native.kafka.model import IsolationLevel, OffsetAt, TimestampType, TopicPartition
from spark_kafka_native.testing import console

pytestmark = pytest.mark.broker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
READ_COMMITTED = IsolationLevel.READ_COMMITTED

Headers = list[tuple[str, bytes | None]]
ODD: list[tuple[bytes | None, bytes | None, Headers | None]] = [
    (None, None, None),
    (b"", b"", []),
    (b"k", b"v", [("a", b"1")]),
    (None, b"\x00", [("a", b""), ("a", None), ("a", b"again")]),
    (b"\xff\xfe", None, [("Ünïcødé ☃ 😀", "wörld".encode()), ("", b"no name")]),
    (b"x" * 1_000, b"y" * 100_000, None),
    (b"big", bytes(range(256)) * 4_096, None),
]


@pytest.fixture
def reading(kafka: Any) -> Iterator[Reading]:
    found = Reading(kafka.bootstrap_servers)
    yield found
    found.router.close()


def confluent_producer(kafka: Any, **changed: Any) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "linger.ms": 50,
            "enable.idempotence": True,  # or a retry reorders the compared records
            "message.max.bytes": 4_000_000,
            "log_level": 0,
            "queue.buffering.max.messages": 1_000_000,
        }
        | {name.replace("_", "."): value for name, value in changed.items()}
    )


@pytest.mark.parametrize("codec", CODECS)
def test_what_librdkafka_writes(kafka: Any, topic: str, reading: Reading, codec: str) -> None:
    kafka.create_topic(topic, 2, config={"max.message.bytes": 4_000_000})
    producer = confluent_producer(kafka, compression_type=codec)
    for number, (key, value, headers) in enumerate(ODD * 3):
        producer.produce(
            topic, value, key, partition=number % 2, timestamp=1_000 + number, headers=headers or None
        )
    producer.flush()
    found = reading.read(topic)
    for partition in (0, 1):
        written = list(enumerate(ODD * 3))[partition::2]
        assert [record.offset for record in found[partition]] == list(range(len(written)))
        for record, (number, (key, value, headers)) in zip(found[partition], written, strict=True):
            assert (record.key, record.value) == (key, value)
            assert record.headers == (headers or None)
            assert (record.timestamp_ms, record.timestamp_type) == (1_000 + number, TimestampType.CREATE_TIME)


@pytest.mark.parametrize("codec", CODECS)
def test_what_kafka_python_writes(kafka: Any, topic: str, reading: Reading, codec: str) -> None:
    kafka.create_topic(topic, 1, config={"max.message.bytes": 4_000_000})
    producer = kafka_python.KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers,
        compression_type=None if codec == "none" else codec,
        linger_ms=50,
        max_request_size=4_000_000,
    )
    odd = ODD[1:]  # it refuses a record with neither key nor value
    for key, value, headers in odd:
        usable = [(name, text or b"") for name, text in headers or []]
        producer.send(topic, value=value, key=key, headers=usable, timestamp_ms=5_000)
    producer.close()
    found = reading.read(topic)[0]
    assert [(record.key, record.value) for record in found] == [(key, value) for key, value, _ in odd]
    assert {record.timestamp_ms for record in found} == {5_000}


@pytest.mark.parametrize("codec", CODECS)
def test_what_kafkas_console_producer_writes(kafka: Any, topic: str, reading: Reading, codec: str) -> None:
    kafka.create_topic(topic, 1)
    written = [("k1", "v1"), (None, "only a value"), ("only a key", None), ("ключ", "значение ☃")]
    written += [(f"key-{number}", f"value-{number}" * 20) for number in range(2_000)]
    console.produce(kafka.bootstrap_servers, topic, written, compression=codec)
    found = [
        (record.key and record.key.decode(), record.value and record.value.decode())
        for record in reading.read(topic)[0]
    ]
    assert found == written


def test_a_hundred_thousand_small_records(kafka: Any, topic: str, reading: Reading) -> None:
    kafka.create_topic(topic, 4)
    producer = confluent_producer(kafka, batch_num_messages=500)
    for number in range(100_000):
        producer.produce(topic, b"%d" % number, partition=number % 4)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()
    for sizes in ({}, {"max_partition_fetch_bytes": 50_000}):
        found = reading.read(topic, **sizes)
        for partition in range(4):
            assert [int(record.value or b"") for record in found[partition]] == list(
                range(partition, 100_000, 4)
            )
            assert [record.offset for record in found[partition]] == list(range(25_000))


def test_any_range_is_read_exactly(kafka: Any, topic: str, reading: Reading) -> None:
    kafka.create_topic(topic, 1)
    producer = confluent_producer(kafka, compression_type="lz4", batch_num_messages=7)
    for number in range(100):
        producer.produce(topic, b"%d" % number, partition=0)
    producer.flush()
    tp = TopicPartition(topic, 0)
    for first, until in itertools.combinations((0, 1, 6, 7, 8, 50, 93, 99, 100), 2):
        found = [
            value
            for fetched in reading.fetch({tp: (first, until)})
            for value in fetched.columns.value.to_pylist()
        ]
        assert found == [b"%d" % number for number in range(first, until)]


def test_log_append_time(kafka: Any, topic: str, reading: Reading) -> None:
    kafka.create_topic(topic, 1, config={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    producer = confluent_producer(kafka, compression_type="zstd")
    for number in range(10):
        producer.produce(topic, b"v", timestamp=number + 1)
    producer.flush()
    found = reading.read(topic)[0]
    assert {record.timestamp_type for record in found} == {TimestampType.LOG_APPEND_TIME}
    assert all(before - 1_000 < record.timestamp_ms < before + 60_000 for record in found)


def test_a_compacted_topic_has_gaps_and_ends_all_the_same(kafka: Any, topic: str, reading: Reading) -> None:
    settings = {
        "cleanup.policy": "compact",
        "segment.ms": 100,
        "min.cleanable.dirty.ratio": 0.01,
        "delete.retention.ms": 100,
        "max.compaction.lag.ms": 100,
    }
    kafka.create_topic(topic, 1, config=settings)
    producer = confluent_producer(kafka)
    producer.produce(topic, b"stays", b"once")
    for round_number in range(5):
        for key in range(10):
            producer.produce(topic, b"%d/%d" % (key, round_number), b"%d" % key)
        producer.flush()
        time.sleep(0.15)

    def compacted() -> bool:
        producer.produce(topic, b"roll", b"roll")  # only closed segments are compacted
        producer.flush()
        return len(reading.read(topic)[0]) < 35

    wait_until("compaction", compacted)
    found = reading.read(topic)[0]
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] - offsets[0] + 1 > len(offsets)
    latest = {record.key: record.value for record in found if record.key != b"roll"}
    assert latest.pop(b"once") == b"stays"
    assert latest == {b"%d" % key: b"%d/4" % key for key in range(10)}
    tp = TopicPartition(topic, 0)
    gap = next(first for first, second in itertools.pairwise(offsets) if second > first + 1) + 1
    [fetched] = reading.fetch({tp: (gap, gap + 1)})
    assert (fetched.columns.length, fetched.next_offset) == (0, gap + 1)


def transact(producer: confluent_kafka.Producer, topic: str, values: range, commit: bool) -> None:
    producer.begin_transaction()
    for number in values:
        producer.produce(topic, b"%d" % number, partition=0)
    producer.flush()
    if commit:
        producer.commit_transaction(60)
    else:
        producer.abort_transaction(60)


def test_aborted_transactions_are_hidden_exactly(kafka: Any, topic: str, reading: Reading) -> None:
    kafka.create_topic(topic, 1)
    first, second = (confluent_producer(kafka, transactional_id=f"{topic}-{i}") for i in (1, 2))
    plain = confluent_producer(kafka)
    first.init_transactions(60)
    second.init_transactions(60)
    committed: list[int] = []
    for round_number in range(6):
        start = round_number * 100
        transact(first, topic, range(start, start + 10), commit=round_number % 2 == 0)
        committed += range(start, start + 10) if round_number % 2 == 0 else ()
        transact(second, topic, range(start + 10, start + 15), commit=round_number % 3 == 0)
        committed += range(start + 10, start + 15) if round_number % 3 == 0 else ()
        plain.produce(topic, b"%d" % (start + 50), partition=0)
        plain.flush()
        committed.append(start + 50)
    shown = [int(record.value or b"") for record in reading.read(topic, isolation_level=READ_COMMITTED)[0]]
    assert shown == committed
    everything = reading.read(topic)[0]
    assert len(everything) == 6 * 16
    tp = TopicPartition(topic, 0)
    end = reading.bounds(topic)[tp][1]
    for until in range(end - 40, end + 1):  # an end is reached wherever it falls
        fetched = list(reading.fetch({tp: (0, until)}, isolation_level=READ_COMMITTED))
        assert fetched[-1].next_offset == until


def test_an_open_transaction_holds_the_stable_offset(kafka: Any, topic: str, reading: Reading) -> None:
    kafka.create_topic(topic, 1)
    plain, writer = confluent_producer(kafka), confluent_producer(kafka, transactional_id=topic)
    writer.init_transactions(60)
    plain.produce(topic, b"before", partition=0)
    plain.flush()
    writer.begin_transaction()
    writer.produce(topic, b"open", partition=0)
    writer.flush()
    tp = TopicPartition(topic, 0)
    assert reading.bounds(topic)[tp] == (0, 2)
    assert reading.bounds(topic, isolation_level=READ_COMMITTED)[tp] == (0, 1)
    held = r"\[1, 2\).*an open transaction holds the last stable offset at 1 \(high watermark 2\)"
    with pytest.raises(EndOfLogError, match=held):
        list(reading.fetch({tp: (0, 2)}, isolation_level=READ_COMMITTED, poll_timeout_ms=1_500))
    writer.commit_transaction(60)
    # The commit's marker may come a moment after the commit has been confirmed.
    assert list(reading.fetch({tp: (0, 2)}, isolation_level=READ_COMMITTED))[-1].next_offset == 2
    assert reading.bounds(topic, isolation_level=READ_COMMITTED)[tp] == (0, 3)
    assert [r.value for r in reading.read(topic, isolation_level=READ_COMMITTED)[0]] == [b"before", b"open"]


def test_offsets_by_place_and_time(kafka: Any, topic: str, reading: Reading) -> None:
    kafka.create_topic(topic, 1)
    producer = confluent_producer(kafka)
    for number, timestamp in enumerate((1_000, 3_000, 2_000, 4_000)):
        producer.produce(topic, b"%d" % number, timestamp=timestamp)
        producer.flush()
    tp = TopicPartition(topic, 0)

    def find(place: OffsetAt) -> tuple[int | None, int | None]:
        found = list_offsets(reading.router, {tp: place})[tp]
        return found.offset, found.timestamp_ms

    assert find(OffsetAt.EARLIEST) == (0, None)
    assert find(OffsetAt.LATEST) == (4, None)
    assert find(OffsetAt.MAX_TIMESTAMP) == (3, 4_000)
    assert find(OffsetAt.timestamp(0)) == (0, 1_000)
    assert find(OffsetAt.timestamp(1_500)) == (1, 3_000)
    assert find(OffsetAt.timestamp(4_001)) == (None, None)


def test_deleted_records_are_out_of_range_with_bounds(kafka: Any, topic: str, reading: Reading) -> None:
    kafka.create_topic(topic, 1)
    producer = confluent_producer(kafka)
    for number in range(20):
        producer.produce(topic, b"%d" % number)
    producer.flush()
    tp = TopicPartition(topic, 0)
    assert Admin(reading.router).delete_records({tp: 12}) == {tp: 12}
    with pytest.raises(OffsetOutOfRangeError) as raised:
        list(reading.fetch({tp: (5, 20)}))
    assert (raised.value.offset, raised.value.log_start_offset, raised.value.high_watermark) == (5, 12, 20)
    assert [record.offset for record in reading.read(topic)[0]] == list(range(12, 20))


def test_committed_offsets_of_a_group(kafka: Any, topic: str, reading: Reading) -> None:
    kafka.create_topic(topic, 3)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic, "log_level": 0}
    )
    positions = [confluent_kafka.TopicPartition(topic, 0, 7), confluent_kafka.TopicPartition(topic, 2, 9)]
    consumer.commit(offsets=positions, asynchronous=False)
    consumer.close()
    tps = [TopicPartition(topic, partition) for partition in range(3)]
    assert committed_offsets(reading.router, topic, tps) == {tps[0]: 7, tps[1]: None, tps[2]: 9}
    assert committed_offsets(reading.router, f"{topic}-nobody", tps) == dict.fromkeys(tps)


def test_admin(kafka: Any, topic: str, reading: Reading) -> None:
    kafka.create_topic(topic, 1, config={"retention.ms": 12_345})
    admin = Admin(reading.router)
    assert admin.describe_topic_configs([topic])[topic]["retention.ms"] == "12345"
    node_id = next(iter(reading.router.metadata().brokers))
    assert admin.describe_broker_configs(node_id)["node.id"] == str(node_id)
    admin.create_partitions({topic: 3})
    wait_until("3 partitions", lambda: len(reading.partitions(topic)) == 3)
    admin.delete_topics([topic])
    wait_until("deletion", lambda: topic not in reading.router.metadata(refresh=True).topics)


def test_a_batch_larger_than_every_fetch_size(kafka: Any, topic: str, reading: Reading) -> None:
    kafka.create_topic(topic, 2, config={"max.message.bytes": 4_000_000})
    producer = confluent_producer(kafka)
    for partition in (0, 1):
        for number in range(3):
            producer.produce(topic, b"%d" % number * 1_000_000, partition=partition)
            producer.flush()
    found = reading.read(topic, max_partition_fetch_bytes=1_000, fetch_max_bytes=1_000)
    for partition in (0, 1):
        assert [(record.value or b"")[:1] for record in found[partition]] == [b"0", b"1", b"2"]


def test_from_properties_reaches_the_broker(kafka: Any, topic: str) -> None:
    config = ClientConfig.from_properties(
        {"bootstrap.servers": kafka.bootstrap_servers, "client.id": "tëst", "receive.buffer.bytes": "65536"}
    )
    assert config.receive_buffer_bytes == 65_536
    assert Reading(kafka.bootstrap_servers, client_id="tëst").router.metadata().cluster_id
