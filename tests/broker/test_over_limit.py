"""Records over the limit of a topic on a real broker: the others are in order, and these where they were
sent to."""

from __future__ import annotations

import random
import time
from collections import Counter
from itertools import islice
from typing import Any

import pytest

from spark_kafka_native.kafka import (
    Admin,
    ConfigResource,
    Consumer,
    DeadLetteredError,
    Producer,
    Record,
    RecordSkippedError,
)

pytestmark = pytest.mark.broker

LIMIT = 3_000
RNG = random.Random(3)
VALUES = [b"%05d" % i + (RNG.randbytes(4_000) if RNG.random() < 0.02 else b"x" * 50) for i in range(2_000)]
PROBE = RNG.randbytes(4_000)
SMALL = [value for value in VALUES if len(value) < LIMIT]
LARGE = [value for value in VALUES if len(value) > LIMIT]


def read(kafka: Any, topic: str) -> list[Record]:
    with Consumer(kafka.bootstrap_servers, topic) as consumer:
        return list(islice(consumer, sum(consumer.lag().values())))


@pytest.mark.parametrize("over_limit", ["skip", "dead_letter"])
@pytest.mark.parametrize("place", ["at_send", "once_encoded", "by_the_broker"])
def test_the_topics_limit(kafka: Any, topic: str, place: str, over_limit: str) -> None:
    dead = f"{topic}.dead"
    kafka.create_topic(dead, partitions=1)
    told = {} if place == "by_the_broker" else {"max.message.bytes": str(LIMIT)}
    kafka.create_topic(topic, partitions=1, config=told)
    settings = {"over_limit": over_limit, "batch_records": 20, "linger_ms": 1}
    if over_limit == "dead_letter":
        settings["dead_letter_topic"] = dead
    if place == "once_encoded":
        settings["compression_type"] = "lz4"
    with Producer(kafka.bootstrap_servers, **settings) as producer:
        producer.send(topic, value=b"first").result(60)
        if place == "by_the_broker":  # the limit that the producer knows is no longer true
            with Admin(kafka.bootstrap_servers) as admin:
                admin.alter_configs(ConfigResource.topic(topic), {"max.message.bytes": str(LIMIT)})
            deadline = time.monotonic() + 60
            while producer.send(topic, value=PROBE).exception(60) is None:  # not yet the broker's limit
                assert time.monotonic() < deadline
        deliveries = [producer.send(topic, value=value) for value in VALUES]
        producer.flush(120)
        ends = Counter(type(delivery.exception(0)) for delivery in deliveries)
        stats = producer.stats()

    chosen = RecordSkippedError if over_limit == "skip" else DeadLetteredError
    assert ends == {type(None): len(SMALL), chosen: len(LARGE)}
    assert (stats.errors, stats.buffered_records, stats.buffered_bytes) == (0, 0, 0)
    written = [record.value for record in read(kafka, topic)]
    assert [value for value in written if value != PROBE] == [b"first", *SMALL]
    letters = [letter for letter in read(kafka, dead) if letter.value != PROBE]
    assert [letter.value for letter in letters] == (LARGE if over_limit == "dead_letter" else [])
    assert all(("__producer.errors.topic", topic.encode()) in letter.headers for letter in letters)
