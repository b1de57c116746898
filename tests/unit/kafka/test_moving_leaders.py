"""Leaders that move all the time, and metadata that name one address for two brokers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafka_native.kafka import Consumer, Producer
from spark_kafka_native.testing import MockBroker

SETTINGS = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}
COUNT = 400


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker(brokers=2) as running:
        running.create_topic("t", partitions=2)
        yield running


def values_of(broker: MockBroker) -> list[list[bytes | None]]:
    return [[record.value for record in broker.records("t", partition)] for partition in range(2)]


def test_leaders_that_go_back_and_forth_lose_and_double_nothing(broker: MockBroker) -> None:
    """Hundreds of elections, under a producer and a consumer."""
    over, moves = threading.Event(), [0]

    def elect() -> None:
        while not over.wait(0.005):
            moves[0] += 1
            broker.move_leader("t", moves[0] % 2, 1 + moves[0] // 2 % 2)

    electing = threading.Thread(target=elect)
    found: list[list[bytes | None]] = [[], []]
    with (
        Producer(broker.bootstrap_servers, linger_ms=0, batch_records=3, **SETTINGS) as producer,
        Consumer(broker.bootstrap_servers, topic="t", **SETTINGS) as consumer,
    ):
        electing.start()
        try:
            for number in range(COUNT):
                producer.send("t", value=b"%d" % number, partition=number % 2)
                if number % 40 == 39:
                    producer.flush(60)
            while sum(map(len, found)) < COUNT:
                record = next(consumer)
                found[record.partition].append(record.value)
        finally:
            over.set()
            electing.join()
    assert moves[0] > 10
    wanted = [[b"%d" % number for number in range(partition, COUNT, 2)] for partition in range(2)]
    assert values_of(broker) == wanted
    assert found == wanted


def test_two_node_ids_at_one_address_lose_and_double_nothing(broker: MockBroker) -> None:
    """As while a broker takes over another's address, and metadata are late: broker 1 answers for both."""

    def confuse(answer: dict[str, Any]) -> None:
        first = answer["brokers"][0]
        for one in answer["brokers"]:
            one["host"], one["port"] = first["host"], first["port"]

    confused = broker.on("Metadata", times=4).change(confuse)
    with Producer(broker.bootstrap_servers, linger_ms=0, **SETTINGS) as producer:
        for number in range(20):
            producer.send("t", value=b"%d" % number, partition=number % 2)
        producer.flush(60)
    assert confused.used >= 2
    wanted = [[b"%d" % number for number in range(partition, 20, 2)] for partition in range(2)]
    assert values_of(broker) == wanted
    broker.on("Metadata", times=3).change(confuse)
    with Consumer(broker.bootstrap_servers, topic="t", **SETTINGS) as consumer:
        found: list[list[bytes | None]] = [[], []]
        while sum(map(len, found)) < 20:
            record = next(consumer)
            found[record.partition].append(record.value)
    assert found == wanted
