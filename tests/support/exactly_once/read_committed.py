"""What a read_committed consumer of another client sees."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka

from support.waiting import eventually


def _consumer(bootstrap_servers: str, topic: str, isolation_level: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"other-{topic}",
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )


def await_committed(bootstrap_servers: str, topic: str, partitions: int, *, timeout_s: float) -> None:
    """Wait until no transaction is open: the coordinator answers a commit before it has written that to each
    partition."""
    committed, uncommitted = (
        _consumer(bootstrap_servers, topic, level) for level in ("read_committed", "read_uncommitted")
    )

    def is_open(partition: int) -> bool:
        place = confluent_kafka.TopicPartition(topic, partition)
        end, log_end = (one.get_watermark_offsets(place, timeout_s)[1] for one in (committed, uncommitted))
        return bool(end < log_end)

    what = f"the end of all transactions in {topic}"
    eventually(lambda: not any(is_open(partition) for partition in range(partitions)), what, timeout_s)
    committed.close()
    uncommitted.close()


def read_messages(
    bootstrap_servers: str, topic: str, partitions: int, *, timeout_s: float
) -> dict[int, list[Any]]:
    """The messages of each partition, from its first one up to where librdkafka says that it ends."""
    consumer = _consumer(bootstrap_servers, topic, "read_committed")
    first = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(topic, p, first) for p in range(partitions)])
    found: dict[int, list[Any]] = {p: [] for p in range(partitions)}
    ends, deadline = set(), time.monotonic() + timeout_s
    while len(ends) < partitions:
        assert time.monotonic() < deadline
        for message in consumer.consume(10_000, 1.0):
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                ends.add(message.partition())
            else:
                found[message.partition()].append(message)
    consumer.close()
    return found


def read_committed(
    bootstrap_servers: str, topic: str, partitions: int, *, timeout_s: float
) -> dict[int, list[bytes]]:
    """The values of each partition."""
    found = read_messages(bootstrap_servers, topic, partitions, timeout_s=timeout_s)
    return {partition: [message.value() for message in messages] for partition, messages in found.items()}
