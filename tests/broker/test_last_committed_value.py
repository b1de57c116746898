"""The last value of a key in a partition: committed ones count, also while other transactions are open."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_native.kafka import Producer, TransactionalProducer
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.consumer.fetch_once import UndecidedError, last_committed_value
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.runtime.deadline import Deadline

pytestmark = pytest.mark.broker


def test_the_last_that_counts(kafka: Any, topic: str) -> None:
    kafka.create_topic(topic, 1)
    router = Router(ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,)))

    def last(key: bytes = b"mine") -> bytes | None:
        return last_committed_value(router, TopicPartition(topic, 0), key, Deadline.after_ms(60_000))

    def write(producer: Producer, value: str | None, key: str = "mine") -> None:
        producer.send(topic, value, key=key)
        producer.flush()

    with (
        Producer(kafka.bootstrap_servers, linger_ms=0) as plain,
        TransactionalProducer(kafka.bootstrap_servers, f"{topic}-other") as other,
    ):
        assert last() is None
        write(plain, "0")
        other.begin()
        write(other, "x", "another key")
        assert last() == b"0"
        for value in ("1", "2"):
            with TransactionalProducer(kafka.bootstrap_servers, f"{topic}-mine") as mine:
                with mine.transaction():
                    write(mine, "overwritten")
                    write(mine, value)
                mine.begin()
                write(mine, "aborted")
                with pytest.raises(UndecidedError, match="is still open"):
                    last()
                mine.abort()
            # A coordinator answers before its marker is written; the next producer waits for that.
            with TransactionalProducer(kafka.bootstrap_servers, f"{topic}-mine") as mine:
                mine.initialize()
            assert last() == value.encode()
        # Further from the end than one look reaches.
        plain.send_many(topic, [{"key": "filler", "value": "x"}] * 5_000)
        plain.flush()
        assert last() == b"2"
        assert last(b"nobody's") is None
        other.abort()
        write(plain, None)
        assert last() is None
    router.close()
