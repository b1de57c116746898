"""`Consumer` on a real broker: where it starts and seeks, what it reports, and what interrupts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import confluent_kafka
import pytest

from spark_kafka_native.kafka import (
    Admin,
    BrokerError,
    ConsumerClosedError,
    OffsetOutOfRangeError,
    Producer,
    Router,
    TopicPartition,
)
from spark_kafka_native.kafka import (
    Consumer as RealConsumer,
)

pytestmark = pytest.mark.broker

Consume = Callable[..., RealConsumer]
SECONDS = 60


@pytest.fixture
def consume(kafka: Any, topic: str) -> Iterator[Consume]:
    """Makes consumers of ``topic`` that end with the test."""
    made: list[RealConsumer] = []

    def begin(*topics: str, **settings: Any) -> RealConsumer:
        made.append(RealConsumer(kafka.bootstrap_servers, topics or topic, **settings))
        return made[-1]

    yield begin
    for consumer in made:
        consumer.close()


def write(kafka: Any, topic: str, first: int, count: int, partition: int = 0) -> None:
    """Records with a number as value and with a time that number of hours after 2024-01-01."""
    with Producer(kafka.bootstrap_servers) as producer:
        for number in range(first, first + count):
            producer.send(
                topic,
                b"%d" % number,
                key=b"k%d" % number,
                partition=partition,
                timestamp_ms=at(number),
                headers=[("n", b"h")],
            )


def at(number: int) -> int:
    return int(datetime(2024, 1, 1, tzinfo=UTC).timestamp() * 1000) + number * 3_600_000


def values(consumer: RealConsumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        records = consumer.poll(SECONDS, count - len(found))
        assert records, "no record came in time"
        found += [int(record.value or b"") for record in records]
    return found


def test_records_one_by_one_with_all_they_have(kafka: Any, topic: str, consume: Consume) -> None:
    kafka.create_topic(topic, 1)
    write(kafka, topic, 0, 3)
    consumer = consume(start="earliest")
    records = [next(consumer) for _ in range(3)]
    assert [record.offset for record in records] == [0, 1, 2]
    one = records[1]
    assert (one.topic, one.partition, one.key, one.value) == (topic, 0, b"k1", b"1")
    assert (one.headers, one.timestamp_ms) == ((("n", b"h"),), at(1))
    assert consumer.position() == 3
    assert consumer.lag() == {TopicPartition(topic, 0): 0}
    write(kafka, topic, 3, 2)
    assert consumer.lag() == {TopicPartition(topic, 0): 2}
    fetched = consumer.read_columns(SECONDS)
    assert fetched is not None
    batch = fetched.columns.to_arrow()
    assert batch.column("value").to_pylist()[0] == b"3"
    assert consumer.poll(0.05) == []
    assert repr(consumer).startswith(f"<Consumer of {topic}: 1 partitions at {topic}-0 ")


def test_where_to_start(kafka: Any, topic: str, consume: Consume) -> None:
    kafka.create_topic(topic, 2)
    write(kafka, topic, 0, 10)
    write(kafka, topic, 100, 10, partition=1)
    since = datetime.fromtimestamp(at(7) / 1000, UTC)
    for start, first in (
        (4, 4),
        ("earliest", 0),
        (since, 7),
        (datetime.now(UTC) - since + timedelta(minutes=30), 7),
        ({0: 8}, 8),
        ({TopicPartition(topic, 0): "earliest"}, 0),
    ):
        assert values(consume(partitions=[0], start=start), 1) == [first]
    both = consume(start={0: 9, 1: 5})
    assert sorted(values(both, 6)) == [9, 105, 106, 107, 108, 109]
    latest = consume(start="latest")
    assert latest.position(1) == 10
    assert consume(start=timedelta(0)).position(0) == 10
    write(kafka, topic, 10, 1)
    assert values(latest, 1) == [10]
    for wrong in (-1, True, "soon", datetime(2024, 1, 1), timedelta(-1), {2: 0}):
        with pytest.raises((ValueError, TypeError)):
            consume(start=wrong)
    with pytest.raises(BrokerError, match="has 2 partitions"):
        consume(partitions=[2])
    with pytest.raises(ValueError, match=r"no such columns: \['vlaue'\]"):
        consume(columns=["vlaue"])
    with pytest.raises(ValueError, match="partitions= is for one topic"):
        consume(topic, "other", partitions=[0])


def test_seeking(kafka: Any, topic: str, consume: Consume) -> None:
    kafka.create_topic(topic, 2)
    write(kafka, topic, 0, 20)
    write(kafka, topic, 100, 4, partition=1)
    consumer = consume(partitions=[0])
    assert values(consumer, 5) == [0, 1, 2, 3, 4]
    for place, whence, found in (
        (12, "offset", 12),
        ("earliest", "offset", 0),
        (datetime.fromtimestamp(at(15) / 1000, UTC), "offset", 15),
        (-3, "end", 17),
        (-2, "current", 16),
        (2, "start", 2),
        (-99, "end", 0),
    ):
        consumer.seek(place, whence=whence)
        assert consumer.position() == found
        assert values(consumer, 1) == [found]
    consumer.seek("latest")
    assert consumer.poll(0.05) == []
    write(kafka, topic, 20, 1)
    assert values(consumer, 1) == [20]
    both = consume(start="latest")
    both.seek(-1, whence="end")
    assert sorted(values(both, 2)) == [20, 103]
    both.seek(2, partition=1)
    assert values(both, 2) == [102, 103]
    for wrong in ({"place": "latest", "whence": "end"}, {"place": 1, "whence": "middle"}):
        with pytest.raises((ValueError, TypeError)):
            both.seek(**wrong)
    with pytest.raises(ValueError, match="several are read"):
        both.position()


def test_pausing(kafka: Any, topic: str, consume: Consume) -> None:
    kafka.create_topic(topic, 2)
    write(kafka, topic, 0, 5)
    write(kafka, topic, 100, 5, partition=1)
    consumer = consume()
    consumer.pause(0)
    assert consumer.paused == (TopicPartition(topic, 0),)
    assert values(consumer, 5) == [100, 101, 102, 103, 104]
    assert consumer.poll(0.05) == []
    consumer.pause()
    consumer.resume()
    assert values(consumer, 5) == [0, 1, 2, 3, 4]


def test_partitions_of_several_topics_take_turns(kafka: Any, topic: str, consume: Consume) -> None:
    """A response has room for one batch: a request has a topic twice, before and after the other one."""
    kafka.create_topic(topic, 2)
    kafka.create_topic(f"{topic}-2", 1)
    for number in range(4):
        write(kafka, topic, 100 + number, 1)
        write(kafka, topic, 200 + number, 1, partition=1)
        write(kafka, f"{topic}-2", 300 + number, 1)
    consumer = consume(topic, f"{topic}-2", fetch_max_bytes=1)
    rounds = [sorted(number // 100 for number in values(consumer, 3)) for _ in range(4)]
    assert rounds == [[1, 2, 3]] * 4


def test_new_partitions_are_read_from_their_beginning(kafka: Any, topic: str, consume: Consume) -> None:
    kafka.create_topic(topic, 1)
    consumer = consume(start="latest", metadata_max_age_ms=100)
    router = Router(consumer._router.config)
    Admin(router).create_partitions({topic: 2})
    router.close()
    write(kafka, topic, 100, 3, partition=1)
    assert values(consumer, 3) == [100, 101, 102]
    assert consumer.partitions == (TopicPartition(topic, 0), TopicPartition(topic, 1))


def test_records_that_were_deleted(kafka: Any, topic: str, consume: Consume) -> None:
    kafka.create_topic(topic, 1)
    write(kafka, topic, 0, 10)
    strict, lenient = consume(start=2), consume(start=2, auto_offset_reset="earliest")
    by_time = consume(start=99, auto_offset_reset="by_duration:PT0.001S")
    strict.seek(2)
    router = Router(strict._router.config)
    Admin(router).delete_records({TopicPartition(topic, 0): 6})
    router.close()
    fresh = consume(start=2)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError, match=r"it has \[6, 10\)"):
            fresh.poll(SECONDS)
    fresh.seek("earliest")
    assert values(fresh, 4) == [6, 7, 8, 9]
    lenient.seek(2)
    assert values(lenient, 4) == [6, 7, 8, 9]
    until = time.monotonic() + SECONDS
    while by_time.position() != 10:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_aborted_transactions_are_not_shown_and_the_position_passes_them(
    kafka: Any, topic: str, consume: Consume
) -> None:
    kafka.create_topic(topic, 1)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions()
    for number, ends in enumerate((producer.commit_transaction, producer.abort_transaction) * 2):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        producer.flush()
        ends()
    committed = consume(isolation_level="read_committed")
    assert values(committed, 2) == [0, 2]
    until = time.monotonic() + SECONDS
    while committed.position() != 8:
        assert time.monotonic() < until
        assert committed.poll(0.05) == []
    assert committed.lag() == {TopicPartition(topic, 0): 0}
    assert values(consume(), 4) == [0, 1, 2, 3]


def test_closing_ends_iteration_in_another_thread(kafka: Any, topic: str, consume: Consume) -> None:
    kafka.create_topic(topic, 1)
    write(kafka, topic, 0, 2)
    consumer = consume()
    seen: list[int] = []
    done = threading.Event()

    def read() -> None:
        seen.extend(record.offset for record in consumer)
        done.set()

    threading.Thread(target=read, daemon=True).start()
    until = time.monotonic() + SECONDS
    while len(seen) < 2 and consumer.position() < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    consumer.close()
    assert done.wait(SECONDS)
    assert seen == [0, 1]
    with pytest.raises(ConsumerClosedError):
        consumer.poll(1)
    assert next(consumer, None) is None


PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background have it ignored
from spark_kafka_native.kafka import Consumer
consumer = Consumer(sys.argv[1], sys.argv[2])
try:
    print("reading", flush=True)
    for record in consumer:
        pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
    consumer.close()
    print("closed", flush=True)
"""


def test_ctrl_c_ends_a_program_that_waits_for_records(kafka: Any, topic: str) -> None:
    kafka.create_topic(topic, 1)
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, kafka.bootstrap_servers, topic],
        stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "reading\n"
        time.sleep(0.2)  # so that it most likely waits
        program.send_signal(signal.SIGINT)
        assert program.communicate(timeout=SECONDS)[0] == "interrupted\nclosed\n"
        assert program.returncode == 0
    finally:
        program.kill()
        program.wait()
